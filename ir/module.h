/* The IR: an HLO module as flat arrays.
 *
 * Readers fill a protobuf-c message (hlo.proto: one schema for binary, JSON and
 * text) and one builder turns it into an IrModule. Everything is owned by the
 * module's arena and never changes after it is built; passes make new modules.
 * Instructions and computations are int32 indices into module-wide arrays; the
 * instructions of a computation are consecutive. A module as read keeps its
 * structure; analyses work on the canonical module (ir/canonical/canonical.h).
 */
#ifndef IR_MODULE_H
#define IR_MODULE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/dtype.h"
#include "base/status.h"
#include "base/text.h"

#define IR_MAX_RANK 16

typedef enum IrOpcode {
#define OPCODE(name, ...) IR_##name,
#include "ir/opcodes.def"
#undef OPCODE
    IR_OPCODE_COUNT,
    IR_UNKNOWN = IR_OPCODE_COUNT /* kept with its name, blocked, refused when run */
} IrOpcode;

const char *ir_opcode_name(IrOpcode opcode);
IrOpcode ir_opcode_from_name(const char *name); /* IR_UNKNOWN for an unknown name */
int32_t ir_opcode_arity(IrOpcode opcode);       /* -1: any */

/* Facts in the last column of opcodes.def; two follow from its column `flops`. */
typedef enum IrOpcodeFact {
    FACT_MOVES = 1 << 0,    /* moves elements unchanged: views, slices, broadcasts, conversions, tuples */
    FACT_NO_FLOPS = 1 << 1, /* flops: none. It moves, makes or renames values and computes nothing */
    FACT_TRANSCENDENTAL = 1 << 2,  /* flops: transcendental. Counted apart from FLOPs */
    FACT_COSTLY = 1 << 3,          /* floating work that one would rather store than repeat */
    FACT_RECOMPUTABLE = 1 << 4,    /* a fusion may recompute it instead of reading its result */
    FACT_EFFECT = 1 << 5,          /* stays, even if no output needs it */
    FACT_DIMENSIONS = 1 << 6,      /* has the attribute `dimensions` */
    FACT_PARTITIONED = 1 << 7,     /* only in modules that are divided among devices */
    FACT_COMPILED = 1 << 8,        /* only in compiled modules */
    FACT_HOST = 1 << 9,            /* needs a channel to the host */
    FACT_PRODUCT = 1 << 10,        /* sums products of two arrays over contracted dimensions */
    FACT_MATRIX_PRODUCT = 1 << 11, /* a product without windows: dimensions are batch, free or contracted */
    FACT_VIEW = 1 << 12,        /* the elements of the operand in the same order, of another shape at most */
    FACT_KEEPS_TYPES = 1 << 13, /* XLA compares its element types exactly: most only pass values on */
    FACT_SHARDABLE =
        1 << 14, /* XLA's propagation gives its result a sharding; element-wise ones need no such fact */
    FACT_REPEATABLE = 1 << 15, /* frameworks compute it again in the backward pass rather than keep it */
    FACT_16BIT_SAFE = 1 << 16  /* between products, mixed precision computes it in 16-bit floats */
} IrOpcodeFact;
bool ir_opcode_has(IrOpcode opcode, IrOpcodeFact fact);

/* Returns the operators of the matrix units: dot and convolution. */
static inline bool ir_is_product(IrOpcode opcode) {
    return ir_opcode_has(opcode, FACT_PRODUCT);
}
/* Returns the products that attention has, that a transpose joins and that take an addend: dot. */
static inline bool ir_is_matrix_product(IrOpcode opcode) {
    return ir_opcode_has(opcode, FACT_MATRIX_PRODUCT);
}

/* Returns whether its rule class is ELEMENTWISE: result element i depends on element i of each operand of
 * that shape. */
bool ir_is_elementwise(IrOpcode opcode);

/* The size of a dimension without a bound, "?". Modules that have one are read, written and described alone:
 * ir_canonicalize() refuses them. */
#define IR_UNBOUNDED INT64_MIN

/* An array shape, or a tuple of shapes (type DTYPE_TUPLE, rank = elements). */
typedef struct IrShape {
    Dtype type;
    int32_t rank;
    const int64_t *dimensions;      /* [rank], arrays only */
    const struct IrShape *elements; /* [rank], tuples only */
    const int64_t *minor_to_major;  /* [rank] or NULL: row-major */
} IrShape;

int64_t ir_shape_elements(const IrShape *shape);         /* product of the dimensions; arrays only */
int64_t ir_shape_bytes(const IrShape *shape);            /* tuples: sum over the leaves */
bool ir_shape_is_unbounded(const IrShape *shape);        /* it, or a part of it, has a dimension of no size */
bool ir_shape_equal(const IrShape *a, const IrShape *b); /* type and dimensions; layouts ignored */
/* Returns whether a bitcast, which moves no element, also preserves the logical order of the elements. */
bool ir_bitcast_is_reshape(const IrShape *operand, const IrShape *result);
void ir_shape_append(Text *text, const IrShape *shape); /* "f32[2,3]", "(f32[], s32[4])" */

/* A constant's value, row-major in logical order whatever its layout was. */
typedef struct IrLiteral {
    const void *data; /* dtype_bytes() per element; NULL: elided, written {...} */
    int64_t bytes;
    const struct IrLiteral *elements; /* tuples */
} IrLiteral;

typedef struct IrDot {
    int32_t batch_count, contracting_count;
    const int64_t *lhs_batch, *rhs_batch, *lhs_contracting, *rhs_contracting;
} IrDot;

typedef struct IrWindowDimension {
    int64_t size, stride, padding_low, padding_high, window_dilation, base_dilation;
    bool reversal;
} IrWindowDimension;

/* Returns the number of window positions along a dimension of `size`; -1 if it has no meaning. */
int64_t ir_window_positions(int64_t size, const IrWindowDimension *window);

typedef struct IrConvolution {
    int64_t input_batch, input_feature, kernel_input_feature, kernel_output_feature;
    int64_t output_batch, output_feature;
    int32_t spatial_count;
    const int64_t *input_spatial, *kernel_spatial, *output_spatial;
    int64_t feature_group_count, batch_group_count; /* >= 1 */
} IrConvolution;

/* Gather and scatter share one form; scatter's names in brackets. */
typedef struct IrGather {
    int32_t offset_count, collapsed_count, index_map_count, batching_count;
    const int64_t *offset_dimensions;    /* [update_window_dims] */
    const int64_t *collapsed_dimensions; /* [inserted_window_dims] */
    const int64_t *start_index_map;      /* [scatter_dims_to_operand_dims] */
    const int64_t *operand_batching;     /* [input_batching_dims] */
    const int64_t *indices_batching;     /* [scatter_indices_batching_dims] */
    int64_t index_vector_dimension;
    const int64_t *slice_sizes; /* gather: [operand rank]; scatter: NULL */
} IrGather;

typedef struct IrPadding {
    int64_t low, high, interior;
} IrPadding;

typedef enum IrRandomAlgorithm { IR_RANDOM_DEFAULT, IR_RANDOM_THREEFRY, IR_RANDOM_PHILOX } IrRandomAlgorithm;
typedef enum IrFftType { IR_FFT_FORWARD, IR_FFT_INVERSE, IR_FFT_REAL, IR_FFT_INVERSE_REAL } IrFftType;

/* Settings of few operators. */
typedef struct IrOptions {
    bool largest;                                          /* topk */
    bool lower;                                            /* cholesky, triangular-solve */
    bool left_side, unit_diagonal, is_transposed, adjoint; /* triangular-solve */
    IrRandomAlgorithm random;                              /* rng-bit-generator */
    double epsilon;                                        /* batch-norm-* */
    int64_t feature_index;                                 /* batch-norm-* */
    IrFftType fft_type;                                    /* fft */
    int32_t fft_rank;                                      /* fft */
    const int64_t *fft_length;                             /* fft: [fft_rank] */
} IrOptions;

/* The attributes of an instruction. Fields that an opcode does not use are zero. Attributes that no
 * analysis reads remain in `message`. */
typedef struct IrAttributes {
    int32_t dimension_count;
    const int64_t *dimensions; /* broadcast, transpose, reduce, concatenate, reverse, iota, sort, ... */
    const IrDot *dot;
    const IrConvolution *convolution;
    int32_t window_count;
    const IrWindowDimension *window; /* convolution: spatial; reduce-window, select-and-scatter: [rank] */
    const IrGather *gather;          /* gather, scatter */
    const IrPadding *padding;        /* pad: [rank] */
    const int64_t *slice_start, *slice_limit, *slice_stride; /* slice: [rank] */
    const int64_t *slice_sizes;                              /* dynamic-slice: [rank] */
    const char *comparison;                                  /* "EQ", "NE", "GE", "GT", "LE", "LT" */
    const char *comparison_type; /* "FLOAT", "TOTALORDER", "SIGNED", "UNSIGNED" or NULL */
    int64_t tuple_index;         /* get-tuple-element */
    int64_t parameter_number;    /* parameter */
    const char *custom_call_target;
    bool is_stable, indices_are_sorted, unique_indices;
    int32_t exponent_bits, mantissa_bits; /* reduce-precision */
    const IrOptions *options;             /* of the operators named there, else NULL */
} IrAttributes;

typedef struct IrInstruction {
    IrOpcode opcode;
    const char *opcode_name; /* as written; the only name an IR_UNKNOWN has */
    const char *name;
    IrShape shape;
    int32_t operand_count, called_count, control_count;
    const int32_t *operands;        /* instruction indices, of the same computation */
    const int32_t *called;          /* computation indices: to_apply, body and condition, branches */
    const int32_t *control;         /* control predecessors */
    const IrAttributes *attributes; /* never NULL */
    const IrLiteral *literal;       /* constants only */
    const char *op_name;            /* from the metadata; "" if missing */
    const char *source_file;        /* "" if missing */
    int32_t source_line;
    const struct Hlo__HloInstructionProto *message; /* where it came from */
} IrInstruction;

typedef struct IrComputation {
    const char *name;
    int32_t first, count; /* its instructions */
    int32_t root;
    int32_t parameter_count;
    const int32_t *parameters; /* instruction of parameter k */
} IrComputation;

/* Donation: this output may take this parameter's buffer. */
typedef struct IrAlias {
    int32_t output, parameter; /* output -1: the whole, untupled result */
} IrAlias;

typedef struct IrModule {
    Arena arena;
    Arena lists; /* of instructions while the module is composed (ir/canonical/compose.h), then empty */
    const char *source; /* file name, for messages */
    const char *name;
    IrInstruction *instructions;
    int32_t instruction_count;
    IrComputation *computations;
    int32_t computation_count;
    int32_t entry; /* computation index */
    IrAlias *aliases;
    int32_t alias_count;
    AmWarnings warnings;
    bool is_optimized;                   /* by XLA: it has a schedule or fusions */
    struct Hlo__HloModuleProto *message; /* in the same arena; NULL in derived modules */
    const char *unbounded;               /* the first instruction with a dimension of no size; or NULL */
    AmError *unplanned; /* why no plan can be made of what XLA accepts (ir/verify/verify.c); or NULL */
    const struct Hlo__HloInstructionProto *refused; /* while it is read: whose error it is; or NULL */
    const struct IrLoops *loops;                    /* canonical modules only (ir/analysis/loops.h) */
    const struct IrComputationWork *called_work;    /* likewise, [computation_count] (ir/analysis/flops.h) */
} IrModule;

static inline const IrInstruction *ir_instruction(const IrModule *module, int32_t i) {
    return &module->instructions[i];
}

/* For warnings and errors about a module that XLA has optimized. */
#define IR_OPTIMIZED_TEXT                                                                  \
    "this module was optimized by XLA, expected the module before optimization: the file " \
    "*before_optimizations* of XLA_FLAGS=\"--xla_dump_to=DIR --xla_dump_hlo_as_text\", "   \
    "jax.jit(f).lower(...).as_text(dialect=\"hlo\"), or automap_jax.export()"

/* Reads a module in any of the three encodings, recognised by content (gz and zst are
 * decompressed), and verifies it. The caller owns `*module`: ir_module_free(). AM_ERROR_INPUT
 * reports file, place and expectation. */
AmStatus ir_read(IrModule **module, const char *path, AmError *error);
AmStatus ir_read_bytes(IrModule **module, const char *source, const char *data, int64_t length,
                       AmError *error);
void ir_module_free(IrModule *module);

/* Returns an empty module with its own arena and warnings, for readers and passes; NULL if memory ran out.
 * `source` is copied. ir_module_free() releases it. */
IrModule *ir_module_new(const char *source);

/* Writes by the suffix of `path`: .hlo.pb, .hlo.json, .hlo.txt, each also .gz, .zst. */
AmStatus ir_write(const IrModule *module, const char *path, AmError *error);

/* Returns the scalar binary operator of a to_apply computation (IR_ADD, IR_MAXIMUM, ...): its root is that
 * operator on its two parameters, in either order. IR_UNKNOWN if it is anything else. */
IrOpcode ir_computation_operator(const IrModule *module, int32_t computation);

#endif
