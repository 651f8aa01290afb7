/* Which plan to measure next: contestants on groups of runs, for bench/measurements.py and
 * bench/measured_plans.py.
 *
 *   bench_measurements SEEDS < table
 *
 * A line of the table is a run: group, fold, true seconds (0: out of memory), predicted seconds (0: no
 * prediction), whether it fits by the prediction, strategy, PLAN_FEATURES features, a number of samples,
 * and for each sample the seconds of a measurement and of a short one. Runs of a group differ in strategy
 * alone. One measurement reveals a sample of one run, drawn by the seed; without samples, the true seconds.
 * The regret after k measurements is the true time of the run that was measured fastest, over the fastest of
 * the group; without a time it is that of the slowest. Contestants that learn from other groups see those of
 * other folds alone. The program prints a line of JSON for each group, contestant and seed.
 *
 * Successive halving spends half of k measurements on short ones, which cost a third, and measures the best
 * of them.
 *
 * The network values a run by rows of ROW numbers: prediction, corrected prediction, strategy, measurements
 * so far. The reward of a measurement is minus the logarithm of 1 + regret after it, over HORIZON.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "bench/check.h"
#include "planners/measure/correction.h"
#include "planners/rl/trained_agent.h"

enum { MOST_RUNS = 4096, MOST_GROUPS = 512, MOST_SAMPLES = 8, STEPS = 20, HORIZON = 5 };
enum { ROW = PLAN_FEATURES + 9, EPISODES = 400, UPDATES = 4, SHORT_COST = 3 /* of them: a measurement */ };

typedef struct Run {
    double measured, predicted;
    PlanFeatures features;
    int32_t fits, strategy_number, sample_count;
    double samples[MOST_SAMPLES], short_samples[MOST_SAMPLES];
} Run;

typedef struct Group {
    int32_t number, fold, first, count;
    double best, worst; /* seconds */
} Group;

typedef enum Contestant {
    BY_CHANCE,
    BY_SIMULATOR,
    BY_NEIGHBOURS,
    BY_REFIT,
    BY_PROCESS,
    BY_UNTRAINED,
    BY_TRAINED,
    BY_CORRECTION, /* this and the following ones: in groups with samples */
    BY_HALVING,
    CONTESTANTS
} Contestant;
static const char *const names[CONTESTANTS] = {"random",
                                               "simulator's top k",
                                               "ranking of other groups",
                                               "re-fitted coefficients, Thompson sampling",
                                               "Gaussian process on the simulator",
                                               "dqn, untrained",
                                               "dqn, trained",
                                               "re-fitted coefficients",
                                               "successive halving"};

typedef struct Bench {
    Run runs[MOST_RUNS];
    Group groups[MOST_GROUPS];
    int32_t run_count, group_count;
    Correction prior; /* of the fold */
} Bench;

/* The measurements of a group so far. */
typedef struct MeasuredRuns {
    const Group *group;
    const Run *runs;
    bool is_measured[MOST_RUNS];
    double observed[MOST_RUNS]; /* 0: out of memory */
    int32_t sample[MOST_RUNS];  /* that a measurement reveals */
    int32_t count, chosen;      /* the run that was measured fastest; -1: none has a time */
    double best;                /* of those observed; INFINITY: none */
} MeasuredRuns;

/* ---- measurings ---- */

static double observe(const MeasuredRuns *self, int32_t k, bool is_short) {
    const Run *run = &self->runs[k];
    if (run->sample_count == 0) return run->measured;
    return is_short ? run->short_samples[self->sample[k]] : run->samples[self->sample[k]];
}

static void measure(MeasuredRuns *self, int32_t k) {
    self->is_measured[k] = true;
    self->observed[k] = observe(self, k, false);
    self->count++;
    if (!(self->observed[k] > 0 && self->observed[k] < self->best)) return;
    self->best = self->observed[k];
    self->chosen = k;
}

static double regret_of(const MeasuredRuns *self) {
    return (self->chosen < 0 ? self->group->worst : self->runs[self->chosen].measured) / self->group->best -
           1;
}

static MeasuredRuns begin_measuring(const Bench *bench, const Group *group, uint64_t seed) {
    MeasuredRuns measuring = {
        .group = group, .runs = &bench->runs[group->first], .best = INFINITY, .chosen = -1};
    for (int32_t k = 0; k < group->count; k++)
        if (measuring.runs[k].sample_count > 0)
            measuring.sample[k] = (int32_t)(random_at(seed, (uint64_t)group->number, (uint64_t)k) %
                                            (uint64_t)measuring.runs[k].sample_count);
    return measuring;
}

/* Adds the measurements of a group so far. */
static void add_measurements(Correction *correction, const MeasuredRuns *self) {
    for (int32_t k = 0; k < self->group->count; k++)
        if (self->is_measured[k] && self->observed[k] > 0 && self->runs[k].predicted > 0)
            correction_add(correction, &self->runs[k].features, self->runs[k].predicted, self->observed[k]);
}

/* The logarithm of predicted seconds; runs that do not fit come after all others. */
static double prior_score(const Run *run) {
    if (!(run->predicted > 0)) return 1e3;
    return log(run->predicted) + (run->fits ? 0 : 100);
}

static double neighbour_score(const Bench *bench, const MeasuredRuns *self, int32_t k) {
    double sum = 0;
    int32_t count = 0;
    for (int32_t g = 0; g < bench->group_count; g++) {
        const Group *group = &bench->groups[g];
        for (int32_t r = 0; r < group->count && group->fold != self->group->fold; r++) {
            const Run *run = &bench->runs[group->first + r];
            if (run->strategy_number != self->runs[k].strategy_number) continue;
            sum += log((run->measured > 0 ? run->measured : 10 * group->worst) / group->best);
            count++;
        }
    }
    return count > 0 ? sum / count : 10 + prior_score(&self->runs[k]); /* unknown ones by the simulator */
}

static double distance(const Run *a, const Run *b) {
    double square = 0;
    for (int32_t k = 0; k < PLAN_FEATURES; k++) {
        double difference = a->features.numbers[k] - b->features.numbers[k];
        square += difference * difference;
    }
    return square;
}

static double kernel(const Run *a, const Run *b) {
    return exp(-distance(a, b) / 2) + 1; /* 1: a factor common to all runs */
}

/* Minus the expected improvement of the best time by a process over errors of the simulator. */
static void process_scores(double *scores, const Bench *bench, const MeasuredRuns *self) {
    static double factor[STEPS * STEPS], errors[STEPS], across[STEPS];
    const Run *known[STEPS];
    double times[STEPS];
    const double scale = bench->prior.noise;
    int32_t count = 0;
    for (int32_t k = 0; k < self->group->count; k++)
        if (self->is_measured[k] && self->observed[k] > 0 && self->runs[k].predicted > 0) {
            times[count] = self->observed[k];
            known[count++] = &self->runs[k];
        }
    for (int32_t i = 0; i < count; i++) {
        errors[i] = log(times[i] / known[i]->predicted);
        for (int32_t j = 0; j < count; j++)
            factor[i * count + j] = scale * kernel(known[i], known[j]) + (i == j ? 0.01 * scale : 0);
    }
    cholesky_factorize(count, factor);
    cholesky_solve_lower(count, factor, errors);
    for (int32_t k = 0; k < self->group->count; k++) {
        const Run *run = &self->runs[k];
        double mean = prior_score(run), variance = 2 * scale;
        for (int32_t i = 0; i < count; i++) across[i] = scale * kernel(run, known[i]);
        cholesky_solve_lower(count, factor, across);
        for (int32_t i = 0; i < count; i++) {
            mean += across[i] * errors[i];
            variance -= across[i] * across[i];
        }
        double deviation = sqrt(fmax(variance, 1e-12)), z = (log(self->best) - mean) / deviation;
        double improvement = deviation * (z * 0.5 * erfc(-z / M_SQRT2) + exp(-z * z / 2) / sqrt(2 * M_PI));
        scores[k] = isinf(self->best) ? mean : -improvement + 1e-9 * mean;
    }
}

/* ---- the network ---- */

static double limited(double value) {
    return fmax(-3, fmin(3, value));
}

/* The row of each run that is not measured. */
static void fill_rows(float (*rows)[ROW], const Bench *bench, const MeasuredRuns *self) {
    Correction fit = bench->prior;
    double weights[CORRECTION_TERMS], least = INFINITY, least_corrected = INFINITY;
    add_measurements(&fit, self);
    correction_weights(weights, &fit, NULL);
    for (int32_t k = 0; k < self->group->count; k++) {
        double score = prior_score(&self->runs[k]);
        if (self->is_measured[k] || !self->runs[k].fits) continue;
        least = fmin(least, score);
        least_corrected = fmin(least_corrected, score + correction_of(weights, &self->runs[k].features));
    }
    for (int32_t k = 0; k < self->group->count; k++) {
        const Run *run = &self->runs[k];
        double score = run->predicted > 0 ? log(run->predicted) : 0, near = 0, near_oom = 0;
        double corrected = score + correction_of(weights, &run->features);
        float *row = rows[k];
        for (int32_t j = 0; j < self->group->count; j++) {
            double weight = self->is_measured[j] ? exp(-distance(run, &self->runs[j])) : 0;
            near += weight;
            if (!(self->observed[j] > 0)) near_oom += weight;
        }
        for (int32_t f = 0; f < PLAN_FEATURES; f++) row[f] = (float)run->features.numbers[f];
        row += PLAN_FEATURES;
        row[0] = (float)limited(isinf(least) ? 0 : score - least);
        row[1] = (float)limited(isinf(least_corrected) ? 0 : corrected - least_corrected);
        row[2] = (float)(isinf(self->best) ? 0 : limited(corrected - log(self->best)));
        row[3] = isinf(self->best);
        row[4] = (float)run->fits;
        row[5] = run->predicted > 0;
        row[6] = (float)self->count / STEPS;
        row[7] = (float)limited(near);
        row[8] = (float)limited(near_oom);
    }
}

/* The scores of runs by a network: lower is better. */
static void network_scores(double *scores, float (*rows)[ROW], const Bench *bench, const MeasuredRuns *self,
                           Agent *agent) {
    static float values[MOST_RUNS];
    AmError error = {0};
    fill_rows(rows, bench, self);
    bench_check(agent_values(agent, rows[0], self->group->count, values, &error), &error);
    for (int32_t k = 0; k < self->group->count; k++)
        scores[k] =
            -(double)values[k] + 1e-6 * prior_score(&self->runs[k]); /* equal values: by the simulator */
}

static int32_t least_of(const double *scores, const MeasuredRuns *self) {
    int32_t best = -1;
    for (int32_t k = 0; k < self->group->count; k++)
        if (!self->is_measured[k] && (best < 0 || scores[k] < scores[best])) best = k;
    return best;
}

static int32_t random_run(const MeasuredRuns *self, Random *random) {
    int64_t left = random_below(random, self->group->count - self->count);
    for (int32_t k = 0;; k++)
        if (!self->is_measured[k] && left-- == 0) return k;
}

/* An episode on a group: measurements by the network with exploration, stored as steps of the agent. */
static void play(Agent *agent, const Bench *bench, const Group *group, double epsilon, Random *random) {
    bool has_samples = bench->runs[group->first].sample_count > 0;
    uint64_t seed = has_samples ? (uint64_t)random_below(random, INT64_MAX) : 0;
    static float rows[MOST_RUNS][ROW], before[ROW];
    static double scores[MOST_RUNS];
    MeasuredRuns measuring = begin_measuring(bench, group, seed);
    AmError error = {0};
    double reward = 0;
    for (int32_t step = 0; step <= HORIZON; step++) {
        bool is_over = step == HORIZON || measuring.count == group->count;
        int32_t best = 0;
        if (!is_over) {
            network_scores(scores, rows, bench, &measuring, agent);
            best = least_of(scores, &measuring);
        }
        if (step > 0)
            bench_check(agent_observe(agent,
                                      &(AgentStep){.observation = before,
                                                   .reward = reward,
                                                   .next_observation = rows[best],
                                                   .terminal = is_over},
                                      &error),
                        &error);
        if (step > 0 && !is_over) agent_end_episode(agent);
        if (is_over) return;
        int32_t taken = random_uniform(random) < epsilon ? random_run(&measuring, random) : best;
        memcpy(before, rows[taken], sizeof before);
        measure(&measuring, taken);
        reward = -fmin(log1p(regret_of(&measuring)), 1) / HORIZON;
    }
}

static Agent *make_agent(uint64_t seed) {
    AgentSettings settings = trained_agent_settings(48, 1 << 13);
    Agent *agent;
    AmError error = {0};
    settings.seed = seed;
    settings.batch = 64;
    settings.n_step = 1;
    settings.double_q = true;
    bench_check(trained_agent_create(&agent, &settings, ROW, NULL, 0, "", &error), &error);
    return agent;
}

static Agent *train(const Bench *bench, int32_t fold, uint64_t seed) {
    Agent *agent = make_agent(seed);
    Random random;
    random_seed(&random, seed);
    for (int32_t episode = 0; episode < EPISODES; episode++) {
        const Group *group = &bench->groups[random_below(&random, bench->group_count)];
        if (group->fold == fold) continue;
        play(agent, bench, group, 0.5 * (1 - (double)episode / EPISODES) + 0.05, &random);
        agent_learn(agent, UPDATES);
    }
    return agent;
}

/* ---- the contest ---- */

/* The prior of a fold: errors of the simulator in the groups of the others, as much as one group says. */
static Correction fit_prior(const Bench *bench, int32_t fold) {
    Correction fit = {.noise = 0.01};
    double squares = 0;
    int32_t count = 0;
    for (int32_t k = 0; k < CORRECTION_TERMS; k++) fit.precision[k][k] = 10;
    for (int32_t g = 0; g < bench->group_count; g++)
        for (int32_t r = 0; r < bench->groups[g].count && bench->groups[g].fold != fold; r++) {
            const Run *run = &bench->runs[bench->groups[g].first + r];
            if (!(run->measured > 0 && run->predicted > 0)) continue;
            double error = log(run->measured / run->predicted);
            correction_add(&fit, &run->features, run->predicted, run->measured);
            squares += error * error;
            count++;
        }
    double weight = fmin(1, 20.0 / (count + 1));
    for (int32_t i = 0; i < CORRECTION_TERMS; i++) {
        fit.moment[i] *= weight;
        for (int32_t j = 0; j < CORRECTION_TERMS; j++) fit.precision[i][j] *= weight;
    }
    fit.noise = fmax(squares / (count + 1), 1e-4);
    return fit;
}

static int32_t choose(const Bench *bench, const MeasuredRuns *measuring, Contestant by, Agent *agent,
                      Random *random) {
    static double scores[MOST_RUNS];
    static float rows[MOST_RUNS][ROW];
    double weights[CORRECTION_TERMS] = {0};
    if (by == BY_CHANCE) return random_run(measuring, random);
    if (by == BY_REFIT || by == BY_CORRECTION) {
        Correction fit = bench->prior;
        add_measurements(&fit, measuring);
        correction_weights(weights, &fit, by == BY_REFIT ? random : NULL);
    }
    for (int32_t k = 0; k < measuring->group->count; k++) {
        scores[k] = prior_score(&measuring->runs[k]) + correction_of(weights, &measuring->runs[k].features);
        if (by == BY_NEIGHBOURS) scores[k] = neighbour_score(bench, measuring, k);
    }
    if (by == BY_PROCESS) process_scores(scores, bench, measuring);
    if (agent) network_scores(scores, rows, bench, measuring, agent);
    return least_of(scores, measuring);
}

/* The regret of successive halving with `measurements` measurements. */
static double halve(const Bench *bench, const Group *group, int32_t measurements, uint64_t seed) {
    static double scores[MOST_RUNS];
    static bool is_over[MOST_RUNS];
    MeasuredRuns measuring = begin_measuring(bench, group, seed);
    int32_t shorts = measurements > 1 ? measurements * SHORT_COST / 2 : 0,
            full = measurements - (measurements > 1 ? measurements / 2 : 0);
    if (shorts > group->count) full = measurements - group->count / SHORT_COST;
    for (int32_t k = 0; k < group->count; k++) scores[k] = 1e6 + prior_score(&measuring.runs[k]);
    memset(is_over, 0, sizeof is_over);
    for (int32_t k = 0; k < shorts && k < group->count; k++) {
        int32_t next = -1;
        for (int32_t r = 0; r < group->count; r++)
            if (!is_over[r] && (next < 0 || scores[r] < scores[next])) next = r;
        is_over[next] = true;
    }
    for (int32_t k = 0; k < group->count; k++)
        if (is_over[k]) scores[k] = observe(&measuring, k, true);
    for (int32_t k = 0; k < full && k < group->count; k++) measure(&measuring, least_of(scores, &measuring));
    return regret_of(&measuring);
}

static void contest(const Bench *bench, const Group *group, Contestant by, Agent *agent, uint64_t seed) {
    MeasuredRuns measuring = begin_measuring(bench, group, seed);
    Random random;
    if (by >= BY_CORRECTION && measuring.runs[0].sample_count == 0) return;
    random_seed(&random, random_at(seed, by, (uint64_t)group->number));
    printf("{\"contestant\":\"%s\",\"group\":%d,\"seed\":%d,\"regret\":[", names[by], group->number,
           (int)seed);
    for (int32_t step = 0; step < STEPS; step++) {
        if (by != BY_HALVING && measuring.count < group->count)
            measure(&measuring, choose(bench, &measuring, by, agent, &random));
        printf("%s%.6g", step ? "," : "",
               by == BY_HALVING ? halve(bench, group, step + 1, seed) : regret_of(&measuring));
    }
    printf("]}\n");
}

static void read_table(Bench *bench) {
    int32_t number, fold;
    while (bench->run_count < MOST_RUNS && scanf("%d %d", &number, &fold) == 2) {
        Run *run = &bench->runs[bench->run_count];
        Group *group = &bench->groups[bench->group_count - 1];
        if (bench->group_count == 0 || group->number != number) {
            if (bench->group_count == MOST_GROUPS) break;
            group = &bench->groups[bench->group_count++];
            *group = (Group){number, fold, bench->run_count, 0, INFINITY, 0};
        }
        if (scanf("%lf %lf %d %d", &run->measured, &run->predicted, &run->fits, &run->strategy_number) != 4)
            break;
        for (int32_t k = 0; k < PLAN_FEATURES; k++)
            if (scanf("%lf", &run->features.numbers[k]) != 1) return;
        if (scanf("%d", &run->sample_count) != 1 || run->sample_count > MOST_SAMPLES) return;
        for (int32_t k = 0; k < run->sample_count; k++)
            if (scanf("%lf %lf", &run->samples[k], &run->short_samples[k]) != 2) return;
        group->count++;
        bench->run_count++;
        if (!(run->measured > 0)) continue;
        group->best = fmin(group->best, run->measured);
        group->worst = fmax(group->worst, run->measured);
    }
}

int main(int count, char **words) {
    static Bench bench;
    int32_t seeds = count > 1 ? atoi(words[1]) : 20, folds = 0;
    read_table(&bench);
    for (int32_t g = 0; g < bench.group_count; g++)
        if (bench.groups[g].fold >= folds) folds = bench.groups[g].fold + 1;
    for (int32_t fold = 0; fold < folds; fold++) {
        bench.prior = fit_prior(&bench, fold);
        for (int32_t seed = 0; seed < seeds; seed++) {
            Agent *trained = train(&bench, fold, (uint64_t)seed + 1),
                  *untrained = make_agent((uint64_t)seed + 1);
            for (int32_t g = 0; g < bench.group_count; g++)
                for (Contestant by = 0; by < CONTESTANTS && bench.groups[g].fold == fold; by++)
                    contest(&bench, &bench.groups[g], by,
                            by == BY_TRAINED     ? trained
                            : by == BY_UNTRAINED ? untrained
                                                 : NULL,
                            (uint64_t)seed);
            agent_free(trained);
            agent_free(untrained);
        }
    }
    return 0;
}
