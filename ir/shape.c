/* Shapes: sizes and comparison. Layouts never matter to either: an array's
 * value is meant in its logical, row-major order.
 */
#include "ir/module.h"

static int64_t saturating_add(int64_t a, int64_t b) {
    int64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}

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
    for (int32_t i = 0; i < shape->rank; i++) {
        bytes = saturating_add(bytes, ir_shape_bytes(&shape->elements[i]));
    }
    return bytes;
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
