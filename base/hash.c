/* Hashes: SHA-256 by OpenSSL's EVP interface, where equal must mean equal, and
 * a 64-bit multiply-and-fold hash for tables, where speed counts.
 *
 * The table hash takes eight bytes at a time: h = (h ^ word) * K, h ^= h >> 32
 * with K odd, and ends with the length and two rounds of murmur's finalizer.
 * Words are little-endian, so the value is the same everywhere.
 */
#include "base/hash.h"

#include <openssl/evp.h>
#include <string.h>

void sha256_begin(Sha256 *hash) {
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    if (context && EVP_DigestInit_ex(context, EVP_sha256(), NULL) != 1) {
        EVP_MD_CTX_free(context);
        context = NULL;
    }
    hash->context = context;
}

void sha256_add(Sha256 *hash, const void *bytes, size_t count) {
    if (hash->context && count) EVP_DigestUpdate(hash->context, bytes, count);
}

/* Without memory for a context the digest is the empty string, which equals
 * no digest of anything. */
void sha256_end(Sha256 *hash, char hex[65]) {
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned int length = 0;
    hex[0] = '\0';
    if (hash->context && EVP_DigestFinal_ex(hash->context, digest, &length) == 1 && length == 32) {
        static const char digits[] = "0123456789abcdef";
        for (int i = 0; i < 32; i++) {
            hex[2 * i] = digits[digest[i] >> 4];
            hex[2 * i + 1] = digits[digest[i] & 15];
        }
        hex[64] = '\0';
    }
    EVP_MD_CTX_free(hash->context);
    hash->context = NULL;
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
