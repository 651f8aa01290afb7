/* Manifests that make no sense although their digest is right, and shares of processes. */
/* labels: threads */
#include "tests/support/checkpoint_case.h"

/* The end of a manifest, with the digest of what stands before it. */
static AmStatus parse(const char *format, const char *change, CheckpointManifest *manifest, Arena *arena,
                      AmError *error) {
    char text[4096], digest[DIGEST_ROOM];
    *error = (AmError){0};
    int length = snprintf(text, sizeof text - 64, format, change);
    assert_true(length > 0 && length < (int)sizeof text - 64);
    digest_bytes(digest, text, (size_t)length);
    length += snprintf(text + length, 64, ",\"digest\":\"%s\"}\n", digest);
    return checkpoint_manifest_parse(manifest, arena, "m.json", text, length, error);
}

/* Each row has one place for %s: the right text, then wrong ones with their error. */
typedef struct Row {
    const char *format, *right;
    struct {
        const char *change, *reason;
    } wrong[8];
} Row;

#define DIGEST "\"0123456789abcdef0123456789abcdef\""
#define FILES  "\"files\":[{\"name\":\"a\",\"bytes\":80,\"header_bytes\":16,\"digest\":" DIGEST "}]"
#define HEAD                                                                                       \
    "{\"format\":\"automap-checkpoint-1\",\"module\":\"m\",\"plan\":\"none\",\"step\":3,\"data\":" \
    "{\"seed\":0,\"shuffled\":0,\"epoch\":0,\"batch\":3,\"batches\":0},\"ranks\":1,"
#define TENSORS "\"tensors\":[{\"path\":\"t\",\"type\":\"f32\",\"shape\":[4,4],\"parts\":["
#define PART    "{\"file\":0,\"offset\":16,\"start\":[0,0],\"extent\":[4,4],\"digest\":" DIGEST "}"

static const Row ROWS[] = {
    {HEAD FILES "," TENSORS "%s]}]",
     PART,
     {{"", "its parts hold less"},
      {PART "," PART, "its parts hold more"},
      {"{\"file\":1,\"offset\":16,\"start\":[0,0],\"extent\":[4,4],\"digest\":" DIGEST "}", "file"},
      {"{\"file\":0,\"offset\":17,\"start\":[0,0],\"extent\":[4,4],\"digest\":" DIGEST "}", "not within"},
      {"{\"file\":0,\"offset\":8,\"start\":[0,0],\"extent\":[4,4],\"digest\":" DIGEST "}", "not within"},
      {"{\"file\":0,\"offset\":16,\"start\":[1,0],\"extent\":[4,4],\"digest\":" DIGEST "}", "not within"},
      {"{\"file\":0,\"offset\":16,\"start\":[0],\"extent\":[4,4],\"digest\":" DIGEST "}", "each dimension"},
      {"{\"file\":0,\"offset\":16,\"start\":[0,0],\"extent\":[4,4],\"digest\":\"0\"}", "32 hexadecimal"}}},
    {HEAD FILES "," TENSORS
                "{\"file\":0,\"offset\":16,\"start\":[0,0],\"extent\":[4,4],\"blocks\":%s,\"digest\":" DIGEST
                "}]}]",
     "[2,1]",
     {{"[3,1]", "not within"},
      {"[8,1]", "not within"},
      {"[0,1]", "out of range"},
      {"[2]", "each dimension"}}},
    {HEAD "\"files\":[{\"name\":%s,\"bytes\":80,\"header_bytes\":16,\"digest\":" DIGEST "}]," TENSORS PART
          "]}]",
     "\"rank-00000.safetensors\"",
     {{"\"../a\"", "beside the manifest"},
      {"\".a\"", "beside the manifest"},
      {"\"\"", "beside the manifest"},
      {"3", "string"}}},
    {HEAD FILES ",\"tensors\":[{\"path\":\"t\",\"type\":\"f32\",\"shape\":%s,\"parts\":[" PART "]}]",
     "[4,4]",
     {{"[4]", "each dimension"},
      {"[4,-4]", "out of range"},
      {"[4294967296,4294967296]", "too large"},
      {"[4,5]", "its parts hold less"},
      {"[3,4]", "not within"}}},
    {HEAD FILES ",\"tensors\":[{\"path\":\"t\",\"type\":%s,\"shape\":[4,4],\"parts\":[" PART "]}]",
     "\"s32\"",
     {{"\"f64\"", "not within"}, {"\"tuple\"", "not one of numbers"}, {"\"word\"", "not one of numbers"}}},
    {"{\"format\":\"%s\",\"module\":\"m\",\"plan\":\"none\",\"step\":3,\"data\":{\"seed\":0,\"shuffled\":"
     "0,"
     "\"epoch\":0,\"batch\":3,\"batches\":0},\"ranks\":1," FILES "," TENSORS PART "]}]",
     "automap-checkpoint-1",
     {{"automap-checkpoint-2", "expected \"automap-checkpoint-1\""}}},
};

static void test_what_makes_no_sense_is_refused(void **state) {
    (void)state;
    for (size_t r = 0; r < sizeof ROWS / sizeof *ROWS; r++) {
        Arena arena = {0};
        CheckpointManifest manifest;
        AmError error;
        if (parse(ROWS[r].format, ROWS[r].right, &manifest, &arena, &error) != AM_OK)
            fail_msg("row %zu: %s", r, error.text);
        assert_int_equal(manifest.step, 3);
        for (int w = 0; w < 8 && ROWS[r].wrong[w].change; w++) {
            AmStatus status = parse(ROWS[r].format, ROWS[r].wrong[w].change, &manifest, &arena, &error);
            if (status != AM_ERROR_INPUT || !strstr(error.text, ROWS[r].wrong[w].reason))
                fail_msg("row %zu, '%s': '%s'", r, ROWS[r].wrong[w].change, error.text);
        }
        arena_free(&arena);
    }
}

/* The parts of two processes, printed, parsed and combined, are the whole. */
static void test_shares_make_a_whole(void **state) {
    (void)state;
    Arena arena = {0};
    CheckpointManifest shares[2], read;
    AmError error = {0};
    int64_t dimensions[] = {4}, start[2][1] = {{0}, {3}}, extent[2][1] = {{3}, {1}}, blocks[1] = {1};
    CheckpointTensor tensors[2];
    CheckpointPart parts[2];
    CheckpointFile files[2] = {{.name = "a", .bytes = 20, .header_bytes = 8}, {.name = "b", .bytes = 4}};
    for (int p = 0; p < 2; p++) {
        parts[p] = (CheckpointPart){
            .offset = files[p].header_bytes, .start = start[p], .extent = extent[p], .blocks = blocks};
        digest_bytes(parts[p].digest, "x", 1);
        digest_bytes(files[p].digest, "y", 1);
        tensors[p] = (CheckpointTensor){.path = "t",
                                        .type = DTYPE_F32,
                                        .rank = 1,
                                        .dimensions = dimensions,
                                        .bytes = 16,
                                        .parts = &parts[p],
                                        .part_count = 1};
        shares[p] = (CheckpointManifest){.source = "share",
                                         .module = "m",
                                         .plan = "none",
                                         .rank_count = 2,
                                         .files = &files[p],
                                         .file_count = 1,
                                         .tensors = &tensors[p],
                                         .tensor_count = 1};
    }
    Text text = {0};
    assert_int_equal(checkpoint_manifest_print(&text, &shares[1], &error), AM_OK);
    assert_int_equal(checkpoint_manifest_parse(&read, &arena, "s", text.data, (int64_t)text.length, &error),
                     AM_ERROR_INPUT);
    assert_int_equal(
        checkpoint_manifest_parse_share(&read, &arena, "s", text.data, (int64_t)text.length, NULL), AM_OK);
    assert_int_equal(checkpoint_manifest_add(&shares[0], &arena, &read, NULL), AM_OK);
    text_free(&text);
    assert_int_equal(checkpoint_manifest_print(&text, &shares[0], NULL), AM_OK);
    assert_int_equal(checkpoint_manifest_parse(&read, &arena, "s", text.data, (int64_t)text.length, NULL),
                     AM_OK);
    assert_int_equal(read.tensors[0].part_count, 2);
    assert_int_equal(read.tensors[0].parts[1].file, 1);
    assert_int_equal(read.tensors[0].parts[1].bytes, 4);
    text_free(&text);
    arena_free(&arena);
}

/* As `printf abc | xxhsum -H2` prints it, whole and in parts. */
static void test_digest(void **state) {
    (void)state;
    char whole[DIGEST_ROOM], parts[DIGEST_ROOM];
    Digest digest;
    digest_bytes(whole, "abc", 3);
    assert_string_equal(whole, "06b05ab6733a618578af5f94892f3950");
    digest_begin(&digest);
    digest_add(&digest, "a", 1);
    digest_add(&digest, "bc", 2);
    digest_end(&digest, parts);
    assert_string_equal(parts, whole);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_makes_no_sense_is_refused),
        cmocka_unit_test(test_shares_make_a_whole),
        cmocka_unit_test(test_digest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
