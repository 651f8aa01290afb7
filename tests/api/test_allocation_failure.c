/* Memory exhaustion: the n-th allocation of a task fails, for n = 1, 2, ... until the task
 * succeeds. The result must be the error "out of memory" in one line, or the right result if the
 * task does not need the memory; and all allocations must be freed.
 *
 * The program is linked with --wrap (cmake/AutomapTests.cmake): calls of the allocating functions
 * below from our own code come here first. An arena rarely allocates from the heap, so that the
 * arena's own functions fail too: each allocation is tried. Jansson allocates through our
 * functions, zlib, zstd and OpenSSL fail when a context is made. Allocations inside the C library
 * cannot fail here, and jansson reports a lack of memory while reading as a syntax error; no module
 * is read with it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "base/files/file.h"
#include "ir/analysis/roles.h"
#include "ir/canonical/canonical.h"
#include "ir/encodings.h"
#include "propagation/plan/plan.h"

/* Allocations until one fails; 0 or less: none does. From then on `lasting` fails all. Threads of a task
 * allocate, too. */
static _Atomic int64_t countdown;
static bool armed, lasting;
static _Atomic bool fired;
static bool is_right;        /* the result of a successful task */
static _Atomic int64_t live; /* blocks of the heap that were not freed */

static bool fails(void) {
    if (!armed || --countdown > 0 || (fired && !lasting)) return false;
    fired = true;
    return true;
}

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
void __real_free(void *memory);
char *__real_strdup(const char *text);
char *__real_realpath(const char *path, char *resolved);
void *__real_arena_alloc(Arena *arena, size_t bytes);
void *__real_arena_grow(Arena *arena, const void *old, size_t old_bytes, size_t new_bytes);
char *__real_arena_copy_bytes(Arena *arena, const void *bytes, size_t count);
char *__real_arena_copy_string(Arena *arena, const char *text);
char *__real_arena_vformat(Arena *arena, const char *format, va_list arguments);
int __real_inflateInit2_(z_stream *stream, int bits, const char *version, int size);
void *__real_ZSTD_createDCtx(void);

void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);
void __wrap_free(void *memory);
char *__wrap_strdup(const char *text);
char *__wrap_realpath(const char *path, char *resolved);
void *__wrap_arena_alloc(Arena *arena, size_t bytes);
void *__wrap_arena_grow(Arena *arena, const void *old, size_t old_bytes, size_t new_bytes);
char *__wrap_arena_copy_bytes(Arena *arena, const void *bytes, size_t count);
char *__wrap_arena_copy_string(Arena *arena, const char *text);
char *__wrap_arena_vformat(Arena *arena, const char *format, va_list arguments)
    __attribute__((format(printf, 2, 0)));
char *__wrap_arena_format(Arena *arena, const char *format, ...) __attribute__((format(printf, 2, 3)));
int __wrap_inflateInit2_(z_stream *stream, int bits, const char *version, int size);
void *__wrap_ZSTD_createDCtx(void);

static void *counted(void *memory) {
    live += memory != NULL;
    return memory;
}

void *__wrap_malloc(size_t bytes) {
    return fails() ? NULL : counted(__real_malloc(bytes));
}

void *__wrap_calloc(size_t count, size_t bytes) {
    return fails() ? NULL : counted(__real_calloc(count, bytes));
}

void *__wrap_realloc(void *old, size_t bytes) {
    if (fails()) return NULL;
    void *memory = __real_realloc(old, bytes);
    live += !old && memory;
    return memory;
}

void __wrap_free(void *memory) {
    live -= memory != NULL;
    __real_free(memory);
}

char *__wrap_strdup(const char *text) {
    return fails() ? NULL : counted(__real_strdup(text));
}

char *__wrap_realpath(const char *path, char *resolved) {
    if (fails()) {
        errno = ENOMEM;
        return NULL;
    }
    return counted(__real_realpath(path, resolved));
}

static void *refuse(Arena *arena) {
    arena->failed = true;
    return NULL;
}

void *__wrap_arena_alloc(Arena *arena, size_t bytes) {
    return fails() ? refuse(arena) : __real_arena_alloc(arena, bytes);
}

void *__wrap_arena_grow(Arena *arena, const void *old, size_t old_bytes, size_t new_bytes) {
    return fails() ? refuse(arena) : __real_arena_grow(arena, old, old_bytes, new_bytes);
}

char *__wrap_arena_copy_bytes(Arena *arena, const void *bytes, size_t count) {
    return fails() ? refuse(arena) : __real_arena_copy_bytes(arena, bytes, count);
}

char *__wrap_arena_copy_string(Arena *arena, const char *text) {
    return fails() ? refuse(arena) : __real_arena_copy_string(arena, text);
}

char *__wrap_arena_vformat(Arena *arena, const char *format, va_list arguments) {
    return fails() ? refuse(arena) : __real_arena_vformat(arena, format, arguments);
}

char *__wrap_arena_format(Arena *arena, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    char *text = __wrap_arena_vformat(arena, format, arguments);
    va_end(arguments);
    return text;
}

int __wrap_inflateInit2_(z_stream *stream, int bits, const char *version, int size) {
    return fails() ? Z_MEM_ERROR : __real_inflateInit2_(stream, bits, version, size);
}

void *__wrap_ZSTD_createDCtx(void) {
    return fails() ? NULL : __real_ZSTD_createDCtx();
}

enum { FORM_COUNT = 3 };

/* Inputs of the tasks, made before failures begin. */
typedef struct Input {
    IrModule *module, *canonical;
    char hash[65];
    Text printed[FORM_COUNT];
    char paths[5][64]; /* .pb, .json, .txt, .pb.gz, .pb.zst */
} Input;

typedef AmStatus Task(const Input *input, int32_t which, AmError *error);

static AmStatus print(Text *out, int32_t form, const IrModule *module, AmError *error) {
    static AmStatus (*const printers[])(Text *, const Hlo__HloModuleProto *,
                                        AmError *) = {ir_print_pb, ir_print_json, ir_print_text};
    return printers[form](out, module->message, error);
}

static AmStatus task_print(const Input *input, int32_t which, AmError *error) {
    const Text *expected = &input->printed[which];
    Text text = {0};
    AmStatus status = print(&text, which, input->module, error);
    is_right = text.length == expected->length && memcmp(text.data, expected->data, text.length) == 0;
    text_free(&text);
    return status;
}

/* A module that was read although memory failed must be the right one. */
static AmStatus task_read(const Input *input, int32_t which, AmError *error) {
    const Text *text = &input->printed[which];
    IrModule *module = NULL;
    TRY(ir_read_bytes(&module, "input", text->data, (int64_t)text->length, error));
    is_right = module->instruction_count == input->module->instruction_count;
    ir_module_free(module);
    return AM_OK;
}

static AmStatus task_read_file(const Input *input, int32_t which, AmError *error) {
    IrModule *module = NULL;
    TRY(ir_read(&module, input->paths[which], error));
    is_right = module->instruction_count == input->module->instruction_count;
    ir_module_free(module);
    return AM_OK;
}

static AmStatus task_write_file(const Input *input, int32_t which, AmError *error) {
    return ir_write(input->module, input->paths[which], error);
}

static AmStatus task_canonicalize(const Input *input, int32_t which, AmError *error) {
    IrModule *canonical = NULL;
    (void)which;
    TRY(ir_canonicalize(&canonical, input->module, error));
    is_right = canonical->instruction_count == input->canonical->instruction_count;
    ir_module_free(canonical);
    return AM_OK;
}

static AmStatus task_hash(const Input *input, int32_t which, AmError *error) {
    char hash[65];
    (void)which;
    ir_hash(input->canonical, hash);
    if (!hash[0]) return am_fail_memory(error, 0); /* ir_hash()'s report of exhausted memory */
    is_right = strcmp(hash, input->hash) == 0;
    return AM_OK;
}

static AmStatus task_roles(const Input *input, int32_t which, AmError *error) {
    Arena arena = {0};
    IrRoles *roles;
    (void)which;
    AmStatus status = ir_find_roles(&roles, &arena, input->canonical, NULL, error);
    arena_free(&arena);
    return status;
}

static AmStatus task_context(const Input *input, int32_t which, AmError *error) {
    PlanContext *context = NULL;
    TRY(plan_context_read(&context, input->paths[which], NULL, error));
    is_right = strcmp(context->sha256, input->hash) == 0;
    plan_context_free(context);
    return AM_OK;
}

typedef struct Row {
    const char *name;
    Task *run;
    int32_t variants;
} Row;

static const Row TASKS[] = {
    {"print", task_print, FORM_COUNT},
    {"read", task_read, FORM_COUNT},
    {"read a file", task_read_file, 5},
    {"write a file", task_write_file, 5},
    {"canonicalize", task_canonicalize, 1},
    {"hash", task_hash, 1},
    {"roles", task_roles, 1},
    {"read a context", task_context, 1},
};

/* One run in which the n-th allocation fails; whether it came to that. */
static bool run_once(const Input *input, const Row *row, int32_t which, int64_t n, bool stays) {
    AmError error = {0};
    arena_free_cache();
    int64_t before = live;
    countdown = n;
    lasting = stays;
    fired = false;
    armed = is_right = true;
    AmStatus status = row->run(input, which, &error);
    armed = false;
    arena_free_cache();
    if (live != before)
        fail_msg("%s %d, allocation %lld: %lld blocks are not freed", row->name, which, (long long)n,
                 (long long)(live - before));
    bool is_clean =
        (status == AM_OK && is_right) || (fired && status == AM_ERROR_INTERNAL &&
                                          strstr(error.text, "out of memory") && !strchr(error.text, '\n'));
    if (!is_clean)
        fail_msg("%s %d, allocation %lld: status %d, %s", row->name, which, (long long)n, (int)status,
                 status == AM_OK ? "with a wrong result" : error.text);
    return fired;
}

static void open_input(Input *input, const char *path, const char *folder) {
    static const char *const suffixes[] = {"pb", "json", "txt", "pb.gz", "pb.zst"};
    AmError error = {0};
    *input = (Input){0};
    if (ir_read(&input->module, path, &error) != AM_OK) fail_msg("%s", error.text);
    assert_int_equal(ir_canonicalize(&input->canonical, input->module, &error), AM_OK);
    ir_hash(input->canonical, input->hash);
    for (int32_t form = 0; form < FORM_COUNT; form++)
        assert_int_equal(print(&input->printed[form], form, input->module, &error), AM_OK);
    for (int32_t k = 0; k < 5; k++) {
        snprintf(input->paths[k], sizeof input->paths[k], "%s/m.hlo.%s", folder, suffixes[k]);
        assert_int_equal(ir_write(input->module, input->paths[k], &error), AM_OK);
    }
}

static void close_input(Input *input) {
    for (int32_t form = 0; form < FORM_COUNT; form++) text_free(&input->printed[form]);
    for (int32_t k = 0; k < 5; k++) remove(input->paths[k]);
    ir_module_free(input->canonical);
    ir_module_free(input->module);
}

/* Every allocation, or in steps that grow as 1 + n / step, until a run gets by. */
static void fail_each(const char *path, int64_t step) {
    char folder[] = "/tmp/allocation.XXXXXX";
    Input input;
    assert_non_null(mkdtemp(folder));
    open_input(&input, path, folder);
    for (size_t t = 0; t < sizeof TASKS / sizeof *TASKS; t++) {
        for (int32_t which = 0; which < TASKS[t].variants; which++) {
            int64_t n = 1;
            while (run_once(&input, &TASKS[t], which, n, n % 2)) n += 1 + n / step;
        }
    }
    close_input(&input);
    rmdir(folder);
}

/* With AUTOMAP_FULL every allocation of the larger ones too. */
static int64_t at_most(int64_t step) {
    return getenv("AUTOMAP_FULL") ? INT64_MAX : step;
}

static void test_every_allocation_for_a_small_module(void **state) {
    (void)state;
    fail_each(SOURCE_DIR "/tests/data/text/fori_traced.hlo.txt", INT64_MAX);
    fail_each(SOURCE_DIR "/tests/data/text/new_style.hlo.txt", INT64_MAX);
}

static void test_every_construct_of_the_text(void **state) {
    (void)state;
    fail_each(SOURCE_DIR "/tests/data/text/scan_layers.hlo.txt", at_most(10));
    fail_each(SOURCE_DIR "/tests/data/text/attributes.hlo.txt", at_most(10));
    fail_each(SOURCE_DIR "/tests/data/text/literals.hlo.txt", at_most(10));
}

static void test_models_at_some_allocations(void **state) {
    (void)state;
    fail_each(SOURCE_DIR "/datasets/models/mlp_tiny/model.hlo.pb", at_most(8));
    fail_each(SOURCE_DIR "/datasets/models/t5_tiny/model.hlo.pb", 1);
}

int main(void) {
    json_set_alloc_funcs(__wrap_malloc, __wrap_free);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_allocation_for_a_small_module),
        cmocka_unit_test(test_every_construct_of_the_text),
        cmocka_unit_test(test_models_at_some_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
