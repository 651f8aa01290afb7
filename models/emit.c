/* Emits HLO text, one instruction after the other, with the shapes that follow from operands.
 *
 * An emit function appends a line such as "%v7 = f32[8] add(%v5, %v6)" and returns its value. Instructions
 * between emit_begin_kernel() and emit_end_kernel() get names of one fused kernel
 * (cost/operator/fused_kernels.h). emit_module() puts the header, the regions of reductions and the entry
 * around the lines.
 */
#include "models/emit.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void append_shape(Text *text, EmitValue shape) {
    text_append(text, "%s[", dtype_name(shape.type));
    for (int32_t k = 0; k < shape.rank; k++)
        text_append(text, "%s%lld", k ? "," : "", (long long)shape.dimensions[k]);
    text_append_string(text, "]");
}

static void append_list(Text *text, const char *name, const int32_t *items, int32_t count) {
    text_append(text, ", %s={", name);
    for (int32_t k = 0; k < count; k++) text_append(text, "%s%d", k ? "," : "", (int)items[k]);
    text_append_string(text, "}");
}

/* Names the last instruction after the kernel. */
static void close_line(Emitter *self) {
    if (!self->is_open || self->text.length == 0 || self->text.data[self->text.length - 1] != '\n') return;
    self->text.data[--self->text.length] = '\0';
    text_append(&self->text, ", metadata={op_name=\"fused/%s/%s%d\"}\n", self->kernel,
                self->waits ? "waits/" : "", (int)self->kernel_count);
    self->is_open = false;
}

void emit_begin_kernel(Emitter *self, const char *kind) {
    close_line(self);
    self->kernel = kind;
    self->waits = false;
    self->kernel_count++;
}

void emit_wait_for_device(Emitter *self) {
    self->waits = true;
}

void emit_begin_separate_kernels(Emitter *self) {
    emit_begin_kernel(self, "kernel");
    self->is_separate = true;
}

void emit_end_kernel(Emitter *self) {
    close_line(self);
    self->kernel = NULL;
    self->is_separate = false;
}

/* Begins an instruction of that shape: "%v7 = f32[8] add(". */
static EmitValue begin(Emitter *self, EmitValue shape, const char *opcode) {
    close_line(self);
    self->is_open = self->kernel != NULL;
    if (self->is_separate) self->kernel_count++;
    shape.number = ++self->count;
    text_append(&self->text, "  %%v%d = ", (int)shape.number);
    append_shape(&self->text, shape);
    text_append(&self->text, " %s(", opcode);
    return shape;
}

EmitValue emit_shape(Dtype type, int32_t rank, const int64_t *dimensions) {
    EmitValue shape = {.type = type, .rank = rank};
    for (int32_t k = 0; k < rank; k++) shape.dimensions[k] = dimensions[k];
    return shape;
}

EmitValue emit_parameter(Emitter *self, EmitValue shape, const char *path) {
    EmitValue value = begin(self, shape, "parameter");
    text_append(&self->text, "%d), metadata={op_name=\"%s\"}\n", (int)self->parameter_count++, path);
    return value;
}

EmitValue emit_unary(Emitter *self, const char *opcode, EmitValue operand) {
    EmitValue value = begin(self, operand, opcode);
    text_append(&self->text, "%%v%d)\n", (int)operand.number);
    return value;
}

EmitValue emit_binary(Emitter *self, const char *opcode, EmitValue left, EmitValue right) {
    EmitValue value = begin(self, left, opcode);
    text_append(&self->text, "%%v%d, %%v%d)\n", (int)left.number, (int)right.number);
    return value;
}

EmitValue emit_compare(Emitter *self, const char *direction, EmitValue left, EmitValue right) {
    EmitValue shape = left;
    shape.type = DTYPE_PRED;
    EmitValue value = begin(self, shape, "compare");
    text_append(&self->text, "%%v%d, %%v%d), direction=%s\n", (int)left.number, (int)right.number, direction);
    return value;
}

EmitValue emit_select(Emitter *self, EmitValue condition, EmitValue yes, EmitValue no) {
    EmitValue value = begin(self, yes, "select");
    text_append(&self->text, "%%v%d, %%v%d, %%v%d)\n", (int)condition.number, (int)yes.number,
                (int)no.number);
    return value;
}

EmitValue emit_convert(Emitter *self, EmitValue operand, Dtype type) {
    if (operand.type == type) return operand;
    EmitValue shape = operand;
    shape.type = type;
    EmitValue value = begin(self, shape, "convert");
    text_append(&self->text, "%%v%d)\n", (int)operand.number);
    return value;
}

static EmitValue emit_constant(Emitter *self, double constant, Dtype type) {
    EmitValue value = begin(self, emit_shape(type, 0, NULL), "constant");
    if (isinf(constant)) text_append_string(&self->text, constant < 0 ? "-inf" : "inf");
    else text_append_double(&self->text, constant);
    text_append_string(&self->text, ")\n");
    return value;
}

EmitValue emit_fill(Emitter *self, double constant, EmitValue like) {
    EmitValue scalar = emit_constant(self, constant, like.type);
    return emit_broadcast(self, scalar, like, NULL);
}

EmitValue emit_scaled(Emitter *self, const char *operation, EmitValue operand, double constant) {
    return emit_binary(self, operation, operand, emit_fill(self, constant, operand));
}

EmitValue emit_broadcast(Emitter *self, EmitValue operand, EmitValue like, const int32_t *map) {
    if (operand.rank == like.rank && operand.rank == 0) return operand;
    like.type = operand.type;
    EmitValue value = begin(self, like, "broadcast");
    text_append(&self->text, "%%v%d)", (int)operand.number);
    append_list(&self->text, "dimensions", map, operand.rank);
    text_append_string(&self->text, "\n");
    return value;
}

EmitValue emit_iota(Emitter *self, EmitValue shape, int32_t dimension) {
    EmitValue value = begin(self, shape, "iota");
    text_append(&self->text, "), iota_dimension=%d\n", (int)dimension);
    return value;
}

EmitValue emit_reshape(Emitter *self, EmitValue operand, int32_t rank, const int64_t *dimensions) {
    EmitValue value = begin(self, emit_shape(operand.type, rank, dimensions), "reshape");
    text_append(&self->text, "%%v%d)\n", (int)operand.number);
    return value;
}

EmitValue emit_transpose(Emitter *self, EmitValue operand, const int32_t *order) {
    EmitValue shape = operand;
    for (int32_t k = 0; k < operand.rank; k++) shape.dimensions[k] = operand.dimensions[order[k]];
    EmitValue value = begin(self, shape, "transpose");
    text_append(&self->text, "%%v%d)", (int)operand.number);
    append_list(&self->text, "dimensions", order, operand.rank);
    text_append_string(&self->text, "\n");
    return value;
}

static bool has(const int32_t *list, int32_t count, int32_t item) {
    for (int32_t k = 0; k < count; k++)
        if (list[k] == item) return true;
    return false;
}

/* Appends the dimensions of `from` that are in neither list to those of `shape`. */
static void add_free(EmitValue *shape, EmitValue from, const int32_t *batch, int32_t batch_count,
                     const int32_t *contracting, int32_t contracting_count) {
    for (int32_t k = 0; k < from.rank && shape->rank < EMIT_MAX_RANK; k++)
        if (!has(batch, batch_count, k) && !has(contracting, contracting_count, k))
            shape->dimensions[shape->rank++] = from.dimensions[k];
}

EmitValue emit_reduce(Emitter *self, const char *operation, EmitValue operand, int32_t count,
                      const int32_t *dimensions) {
    EmitValue shape = {.type = operand.type};
    bool is_sum = strcmp(operation, "add") == 0;
    EmitValue start = emit_constant(self, is_sum ? 0 : (double)-INFINITY, operand.type);
    add_free(&shape, operand, NULL, 0, dimensions, count);
    EmitValue value = begin(self, shape, "reduce");
    text_append(&self->text, "%%v%d, %%v%d)", (int)operand.number, (int)start.number);
    append_list(&self->text, "dimensions", dimensions, count);
    text_append(&self->text, ", to_apply=%%%s.%s\n", operation, dtype_name(operand.type));
    return value;
}

EmitValue emit_dot(Emitter *self, EmitValue left, EmitValue right, const EmitDot *dot) {
    EmitValue shape = {.type = left.type};
    for (int32_t k = 0; k < dot->batch_count; k++)
        shape.dimensions[shape.rank++] = left.dimensions[dot->lhs_batch[k]];
    add_free(&shape, left, dot->lhs_batch, dot->batch_count, dot->lhs_contracting, dot->contracting_count);
    add_free(&shape, right, dot->rhs_batch, dot->batch_count, dot->rhs_contracting, dot->contracting_count);
    EmitValue value = begin(self, shape, "dot");
    text_append(&self->text, "%%v%d, %%v%d)", (int)left.number, (int)right.number);
    if (dot->batch_count > 0) append_list(&self->text, "lhs_batch_dims", dot->lhs_batch, dot->batch_count);
    append_list(&self->text, "lhs_contracting_dims", dot->lhs_contracting, dot->contracting_count);
    if (dot->batch_count > 0) append_list(&self->text, "rhs_batch_dims", dot->rhs_batch, dot->batch_count);
    append_list(&self->text, "rhs_contracting_dims", dot->rhs_contracting, dot->contracting_count);
    text_append_string(&self->text, "\n");
    return value;
}

EmitValue emit_slice(Emitter *self, EmitValue operand, int32_t dimension, int64_t start, int64_t limit) {
    EmitValue shape = operand;
    shape.dimensions[dimension] = limit - start;
    EmitValue value = begin(self, shape, "slice");
    text_append(&self->text, "%%v%d), slice={", (int)operand.number);
    for (int32_t k = 0; k < operand.rank; k++)
        text_append(&self->text, "%s[%lld:%lld]", k ? ", " : "", k == dimension ? (long long)start : 0LL,
                    (long long)(k == dimension ? limit : operand.dimensions[k]));
    text_append_string(&self->text, "}\n");
    return value;
}

EmitValue emit_concatenate(Emitter *self, EmitValue left, EmitValue right, int32_t dimension) {
    EmitValue shape = left;
    shape.dimensions[dimension] += right.dimensions[dimension];
    EmitValue value = begin(self, shape, "concatenate");
    text_append(&self->text, "%%v%d, %%v%d), dimensions={%d}\n", (int)left.number, (int)right.number,
                (int)dimension);
    return value;
}

static EmitValue row_indices(Emitter *self, EmitValue tokens) {
    int64_t dimensions[] = {tokens.dimensions[0], tokens.dimensions[1], 1};
    return emit_reshape(self, tokens, 3, dimensions);
}

EmitValue emit_gather_rows(Emitter *self, EmitValue table, EmitValue tokens) {
    int64_t dimensions[] = {tokens.dimensions[0], tokens.dimensions[1], table.dimensions[1]};
    EmitValue indices = row_indices(self, tokens);
    EmitValue value = begin(self, emit_shape(table.type, 3, dimensions), "gather");
    text_append(&self->text,
                "%%v%d, %%v%d), offset_dims={2}, collapsed_slice_dims={0}, start_index_map={0}, "
                "index_vector_dim=2, slice_sizes={1,%lld}\n",
                (int)table.number, (int)indices.number, (long long)table.dimensions[1]);
    return value;
}

EmitValue emit_scatter_rows(Emitter *self, EmitValue table, EmitValue tokens, EmitValue updates) {
    table.type = updates.type;
    EmitValue zeros = emit_fill(self, 0, table), indices = row_indices(self, tokens);
    EmitValue value = begin(self, table, "scatter");
    text_append(&self->text,
                "%%v%d, %%v%d, %%v%d), update_window_dims={2}, inserted_window_dims={0}, "
                "scatter_dims_to_operand_dims={0}, index_vector_dim=2, to_apply=%%add.%s\n",
                (int)zeros.number, (int)indices.number, (int)updates.number, dtype_name(updates.type));
    return value;
}

static void append_tuple_shape(Text *text, EmitValue **values, int32_t count) {
    text_append_string(text, "(");
    for (int32_t k = 0; k < count; k++) {
        if (k) text_append_string(text, ", ");
        append_shape(text, *values[k]);
    }
    text_append_string(text, ")");
}

EmitValue emit_bits(Emitter *self, EmitValue operand) {
    EmitValue shape = operand;
    shape.type = dtype_bytes(operand.type) == 2 ? DTYPE_U16 : DTYPE_U32;
    EmitValue value = begin(self, shape, "bitcast-convert");
    text_append(&self->text, "%%v%d)\n", (int)operand.number);
    return value;
}

void emit_barrier(Emitter *self, EmitValue **values, int32_t count) {
    int32_t tuple = ++self->count, barrier = ++self->count;
    text_append(&self->text, "  %%v%d = ", (int)tuple);
    append_tuple_shape(&self->text, values, count);
    text_append_string(&self->text, " tuple(");
    for (int32_t k = 0; k < count; k++)
        text_append(&self->text, "%s%%v%d", k ? ", " : "", (int)values[k]->number);
    text_append(&self->text, ")\n  %%v%d = ", (int)barrier);
    append_tuple_shape(&self->text, values, count);
    text_append(&self->text, " opt-barrier(%%v%d)\n", (int)tuple);
    for (int32_t k = 0; k < count; k++) {
        *values[k] = begin(self, *values[k], "get-tuple-element");
        text_append(&self->text, "%%v%d), index=%d\n", (int)barrier, (int)k);
    }
}

static void append_region(Text *text, const char *name, const char *opcode, const char *type) {
    text_append(text,
                "%%%s.%s {\n  %%left = %s[] parameter(0)\n  %%right = %s[] parameter(1)\n"
                "  ROOT %%result = %s[] %s(%%left, %%right)\n}\n\n",
                name, type, type, type, type, opcode);
}

void emit_module(Text *text, const Emitter *self, const char *name, const EmitValue *results,
                 const int32_t *aliases, int32_t count) {
    const char *separator = "";
    text_append(text, "HloModule %s, input_output_alias={", name);
    for (int32_t k = 0; k < count; k++) {
        if (aliases[k] < 0) continue;
        text_append(text, "%s {%d}: (%d, {}, may-alias)", separator, (int)k, (int)aliases[k]);
        separator = ",";
    }
    text_append_string(text, " }\n\n");
    append_region(text, "add", "add", "f32");
    append_region(text, "maximum", "maximum", "f32");
    static const char *const narrow[] = {"bf16", "f16"};
    for (int32_t k = 0; k < 2; k++) {
        char use[32];
        snprintf(use, sizeof use, "to_apply=%%add.%s\n", narrow[k]);
        if (self->text.data && strstr(self->text.data, use)) append_region(text, "add", "add", narrow[k]);
    }
    text_append_string(text, "ENTRY %main {\n");
    if (self->text.failed) text->failed = true;
    else text_append_bytes(text, self->text.data, self->text.length);
    text_append_string(text, "  ROOT %results = (");
    for (int32_t k = 0; k < count; k++) {
        if (k) text_append_string(text, ", ");
        append_shape(text, results[k]);
    }
    text_append_string(text, ") tuple(");
    for (int32_t k = 0; k < count; k++) text_append(text, "%s%%v%d", k ? ", " : "", (int)results[k].number);
    text_append_string(text, ")\n}\n");
}
