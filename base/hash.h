/* SHA-256 (of files, modules, clusters; OpenSSL's) and a fast 64-bit hash for tables. */
#ifndef BASE_HASH_H
#define BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

typedef struct Sha256 {
    _Alignas(16) unsigned char state[128]; /* SHA256_CTX */
} Sha256;

void sha256_begin(Sha256 *hash);
void sha256_add(Sha256 *hash, const void *bytes, size_t count);
void sha256_end(Sha256 *hash, char hex[65]);

uint64_t hash_bytes(const void *bytes, size_t count, uint64_t seed);
uint64_t hash_combine(uint64_t hash, uint64_t value);

#endif
