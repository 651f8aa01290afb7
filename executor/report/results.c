/* Gathering, converting and writing results; see results.h. */
#include "executor/report/results.h"

#include <math.h>
#include <stdlib.h>

#include "base/files/array_file.h"
#include "executor/array/wide.h"

static const IrShape *output_shape(const Results *results, int32_t output) {
    const PlanContext *context = results->context;
    return &context->canonical->instructions[context->roles->outputs[output]].shape;
}

static AmStatus add_watched(Results *results, int32_t output, AmError *error) {
    const IrShape *shape = output_shape(results, output);
    int64_t count = ir_shape_elements(shape);
    double *values = ARENA_ARRAY(results->arena, double, count + 1);
    if (!values) return am_fail_memory(error, count * 8);
    int32_t k = results->watched_count++;
    results->values[k] = (AmRunWatched){output, count, values};
    return whole_open(&results->watched[k], &results->owner, shape, false, output, error);
}

static AmStatus open_watched(Results *results, AmError *error) {
    const IrRoles *roles = results->context->roles;
    const AmRunOptions *options = results->options;
    results->watched = ARENA_ARRAY(results->arena, WholeArray, options->watch_count + 1);
    results->values = ARENA_ARRAY(results->arena, AmRunWatched, options->watch_count + 1);
    if (results->arena->failed) return am_fail_memory(error, options->watch_count * 32);
    results->loss_count = roles->loss >= 0 ? 1 : 0;
    if (results->loss_count) TRY(add_watched(results, roles->loss, error));
    for (int32_t k = 0; k < options->watch_count; k++) {
        int32_t output = options->watch[k];
        if (output < 0 || output >= roles->output_count)
            return am_fail(error, AM_ERROR_USAGE, "", "there is no output[%d]: the module has %d outputs",
                           output, roles->output_count);
        if (!wide_supports(output_shape(results, output)->type))
            return am_fail(error, AM_ERROR_USAGE, "", "output[%d] is %s and cannot be watched", output,
                           dtype_name(output_shape(results, output)->type));
        TRY(add_watched(results, output, error));
    }
    return whole_find_places(results->watched, results->watched_count, results->owner.world, error);
}

AmStatus results_open(Results *results, const PlanContext *context, const AmRunOptions *options,
                      const WholeOwner *owner, Arena *arena, AmError *error) {
    const IrRoles *roles = context->roles;
    *results = (Results){.context = context, .options = options, .arena = arena, .owner = *owner};
    TRY(open_watched(results, error));
    if (!options->outputs_path) return AM_OK;
    results->outputs = ARENA_ARRAY(arena, WholeArray, roles->output_count + 1);
    if (!results->outputs) return am_fail_memory(error, roles->output_count * 32);
    for (int32_t k = 0; k < roles->output_count; k++)
        TRY(whole_open(&results->outputs[k], &results->owner, output_shape(results, k), false, k, error));
    return AM_OK;
}

void results_close(Results *results) {
    for (int32_t k = 0; k < results->watched_count; k++) whole_close(&results->watched[k]);
    for (int32_t k = 0; results->outputs && k < results->context->roles->output_count; k++)
        whole_close(&results->outputs[k]);
    *results = (Results){0};
}

void results_take(Results *results, int32_t r) {
    for (int32_t k = 0; k < results->watched_count; k++) whole_take(&results->watched[k], r);
    for (int32_t k = 0; results->outputs && k < results->context->roles->output_count; k++)
        whole_take(&results->outputs[k], r);
}

static void convert(const WholeArray *array, const AmRunWatched *watched) {
    Dtype type = array->shape->type;
    for (int64_t i = 0; i < watched->count; i++) {
        Wide value;
        wide_load(&value, array->whole + i * dtype_bytes(type), type, 1, 1);
        wide_store((double *)watched->values + i, DTYPE_F64, &value, wide_kind(type), 1, 1);
    }
}

AmStatus results_gather_step(Results *results, AmError *error) {
    for (int32_t k = 0; k < results->watched_count; k++) {
        TRY(whole_gather(&results->watched[k], error));
        if (results->watched[k].whole) convert(&results->watched[k], &results->values[k]);
    }
    return AM_OK;
}

double results_loss(const Results *results) {
    return results->loss_count ? results->values[0].values[0] : NAN;
}

AmStatus results_save_outputs(Results *results, AmError *error) {
    const IrRoles *roles = results->context->roles;
    ArrayToWrite *arrays = ARENA_ARRAY(results->arena, ArrayToWrite, roles->output_count + 1);
    if (!arrays) return am_fail_memory(error, roles->output_count * 64);
    for (int32_t k = 0; k < roles->output_count; k++) {
        WholeArray *array = &results->outputs[k];
        TRY(whole_gather(array, error));
        arrays[k] = (ArrayToWrite){.name = arena_format(results->arena, "output[%d]", k),
                                   .type = array->shape->type,
                                   .rank = array->shape->rank,
                                   .dimensions = array->shape->dimensions,
                                   .data = array->whole};
    }
    if (results->arena->failed) return am_fail_memory(error, roles->output_count * 16);
    if (results->owner.world && results->owner.world->process != 0) return AM_OK;
    return array_file_write(results->options->outputs_path, arrays, roles->output_count, NULL, error);
}

/* Gathers the current value of a parameter in process 0. */
static AmStatus gather_parameter(Results *results, WholeArray *array, const IrParameter *parameter,
                                 int32_t number, AmError *error) {
    const IrShape *shape = &results->context->canonical->instructions[parameter->instruction].shape;
    TRY(whole_open(array, &results->owner, shape, true, number, error));
    for (int32_t r = 0; r < results->owner.rank_count; r++) whole_take(array, r);
    return whole_gather(array, error);
}

AmStatus results_save_state(Results *results, const Feeds *feeds, AmError *error) {
    const IrRoles *roles = results->context->roles;
    const World *world = results->owner.world;
    bool writes = !world || world->process == 0;
    ArrayToWrite *arrays = ARENA_ARRAY(results->arena, ArrayToWrite, roles->parameter_count + 1);
    WholeArray *wholes = ARENA_ARRAY(results->arena, WholeArray, roles->parameter_count + 1);
    if (!arrays || !wholes) return am_fail_memory(error, roles->parameter_count * 64);
    int32_t count = 0;
    AmStatus status = AM_OK;
    for (int32_t k = 0; k < roles->parameter_count && status == AM_OK; k++) {
        const IrParameter *parameter = &roles->parameters[k];
        if (parameter->role == IR_ROLE_DATA || feeds_has_batches(feeds, k)) continue;
        WholeArray *array = &wholes[count];
        status = gather_parameter(results, array, parameter, k, error);
        if (status == AM_OK)
            arrays[count] = (ArrayToWrite){.name = parameter->path,
                                           .type = array->shape->type,
                                           .rank = array->shape->rank,
                                           .dimensions = array->shape->dimensions,
                                           .data = array->whole};
        count++;
        if (!writes) whole_close(array);
    }
    const char *metadata[] = {"format", "automap-state-1", NULL};
    if (status == AM_OK && writes)
        status = array_file_write(results->options->save_path, arrays, count, metadata, error);
    for (int32_t k = 0; k < count; k++) whole_close(&wholes[k]);
    return status;
}
