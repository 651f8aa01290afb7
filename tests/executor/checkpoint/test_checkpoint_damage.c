/* Damaged checkpoints: every bit of headers and manifest, sampled bits of data, every length:
 * all are detected, the file is named, and nothing is read from them.
 *
 * AUTOMAP_FULL=1 flips 10,000 data bits in place of 2,000.
 */
/* cost: 5 seconds */
#include "tests/support/checkpoint_case.h"

typedef struct File {
    char path[512];
    FileBytes bytes;
    int64_t header_bytes;
} File;

enum { FILE_COUNT = 3 }; /* two ranks and the manifest */

typedef struct Damage {
    CheckpointCase run;
    char directory[256];
    File files[FILE_COUNT];
} Damage;

static void open_files(Damage *self) {
    static const char *const names[FILE_COUNT] = {"rank-00000.safetensors", "rank-00001.safetensors",
                                                  CHECKPOINT_MANIFEST};
    snprintf(self->directory, sizeof self->directory, "%s/step-00000002", self->run.folder);
    for (int f = 0; f < FILE_COUNT; f++) {
        File *file = &self->files[f];
        uint64_t length;
        snprintf(file->path, sizeof file->path, "%s/%s", self->directory, names[f]);
        assert_int_equal(file_read(&file->bytes, file->path, NULL), AM_OK);
        memcpy(&length, file->bytes.data, sizeof length);
        file->header_bytes = f == 2 ? file->bytes.length : (int64_t)length + 8;
        assert_true(file->header_bytes <= file->bytes.length);
    }
}

static int setup(void **state) {
    Damage *self = calloc(1, sizeof *self);
    checkpoint_case_open(&self->run, "exact_linear");
    RunOptions options = {.plan = checkpoint_case_plan(&self->run, "x=2", 0),
                          .checkpoints.path = self->run.folder};
    assert_int_equal(checkpoint_case_run(&self->run, options, 2), AM_OK);
    open_files(self);
    *state = self;
    return 0;
}

static int teardown(void **state) {
    Damage *self = *state;
    for (int f = 0; f < FILE_COUNT; f++) file_release(&self->files[f].bytes);
    checkpoint_case_close(&self->run);
    free(self);
    return 0;
}

static AmStatus verify(const Damage *self, AmError *error) {
    CheckpointReader reader;
    *error = (AmError){0};
    AmStatus status = checkpoint_reader_open(&reader, self->directory, error);
    if (status == AM_OK) status = checkpoint_reader_verify(&reader, 0, 1, error);
    checkpoint_reader_close(&reader);
    return status;
}

/* It is refused, and the file that was damaged is named. */
static void check_refused(const Damage *self, const File *file, const char *what, int64_t at) {
    AmError error;
    if (verify(self, &error) != AM_ERROR_INPUT || strcmp(error.source, file->path) != 0)
        fail_msg("%s: %s %lld: %s: %s", file->path, what, (long long)at, error.source, error.text);
}

static void write_at(const File *file, int64_t at, const void *bytes, size_t count) {
    FILE *stream = fopen(file->path, "r+b");
    assert_non_null(stream);
    assert_int_equal(fseek(stream, (long)at, SEEK_SET), 0);
    assert_int_equal(fwrite(bytes, 1, count, stream), count);
    assert_int_equal(fclose(stream), 0);
}

static void check_flip(const Damage *self, const File *file, int64_t bit) {
    char byte = file->bytes.data[bit / 8], flipped = (char)(byte ^ (1 << bit % 8));
    write_at(file, bit / 8, &flipped, 1);
    check_refused(self, file, "flipped bit", bit);
    write_at(file, bit / 8, &byte, 1);
}

static void test_undamaged_one_is_read(void **state) {
    AmError error;
    assert_int_equal(verify(*state, &error), AM_OK);
}

static void test_every_bit_of_headers_and_manifest(void **state) {
    Damage *self = *state;
    for (int f = 0; f < FILE_COUNT; f++)
        for (int64_t bit = 0; bit < 8 * self->files[f].header_bytes; bit++)
            check_flip(self, &self->files[f], bit);
    test_undamaged_one_is_read(state);
}

static void test_bits_of_data(void **state) {
    Damage *self = *state;
    const char *full = getenv("AUTOMAP_FULL");
    int flips = full && strcmp(full, "1") == 0 ? 10000 : 2000;
    Random random;
    random_seed(&random, 7);
    for (int k = 0; k < flips; k++) {
        const File *file = &self->files[k % 2];
        int64_t bits = 8 * (file->bytes.length - file->header_bytes);
        check_flip(self, file, 8 * file->header_bytes + random_below(&random, bits));
    }
    test_undamaged_one_is_read(state);
}

static void test_every_length(void **state) {
    Damage *self = *state;
    for (int f = 0; f < FILE_COUNT; f++) {
        const File *file = &self->files[f];
        for (int64_t length = file->bytes.length - 1; length >= 0; length--) {
            assert_int_equal(truncate(file->path, (off_t)length), 0);
            check_refused(self, file, "cut to", length);
        }
        write_at(file, 0, file->bytes.data, (size_t)file->bytes.length);
        assert_int_equal(truncate(file->path, (off_t)file->bytes.length + 1), 0);
        check_refused(self, file, "longer", file->bytes.length + 1);
        assert_int_equal(truncate(file->path, (off_t)file->bytes.length), 0);
        assert_int_equal(unlink(file->path), 0);
        check_refused(self, file, "missing", 0);
        FILE *stream = fopen(file->path, "wb");
        assert_non_null(stream);
        fclose(stream);
        write_at(file, 0, file->bytes.data, (size_t)file->bytes.length);
    }
    test_undamaged_one_is_read(state);
}

/* The only checkpoint: the run is refused, before any step, as the export is. */
static void test_run_is_refused(void **state) {
    Damage *self = *state;
    RunOptions options = {.checkpoints.path = self->run.folder, .checkpoints.resumes = true};
    const char *exported = "test_checkpoint_damage.safetensors";
    for (int f = 0; f < FILE_COUNT; f++) {
        const File *file = &self->files[f];
        int64_t at = file->bytes.length - 5;
        char byte = file->bytes.data[at], flipped = (char)(byte ^ 1);
        write_at(file, at, &flipped, 1);
        assert_int_equal(checkpoint_case_run(&self->run, options, 4), AM_ERROR_INPUT);
        assert_string_equal(self->run.error.source, file->path);
        assert_non_null(strstr(self->run.error.text, "damaged"));
        assert_true(isnan(self->run.losses[2]));
        AmError error = {0};
        assert_int_equal(checkpoint_export(self->run.folder, exported, &self->run.warnings, &error),
                         AM_ERROR_INPUT);
        assert_string_equal(error.source, file->path);
        write_at(file, at, &byte, 1);
    }
}

/* With an older checkpoint the run continues from that one, reports it, and renames the damaged
 * one. */
static void test_older_one_is_taken(void **state) {
    Damage *self = *state;
    CheckpointCase *run = &self->run;
    RunOptions options = {
        .checkpoints.path = run->folder, .checkpoints.every = 2, .checkpoints.resumes = true};
    checkpoint_case_expect(run, NULL);
    assert_int_equal(checkpoint_case_run(run, options, 4), AM_OK);
    char path[512];
    snprintf(path, sizeof path, "%s/step-00000004/rank-00000.safetensors", run->folder);
    assert_int_equal(truncate(path, 100), 0);
    assert_int_equal(checkpoint_case_run(run, options, CHECKPOINT_STEPS), AM_OK);
    check_losses(run, 2, "from the older one");
    assert_non_null(strstr(run->notes, "warning: a checkpoint is skipped"));
    assert_non_null(strstr(run->notes, path));
    assert_true(holds(run, "step-00000004.damaged"));
    assert_true(holds(run, "step-00000006") && holds(run, "step-00000008"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_undamaged_one_is_read, setup, teardown),
        cmocka_unit_test_setup_teardown(test_every_bit_of_headers_and_manifest, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bits_of_data, setup, teardown),
        cmocka_unit_test_setup_teardown(test_every_length, setup, teardown),
        cmocka_unit_test_setup_teardown(test_run_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(test_older_one_is_taken, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
