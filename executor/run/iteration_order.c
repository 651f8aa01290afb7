/* A fixed order of a rank's iterations, for stages in several processes: one actor after the other fires in
 * a simulated step. Time: iterations x (actors + edges). */
#include "executor/run/iteration_order.h"

#include <string.h>

/* An edge during the simulated step. */
typedef struct Registers {
    int32_t full, free;
    int32_t gather; /* registers that one iteration of the consumer takes */
    int32_t spread; /* iterations of the consumer that one register feeds */
    int32_t fed;    /* iterations that the first full register has fed */
} Registers;

typedef struct SimulatedStep {
    const IterationActor *actors;
    const IterationEdge *edges;
    int32_t actor_count, edge_count;
    Registers *registers; /* [edge_count] */
    int32_t *left;        /* [actor_count]: iterations */
} SimulatedStep;

/* Returns whether an actor can fire; `with_room`: it also needs free output registers. */
static bool can_fire(const SimulatedStep *step, int32_t a, bool with_room) {
    if (step->left[a] == 0) return false;
    for (int32_t e = 0; e < step->edge_count; e++) {
        const Registers *registers = &step->registers[e];
        if (step->edges[e].consumer == a && registers->full < registers->gather) return false;
        if (with_room && step->edges[e].producer == a && registers->free < 1) return false;
    }
    return true;
}

/* Returns the best actor that can fire; -1: none. */
static int32_t choose(const SimulatedStep *step, bool with_room) {
    int32_t best = -1;
    for (int32_t a = 0; a < step->actor_count; a++)
        if (can_fire(step, a, with_room) &&
            (best < 0 || step->actors[a].priority > step->actors[best].priority))
            best = a;
    return best;
}

/* Moves registers as one iteration of the actor does. */
static void fire(SimulatedStep *step, int32_t a) {
    step->left[a]--;
    for (int32_t e = 0; e < step->edge_count; e++) {
        Registers *registers = &step->registers[e];
        if (step->edges[e].producer == a) {
            registers->free--;
            registers->full++;
        }
        if (step->edges[e].consumer != a || ++registers->fed < registers->spread) continue;
        registers->fed = 0;
        registers->full -= registers->gather;
        registers->free += registers->gather;
    }
}

AmStatus iteration_order_find(IterationOrder *order, Arena *arena, const IterationActor *actors,
                              int32_t actor_count, const IterationEdge *edges, int32_t edge_count,
                              AmError *error) {
    SimulatedStep step = {.actors = actors,
                          .edges = edges,
                          .actor_count = actor_count,
                          .edge_count = edge_count,
                          .registers = ARENA_ARRAY(arena, Registers, edge_count + 1),
                          .left = ARENA_ARRAY(arena, int32_t, actor_count + 1)};
    int64_t count = 0;
    for (int32_t a = 0; a < actor_count; a++) count += actors[a].iterations;
    *order = (IterationOrder){.actors = ARENA_ARRAY(arena, int32_t, count + 1)};
    if (arena->failed) return am_fail_memory(error, count * (int64_t)sizeof(int32_t));
    for (int32_t a = 0; a < actor_count; a++) step.left[a] = actors[a].iterations;
    for (int32_t e = 0; e < edge_count; e++) {
        int32_t from = actors[edges[e].producer].iterations, to = actors[edges[e].consumer].iterations;
        step.registers[e] = (Registers){.full = edges[e].initial,
                                        .free = edges[e].quota - edges[e].initial,
                                        .gather = from > to ? from / to : 1,
                                        .spread = to > from ? to / from : 1};
    }
    while (order->count < count) {
        int32_t a = choose(&step, true);
        if (a < 0) a = choose(&step, false);
        if (a < 0) return am_fail(error, AM_ERROR_USAGE, "", "the iterations of a step wait for one another");
        fire(&step, a);
        order->actors[order->count++] = a;
    }
    return AM_OK;
}
