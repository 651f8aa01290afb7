/* A long run holds memory flat: after its first steps, steps allocate nothing and the
 * process does not grow. 10,000 steps on one device, fewer on two ranks (AUTOMAP_FULL: as
 * many), with and without a timeline. */
#include "base/system/process.h"
#include "tests/support/runner_case.h"
#include "tests/support/sample.h"

#include <stdatomic.h>

/* Calls of the C heap by automap's own code, by all threads: the linker has sent them here. */
static _Atomic int64_t heap_calls;

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);

void *__wrap_malloc(size_t bytes) {
    atomic_fetch_add(&heap_calls, 1);
    return __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes) {
    atomic_fetch_add(&heap_calls, 1);
    return __real_calloc(count, bytes);
}

void *__wrap_realloc(void *memory, size_t bytes) {
    atomic_fetch_add(&heap_calls, 1);
    return __real_realloc(memory, bytes);
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes) {
    atomic_fetch_add(&heap_calls, 1);
    return __real_aligned_alloc(alignment, bytes);
}

typedef struct Held {
    int64_t steps, calls, bytes; /* after RUN_EARLY_STEP */
    int64_t calls_at_end, bytes_at_end;
} Held;

static void note_memory(void *user, const RunStep *step) {
    Held *held = user;
    int64_t calls = atomic_load(&heap_calls), bytes = process_resident_bytes();
    held->steps = step->step + 1;
    if (step->step <= RUN_EARLY_STEP) {
        held->calls = calls;
        held->bytes = bytes;
    }
    held->calls_at_end = calls;
    held->bytes_at_end = bytes;
}

/* `every`: steps from one evaluation of the model itself to the next; 0: none. */
static void check_flat(const char *model, const char *mesh, int64_t steps, const char *trace_path,
                       int64_t every) {
    char path[512], state[512], data[512];
    PlanContext *context;
    Arena arena = {0};
    AmError error = {0};
    RunReport report;
    Held held = {0};
    join(path, sizeof path, model, "model.hlo.pb");
    join(state, sizeof state, model, "state.npz");
    join(data, sizeof data, model, "data.npz");
    RunOptions options = {.steps = steps,
                          .state_path = state,
                          .data_path = data,
                          .trace.path = trace_path,
                          .trace.steps = 5,
                          .on_step = note_memory,
                          .user = &held};
    if (plan_context_read(&context, path, NULL, &error) != AM_OK) fail_msg("%s", error.text);
    const char *const held_out[] = {data};
    if (every > 0)
        options.validation =
            (RunValidation){.context = context, .data_paths = held_out, .data_count = 1, .every = every};
    if (mesh) options.plan = make_plan(&arena, context, mesh, choose_batch, 0);
    if (run_module(context, &options, &arena, &report, &error) != AM_OK) fail_msg("%s", error.text);
    assert_int_equal(held.steps, steps);
    assert_true(held.calls > 0);
    if (held.calls_at_end != held.calls)
        fail_msg("%s on %s: %lld allocations in %lld steps", model, mesh ? mesh : "one device",
                 (long long)(held.calls_at_end - held.calls), (long long)steps);
    /* The system counts pages of threads in lots of 64. */
    if (held.bytes_at_end > held.bytes + (1 << 20))
        fail_msg("%s: the process grew by %lld bytes", model, (long long)(held.bytes_at_end - held.bytes));
    assert_true(report.resident_bytes > 0 && report.resident_bytes_early > 0);
    if (trace_path) unlink(trace_path);
    arena_free(&arena);
    plan_context_free(context);
}

static int64_t many(int32_t otherwise) {
    const char *full = getenv("AUTOMAP_FULL");
    return full && strcmp(full, "1") == 0 ? 10000 : sample_of(otherwise, otherwise < 500 ? otherwise : 500);
}

static void test_one_device(void **state) {
    (void)state;
    check_flat("mlp_tiny", NULL, many(10000), NULL, 0);
}

static void test_two_ranks(void **state) {
    (void)state;
    check_flat("mlp_tiny", "data=2", many(2000), NULL, 0);
}

/* The ring of the timeline is there from the beginning. */
static void test_with_a_timeline(void **state) {
    (void)state;
    char path[64];
    snprintf(path, sizeof path, "test_run_memory_%d.json", (int)getpid());
    check_flat("mlp_tiny", "data=2", many(1000), path, 0);
}

static void test_with_evaluations(void **state) {
    (void)state;
    check_flat("mlp_tiny", "data=2", many(400), NULL, 7);
}

/* Loops and attention: every kernel family has its iteration. */
static void test_other_models(void **state) {
    (void)state;
    check_flat("gpt2_tiny", "data=2", many(40), NULL, 0);
    check_flat("llama_tiny", NULL, many(40), NULL, 0);
    check_flat("vgg_tiny", NULL, many(30), NULL, 0);
    check_flat("moe_sorted_tiny", NULL, many(40), NULL, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_device),      cmocka_unit_test(test_two_ranks),
        cmocka_unit_test(test_with_a_timeline), cmocka_unit_test(test_with_evaluations),
        cmocka_unit_test(test_other_models),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
