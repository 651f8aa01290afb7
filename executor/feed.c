/* Feeds from files: which file has a parameter, whether its array fits, batches.
 *
 * Data parameters are looked for in the data file first, all others in the state
 * file first. bf16 may be stored raw, as unsigned integers that hold the bits, or
 * as f32 values that convert exactly.
 */
#include "executor/feed.h"

#include <stdlib.h>
#include <string.h>

#include "base/text.h"

AmStatus feed_open(FeedSource *source, const PlanContext *context, const AmRunOptions *options,
                   AmError *error) {
    *source = (FeedSource){.context = context, .options = options};
    const char *state = options->state_path;
    if (state && strcmp(state, "random") != 0) {
        TRY(array_file_open(&source->state, state, error));
        source->has_state = true;
    }
    if (options->data_path) {
        AmStatus status = array_file_open(&source->data, options->data_path, error);
        if (status != AM_OK) {
            feed_close(source);
            return status;
        }
        source->has_data = true;
    }
    return AM_OK;
}

void feed_close(FeedSource *source) {
    if (source->has_state) array_file_close(&source->state);
    if (source->has_data) array_file_close(&source->data);
    source->has_state = source->has_data = false;
}

void feed_release(Feed *feed) {
    free(feed->data);
    feed->data = NULL;
}

static void append_shape(Text *text, Dtype type, const int64_t *dimensions, int32_t rank) {
    text_append(text, "%s[", dtype_name(type));
    for (int32_t d = 0; d < rank; d++) text_append(text, d ? ",%lld" : "%lld", (long long)dimensions[d]);
    text_append(text, "]");
}

/* "FILE: 'PATH' is f32[3,4], expected f32[4,4]WHAT". */
static AmStatus fail_shape(const ArrayFile *file, const ArrayEntry *entry, const IrShape *shape,
                           const char *what, AmError *error) {
    Text text = {0};
    if (entry->type == DTYPE_INVALID) text_append_string(&text, "not of numbers");
    else append_shape(&text, entry->type, entry->dimensions, entry->rank);
    text_append(&text, ", expected ");
    append_shape(&text, shape->type, shape->dimensions, shape->rank);
    AmStatus status = am_fail(error, AM_ERROR_INPUT, file->path, "array '%s' is %s%s", entry->name,
                              text.data ? text.data : "of another shape", what);
    text_free(&text);
    return status;
}

/* Batches that the array holds, 0 if its shape does not fit. `*remainder`: examples left over. */
static int64_t count_batches(const ArrayEntry *entry, const IrShape *shape, int64_t *remainder) {
    int32_t rank = shape->rank, more = entry->rank - rank;
    *remainder = 0;
    if (more < 0 || more > 1) return 0;
    for (int32_t d = more == 1 ? 0 : 1; d < rank; d++)
        if (entry->dimensions[d + more] != shape->dimensions[d]) return 0;
    if (more == 1) return entry->dimensions[0];
    if (rank == 0 || entry->dimensions[0] == shape->dimensions[0]) return 1;
    if (shape->dimensions[0] <= 0 || entry->dimensions[0] < shape->dimensions[0]) return 0;
    *remainder = entry->dimensions[0] % shape->dimensions[0];
    return entry->dimensions[0] / shape->dimensions[0];
}

/* Whether values stored as `stored` can be a parameter of `type`. */
static bool type_fits(const ArrayEntry *entry, Dtype type) {
    Dtype stored = entry->type;
    if (stored == type) return true;
    if (type == DTYPE_BF16) return stored == DTYPE_U16 || stored == DTYPE_F32;
    if (entry->is_raw_byte) return dtype_is_floating(type) && dtype_bytes(type) == 1;
    return dtype_is_integer(type) && dtype_bits(type) < 8 &&
           stored == (dtype_is_signed(type) ? DTYPE_S8 : DTYPE_U8);
}

/* Whether all of the s8 or u8 are numbers of the narrower type. */
static bool bytes_fit(const char *data, int64_t count, Dtype type) {
    int32_t most = 1 << (dtype_bits(type) - (dtype_is_signed(type) ? 1 : 0));
    for (int64_t i = 0; i < count; i++) {
        int32_t value = dtype_is_signed(type) ? (int8_t)data[i] : (uint8_t)data[i];
        if (value >= most || value < (dtype_is_signed(type) ? -most : 0)) return false;
    }
    return true;
}

/* Converts `count` f32 values in place to bf16; false if one does not convert exactly. */
static bool narrow_exactly(char *data, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        float value;
        memcpy(&value, data + i * 4, sizeof value);
        uint16_t bits = dtype_float_to_bf16(value);
        float back = dtype_bf16_to_float(bits);
        if (memcmp(&back, &value, sizeof value) != 0 && back == back) return false;
        memcpy(data + i * 2, &bits, sizeof bits);
    }
    return true;
}

static AmStatus read_entry(Feed *feed, FeedSource *source, ArrayFile *file, const ArrayEntry *entry,
                           const IrParameter *parameter, AmError *error) {
    const IrShape *shape = &source->context->canonical->instructions[parameter->instruction].shape;
    int64_t remainder, batches = count_batches(entry, shape, &remainder);
    if (!type_fits(entry, shape->type) || batches < 1)
        return fail_shape(file, entry, shape, batches < 1 && shape->rank > 0 ? " or batches of it" : "",
                          error);
    bool several = entry->rank > shape->rank || batches > 1;
    if (several && parameter->role != IR_ROLE_DATA && parameter->role != IR_ROLE_CONSTANT)
        return fail_shape(file, entry, shape, " (only data comes in batches)", error);
    if (remainder > 0 && source->options->warnings)
        am_warn(source->options->warnings, "%s: the last %lld examples of '%s' fill no batch and are dropped",
                file->path, (long long)remainder, entry->name);
    feed->data = malloc((size_t)(entry->bytes > 0 ? entry->bytes : 1));
    if (!feed->data) return am_fail_memory(error, entry->bytes);
    feed->batches = batches;
    feed->batch_bytes = ir_shape_bytes(shape);
    feed->file = file->path;
    AmStatus status = array_file_read(file, entry, feed->data, error);
    if (status == AM_OK && entry->type == DTYPE_F32 && shape->type == DTYPE_BF16 &&
        !narrow_exactly(feed->data, entry->bytes / 4))
        status = am_fail(error, AM_ERROR_INPUT, file->path,
                         "array '%s' is f32 and holds values that bf16 cannot: expected bf16", entry->name);
    if (status == AM_OK && dtype_is_integer(shape->type) && dtype_bits(shape->type) < 8 &&
        !bytes_fit(feed->data, entry->bytes, shape->type))
        status = am_fail(error, AM_ERROR_INPUT, file->path, "array '%s' holds values that %s cannot",
                         entry->name, dtype_name(shape->type));
    if (status != AM_OK) feed_release(feed);
    return status;
}

static AmStatus draw(Feed *feed, FeedSource *source, const IrParameter *parameter, AmError *error) {
    const IrShape *shape = &source->context->canonical->instructions[parameter->instruction].shape;
    int64_t bytes = ir_shape_bytes(shape);
    *feed = (Feed){.data = calloc(1, (size_t)(bytes > 0 ? bytes : 1)), .batches = 1, .batch_bytes = bytes};
    if (!feed->data) return am_fail_memory(error, bytes);
    AmStatus status = feed_draw(feed->data, source->context, parameter->number, source->options->seed, error);
    if (status != AM_OK) feed_release(feed);
    return status;
}

AmStatus feed_read(Feed *feed, FeedSource *source, int32_t number, AmError *error) {
    const IrParameter *parameter = &source->context->roles->parameters[number];
    ArrayFile *files[2] = {source->has_state ? &source->state : NULL,
                           source->has_data ? &source->data : NULL};
    memset(feed, 0, sizeof *feed);
    if (parameter->role == IR_ROLE_DATA) {
        ArrayFile *first = files[0];
        files[0] = files[1];
        files[1] = first;
    }
    for (int32_t k = 0; k < 2; k++) {
        const ArrayEntry *entry = files[k] ? array_file_find(files[k], parameter->path) : NULL;
        if (entry) return read_entry(feed, source, files[k], entry, parameter, error);
    }
    const char *state = source->options->state_path;
    if (state && strcmp(state, "random") == 0) return draw(feed, source, parameter, error);
    return am_fail(error, AM_ERROR_INPUT,
                   files[0]   ? files[0]->path
                   : files[1] ? files[1]->path
                              : "",
                   "no array named '%s' (%s, entry parameter %d) in the state or the data", parameter->path,
                   ir_role_name(parameter->role), parameter->number);
}

AmStatus feed_align(Feed *feeds, const PlanContext *context, AmWarnings *warnings, AmError *error) {
    const IrRoles *roles = context->roles;
    int32_t first = -1;
    for (int32_t k = 0; k < roles->parameter_count; k++) {
        if (feeds[k].batches <= 1) continue;
        if (first < 0) first = k;
        if (feeds[k].batches == feeds[first].batches) continue;
        /* One batch more or less is a remainder; anything else is a mistake. */
        int64_t difference = feeds[k].batches - feeds[first].batches;
        if (difference > 1 || difference < -1)
            return am_fail(error, AM_ERROR_INPUT, feeds[k].file ? feeds[k].file : "",
                           "'%s' holds %lld batches and '%s' holds %lld: expected the same number",
                           roles->parameters[first].path, (long long)feeds[first].batches,
                           roles->parameters[k].path, (long long)feeds[k].batches);
        int64_t least = difference < 0 ? feeds[k].batches : feeds[first].batches;
        if (warnings)
            am_warn(warnings, "'%s' and '%s' hold different numbers of batches: only %lld are used",
                    roles->parameters[first].path, roles->parameters[k].path, (long long)least);
        for (int32_t j = 0; j <= k; j++)
            if (feeds[j].batches > 1) feeds[j].batches = least;
    }
    return AM_OK;
}
