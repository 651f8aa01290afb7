/* Levels of recomputation: for a range of prices lambda of memory, the minimum cut of
 *
 *     sum of seconds(v) over recomputed v + lambda * sum of bytes(v) over saved v
 *
 * over the operators of a segment. The solutions nearest to 3/4, 1/2 and 1/4 of the bytes are kept.
 */
#include "planners/layers/recompute_levels.h"

#include <math.h>
#include <string.h>

#include "base/min_cut.h"
#include "cost/operator/operator.h"
#include "ir/analysis/flops.h"
#include "lowering/micro_batch/recompute.h"
#include "propagation/stages/stages.h"

/* Capacities are multiples of a femtosecond: a step of a second has 1e15. */
#define UNITS_PER_SECOND 1e15
#define MOST_UNITS       1e15

static int64_t capacity_of(double seconds) {
    double units = ceil(seconds * UNITS_PER_SECOND);
    return (int64_t)fmin(units, MOST_UNITS);
}

/* Returns the seconds of recomputing a forward operator for the whole batch; 0: it costs nothing. */
static double seconds_of(const PlanContext *context, int32_t i, const ClusterDeviceType *type,
                         Arena *scratch) {
    const IrModule *module = context->canonical;
    const IrInstruction *instruction = &module->instructions[i];
    const SplitOptions *split_options = context->split_options;
    double bytes = split_options->bytes[i];
    if (stages_is_transparent(context, i)) return 0;
    /* The operator joins the fusion of its user, so that its operands are read there anyway. */
    if (ir_is_elementwise(instruction->opcode) || ir_opcode_has(instruction->opcode, FACT_MOVES))
        return bytes / type->memory_bytes_per_second;
    for (int32_t k = split_options->first_operand[i]; k < split_options->first_operand[i + 1]; k++)
        bytes += split_options->bytes[split_options->operands[k]];
    const OperatorWork work = {
        .flops = ir_instruction_flops(module, i, scratch),
        .bytes = bytes,
        .unit = operator_unit(instruction->opcode),
        .type = split_options_array_shape(
                    &module->instructions[instruction->operand_count > 0 ? instruction->operands[0] : i])
                    ->type,
        .is_run = true};
    return operator_seconds(&work, type);
}

/* Fills the arrays of the operators. */
static AmStatus read_operators(RecomputeLevels *levels, Arena *arena, const PlanContext *context,
                               const ClusterDeviceType *type, AmError *error) {
    const IrInstruction *instructions = context->canonical->instructions;
    int32_t entry = context->rules->entry_count;
    Arena scratch = {0};
    levels->is_needed = ARENA_ARRAY(arena, bool, entry + 1);
    levels->seconds = ARENA_ARRAY(arena, double, entry + 1);
    levels->bytes = ARENA_ARRAY(arena, double, entry + 1);
    levels->last_use = ARENA_ARRAY(arena, int32_t, entry + 1);
    if (arena->failed) return am_fail_memory(error, entry);
    /* Sets the last forward reader of each value; views count as their readers. */
    for (int32_t i = 0; i < entry; i++) levels->last_use[i] = -1;
    for (int32_t i = entry - 1; i >= 0; i--) {
        if (!plan_context_in_forward(context, i)) continue;
        int32_t use = stages_is_transparent(context, i) ? levels->last_use[i] : i;
        for (int32_t k = 0; k < instructions[i].operand_count; k++)
            if (levels->last_use[instructions[i].operands[k]] < use)
                levels->last_use[instructions[i].operands[k]] = use;
    }
    for (int32_t i = 0; i < entry; i++) {
        IrPhase phase = context->roles->phases[i];
        bool is_backward =
            context->split_options->live[i] && (phase == IR_PHASE_BACKWARD || phase == IR_PHASE_RECOMPUTED);
        for (int32_t k = 0; is_backward && k < instructions[i].operand_count; k++)
            levels->is_needed[instructions[i].operands[k]] = true;
        levels->bytes[i] = context->split_options->bytes[i];
        if (recompute_covers(context, i)) levels->seconds[i] = seconds_of(context, i, type, &scratch);
        arena_free(&scratch);
        scratch = (Arena){0};
    }
    for (int32_t i = 0; i < entry; i++) levels->is_needed[i] &= recompute_covers(context, i);
    return AM_OK;
}

/* Returns whether a solution of a segment up to `end` decides about the operator's value. */
static bool is_free(const RecomputeLevels *levels, const PlanContext *context, int32_t i, int32_t end) {
    return recompute_covers(context, i) && levels->last_use[i] < end;
}

AmStatus recompute_solve(uint8_t *choices, const RecomputeLevels *levels, const PlanContext *context,
                         int32_t first, int32_t end, double seconds_per_byte, AmError *error) {
    const IrInstruction *instructions = context->canonical->instructions;
    int32_t count = end - first, source = 2 * count, sink = 2 * count + 1;
    Arena arena = {0};
    MinCut cut;
    min_cut_open(&cut, &arena, 2 * count + 2);
    for (int32_t i = first; i < end; i++) {
        int32_t needed = 2 * (i - first), again = needed + 1;
        if (!is_free(levels, context, i, end)) continue;
        if (levels->is_needed[i]) min_cut_add(&cut, source, needed, MIN_CUT_UNLIMITED);
        min_cut_add(&cut, needed, again, capacity_of(seconds_per_byte * levels->bytes[i]));
        min_cut_add(&cut, again, sink, capacity_of(levels->seconds[i]));
        for (int32_t k = 0; k < instructions[i].operand_count; k++) {
            int32_t operand = instructions[i].operands[k];
            if (operand >= first && operand < end && is_free(levels, context, operand, end))
                min_cut_add(&cut, again, 2 * (operand - first), MIN_CUT_UNLIMITED);
        }
    }
    min_cut_find(&cut, source, sink);
    bool failed = arena.failed;
    for (int32_t i = first; i < end && !failed; i++) {
        bool is_needed = min_cut_is_source_side(&cut, 2 * (i - first));
        bool is_again = min_cut_is_source_side(&cut, 2 * (i - first) + 1);
        choices[i] = (uint8_t)(is_again ? RECOMPUTE_AGAIN : is_needed ? RECOMPUTE_SAVED : RECOMPUTE_UNUSED);
    }
    arena_free(&arena);
    return failed ? am_fail_memory(error, (int64_t)count * 64) : AM_OK;
}

enum { PRICES = 14 };

/* Chooses, for each of the shares 3/4, 1/2 and 1/4 of the bytes without recomputation, the solution whose
 * bytes are nearest to it, each solution once. */
static void choose_levels(RecomputeLevels *levels, uint8_t *solutions[PRICES], int32_t entry) {
    double all = 0, bytes[PRICES] = {0};
    int32_t last = -1;
    for (int32_t i = 0; i < entry; i++)
        if (levels->is_needed[i] && !(levels->seconds[i] == 0)) all += levels->bytes[i];
    for (int32_t p = 0; p < PRICES; p++)
        for (int32_t i = 0; i < entry; i++)
            if (solutions[p][i] == RECOMPUTE_SAVED) bytes[p] += levels->bytes[i];
    for (int32_t k = 0; k < RECOMPUTE_MOST_LEVELS; k++) {
        double wanted = all * (RECOMPUTE_MOST_LEVELS - k) / (RECOMPUTE_MOST_LEVELS + 1);
        int32_t best = -1;
        for (int32_t p = last + 1; p < PRICES; p++)
            if (best < 0 || fabs(bytes[p] - wanted) < fabs(bytes[best] - wanted)) best = p;
        if (best < 0) return;
        bool is_new = bytes[best] > 0.02 * all && bytes[best] < 0.98 * all;
        if (is_new && last >= 0) is_new = bytes[best] < 0.95 * bytes[last];
        if (!is_new) continue;
        levels->choices[levels->count++] = solutions[best];
        last = best;
    }
}

AmStatus recompute_levels_find(RecomputeLevels *levels, Arena *arena, const PlanContext *context,
                               const ClusterDeviceType *type, const int32_t *cuts, int32_t count,
                               AmError *error) {
    int32_t entry = context->rules->entry_count;
    uint8_t *solutions[PRICES];
    *levels = (RecomputeLevels){0};
    TRY(read_operators(levels, arena, context, type, error));
    double price = 0.5 / type->memory_bytes_per_second;
    for (int32_t p = 0; p < PRICES; p++, price *= 2) {
        solutions[p] = ARENA_ARRAY(arena, uint8_t, entry + 1);
        if (!solutions[p]) return am_fail_memory(error, entry);
        for (int32_t s = 0; s < count; s++)
            TRY(recompute_solve(solutions[p], levels, context, cuts[s], cuts[s + 1], price, error));
    }
    choose_levels(levels, solutions, entry);
    return AM_OK;
}

int32_t recompute_levels_list(int32_t *saved, const RecomputeLevels *levels, int32_t level,
                              int32_t (*ranges)[2], int32_t range_count) {
    int32_t count = 0;
    for (int32_t r = 0; r < range_count && level >= 0; r++)
        for (int32_t i = ranges[r][0]; i < ranges[r][1]; i++) {
            if (levels->choices[level][i] != RECOMPUTE_SAVED) continue;
            if (saved) saved[count] = i;
            count++;
        }
    return count;
}
