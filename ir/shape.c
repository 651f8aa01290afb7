/* Shapes: sizes, comparison and text. These functions ignore layouts: the value of an array is
 * defined in its logical, row-major order.
 */
#include "ir/module.h"

int64_t ir_shape_elements(const IrShape *shape) {
    int64_t elements = 1;
    for (int32_t i = 0; i < shape->rank; i++) elements *= shape->dimensions[i];
    return elements;
}

int64_t ir_shape_bytes(const IrShape *shape) {
    if (shape->type != DTYPE_TUPLE) {
        int64_t each = dtype_bytes(shape->type);
        return each == 0 ? 0 : each * ir_shape_elements(shape);
    }
    int64_t bytes = 0;
    for (int32_t i = 0; i < shape->rank; i++)
        if (__builtin_add_overflow(bytes, ir_shape_bytes(&shape->elements[i]), &bytes)) return INT64_MAX;
    return bytes;
}

bool ir_shape_is_unbounded(const IrShape *shape) {
    for (int32_t i = 0; i < shape->rank; i++) {
        if (shape->type == DTYPE_TUPLE ? ir_shape_is_unbounded(&shape->elements[i])
                                       : shape->dimensions[i] == IR_UNBOUNDED)
            return true;
    }
    return false;
}

bool ir_shape_equal(const IrShape *a, const IrShape *b) {
    if (a->type != b->type || a->rank != b->rank) return false;
    for (int32_t i = 0; i < a->rank; i++) {
        if (a->type == DTYPE_TUPLE) {
            if (!ir_shape_equal(&a->elements[i], &b->elements[i])) return false;
        } else if (a->dimensions[i] != b->dimensions[i]) {
            return false;
        }
    }
    return true;
}

void ir_shape_append(Text *text, const IrShape *shape) {
    bool is_tuple = shape->type == DTYPE_TUPLE;
    if (!is_tuple) text_append_string(text, dtype_name(shape->type));
    if (!is_tuple && dtype_bits(shape->type) == 0) {
        text_append_string(text, "[]"); /* token, opaque */
        return;
    }
    text_append_string(text, is_tuple ? "(" : "[");
    for (int32_t i = 0; i < shape->rank; i++) {
        if (i > 0) text_append_string(text, is_tuple ? ", " : ",");
        if (is_tuple) {
            ir_shape_append(text, &shape->elements[i]);
        } else if (shape->dimensions[i] == IR_UNBOUNDED) {
            text_append_string(text, "?");
        } else {
            text_append(text, "%lld", (long long)shape->dimensions[i]);
        }
    }
    text_append_string(text, is_tuple ? ")" : "]");
}

/* Returns whether elements are stored in logical order; dimensions of size 1 may have any position. */
static bool is_row_major(const IrShape *shape) {
    int64_t before = shape->rank;
    for (int32_t d = 0; shape->minor_to_major && d < shape->rank; d++) {
        int64_t dimension = shape->minor_to_major[d];
        if (shape->dimensions[dimension] == 1) continue;
        if (dimension > before) return false;
        before = dimension;
    }
    return true;
}

bool ir_bitcast_is_reshape(const IrShape *operand, const IrShape *result) {
    return is_row_major(operand) && is_row_major(result);
}

int64_t ir_window_positions(int64_t size, const IrWindowDimension *window) {
    int64_t base = 0, reach, padded;
    bool overflow = size > 0 && (__builtin_mul_overflow(size - 1, window->base_dilation, &base) ||
                                 __builtin_add_overflow(base, 1, &base));
    overflow = overflow || __builtin_mul_overflow(window->size - 1, window->window_dilation, &reach) ||
               __builtin_add_overflow(base, window->padding_low, &padded) ||
               __builtin_add_overflow(padded, window->padding_high, &padded) ||
               __builtin_add_overflow(reach, 1, &reach);
    if (overflow || window->size < 1 || padded < 0) return -1;
    return padded < reach ? 0 : (padded - reach) / window->stride + 1;
}
