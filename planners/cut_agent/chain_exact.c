/* The shortest pipeline over a chain by dynamic programming over (stages left, first unit, first place):
 *
 *     length(left, unit, place) = min over ends of (stage up to the end joined with length(left - 1, end))
 *
 * A cell keeps the end of its first stage, by which follow() reads the plan from the table.
 */
#include "planners/cut_agent/chain_exact.h"

#include <math.h>

/* The best remainder from a place on, with the time of its first stage. */
typedef struct Cell {
    double length;
    int32_t place, unit; /* where its first stage ends */
} Cell;

typedef struct ChainTable {
    const ChainProblem *problem;
    int32_t places, units;
    Cell *cells; /* [stages left][unit][place] */
    /* For a graph: successors[starts[i], starts[i + 1]) follow place i; NULL: all after it. */
    int32_t *successors;
    int64_t *starts;
    int64_t priced;
} ChainTable;

static Cell *cell(const ChainTable *table, int32_t left, int32_t unit, int32_t place) {
    return &table->cells[((int64_t)left * (table->units + 1) + unit) * table->places + place];
}

static AmStatus list_successors(ChainTable *table, Arena *arena, AmError *error) {
    const Chain *chain = table->problem->chain;
    if (!chain->sets) return AM_OK;
    int64_t most = (int64_t)table->places * (table->places - 1) / 2, count = 0;
    table->starts = ARENA_ARRAY(arena, int64_t, table->places + 1);
    table->successors = ARENA_ARRAY(arena, int32_t, most);
    if (!table->starts || !table->successors) return am_fail_memory(error, most * (int64_t)sizeof(int32_t));
    for (int32_t i = 0; i < table->places; i++) {
        table->starts[i] = count;
        for (int32_t j = i + 1; j < table->places; j++)
            if (chain_follows(chain, i, j)) table->successors[count++] = j;
    }
    table->starts[table->places] = count;
    return AM_OK;
}

/* Fills the last stage, which has all layers and units that are left. */
static void fill_last(ChainTable *table, int32_t unit) {
    const ChainProblem *problem = table->problem;
    int32_t end = table->places - 1;
    for (int32_t first = 0; first < end; first++) {
        Cell *here = cell(table, 1, unit, first);
        *here = (Cell){.length = INFINITY, .place = end, .unit = table->units};
        if (!chain_fits(problem, first, end, unit, table->units, 1)) continue;
        ChainStage stage = chain_stage(problem, first, end, unit, table->units);
        here->length = chain_length_with(problem, &stage, 0);
        table->priced++;
    }
    cell(table, 1, unit, end)->length = INFINITY;
}

/* Stages from `first` on units unit .. unit_end, with `left` - 1 stages after them. */
static void try_ends(ChainTable *table, int32_t left, int32_t unit, int32_t unit_end, int32_t first) {
    const ChainProblem *problem = table->problem;
    const Chain *chain = problem->chain;
    Cell *here = cell(table, left, unit, first);
    const Cell *after = cell(table, left - 1, unit_end, 0);
    int64_t begin = table->starts ? table->starts[first] : first + 1;
    int64_t end = table->starts ? table->starts[first + 1] : table->places;
    double done = chain->forward[first] + chain->backward[first];
    double rate = problem->groups[unit][unit_end].rate / problem->micro_batches;
    for (int64_t k = begin; k < end; k++) {
        int32_t place = table->successors ? table->successors[k] : (int32_t)k;
        if (chain->forward[place] + chain->backward[place] - done >= here->length * rate) break;
        if (after[place].length >= here->length) continue;
        if (!chain_fits(problem, first, place, unit, unit_end, left)) continue;
        ChainStage stage = chain_stage(problem, first, place, unit, unit_end);
        double length = chain_length_with(problem, &stage, after[place].length);
        table->priced++;
        if (length < here->length) *here = (Cell){.length = length, .place = place, .unit = unit_end};
    }
}

AmStatus chain_exact(ChainExact *result, const ChainProblem *problem, bool any_stages, AmError *error) {
    Arena arena = {0};
    AmStatus status = AM_OK;
    ChainTable table = {
        .problem = problem, .places = problem->chain->count + 1, .units = problem->unit_count};
    int64_t cells = (int64_t)(problem->stages + 1) * (table.units + 1) * table.places;
    *result = (ChainExact){.length = INFINITY};
    table.cells = ARENA_ARRAY(&arena, Cell, cells);
    if (!table.cells) {
        status = am_fail_memory(error, cells * (int64_t)sizeof(Cell));
        goto fail;
    }
    TRY_OR_FAIL(list_successors(&table, &arena, error));
    for (int32_t left = 1; left <= problem->stages; left++) {
        bool is_start = left == problem->stages || any_stages;
        int32_t first = any_stages ? 0 : problem->stages - left;
        for (int32_t unit = first; unit + left <= table.units; unit++) {
            if (left == 1) fill_last(&table, unit);
            else {
                for (int32_t k = 0; k < table.places; k++) {
                    *cell(&table, left, unit, k) = (Cell){.length = INFINITY};
                    for (int32_t unit_end = unit + 1; unit_end + left - 1 <= table.units; unit_end++)
                        try_ends(&table, left, unit, unit_end, k);
                }
            }
        }
        double length = is_start ? cell(&table, left, 0, 0)->length : INFINITY;
        if (!(length < result->length)) continue;
        result->length = length;
        result->plan = (ChainPlan){.stages = left};
        for (int32_t s = 0; s < left; s++) {
            const Cell *here = cell(&table, left - s, result->plan.units[s], result->plan.places[s]);
            result->plan.places[s + 1] = here->place;
            result->plan.units[s + 1] = here->unit;
        }
    }
    result->stages = table.priced;
fail:
    arena_free(&arena);
    return status;
}
