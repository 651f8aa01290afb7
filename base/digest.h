/* Digests of data on disk: XXH3 with 128 bits (libxxhash), as 32 hexadecimal digits.
 *
 * They detect changes by a disk, a copy or a crash, at the speed of memory. They do not prove the
 * origin of the data (SHA-256 in base/hash.h identifies modules and plans).
 */
#ifndef BASE_DIGEST_H
#define BASE_DIGEST_H

#include <stddef.h>

#define DIGEST_ROOM 33 /* the digits and a NUL */

void digest_bytes(char hex[DIGEST_ROOM], const void *bytes, size_t count);

/* A digest of bytes that come in parts. */
typedef struct Digest {
    void *state; /* XXH3_state_t; NULL: no memory */
} Digest;

void digest_begin(Digest *digest);
void digest_add(Digest *digest, const void *bytes, size_t count);
/* Releases the state. Without memory for one the digits are the empty string, which no digest equals. */
void digest_end(Digest *digest, char hex[DIGEST_ROOM]);

#endif
