/* Hashes: SHA-256 by OpenSSL, where equal must mean equal, and
 * a 64-bit multiply-and-fold hash for tables, where speed counts.
 *
 * OpenSSL's SHA256_ functions are deprecated in favour of EVP. They are used because they
 * allocate nothing: without memory the initialization of EVP waits for itself without end.
 *
 * The table hash takes eight bytes at a time: h = (h ^ word) * K, h ^= h >> 32
 * with K odd, and ends with the length and two rounds of murmur's finalizer.
 * Words are little-endian, so the value is the same everywhere.
 */
#include "base/hash.h"

#define OPENSSL_SUPPRESS_DEPRECATED
#include <openssl/sha.h>
#include <string.h>

_Static_assert(sizeof(SHA256_CTX) <= sizeof(Sha256), "Sha256 has room for OpenSSL's state");

void sha256_begin(Sha256 *hash) {
    SHA256_Init((SHA256_CTX *)hash->state);
}

void sha256_add(Sha256 *hash, const void *bytes, size_t count) {
    if (count) SHA256_Update((SHA256_CTX *)hash->state, bytes, count);
}

void sha256_end(Sha256 *hash, char hex[65]) {
    static const char digits[] = "0123456789abcdef";
    unsigned char digest[SHA256_DIGEST_LENGTH];
    SHA256_Final(digest, (SHA256_CTX *)hash->state);
    for (int i = 0; i < SHA256_DIGEST_LENGTH; i++) {
        hex[2 * i] = digits[digest[i] >> 4];
        hex[2 * i + 1] = digits[digest[i] & 15];
    }
    hex[64] = '\0';
}

static uint64_t load_little_endian(const unsigned char *bytes, size_t count) {
    uint64_t word = 0;
    for (size_t i = 0; i < count; i++) word |= (uint64_t)bytes[i] << (8 * i);
    return word;
}

static uint64_t load_word(const unsigned char *bytes) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    uint64_t word;
    memcpy(&word, bytes, sizeof word);
    return word;
#else
    return load_little_endian(bytes, 8);
#endif
}

static uint64_t finish(uint64_t h) {
    h ^= h >> 33;
    h *= 0xFF51AFD7ED558CCDu;
    h ^= h >> 33;
    h *= 0xC4CEB9FE1A85EC53u;
    return h ^ h >> 33;
}

uint64_t hash_combine(uint64_t hash, uint64_t value) {
    hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
    return hash ^ hash >> 32;
}

uint64_t hash_bytes(const void *bytes, size_t count, uint64_t seed) {
    const unsigned char *at = bytes;
    uint64_t hash = finish(seed + 0x9E3779B97F4A7C15u);
    size_t left = count;
    for (; left >= 8; left -= 8, at += 8) hash = hash_combine(hash, load_word(at));
    if (left) hash = hash_combine(hash, load_little_endian(at, left));
    return finish(hash_combine(hash, count));
}
