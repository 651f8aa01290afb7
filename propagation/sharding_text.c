/* SBP states as HLO sharding attributes.
 *
 * HLO says which device holds which tile as an array of devices: one dimension
 * per tensor dimension, then one for the devices that hold the same tile. That
 * array is the mesh, iota over [axis sizes], with its axes permuted to
 * (axes of dimension 0, axes of dimension 1, ..., partial axes, whole axes) and
 * reshaped. Neighbouring axes that stay together are written as one, so that
 * the natural order is plainly <=[devices].
 */
#include "propagation/propagate.h"

typedef struct AxisOrder {
    int32_t axes[MESH_MAX_AXES];
    int32_t count;
} AxisOrder;

/* Appends the axes of more than one device in a state; returns how many devices they have together. */
static int32_t append_axes(AxisOrder *order, const Mesh *mesh, SbpState state, Sbp wanted) {
    int32_t devices = 1;
    for (int32_t k = 0; k < mesh->axis_count; k++) {
        bool is_partial = sbp_is_partial(wanted) && sbp_is_partial(state.axis[k]);
        if (mesh->axes[k].size == 1 || (state.axis[k] != wanted && !is_partial)) continue;
        order->axes[order->count++] = k;
        devices *= mesh->axes[k].size;
    }
    return devices;
}

/* The mesh axis of more than one device that comes next after `axis`; -1: none. */
static int32_t next_axis(const Mesh *mesh, int32_t axis) {
    for (int32_t k = axis + 1; k < mesh->axis_count; k++) {
        if (mesh->axes[k].size > 1) return k;
    }
    return -1;
}

/* "<=[8]" or "<=[2,4]T(1,0)". */
static void print_iota(Text *text, const Mesh *mesh, const AxisOrder *order) {
    int32_t starts[MESH_MAX_AXES], sizes[MESH_MAX_AXES], blocks = 0; /* in permuted order */
    for (int32_t k = 0; k < order->count; k++) {
        int32_t axis = order->axes[k];
        if (k > 0 && next_axis(mesh, order->axes[k - 1]) == axis) {
            sizes[blocks - 1] *= mesh->axes[axis].size;
        } else {
            starts[blocks] = axis;
            sizes[blocks++] = mesh->axes[axis].size;
        }
    }
    int32_t place[MESH_MAX_AXES]; /* of each block in the order of the mesh */
    for (int32_t k = 0; k < blocks; k++) {
        place[k] = 0;
        for (int32_t other = 0; other < blocks; other++) place[k] += starts[other] < starts[k];
    }
    text_append_string(text, "<=[");
    for (int32_t at = 0; at < blocks; at++) {
        for (int32_t k = 0; k < blocks; k++) {
            if (place[k] == at) text_append(text, "%s%d", at ? "," : "", sizes[k]);
        }
    }
    text_append_string(text, "]");
    if (blocks < 2) return;
    text_append_string(text, "T(");
    for (int32_t k = 0; k < blocks; k++) text_append(text, "%s%d", k ? "," : "", place[k]);
    text_append_string(text, ")");
}

void propagation_sharding_text(Text *text, const Mesh *mesh, SbpState state, int32_t rank) {
    AxisOrder order = {.count = 0};
    int32_t tiles[IR_MAX_RANK];
    for (int32_t d = 0; d < rank; d++) tiles[d] = append_axes(&order, mesh, state, sbp_split(d));
    int32_t partial = append_axes(&order, mesh, state, sbp_partial(SBP_ADD));
    if (order.count == 0) {
        text_append_string(text, "{replicated}");
        return;
    }
    int32_t whole = append_axes(&order, mesh, state, SBP_B);
    text_append_string(text, "{devices=[");
    for (int32_t d = 0; d < rank; d++) text_append(text, "%s%d", d ? "," : "", tiles[d]);
    if (partial > 1) text_append(text, "%s%d", rank ? "," : "", partial);
    if (whole > 1) text_append(text, "%s%d", rank || partial > 1 ? "," : "", whole);
    text_append_string(text, "]");
    print_iota(text, mesh, &order);
    if (partial > 1) text_append(text, " last_tile_dims={unreduced%s}", whole > 1 ? ", replicated" : "");
    else if (whole > 1) text_append_string(text, " last_tile_dim_replicate");
    text_append_string(text, "}");
}

static int32_t array_rank(const IrInstruction *instruction) {
    return instruction->shape.type == DTYPE_TUPLE ? 0 : instruction->shape.rank;
}

void propagation_instruction_text(Text *text, const PlanContext *context, const Mesh *mesh,
                                  const SbpState *states, int32_t instruction) {
    const IrInstruction *value = &context->canonical->instructions[instruction];
    if (value->shape.type != DTYPE_TUPLE) {
        propagation_sharding_text(text, mesh, states[instruction], array_rank(value));
        return;
    }
    if (value->opcode != IR_TUPLE) { /* operators with several results stay whole */
        text_append_string(text, "{replicated}");
        return;
    }
    text_append_string(text, "{");
    for (int32_t k = 0; k < value->operand_count; k++) {
        if (k) text_append_string(text, ", ");
        propagation_instruction_text(text, context, mesh, states, value->operands[k]);
    }
    text_append_string(text, "}");
}
