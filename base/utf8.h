/* Characters of UTF-8 text: for "é!" the first has 2 bytes, the second 1; the byte ff begins none. */
#ifndef BASE_UTF8_H
#define BASE_UTF8_H

#include <stdbool.h>
#include <stdint.h>

/* Returns the bytes of the character at the begin of text[0..left), 0 if it is invalid (RFC 3629). Reads
 * nothing after a NUL. */
static inline int64_t utf8_character_bytes(const char *text, int64_t left) {
    const unsigned char *bytes = (const unsigned char *)text;
    unsigned char first = left > 0 ? bytes[0] : 0xFF;
    int64_t length = first < 0x80   ? 1
                     : first < 0xC2 ? 0
                     : first < 0xE0 ? 2
                     : first < 0xF0 ? 3
                     : first < 0xF5 ? 4
                                    : 0;
    if (length > left) return 0;
    for (int64_t i = 1; i < length; i++)
        if ((bytes[i] & 0xC0) != 0x80) return 0;
    if (length < 3) return length;
    bool is_overlong = (first == 0xE0 && bytes[1] < 0xA0) || (first == 0xF0 && bytes[1] < 0x90);
    bool is_outside = (first == 0xED && bytes[1] > 0x9F) || (first == 0xF4 && bytes[1] > 0x8F);
    return is_overlong || is_outside ? 0 : length;
}

#endif
