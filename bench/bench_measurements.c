/* Which plan to measure next: contestants on groups of published runs, for bench/measurements.py.
 *
 *   bench_measurements SEEDS < table
 *
 * A line of the table is a run: group, fold, measured seconds (0: out of memory), predicted seconds (0: no
 * prediction), whether it fits by the prediction, strategy, FEATURES numbers. Runs of a group differ in
 * strategy alone. One measurement reveals one run. The regret after k measurements is the fastest measured
 * run over the fastest of the group; without a time it is that of the slowest. Contestants that learn from
 * other groups see those of other folds alone. The program prints a line of JSON for each group, contestant
 * and seed.
 *
 * The network values a run by rows of ROW numbers: prediction, corrected prediction, features, what was
 * measured so far. The reward of a measurement is minus the logarithm of 1 + regret after it, over HORIZON.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "planners/rl/trained_agent.h"

enum { FEATURES = 10, MOST_RUNS = 4096, MOST_GROUPS = 512, STEPS = 20, HORIZON = 5 };
enum { TERMS = FEATURES + 1, ROW = FEATURES + 9, EPISODES = 400, UPDATES = 4 };

typedef struct Run {
    double measured, predicted, features[FEATURES];
    int32_t fits, strategy;
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
    CONTESTANTS
} Contestant;
static const char *const names[CONTESTANTS] = {"random",
                                               "simulator's top k",
                                               "ranking of other groups",
                                               "re-fitted coefficients, Thompson sampling",
                                               "Gaussian process on the simulator",
                                               "dqn, untrained",
                                               "dqn, trained"};

/* Gaussian coefficients of log(measured / predicted). */
typedef struct Fit {
    double precision[TERMS][TERMS], moment[TERMS], noise; /* noise: variance */
} Fit;

typedef struct Bench {
    Run runs[MOST_RUNS];
    Group groups[MOST_GROUPS];
    int32_t run_count, group_count;
    Fit prior; /* of the fold */
} Bench;

/* The measurements of a group so far. */
typedef struct Measuring {
    const Group *group;
    const Run *runs;
    bool is_measured[MOST_RUNS];
    int32_t count, ooms;
    double best; /* INFINITY: none has a time */
} Measuring;

static void check(AmStatus status, const AmError *error) {
    if (status == AM_OK) return;
    fprintf(stderr, "bench_measurements: %s\n", error->text);
    exit(1);
}

/* ---- coefficients ---- */

static double term(const Run *run, int32_t k) {
    return k < FEATURES ? run->features[k] : 1;
}

static void fit_add(Fit *fit, const Run *run) {
    double error = log(run->measured / run->predicted);
    for (int32_t i = 0; i < TERMS; i++) {
        fit->moment[i] += term(run, i) * error / fit->noise;
        for (int32_t j = 0; j < TERMS; j++) fit->precision[i][j] += term(run, i) * term(run, j) / fit->noise;
    }
}

/* Lower triangle of the Cholesky factor of a positive matrix, in place. */
static void factorize(int32_t size, double *matrix) {
    for (int32_t i = 0; i < size; i++)
        for (int32_t j = 0; j <= i; j++) {
            double sum = matrix[i * size + j];
            for (int32_t k = 0; k < j; k++) sum -= matrix[i * size + k] * matrix[j * size + k];
            matrix[i * size + j] = i == j ? sqrt(fmax(sum, 1e-12)) : sum / matrix[j * size + j];
        }
}

static void solve_lower(int32_t size, const double *factor, double *x) {
    for (int32_t i = 0; i < size; i++) {
        for (int32_t k = 0; k < i; k++) x[i] -= factor[i * size + k] * x[k];
        x[i] /= factor[i * size + i];
    }
}

static void solve_upper(int32_t size, const double *factor, double *x) {
    for (int32_t i = size - 1; i >= 0; i--) {
        for (int32_t k = i + 1; k < size; k++) x[i] -= factor[k * size + i] * x[k];
        x[i] /= factor[i * size + i];
    }
}

static double normal(Random *random) {
    return sqrt(-2 * log(random_uniform(random) + 1e-300)) * cos(2 * M_PI * random_uniform(random));
}

/* The mean coefficients, with noise of the posterior where `random` is not NULL. */
static void fit_coefficients(double *coefficients, const Fit *fit, Random *random) {
    double factor[TERMS * TERMS], noise[TERMS];
    memcpy(factor, fit->precision, sizeof factor);
    memcpy(coefficients, fit->moment, sizeof fit->moment);
    factorize(TERMS, factor);
    solve_lower(TERMS, factor, coefficients);
    solve_upper(TERMS, factor, coefficients);
    for (int32_t k = 0; k < TERMS; k++) noise[k] = random ? normal(random) : 0;
    solve_upper(TERMS, factor, noise);
    for (int32_t k = 0; k < TERMS; k++) coefficients[k] += noise[k];
}

static double correction(const double *coefficients, const Run *run) {
    double sum = 0;
    for (int32_t k = 0; k < TERMS; k++) sum += coefficients[k] * term(run, k);
    return sum;
}

/* ---- measurings ---- */

static void measure(Measuring *self, int32_t k) {
    self->is_measured[k] = true;
    self->count++;
    if (self->runs[k].measured > 0) self->best = fmin(self->best, self->runs[k].measured);
    else self->ooms++;
}

static double regret_of(const Measuring *self) {
    return (isinf(self->best) ? self->group->worst : self->best) / self->group->best - 1;
}

static Measuring begin_measuring(const Bench *bench, const Group *group) {
    return (Measuring){.group = group, .runs = &bench->runs[group->first], .best = INFINITY};
}

/* The logarithm of predicted seconds; runs that do not fit come after all others. */
static double prior_score(const Run *run) {
    if (!(run->predicted > 0)) return 1e3;
    return log(run->predicted) + (run->fits ? 0 : 100);
}

static double neighbour_score(const Bench *bench, const Measuring *self, int32_t k) {
    double sum = 0;
    int32_t count = 0;
    for (int32_t g = 0; g < bench->group_count; g++) {
        const Group *group = &bench->groups[g];
        for (int32_t r = 0; r < group->count && group->fold != self->group->fold; r++) {
            const Run *run = &bench->runs[group->first + r];
            if (run->strategy != self->runs[k].strategy) continue;
            sum += log((run->measured > 0 ? run->measured : 10 * group->worst) / group->best);
            count++;
        }
    }
    return count > 0 ? sum / count : 10 + prior_score(&self->runs[k]); /* unknown ones by the simulator */
}

static double distance(const Run *a, const Run *b) {
    double square = 0;
    for (int32_t k = 0; k < FEATURES; k++)
        square += (a->features[k] - b->features[k]) * (a->features[k] - b->features[k]);
    return square;
}

static double kernel(const Run *a, const Run *b) {
    return exp(-distance(a, b) / 2) + 1; /* and a common factor */
}

/* Minus the expected improvement of the best time by a process over errors of the simulator. */
static void process_scores(double *scores, const Bench *bench, const Measuring *self) {
    static double factor[STEPS * STEPS], errors[STEPS], across[STEPS];
    const Run *known[STEPS];
    const double scale = bench->prior.noise;
    int32_t count = 0;
    for (int32_t k = 0; k < self->group->count; k++)
        if (self->is_measured[k] && self->runs[k].measured > 0 && self->runs[k].predicted > 0)
            known[count++] = &self->runs[k];
    for (int32_t i = 0; i < count; i++) {
        errors[i] = log(known[i]->measured / known[i]->predicted);
        for (int32_t j = 0; j < count; j++)
            factor[i * count + j] = scale * kernel(known[i], known[j]) + (i == j ? 0.01 * scale : 0);
    }
    factorize(count, factor);
    solve_lower(count, factor, errors);
    for (int32_t k = 0; k < self->group->count; k++) {
        const Run *run = &self->runs[k];
        double mean = prior_score(run), variance = 2 * scale;
        for (int32_t i = 0; i < count; i++) across[i] = scale * kernel(run, known[i]);
        solve_lower(count, factor, across);
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
static void fill_rows(float (*rows)[ROW], const Bench *bench, const Measuring *self) {
    Fit fit = bench->prior;
    double coefficients[TERMS], least = INFINITY, least_corrected = INFINITY;
    for (int32_t k = 0; k < self->group->count; k++)
        if (self->is_measured[k] && self->runs[k].measured > 0 && self->runs[k].predicted > 0)
            fit_add(&fit, &self->runs[k]);
    fit_coefficients(coefficients, &fit, NULL);
    for (int32_t k = 0; k < self->group->count; k++) {
        double score = prior_score(&self->runs[k]);
        if (self->is_measured[k] || !self->runs[k].fits) continue;
        least = fmin(least, score);
        least_corrected = fmin(least_corrected, score + correction(coefficients, &self->runs[k]));
    }
    for (int32_t k = 0; k < self->group->count; k++) {
        const Run *run = &self->runs[k];
        double score = run->predicted > 0 ? log(run->predicted) : 0, near = 0, near_oom = 0;
        double corrected = score + correction(coefficients, run);
        float *row = rows[k];
        for (int32_t j = 0; j < self->group->count; j++) {
            double weight = self->is_measured[j] ? exp(-distance(run, &self->runs[j])) : 0;
            near += weight;
            if (!(self->runs[j].measured > 0)) near_oom += weight;
        }
        for (int32_t f = 0; f < FEATURES; f++) row[f] = (float)run->features[f];
        row += FEATURES;
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
static void network_scores(double *scores, float (*rows)[ROW], const Bench *bench, const Measuring *self,
                           Agent *agent) {
    static float values[MOST_RUNS];
    AmError error = {0};
    fill_rows(rows, bench, self);
    check(agent_values(agent, rows[0], self->group->count, values, &error), &error);
    for (int32_t k = 0; k < self->group->count; k++)
        scores[k] =
            -(double)values[k] + 1e-6 * prior_score(&self->runs[k]); /* equal values: by the simulator */
}

static int32_t least_of(const double *scores, const Measuring *self) {
    int32_t best = -1;
    for (int32_t k = 0; k < self->group->count; k++)
        if (!self->is_measured[k] && (best < 0 || scores[k] < scores[best])) best = k;
    return best;
}

static int32_t random_run(const Measuring *self, Random *random) {
    int64_t left = random_below(random, self->group->count - self->count);
    for (int32_t k = 0;; k++)
        if (!self->is_measured[k] && left-- == 0) return k;
}

/* An episode on a group: measurements by the network with exploration, stored as steps of the agent. */
static void play(Agent *agent, const Bench *bench, const Group *group, double epsilon, Random *random) {
    static float rows[MOST_RUNS][ROW], before[ROW];
    static double scores[MOST_RUNS];
    Measuring measuring = begin_measuring(bench, group);
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
            check(agent_observe(agent,
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
    check(trained_agent_create(&agent, &settings, ROW, NULL, 0, "", &error), &error);
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
static Fit fit_prior(const Bench *bench, int32_t fold) {
    Fit fit = {.noise = 0.01};
    double squares = 0;
    int32_t count = 0;
    for (int32_t k = 0; k < TERMS; k++) fit.precision[k][k] = 10;
    for (int32_t g = 0; g < bench->group_count; g++)
        for (int32_t r = 0; r < bench->groups[g].count && bench->groups[g].fold != fold; r++) {
            const Run *run = &bench->runs[bench->groups[g].first + r];
            if (!(run->measured > 0 && run->predicted > 0)) continue;
            double error = log(run->measured / run->predicted);
            fit_add(&fit, run);
            squares += error * error;
            count++;
        }
    double weight = fmin(1, 20.0 / (count + 1));
    for (int32_t i = 0; i < TERMS; i++) {
        fit.moment[i] *= weight;
        for (int32_t j = 0; j < TERMS; j++) fit.precision[i][j] *= weight;
    }
    fit.noise = fmax(squares / (count + 1), 1e-4);
    return fit;
}

static int32_t choose(const Bench *bench, const Measuring *measuring, Contestant by, Agent *agent,
                      Random *random) {
    static double scores[MOST_RUNS];
    static float rows[MOST_RUNS][ROW];
    double coefficients[TERMS] = {0};
    if (by == BY_CHANCE) return random_run(measuring, random);
    if (by == BY_REFIT) {
        Fit fit = bench->prior;
        for (int32_t k = 0; k < measuring->group->count; k++)
            if (measuring->is_measured[k] && measuring->runs[k].measured > 0 &&
                measuring->runs[k].predicted > 0)
                fit_add(&fit, &measuring->runs[k]);
        fit_coefficients(coefficients, &fit, random);
    }
    for (int32_t k = 0; k < measuring->group->count; k++) {
        scores[k] = prior_score(&measuring->runs[k]) + correction(coefficients, &measuring->runs[k]);
        if (by == BY_NEIGHBOURS) scores[k] = neighbour_score(bench, measuring, k);
    }
    if (by == BY_PROCESS) process_scores(scores, bench, measuring);
    if (agent) network_scores(scores, rows, bench, measuring, agent);
    return least_of(scores, measuring);
}

static void contest(const Bench *bench, const Group *group, Contestant by, Agent *agent, uint64_t seed) {
    Measuring measuring = begin_measuring(bench, group);
    Random random;
    random_seed(&random, random_at(seed, by, (uint64_t)group->number));
    printf("{\"contestant\":\"%s\",\"group\":%d,\"seed\":%d,\"regret\":[", names[by], group->number,
           (int)seed);
    for (int32_t step = 0; step < STEPS; step++) {
        if (measuring.count < group->count)
            measure(&measuring, choose(bench, &measuring, by, agent, &random));
        printf("%s%.6g", step ? "," : "", regret_of(&measuring));
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
        if (scanf("%lf %lf %d %d", &run->measured, &run->predicted, &run->fits, &run->strategy) != 4) break;
        for (int32_t k = 0; k < FEATURES; k++)
            if (scanf("%lf", &run->features[k]) != 1) return;
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
