/* The results of a run: gathers and converts the loss and watched outputs of each step, and writes outputs
 * and final state. */
#include "executor/report/results.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/files/array_file.h"
#include "executor/array/scalar64.h"

static const IrShape *output_shape(const Results *results, int32_t output) {
    const PlanContext *context = results->context;
    return &plan_context_instruction(context, context->roles->outputs[output])->shape;
}

static AmStatus add_watched(Results *results, int32_t output, AmError *error) {
    const IrShape *shape = output_shape(results, output);
    int64_t count = ir_shape_elements(shape);
    double *values = ARENA_ARRAY(results->arena, double, count + 1);
    if (!values) return am_fail_memory(error, count * 8);
    int32_t k = results->watched_count++;
    results->values[k] = (RunWatched){plan_source_output(results->context, output).original, count, values};
    return gathered_open(&results->watched[k], &results->owner, shape, false, output, error);
}

AmStatus results_open(Results *results, const PlanContext *context, const RunOptions *options,
                      const ShardOwner *owner, Arena *arena, AmError *error) {
    const IrRoles *roles = context->roles;
    *results = (Results){.context = context, .options = options, .arena = arena, .owner = *owner};
    results->watched = ARENA_ARRAY(results->arena, GatheredArray, options->watch_count + 1);
    results->values = ARENA_ARRAY(results->arena, RunWatched, options->watch_count + 1);
    if (results->arena->failed) return am_fail_memory(error, options->watch_count * 32);
    results->loss_count = roles->loss >= 0 ? 1 : 0;
    if (results->loss_count) TRY(add_watched(results, roles->loss, error));
    for (int32_t k = 0; k < options->watch_count; k++) {
        int32_t named = options->watch[k],
                outputs = plan_context_source(results->context)->roles->output_count;
        if (named < 0 || named >= outputs)
            return am_fail(error, AM_ERROR_USAGE, "", "there is no output[%d]: the module has %d outputs",
                           named, outputs);
        int32_t output = 0;
        while (plan_source_output(results->context, output).original != named) output++;
        if (plan_source_output(results->context, output).layer >= 0)
            return am_fail(error, AM_ERROR_USAGE, "",
                           "output[%d] cannot be watched: the plan splits its layers (expected a plan of "
                           "search --layers loop)",
                           named);
        if (!scalar64_supports(output_shape(results, output)->type))
            return am_fail(error, AM_ERROR_USAGE, "", "output[%d] is %s and cannot be watched", output,
                           dtype_name(output_shape(results, output)->type));
        TRY(add_watched(results, output, error));
    }
    TRY(gathered_find_places(results->watched, results->watched_count, results->owner.processes, error));
    if (!options->outputs_path) return AM_OK;
    results->outputs = ARENA_ARRAY(arena, GatheredArray, roles->output_count + 1);
    if (!results->outputs) return am_fail_memory(error, roles->output_count * 32);
    for (int32_t k = 0; k < roles->output_count; k++)
        TRY(gathered_open(&results->outputs[k], &results->owner, output_shape(results, k), false, k, error));
    return AM_OK;
}

void results_close(Results *results) {
    for (int32_t k = 0; k < results->watched_count; k++) gathered_close(&results->watched[k]);
    for (int32_t k = 0; results->outputs && k < results->context->roles->output_count; k++)
        gathered_close(&results->outputs[k]);
    *results = (Results){0};
}

void results_take(Results *results, int32_t r) {
    for (int32_t k = 0; k < results->watched_count; k++) gathered_take(&results->watched[k], r);
    for (int32_t k = 0; results->outputs && k < results->context->roles->output_count; k++)
        gathered_take(&results->outputs[k], r);
}

AmStatus results_gather_step(Results *results, AmError *error) {
    for (int32_t k = 0; k < results->watched_count; k++) {
        TRY(gathered_gather(&results->watched[k], error));
        if (results->watched[k].global) {
            const GatheredArray *array = &results->watched[k];
            const RunWatched *watched = &results->values[k];
            Dtype type = array->shape->type;
            for (int64_t i = 0; i < watched->count; i++) {
                Scalar64 value;
                scalar64_load(&value, array->global + i * dtype_bytes(type), type, 1, 1);
                scalar64_store((double *)watched->values + i, DTYPE_F64, &value, scalar64_kind(type), 1, 1);
            }
        }
    }
    return AM_OK;
}

double results_loss(const Results *results) {
    return results->loss_count ? results->values[0].values[0] : NAN;
}

/* The arrays of a file. */
typedef struct ArrayList {
    ArrayToWrite *arrays;
    int32_t count;
    int32_t *places; /* [parameter or output of the module as read]: its array, if it has layers */
} ArrayList;

/* Makes room for the arrays of `parts` parts of `originals` parameters or outputs. */
static AmStatus make_list(ArrayList *list, Arena *arena, int32_t parts, int32_t originals, AmError *error) {
    list->arrays = ARENA_ARRAY(arena, ArrayToWrite, parts + 1);
    list->places = ARENA_ARRAY(arena, int32_t, originals + 1);
    return list->arrays && list->places ? AM_OK : am_fail_memory(error, parts * 64);
}

/* Adds an array, gathered in process 0, to those of a file. A layer goes to its place in the array of the
 * module as read, which its first layer adds, and is released. */
static AmStatus add_array(Results *results, ArrayList *list, GatheredArray *array, IrLayerPart part,
                          const IrShape *shape, const char *name, AmError *error) {
    if (part.layer <= 0) {
        void *data = array->global;
        if (part.layer == 0 && array->global) {
            data = arena_alloc_raw(results->arena, (size_t)ir_shape_bytes(shape) + 1);
            if (!data) return am_fail_memory(error, ir_shape_bytes(shape));
        }
        list->places[part.original] = list->count;
        list->arrays[list->count++] = (ArrayToWrite){.name = name,
                                                     .type = shape->type,
                                                     .rank = shape->rank,
                                                     .dimensions = shape->dimensions,
                                                     .data = data};
    }
    if (part.layer < 0 || !array->global) return AM_OK;
    char *data = (char *)list->arrays[list->places[part.original]].data; /* allocated above */
    memcpy(data + part.first * dtype_bytes(shape->type), array->global, (size_t)ir_shape_bytes(array->shape));
    gathered_close(array);
    return AM_OK;
}

AmStatus results_save_outputs(Results *results, AmError *error) {
    const IrRoles *roles = results->context->roles;
    const PlanContext *source = plan_context_source(results->context);
    ArrayList list = {0};
    TRY(make_list(&list, results->arena, roles->output_count, source->roles->output_count, error));
    for (int32_t k = 0; k < roles->output_count; k++) {
        GatheredArray *array = &results->outputs[k];
        TRY(gathered_gather(array, error));
        IrLayerPart part = plan_source_output(results->context, k);
        const char *name = arena_format(results->arena, "output[%d]", part.original);
        int32_t output = source->roles->outputs[part.original];
        TRY(add_array(results, &list, array, part, &plan_context_instruction(source, output)->shape, name,
                      error));
    }
    if (results->arena->failed) return am_fail_memory(error, roles->output_count * 16);
    if (results->owner.processes && results->owner.processes->process != 0) return AM_OK;
    return array_file_write(results->options->outputs_path, list.arrays, list.count, NULL, error);
}

AmStatus results_save_state(Results *results, const Feeds *feeds, AmError *error) {
    const IrRoles *roles = results->context->roles;
    const ProcessGroup *processes = results->owner.processes;
    bool writes = !processes || processes->process == 0;
    GatheredArray *arrays = ARENA_ARRAY(results->arena, GatheredArray, roles->parameter_count + 1);
    if (!arrays) return am_fail_memory(error, roles->parameter_count * 64);
    const PlanContext *source = plan_context_source(results->context);
    ArrayList list = {0};
    TRY(make_list(&list, results->arena, roles->parameter_count, source->roles->parameter_count, error));
    int32_t gathered = 0;
    AmStatus status = AM_OK;
    for (int32_t k = 0; k < roles->parameter_count && status == AM_OK; k++) {
        IrLayerPart part = plan_source_parameter(results->context, k);
        const IrParameter *named = &source->roles->parameters[part.original];
        const IrShape *shape = &plan_context_instruction(source, named->instruction)->shape;
        if (named->role == IR_ROLE_DATA || feeds_has_batches(feeds, k)) continue;
        GatheredArray *array = &arrays[gathered++];
        const IrParameter *own = &roles->parameters[k];
        const IrShape *own_shape = &plan_context_instruction(results->context, own->instruction)->shape;
        status = gathered_open(array, &results->owner, own_shape, true, k, error);
        for (int32_t r = 0; status == AM_OK && r < results->owner.rank_count; r++) gathered_take(array, r);
        if (status == AM_OK) status = gathered_gather(array, error);
        if (status == AM_OK) status = add_array(results, &list, array, part, shape, named->path, error);
        if (!writes) gathered_close(array);
    }
    const char *metadata[] = {"format", "automap-state-1", NULL};
    if (status == AM_OK && writes)
        status = array_file_write(results->options->save_path, list.arrays, list.count, metadata, error);
    for (int32_t k = 0; k < gathered; k++) gathered_close(&arrays[k]);
    return status;
}
