/* The sections of an explanation: tables with notes, which text and HTML print each in its way. */
#include "planners/explain/explain_sections.h"

#include <math.h>
#include <string.h>

/* Changes below this share are not listed. */
#define LEAST_CHANGE 0.0005

/* The limit of rows for the transfers of a pair of parts, and for the collectives of a stage,
 * unless all are requested.
 */
enum { MOST_OF_PAIR = 4, MOST_OF_STAGE = 8 };

typedef struct Filler {
    const Explanation *explanation;
    bool is_full;
    Text *rows, *note;
} Filler;

/* Names are the user's: what would break a table is shown as '?'. */
static void append_name(Text *rows, const char *name) {
    for (const char *c = name; *c; c++) text_append_bytes(rows, (unsigned char)*c < ' ' ? "?" : c, 1);
}

static void append_seconds(Text *rows, double seconds) {
    text_append_seconds(rows, seconds);
    text_append_string(rows, "\t");
}

static void append_bytes(Text *rows, double bytes) {
    text_append_bytes_size(rows, bytes);
    text_append_string(rows, "\t");
}

/* Appends a source line by the end of its path: from the package on for an installed module, else the folder
 * and the file. Relative paths stay. */
static void append_source(Text *rows, const char *source) {
    static const char installed[] = "-packages/"; /* of "site-packages" and "dist-packages" */
    const char *package = strstr(source, installed), *begin = source;
    if (package) begin = package + strlen(installed);
    else if (source[0] == '/') begin = strrchr(source, '/');
    while (begin > source && begin[-1] != '/') begin--;
    append_name(rows, begin);
}

/* Appends an operator's name and source: the last two columns. */
static void append_place(Text *rows, const char *op_name, const char *source) {
    append_name(rows, op_name);
    text_append_string(rows, "\t");
    append_source(rows, source);
    text_append_string(rows, "\n");
}

void explanation_summary(Text *text, const Explanation *self) {
    text_append_string(text, "step ");
    text_append_seconds(text, self->plan.step_seconds);
    text_append_string(text, ", peak ");
    text_append_bytes_size(text, (double)self->plan.peak_bytes);
    if (self->plan.replicas.count > 0) {
        text_append_string(text, ", ");
        plan_replicas_append(text, &self->plan.replicas);
    } else if (self->stages.count > 1) {
        text_append(text, ", %d stages, %s", self->stages.count, self->plan.schedule);
    }
    if (self->plan.micro_batches > 1) text_append(text, ", %d micro-batches", self->plan.micro_batches);
    text_append(text, ", %d device%s, idle %.1f %% of the time\n", self->plan.device_count,
                self->plan.device_count == 1 ? "" : "s", 100 * self->plan.bubble_fraction);
}

/* ---- stages ---- */

static void fill_stages(const Filler *to) {
    text_append_string(to->rows,
                       "stage\tdevices\tmesh\tZeRO\tFLOPs\tweights\tcompute\tcommunication\thidden\tidle\n");
    for (int32_t s = 0; s < to->explanation->stages.count; s++) {
        const ExplainedStage *row = &to->explanation->stages.of[s];
        text_append(to->rows, "%d\t%s\t%s\t%d\t%.1f %%\t%.1f %%\t", s, row->devices, row->mesh,
                    row->zero_level, 100 * row->flops_share, 100 * row->weight_share);
        append_seconds(to->rows, row->seconds.compute);
        append_seconds(to->rows, row->seconds.communication);
        append_seconds(to->rows, row->seconds.hidden);
        text_append_seconds(to->rows, row->seconds.idle);
        text_append_string(to->rows, "\n");
    }
}

static void fill_memory(const Filler *to) {
    bool has_kept = false;
    for (int32_t s = 0; s < to->explanation->stages.count; s++)
        has_kept |= to->explanation->stages.of[s].fullest.kept_bytes > 0;
    text_append(to->rows,
                "stage\tpeak\tlimit\tweights\tgradients\toptimizer\tactivations\tkept for "
                "backward\ttransfer slots%s\n",
                has_kept ? "\theld outside of the step" : "");
    for (int32_t s = 0; s < to->explanation->stages.count; s++) {
        const ExplainedStage *row = &to->explanation->stages.of[s];
        text_append(to->rows, "%d\t", s);
        append_bytes(to->rows, (double)row->fullest.needed_bytes);
        append_bytes(to->rows, (double)row->fullest.limit_bytes);
        append_bytes(to->rows, (double)row->fullest.use.weights_bytes);
        append_bytes(to->rows, (double)row->fullest.use.gradients_bytes);
        append_bytes(to->rows, (double)row->fullest.use.optimizer_bytes);
        append_bytes(to->rows, (double)row->fullest.use.activation_bytes);
        append_bytes(to->rows, (double)row->fullest.use.in_flight_bytes);
        text_append_bytes_size(to->rows, (double)row->fullest.channel_bytes);
        if (has_kept) text_append_string(to->rows, "\t");
        if (has_kept) text_append_bytes_size(to->rows, (double)row->fullest.kept_bytes);
        text_append_string(to->rows, "\n");
    }
    text_append(to->note, "A plan may use %g of a device's memory; the peak includes transfer slots%s.\n",
                to->explanation->plan.memory_fraction,
                has_kept ? " and the bytes held outside of the step" : "");
    for (int32_t s = 0; s < to->explanation->stages.count; s++) {
        double bytes = (double)to->explanation->stages.of[s].fullest.use.host_bytes;
        if (bytes <= 0) continue;
        text_append(to->note, "Stage %d keeps optimizer state in the host's memory: ", s);
        text_append_bytes_size(to->note, bytes);
        text_append_string(to->note, " for this device.\n");
    }
}

static void fill_contents(const Filler *to) {
    for (int32_t s = 0; s < to->explanation->stages.count; s++) {
        const ExplainedStage *row = &to->explanation->stages.of[s];
        text_append(to->note, "stage %d has ", s);
        append_name(to->note, row->weights[0] ? row->weights : "no weights");
        if (row->first_op[0]) text_append_string(to->note, "; from ");
        append_name(to->note, row->first_op);
        if (row->first_op[0]) text_append_string(to->note, " to ");
        append_name(to->note, row->last_op);
        text_append_string(to->note, "\n");
    }
}

/* ---- cuts ---- */

static void append_total(Text *rows, const TransferTotal *total) {
    if (total->count == 0) {
        text_append_string(rows, "nothing\t");
        return;
    }
    text_append_bytes_size(rows, total->bytes);
    text_append_string(rows, " in ");
    append_seconds(rows, total->seconds);
}

static void append_move(const Filler *to, const ExplainedMove *move) {
    const ExplainedChange *change = &move->change;
    if (move->instruction < 0) text_append_string(to->rows, "no room\t");
    else if (!change->is_known)
        text_append_string(to->rows, change->reason[0] ? "no such plan\t" : "not simulated\t");
    else
        text_append(to->rows, "%+.1f %%%s\t",
                    100 * (change->seconds / to->explanation->plan.step_seconds - 1),
                    change->fits ? "" : ", DOES NOT FIT");
}

static void fill_cuts(const Filler *to) {
    if (to->explanation->cuts.count == 0) return;
    text_append_string(
        to->rows,
        "between stages\tforward\tbackward\ta unit earlier\ta unit later\tbefore\toperator\tsource\n");
    for (int32_t k = 0; k < to->explanation->cuts.count; k++) {
        const ExplainedCut *cut = &to->explanation->cuts.of[k];
        text_append(to->rows, "%d and %d\t", cut->stages[0], cut->stages[1]);
        append_total(to->rows, &cut->up);
        append_total(to->rows, &cut->down);
        append_move(to, &cut->earlier);
        append_move(to, &cut->later);
        append_name(to->rows, cut->weight);
        text_append_string(to->rows, "\t");
        append_place(to->rows, cut->op_name, cut->source);
    }
    text_append_string(
        to->note, "forward and backward: all that crosses the cut in a step; earlier and later: what the "
                  "step becomes with the cut there\n");
}

static void fill_loops(const Filler *to) {
    if (to->explanation->loops.count == 0) return;
    text_append_string(to->rows, "trips\twhy it is one unit\toperator\tsource\n");
    for (int32_t k = 0; k < to->explanation->loops.count; k++) {
        const ExplainedLoop *loop = &to->explanation->loops.of[k];
        if (loop->trips < 0) text_append_string(to->rows, "?\t");
        else text_append(to->rows, "%lld\t", (long long)loop->trips);
        append_name(to->rows, loop->reason);
        text_append_string(to->rows, "\t");
        append_place(to->rows, loop->op_name, loop->source);
    }
}

static void fill_transfers(const Filler *to) {
    const Explanation *self = to->explanation;
    int32_t left_out = 0, of_pair = 0;
    if (self->transfers.count == 0) return;
    text_append_string(to->rows, "from to\tnumber\tbytes\ttime\tsharding\toperator\tsource\n");
    for (int32_t k = 0; k < self->transfers.count; k++) {
        const ExplainedTransfer *row = &self->transfers.of[k];
        bool is_pair = k > 0 && row[-1].sender == row->sender && row[-1].receiver == row->receiver;
        of_pair = is_pair ? of_pair + 1 : 0;
        if (of_pair >= MOST_OF_PAIR && !to->is_full) {
            left_out++;
            continue;
        }
        text_append(to->rows, "%d to %d\t%lld\t", row->sender, row->receiver, (long long)row->total.count);
        append_bytes(to->rows, row->total.bytes);
        append_seconds(to->rows, row->total.seconds);
        bool is_same = strcmp(row->sent, row->received) == 0;
        text_append(to->rows, "%s%s%s\t", row->sent, is_same ? "" : " to ", is_same ? "" : row->received);
        append_place(to->rows, row->op_name, row->source);
    }
    if (left_out > 0) text_append(to->note, "and %d rows more of fewer bytes\n", left_out);
}

/* ---- changes ---- */

/* Appends step, slowdown, peak; or a note that there is no figure. */
static void append_change(const Filler *to, const ExplainedChange *change) {
    if (!change->is_known) {
        text_append(to->rows, "%s\t\t", change->reason[0] ? "no such plan" : "not simulated");
        return;
    }
    append_seconds(to->rows, change->seconds);
    text_append(to->rows, "%+.1f %%\t", 100 * (change->seconds / to->explanation->plan.step_seconds - 1));
    text_append_bytes_size(to->rows, (double)change->peak_bytes);
    if (!change->fits) text_append_string(to->rows, ", DOES NOT FIT");
}

static void fill_alternatives(const Filler *to) {
    if (to->explanation->alternatives.count == 0) return;
    text_append_string(to->rows, "instead\tstep\tslower by\tpeak\n");
    for (int32_t k = 0; k < to->explanation->alternatives.count; k++) {
        const ExplainedAlternative *row = &to->explanation->alternatives.of[k];
        text_append(to->rows, "%s %s\t", row->what, row->value);
        append_change(to, &row->change);
        text_append_string(to->rows, "\n");
        if (!row->change.reason[0]) continue;
        text_append(to->note, "%s %s: ", row->what, row->value);
        append_name(to->note, row->change.reason);
        text_append_string(to->note, "\n");
    }
}

/* Returns whether a decision moves the step time or the peak by as much as the table shows. */
static bool is_felt(const Explanation *self, const ExplainedChange *without) {
    double seconds = fabs(without->seconds / self->plan.step_seconds - 1);
    double bytes = fabs((double)without->peak_bytes / (double)self->plan.peak_bytes - 1);
    return seconds >= LEAST_CHANGE || bytes >= LEAST_CHANGE;
}

static void append_unfelt(const Filler *to, bool is_more, int32_t count, const char *what) {
    if (count == 0) return;
    text_append(to->note, "%s%d %s%s that change%s time and peak by less than %g %%\n", is_more ? "and " : "",
                count, what, count == 1 ? "" : "s", count == 1 ? "s" : "", 100 * LEAST_CHANGE);
}

static void append_decision(const Filler *to, const ExplainedDecision *row) {
    bool is_storage = row->entry->kind != PLAN_COMPUTE;
    if (to->explanation->stages.count > 1) text_append(to->rows, "%d\t", row->stage);
    text_append(to->rows, "%s\t", row->axis);
    if (is_storage) text_append(to->rows, "keep %s in shards", plan_entry_kind_name(row->entry->kind));
    else text_append_string(to->rows, "split");
    if (row->path[0]) text_append(to->rows, "%s dimension %d of ", is_storage ? "," : "", row->dimension);
    append_name(to->rows, row->path);
    text_append(to->rows, "\t%d\t", row->class_count);
    append_change(to, &row->without);
    text_append_string(to->rows, "\t");
    append_source(to->rows, row->source);
    text_append_string(to->rows, "\n");
}

static void fill_decisions(const Filler *to) {
    const Explanation *self = to->explanation;
    int32_t shown = 0, unfelt = 0, unknown = 0;
    if (self->decisions.count == 0)
        text_append_string(to->note, "no decisions: every device does everything\n");
    for (int32_t k = 0; k < self->decisions.count; k++) {
        const ExplainedDecision *row = &self->decisions.of[k];
        bool is_left_out = !row->without.is_known && !row->without.reason[0];
        bool is_small = row->without.is_known && !is_felt(self, &row->without);
        unknown += is_left_out;
        unfelt += is_small && !to->is_full;
        if (is_left_out || (is_small && !to->is_full)) continue;
        if (shown == 0 && self->stages.count > 1) text_append_string(to->rows, "stage\t");
        if (shown++ == 0)
            text_append_string(to->rows,
                               "axis\tdecision\tlayers\tstep without\tslower by\tpeak without\tsource\n");
        append_decision(to, row);
    }
    append_unfelt(to, shown > 0, unfelt, "decision");
    if (unknown > 0)
        text_append(to->note,
                    "%d decision%s of less busy stages not taken out; --evaluations %d simulates all\n",
                    unknown, unknown == 1 ? "" : "s", self->changes.simulated + self->changes.left_out);
}

static void fill_overrides(const Filler *to) {
    const Explanation *self = to->explanation;
    int32_t shown = 0, unfelt = 0;
    if (self->overrides.count == 0) return;
    for (int32_t k = 0; k < self->overrides.count; k++) {
        const ExplainedOverride *row = &self->overrides.of[k];
        bool is_small = row->without.is_known && !is_felt(self, &row->without) && !to->is_full;
        unfelt += is_small;
        if (is_small) continue;
        if (shown == 0 && self->stages.count > 1) text_append_string(to->rows, "stage\t");
        if (shown++ == 0)
            text_append_string(to->rows, "override\tin place of\tlayers\tstep without\tslower by\tpeak "
                                         "without\toperator\tsource\n");
        if (self->stages.count > 1) text_append(to->rows, "%d\t", row->stage);
        text_append(to->rows, "%s\t%s\t%d\t", row->how, row->instead[0] ? row->instead : "-", row->count);
        append_change(to, &row->without);
        text_append(to->rows, "\t%s ", row->shape);
        append_place(to->rows, row->op_name, row->source);
    }
    append_unfelt(to, shown > 0, unfelt, "override");
    const ExplainedChange *without = &self->overrides.without;
    int32_t all = 0;
    for (int32_t k = 0; k < self->overrides.count; k++) all += self->overrides.of[k].count;
    text_append(to->note, "without these overrides, of %d operator%s, ", all, all == 1 ? "" : "s");
    if (!without->is_known) {
        append_name(to->note, without->reason[0] ? without->reason : "was not simulated");
    } else {
        text_append_string(to->note, "the step is ");
        text_append_seconds(to->note, without->seconds);
        text_append(to->note, ", %+.1f %%%s", 100 * (without->seconds / self->plan.step_seconds - 1),
                    without->fits ? "" : ", and DOES NOT FIT");
    }
    text_append_string(to->note, "\n");
}

/* ---- collectives ---- */

static void fill_collectives(const Filler *to) {
    const Explanation *self = to->explanation;
    int32_t of_stage = 0, left_out = 0;
    double left_seconds = 0;
    if (self->collectives.count == 0) {
        text_append_string(to->note, "no collectives\n");
        return;
    }
    if (self->stages.count > 1) text_append_string(to->rows, "stage\t");
    text_append_string(to->rows,
                       "collective\taxes\tfrom\tto\tnumber\ttensors\tbytes\ttime\toperator\tsource\n");
    for (int32_t k = 0; k < self->collectives.count; k++) {
        const ExplainedCollective *row = &self->collectives.of[k];
        of_stage = k > 0 && row[-1].stage == row->stage ? of_stage + 1 : 0;
        if (self->stages.count > 1 && of_stage >= MOST_OF_STAGE && !to->is_full) {
            left_out++;
            left_seconds += row->seconds;
            continue;
        }
        if (self->stages.count > 1) text_append(to->rows, "%d\t", row->stage);
        text_append(to->rows, "%s\t%s\t%s\t%s\t%lld\t%lld\t", row->kind, row->axes, row->before, row->after,
                    (long long)row->count, (long long)row->tensors);
        append_bytes(to->rows, row->bytes);
        append_seconds(to->rows, row->seconds);
        append_place(to->rows, row->op_name, row->source);
    }
    if (left_out == 0) return;
    text_append(to->note, "and %d rows more that take ", left_out);
    text_append_seconds(to->note, left_seconds);
    text_append_string(to->note, " together\n");
}

/* ---- all ---- */

static const struct {
    const char *title;
    void (*fill)(const Filler *to);
} sections[] = {
    {"Stages", fill_stages},
    {"Memory of each stage's fullest device", fill_memory},
    {"Contents of each stage", fill_contents},
    {"Cuts", fill_cuts},
    {"Loops, which no cut divides", fill_loops},
    {"Transfers between stages", fill_transfers},
    {"Other settings", fill_alternatives},
    {"Decisions", fill_decisions},
    {"Overrides", fill_overrides},
    {"Collectives", fill_collectives},
};

int32_t explanation_section_count(void) {
    return (int32_t)(sizeof sections / sizeof *sections);
}

void explanation_section(ExplainSection *section, const Explanation *self, int32_t k, bool is_full) {
    *section = (ExplainSection){.title = sections[k].title};
    const Filler to = {self, is_full, &section->rows, &section->note};
    sections[k].fill(&to);
}
