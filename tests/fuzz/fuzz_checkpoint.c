/* Manifests of checkpoints, with a digest that fits in place of the input's own, so that everything after it
 * is reached; those that are read are printed and read back. */
#include <string.h>

#include "executor/checkpoint/checkpoint_manifest.h"
#include "tests/fuzz/fuzz.h"

/* Ends the text as a manifest does, over what stands before the last `,"digest"`. */
static void end_with_digest(Text *text, const uint8_t *data, size_t size) {
    static const char mark[] = ",\"digest\":\"";
    char digest[DIGEST_ROOM];
    size_t length = size;
    for (size_t k = size >= sizeof mark ? size - sizeof mark + 1 : 0; k > 0; k--)
        if (memcmp(data + k, mark, sizeof mark - 1) == 0 && size - k < 64) {
            length = k;
            break;
        }
    digest_bytes(digest, data, length);
    text_append_bytes(text, (const char *)data, length);
    text_append(text, "%s%s\"}\n", mark, digest);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Text text = {0}, again = {0};
    Arena arena = {0};
    CheckpointManifest manifest, copy;
    AmError error = {0};
    end_with_digest(&text, data, size);
    fuzz_check(!text.failed, "memory", NULL);
    if (checkpoint_manifest_parse(&manifest, &arena, "input", text.data, (int64_t)text.length, &error) ==
        AM_OK) {
        fuzz_check(checkpoint_manifest_print(&again, &manifest, &error) == AM_OK, "printing", &error);
        fuzz_check(checkpoint_manifest_parse(&copy, &arena, "printed", again.data, (int64_t)again.length,
                                             &error) == AM_OK,
                   "what was printed cannot be read", &error);
        fuzz_check(copy.tensor_count == manifest.tensor_count, "another number of tensors", NULL);
    } else {
        fuzz_check(error.text[0], "a refusal without words", NULL);
    }
    text_free(&text);
    text_free(&again);
    arena_free(&arena);
    return 0;
}
