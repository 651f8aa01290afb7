/* XXH3-128 by libxxhash; the digits are those of its canonical, big-endian form, as `xxhsum -H2` prints. */
#include "base/digest.h"

#include <xxhash.h>

static void print(char hex[DIGEST_ROOM], XXH128_hash_t hash) {
    static const char digits[] = "0123456789abcdef";
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, hash);
    for (int k = 0; k < 16; k++) {
        hex[2 * k] = digits[canonical.digest[k] >> 4];
        hex[2 * k + 1] = digits[canonical.digest[k] & 15];
    }
    hex[32] = '\0';
}

void digest_bytes(char hex[DIGEST_ROOM], const void *bytes, size_t count) {
    print(hex, XXH3_128bits(bytes, count));
}

void digest_begin(Digest *digest) {
    XXH3_state_t *state = XXH3_createState();
    if (state) XXH3_128bits_reset(state);
    digest->state = state;
}

void digest_add(Digest *digest, const void *bytes, size_t count) {
    if (digest->state && count) XXH3_128bits_update(digest->state, bytes, count);
}

void digest_end(Digest *digest, char hex[DIGEST_ROOM]) {
    hex[0] = '\0';
    if (digest->state) print(hex, XXH3_128bits_digest(digest->state));
    XXH3_freeState(digest->state);
    digest->state = NULL;
}
