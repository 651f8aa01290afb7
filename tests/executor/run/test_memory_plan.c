/* Memory at run time equals the buffer plan, to the byte: a rank's allocation from its back end, the memory
 * of its values, the accesses of its steps, and the cost model's figure. The cases are every small model of
 * datasets/models on one device, split, and in micro-batches. A rank's memory is enlarged by a guard, and
 * unowned bytes are marked: both must be unchanged after two steps. */
#include "tests/support/runner_case.h"

#include <cblas.h>
#include <dirent.h>
#include <pthread.h>

#include "executor/program/rank.h"
#include "lowering/micro_batch/micro_batches.h"
#include "lowering/spmd/ranks.h"

enum { MOST_RANKS = 4, GUARD_BYTES = 4096, MARK = 0xa5 };

/* A device that counts its allocations. */
typedef struct Counted {
    KernelBackEnd back_end;
    KernelDevice *device;
    const KernelBackEnd *real;
    int64_t allocations, bytes;
} Counted;

typedef struct Runner {
    Counted counted;
    Rank rank;
    char *owned; /* [allocation_bytes]: 1 where a value of the program may lie */
    pthread_t thread;
    AmStatus status;
    AmError error;
} Runner;

static Runner runners[MOST_RANKS];

static AmStatus count_allocation(KernelDevice *device, void **memory, int64_t bytes, AmError *error) {
    int32_t r = 0;
    while (runners[r].counted.device != device) r++;
    runners[r].counted.allocations++;
    runners[r].counted.bytes += bytes;
    TRY(runners[r].counted.real->allocate(device, memory, bytes + GUARD_BYTES, error));
    memset((char *)*memory + bytes, MARK, GUARD_BYTES);
    return AM_OK;
}

static void open_device(int32_t r) {
    Counted *counted = &runners[r].counted;
    const KernelOptions options = {.index = r};
    AmError error = {0};
    assert_int_equal(kernels_cpu.open(&counted->device, &options, &error), AM_OK);
    counted->real = counted->device->back_end;
    counted->back_end = *counted->real;
    counted->back_end.allocate = count_allocation;
    counted->device->back_end = &counted->back_end;
}

static void close_device(int32_t r) {
    Counted *counted = &runners[r].counted;
    counted->device->back_end = counted->real;
    counted->real->close(counted->device);
}

static void own(Runner *runner, int64_t offset, int64_t bytes, int64_t *end) {
    if (offset < 0 || bytes <= 0) return;
    assert_true(offset % 64 == 0 && offset + bytes <= runner->rank.program->allocation.bytes);
    memset(runner->owned + offset, 1, (size_t)bytes);
    if (offset + bytes > *end) *end = offset + bytes;
}

/* Marks what no value owns; the values reach to the end of the allocation and not beyond. */
static void mark_gaps(Runner *runner) {
    const Program *program = runner->rank.program;
    int64_t end = 0;
    runner->owned = calloc(1, (size_t)program->allocation.bytes + 1);
    for (int32_t v = 0; v < program->value_count; v++)
        if (program->values[v].storage == v)
            own(runner, program->values[v].offset, program->values[v].bytes, &end);
    for (int32_t i = 0; i < program->instruction_count; i++)
        own(runner,
            program->instructions[i].regions.workspace_bytes > 0 ? program->instructions[i].regions.workspace
                                                                 : -1,
            program->instructions[i].regions.workspace_bytes, &end);
    for (int32_t u = 0; u < program->execution.update_count; u++)
        own(runner, program->execution.updates[u].staging,
            ir_shape_bytes(&program->values[program->execution.updates[u].value].shape), &end);
    assert_int_equal(kernel_align(end), kernel_align(program->allocation.bytes));
    for (int64_t b = 0; b < program->allocation.bytes; b++)
        if (!runner->owned[b]) runner->rank.memory[b] = (char)MARK;
}

static void check_marks(const Runner *runner, const char *model) {
    const Program *program = runner->rank.program;
    for (int64_t b = 0; b < program->allocation.bytes; b++)
        if (!runner->owned[b] && (unsigned char)runner->rank.memory[b] != MARK)
            fail_msg("%s: byte %lld of the allocation is nobody's and was written", model, (long long)b);
    for (int64_t b = 0; b < GUARD_BYTES; b++)
        if ((unsigned char)runner->rank.memory[runner->counted.bytes + b] != MARK)
            fail_msg("%s: byte %lld behind the allocation was written", model, (long long)b);
}

static void *run_two_steps(void *argument) {
    Runner *runner = argument;
    Rank *rank = &runner->rank;
    runner->status = rank_start(rank, &runner->error);
    for (int step = 0; step < 2 && runner->status == AM_OK; step++) {
        runner->status = rank_run(rank, &runner->error);
        if (runner->status == AM_OK) rank_update(rank);
    }
    if (runner->status != AM_OK) rank->comm->back_end->abort(rank->comm);
    return NULL;
}

static void set_parameters(Rank *rank, const PlanContext *context) {
    const IrRoles *roles = context->roles;
    for (int32_t k = 0; k < roles->parameter_count; k++) {
        const IrShape *shape = &context->canonical->instructions[roles->parameters[k].instruction].shape;
        void *zeros = calloc(1, (size_t)ir_shape_bytes(shape) + 1);
        rank_set_parameter(rank, k, zeros);
        free(zeros);
    }
}

static void open_rank(Runner *runner, Comm *comm, const PlanContext *context, const PlanRanks *ranks) {
    AmError error = {0};
    Program *program;
    Rank *rank = &runner->rank;
    AmStatus status = ranks ? plan_ranks_lower(&program, &rank->arena, ranks, comm->rank, &error)
                            : plan_lower_one_device(&program, &rank->arena, context, &error);
    if (status == AM_OK) status = rank_open(rank, runner->counted.device, comm, program, &error);
    if (status != AM_OK) fail_msg("%s", error.text);
    assert_int_equal(runner->counted.allocations, 1);
    assert_int_equal(runner->counted.bytes, kernel_align(program->allocation.bytes) + rank->scratch_bytes);
    assert_int_equal(runner->counted.bytes, rank->memory_bytes);
    mark_gaps(runner);
    set_parameters(rank, context);
}

/* Bytes that its ranks took. */
static int64_t check_plan(const char *model, const PlanContext *context, const Plan *plan) {
    int32_t count = plan ? plan->stages[0].mesh.device_count : 1;
    KernelDevice *devices[MOST_RANKS];
    Comm comms[MOST_RANKS];
    PlanRanks ranks;
    Arena arena = {0};
    AmError error = {0};
    int64_t bytes = 0;
    memset(runners, 0, sizeof runners);
    if (plan && plan_ranks(&ranks, &arena, context, plan, &error) != AM_OK) fail_msg("%s", error.text);
    for (int32_t r = 0; r < count; r++) {
        open_device(r);
        devices[r] = runners[r].counted.device;
    }
    assert_int_equal(comm_local.open(comms, 0, count, count, devices, NULL, &error), AM_OK);
    for (int32_t r = 0; r < count; r++) open_rank(&runners[r], &comms[r], context, plan ? &ranks : NULL);
    for (int32_t r = 1; r < count; r++)
        assert_int_equal(pthread_create(&runners[r].thread, NULL, run_two_steps, &runners[r]), 0);
    run_two_steps(&runners[0]);
    for (int32_t r = 1; r < count; r++) pthread_join(runners[r].thread, NULL);
    for (int32_t r = 0; r < count; r++) {
        if (runners[r].status != AM_OK) fail_msg("%s: %s", model, runners[r].error.text);
        assert_int_equal(runners[r].counted.allocations, 1);
        check_marks(&runners[r], model);
        bytes += runners[r].counted.bytes;
        free(runners[r].owned);
        rank_close(&runners[r].rank);
    }
    comm_local.close(comms);
    for (int32_t r = 0; r < count; r++) close_device(r);
    arena_free(&arena);
    return bytes;
}

/* On one device, split by the batch, split at random, and in two micro-batches if the model allows
 * them. */
static int32_t check_model(const char *model) {
    static const Split splits[] = {
        {"data=2", choose_batch, 0}, {"data=3", choose_batch, 0}, {"data=2,model=2", choose_some, 1}};
    enum { SPLITS = sizeof splits / sizeof *splits };
    const MicroBatchSettings in_two = {.micro_batches = 2};
    const PlanContext *iterations;
    char path[512];
    AmError error = {0}, refusal = {0};
    PlanContext *context;
    Arena arena = {0};
    int32_t plans = 1;
    join(path, sizeof path, model, "model.hlo.pb");
    if (plan_context_read(&context, path, NULL, &error) != AM_OK) fail_msg("%s", error.text);
    assert_true(check_plan(model, context, NULL) > 0);
    bool is_large = context->canonical->instruction_count > 700;
    for (int32_t k = 0; k < SPLITS; k++) {
        if (is_large && k != (int32_t)strlen(model) % SPLITS) continue;
        assert_true(check_plan(model, context, plan_of_split(&arena, context, &splits[k])) > 0);
        plans++;
    }
    if (!is_large && plan_context_for(&iterations, context, &in_two, &refusal) == AM_OK) {
        Plan *plan = plan_of_split(&arena, iterations, &splits[0]);
        plan->micro_batches = 2;
        assert_true(check_plan(model, iterations, plan) > 0);
        plans++;
    }
    arena_free(&arena);
    plan_context_free(context);
    return plans;
}

static void test_every_small_model(void **state) {
    (void)state;
    int32_t models = 0, plans = 0;
    DIR *directory = opendir(MODELS);
    assert_non_null(directory);
    for (struct dirent *entry; (entry = readdir(directory));) {
        const char *name = entry->d_name;
        if (!strstr(name, "_tiny") && strncmp(name, "exact_", 6) != 0 && strcmp(name, "two_swapped") != 0)
            continue;
        plans += check_model(name);
        models++;
    }
    closedir(directory);
    printf("%d plans of %d models\n", plans, models);
    assert_true(models >= 20);
}

int main(void) {
    openblas_set_num_threads(1); /* as a run does: products are divided over a rank's own team */
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_small_model)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
