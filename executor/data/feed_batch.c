/* One parameter's examples: whether an array or tokens fit it, and reading them.
 *
 * bf16 may be stored raw, as unsigned integers that hold the bits, or as f32 values
 * that convert exactly; integers of less than 8 bits as bytes.
 */
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "executor/data/feed_source.h"

static void append_shape(Text *text, Dtype type, const int64_t *dimensions, int32_t rank) {
    text_append(text, "%s[", dtype_name(type));
    for (int32_t d = 0; d < rank; d++) text_append(text, d ? ",%lld" : "%lld", (long long)dimensions[d]);
    text_append(text, "]");
}

/* Fails with "FILE: 'PATH' is f32[3,4], expected f32[4,4]WHAT". */
static AmStatus fail_shape(const Feed *feed, const ArrayEntry *entry, const char *what, AmError *error) {
    Text text = {0};
    if (entry->type == DTYPE_INVALID) text_append_string(&text, "not of numbers");
    else append_shape(&text, entry->type, entry->dimensions, entry->rank);
    text_append(&text, ", expected ");
    append_shape(&text, feed->shape->type, feed->shape->dimensions, feed->shape->rank);
    AmStatus status = am_fail(error, AM_ERROR_INPUT, feed->path, "array '%s' is %s%s", entry->name,
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

/* Returns whether values stored as `stored` can be a parameter of `type`. */
static bool type_fits(const ArrayEntry *entry, Dtype type) {
    Dtype stored = entry->type;
    if (stored == type) return true;
    if (type == DTYPE_BF16) return stored == DTYPE_U16 || stored == DTYPE_F32;
    if (entry->is_raw_byte) return dtype_is_floating(type) && dtype_bytes(type) == 1;
    return dtype_is_integer(type) && dtype_bits(type) < 8 &&
           stored == (dtype_is_signed(type) ? DTYPE_S8 : DTYPE_U8);
}

/* Returns whether all of the s8 or u8 are numbers of the narrower type. */
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

/* Converts the values to the type of the parameter, in place. */
static AmStatus convert_values(const Feed *feed, char *data, AmError *error) {
    Dtype type = feed->shape->type;
    int64_t count = ir_shape_elements(feed->shape);
    if (feed->stored == DTYPE_F32 && type == DTYPE_BF16 && !narrow_exactly(data, count))
        return am_fail(error, AM_ERROR_INPUT, feed->path,
                       "array '%s' is f32 and holds values that bf16 cannot: expected bf16", feed->array);
    if (dtype_is_integer(type) && dtype_bits(type) < 8 && !bytes_fit(data, count, type))
        return am_fail(error, AM_ERROR_INPUT, feed->path, "array '%s' holds values that %s cannot",
                       feed->array, dtype_name(type));
    return AM_OK;
}

static AmStatus open_array(Feed *feed, const FeedSource *source, FeedFile *file, const ArrayEntry *entry,
                           AmError *error) {
    const IrShape *shape = feed->shape;
    IrRole role = feed->parameter->role;
    int64_t remainder;
    feed->batches = count_batches(entry, shape, &remainder);
    if (!type_fits(entry, shape->type) || feed->batches < 1)
        return fail_shape(feed, entry, feed->batches < 1 && shape->rank > 0 ? " or batches of it" : "",
                          error);
    bool several = entry->rank > shape->rank || feed->batches > 1 || remainder > 0;
    if (several && role != IR_ROLE_DATA && role != IR_ROLE_CONSTANT)
        return fail_shape(feed, entry, " (only data comes in batches)", error);
    feed->array = arena_copy_string(source->arena, entry->name);
    if (!feed->array) return am_fail_memory(error, (int64_t)strlen(entry->name));
    feed->stored = entry->type;
    int64_t stored_bytes = ir_shape_elements(shape) * dtype_bytes(entry->type);
    if (stored_bytes > feed->batch_bytes) feed->batch_bytes = stored_bytes;
    if (feed->batches == 1 && remainder == 0) {
        feed->once = malloc((size_t)feed->batch_bytes + 1);
        if (!feed->once) return am_fail_memory(error, feed->batch_bytes);
        TRY(array_file_read(&file->arrays, entry, feed->once, error));
        return convert_values(feed, feed->once, error);
    }
    feed->in_order = shape->rank == 0 || role != IR_ROLE_DATA;
    feed->per_batch = shape->rank > 0 && shape->dimensions[0] > 0 ? shape->dimensions[0] : 1;
    feed->examples = feed->batches * feed->per_batch + remainder;
    if (remainder > 0 && source->options->warnings)
        am_warn(source->options->warnings, "%s: the last %lld examples of '%s' fill no batch and are %s",
                feed->path, (long long)remainder, entry->name,
                source->options->shuffle ? "left out, others in every epoch" : "dropped");
    TRY(array_rows_open(&feed->rows, &file->arrays, entry, feed->examples, error));
    feed->rows.file.path = feed->path;
    feed->has_rows = true;
    return AM_OK;
}

/* Opens windows of tokens. A window has T + 1 tokens for one row of inputs and one of targets, or T
 * for inputs alone. Adjacent windows share one token. */
static AmStatus open_tokens(Feed *feed, const FeedSource *source, const FeedFile *file, AmError *error) {
    const IrShape *shape = feed->shape;
    int64_t length = shape->dimensions[shape->rank - 1], whole = length + (file->targets >= 0 ? 1 : 0);
    TRY(token_file_open(&feed->tokens, file->path, error));
    feed->has_tokens = true;
    feed->window = length;
    feed->stride = whole > 1 ? whole - 1 : 1;
    feed->shift = feed->parameter->number == file->targets ? 1 : 0;
    feed->per_batch = ir_shape_elements(shape) / length;
    int64_t tokens = feed->tokens.count;
    feed->examples = tokens < whole ? 0 : (tokens - whole) / feed->stride + 1;
    feed->batches = feed->examples / feed->per_batch;
    if (feed->batches == 0)
        return am_fail(error, AM_ERROR_INPUT, file->path,
                       "holds %lld tokens, too few for one batch: %lld windows of %lld take %lld",
                       (long long)tokens, (long long)feed->per_batch, (long long)whole,
                       (long long)(feed->stride * (feed->per_batch - 1) + whole));
    int64_t remainder = feed->examples % feed->per_batch;
    char windows[32];
    snprintf(windows, sizeof windows, "%lld windows", (long long)remainder);
    if (remainder > 0 && source->options->warnings)
        am_warn(source->options->warnings, "%s: the last %s of %lld tokens %s no batch: %s", file->path,
                remainder == 1 ? "window" : windows, (long long)whole, remainder == 1 ? "fills" : "fill",
                source->options->shuffle ? "left out, others in every epoch" : "dropped");
    feed->values = malloc(sizeof(int64_t) * (size_t)length);
    feed->bytes = malloc(sizeof(int64_t) * (size_t)length);
    if (!feed->values || !feed->bytes) return am_fail_memory(error, 8 * length);
    /* the vocabulary: the dimension that the inputs index; the targets have the same one */
    int64_t vocabulary = 0;
    /* Tokens are below one above the largest value that the type holds. */
    Dtype type = feed->shape->type;
    int32_t bits = dtype_bits(type) - (dtype_is_signed(type) ? 1 : 0);
    feed->limit = bits >= 63 ? INT64_MAX : (int64_t)1 << bits;
    TRY(feed_index_limit(&vocabulary, source->context, file->inputs, error));
    if (vocabulary == 0 && file->targets >= 0)
        TRY(feed_index_limit(&vocabulary, source->context, file->targets, error));
    if (vocabulary > 0 && vocabulary < feed->limit) feed->limit = vocabulary;
    return AM_OK;
}

AmStatus feed_open(Feed *feed, FeedSource *source, int32_t number, AmError *error) {
    const IrParameter *parameter = plan_context_parameter(source->context, number);
    FeedFile *file;
    const ArrayEntry *entry;
    *feed = (Feed){.parameter = parameter,
                   .shape = &plan_context_instruction(source->context, parameter->instruction)->shape,
                   .batches = 1};
    feed->batch_bytes = ir_shape_bytes(feed->shape);
    TRY(feed_source_find(&file, &entry, source, number, error));
    if (!file) {
        feed->once = calloc(1, (size_t)feed->batch_bytes + 1);
        if (!feed->once) return am_fail_memory(error, feed->batch_bytes);
        return feed_draw(feed->once, source->context, feed->parameter->number, source->options->seed, error);
    }
    feed->path = arena_copy_string(source->arena, file->path);
    if (!feed->path) return am_fail_memory(error, (int64_t)strlen(file->path));
    if (file->is_tokens) return open_tokens(feed, source, file, error);
    return open_array(feed, source, file, entry, error);
}

void feed_close(Feed *feed) {
    if (feed->has_rows) array_rows_close(&feed->rows);
    if (feed->has_tokens) token_file_close(&feed->tokens);
    free(feed->once);
    free(feed->values);
    free(feed->bytes);
    feed->once = NULL;
    feed->values = NULL;
    feed->bytes = NULL;
    feed->has_rows = feed->has_tokens = false;
}

static AmStatus read_examples(const Feed *feed, int64_t first, int64_t count, char *data, AmError *error) {
    if (feed->has_rows) return array_rows_read(&feed->rows, first, count, data, error);
    int64_t width = dtype_bytes(feed->shape->type);
    for (int64_t k = 0; k < count; k++) {
        TRY(token_file_read(&feed->tokens, (first + k) * feed->stride + feed->shift, feed->window,
                            feed->limit, feed->bytes, feed->values, error));
        /* The values fit in the parameter's integers of `width` bytes, the lowest byte first. */
        char *example = data + k * feed->window * width;
        for (int64_t n = 0; n < feed->window; n++)
            for (int64_t b = 0; b < width; b++) example[n * width + b] = (char)(feed->values[n] >> (8 * b));
    }
    return AM_OK;
}

AmStatus feed_read_batch(const Feed *feed, const int64_t *chosen, int64_t batch, char *data, AmError *error) {
    int64_t bytes = feed->has_rows ? feed->rows.row_bytes : feed->batch_bytes / feed->per_batch;
    if (!chosen || feed->in_order) {
        TRY(read_examples(feed, batch * feed->per_batch, feed->per_batch, data, error));
    } else {
        for (int64_t k = 0; k < feed->per_batch; k++)
            TRY(read_examples(feed, chosen[k], 1, data + k * bytes, error));
    }
    return feed->has_rows ? convert_values(feed, data, error) : AM_OK;
}
