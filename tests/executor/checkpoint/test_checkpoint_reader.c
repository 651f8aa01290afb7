/* Parts of any layout read out of a checkpoint of any other, beside the definition: element by element. */
/* labels: threads */
#include "base/random.h"
#include "tests/support/checkpoint_case.h"

enum { MOST_DIMENSIONS = 4, MOST_PARTS = 64, MOST_ELEMENTS = 4096, ROUNDS = 300 };

typedef struct Part {
    int64_t start[IR_MAX_RANK], extent[IR_MAX_RANK], blocks[IR_MAX_RANK];
} Part;

/* A layout: each dimension in blocks, each block in pieces; a part for each combination of pieces. */
typedef struct Layout {
    int32_t rank, part_count;
    Part parts[MOST_PARTS];
} Layout;

static char folder[128];

/* Uneven pieces, some of one element; blocks of equal size. */
static Layout random_layout(Random *random, const int64_t *dimensions, int32_t rank) {
    Layout layout = {.rank = rank, .part_count = 1};
    for (int32_t d = 0; d < rank; d++) {
        int64_t blocks = 1 + random_below(random, 3);
        while (dimensions[d] % blocks != 0) blocks--;
        int64_t block = dimensions[d] / blocks,
                cut = random_below(random, 3) ? random_below(random, block) : 0;
        int32_t pieces = cut > 0 && 2 * layout.part_count <= MOST_PARTS ? 2 : 1;
        for (int32_t p = layout.part_count * pieces - 1; p >= 0; p--) {
            Part part = layout.parts[p / pieces];
            int64_t start = p % pieces == 0 ? 0 : cut;
            int64_t piece = pieces == 1 ? block : p % pieces == 0 ? cut : block - cut;
            part.start[d] = start;
            part.extent[d] = piece * blocks;
            part.blocks[d] = blocks;
            layout.parts[p] = part;
        }
        layout.part_count *= pieces;
    }
    return layout;
}

/* The position in the whole of element `at` of a part. */
static int64_t place_of(const Part *part, const int64_t *dimensions, int32_t rank, int64_t at) {
    int64_t place = 0, stride = 1;
    for (int32_t d = rank - 1; d >= 0; d--) {
        int64_t index = at % part->extent[d], piece = part->extent[d] / part->blocks[d];
        at /= part->extent[d];
        index = index / piece * (dimensions[d] / part->blocks[d]) + part->start[d] + index % piece;
        place += index * stride;
        stride *= dimensions[d];
    }
    return place;
}

static int64_t elements_of(const Part *part, int32_t rank) {
    int64_t elements = 1;
    for (int32_t d = 0; d < rank; d++) elements *= part->extent[d];
    return elements;
}

/* Element e of the whole has the value e + 1; every part is in one of two files. */
static void write_checkpoint(Layout *layout, const int64_t *dimensions, int64_t whole) {
    int32_t count = layout->part_count;
    CheckpointPart parts[MOST_PARTS];
    CheckpointFile files[2] = {{.name = "a"}, {.name = "b"}};
    char paths[2][160];
    FILE *streams[2];
    mkdir(folder, 0777);
    for (int f = 0; f < 2; f++) {
        snprintf(paths[f], sizeof paths[f], "%s/%s", folder, files[f].name);
        streams[f] = fopen(paths[f], "wb");
        assert_non_null(streams[f]);
        digest_bytes(files[f].digest, "", 0);
    }
    for (int32_t p = 0; p < count; p++) {
        Part *part = &layout->parts[p];
        int32_t values[MOST_ELEMENTS];
        int64_t elements = elements_of(part, layout->rank);
        for (int64_t e = 0; e < elements; e++)
            values[e] = (int32_t)place_of(part, dimensions, layout->rank, e) + 1;
        parts[p] = (CheckpointPart){.file = p % 2,
                                    .offset = files[p % 2].bytes,
                                    .start = part->start,
                                    .extent = part->extent,
                                    .blocks = part->blocks};
        files[p % 2].bytes += elements * 4;
        digest_bytes(parts[p].digest, values, (size_t)elements * 4);
        assert_int_equal(fwrite(values, 4, (size_t)elements, streams[p % 2]), elements);
    }
    for (int f = 0; f < 2; f++) fclose(streams[f]);
    CheckpointTensor tensor = {.path = "t",
                               .type = DTYPE_S32,
                               .rank = layout->rank,
                               .dimensions = dimensions,
                               .bytes = whole * 4,
                               .parts = parts,
                               .part_count = count};
    CheckpointManifest manifest = {.module = "m",
                                   .plan = "none",
                                   .rank_count = 1,
                                   .files = files,
                                   .file_count = 2,
                                   .tensors = &tensor,
                                   .tensor_count = 1};
    Text text = {0};
    snprintf(paths[0], sizeof paths[0], "%s/%s", folder, CHECKPOINT_MANIFEST);
    assert_int_equal(checkpoint_manifest_print(&text, &manifest, NULL), AM_OK);
    assert_int_equal(file_write(paths[0], text.data, text.length, NULL), AM_OK);
    text_free(&text);
}

static void check_parts(const Layout *wanted, const int64_t *dimensions, int round) {
    CheckpointReader reader;
    AmError error = {0};
    if (checkpoint_reader_open(&reader, folder, &error) != AM_OK ||
        checkpoint_reader_verify(&reader, 0, 1, &error) != AM_OK)
        fail_msg("round %d: %s", round, error.text);
    const CheckpointTensor *tensor = checkpoint_manifest_find(&reader.manifest, "t");
    for (int32_t p = 0; p < wanted->part_count; p++) {
        const Part *part = &wanted->parts[p];
        int32_t values[MOST_ELEMENTS] = {0};
        const CheckpointRequest request = {.tensor = tensor,
                                           .start = part->start,
                                           .extent = part->extent,
                                           .blocks = part->blocks,
                                           .local = values};
        if (checkpoint_reader_get(&reader, &request, &error) != AM_OK)
            fail_msg("round %d: %s", round, error.text);
        for (int64_t e = 0; e < elements_of(part, wanted->rank); e++)
            if (values[e] != place_of(part, dimensions, wanted->rank, e) + 1)
                fail_msg("round %d, part %d: element %d is %d", round, (int)p, (int)e, (int)values[e]);
    }
    checkpoint_reader_close(&reader);
}

static void test_any_layout_from_any_other(void **state) {
    (void)state;
    Random random;
    random_seed(&random, 11);
    temporary_folder(folder, sizeof folder);
    for (int round = 0; round < ROUNDS; round++) {
        int64_t dimensions[MOST_DIMENSIONS], whole = 1;
        int32_t rank = (int32_t)random_below(&random, MOST_DIMENSIONS + 1);
        for (int32_t d = 0; d < rank; d++) {
            dimensions[d] = 1 + random_below(&random, rank > 2 ? 8 : 24);
            whole *= dimensions[d];
        }
        Layout stored = random_layout(&random, dimensions, rank);
        Layout wanted = random_layout(&random, dimensions, rank);
        write_checkpoint(&stored, dimensions, whole);
        check_parts(&wanted, dimensions, round);
    }
    remove_folder(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_any_layout_from_any_other)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
