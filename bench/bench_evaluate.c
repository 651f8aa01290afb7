/* Benchmark of one evaluation: assigning, lowering and pricing a one-stage plan.
 *
 * A search does little else. For every model given the same 24 plans are taken, on three meshes of 32
 * devices of the built-in cluster C: priorities of up to four class sets of each axis drawn with a fixed
 * seed, and storage. Each part is timed on one thread, the best of several rounds for each plan, and the
 * means are printed. A number is made of everything that pricing reads of the programs, bit for bit: two
 * builds that print the same number lower alike.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/random.h"
#include "base/system/clock.h"
#include "bench/zoo.h"
#include "cost/step/price.h"
#include "lowering/spmd/lower.h"
#include "planners/problem/problem.h"

enum { PLANS_OF_MESH = 8, MESHES = 3, DEVICES = 32, SEED = 7 };

static const int32_t data_parts[MESHES] = {32, 4, 1};
static const char *const default_models[] = {"t5_paper_6", "gpt2", "bert48", "t5_paper_24_11b", "llama3_8b"};

typedef enum Part { COMPLETE, LOWER, PRICE, PARTS } Part;

typedef struct Timing {
    double seconds[PARTS];
    uint64_t number;
} Timing;

static void draw_axis_plan(AxisPlan *axis_plan, const StageProblem *problem, Random *random) {
    *axis_plan = (AxisPlan){0};
    for (int32_t axis = 0; axis < problem->mesh.axis_count; axis++) {
        int32_t entries = (int32_t)random_below(random, 5);
        for (int32_t k = 0; k < entries && problem->class_set_count > 0; k++) {
            int32_t class_set = (int32_t)random_below(random, (uint64_t)problem->class_set_count);
            if (problem_can_split(problem, class_set, axis))
                axis_plan_insert(axis_plan, axis, axis_plan->count[axis], class_set);
        }
        int32_t kinds = problem_storage_kinds(problem, axis);
        if (kinds > 0 && random_below(random, 2))
            axis_plan->storage[axis] = (uint8_t)random_below(random, (uint64_t)kinds + 1);
    }
}

/* Everything of the steps that a price or a run depends on. */
static uint64_t number_of(const Program *program, const StepPrice *price) {
    uint64_t number = hash_bytes(price, sizeof *price, 1);
    number = hash_bytes(program->execution.steps,
                        sizeof *program->execution.steps * (size_t)program->execution.step_count, number);
    for (int32_t v = 0; v < program->value_count; v++) {
        const ProgramValue *value = &program->values[v];
        const int64_t parts[] = {value->kind, value->origin, value->offset, value->bytes, value->storage};
        number = hash_bytes(parts, sizeof parts, number);
        if (value->shape.rank > 0 && value->shape.type != DTYPE_TUPLE)
            number = hash_bytes(value->shape.dimensions, sizeof(int64_t) * (size_t)value->shape.rank, number);
    }
    for (int32_t i = 0; i < program->instruction_count; i++) {
        const ProgramInstruction *instruction = &program->instructions[i];
        number = hash_bytes(instruction->operands, sizeof(int32_t) * (size_t)instruction->operand_count,
                            number + instruction->opcode);
    }
    return number;
}

/* AM_ERROR_INPUT or a similar failure of a plan is a result, too. */
static AmStatus evaluate(Timing *timing, const StageProblem *problem, const AxisPlan *axis_plan, Arena *arena,
                         AmError *error) {
    PlanStage *stage = ARENA_ARRAY(arena, PlanStage, 1);
    if (!stage) return am_fail_memory(error, (int64_t)sizeof *stage);
    problem_stage(problem, axis_plan, arena, stage);
    Assignment *assignment;
    Program *program;
    StepPrice price;
    double start = clock_seconds();
    TRY(plan_assign(&assignment, arena, problem->context, stage, error));
    double assigned = clock_seconds();
    TRY(plan_lower(&program, arena, problem->context, assignment, 0, error));
    double lowered = clock_seconds();
    TRY(price_program(&price, program, problem->cluster, problem->devices, error));
    double priced = clock_seconds();
    *timing = (Timing){{assigned - start, lowered - assigned, priced - lowered}, number_of(program, &price)};
    return AM_OK;
}

static AmStatus time_mesh(double *sums, uint64_t *number, const PlanContext *context, const Cluster *cluster,
                          int32_t data, int32_t rounds, AmError *error) {
    const Mesh mesh = {.axis_count = 2,
                       .axes = {{.name = "data", .size = data}, {.name = "model", .size = DEVICES / data}},
                       .device_count = DEVICES};
    int32_t devices[DEVICES];
    for (int32_t k = 0; k < DEVICES; k++) devices[k] = k;
    const ProblemSettings settings = {.space = SPACE_AUTO, .constraints.memory_fraction = 0.9};
    StageProblem *problem;
    TRY(problem_create(&problem, context, cluster, &mesh, devices, &settings, error));
    Random random;
    random_seed(&random, SEED);
    Arena arena = {0};
    AmStatus status = AM_OK;
    for (int32_t plan = 0; plan < PLANS_OF_MESH && status == AM_OK; plan++) {
        AxisPlan axis_plan;
        Timing best = {{1e9, 1e9, 1e9}, 0};
        draw_axis_plan(&axis_plan, problem, &random);
        for (int32_t round = 0; round < rounds && status == AM_OK; round++) {
            Timing timing = {{0}, 0};
            ArenaMark mark = arena_mark(&arena);
            status = evaluate(&timing, problem, &axis_plan, &arena, error);
            arena_release(&arena, mark);
            for (Part part = 0; part < PARTS && status == AM_OK; part++)
                if (timing.seconds[part] < best.seconds[part]) best.seconds[part] = timing.seconds[part];
            best.number = timing.number;
        }
        for (Part part = 0; part < PARTS && status == AM_OK; part++) sums[part] += best.seconds[part];
        *number = hash_bytes(&best.number, sizeof best.number, *number);
    }
    arena_free(&arena);
    problem_free(problem);
    return status;
}

static AmStatus time_model(const char *model, const Cluster *cluster, int32_t rounds, AmError *error) {
    char binary[4096], roles[4096];
    if (!zoo_paths(model, binary, roles)) return AM_OK;
    PlanContext *context = NULL;
    TRY(plan_context_read(&context, binary, roles, error));
    double sums[PARTS] = {0};
    uint64_t number = 1;
    AmStatus status = AM_OK;
    for (int32_t k = 0; k < MESHES && status == AM_OK; k++)
        status = time_mesh(sums, &number, context, cluster, data_parts[k], rounds, error);
    double scale = 1e3 / (PLANS_OF_MESH * MESHES);
    if (status == AM_OK)
        printf("%-18s %8d %9.3f %9.3f %9.3f %9.3f   %016llx\n", model, context->rules->count,
               sums[COMPLETE] * scale, sums[LOWER] * scale, sums[PRICE] * scale,
               (sums[COMPLETE] + sums[LOWER] + sums[PRICE]) * scale, (unsigned long long)number);
    plan_context_free(context);
    fflush(stdout);
    return status;
}

int main(int count, char **arguments) {
    int32_t rounds = count > 1 ? atoi(arguments[1]) : 3;
    if (rounds < 1) {
        fprintf(stderr, "usage: bench_evaluate [ROUNDS [MODEL...]], in the source folder\n");
        return AM_ERROR_USAGE;
    }
    Arena arena = {0};
    Cluster *cluster = NULL;
    AmError error = {0};
    AmStatus status = cluster_read(&cluster, &arena, "C", &error);
    printf("%-18s %8s %9s %9s %9s %9s   %s\n", "model", "instr.", "assign", "lower", "price", "ms/plan",
           "number");
    int32_t models = count > 2 ? count - 2 : (int32_t)(sizeof default_models / sizeof *default_models);
    for (int32_t k = 0; k < models && status == AM_OK; k++)
        status = time_model(count > 2 ? arguments[2 + k] : default_models[k], cluster, rounds, &error);
    if (status != AM_OK) fprintf(stderr, "bench_evaluate: %s\n", error.text);
    cluster_free(cluster);
    arena_free(&arena);
    return status;
}
