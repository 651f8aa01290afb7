/* An explanation as text. */
#include <math.h>
#include <string.h>

#include "planners/explain.h"

/* Changes below this share are not listed. */
#define LEAST_CHANGE 0.0005

/* Of transfers that many rows, of each pair of parts this many. */
enum { MOST_TRANSFERS = 24, MOST_OF_PAIR = 4 };

static void append_rows(Text *text, Text *rows) {
    if (rows->data) text_append_table(text, rows->data);
    text_free(rows);
}

/* step, slower by, peak; or why there are none. */
static void append_change(Text *rows, const Explanation *self, const ExplainedChange *change) {
    if (!change->is_known) {
        text_append(rows, "%s\t\t", change->reason[0] ? "no such plan" : "not simulated");
        return;
    }
    text_append_seconds(rows, change->seconds);
    text_append(rows, "\t%+.1f %%\t", 100 * (change->seconds / self->step_seconds - 1));
    text_append_bytes_size(rows, (double)change->peak_bytes);
    if (!change->fits) text_append_string(rows, ", DOES NOT FIT");
}

static void print_summary(Text *text, const Explanation *self) {
    text_append_string(text, "step ");
    text_append_seconds(text, self->step_seconds);
    text_append_string(text, ", peak ");
    text_append_bytes_size(text, (double)self->peak_bytes);
    if (self->stage_count > 1) text_append(text, ", %d stages, %s", self->stage_count, self->schedule);
    if (self->micro_batches > 1) text_append(text, ", %d micro-batches", self->micro_batches);
    text_append(text, ", devices idle %.1f %%\n\n", 100 * self->bubble_fraction);
}

static void print_stages(Text *text, const Explanation *self) {
    Text rows = {0};
    text_append_string(&rows,
                       "stage\tdevices\tmesh\tZeRO\tFLOPs\tweights\tcompute\tcommunication\thidden\tidle\n");
    for (int32_t s = 0; s < self->stage_count; s++) {
        const ExplainedStage *row = &self->stages[s];
        text_append(&rows, "%d\t%s\t%s\t%d\t%.1f %%\t%.1f %%", s, row->devices, row->mesh, row->zero_level,
                    100 * row->flops_share, 100 * row->weight_share);
        const double seconds[] = {row->compute_seconds, row->communication_seconds, row->hidden_seconds,
                                  row->idle_seconds};
        for (size_t k = 0; k < sizeof seconds / sizeof *seconds; k++) {
            text_append_string(&rows, "\t");
            text_append_seconds(&rows, seconds[k]);
        }
        text_append_string(&rows, "\n");
    }
    append_rows(text, &rows);
    text_append_string(text, "\n");
}

static void print_memory(Text *text, const Explanation *self) {
    Text rows = {0};
    text_append_string(&rows,
                       "stage\tpeak\tof\tweights\tgradients\toptimizer\tactivations\tkept for backward\t"
                       "slots of transfers\n");
    for (int32_t s = 0; s < self->stage_count; s++) {
        const ExplainedStage *row = &self->stages[s];
        const int64_t bytes[] = {row->memory.peak_bytes + row->channel_bytes,
                                 row->memory_bytes,
                                 row->memory.weights_bytes,
                                 row->memory.gradients_bytes,
                                 row->memory.optimizer_bytes,
                                 row->memory.activation_bytes,
                                 row->memory.in_flight_bytes,
                                 row->channel_bytes};
        text_append(&rows, "%d", s);
        for (size_t k = 0; k < sizeof bytes / sizeof *bytes; k++) {
            text_append_string(&rows, "\t");
            text_append_bytes_size(&rows, (double)bytes[k]);
        }
        text_append_string(&rows, "\n");
    }
    append_rows(text, &rows);
    text_append_string(text, "\n");
}

static void print_contents(Text *text, const Explanation *self) {
    for (int32_t s = 0; s < self->stage_count; s++) {
        const ExplainedStage *row = &self->stages[s];
        text_append(text, "stage %d has %s\n", s, row->weights[0] ? row->weights : "no weights");
        if (row->first_op[0]) text_append(text, "  from %s\n  to   %s\n", row->first_op, row->last_op);
    }
    text_append_string(text, "\n");
}

static void append_total(Text *rows, const TransferTotal *total) {
    if (total->count == 0) {
        text_append_string(rows, "nothing");
        return;
    }
    text_append_bytes_size(rows, total->bytes);
    text_append_string(rows, " in ");
    text_append_seconds(rows, total->seconds);
}

static void append_move(Text *rows, const Explanation *self, const ExplainedMove *move) {
    if (move->instruction < 0) text_append_string(rows, "no room");
    else if (!move->change.is_known)
        text_append_string(rows, move->change.reason[0] ? "no such plan" : "not simulated");
    else
        text_append(rows, "%+.1f %%%s", 100 * (move->change.seconds / self->step_seconds - 1),
                    move->change.fits ? "" : ", DOES NOT FIT");
}

static void print_cuts(Text *text, const Explanation *self) {
    Text rows = {0};
    if (self->cut_count == 0) return;
    text_append_string(&rows, "cut\tforward\tbackward\ta unit earlier\ta unit later\tbefore\tsource\n");
    for (int32_t k = 0; k < self->cut_count; k++) {
        const ExplainedCut *cut = &self->cuts[k];
        text_append(&rows, "stages %d|%d\t", cut->stages[0], cut->stages[1]);
        append_total(&rows, &cut->up);
        text_append_string(&rows, "\t");
        append_total(&rows, &cut->down);
        text_append_string(&rows, "\t");
        append_move(&rows, self, &cut->earlier);
        text_append_string(&rows, "\t");
        append_move(&rows, self, &cut->later);
        text_append(&rows, "\t%s\t%s\n", cut->op_name, cut->source);
    }
    append_rows(text, &rows);
    text_append_string(text, "\n");
}

static void print_transfers(Text *text, const Explanation *self) {
    Text rows = {0};
    int32_t shown = 0, of_pair = 0;
    if (self->transfer_count == 0) return;
    text_append_string(&rows, "transfer\tnumber\tbytes\ttime\toperator\tsource\n");
    for (int32_t k = 0; k < self->transfer_count && shown < MOST_TRANSFERS; k++) {
        const ExplainedTransfer *row = &self->transfers[k];
        bool is_pair = k > 0 && row[-1].giver == row->giver && row[-1].taker == row->taker;
        of_pair = is_pair ? of_pair + 1 : 0;
        if (of_pair >= MOST_OF_PAIR) continue;
        shown++;
        text_append(&rows, "%d to %d\t%lld\t", row->giver, row->taker, (long long)row->total.count);
        text_append_bytes_size(&rows, row->total.bytes);
        text_append_string(&rows, "\t");
        text_append_seconds(&rows, row->total.seconds);
        text_append(&rows, "\t%s\t%s\n", row->op_name, row->source);
    }
    append_rows(text, &rows);
    if (shown < self->transfer_count) text_append(text, "and %d rows more\n", self->transfer_count - shown);
    text_append_string(text, "\n");
}

static void print_alternatives(Text *text, const Explanation *self) {
    Text rows = {0}, reasons = {0};
    if (self->alternative_count == 0) return;
    text_append_string(&rows, "instead\tstep\tslower by\tpeak\n");
    for (int32_t k = 0; k < self->alternative_count; k++) {
        const ExplainedAlternative *row = &self->alternatives[k];
        text_append(&rows, "%s %s\t", row->what, row->value);
        append_change(&rows, self, &row->change);
        text_append_string(&rows, "\n");
        if (row->change.reason[0])
            text_append(&reasons, "%s %s: %s\n", row->what, row->value, row->change.reason);
    }
    append_rows(text, &rows);
    if (reasons.data) text_append_string(text, reasons.data);
    text_free(&reasons);
    text_append_string(text, "\n");
}

/* Whether a decision moves the step time or the peak by as much as the table shows. */
static bool is_felt(const Explanation *self, const ExplainedChange *without) {
    double seconds = fabs(without->seconds / self->step_seconds - 1);
    double bytes = fabs((double)without->peak_bytes / (double)self->peak_bytes - 1);
    return seconds >= LEAST_CHANGE || bytes >= LEAST_CHANGE;
}

static void append_decision(Text *rows, const Explanation *self, const ExplainedDecision *row) {
    bool is_storage = row->entry->kind != PLAN_COMPUTE;
    if (self->stage_count > 1) text_append(rows, "%d\t", row->stage);
    text_append(rows, "%s\t", row->axis);
    if (is_storage) text_append(rows, "keep %s in shards", plan_entry_kind_name(row->entry->kind));
    else text_append_string(rows, "split");
    if (row->path[0])
        text_append(rows, "%s dimension %d of %s", is_storage ? "," : "", row->dimension, row->path);
    text_append(rows, "\t%d\t", row->class_count);
    append_change(rows, self, &row->without);
    text_append(rows, "\t%s\n", row->source);
}

static void print_decisions(Text *text, const Explanation *self) {
    Text rows = {0};
    int32_t shown = 0, unfelt = 0, unknown = 0;
    if (self->stage_count > 1) text_append_string(&rows, "stage\t");
    text_append_string(&rows, "axis\tdecision\tlayers\tstep without\tslower by\tpeak without\tsource\n");
    for (int32_t k = 0; k < self->decision_count; k++) {
        const ExplainedDecision *row = &self->decisions[k];
        if (!row->without.is_known && !row->without.reason[0]) unknown++;
        else if (row->without.is_known && !is_felt(self, &row->without)) unfelt++;
        else {
            shown++;
            append_decision(&rows, self, row);
        }
    }
    if (shown > 0) append_rows(text, &rows);
    else text_free(&rows);
    if (unfelt > 0)
        text_append(text, "%s%d decision%s that change%s time and peak by less than %g %%\n",
                    shown ? "and " : "", unfelt, unfelt == 1 ? "" : "s", unfelt == 1 ? "s" : "",
                    100 * LEAST_CHANGE);
    if (unknown > 0)
        text_append(text,
                    "%d decisions, of the less busy stages, were not taken out; --evaluations %d does all\n",
                    unknown, self->simulated + self->left_out);
}

static void print_collectives(Text *text, const Explanation *self) {
    Text rows = {0};
    if (self->stage_count > 1) text_append_string(&rows, "stage\t");
    text_append_string(&rows, "collective\taxes\tnumber\ttensors\tbytes\ttime\toperator\tsource\n");
    for (int32_t k = 0; k < self->collective_count; k++) {
        const ExplainedCollective *row = &self->collectives[k];
        if (self->stage_count > 1) text_append(&rows, "%d\t", row->stage);
        text_append(&rows, "%s\t%s\t%lld\t%lld\t", row->kind, row->axes, (long long)row->count,
                    (long long)row->tensors);
        text_append_bytes_size(&rows, row->bytes);
        text_append_string(&rows, "\t");
        text_append_seconds(&rows, row->seconds);
        text_append(&rows, "\t%s\t%s\n", row->op_name, row->source);
    }
    append_rows(text, &rows);
}

void explanation_print(Text *text, const Explanation *self) {
    print_summary(text, self);
    print_stages(text, self);
    print_memory(text, self);
    print_contents(text, self);
    print_cuts(text, self);
    print_transfers(text, self);
    print_alternatives(text, self);
    if (self->decision_count == 0) text_append_string(text, "no decisions: every device does everything\n");
    else print_decisions(text, self);
    text_append_string(text, "\n");
    if (self->collective_count == 0) text_append_string(text, "no collectives\n");
    else print_collectives(text, self);
}
