/* The cuts of a plan, and the transfers from part to part.
 *
 * A cut lies between two adjacent ranges of forward operators on different stages. If stages are in
 * chunks, each chunk is a part of its own: chunk c of stage s is part c S + s.
 */
#include <stdlib.h>
#include <string.h>

#include "planners/baselines/layer_path.h"
#include "planners/explain/explain_parts.h"

/* A range of the plan and its part. */
typedef struct PartRange {
    int32_t first, end, stage, part;
} PartRange;

static int compare_ranges(const void *left, const void *right) {
    return ((const PartRange *)left)->first - ((const PartRange *)right)->first;
}

/* Names the place by the first operator there that the user has given a name. */
static void name_place(const Explainer *self, int32_t instruction, const char **op_name,
                       const char **source) {
    int32_t first = layer_first_operator(self->primary, instruction);
    *op_name = *source = "";
    if (first < 0) return;
    *op_name = plan_context_instruction(self->primary, first)->op_name;
    *source = explain_source(self->arena, plan_context_instruction(self->primary, first));
}

static void add_total(TransferTotal *total, const TransferTotal *more) {
    total->count += more->count;
    total->bytes += more->bytes;
    total->seconds += more->seconds;
}

static AmStatus list_cuts(Explainer *self) {
    const Plan *plan = self->plan;
    Explanation *result = self->result;
    bool in_chunks = plan_schedule(plan) == SCHEDULE_INTERLEAVED;
    int32_t count = 0;
    /* Replicas have all operators each, without cuts between them. */
    for (int32_t s = 0; s < plan->stage_count && plan->replicas.count == 0; s++)
        count += plan->stages[s].range_count;
    PartRange *ranges = ARENA_ARRAY(self->arena, PartRange, count + 1);
    result->cuts.of = ARENA_ARRAY(self->arena, ExplainedCut, count + 1);
    if (self->arena->failed) return am_fail_memory(self->error, count);
    if (count == 0) return AM_OK;
    count = 0;
    for (int32_t s = 0; s < plan->stage_count; s++)
        for (int32_t r = 0; r < plan->stages[s].range_count; r++)
            ranges[count++] = (PartRange){plan->stages[s].ranges[r][0], plan->stages[s].ranges[r][1], s,
                                          in_chunks ? r * plan->stage_count + s : s};
    qsort(ranges, (size_t)count, sizeof *ranges, compare_ranges);
    for (int32_t k = 0; k + 1 < count; k++) {
        if (ranges[k].stage == ranges[k + 1].stage) continue;
        ExplainedCut *cut = &result->cuts.of[result->cuts.count++];
        *cut = (ExplainedCut){.part = ranges[k].part,
                              .stages = {ranges[k].stage, ranges[k + 1].stage},
                              .instruction = ranges[k + 1].first,
                              .earlier = {.instruction = -1},
                              .later = {.instruction = -1}};
        cut->weight = layer_first_weight(self->primary, cut->instruction);
        name_place(self, cut->instruction, &cut->op_name, &cut->source);
        /* The transfers between the parts up to `cut->part` and those after it. */
        const Simulation *simulation = self->simulation;
        for (int32_t n = 0; n < simulation->value_count; n++) {
            const SimulatedTransfer *value = &simulation->values[n];
            bool sends = value->sender <= cut->part, receives = value->receiver <= cut->part;
            if (sends && !receives) add_total(&cut->up, &value->total);
            if (!sends && receives) add_total(&cut->down, &value->total);
        }
    }
    return AM_OK;
}

static int compare_transfers(const void *left, const void *right) {
    const ExplainedTransfer *a = left, *b = right;
    if (a->sender != b->sender) return a->sender - b->sender;
    if (a->receiver != b->receiver) return a->receiver - b->receiver;
    if (a->total.bytes != b->total.bytes) return a->total.bytes > b->total.bytes ? -1 : 1;
    return strcmp(a->op_name, b->op_name);
}

const char *explain_sharding(Arena *arena, const Mesh *mesh, SbpState state, int32_t rank) {
    Text text = {0};
    text_append_string(&text, "[");
    for (int32_t d = 0; d < rank; d++) {
        bool is_split = false;
        if (d > 0) text_append_string(&text, ",");
        for (int32_t axis = 0; axis < mesh->axis_count; axis++) {
            if (state.axis[axis] != sbp_split(d) || mesh->axes[axis].size == 1) continue;
            text_append(&text, "%s%s", is_split ? "+" : "", mesh->axes[axis].name);
            is_split = true;
        }
        if (!is_split) text_append_string(&text, "-");
    }
    text_append_string(&text, "]");
    for (int32_t axis = 0; axis < mesh->axis_count; axis++)
        if (sbp_is_partial(state.axis[axis]) && mesh->axes[axis].size > 1)
            text_append(&text, " partial(%s)", mesh->axes[axis].name);
    const char *copy = text.failed ? NULL : arena_copy_string(arena, text.data);
    text_free(&text);
    return copy;
}

/* Writes the sharding of a value on a part. */
static AmStatus write_sharding(const char **sharding, const Explainer *self, int32_t part, int32_t origin) {
    *sharding = "";
    if (origin < 0) return AM_OK;
    const IrShape *shape = &plan_context_instruction(self->context, origin)->shape;
    if (shape->type == DTYPE_TUPLE) return AM_OK;
    *sharding = explain_sharding(self->arena, &self->ranks.parts->stages[part].mesh,
                                 self->ranks.assignments[part]->stored[origin], shape->rank);
    return *sharding ? AM_OK : am_fail_memory(self->error, shape->rank);
}

AmStatus explain_cuts(Explainer *self) {
    TRY(list_cuts(self));
    const Simulation *simulation = self->simulation;
    Explanation *result = self->result;
    result->transfers.of = ARENA_ARRAY(self->arena, ExplainedTransfer, simulation->value_count + 1);
    if (!result->transfers.of) return am_fail_memory(self->error, simulation->value_count);
    for (int32_t k = 0; k < simulation->value_count; k++) {
        const SimulatedTransfer *value = &simulation->values[k];
        const IrInstruction *origin =
            value->origin >= 0 ? plan_context_instruction(self->context, value->origin) : NULL;
        ExplainedTransfer row = {.sender = value->sender,
                                 .receiver = value->receiver,
                                 .op_name = origin ? explain_name(origin) : "",
                                 .source = origin ? explain_source(self->arena, origin) : ""};
        TRY(write_sharding(&row.sent, self, row.sender, value->origin));
        TRY(write_sharding(&row.received, self, row.receiver, value->origin));
        int32_t at = 0;
        while (at < result->transfers.count &&
               !(result->transfers.of[at].sender == row.sender &&
                 result->transfers.of[at].receiver == row.receiver &&
                 explain_is_same_name(result->transfers.of[at].op_name, row.op_name)))
            at++;
        if (at == result->transfers.count) result->transfers.of[result->transfers.count++] = row;
        add_total(&result->transfers.of[at].total, &value->total);
    }
    qsort(result->transfers.of, (size_t)result->transfers.count, sizeof *result->transfers.of,
          compare_transfers);
    return AM_OK;
}

/* ---- moves ---- */

static AmStatus add_move(Explainer *self, const ExplainedCut *cut, ExplainedMove *move, int32_t place) {
    move->instruction = place;
    name_place(self, place, &move->op_name, &move->source);
    /* Ranges of the plan are the only ones that begin or end at the cut. */
    const Plan *given = self->plan;
    Plan *plan = ARENA_ARRAY(self->arena, Plan, 1);
    PlanStage *stages = ARENA_ARRAY(self->arena, PlanStage, given->stage_count);
    if (!plan || !stages) return am_fail_memory(self->error, given->stage_count);
    memcpy(stages, given->stages, sizeof *stages * (size_t)given->stage_count);
    for (int32_t side = 0; side < 2; side++) {
        PlanStage *stage = &stages[cut->stages[side]];
        size_t bytes = sizeof *stage->ranges * (size_t)stage->range_count;
        int32_t(*ranges)[2] = arena_alloc(self->arena, bytes);
        if (!ranges) return am_fail_memory(self->error, (int64_t)bytes);
        memcpy(ranges, stage->ranges, bytes);
        for (int32_t r = 0; r < stage->range_count; r++)
            if (ranges[r][1 - side] == cut->instruction) ranges[r][1 - side] = place;
        stage->ranges = ranges;
    }
    *plan = *given;
    plan->stages = stages;
    return explain_add_change(self, plan, &move->change);
}

AmStatus explain_moves(Explainer *self, const int32_t *places, int32_t count) {
    for (int32_t c = 0; c < self->result->cuts.count; c++) {
        ExplainedCut *cut = &self->result->cuts.of[c];
        int32_t earlier = -1, later = -1, least = 0, most = -1;
        /* A cut may lie between these, so that the parts on both sides keep an operator. */
        for (int32_t side = 0; side < 2; side++) {
            const PlanStage *stage = &self->plan->stages[cut->stages[side]];
            for (int32_t r = 0; r < stage->range_count; r++) {
                if (stage->ranges[r][1 - side] != cut->instruction) continue;
                if (side == 0) least = stage->ranges[r][0] + 1;
                else most = stage->ranges[r][1] - 1;
            }
        }
        for (int32_t k = 0; k < count; k++) {
            if (places[k] < least || places[k] > most) continue;
            if (places[k] < cut->instruction) earlier = places[k];
            if (places[k] > cut->instruction && later < 0) later = places[k];
        }
        if (earlier >= 0) TRY(add_move(self, cut, &cut->earlier, earlier));
        if (later >= 0) TRY(add_move(self, cut, &cut->later, later));
    }
    return AM_OK;
}
