/* Emission of HLO text, one instruction after the other, with the shapes that follow from operands.
 *
 * Example: emit_binary(&emitter, "add", a, b) appends `%v7 = f32[8,16] add(%v5, %v6)` to the text. The text
 * is read by the reader of HLO texts, which checks it as any other module.
 */
#ifndef MODELS_EMIT_H
#define MODELS_EMIT_H

#include "base/dtype.h"
#include "base/text.h"

#define EMIT_MAX_RANK 6

/* A value of the module: the number of its instruction and its shape. */
typedef struct EmitValue {
    int32_t number; /* 0: none */
    Dtype type;
    int32_t rank;
    int64_t dimensions[EMIT_MAX_RANK];
} EmitValue;

typedef struct Emitter {
    Text text; /* the instructions of the entry; the caller frees it */
    int32_t count;
    int32_t parameter_count;
    const char
        *kernel; /* "attention_forward", ...: instructions belong to this fused kernel; NULL: to none */
    int32_t kernel_count;
    bool is_open;     /* the last line has no name yet */
    bool waits;       /* the host waits for the device before it enqueues the kernel */
    bool is_separate; /* each instruction is a kernel of its own */
} Emitter;

/* Dimensions of a product, as in HLO's dot; lists end at the counts. */
typedef struct EmitDot {
    int32_t batch_count, contracting_count;
    int32_t lhs_batch[2], rhs_batch[2], lhs_contracting[2], rhs_contracting[2];
} EmitDot;

/* Begins a fused kernel: instructions up to emit_end_kernel() are named "fused/KIND/NUMBER". */
void emit_begin_kernel(Emitter *self, const char *kind);
/* Lets the host wait for the device in front of the kernel that has begun: "fused/KIND/waits/NUMBER". */
void emit_wait_for_device(Emitter *self);
/* Begins instructions that are a kernel each, up to emit_end_kernel(). */
void emit_begin_separate_kernels(Emitter *self);
void emit_end_kernel(Emitter *self);

EmitValue emit_shape(Dtype type, int32_t rank, const int64_t *dimensions); /* number 0: a shape alone */
/* Returns the next parameter of the module; `path` is its op_name. */
EmitValue emit_parameter(Emitter *self, EmitValue shape, const char *path);
EmitValue emit_unary(Emitter *self, const char *opcode, EmitValue operand);
EmitValue emit_binary(Emitter *self, const char *opcode, EmitValue left, EmitValue right);
/* Emits a comparison; `direction`: "LT", "EQ", "GE", ... */
EmitValue emit_compare(Emitter *self, const char *direction, EmitValue left, EmitValue right);
EmitValue emit_select(Emitter *self, EmitValue condition, EmitValue yes, EmitValue no);
/* Returns the operand itself where it has the type. */
EmitValue emit_convert(Emitter *self, EmitValue operand, Dtype type);
/* Returns a constant in the shape and type of `like`. */
EmitValue emit_fill(Emitter *self, double value, EmitValue like);
/* Emits `operation` of each element and a constant. */
EmitValue emit_scaled(Emitter *self, const char *operation, EmitValue operand, double constant);
/* Emits a broadcast: dimension k of the operand becomes dimension map[k] of the result. */
EmitValue emit_broadcast(Emitter *self, EmitValue operand, EmitValue like, const int32_t *map);
EmitValue emit_iota(Emitter *self, EmitValue shape, int32_t dimension);
EmitValue emit_reshape(Emitter *self, EmitValue operand, int32_t rank, const int64_t *dimensions);
EmitValue emit_transpose(Emitter *self, EmitValue operand, const int32_t *order);
/* Emits a sum ("add") or maximum over dimensions; `region` is declared by emit_module(). */
EmitValue emit_reduce(Emitter *self, const char *operation, EmitValue operand, int32_t count,
                      const int32_t *dimensions);
EmitValue emit_dot(Emitter *self, EmitValue left, EmitValue right, const EmitDot *dot);
EmitValue emit_slice(Emitter *self, EmitValue operand, int32_t dimension, int64_t start, int64_t limit);
EmitValue emit_concatenate(Emitter *self, EmitValue left, EmitValue right, int32_t dimension);
/* Emits rows of table [v, h] at tokens [b, s]: [b, s, h]. */
EmitValue emit_gather_rows(Emitter *self, EmitValue table, EmitValue tokens);
/* Returns the sum of updates [b, s, h] at the rows that tokens [b, s] name, in the shape of `table`. */
EmitValue emit_scatter_rows(Emitter *self, EmitValue table, EmitValue tokens, EmitValue updates);
/* Returns the bits of each element as an unsigned integer. */
EmitValue emit_bits(Emitter *self, EmitValue operand);
/* Replaces each value by itself after one barrier. Equal operators before and after it stay apart. */
void emit_barrier(Emitter *self, EmitValue **values, int32_t count);

/* Appends the whole module: head, computations that reductions call, and the entry with its results.
 * Result k may take the buffer of parameter aliases[k]; -1: none. */
void emit_module(Text *text, const Emitter *self, const char *name, const EmitValue *results,
                 const int32_t *aliases, int32_t count);

#endif
