/* Converts the shapes of a message to IrShape. Dimensions are not copied: they point into the
 * message. These properties are checked, and later passes rely on them: known types, rank at most
 * IR_MAX_RANK, sizes >= 0 with a product below 2^62 bytes, layouts that are permutations, tuples of
 * bounded depth.
 */
#include "ir/build/build_parts.h"

static const int64_t MOST_BYTES = (int64_t)1 << 62;

/* Sets the layout of a shape: NULL for row-major, which is minor_to_major = rank-1, ..., 0. */
static AmStatus build_layout(const Builder *builder, IrShape *shape, const Hlo__LayoutProto *layout,
                             const Hlo__HloInstructionProto *owner) {
    if (layout == NULL || layout->n_minor_to_major == 0) return AM_OK;
    if (layout->n_minor_to_major != (size_t)shape->rank) {
        return build_refuse(builder, owner, "its layout has %zu dimensions, expected %d",
                            layout->n_minor_to_major, shape->rank);
    }
    if (layout->index_primitive_type || layout->pointer_primitive_type) {
        return build_refuse(builder, owner,
                            "its layout has types of indices or pointers, which only sparse "
                            "arrays have; they are not supported");
    }
    uint32_t seen = 0;
    bool row_major = true;
    for (int32_t i = 0; i < shape->rank; i++) {
        int64_t dimension = layout->minor_to_major[i];
        if (dimension < 0 || dimension >= shape->rank || (seen >> dimension & 1)) {
            return build_refuse(builder, owner, "its layout is no permutation of the dimensions 0 to %d",
                                shape->rank - 1);
        }
        seen |= (uint32_t)1 << dimension;
        row_major = row_major && dimension == shape->rank - 1 - i;
    }
    if (!row_major) shape->minor_to_major = layout->minor_to_major;
    return AM_OK;
}

static AmStatus build_array(const Builder *builder, IrShape *shape, const Hlo__ShapeProto *message,
                            const Hlo__HloInstructionProto *owner) {
    if (message->n_dimensions > IR_MAX_RANK) {
        return build_refuse(builder, owner, "its shape has %zu dimensions, expected at most %d",
                            message->n_dimensions, IR_MAX_RANK);
    }
    shape->rank = (int32_t)message->n_dimensions;
    shape->dimensions = message->dimensions;
    int64_t bytes = dtype_bytes(shape->type);
    bool too_large = false;
    for (int32_t i = 0; i < shape->rank; i++) {
        int64_t size = shape->dimensions[i];
        bool is_dynamic = (size_t)i < message->n_is_dynamic_dimension && message->is_dynamic_dimension[i];
        if (size == IR_UNBOUNDED && is_dynamic) {
            if (!builder->module->unbounded) builder->module->unbounded = owner->name;
            continue;
        }
        if (size < 0) {
            return build_refuse(builder, owner,
                                "dimension %d of its shape is negative, expected a size of 0 or more", i);
        }
        too_large =
            too_large || __builtin_mul_overflow(bytes, size == 0 ? 1 : size, &bytes) || bytes > MOST_BYTES;
    }
    if (too_large) return build_refuse(builder, owner, "its shape has more than 2^62 bytes");
    return build_layout(builder, shape, message->layout, owner);
}

static AmStatus build_nested(const Builder *builder, IrShape *shape, const Hlo__ShapeProto *message,
                             const Hlo__HloInstructionProto *owner, int32_t depth) {
    if (depth > IR_MAX_TUPLE_DEPTH) {
        return build_refuse(builder, owner, "its tuples are nested more than %d deep", IR_MAX_TUPLE_DEPTH);
    }
    shape->type = (Dtype)message->element_type;
    if ((int)message->element_type <= DTYPE_INVALID || (int)message->element_type >= DTYPE_COUNT) {
        return build_refuse(builder, owner, "its shape has the unknown element type %d",
                            (int)message->element_type);
    }
    if (dtype_bits(shape->type) > 0) return build_array(builder, shape, message, owner);
    if (shape->type != DTYPE_TUPLE) return AM_OK; /* token, opaque, buffer: nothing to split or count */

    IrShape *elements = ARENA_ARRAY(builder->arena, IrShape, message->n_tuple_shapes);
    if (elements == NULL)
        return am_fail_memory(builder->error, (int64_t)(message->n_tuple_shapes * sizeof *elements));
    shape->rank = (int32_t)message->n_tuple_shapes;
    shape->elements = elements;
    for (int32_t i = 0; i < shape->rank; i++) {
        TRY(build_nested(builder, &elements[i], message->tuple_shapes[i], owner, depth + 1));
    }
    return AM_OK;
}

AmStatus build_shape(const Builder *builder, IrShape *shape, const Hlo__ShapeProto *message,
                     const Hlo__HloInstructionProto *owner) {
    if (message == NULL) return build_refuse(builder, owner, "it has no shape");
    return build_nested(builder, shape, message, owner, 0);
}
