/* An explanation as JSON, with the keys of docs/schemas/automap-explanation-1.json. A change without a figure
 * has null and a reason.
 */
#include <string.h>

#include "lowering/plan_file/plan_parts.h"
#include "planners/explain/explain_plan.h"

/* Writes {"seconds", "peak_bytes", "fits", "reason"}: null for a missing figure, with the reason. */
static json_t *change_to_json(const ExplainedChange *change) {
    if (change->is_known)
        return json_pack("{s:f, s:I, s:b}", "step_seconds", change->seconds, "peak_bytes",
                         (json_int_t)change->peak_bytes, "fits", (int)change->fits);
    const char *reason = change->reason && change->reason[0] ? change->reason : "not simulated";
    return json_pack("{s:n, s:n, s:n, s:o}", "step_seconds", "peak_bytes", "fits", "reason",
                     plan_string_to_json(reason));
}

static json_t *total_to_json(const TransferTotal *total) {
    return json_pack("{s:I, s:f, s:f}", "count", (json_int_t)total->count, "bytes", total->bytes, "seconds",
                     total->seconds);
}

static json_t *stages_to_json(const Explanation *self) {
    json_t *rows = json_array();
    for (int32_t s = 0; s < self->stages.count; s++) {
        const ExplainedStage *row = &self->stages.of[s];
        json_t *memory = json_pack(
            "{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "peak_bytes",
            (json_int_t)row->fullest.use.peak_bytes, "weights_bytes",
            (json_int_t)row->fullest.use.weights_bytes, "gradients_bytes",
            (json_int_t)row->fullest.use.gradients_bytes, "optimizer_bytes",
            (json_int_t)row->fullest.use.optimizer_bytes, "activation_bytes",
            (json_int_t)row->fullest.use.activation_bytes, "in_flight_bytes",
            (json_int_t)row->fullest.use.in_flight_bytes, "collective_bytes",
            (json_int_t)row->fullest.use.collective_bytes, "channel_bytes",
            (json_int_t)row->fullest.channel_bytes, "kept_bytes", (json_int_t)row->fullest.kept_bytes,
            "needed_bytes", (json_int_t)row->fullest.needed_bytes, "limit_bytes",
            (json_int_t)row->fullest.limit_bytes, "memory_bytes", (json_int_t)row->fullest.memory_bytes);
        if (memory && row->fullest.use.host_bytes > 0)
            json_object_set_new(memory, "host_bytes", json_integer((json_int_t)row->fullest.use.host_bytes));
        json_array_append_new(
            rows,
            json_pack(
                "{s:i, s:i, s:i, s:s, s:s, s:i, s:o, s:o, s:o, s:f, s:f, s:I, s:f, s:f, s:f, s:f, s:i, s:o}",
                "stage", s, "first_rank", row->first_rank, "devices", row->device_count, "device_names",
                row->devices, "mesh", row->mesh, "zero", row->zero_level, "weights",
                plan_string_to_json(row->weights), "first_op", plan_string_to_json(row->first_op), "last_op",
                plan_string_to_json(row->last_op), "flops_share", row->flops_share, "weight_share",
                row->weight_share, "weight_bytes", (json_int_t)row->weight_bytes, "compute_seconds",
                row->seconds.compute, "communication_seconds", row->seconds.communication, "hidden_seconds",
                row->seconds.hidden, "idle_seconds", row->seconds.idle, "fullest_rank", row->fullest.rank,
                "memory", memory));
    }
    return rows;
}

static json_t *move_to_json(const ExplainedMove *move) {
    if (move->instruction < 0) return json_null();
    json_t *row = change_to_json(&move->change);
    json_object_set_new(row, "instruction", json_integer(move->instruction));
    json_object_set_new(row, "op_name", plan_string_to_json(move->op_name));
    json_object_set_new(row, "source", plan_string_to_json(move->source));
    return row;
}

static json_t *cuts_to_json(const Explanation *self) {
    json_t *rows = json_array();
    for (int32_t k = 0; k < self->cuts.count; k++) {
        const ExplainedCut *row = &self->cuts.of[k];
        json_array_append_new(
            rows, json_pack("{s:i, s:[i, i], s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "part", row->part,
                            "stages", row->stages[0], row->stages[1], "instruction", row->instruction,
                            "weight", plan_string_to_json(row->weight), "op_name",
                            plan_string_to_json(row->op_name), "source", plan_string_to_json(row->source),
                            "up", total_to_json(&row->up), "down", total_to_json(&row->down), "earlier",
                            move_to_json(&row->earlier), "later", move_to_json(&row->later)));
    }
    return rows;
}

static json_t *loops_to_json(const Explanation *self) {
    json_t *rows = json_array();
    for (int32_t k = 0; k < self->loops.count; k++) {
        const ExplainedLoop *row = &self->loops.of[k];
        json_t *trips = row->trips < 0 ? json_null() : json_integer(row->trips);
        json_array_append_new(rows, json_pack("{s:i, s:o, s:o, s:o, s:o}", "instruction", row->instruction,
                                              "trips", trips, "reason", plan_string_to_json(row->reason),
                                              "op_name", plan_string_to_json(row->op_name), "source",
                                              plan_string_to_json(row->source)));
    }
    return rows;
}

static json_t *transfers_to_json(const Explanation *self) {
    json_t *rows = json_array();
    for (int32_t k = 0; k < self->transfers.count; k++) {
        const ExplainedTransfer *row = &self->transfers.of[k];
        json_t *object = total_to_json(&row->total);
        json_object_set_new(object, "from", json_integer(row->sender));
        json_object_set_new(object, "to", json_integer(row->receiver));
        json_object_set_new(object, "op_name", plan_string_to_json(row->op_name));
        json_object_set_new(object, "source", plan_string_to_json(row->source));
        json_object_set_new(object, "sharding_from", json_string(row->sent));
        json_object_set_new(object, "sharding_to", json_string(row->received));
        json_array_append_new(rows, object);
    }
    return rows;
}

static json_t *alternatives_to_json(const Explanation *self) {
    json_t *rows = json_array();
    for (int32_t k = 0; k < self->alternatives.count; k++) {
        json_t *row = change_to_json(&self->alternatives.of[k].change);
        json_object_set_new(row, "what", json_string(self->alternatives.of[k].what));
        json_object_set_new(row, "value", json_string(self->alternatives.of[k].value));
        json_array_append_new(rows, row);
    }
    return rows;
}

static json_t *decisions_to_json(const Explanation *self, const Classes *classes) {
    json_t *rows = json_array();
    for (int32_t k = 0; k < self->decisions.count; k++) {
        const ExplainedDecision *row = &self->decisions.of[k];
        json_t *object =
            json_pack("{s:i, s:s, s:o, s:s, s:i, s:o, s:i, s:o, s:o, s:n, s:n}", "stage", row->stage, "axis",
                      row->axis, "class", plan_entry_class_to_json(row->entry, classes), "kind",
                      plan_entry_kind_name(row->entry->kind), "classes", row->class_count, "path",
                      plan_string_to_json(row->path), "dimension", row->dimension, "op_name",
                      plan_string_to_json(row->op_name), "source", plan_string_to_json(row->source),
                      "seconds_without", "peak_bytes_without");
        if (row->without.is_known) {
            json_object_set_new(object, "seconds_without", json_real(row->without.seconds));
            json_object_set_new(object, "peak_bytes_without",
                                json_integer((json_int_t)row->without.peak_bytes));
        } else if (row->without.reason[0]) {
            json_object_set_new(object, "reason", plan_string_to_json(row->without.reason));
        }
        json_array_append_new(rows, object);
    }
    return rows;
}

static json_t *overrides_to_json(const Explanation *self) {
    json_t *rows = json_array();
    for (int32_t k = 0; k < self->overrides.count; k++) {
        const ExplainedOverride *row = &self->overrides.of[k];
        json_t *instructions = json_array();
        for (int32_t i = 0; i < row->count; i++)
            json_array_append_new(instructions, json_integer(row->instructions[i]));
        json_array_append_new(
            rows, json_pack("{s:i, s:o, s:s, s:s, s:s, s:o, s:o, s:o}", "stage", row->stage, "instructions",
                            instructions, "how", row->how, "instead", row->instead, "shape", row->shape,
                            "op_name", plan_string_to_json(row->op_name), "source",
                            plan_string_to_json(row->source), "without", change_to_json(&row->without)));
    }
    return rows;
}

static json_t *collectives_to_json(const Explanation *self) {
    json_t *rows = json_array();
    for (int32_t k = 0; k < self->collectives.count; k++) {
        const ExplainedCollective *row = &self->collectives.of[k];
        json_array_append_new(
            rows, json_pack("{s:i, s:s, s:s, s:s, s:s, s:I, s:I, s:f, s:f, s:o, s:o}", "stage", row->stage,
                            "kind", row->kind, "axes", row->axes, "sharding_from", row->before, "sharding_to",
                            row->after, "count", row->count, "tensors", row->tensors, "bytes", row->bytes,
                            "seconds", row->seconds, "op_name", plan_string_to_json(row->op_name), "source",
                            plan_string_to_json(row->source)));
    }
    return rows;
}

json_t *explanation_to_json(const Explanation *self, const Classes *classes) {
    json_t *without = self->overrides.count > 0 ? change_to_json(&self->overrides.without) : json_null();
    return json_pack(
        "{s:s, s:f, s:I, s:f, s:i, s:i, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:i, s:i, s:o*}",
        "format", "automap-explanation-1", "step_seconds", self->plan.step_seconds, "peak_bytes",
        (json_int_t)self->plan.peak_bytes, "bubble_fraction", self->plan.bubble_fraction, "devices",
        self->plan.device_count, "micro_batches", self->plan.micro_batches, "schedule", self->plan.schedule,
        "stages", stages_to_json(self), "cuts", cuts_to_json(self), "loops", loops_to_json(self), "transfers",
        transfers_to_json(self), "alternatives", alternatives_to_json(self), "decisions",
        decisions_to_json(self, classes), "overrides", overrides_to_json(self), "without_overrides", without,
        "collectives", collectives_to_json(self), "simulated", self->changes.simulated, "left_out",
        self->changes.left_out, "replicas", plan_replicas_to_json(&self->plan.replicas));
}
