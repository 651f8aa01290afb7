/* The lowered program: the work of one device in a step. The cost model prices this program, and
 * the executor runs this program.
 *
 * Values are arrays with local shapes. Instructions are HLO operators on local values, or
 * collectives among the devices of a group. A loop, conditional or call has the computations that
 * it runs as programs of their own, its regions, for the same device of the same mesh, collectives
 * included. After lowering, program_fuse() gathers element-wise chains into fusions and orders the
 * steps; program_plan_buffers() assigns every value an offset in one allocation. All devices of a
 * stage have the same instructions in the same order and differ in starts and extents only, so that
 * collectives match.
 */
#ifndef LOWERING_PROGRAM_PROGRAM_H
#define LOWERING_PROGRAM_PROGRAM_H

#include "ir/analysis/roles.h"
#include "propagation/sharding/mesh.h"
#include "propagation/sharding/sbp.h"

typedef enum ProgramCollectiveKind {
    PROGRAM_ALL_REDUCE,
    PROGRAM_ALL_GATHER,
    PROGRAM_REDUCE_SCATTER,
    PROGRAM_ALL_TO_ALL,
    PROGRAM_HALO_EXCHANGE,
    PROGRAM_HOST_LOAD, /* the host copies are last: a device and its host are their group */
    PROGRAM_HOST_STORE,
    PROGRAM_COLLECTIVE_KINDS,
    PROGRAM_DEVICE_COLLECTIVES = PROGRAM_HOST_LOAD /* the kinds among devices */
} ProgramCollectiveKind;
const char *program_collective_name(ProgramCollectiveKind kind); /* "all_reduce", ... */

/* One collective moves one or more operands (merged ones share all but the
 * dimensions). Along a split dimension group member k owns parts[k] elements,
 * in group order, so uneven shards need no padding.
 *   all_gather:     operand is the local part along `dimension`, result is replicated.
 *   reduce_scatter: operand is replicated, result is the local part along `dimension`.
 *   all_to_all:     operand is the local part along `dimension`, global along
 *                   `other`; the result is global along `dimension`, the local
 *                   part along `other`.
 *   halo_exchange:  operand is the local part along `dimension`, result of member
 *                   k the elements range_start[k] .. + range_extent[k] of the global dimension.
 *                   Ranges may overlap, be empty or leave elements out.
 *   host_load:      operands are parameters in the host's memory, results their
 *                   copies on the device (lowering/offload/offload.h).
 *   host_store:     the first half of the operands are copied to the second half,
 *                   which are such parameters; there is no result.
 * Reductions add in group order, so a result does not depend on timing. */
typedef struct ProgramMovement {
    int32_t dimension, other;
    const int64_t *parts;                      /* [group_count] extents along `dimension` */
    const int64_t *other_parts;                /* [group_count] extents along `other`; all_to_all only */
    const int64_t *range_start, *range_extent; /* [group_count]; halo_exchange only */
} ProgramMovement;

/* Finds the elements of member `to`'s range of a halo_exchange that lie in member `from`'s shard. Returns
 * their number; *start is the first of them in the global dimension, *part_start that of the shard.
 */
int64_t program_halo_piece(const ProgramMovement *movement, int32_t from, int32_t to, int64_t *start,
                           int64_t *part_start);

typedef struct ProgramCollective {
    ProgramCollectiveKind kind;
    SbpReduction reduction; /* all_reduce, reduce_scatter */
    uint32_t axes;          /* bit mask of the mesh axes that are spanned */
    int32_t group_count;
    const int32_t *group;             /* mesh devices, in the order of the parts; holds this device */
    const ProgramMovement *movements; /* [operand_count]; NULL for all_reduce and host copies */
} ProgramCollective;

/* A part of an array that goes to or comes from another rank, packed row-major. */
typedef struct ProgramPiece {
    int32_t peer;          /* rank; this one itself: copied on the device */
    const int64_t *start;  /* [rank of the array] in the local operand (sent) or result (received) */
    const int64_t *extent; /* [rank of the array] */
} ProgramPiece;

/* A value's place: mesh device d is rank first_rank + d. */
typedef struct TransferEnd {
    const Mesh *mesh;
    int32_t first_rank;
    SbpState state;
} TransferEnd;

/* The transferred pieces: `source` and `target` are the requested ends, with the states between
 * which the pieces are sent (never partial). */
typedef struct TransferRoute {
    TransferEnd source, target;
    double bytes; /* moved in all, collectives included: global tensors (T of table 2) */
} TransferRoute;

/* The role of one rank in a transfer of a value between two sets of devices (transfer.h). A sending
 * device has one operand, a receiving device one result, a device in both roles has both. Messages
 * from one rank to another have the same order on both sides. All ranks run transfers in one global
 * order: a rank may wait in one until the other participants arrive. */
typedef struct ProgramTransfer {
    int32_t send_count, receive_count;
    const ProgramPiece *sends, *receives;
    int32_t rank_count;
    const int32_t *ranks;       /* with a piece of it, ascending; this rank may be absent */
    int32_t slots;              /* values that may be under way at once; 0: senders wait for receivers */
    int64_t number;             /* the same at both ends; transfers from one rank to another differ in it */
    int32_t sender, receiver;   /* stages, or parts of a model whose stages are in chunks */
    const IrShape *shape;       /* of the global value */
    const TransferRoute *route; /* between which ends, in which states */
} ProgramTransfer;

/* The position of a shard in the global array: for results of iota and random numbers, and for operand 0
 * of gather, scatter and the dynamic slices, whose indices refer to the global array. A gather or
 * dynamic-slice gives zeros outside the shard, after clamping in the global array; a scatter or
 * dynamic-update-slice skips positions outside. NULL in an instruction whose shard is the global array. */
typedef struct ProgramShard {
    const int64_t *start;  /* [rank] */
    const int64_t *global; /* [rank] global sizes */
    const int64_t *window; /* [rank] of operand 0: sizes of the window that indices move, in unsplit
                              dimensions; NULL without a window */
} ProgramShard;

/* A loop F of `count` iterations whose transfers have slots; `second` < 0 if it is not joined. Otherwise F is
 * joined with a second loop B (interleave.h), and perhaps with a third loop W (interleave_weights.h). They
 * are adjacent in the steps and run as one. An iteration may begin when these have ended:
 *
 *   F -> B, F -> W, B -> W     iteration m of the reader: the iteration m whose results it reads
 *   B -> F                     iteration m of F: iteration m - kept of B
 *   W -> F                     iteration m of F: iteration m - kept_until_third of W
 *   W -> B                     iteration m of B: iteration m - kept_from_second of W
 *
 * F then has priority over the others, and B over W. Values between two loops have as many places as the
 * number kept, iteration m in m modulo the number. If the stage is in chunks (lower_chunks.h), all first
 * loops are adjacent, followed by all second ones, and schedule_iterations() gives the order of their
 * iterations. */
typedef struct InterleavedLoops {
    int32_t second, third; /* instructions, or -1 */
    bool is_backward;      /* alone, it is the one that would be second */
    int32_t count, kept;
    int32_t kept_until_third, kept_from_second; /* where there is a third */
    int32_t chunks;                             /* 1, or loops of each kind */
    const int32_t *kept_of_chunk;               /* [chunks]: in place of kept; NULL for one */
    int32_t stage, stage_count;                 /* of several chunks */
} InterleavedLoops;

/* The position of a slice of an array that the iteration of the enclosing loop selects (places.h). */
typedef struct ProgramPlace {
    int64_t iterations;
    const int64_t *offset; /* [iterations]: bytes from the array's first */
    bool covers;           /* the iterations' parts together are the array */
} ProgramPlace;

/* The counter of a loop, in its body: `value` is start + step * iteration. */
typedef struct ProgramCounter {
    int32_t value;
    int64_t iterations; /* 0: nothing is known to */
    int64_t start, step;
    bool in_iterations; /* its iterations come between those of other loops (InterleavedLoops) */
} ProgramCounter;

typedef enum ProgramKind {
    /* `opcode` with `attributes` made local. A dot may have `dimensions`: its result's dimension d is number
     * dimensions[d] of batch, left free, right free; types are then f32, f64, bf16 or f16, all alike. One
     * without them may have a third operand, f32 and shaped like its result, which is added to the product
     * once that is rounded; the result may lie there. */
    PROGRAM_COMPUTE,
    PROGRAM_COLLECTIVE,
    PROGRAM_VIEW,    /* the result is operand 0's memory under another shape (reshape, bitcast, copy) */
    PROGRAM_TRANSFER /* to or from the ranks of another stage; has an effect without a result */
} ProgramKind;

/* Of an HLO operator that computes on local values. */
typedef struct ProgramCompute {
    const IrLiteral *literal; /* constant: the local value */
    int32_t called;           /* to_apply computation in the canonical module, or -1 */
    int32_t called_second;    /* select-and-scatter's scatter, or -1 */
    const ProgramShard *shard;
    /* dynamic-slice: its result is a view of that place of operand 0; dynamic-update-slice: its result is
     * operand 0, in which operand 1 is made where it belongs. Nothing runs. NULL: it copies. Set by
     * program_fuse. */
    const ProgramPlace *place;
} ProgramCompute;

/* The programs that an instruction runs. while: body and condition; conditional: its branches; call and
 * fusion: the computation. A region's parameters and outputs are arrays, the leaves of the computation's (its
 * roles have their numbers). A loop's regions take its operands, parameter k being operand k, and the body's
 * output k is the next value of parameter k. A conditional's operands are the selector and then the
 * parameters of its branches, branch by branch. The program's arena owns the regions. */
typedef struct ProgramRegions {
    int32_t count;
    struct Program **programs; /* [count] */
    /* fusion of products: one kernel computes the region by blocks of rows. The region does not communicate,
     * and its values have no memory in the allocation. */
    bool in_blocks;
    /* Bytes of the allocation for the values that the regions make while the step runs; set by
     * program_plan_buffers. A region's offsets after its parameter_bytes count from there; its parameters
     * lie where the operands do, a loop's carried ones where its results do. */
    int64_t workspace, workspace_bytes;
} ProgramRegions;

/* Of a while, beside its regions. */
typedef struct ProgramLoop {
    /* [result] the operand whose final value the result is; NULL if it is no loop. An operand without a
     * result is returned unchanged by the body: the regions may read it in place. */
    const int32_t *carried;
    /* [operand] the body overwrites all of it before any read: its initial value is neither computed nor
     * copied. NULL: none. Set by program_fuse. */
    const bool *unset;
    const InterleavedLoops *iterations; /* those of other loops alternate with its own; or NULL */
} ProgramLoop;

/* Parameters have no instruction. `kind` and `opcode` say which of the members at the end apply. */
typedef struct ProgramInstruction {
    ProgramKind kind;
    IrOpcode opcode;
    int32_t origin; /* canonical instruction it comes from or serves */
    int32_t operand_count, result_count;
    const int32_t *operands; /* value indices */
    int32_t first_result;    /* results are consecutive values */
    const IrAttributes *attributes;
    ProgramCompute compute;              /* PROGRAM_COMPUTE */
    ProgramRegions regions;              /* PROGRAM_COMPUTE: while, conditional, call, fusion of products */
    ProgramLoop loop;                    /* PROGRAM_COMPUTE: while */
    const ProgramCollective *collective; /* PROGRAM_COLLECTIVE */
    bool gathers_late; /* all_gather: no sum, product or loop needs it; a gradient that was added up in
                          shards. Set by program_reduce_early. */
    const ProgramTransfer *transfer; /* PROGRAM_TRANSFER */
} ProgramInstruction;

typedef enum ProgramValueKind {
    PROGRAM_VALUE_PARAMETER, /* entry parameter: its own place, kept from step to step */
    PROGRAM_VALUE_TEMPORARY, /* lives from its step to its last use */
    PROGRAM_VALUE_INTERNAL   /* inside one fusion or row group: has no memory */
} ProgramValueKind;

typedef struct ProgramValue {
    IrShape shape;       /* local */
    int32_t origin;      /* canonical instruction */
    int32_t leaf;        /* which of its results */
    int32_t instruction; /* producer in `instructions`, -1 for parameters */
    SbpState state;
    /* set by program_fuse and program_plan_buffers */
    ProgramValueKind kind;
    int32_t storage;           /* value that owns the memory: itself, or the origin of a view */
    const ProgramPlace *place; /* it is that part of the storage; NULL: the whole */
    int64_t offset, bytes;     /* in the device's allocation; -1 for internal values */
    bool in_registers; /* of a fused kernel that is only priced: no bytes (cost/operator/fused_kernels.h) */
    bool lies_apart;   /* the result of such a kernel: never in place of an operand */
    bool is_on_host;   /* a parameter in the host's memory: `offset` is -1, `host_offset` is its place */
    int64_t host_offset;
    bool is_iota; /* its elements are iota_first, iota_first + 1, ...; set by program_find_iotas() */
    int64_t iota_first;
} ProgramValue;

/* A fusion computes `op_count` element-wise operators over one index space.
 * Slots 0..input_count-1 are inputs, then one slot per operator. */
typedef struct ProgramFusionInput {
    int32_t value;
    const int64_t *strides; /* [rank] elements per step of each index; 0 where broadcast */
} ProgramFusionInput;

typedef struct ProgramFusionOp {
    IrOpcode opcode; /* element-wise, or IR_CONSTANT (scalar), IR_IOTA */
    Dtype type;      /* of the result */
    int32_t operand_count;
    int32_t operands[3];            /* slots */
    const IrAttributes *attributes; /* comparison, iota dimension in dimensions[0], ... */
    const IrLiteral *literal;       /* IR_CONSTANT */
    int64_t iota_start;             /* IR_IOTA: value at index 0 of its dimension */
    int32_t origin;
} ProgramFusionOp;

typedef struct ProgramFusion {
    int32_t rank;
    const int64_t *dimensions; /* the index space */
    int64_t elements;
    int32_t input_count, op_count, output_count;
    const ProgramFusionInput *inputs;
    const ProgramFusionOp *ops;
    const int32_t *output_slots, *output_values; /* [output_count] */
} ProgramFusion;

/* The executed steps, in order: one instruction, or one fusion. Views have no step. */
typedef struct ProgramStep {
    int32_t instruction; /* or -1 */
    int32_t fusion;      /* or -1 */
    int32_t row_group;   /* number of its row group plus 1; 0: it is in none */
} ProgramStep;

/* Consecutive steps that run together, one block of rows after the other (lowering/passes/row_groups.c):
 * every result of a step has `rows` rows, of one or more neighbouring elements each. */
typedef struct ProgramRowGroup {
    int32_t first, count; /* steps */
    int64_t rows, block;  /* rows of a block; the last block may have fewer */
} ProgramRowGroup;

/* After the last step a parameter takes its new value: if the planner could not place it there,
 * `value` is copied to the parameter's memory; through `staging` if it is stored in a parameter
 * that is updated too. */
typedef struct ProgramUpdate {
    int32_t parameter; /* entry parameter number */
    int32_t value;
    bool in_place;
    int64_t staging; /* offset in the allocation, or -1; set by program_plan_buffers */
} ProgramUpdate;

/* Bytes of a program's allocation that hold values, and the end of the last one. The difference is gaps. */
typedef struct ProgramExtent {
    int64_t used, end;
} ProgramExtent;

/* The memory of a program while a step runs: with everything that its regions need, and without it. */
typedef struct ProgramMemory {
    ProgramExtent inside, around;
} ProgramMemory;

/* The order in which a program runs, set by program_fuse(), except for its input `fuses_rows`. */
typedef struct ProgramExecution {
    ProgramFusion *fusions;
    int32_t fusion_count;
    ProgramStep *steps;
    int32_t step_count;
    ProgramRowGroup *row_groups;
    int32_t row_group_count;
    bool fuses_rows; /* input, set by the lowering: program_fuse() finds row groups */
    const struct FusedStep
        *fused; /* [step] of kernels that are only priced (cost/operator/fused_kernels.h), or NULL */
    ProgramUpdate *updates; /* of parameters after the last step; from the lowering */
    int32_t update_count;
} ProgramExecution;

/* The memory of a rank, set by program_plan_buffers(), except for its inputs `shares_workspaces` and
 * `outputs_outside`. One allocation holds everything. All figures are bytes. */
typedef struct ProgramAllocation {
    int64_t bytes;
    int64_t parameter_bytes; /* the part that lives between steps, at offset 0 */
    int64_t host_bytes;      /* of parameters in the host's memory, which is an allocation of its own */
    int32_t peak_step;       /* a step at which the allocation is fullest */
    ProgramMemory *memory;   /* [step_count + 1]: while each step runs, and the updates */
    int64_t red_zone;        /* unused bytes after every place, each of which is used once; 0: none */
    bool shares_workspaces;  /* joined loops, of which one runs at a time, use the same memory: for prices */
    const struct XlaMemory *xla; /* what XLA takes for the program (cost/step/xla_memory.h), or NULL */
    bool outputs_outside;        /* A branch or called computation writes its outputs directly to the caller's
                                    results: they have no memory here (offset -1). */
} ProgramAllocation;

typedef struct Program {
    /* The part of the module and of the mesh. */
    Arena *arena;           /* of a region too it is the caller's; owns all arrays */
    const IrModule *module; /* canonical */
    const IrRoles *roles;
    const Mesh *mesh;
    ProgramCounter counter; /* of a loop's body */
    int32_t device;
    int32_t first_rank;  /* the rank of mesh device 0: the devices of the stages before; 0 for one stage */
    bool is_uneven;      /* Shards differ in size from device to device, which may then fuse differently:
                            collectives keep their order. */
    int64_t kept_bytes;  /* from F to B, of one micro-batch, that are not cheap to compute again */
    int64_t spare_bytes; /* of the places of kept values: those that are cheap to compute again, and those
                            that are free when most are used (stacks_spare.c) */
    /* Instructions and values. */
    ProgramInstruction *instructions;
    int32_t instruction_count, instruction_capacity;
    ProgramValue *values;
    int32_t value_count, value_capacity;
    int32_t *parameters;  /* value of entry parameter k; -1: another stage's */
    int32_t *outputs;     /* value of output k; -1: another stage's */
    int64_t summed_bytes; /* that all sums over devices take; set by program_reduce_early() */
    ProgramExecution execution;
    ProgramAllocation allocation;
} Program;

/* Returns whether a collective copies between a device and its host. */
static inline bool program_is_host_copy(const ProgramCollective *collective) {
    return collective && collective->kind >= PROGRAM_DEVICE_COLLECTIVES;
}

static inline bool program_gathers(const ProgramInstruction *instruction) {
    return instruction->kind == PROGRAM_COLLECTIVE && instruction->collective->kind == PROGRAM_ALL_GATHER;
}

/* Returns the operand that `result` overwrites in place: the array of a dynamic-update-slice or a scatter,
 * the addend of a product, the value that a loop carries; -1: none. */
static inline int32_t program_changed_operand(const ProgramInstruction *instruction, int32_t result) {
    if (instruction->opcode == IR_SCATTER) return result - instruction->first_result;
    if (instruction->opcode == IR_DYNAMIC_UPDATE_SLICE) return 0;
    if (ir_is_matrix_product(instruction->opcode) && instruction->operand_count > 2) return 2;
    bool is_loop = instruction->opcode == IR_WHILE && instruction->loop.carried;
    return is_loop ? instruction->loop.carried[result - instruction->first_result] : -1;
}

/* Returns whether the result is memory that is there already: nothing runs. */
static inline bool program_is_view(const ProgramInstruction *instruction) {
    return instruction->kind == PROGRAM_VIEW || instruction->compute.place;
}

/* Returns the operands that are read, or whose memory the result is: the first ones, but for the indices of a
 * place. */
static inline int32_t program_operands_read(const ProgramInstruction *instruction) {
    if (!instruction->compute.place) return instruction->operand_count;
    return instruction->opcode == IR_DYNAMIC_UPDATE_SLICE ? 2 : 1;
}

/* Returns whether regions of the instruction run as programs, step by step. */
static inline bool program_has_control(const ProgramInstruction *instruction) {
    return instruction->regions.count > 0 && !instruction->regions.in_blocks;
}

/* Returns the instructions that run together with instruction i, which is the first of them: joined loops,
 * which stand side by side, or i alone. */
static inline int32_t program_joined(const Program *program, int32_t i) {
    const InterleavedLoops *iterations = program->instructions[i].loop.iterations;
    return iterations && iterations->second >= 0 ? iterations->chunks * (iterations->third >= 0 ? 3 : 2) : 1;
}

/* Returns the operands and results of a step, as values. */
static inline int32_t program_step_operands(const Program *program, const ProgramStep *step) {
    return step->fusion >= 0 ? program->execution.fusions[step->fusion].input_count
                             : program->instructions[step->instruction].operand_count;
}

static inline int32_t program_step_operand(const Program *program, const ProgramStep *step, int32_t k) {
    return step->fusion >= 0 ? program->execution.fusions[step->fusion].inputs[k].value
                             : program->instructions[step->instruction].operands[k];
}

static inline int32_t program_step_results(const Program *program, const ProgramStep *step) {
    return step->fusion >= 0 ? program->execution.fusions[step->fusion].output_count
                             : program->instructions[step->instruction].result_count;
}

static inline int32_t program_step_result(const Program *program, const ProgramStep *step, int32_t k) {
    return step->fusion >= 0 ? program->execution.fusions[step->fusion].output_values[k]
                             : program->instructions[step->instruction].first_result + k;
}

/* Returns the row group of a step, or NULL. */
static inline const ProgramRowGroup *program_row_group(const Program *program, const ProgramStep *step) {
    return step->row_group > 0 ? &program->execution.row_groups[step->row_group - 1] : NULL;
}

/* Returns the number of steps that run together with step s, which is the first of them: joined loops, or a
 * row group. */
static inline int32_t program_steps_together(const Program *program, int32_t s) {
    const ProgramRowGroup *rows = program_row_group(program, &program->execution.steps[s]);
    int32_t instruction = program->execution.steps[s].instruction;
    if (rows) return rows->count;
    return instruction >= 0 ? program_joined(program, instruction) : 1;
}

/* Returns the first of the steps that step s runs together with: loops, side by side, or its row group. */
static inline int32_t program_first_together(const Program *program, int32_t s) {
    const ProgramRowGroup *rows = program_row_group(program, &program->execution.steps[s]);
    if (rows) return rows->first;
    for (int32_t first = s; first >= 0; first--) {
        int32_t i = program->execution.steps[first].instruction;
        if (i < 0 || program->instructions[i].opcode != IR_WHILE) break;
        if (first < s && program_joined(program, i) > s - first) return first;
    }
    return s;
}

/* Returns whether an instruction, or any inside its loop or conditional, communicates with ranks of other
 * stages, or any other ranks (`all`). */
bool program_instruction_communicates(const ProgramInstruction *instruction, bool all);
/* Returns whether anything in the program does. */
bool program_communicates(const Program *program, bool all);

/* Appends the program as text, one line per step, fusions indented. */
void program_print(Text *text, const Program *program);

#endif
