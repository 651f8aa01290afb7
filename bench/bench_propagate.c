/* Benchmark of propagation, assignment and lowering.
 *
 * T5-11B (24 + 24 layers, its whole training step) on a mesh of data=8, model=4, split by
 * the batch and by the strict linkage groups; then chains of products and element-wise
 * operators of 10,000 to 1,000,000 instructions, to see that times grow in proportion.
 *   rules      factor rules, dimension classes and what assignment chooses from
 *   propagate  incremental_create() and all seeds, from nothing
 *   assign     plan_assign();  lower  plan_lower() of one device
 *   ns/instr   of propagate, assign and lower together
 *   MB         the arenas of context, assignment and program, and the process's peak
 * Medians of RUNS; `bench_propagate [MODEL | SIZE]`, SIZE that of a chain, in the source folder.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/system/clock.h"
#include "base/system/process.h"
#include "bench/check.h"
#include "bench/zoo.h"
#include "ir/canonical/canonical.h"
#include "lowering/spmd/lower.h"
#include "propagation/groups/strict.h"
#include "propagation/propagate/incremental.h"

#define RUNS 7

typedef struct Times {
    double propagate[RUNS], assign[RUNS], lower[RUNS], rules;
    int64_t context_bytes, assignment_bytes, program_bytes;
} Times;

static void seed(Incremental *incremental, const PlanContext *context, int32_t axis, int32_t parameter,
                 int32_t dimension) {
    incremental_add(incremental, axis, context->roles->parameters[parameter].instruction, dimension, 0);
}

/* The batch on the first axis, the best strict groups on the second. */
static void add_seeds(Incremental *incremental, const PlanContext *context, const LinkageGroups *groups) {
    for (int32_t p = 0; p < context->roles->parameter_count; p++)
        if (context->roles->parameters[p].role == IR_ROLE_DATA) seed(incremental, context, 0, p, 0);
    for (int32_t b = 0; b < groups->best_count; b++) {
        const LinkageGroup *group = &groups->groups[groups->best[b]];
        for (int32_t m = 0; m < group->member_count; m++)
            seed(incremental, context, 1, group->members[m].parameter, group->members[m].dimension);
    }
}

static void measure(Times *times, const PlanContext *context, const Mesh *mesh, const LinkageGroups *groups) {
    for (int32_t run = 0; run < RUNS; run++) {
        AmError error = {0};
        Arena arena = {0};
        PlanStage stage = {.mesh = *mesh};
        Incremental *incremental;
        Assignment *assignment;
        Program *program;
        double begin = clock_seconds();
        if (incremental_create(&incremental, &arena, context, mesh, &error) != AM_OK)
            bench_fail("create", &error);
        add_seeds(incremental, context, groups);
        if (incremental_to_stage(&stage, &arena, incremental, &error) != AM_OK)
            bench_fail("axis priorities", &error);
        times->propagate[run] = clock_seconds() - begin;
        int64_t before = (int64_t)arena.used;
        begin = clock_seconds();
        if (plan_assign(&assignment, &arena, context, &stage, &error) != AM_OK) bench_fail("assign", &error);
        times->assign[run] = clock_seconds() - begin;
        times->assignment_bytes = (int64_t)arena.used - before;
        before = (int64_t)arena.used;
        begin = clock_seconds();
        if (plan_lower(&program, &arena, context, assignment, 0, &error) != AM_OK)
            bench_fail("lower", &error);
        times->lower[run] = clock_seconds() - begin;
        times->program_bytes = (int64_t)arena.used - before;
        arena_free(&arena);
    }
}

static double derive_again(const PlanContext *context) {
    AmError error = {0};
    Arena arena = {0};
    Rules *rules;
    Classes *classes;
    SplitOptions *split_options;
    double begin = clock_seconds();
    if (rules_build(&rules, &arena, context->canonical, &error) != AM_OK) bench_fail("rules", &error);
    if (classes_build(&classes, &arena, rules, context->roles, &error) != AM_OK)
        bench_fail("classes", &error);
    if (split_options_build(&split_options, &arena, rules, classes, context->roles, &error) != AM_OK)
        bench_fail("choices", &error);
    double seconds = clock_seconds() - begin;
    arena_free(&arena);
    return seconds;
}

static void bench(const char *name, const char *path, const char *roles, const char *mesh_text) {
    AmError error = {0};
    Arena arena = {0};
    Mesh mesh;
    PlanContext *context;
    LinkageGroups none = {0}, *groups = &none;
    Times times = {0};
    if (plan_context_read(&context, path, roles, &error) != AM_OK) bench_fail(path, &error);
    if (mesh_parse(&mesh, &arena, mesh_text, &error) != AM_OK) bench_fail(mesh_text, &error);
    double begin = clock_seconds();
    if (context->roles->loss >= 0 &&
        strict_groups(&groups, &arena, context, mesh.axes[1].size, STRICT_STATE, &error) != AM_OK)
        bench_fail("strict groups", &error);
    double strict = clock_seconds() - begin;
    times.rules = derive_again(context);
    times.context_bytes = (int64_t)context->arena.used;
    measure(&times, context, &mesh, groups);
    double propagate = zoo_median(times.propagate, RUNS), assign = zoo_median(times.assign, RUNS);
    double lower = zoo_median(times.lower, RUNS);
    int32_t count = context->canonical->instruction_count;
    printf("%-18s %8d %8.1f %8.1f %9.2f %9.2f %8.2f %9.1f %8.1f %8.1f %8.1f %8.1f\n", name, count,
           1e3 * strict, 1e3 * times.rules, 1e3 * propagate, 1e3 * assign, 1e3 * lower,
           1e9 * (propagate + assign + lower) / count, (double)times.context_bytes / 1e6,
           (double)times.assignment_bytes / 1e6, (double)times.program_bytes / 1e6,
           (double)process_peak_resident_bytes() / 1e6);
    fflush(stdout);
    arena_free(&arena);
    plan_context_free(context);
}

/* A chain of products by one weight and element-wise operators, as text. */
static bool write_chain(const char *path, int32_t instructions) {
    static const char *const operators[] = {"add", "multiply", "subtract", "maximum"};
    FILE *file = fopen(path, "w");
    if (!file) return false;
    fprintf(file, "HloModule chain\n\nENTRY %%main (x: f32[128,256], w: f32[256,256]) -> f32[128,256] {\n"
                  "  %%v0 = f32[128,256]{1,0} parameter(0)\n  %%w = f32[256,256]{1,0} parameter(1)\n");
    for (int32_t i = 1; i < instructions - 1; i++) {
        fprintf(file, "  %s%%v%d = f32[128,256]{1,0} ", i == instructions - 2 ? "ROOT " : "", i);
        if (i % 8 == 1)
            fprintf(file, "dot(%%v%d, %%w), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n", i - 1);
        else fprintf(file, "%s(%%v%d, %%v%d)\n", operators[i % 4], i - 1, i > 8 ? i - i % 8 - 1 : 0);
    }
    fprintf(file, "}\n");
    return fclose(file) == 0;
}

int main(int count, char **arguments) {
    const char *model = count > 1 ? arguments[1] : "t5_paper_24_11b";
    char binary[4096], roles[4096], path[] = "/tmp/bench_propagate.hlo.txt";
    static const int32_t sizes[] = {10000, 31000, 100000, 300000, 1000000};
    printf("%-18s %8s %8s %8s %9s %9s %8s %9s %8s %8s %8s %8s\n", "module", "instr.", "strict", "rules",
           "propagate", "assign", "lower", "ns/instr", "context", "assign", "program", "peak");
    printf("%-18s %8s %8s %8s %9s %9s %8s %9s %8s %8s %8s %8s\n", "", "", "ms", "ms", "ms", "ms", "ms", "",
           "MB", "MB", "MB", "MB");
    if (atoi(model) == 0 && !zoo_paths(model, binary, roles)) {
        fprintf(stderr, "bench_propagate: no model %s in " ZOO_FOLDER "\n", model);
        return 1;
    }
    if (count == 1 || atoi(model) == 0) bench(model, binary, roles, "data=8,model=4");
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        char name[32];
        if (count > 1 && atoi(model) != sizes[k]) continue;
        snprintf(name, sizeof name, "chain_%d", sizes[k]);
        if (!write_chain(path, sizes[k])) return 1;
        bench(name, path, NULL, "data=8,model=4");
        remove(path);
    }
    return 0;
}
