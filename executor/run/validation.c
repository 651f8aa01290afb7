/* Opens the module of a validation, and runs it over held-out data with the values that the training has.
 *
 * Parameters are matched by path and shape (validation_match.c); data comes from the files of --eval-data.
 * When a validation is due, the ranks of the training give their values (validation_take()) and
 * validation_gather() collects them in process 0. Then validation_run() sums the outputs of all batches on
 * one device.
 */
#include "executor/run/validation.h"

#include <stdlib.h>

#include "base/system/clock.h"
#include "base/system/stop.h"
#include "executor/array/scalar64.h"
#include "executor/data/feed.h"
#include "executor/data/feed_source.h"
#include "executor/run/validation_match.h"
#include "lowering/spmd/ranks.h"

struct Validation {
    Arena arena;
    const PlanContext *training, *module;
    const RunOptions *options; /* of the training */
    RunOptions data_options;   /* of the feeds */
    ShardOwner owner;
    int32_t parameter_count;
    int32_t *sources;      /* [parameter_count]: of the training; -1: in the data */
    GatheredArray *arrays; /* [parameter_count]; those with a source are open */
    Comm comm;
    Rank rank;
    Feeds *feeds;
    int64_t batches, loaded; /* of one validation; of all so far */
    RunValidated result;
    RunValidatedOutput *outputs; /* [result.count] */
};

static const IrShape *output_shape(const Validation *self, int32_t output) {
    return &plan_context_instruction(self->module, self->module->roles->outputs[output])->shape;
}

/* Outputs of one number that are no parameter's new value. */
static AmStatus find_outputs(Validation *self, AmError *error) {
    const IrRoles *roles = self->module->roles;
    self->outputs = ARENA_ARRAY(&self->arena, RunValidatedOutput, roles->output_count + 1);
    if (!self->outputs) return am_fail_memory(error, roles->output_count * (int64_t)sizeof *self->outputs);
    for (int32_t k = 0; k < roles->output_count; k++) {
        const IrShape *shape = output_shape(self, k);
        bool is_update = false;
        for (int32_t p = 0; p < roles->parameter_count; p++) is_update |= roles->parameters[p].output == k;
        if (is_update || !scalar64_supports(shape->type) || ir_shape_elements(shape) != 1) continue;
        self->outputs[self->result.count++] =
            (RunValidatedOutput){.output = k,
                                 .is_loss = k == roles->loss,
                                 .is_integer = scalar64_kind(shape->type) != SCALAR64_FLOATING};
    }
    self->result.outputs = self->outputs;
    if (self->result.count > 0) return AM_OK;
    return am_fail(error, AM_ERROR_INPUT, self->module->canonical->source,
                   "none of the %d outputs is one number (expected a loss or a count)", roles->output_count);
}

/* Finds the source of each parameter: data, or a parameter or output of the training. */
static AmStatus match_parameters(Validation *self, AmError *error) {
    int32_t count = self->parameter_count;
    bool *is_in_data = ARENA_ARRAY(&self->arena, bool, count + 1);
    self->sources = ARENA_ARRAY(&self->arena, int32_t, count + 1);
    self->arrays = ARENA_ARRAY(&self->arena, GatheredArray, count + 1);
    if (self->arena.failed) return am_fail_memory(error, (int64_t)sizeof(GatheredArray) * count);
    /* The parameters whose values the files of data have. */
    FeedSource fed;
    Arena arena = {0};
    RunOptions options = self->data_options;
    options.warnings = NULL; /* feeds_open() warns */
    AmStatus status = feed_source_open(&fed, self->module, &options, &arena, error);
    for (int32_t k = 0; k < self->parameter_count && status == AM_OK; k++) {
        FeedFile *file;
        const ArrayEntry *entry;
        AmError own = {0};
        AmStatus found = feed_source_find(&file, &entry, &fed, k, &own);
        is_in_data[k] = found == AM_OK;
        if (found == AM_OK || (found == AM_ERROR_INPUT && !file)) continue;
        status = found;
        *error = own;
    }
    feed_source_close(&fed);
    arena_free(&arena);
    TRY(status);
    TRY(validation_match(self->sources, self->training, self->module, is_in_data, error));
    for (int32_t k = 0; k < count; k++) {
        int32_t source = self->sources[k];
        if (source < 0) continue;
        const IrParameter *parameter = plan_context_parameter(self->training, source);
        const IrShape *shape = &plan_context_instruction(self->training, parameter->instruction)->shape;
        TRY(gathered_open(&self->arrays[k], &self->owner, shape, true, source, error));
    }
    return AM_OK;
}

/* The module on the first rank's device, and the data. */
static AmStatus open_rank(Validation *self, AmError *error) {
    const CommBackEnd *back_end;
    KernelDevice *device = self->owner.ranks[0].device;
    int32_t count = self->parameter_count;
    bool *is_taken = ARENA_ARRAY(&self->arena, bool, count + 1);
    Program *program;
    if (!is_taken) return am_fail_memory(error, count);
    TRY(comm_back_end_choose(&back_end, NULL, device->back_end, NULL, error));
    TRY(back_end->open(&self->comm, 0, 1, 1, &device, NULL, error));
    TRY(plan_lower_one_device(&program, &self->rank.arena, self->module, error));
    TRY(rank_open(&self->rank, device, &self->comm, program, error));
    if (back_end->start) TRY(back_end->start(&self->comm, error));
    for (int32_t k = 0; k < count; k++) is_taken[k] = self->sources[k] >= 0;
    TRY(feeds_open(&self->feeds, self->module, &self->data_options, &self->rank, 1, is_taken, error));
    int64_t batches = feeds_position(self->feeds, 0).batches;
    self->batches = batches > 0 ? batches : 1;
    self->result.batches = self->batches;
    return feeds_start(self->feeds, error);
}

AmStatus validation_open(Validation **validation, const PlanContext *training, const RunOptions *options,
                         const ShardOwner *owner, AmError *error) {
    *validation = NULL;
    if (!options->validation.context) return AM_OK;
    if (plan_context_primary(training)->layer_map)
        return am_fail(error, AM_ERROR_USAGE, "",
                       "validation: the plan splits the layers of stacked parameters (expected a plan of "
                       "search --layers loop)");
    Validation *self = calloc(1, sizeof *self);
    if (!self) return am_fail_memory(error, (int64_t)sizeof *self);
    *validation = self;
    self->training = training;
    self->module = options->validation.context;
    self->parameter_count = self->module->roles->parameter_count;
    self->options = options;
    self->owner = *owner;
    self->data_options = (RunOptions){.data_paths = options->validation.data_paths,
                                      .data_count = options->validation.data_count,
                                      .prefetch = 1,
                                      .warnings = options->warnings};
    bool has_rank = !self->owner.processes || self->owner.processes->process == 0;
    AmStatus status = find_outputs(self, error);
    if (status == AM_OK) status = match_parameters(self, error);
    if (status == AM_OK && has_rank) status = open_rank(self, error);
    if (status != AM_OK) am_error_prefix(error, "validation: ");
    return status;
}

void validation_close(Validation *self) {
    if (!self) return;
    feeds_close(self->feeds);
    for (int32_t k = 0; self->arrays && k < self->parameter_count; k++) gathered_close(&self->arrays[k]);
    rank_close(&self->rank);
    if (self->comm.back_end) self->comm.back_end->close(&self->comm);
    arena_free(&self->arena);
    free(self);
}

int64_t validation_bytes(const Validation *self) {
    int64_t bytes = self ? self->rank.memory_bytes : 0;
    for (int32_t k = 0; self && k < self->parameter_count; k++)
        if (self->arrays[k].global) bytes += ir_shape_bytes(self->arrays[k].shape);
    return bytes;
}

bool validation_is_due(const Validation *self, int64_t steps) {
    if (!self) return false;
    int64_t every = self->options->validation.every;
    return steps >= self->options->steps || (every > 0 && steps % every == 0);
}

void validation_take(Validation *self, int32_t r) {
    for (int32_t k = 0; k < self->parameter_count; k++)
        if (self->sources[k] >= 0) gathered_take(&self->arrays[k], r);
}

AmStatus validation_gather(Validation *self, AmError *error) {
    for (int32_t k = 0; k < self->parameter_count; k++)
        if (self->sources[k] >= 0) TRY(gathered_gather(&self->arrays[k], error));
    return AM_OK;
}

AmStatus validation_run(Validation *self, const RunValidated **result, AmError *error) {
    const volatile sig_atomic_t *interrupted = self->options->interrupted;
    double start = clock_seconds();
    bool is_updating = self->rank.program->execution.update_count > 0; /* perhaps in place */
    *result = NULL;
    for (int32_t k = 0; k < self->result.count; k++) self->outputs[k].value = 0;
    for (int64_t batch = 0; batch < self->batches; batch++) {
        if (stop_flag_is_set(interrupted)) return AM_OK;
        for (int32_t k = 0; k < self->parameter_count && (batch == 0 || is_updating); k++)
            if (self->sources[k] >= 0) rank_set_parameter(&self->rank, k, self->arrays[k].global);
        if (feeds_depth(self->feeds) > 0) {
            TRY(feeds_load(self->feeds, self->loaded, error));
            TRY(feeds_take(self->feeds, 0, self->loaded++, error));
        }
        TRY(rank_run(&self->rank, error));
        for (int32_t k = 0; k < self->result.count; k++) {
            RunValidatedOutput *output = &self->outputs[k];
            Dtype type = output_shape(self, output->output)->type;
            Scalar64 bits = {0}, value;
            double number;
            rank_get_output(&self->rank, output->output, &bits);
            scalar64_load(&value, &bits, type, 1, 1);
            scalar64_store(&number, DTYPE_F64, &value, scalar64_kind(type), 1, 1);
            output->value += number;
        }
    }
    for (int32_t k = 0; k < self->result.count; k++)
        if (!self->outputs[k].is_integer) self->outputs[k].value /= (double)self->batches;
    self->result.seconds = clock_seconds() - start;
    *result = &self->result;
    return AM_OK;
}
