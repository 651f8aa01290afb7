/* Numbers in files, with the least significant byte first. */
#ifndef BASE_FILES_LITTLE_ENDIAN_H
#define BASE_FILES_LITTLE_ENDIAN_H

#include <stdint.h>

/* Returns the number in at[0..bytes), of at most 8 bytes. */
static inline uint64_t little_endian_read(const unsigned char *at, int bytes) {
    uint64_t value = 0;
    for (int k = 0; k < bytes; k++) value |= (uint64_t)at[k] << (8 * k);
    return value;
}

#endif
