/* Planted decision problems.
 *
 * Every strategy leaves its result in one of three layouts. Neighbours in the same layout exchange
 * little; others pay for resharding, in proportion to the size of the exchange. Fast strategies
 * need memory. A good plan is therefore a few stretches, each in one layout: moving a stretch to
 * another layout step by step costs more before it costs less, which blocks searches that change
 * one decision at a time.
 */
#include "bench/quality/decisions_planted.h"

#include <math.h>

#include "base/random.h"

#define LAYOUTS     3
#define LONG_EDGES  4
#define LEAST_SPAN  3
#define MOST_SPAN   9
#define MOST_ACROSS 2    /* long edges over one place */
#define TIGHTNESS   0.45 /* of the way from the least memory to that of the quickest strategies */

typedef struct Draw {
    Random random;
    int32_t layout[PLANTED_DECISIONS][PLANTED_STRATEGIES];
} Draw;

static void draw_nodes(Decisions *decisions, Draw *draw) {
    for (int32_t i = 0; i < decisions->count; i++) {
        decisions->strategies[i] = PLANTED_STRATEGIES;
        double work = exp(0.4 * random_normal(&draw->random));
        for (int32_t k = 0; k < PLANTED_STRATEGIES; k++) {
            double thrift = random_uniform(&draw->random);
            draw->layout[i][k] = (int32_t)random_below(&draw->random, LAYOUTS);
            decisions->seconds[i][k] = work * (1 + 0.6 * thrift + 0.3 * random_uniform(&draw->random));
            decisions->bytes[i][k] = work * (1.4 - thrift + 0.2 * random_uniform(&draw->random));
        }
    }
}

static void draw_edge(DecisionEdge *edge, Draw *draw, int32_t from, int32_t to) {
    double size = 0.5 + random_uniform(&draw->random);
    *edge = (DecisionEdge){.from = from, .to = to};
    for (int32_t a = 0; a < PLANTED_STRATEGIES; a++)
        for (int32_t b = 0; b < PLANTED_STRATEGIES; b++) {
            bool is_same = draw->layout[from][a] == draw->layout[to][b];
            double latency = 0.1 * random_uniform(&draw->random), rate = 0.5 + random_uniform(&draw->random);
            edge->moved[0][a][b] = is_same ? 0 : size;
            edge->moved[DECISIONS_LOADS / 2][a][b] = !is_same;
            edge->seconds[a][b] = size * latency + 0.75 * rate * edge->moved[0][a][b];
        }
}

AmStatus decisions_planted(Decisions *decisions, Arena *arena, uint64_t seed, AmError *error) {
    Draw draw = {0};
    random_seed(&draw.random, seed);
    *decisions = (Decisions){.count = PLANTED_DECISIONS};
    decisions->edges = ARENA_ARRAY(arena, DecisionEdge, PLANTED_DECISIONS + LONG_EDGES);
    if (!decisions->edges)
        return am_fail_memory(error, (PLANTED_DECISIONS + LONG_EDGES) * (int64_t)sizeof(DecisionEdge));
    draw_nodes(decisions, &draw);
    for (int32_t i = 0; i + 1 < decisions->count; i++)
        draw_edge(&decisions->edges[decisions->edge_count++], &draw, i, i + 1);
    int32_t across[PLANTED_DECISIONS] = {0};
    for (int32_t e = 0; e < LONG_EDGES;) {
        int32_t span = LEAST_SPAN + (int32_t)random_below(&draw.random, MOST_SPAN - LEAST_SPAN + 1);
        int32_t from = (int32_t)random_below(&draw.random, decisions->count - span), most = 0;
        for (int32_t i = from; i < from + span; i++) most = across[i] > most ? across[i] : most;
        if (most == MOST_ACROSS) continue;
        for (int32_t i = from; i < from + span; i++) across[i]++;
        draw_edge(&decisions->edges[decisions->edge_count++], &draw, from, from + span);
        e++;
    }
    decisions_complete(decisions);
    double quickest = 0;
    for (int32_t i = 0; i < decisions->count; i++) {
        int32_t best = 0;
        for (int32_t k = 1; k < decisions->strategies[i]; k++)
            if (decisions->seconds[i][k] < decisions->seconds[i][best]) best = k;
        quickest += decisions->bytes[i][best];
    }
    decisions->memory = decisions->least_after[0] + TIGHTNESS * (quickest - decisions->least_after[0]);
    return AM_OK;
}
