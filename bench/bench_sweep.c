/* Benchmark of sweep(): 15 data x tensor x pipeline strategies of a 48-layer BERT on 16 devices.
 *
 * DistSim simulates these in 140 ms (table 3; one thread is assumed), after the programs of the devices are
 * generated and profiled. So two figures are set beside that: "simulate" is the same work here, from lowered
 * and priced programs to step times; with "price" the costs of all their operators, collectives and transfers
 * are found as well. The steps before it (rewriting the module in micro-batches, the baselines, lowering
 * every stage of 23,000 instructions) are listed apart. All figures are processor milliseconds of all threads
 * together, the least of three sweeps; "wall" is by the clock.
 */
#include <stdio.h>

#include "base/system/clock.h"
#include "bench/zoo.h"
#include "planners/baselines/degree_sweep.h"

#define MODEL   "bert48"
#define CLUSTER "distsim-search"
#define REPEATS 3

enum { MICRO_BATCHES = 4 }; /* the batch of 64 is then enough for 16 shards */

static double least(double a, double b) {
    return a < b ? a : b;
}

/* The least of each part by itself. */
static void keep_least(Sweep *best, const Sweep *found) {
    best->seconds.split = least(best->seconds.split, found->seconds.split);
    best->seconds.baseline = least(best->seconds.baseline, found->seconds.baseline);
    best->seconds.lower = least(best->seconds.lower, found->seconds.lower);
    best->seconds.price = least(best->seconds.price, found->seconds.price);
    best->seconds.simulate = least(best->seconds.simulate, found->seconds.simulate);
    best->wall_seconds = least(best->wall_seconds, found->wall_seconds);
}

static AmStatus run(AmError *error) {
    char binary[4096], roles[4096];
    Arena arena = {0};
    PlanContext *context = NULL;
    Cluster *cluster = NULL;
    Sweep best = {0};
    const SweepOptions options = {.micro_batches = MICRO_BATCHES,
                                  .memory_fraction = CLUSTER_DEFAULT_MEMORY_FRACTION};
    if (!zoo_paths(MODEL, binary, roles))
        return am_fail(error, AM_ERROR_INPUT, "", "no model " MODEL ": run this in the source folder");
    AmStatus status = plan_context_read(&context, binary, roles, error);
    if (status == AM_OK) status = cluster_read(&cluster, &arena, CLUSTER, error);
    for (int k = 0; k < REPEATS && status == AM_OK; k++) {
        Sweep found;
        status = sweep(&found, &arena, context, cluster, &options, error);
        if (k == 0) best = found;
        else keep_least(&best, &found);
    }
    if (status == AM_OK) {
        const SweepSeconds *seconds = &best.seconds;
        printf("%s on %s, %d strategies of %d micro-batches, ms of processor time\n", MODEL, CLUSTER,
               best.row_count, MICRO_BATCHES);
        printf("simulate          %9.2f   (limit 50, DistSim 140)\n", 1e3 * seconds->simulate);
        printf("price + simulate  %9.2f\n", 1e3 * (seconds->price + seconds->simulate));
        printf("lower             %9.2f\n", 1e3 * seconds->lower);
        printf("baselines         %9.2f\n", 1e3 * seconds->baseline);
        printf("micro-batches     %9.2f\n", 1e3 * seconds->split);
        printf("wall              %9.2f\n", 1e3 * best.wall_seconds);
    }
    cluster_free(cluster);
    plan_context_free(context);
    arena_free(&arena);
    return status;
}

int main(void) {
    AmError error = {0};
    AmStatus status = run(&error);
    if (status != AM_OK) fprintf(stderr, "bench_sweep: %s\n", error.text);
    return (int)status;
}
