/* Generated assignment problems: the training steps of given modules on random clusters. */
#include "planners/single_stage/assignment_problems.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "planners/single_stage/searchers.h"
#include "planners/single_stage/single_stage_state.h"

#define REFERENCE_FLOPS  1e13
#define REFERENCE_MEMORY 1e12
#define MOST_LIMIT       (INT64_MAX / (BUDGET_REPEATS * 4))
#define NO_MEMORY_LIMIT  ((int64_t)1 << 50)
#define MEMORY_FRACTION  0.9

/* The rates of a cluster of equal servers. */
typedef struct Rates {
    double flops, memory, launch, inside, between, latency, knee, message,
        access; /* bytes and FLOPs of full efficiency */
    int64_t bytes;
    int32_t servers, devices; /* of a server */
    bool overlaps;
} Rates;

static AmStatus open_problem(GeneratedProblem *self, const PlanContext *context, const Rates *rates,
                             int32_t model, AmError *error) {
    int32_t count = rates->servers * rates->devices;
    json_t *curve = json_pack("[[f,f],[f,f]]", rates->knee / 1e3, 0.1, rates->knee, 0.8);
    json_t *accesses = json_pack("[[f,f],[f,f]]", rates->access / 1e3, 0.15, rates->access, 0.9);
    json_t *messages = json_pack("[[f,f],[f,f]]", rates->message / 100, 0.3, rates->message, 0.95);
    json_t *object = json_pack(
        "{s:s, s:s, s:{s:{s:I, s:f, s:{s:f}, s:f, s:b, s:{s:o,s:o}}}, s:{s:{s:f, s:f, s:O}, s:{s:f, s:f, "
        "s:o}}, s:s, s:[{s:i, s:s, s:i, s:s}]}",
        "format", "automap-cluster-1", "name", "generated", "device_types", "device", "memory_bytes",
        (json_int_t)rates->bytes, "memory_bytes_per_second", rates->memory, "flops_per_second", "f32",
        rates->flops, "kernel_launch_seconds", rates->launch, "overlaps_communication", rates->overlaps,
        "efficiency", "dot", curve, "memory", accesses, "links", "inside", "bytes_per_second", rates->inside,
        "latency_seconds", rates->latency, "efficiency", messages, "between", "bytes_per_second",
        rates->between, "latency_seconds", 3 * rates->latency, "efficiency", messages, "between_servers",
        "between", "servers", "count", rates->servers, "device_type", "device", "devices", rates->devices,
        "link", "inside");
    if (!object) return am_fail_memory(error, 0);
    if (rates->servers == 1) json_object_del(object, "between_servers");
    if (rates->devices == 1) json_object_del(json_array_get(json_object_get(object, "servers"), 0), "link");
    AmStatus status = cluster_from_json(&self->cluster, &self->arena, object, "generated", error);
    json_decref(object);
    TRY(status);
    Mesh mesh = {.axis_count = 2,
                 .axes = {{.name = "data", .size = count / model}, {.name = "model", .size = model}},
                 .device_count = count};
    int32_t *devices = ARENA_ARRAY(&self->arena, int32_t, count);
    if (!devices) return am_fail_memory(error, count);
    for (int32_t d = 0; d < count; d++) devices[d] = d;
    const ProblemSettings settings = {.space = SPACE_SINGLE_STAGE,
                                      .constraints.memory_fraction = MEMORY_FRACTION,
                                      .budget = {.limit = MOST_LIMIT}};
    return problem_create(&self->problem, context, self->cluster, &mesh, devices, &settings, error);
}

AmStatus assignment_module_measure(AssignmentModule *module, const PlanContext *context, AmError *error) {
    GeneratedProblem probe = {0};
    const Rates rates = {.flops = REFERENCE_FLOPS,
                         .memory = REFERENCE_MEMORY,
                         .launch = 1e-12,
                         .inside = 1e12,
                         .between = 1e12,
                         .latency = 1e-9,
                         .knee = 10,
                         .message = 10,
                         .access = 10,
                         .bytes = NO_MEMORY_LIMIT,
                         .servers = 1,
                         .devices = 2};
    const AxisPlan nothing = {0};
    PlanPrice price;
    AmStatus status = open_problem(&probe, context, &rates, 1, error);
    if (status == AM_OK) status = problem_price(probe.problem, &nothing, &price, error);
    if (status == AM_OK) status = assignment_problem_open(&probe.described, probe.problem, &price, error);
    if (status == AM_OK)
        *module = (AssignmentModule){context, price.compute_seconds, probe.described.weight_bytes,
                                     price.peak_bytes};
    generated_problem_close(&probe);
    return status;
}

static double between(Random *random, double least, double most) {
    return least + (most - least) * random_uniform(random);
}

AmStatus generated_problem_open(GeneratedProblem *self, const AssignmentModule *modules, int32_t count,
                                uint64_t seed, uint64_t index, AmError *error) {
    Random random;
    *self = (GeneratedProblem){0};
    random_seed(&random, random_at(seed, 0, index));
    const AssignmentModule *module = &modules[random_below(&random, count)];
    double instructions = module->context->split_options->decided_count;
    int32_t bits = 1 + (int32_t)random_below(&random, 5), inside = (int32_t)random_below(&random, bits + 1);
    if (inside < bits - 2) inside = bits - 2;
    int32_t model_bits = (int32_t)random_below(&random, bits + 1);
    double slower = pow(10, between(&random, -0.5, 2)); /* than the reference cluster, for small modules */
    double seconds = module->compute_seconds * slower;
    Rates rates = {.flops = REFERENCE_FLOPS / slower,
                   .memory = REFERENCE_MEMORY / slower * pow(10, between(&random, -0.7, 0.7)),
                   .launch = seconds / instructions * pow(10, between(&random, -3, 0.3)),
                   .inside = module->weight_bytes / seconds * pow(10, between(&random, -0.5, 2.5)),
                   .servers = 1 << (bits - inside),
                   .devices = 1 << inside,
                   .overlaps = random_below(&random, 4) > 0};
    rates.between = rates.inside * rates.devices / pow(10, between(&random, 0, 2));
    rates.latency = seconds / instructions * pow(10, between(&random, -3, 1));
    rates.knee = module->compute_seconds * REFERENCE_FLOPS / instructions * pow(10, between(&random, -1, 1));
    rates.knee = fmax(rates.knee, 1e4);
    rates.message = fmax(module->weight_bytes / instructions * pow(10, between(&random, -2, 1)), 1e2);
    rates.access = fmax((double)module->peak_bytes / instructions * pow(10, between(&random, -2, 1)), 1e2);
    rates.bytes = (int64_t)((double)module->peak_bytes * pow(2, between(&random, -2.6, 2)) / MEMORY_FRACTION);
    const AxisPlan nothing = {0};
    PlanPrice unsplit;
    TRY(open_problem(self, module->context, &rates, 1 << model_bits, error));
    TRY(problem_price(self->problem, &nothing, &unsplit, error));
    return assignment_problem_open(&self->described, self->problem, &unsplit, error);
}

void generated_problem_close(GeneratedProblem *self) {
    problem_free(self->problem);
    cluster_free(self->cluster);
    arena_free(&self->arena);
    *self = (GeneratedProblem){0};
}

AmStatus generated_problem_teach(GeneratedProblem *self, int64_t evaluations, uint64_t seed, AmError *error) {
    SearchBudget *budget = &self->problem->budget;
    TRY(baseline_price_seeds(self->problem, error));
    budget->limit = budget->used + evaluations;
    AmStatus status = anneal_search(self->problem, seed, error);
    budget->limit = MOST_LIMIT;
    return status;
}

AmStatus assignment_prices_text(char text[ASSIGNMENT_PRICES_BYTES], const AssignmentModule *module,
                                AmError *error) {
    enum { PROBLEMS = 8, STRIDE = 3 /* of the actions, which are many */ };
    const AxisPlan nothing = {0};
    double unsplit = 0, gains = 0, estimates = 0, features = 0, count = 0;
    AmStatus status = AM_OK;
    AssignmentState *state = malloc(sizeof *state);
    if (!state) return am_fail_memory(error, sizeof *state);
    for (uint64_t index = 0; index < PROBLEMS && status == AM_OK; index++) {
        GeneratedProblem problem;
        const AssignmentProblem *described = &problem.described;
        status = generated_problem_open(&problem, module, 1, 0, index, error);
        if (status == AM_OK) status = assignment_enter(state, described, &nothing, error);
        for (int32_t a = 0; status == AM_OK && a < state->action_count; a += STRIDE, count++) {
            AssignmentValue estimate;
            float facts[ASSIGNMENT_FACTS];
            PlanPrice price;
            const AxisPlan *next = &state->actions[a].next;
            status = problem_price(problem.problem, next, &price, error);
            if (status == AM_OK) status = assignment_estimate(&estimate, facts, described, next, error);
            if (status != AM_OK) break;
            unsplit += log(fmax(described->unsplit.seconds, 1e-12));
            gains += fabs(assignment_gain(described, &price));
            estimates += fabs(estimate.gain);
            for (int32_t k = 0; k < ASSIGNMENT_FEATURES; k++) features += fabs((double)state->features[a][k]);
        }
        generated_problem_close(&problem);
    }
    free(state);
    count = fmax(count, 1);
    snprintf(text, ASSIGNMENT_PRICES_BYTES, "%.6g %.6g %.6g %.6g", unsplit / count, gains / count,
             estimates / count, features / count);
    return status;
}

AmStatus assignment_zero_shot(double *gain, double *surprise, AssignmentEpisode *episode,
                              const AssignmentPlayer *player, AmError *error) {
    const AssignmentProblem *self = player->problem;
    const AxisPlan nothing = {0};
    AssignmentPlayer seeded = *player;
    Random random;
    int32_t best = 0;
    random_seed(&random, 0);
    seeded.random = &random;
    TRY(assignment_play(episode, &seeded, &nothing, error));
    *gain = -INFINITY;
    for (int32_t k = 0; k <= episode->count; k++) {
        PlanPrice price;
        if (k >= ASSIGNMENT_ZERO_SHOT) break;
        TRY(problem_price(self->problem, &episode->plans[k], &price, error));
        *gain = fmax(*gain, assignment_gain(self, &price));
        if (episode->estimates[k].gain > episode->estimates[best].gain) best = k;
    }
    if (surprise)
        *surprise = fabs(episode->first_value - (episode->estimates[best].gain - episode->estimates[0].gain));
    return AM_OK;
}
