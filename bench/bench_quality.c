/* The contest of searchers on decision problems (docs/planning.md).
 *
 * 100 planted problems and 100 windows cut from models, by the seeds in
 * bench/quality/instances.txt. Every searcher gets the same evaluations; evaluations for observations, seeds
 * or polish count, too. Gaps are over the exact optimum; intervals are of the paired difference over the
 * problems.
 *
 *   bench_quality                contest: the table, and curves to build/quality.json
 *   bench_quality --train        trains the network anew: datasets/agents/decisions.safetensors
 *   bench_quality --find         finds valid problems anew: bench/quality/instances.txt
 *   bench_quality --ablation N   mean gaps with each part of Rainbow changed, N seeds, kinds held out
 *   bench_quality --tune         mean gaps of annealing by other schedules, on other problems
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/files/array_file.h"
#include "base/system/clock.h"
#include "bench/check.h"
#include "bench/quality/decisions_agent.h"
#include "bench/quality/decisions_cut.h"
#include "bench/quality/decisions_exact.h"
#include "bench/quality/decisions_planted.h"
#include "bench/quality/decisions_search.h"
#include "zoo.h"

#define INSTANCES   "bench/quality/instances.txt"
#define NETWORK     "datasets/agents/decisions.safetensors"
#define CURVES      "build/quality.json"
#define TRAIN_SEEDS 1000000 /* seeds from here on are for training and tuning alone */

enum {
    BUDGET = 1000,
    LONG_BUDGET = 100000, /* of annealing in the curves by seconds */
    RESERVE = 150,        /* of the budget, for polish */
    MOST_INSTANCES = 256,
    PER_KIND = 100,
    VALID_SEEDS = 3, /* runs of restarts that an instance must be hard for on average */
    TRAIN_PLANTED = 60,
    TRAIN_PER_MODEL = 20,
    PLANTED = -1, /* in place of a model */
    MOST_NODES = 2000000
};

static const char *const models[] = {"t5_paper_6",       "gpt2",    "bert48", "vgg19", "llama3_8b",
                                     "resnet50_batch16", "moe_tiny"};
enum { MODELS = sizeof models / sizeof *models };

typedef struct Instance {
    int32_t model; /* or PLANTED */
    uint64_t seed;
    Decisions decisions;
    double optimum;
} Instance;

typedef struct Bench {
    Arena arena;
    Cluster *cluster;
    PlanContext *contexts[MODELS]; /* read when first needed */
    Instance instances[MOST_INSTANCES];
    int32_t count;
} Bench;

static const PlanContext *context_of(Bench *bench, int32_t model) {
    AmError error = {0};
    char binary[4096], roles[4096];
    if (bench->contexts[model]) return bench->contexts[model];
    if (!zoo_paths(models[model], binary, roles)) {
        fprintf(stderr, "bench_quality: no model %s; run from the source folder\n", models[model]);
        exit(1);
    }
    bench_check(plan_context_read(&bench->contexts[model], binary, roles, &error), &error);
    return bench->contexts[model];
}

/* Returns whether the seed gives a problem whose optimum is found. */
static bool make_instance(Bench *bench, Instance *instance, int32_t model, uint64_t seed) {
    AmError error = {0};
    DecisionPlan plan;
    DecisionBound bound;
    *instance = (Instance){.model = model, .seed = seed};
    AmStatus status = model == PLANTED
                          ? decisions_planted(&instance->decisions, &bench->arena, seed, &error)
                          : decisions_cut(&instance->decisions, &bench->arena, context_of(bench, model),
                                          bench->cluster, seed, &error);
    if (status == AM_OK) status = decision_bound_create(&bound, &bench->arena, &instance->decisions, &error);
    for (int32_t p = 0; status == AM_OK && p <= instance->decisions.count; p++)
        if (bound.width[p] > 3) return false; /* tables of more are slow to learn with */
    if (status == AM_OK)
        status = decisions_exact(&plan, &instance->optimum, &instance->decisions, MOST_NODES, &error);
    if (status == AM_ERROR_INTERNAL) bench_check(status, &error);
    return status == AM_OK;
}

/* A searcher of the contest. */
typedef enum Method { GREEDY, RESTARTS, ANNEALING, RANKS, LEARNING } Method;
typedef enum Learned { UNTRAINED, TRAINED, HELD_OUT } Learned;
typedef struct Contestant {
    const char *name;
    Method method;
    Learned network;
    bool is_seeded, is_polished;
    int64_t budget;
} Contestant;

static const Contestant contestants[] = {
    {"greedy", GREEDY, UNTRAINED, false, false, BUDGET},
    {"restart 1-opt", RESTARTS, UNTRAINED, false, false, BUDGET},
    {"annealing", ANNEALING, UNTRAINED, false, false, BUDGET},
    {"dqn", LEARNING, TRAINED, false, false, BUDGET},
    {"restart 1-opt, polish", RESTARTS, UNTRAINED, false, true, BUDGET},
    {"annealing, polish", ANNEALING, UNTRAINED, false, true, BUDGET},
    {"dqn, polish", LEARNING, TRAINED, false, true, BUDGET},
    {"annealing, seed", ANNEALING, UNTRAINED, true, false, BUDGET},
    {"dqn, seed", LEARNING, TRAINED, true, false, BUDGET},
    {"annealing, seed and polish", ANNEALING, UNTRAINED, true, true, BUDGET},
    {"dqn, seed and polish", LEARNING, TRAINED, true, true, BUDGET},
    {"dqn, its kind or model held out", LEARNING, HELD_OUT, false, false, BUDGET},
    {"dqn, untrained network", LEARNING, UNTRAINED, false, false, BUDGET},
    {"dqn's ranks without a network", RANKS, UNTRAINED, false, false, BUDGET},
    {"annealing, 100,000 evaluations", ANNEALING, UNTRAINED, false, false, LONG_BUDGET},
};
enum {
    CONTESTANTS = sizeof contestants / sizeof *contestants,
    BY_RESTARTS = 1,
    BY_ANNEALING = 2,
    BY_DQN = 3,
    BY_DQN_POLISHED = 6,
    BY_HELD_OUT = 11,
    BY_UNTRAINED = 12,
    BY_RANKS = 13
};

typedef struct Weights {
    float *values;
    int64_t count;
} Weights;

/* One network for all, and one for each kind or model that never saw it. */
typedef struct Networks {
    Weights trained, held_out[MODELS + 1]; /* by model, planted last */
} Networks;

static Weights weights_of(Agent *agent) {
    AmError error = {0};
    Weights weights = {.count = agent_parameter_count(agent)};
    weights.values = malloc(sizeof *weights.values * (size_t)weights.count);
    if (!weights.values) exit(1);
    bench_check(agent_parameters(agent, weights.values, &error), &error);
    return weights;
}

/* Runs a contestant; the meter is the caller's to free. */
static void compete(DecisionMeter *meter, const Contestant *contestant, const Decisions *decisions,
                    const Weights *weights, uint64_t seed) {
    AmError error = {0};
    bench_check(decision_meter_create(meter, decisions, contestant->budget, &error), &error);
    if (contestant->is_seeded) decision_greedy(meter, seed);
    if (contestant->is_polished) meter->limit -= RESERVE;
    if (contestant->method == GREEDY) decision_greedy(meter, seed);
    if (contestant->method == RESTARTS) decision_restarts(meter, seed);
    if (contestant->method == ANNEALING) decision_anneal(meter, seed);
    if (contestant->method == RANKS) bench_check(decision_rank_search(meter, seed, &error), &error);
    if (contestant->method == LEARNING) {
        Agent *agent;
        bench_check(decision_agent_create(&agent, seed, &error), &error);
        if (weights)
            bench_check(agent_set_parameters(agent, weights->values, weights->count, NETWORK, &error),
                        &error);
        bench_check(decision_agent_search(meter, agent, &error), &error);
        agent_free(agent);
    }
    meter->limit = contestant->budget;
    if (contestant->is_polished) decision_polish(meter, seed);
}

static double gap_of(const Instance *instance, Method method, uint64_t seed) {
    const Contestant contestant = {.method = method, .budget = BUDGET};
    DecisionMeter meter;
    compete(&meter, &contestant, &instance->decisions, NULL, seed);
    double gap = meter.best / instance->optimum - 1;
    decision_meter_free(&meter);
    return gap;
}

/* Trains on `problems` problems of all kinds and models but one. */
static Weights train_with(Bench *bench, int32_t except, const char *parts, uint64_t seed, int32_t problems) {
    AmError error = {0};
    Agent *agent;
    bench_check(decision_agent_create_with(&agent, parts, seed, &error), &error);
    for (int32_t n = 0; n < problems; n++) {
        /* Kinds take turns: each third problem is a planted one. */
        int32_t model = n % 3 == 0 ? PLANTED : (n / 3 * 2 + n % 3 - 1) % MODELS;
        ArenaMark mark = arena_mark(&bench->arena);
        Instance instance;
        DecisionMeter meter;
        if (model == except || !make_instance(bench, &instance, model, TRAIN_SEEDS + (uint64_t)n)) continue;
        bench_check(decision_meter_create(&meter, &instance.decisions, BUDGET, &error), &error);
        bench_check(decision_agent_search(&meter, agent, &error), &error);
        decision_meter_free(&meter);
        arena_release(&bench->arena, mark);
    }
    Weights weights = weights_of(agent);
    agent_free(agent);
    return weights;
}

static Weights train(Bench *bench, int32_t except) {
    return train_with(bench, except, NULL, 1, TRAIN_PLANTED + TRAIN_PER_MODEL * MODELS);
}

static void write_network(const Weights *weights) {
    AmError error = {0};
    ArrayToWrite array = {.name = "parameters",
                          .type = DTYPE_F32,
                          .rank = 1,
                          .dimensions = &weights->count,
                          .data = weights->values};
    bench_check(array_file_write(NETWORK, &array, 1, NULL, &error), &error);
    fprintf(stderr, "%lld parameters written to %s\n", (long long)weights->count, NETWORK);
}

static Weights read_network(void) {
    AmError error = {0};
    ArrayFile file;
    bench_check(array_file_open(&file, NETWORK, &error), &error);
    const ArrayEntry *entry = array_file_find(&file, "parameters");
    if (!entry || entry->type != DTYPE_F32) {
        fprintf(stderr, "bench_quality: %s holds no network\n", NETWORK);
        exit(1);
    }
    Weights weights = {.values = malloc((size_t)entry->bytes), .count = entry->bytes / 4};
    if (!weights.values) exit(1);
    bench_check(array_file_read(&file, entry, weights.values, &error), &error);
    array_file_close(&file);
    return weights;
}

/* Greedy and, on average, restarts must be at least 2 % off. Windows on which restarts are further off than
 * twice the optimum are left out, as one of them would weigh more than all others in a mean. */
static bool is_valid(const Instance *instance) {
    double restarts = 0;
    if (gap_of(instance, GREEDY, 1) < 0.02) return false;
    for (uint64_t seed = 1; seed <= VALID_SEEDS; seed++)
        restarts += gap_of(instance, RESTARTS, TRAIN_SEEDS + seed) / VALID_SEEDS;
    return restarts >= 0.02 && restarts <= 1;
}

/* Returns whether a window of the same model came up before. */
static bool is_known(const Bench *bench, const Instance *instance) {
    for (int32_t n = 0; n < bench->count; n++)
        if (bench->instances[n].model == instance->model &&
            fabs(bench->instances[n].optimum / instance->optimum - 1) < 1e-9)
            return true;
    return false;
}

/* Adds valid instances of a model, or planted ones, until there are `most` of it. */
static void find_some(Bench *bench, FILE *file, int32_t model, int32_t most, uint64_t seeds) {
    int32_t found = 0;
    for (uint64_t seed = 1; found < most && seed <= seeds; seed++) {
        Instance *instance = &bench->instances[bench->count];
        ArenaMark mark = arena_mark(&bench->arena);
        bool is_found =
            make_instance(bench, instance, model, seed) && !is_known(bench, instance) && is_valid(instance);
        if (!is_found) arena_release(&bench->arena, mark);
        if (!is_found) continue;
        fprintf(file, "%s %llu\n", model == PLANTED ? "planted" : models[model], (unsigned long long)seed);
        bench->count++;
        found++;
    }
    fprintf(stderr, "%s: %d\n", model == PLANTED ? "planted" : models[model], found);
}

static void find(Bench *bench) {
    FILE *file = fopen(INSTANCES, "w");
    if (!file) exit(1);
    find_some(bench, file, PLANTED, PER_KIND, 1000);
    for (int32_t model = MODELS - 1; model >= 0; model--) /* those with few windows first */
        find_some(bench, file, model, (2 * PER_KIND - bench->count + model) / (model + 1), 6000);
    fclose(file);
}

static void read_instances(Bench *bench) {
    FILE *file = fopen(INSTANCES, "r");
    char name[64];
    unsigned long long seed;
    while (file && bench->count < MOST_INSTANCES && fscanf(file, "%63s %llu", name, &seed) == 2) {
        int32_t model = PLANTED;
        for (int32_t m = 0; m < MODELS; m++)
            if (strcmp(name, models[m]) == 0) model = m;
        if (!make_instance(bench, &bench->instances[bench->count++], model, seed)) {
            fprintf(stderr, "bench_quality: %s %llu is no problem any more\n", name, seed);
            exit(1);
        }
    }
    if (file) fclose(file);
}

typedef struct Results {
    double gap[CONTESTANTS][MOST_INSTANCES];
    double clock[CONTESTANTS]; /* mean seconds of a search */
} Results;

enum { EVALUATION_POINTS = 40, SECOND_POINTS = 31 };

typedef struct Curve {
    double by_evaluations[EVALUATION_POINTS], by_seconds[SECOND_POINTS];
} Curve;

static double evaluation_point(int32_t point) {
    return (point + 1.0) * BUDGET / EVALUATION_POINTS;
}
static double second_point(int32_t point) {
    return 1e-5 * pow(10, point / 6.0);
}

/* Adds the gap that the best plan had at every point; before the first plan it is infinite. */
static void add_curve(Curve *curve, const DecisionMeter *meter, double optimum, int32_t count) {
    for (int32_t point = 0; point < EVALUATION_POINTS; point++) {
        double best = INFINITY;
        for (int32_t n = 0; n < meter->improvement_count; n++)
            if ((double)meter->improvements[n].evaluations <= evaluation_point(point))
                best = meter->improvements[n].seconds;
        curve->by_evaluations[point] += (best / optimum - 1) / count;
    }
    for (int32_t point = 0; point < SECOND_POINTS; point++) {
        double best = INFINITY;
        for (int32_t n = 0; n < meter->improvement_count; n++)
            if (meter->improvements[n].clock_seconds <= second_point(point))
                best = meter->improvements[n].seconds;
        curve->by_seconds[point] += (best / optimum - 1) / count;
    }
}

/* Mean of values [from, to) and half the width of its 95 % interval. */
static double mean_of(const double *values, int32_t from, int32_t to, double *half) {
    double mean = 0, squares = 0;
    int32_t count = to - from;
    for (int32_t n = from; n < to; n++) mean += values[n] / count;
    for (int32_t n = from; n < to; n++) squares += (values[n] - mean) * (values[n] - mean);
    *half = 1.96 * sqrt(squares / (count - 1) / count);
    return mean;
}

/* The paired difference of two contestants' gaps over problems [from, to). */
static void print_difference(const Results *results, int32_t one, int32_t other, int32_t from, int32_t to) {
    double difference[MOST_INSTANCES], half;
    int32_t wins = 0, losses = 0;
    for (int32_t n = from; n < to; n++) {
        difference[n] = results->gap[one][n] - results->gap[other][n];
        wins += difference[n] < -1e-9;
        losses += difference[n] > 1e-9;
    }
    double mean = mean_of(difference, from, to, &half);
    printf("| %s - %s | %.3f %% | %.3f %% | %d | %d |\n", contestants[one].name, contestants[other].name,
           100 * mean, 100 * half, wins, losses);
}

/* Markdown tables of the problems [from, to), all of one kind. */
static void print_tables(const Results *results, const char *kind, int32_t from, int32_t to) {
    printf("%s: %d problems, %d evaluations\n\n", kind, to - from, BUDGET);
    printf("| searcher | mean gap | +- | median | optimal | seconds |\n|---|---|---|---|---|---|\n");
    for (int32_t c = 0; c < CONTESTANTS; c++) {
        double half, sorted[MOST_INSTANCES];
        double mean = mean_of(results->gap[c], from, to, &half);
        int32_t optimal = 0, count = to - from;
        for (int32_t n = 0; n < count; n++) {
            sorted[n] = results->gap[c][from + n];
            optimal += sorted[n] < 1e-9;
        }
        qsort(sorted, (size_t)count, sizeof *sorted, compare_doubles);
        printf("| %s | %.3f %% | %.3f %% | %.3f %% | %d | %.2g |\n", contestants[c].name, 100 * mean,
               100 * half, 100 * sorted[count / 2], optimal, results->clock[c]);
    }
    double gap[2], half;
    gap[0] = mean_of(results->gap[BY_RESTARTS], from, to, &half);
    gap[1] = mean_of(results->gap[BY_ANNEALING], from, to, &half);
    int32_t better = gap[0] < gap[1] ? BY_RESTARTS : BY_ANNEALING, wins = 0, losses = 0;
    double difference[MOST_INSTANCES];
    for (int32_t n = from; n < to; n++) {
        difference[n] = results->gap[BY_DQN][n] - results->gap[better][n] / 3;
        wins += results->gap[BY_DQN][n] < results->gap[better][n] - 1e-9;
        losses += results->gap[BY_DQN][n] > results->gap[better][n] + 1e-9;
    }
    double mean = mean_of(difference, from, to, &half);
    double polished = mean_of(results->gap[BY_DQN_POLISHED], from, to, &difference[0]);
    printf("\n| paired difference | mean | +- | better | worse |\n|---|---|---|---|---|\n");
    printf("| dqn - a third of %s (better and worse than all of it) | %.3f %% | %.3f %% | %d | %d |\n",
           contestants[better].name, 100 * mean, 100 * half, wins, losses);
    print_difference(results, BY_DQN, BY_UNTRAINED, from, to);
    print_difference(results, BY_HELD_OUT, BY_UNTRAINED, from, to);
    print_difference(results, BY_DQN, BY_RANKS, from, to);
    printf("\n| limit | here | at most | met |\n|---|---|---|---|\n");
    printf("| dqn at most a third of the better | %.3f %% | %.3f %% | %s |\n",
           100 * mean_of(results->gap[BY_DQN], from, to, &difference[0]),
           100 * gap[better == BY_ANNEALING] / 3, mean + half <= 0 ? "ok" : "no");
    printf("| dqn with polish | %.3f %% | 0.5 %% | %s |\n\n", 100 * polished,
           polished <= 0.005 ? "ok" : "no");
}

static void write_curves(Curve curves[2][CONTESTANTS]) {
    FILE *file = fopen(CURVES, "w");
    if (!file) return;
    fprintf(file, "{\"budget\": %d, \"curves\": [", BUDGET);
    for (int32_t kind = 0; kind < 2; kind++)
        for (int32_t c = 0; c < CONTESTANTS; c++) {
            const Curve *curve = &curves[kind][c];
            fprintf(file, "%s\n{\"kind\": \"%s\", \"name\": \"%s\", \"evaluations\": [", kind + c ? "," : "",
                    kind ? "windows" : "planted", contestants[c].name);
            for (int32_t p = 0, any = 0; p < EVALUATION_POINTS; p++)
                if (isfinite(curve->by_evaluations[p]))
                    fprintf(file, "%s[%g, %.6g]", any++ ? ", " : "", evaluation_point(p),
                            curve->by_evaluations[p]);
            fprintf(file, "], \"seconds\": [");
            for (int32_t p = 0, any = 0; p < SECOND_POINTS; p++)
                if (isfinite(curve->by_seconds[p]))
                    fprintf(file, "%s[%.6g, %.6g]", any++ ? ", " : "", second_point(p), curve->by_seconds[p]);
            fprintf(file, "]}");
        }
    fprintf(file, "\n]}\n");
    fclose(file);
}

static void contest(Bench *bench) {
    static Results results;
    static Curve curves[2][CONTESTANTS];
    Networks networks = {.trained = read_network()};
    int32_t planted = 0;
    read_instances(bench);
    while (planted < bench->count && bench->instances[planted].model == PLANTED) planted++;
    if (planted < 2 || bench->count - planted < 2) {
        fprintf(stderr, "bench_quality: %s has too few problems\n", INSTANCES);
        exit(1);
    }
    for (int32_t model = 0; model < MODELS; model++) networks.held_out[model] = train(bench, model);
    networks.held_out[MODELS] = train(bench, PLANTED);
    for (int32_t n = 0; n < bench->count; n++) {
        const Instance *instance = &bench->instances[n];
        int32_t kind = n >= planted;
        for (int32_t c = 0; c < CONTESTANTS; c++) {
            const Weights *weights = contestants[c].network == TRAINED ? &networks.trained
                                     : contestants[c].network == HELD_OUT
                                         ? &networks.held_out[kind ? instance->model : MODELS]
                                         : NULL;
            DecisionMeter meter;
            double begin = clock_thread_seconds();
            compete(&meter, &contestants[c], &instance->decisions, weights, (uint64_t)n + 1);
            results.clock[c] += (clock_thread_seconds() - begin) / bench->count;
            results.gap[c][n] = meter.best / instance->optimum - 1;
            add_curve(&curves[kind][c], &meter, instance->optimum, kind ? bench->count - planted : planted);
            decision_meter_free(&meter);
        }
    }
    print_tables(&results, "planted", 0, planted);
    print_tables(&results, "windows", planted, bench->count);
    write_curves(curves);
    free(networks.trained.values);
    for (int32_t k = 0; k <= MODELS; k++) free(networks.held_out[k].values);
}

/* Gap of a trained agent with other parts after a search. */
static double gap_with(const Instance *instance, const char *parts, const Weights *weights, uint64_t seed) {
    AmError error = {0};
    DecisionMeter meter;
    Agent *agent;
    bench_check(decision_meter_create(&meter, &instance->decisions, BUDGET, &error), &error);
    bench_check(decision_agent_create_with(&agent, parts, seed, &error), &error);
    bench_check(agent_set_parameters(agent, weights->values, weights->count, NETWORK, &error), &error);
    bench_check(decision_agent_search(&meter, agent, &error), &error);
    agent_free(agent);
    double gap = meter.best / instance->optimum - 1;
    decision_meter_free(&meter);
    return gap;
}

/* Half the width of a 95 % interval by Student's distribution over the normal one's, for a mean of
 * `count`. */
static double student_factor(int32_t count) {
    static const double quantiles[] = {12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26}; /* 2 to 10 */
    return (count < 2 ? INFINITY : count <= 10 ? quantiles[count - 2] : 2.1) / 1.96;
}

/* Trains with each part of Rainbow changed, on a sample of problems but for windows of GPT-2, and searches
 * windows of GPT-2, by `seeds` seeds. A line for each part: the mean gap, its 95 % interval over seeds, and
 * that of the paired difference from the first line. */
static void ablate(Bench *bench, int32_t seeds) {
    enum { SAMPLE = 30, WINDOWS = 12, HELD_OUT_MODEL = 1 /* gpt2 */, MOST_SEEDS = 100 };
    static const char *const parts[] = {"double=on", "double=off", "dueling=off", "prioritized=off",
                                        "n-step=3",  "n-step=0",   "noisy=on",    "atoms=51"};
    double gaps[MOST_SEEDS], base[MOST_SEEDS], difference[MOST_SEEDS], half[2];
    int32_t windows[WINDOWS], count = 0;
    if (seeds > MOST_SEEDS) seeds = MOST_SEEDS;
    read_instances(bench);
    for (int32_t n = 0; n < bench->count && count < WINDOWS; n++)
        if (bench->instances[n].model == HELD_OUT_MODEL) windows[count++] = n;
    printf("parts changed\tmean gap\t+-\tover default\t+-\n");
    for (size_t p = 0; p < sizeof parts / sizeof *parts; p++) {
        for (int32_t seed = 0; seed < seeds; seed++) {
            Weights weights = train_with(bench, HELD_OUT_MODEL, parts[p], (uint64_t)seed + 1, SAMPLE);
            gaps[seed] = 0;
            for (int32_t w = 0; w < count; w++)
                gaps[seed] +=
                    gap_with(&bench->instances[windows[w]], parts[p], &weights, (uint64_t)seed + 1) / count;
            if (p == 0) base[seed] = gaps[seed];
            difference[seed] = gaps[seed] - base[seed];
            free(weights.values);
        }
        double mean = mean_of(gaps, 0, seeds, &half[0]), over = mean_of(difference, 0, seeds, &half[1]);
        for (int32_t k = 0; k < 2; k++) half[k] *= student_factor(seeds);
        printf("%s\t%.3f%%\t%.3f%%\t%+.3f%%\t%.3f%%\n", p == 0 ? "none (default)" : parts[p], 100 * mean,
               100 * half[0], 100 * over, 100 * half[1]);
        fflush(stdout);
    }
}

/* Mean gaps of annealing by schedule, over problems of both kinds that the contest has not. */
static void tune(Bench *bench) {
    static const double hot[] = {0.1, 0.2, 0.4, 0.8}, cold[] = {0.0125, 0.025, 0.05, 0.1};
    double sum[2][4][4] = {{{0}}};
    int32_t count[2] = {0};
    for (int32_t n = 0; n < 90; n++) {
        Instance instance;
        int32_t model = n % 3 == 0 ? PLANTED : n % MODELS;
        if (!make_instance(bench, &instance, model, TRAIN_SEEDS + (uint64_t)n) || !is_valid(&instance))
            continue;
        count[model != PLANTED]++;
        for (int32_t h = 0; h < 4; h++)
            for (int32_t c = 0; c < 4; c++) {
                AmError error = {0};
                DecisionMeter meter;
                bench_check(decision_meter_create(&meter, &instance.decisions, BUDGET, &error), &error);
                decision_anneal_by(&meter, (uint64_t)n, hot[h], cold[c]);
                sum[model != PLANTED][h][c] += meter.best / instance.optimum - 1;
                decision_meter_free(&meter);
            }
    }
    for (int32_t h = 0; h < 4; h++)
        for (int32_t c = 0; c < 4; c++)
            printf("hot %-6g cold %-7g planted %7.3f%%  windows %7.3f%%\n", hot[h], cold[c],
                   100 * sum[0][h][c] / count[0], 100 * sum[1][h][c] / count[1]);
}

int main(int argc, char **argv) {
    static Bench bench;
    AmError error = {0};
    const char *mode = argc > 1 ? argv[1] : "";
    bench_check(cluster_read(&bench.cluster, &bench.arena, "C", &error), &error);
    if (strcmp(mode, "--find") == 0) find(&bench);
    else if (strcmp(mode, "--tune") == 0) tune(&bench);
    else if (strcmp(mode, "--ablation") == 0) ablate(&bench, argc > 2 ? atoi(argv[2]) : 20);
    else if (strcmp(mode, "--train") == 0) {
        Weights weights = train(&bench, MODELS);
        write_network(&weights);
        free(weights.values);
    } else contest(&bench);
    for (int32_t m = 0; m < MODELS; m++)
        if (bench.contexts[m]) plan_context_free(bench.contexts[m]);
    cluster_free(bench.cluster);
    arena_free(&bench.arena);
    return 0;
}
