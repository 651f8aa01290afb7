/* Estimates of plans of decision problems, by regression on increments.
 *
 * K is the kernel of the samples, y their values above the mean. The posterior mean of a term is its prior
 * variance times the sum of (K^-1 y) over the samples that contain it. K's Cholesky factor grows by a row
 * with every sample. */
#include "bench/quality/decisions_estimate.h"

#include <math.h>
#include <string.h>

/* Prior variances of the terms of an increment, by which a decision lengthens the step: a Gaussian process
 * whose kernel adds those that two samples have in common (kernel()). */
#define COMMON 1.0  /* the same for all samples of a decision */
#define OWN    0.5  /* by the strategy chosen */
#define FROM   0.02 /* by the strategy of a neighbour that was decided earlier */
#define PAIR   0.3  /* by both strategies */
#define NOISE  1e-4

#define DEVIATIONS 1.25 /* of a normal distribution in a mean absolute one */
#define HOPE       0.7  /* standard deviations by which an estimate is lowered where few samples are known */

enum { MOST_SAMPLES = 160, MOST_NEIGHBOURS = 8, PRICE_STEPS = 4, SLOPE_ITERATIONS = 40 };

typedef struct DecisionSample {
    int8_t own, from[MOST_NEIGHBOURS];
    double value, moved[DECISIONS_LOADS]; /* seconds, bytes */
    double weight;                        /* (K^-1 y) */
} DecisionSample;

typedef struct DecisionSamples {
    int32_t count, neighbours;
    DecisionSample *samples; /* [MOST_SAMPLES] */
    double *factor;          /* [MOST_SAMPLES * MOST_SAMPLES] lower triangle */
    bool is_new;
} DecisionSamples;

static AmStatus copy_graph(Decisions *copy, Arena *arena, const Decisions *decisions, AmError *error) {
    *copy = *decisions;
    memset(copy->seconds, 0, sizeof copy->seconds);
    copy->edges = ARENA_ARRAY(arena, DecisionEdge, decisions->edge_count);
    if (!copy->edges) return am_fail_memory(error, decisions->edge_count * (int64_t)sizeof(DecisionEdge));
    for (int32_t e = 0; e < decisions->edge_count; e++) {
        copy->edges[e] = decisions->edges[e];
        memset(copy->edges[e].seconds, 0, sizeof copy->edges[e].seconds);
    }
    return AM_OK;
}

AmStatus decision_estimate_create(DecisionEstimate *estimate, const Decisions *decisions, AmError *error) {
    *estimate = (DecisionEstimate){.decisions = decisions};
    Arena *arena = &estimate->arena;
    TRY(copy_graph(&estimate->likely, arena, decisions, error));
    TRY(copy_graph(&estimate->hopeful, arena, decisions, error));
    for (int32_t b = 0; b < ESTIMATE_PRICES; b++) {
        TRY(decision_bound_create(&estimate->likely_after[b], arena, decisions, error));
        TRY(decision_bound_create(&estimate->hopeful_after[b], arena, decisions, error));
    }
    estimate->samples = ARENA_ARRAY(arena, DecisionSamples, decisions->count);
    if (!estimate->samples) return am_fail_memory(error, decisions->count * (int64_t)sizeof(DecisionSamples));
    for (int32_t i = 0; i < decisions->count; i++) {
        DecisionSamples *samples = &estimate->samples[i];
        samples->neighbours = decisions->first_edge[i + 1] - decisions->first_edge[i];
        if (samples->neighbours > MOST_NEIGHBOURS)
            return am_fail(error, AM_ERROR_USAGE, "", "decision %d has more than %d earlier neighbours", i,
                           MOST_NEIGHBOURS);
    }
    estimate->unit = 1;
    estimate->most = INFINITY;
    for (int32_t e = 0; e < decisions->edge_count; e++)
        for (int32_t a = 0; a < decisions->strategies[decisions->edges[e].from]; a++)
            for (int32_t b = 0; b < decisions->strategies[decisions->edges[e].to]; b++)
                for (int32_t load = 0; load < DECISIONS_LOADS; load++)
                    estimate->most_moved[load] =
                        fmax(estimate->most_moved[load], decisions->edges[e].moved[load][a][b]);
    return AM_OK;
}

void decision_estimate_free(DecisionEstimate *estimate) {
    arena_free(&estimate->arena);
}

static DecisionSample sample_of(const DecisionEstimate *estimate, const DecisionPlan *plan, int32_t i) {
    const Decisions *decisions = estimate->decisions;
    DecisionSample sample = {.own = plan->choice[i]};
    for (int32_t n = 0; n < estimate->samples[i].neighbours; n++)
        sample.from[n] = plan->choice[decisions->edges[decisions->first_edge[i] + n].from];
    return sample;
}

static bool is_same(const DecisionSample *a, const DecisionSample *b) {
    return a->own == b->own && memcmp(a->from, b->from, sizeof a->from) == 0;
}

bool decision_estimate_knows(const DecisionEstimate *estimate, const DecisionPlan *plan, int32_t i) {
    DecisionSample sample = sample_of(estimate, plan, i);
    for (int32_t n = 0; n < estimate->samples[i].count; n++)
        if (is_same(&estimate->samples[i].samples[n], &sample)) return true;
    return false;
}

static double kernel(const DecisionSample *a, const DecisionSample *b, int32_t neighbours) {
    bool same = a->own == b->own;
    double value = COMMON + (same ? OWN : 0);
    for (int32_t n = 0; n < neighbours; n++)
        if (a->from[n] == b->from[n]) value += FROM + (same ? PAIR : 0);
    return value;
}

AmStatus decision_estimate_add(DecisionEstimate *estimate, const DecisionPlan *plan, int32_t i,
                               double increment, AmError *error) {
    DecisionSamples *self = &estimate->samples[i];
    if (self->count == MOST_SAMPLES || decision_estimate_knows(estimate, plan, i)) return AM_OK;
    if (!self->samples) {
        self->samples = ARENA_ARRAY(&estimate->arena, DecisionSample, MOST_SAMPLES);
        self->factor = ARENA_ARRAY(&estimate->arena, double, MOST_SAMPLES *MOST_SAMPLES);
        if (!self->samples || !self->factor)
            return am_fail_memory(error, MOST_SAMPLES * MOST_SAMPLES * (int64_t)sizeof(double));
    }
    int32_t row = self->count++;
    self->samples[row] = sample_of(estimate, plan, i);
    self->samples[row].value = increment;
    for (int32_t load = 0; load < DECISIONS_LOADS; load++)
        self->samples[row].moved[load] = decision_plan_moved(estimate->decisions, plan, i, load);
    double *factor = self->factor, *last = &factor[row * MOST_SAMPLES];
    for (int32_t column = 0; column <= row; column++) {
        double value = kernel(&self->samples[row], &self->samples[column], self->neighbours);
        if (column == row) value += NOISE;
        for (int32_t k = 0; k < column; k++) value -= last[k] * factor[column * MOST_SAMPLES + k];
        last[column] =
            column == row ? sqrt(fmax(value, NOISE)) : value / factor[column * MOST_SAMPLES + column];
    }
    estimate->sample_count++;
    self->is_new = true;
    return AM_OK;
}

/* Seconds of a sample without those that its moved bytes explain. Values above a whole plan are
 * clamped: no better plan contains them. */
static double unexplained(const DecisionEstimate *estimate, const DecisionSample *sample) {
    double explained = 0;
    for (int32_t load = 0; load < DECISIONS_LOADS; load++)
        explained += estimate->seconds_per_load[load] * sample->moved[load];
    return fmin(sample->value, estimate->most) - fmin(explained, estimate->most);
}

/* Weights K^-1 (value - mean) of the samples. */
static void solve(const DecisionEstimate *estimate, DecisionSamples *self, double mean) {
    const double *factor = self->factor;
    DecisionSample *samples = self->samples;
    for (int32_t row = 0; row < self->count; row++) {
        double value = unexplained(estimate, &samples[row]) - mean;
        for (int32_t k = 0; k < row; k++) value -= factor[row * MOST_SAMPLES + k] * samples[k].weight;
        samples[row].weight = value / factor[row * MOST_SAMPLES + row];
    }
    for (int32_t row = self->count - 1; row >= 0; row--) {
        double value = samples[row].weight;
        for (int32_t k = row + 1; k < self->count; k++)
            value -= factor[k * MOST_SAMPLES + row] * samples[k].weight;
        samples[row].weight = value / factor[row * MOST_SAMPLES + row];
    }
}

static double reshard(const DecisionEstimate *estimate, int32_t edge, int32_t a, int32_t b) {
    double seconds = 0;
    for (int32_t load = 0; load < DECISIONS_LOADS; load++)
        seconds += estimate->seconds_per_load[load] * estimate->decisions->edges[edge].moved[load][a][b];
    return fmin(seconds, estimate->most);
}

double decision_estimate_reshard(const DecisionEstimate *estimate, const DecisionPlan *plan, int32_t i) {
    double seconds = 0;
    const Decisions *decisions = estimate->decisions;
    for (int32_t e = decisions->first_edge[i]; e < decisions->first_edge[i + 1]; e++)
        seconds += reshard(estimate, e, plan->choice[decisions->edges[e].from], plan->choice[i]);
    return seconds;
}

/* Posterior means of decision i's terms into `likely`, and with hope into `hopeful`. */
static void fill_terms(DecisionEstimate *estimate, int32_t i, double mean, double deviation) {
    enum { K = DECISIONS_MOST_STRATEGIES };
    const DecisionSamples *self = &estimate->samples[i];
    int32_t strategies = estimate->decisions->strategies[i], seen[K] = {0};
    double all = 0, own[K] = {0};
    for (int32_t s = 0; s < self->count; s++) {
        all += self->samples[s].weight;
        own[self->samples[s].own] += self->samples[s].weight;
        seen[self->samples[s].own]++;
    }
    for (int32_t k = 0; k < strategies; k++) {
        double value = mean + COMMON * all + OWN * own[k];
        estimate->likely.seconds[i][k] = value;
        estimate->hopeful.seconds[i][k] = value - HOPE * deviation * sqrt(OWN / (1 + seen[k]));
    }
    for (int32_t n = 0; n < self->neighbours; n++) {
        int32_t e = estimate->decisions->first_edge[i] + n;
        double from[K] = {0}, pair[K][K] = {{0}};
        int32_t pairs[K][K] = {{0}};
        for (int32_t s = 0; s < self->count; s++) {
            const DecisionSample *sample = &self->samples[s];
            from[sample->from[n]] += sample->weight;
            pair[sample->from[n]][sample->own] += sample->weight;
            pairs[sample->from[n]][sample->own]++;
        }
        for (int32_t a = 0; a < K; a++)
            for (int32_t k = 0; k < strategies; k++) {
                double value = FROM * from[a] + PAIR * pair[a][k] + reshard(estimate, e, a, k);
                estimate->likely.edges[e].seconds[a][k] = value;
                estimate->hopeful.edges[e].seconds[a][k] =
                    value - (pairs[a][k] ? 0 : HOPE * deviation * sqrt(PAIR));
            }
    }
}

/* Bytes of the plan that a bound completes the open one to. */
static double completed_bytes(const Decisions *problem, const DecisionBound *bound) {
    DecisionPlan plan = decision_plan_open();
    for (int32_t i = 0; i < problem->count; i++) {
        double least = INFINITY;
        int8_t best = 0;
        for (int32_t k = 0; k < problem->strategies[i]; k++) {
            plan.choice[i] = (int8_t)k;
            double value = decision_increment(problem, &plan, i) + bound->byte_price * problem->bytes[i][k] +
                           decision_bound_after(bound, &plan, i + 1);
            if (value < least) least = value, best = (int8_t)k;
        }
        plan.choice[i] = best;
    }
    return decision_plan_bytes(problem, &plan);
}

/* Moves the price of a byte to where completed plans just fit. */
static void find_byte_price(DecisionEstimate *estimate) {
    static const double share[ESTIMATE_PRICES] = {1, 0.7, 1.4};
    const Decisions *problem = &estimate->hopeful;
    DecisionBound *bound = &estimate->hopeful_after[0];
    double step = 2;
    if (estimate->byte_price <= 0) estimate->byte_price = estimate->unit * problem->count / problem->memory;
    bool was_above = false;
    for (int32_t iteration = 0; iteration < PRICE_STEPS; iteration++) {
        decision_bound_fill(bound, problem, estimate->byte_price);
        bool is_above = completed_bytes(problem, bound) > problem->memory;
        if (iteration > 0 && is_above != was_above) step = sqrt(step);
        estimate->byte_price *= is_above ? step : 1 / step;
        was_above = is_above;
    }
    for (int32_t b = 0; b < ESTIMATE_PRICES; b++) {
        decision_bound_fill(&estimate->likely_after[b], &estimate->likely, share[b] * estimate->byte_price);
        decision_bound_fill(&estimate->hopeful_after[b], &estimate->hopeful, share[b] * estimate->byte_price);
    }
}

double decision_estimate_total(const Decisions *problem, const DecisionBound bounds[ESTIMATE_PRICES],
                               const DecisionPlan *plan, int32_t i, double seconds) {
    double taken = 0, most = -INFINITY;
    for (int32_t j = 0; j <= i; j++) taken += problem->bytes[j][plan->choice[j]];
    for (int32_t b = 0; b < ESTIMATE_PRICES; b++)
        most = fmax(most, decision_bound_after(&bounds[b], plan, i + 1) -
                              bounds[b].byte_price * (problem->memory - taken));
    return seconds + decision_increment(problem, plan, i) + most;
}

/* Sums within the decisions, of bytes moved by seconds and by each other. */
typedef struct Moments {
    double by_seconds[DECISIONS_LOADS], by_moved[DECISIONS_LOADS][DECISIONS_LOADS];
} Moments;

/* Samples count by how small they are beside `unit`, as relative errors matter; above `most` not at all. */
static void add_moments(Moments *moments, const DecisionSamples *self, double unit, double most) {
    double value = 0, moved[DECISIONS_LOADS] = {0}, weights = 0;
    for (int32_t iteration = 0; iteration < 2; iteration++) /* first the means, then the other fields */
        for (int32_t s = 0; s < self->count; s++) {
            const DecisionSample *sample = &self->samples[s];
            if (sample->value > most) continue;
            double weight = 1 / (1 + sample->value / unit * sample->value / unit), beside[DECISIONS_LOADS];
            for (int32_t load = 0; load < DECISIONS_LOADS; load++)
                beside[load] = sample->moved[load] - moved[load];
            if (iteration == 0) {
                weights += weight;
                value += (sample->value - value) * weight / weights;
                for (int32_t load = 0; load < DECISIONS_LOADS; load++)
                    moved[load] += beside[load] * weight / weights;
                continue;
            }
            for (int32_t load = 0; load < DECISIONS_LOADS; load++) {
                moments->by_seconds[load] += weight * beside[load] * (sample->value - value);
                for (int32_t other = 0; other < DECISIONS_LOADS; other++)
                    moments->by_moved[load][other] += weight * beside[load] * beside[other];
            }
        }
}

/* Seconds per byte and resharding over each link: least squares within the decisions, none below 0, one by
 * one until they agree. As nothing is known yet, bytes are all that counts. */
static void find_slopes(DecisionEstimate *estimate) {
    double *slope = estimate->seconds_per_load;
    Moments moments = {0};
    for (int32_t i = 0; i < estimate->decisions->count; i++)
        add_moments(&moments, &estimate->samples[i], estimate->unit, estimate->most);
    for (int32_t load = 0; load < DECISIONS_LOADS; load++)
        slope[load] =
            estimate->sample_count == 0 && load < DECISIONS_LOADS / 2 && estimate->most_moved[load] > 0
                ? estimate->unit / estimate->most_moved[load]
                : 0;
    for (int32_t iteration = 0; iteration < SLOPE_ITERATIONS && estimate->sample_count > 0; iteration++)
        for (int32_t load = 0; load < DECISIONS_LOADS; load++) {
            double rest = moments.by_seconds[load];
            for (int32_t other = 0; other < DECISIONS_LOADS; other++)
                if (other != load) rest -= moments.by_moved[load][other] * slope[other];
            slope[load] = moments.by_moved[load][load] > 0 ? fmax(rest / moments.by_moved[load][load], 0) : 0;
        }
}

void decision_estimate_update(DecisionEstimate *estimate, double best) {
    double sum = 0, spread = 0, count = fmax((double)estimate->sample_count, 1);
    estimate->most = best;
    if (isfinite(best)) estimate->unit = best / estimate->decisions->count;
    find_slopes(estimate);
    for (int32_t i = 0; i < estimate->decisions->count; i++)
        for (int32_t s = 0; s < estimate->samples[i].count; s++)
            sum += unexplained(estimate, &estimate->samples[i].samples[s]);
    for (int32_t i = 0; i < estimate->decisions->count; i++)
        for (int32_t s = 0; s < estimate->samples[i].count; s++)
            spread += fabs(unexplained(estimate, &estimate->samples[i].samples[s]) - sum / count);
    for (int32_t i = 0; i < estimate->decisions->count; i++) {
        solve(estimate, &estimate->samples[i], sum / count);
        fill_terms(estimate, i, sum / count, DEVIATIONS * spread / count);
    }
    find_byte_price(estimate);
}

double decision_increment(const Decisions *decisions, const DecisionPlan *plan, int32_t i) {
    int8_t k = plan->choice[i];
    double increment = decisions->seconds[i][k];
    for (int32_t e = decisions->first_edge[i]; e < decisions->first_edge[i + 1]; e++)
        increment += decisions->edges[e].seconds[plan->choice[decisions->edges[e].from]][k];
    return increment;
}
