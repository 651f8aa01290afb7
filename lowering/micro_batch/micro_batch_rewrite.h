/* The rewrite of one module into micro-batches: states, levels, demands. Private to this folder.
 *
 * Over time a value is full (the same in every iteration), split (each iteration has its
 * part) or partial (the iterations' values are to be combined). Micro-batch m of a
 * dimension of n = rows * unit elements is every M-th row:
 *
 *     element index e belongs to micro-batch (e / unit) mod M
 *
 * so that a shard of the batch on a device holds a part of every micro-batch.
 * In row-major order the same holds of the index of the full array with
 * unit * (product of the minor dimensions), which a reshape keeps.
 */
#ifndef LOWERING_MICRO_BATCH_MICRO_BATCH_REWRITE_H
#define LOWERING_MICRO_BATCH_MICRO_BATCH_REWRITE_H

#include "lowering/micro_batch/micro_batches.h"

/* Loops one after another at most; each waits for sums of those before it. */
#define TIME_MOST_LEVELS 16

typedef enum MicroBatchKind { TIME_FULL, TIME_SPLIT, TIME_PARTIAL } MicroBatchKind;

typedef struct MicroBatchState {
    MicroBatchKind kind;
    int32_t dimension;      /* TIME_SPLIT */
    int64_t unit;           /* TIME_SPLIT */
    SbpReduction reduction; /* TIME_PARTIAL */
    bool is_zero; /* TIME_FULL: an array of a loop that is zero as far as is known: any state fits */
} MicroBatchState;

static inline bool micro_batch_equal(MicroBatchState a, MicroBatchState b) {
    return a.kind == b.kind && a.dimension == b.dimension && a.unit == b.unit && a.reduction == b.reduction &&
           a.is_zero == b.is_zero;
}

/* A copy of a full value that a loop makes for itself: its micro-batch's part
 * (TIME_SPLIT), or all of it (TIME_FULL). */
typedef struct MicroBatchCopy {
    int32_t next; /* of the same value, or -1 */
    int32_t leaf;
    MicroBatchState state;
    bool is_made;    /* by its operator, on its micro-batch alone; else cut out of the full value */
    int32_t factor;  /* that the operator splits then, or -1 */
    uint32_t levels; /* bits: loops that make it */
} MicroBatchCopy;

typedef struct MicroBatchRewrite {
    Arena *arena;
    const PlanContext *context;
    const IrModule *module;
    const Rules *rules;
    const SplitOptions *split_options;
    MicroBatchSettings settings;
    int32_t count;        /* instructions */
    int32_t *first_state; /* [instruction + 1]: range in states, one for each leaf */
    MicroBatchState *states;
    int8_t *factor;              /* [instruction]: that it splits, -1 none */
    bool *keeps_partial;         /* [instruction]: uses partial operands without a reduction */
    bool *takes_full;            /* [instruction]: takes split operands in full */
    bool *is_split;              /* [planned loop]: runs in the iterations */
    bool *has_weight;            /* [instruction of the entry]: depends on a weight */
    bool cuts_equal_data;        /* also data whose first dimension has the size of the batch */
    int64_t steps_left;          /* of the fixed points of loops */
    int32_t *reader_loop;        /* [instruction]: the planned loop whose array it reads afterwards, or -1 */
    int32_t *reader_leaf;        /* [instruction]: which array */
    int32_t *reader_conditional; /* [instruction]: the planned conditional, an instruction, that it reads one
                                    array of afterwards (reader_leaf), or -1 */
    /* levels.c, by instruction of the entry */
    int32_t *component;    /* union-find of values that must be in one loop */
    int32_t *level;        /* [component's representative]: its loop */
    int32_t *loops_before; /* full values: loops that must be over before */
    bool *is_estimated;    /* relaxed: a loop computes with its own estimate of it */
    int32_t estimating;    /* the component that may, or -1 */
    /* demand.c */
    bool *is_averaged;   /* [instruction]: a mean of the iterations' estimates stands for it outside */
    bool *is_demanded;   /* [planned loop]: its regions were visited */
    uint8_t *needs;      /* [instruction]: bits of MicroBatchNeed */
    bool *is_stacked;    /* [state]: the parts of all iterations are put together after its loop */
    bool *reads_whole;   /* [instruction]: something reads all of it */
    uint32_t *in_levels; /* [instruction]: loops that make its split or partial value; 1 inside regions */
    int32_t *first_copy; /* [instruction], or -1 */
    MicroBatchCopy *copies;
    int32_t copy_count, copy_capacity;
    int32_t level_count;
} MicroBatchRewrite;

typedef enum MicroBatchNeed {
    TIME_NEED_FULL = 1,   /* its full value, outside the loops or in full in a region */
    TIME_NEED_AVERAGE = 2 /* the mean of the loop's estimates, after it */
} MicroBatchNeed;

static inline bool micro_batch_in_entry(const MicroBatchRewrite *self, int32_t instruction) {
    return instruction < self->rules->entry_count;
}
/* Finds the value that operand k (and leaf `leaf` of it, where it is a tuple) of i stands for. */
void micro_batch_operand(const MicroBatchRewrite *self, int32_t i, int32_t k, int32_t leaf, int32_t *producer,
                         int32_t *producer_leaf);
static inline MicroBatchState *micro_batch_state(const MicroBatchRewrite *self, int32_t instruction,
                                                 int32_t leaf) {
    return &self->states[self->first_state[instruction] + leaf];
}
/* Returns the number of array values of operand k of i: 1, or the leaves of a tuple. */
int32_t micro_batch_operand_leaves(const MicroBatchRewrite *self, int32_t i, int32_t k);
/* Returns whether the new module has an instruction for i: it is live, no alias and no plumbing. */
bool micro_batch_is_written(const MicroBatchRewrite *self, int32_t i);
/* Returns an instruction that hands tuples on and makes nothing. */
bool micro_batch_forwards_values(const MicroBatchRewrite *self, int32_t i);
/* Returns an instruction that reads an array of a planned loop's tuple, or a parameter. */
bool micro_batch_is_reader(const MicroBatchRewrite *self, int32_t i);
/* Returns the number of arrays that a planned loop or conditional gives afterwards; 0 for any other
 * instruction. */
int32_t micro_batch_given_count(const MicroBatchRewrite *self, int32_t i);
/* Returns the representative of array `leaf` of these, or -1 without readers. */
int32_t micro_batch_given_reader(const MicroBatchRewrite *self, int32_t i, int32_t leaf);

/* Returns whether a sum over micro-batches is kept in this 16-bit type, not in f32. */
static inline bool micro_batch_rounds_sum(const MicroBatchRewrite *self, Dtype type) {
    bool is_16bit = dtype_is_16bit_float(type);
    return is_16bit && self->settings.relaxations >> RELAXATION_ROUNDED_SUMS & 1;
}

/* Finds states of all values from the batch dimensions of the data. */
AmStatus micro_batch_find_states(MicroBatchRewrite *self, AmError *error);
/* Returns the state of the operand (or result) of a reshape that corresponds to `state`; false if none
 * does. */
bool micro_batch_reshape(MicroBatchState *to, const IrShape *to_shape, MicroBatchState state,
                         const IrShape *shape, int64_t iterations);
/* Returns whether a factor can be split over time: its whole dimension in every place. */
bool micro_batch_factor_usable(const MicroBatchRewrite *self, int32_t i, const Factor *factor);
/* Returns whether i gives a partial value, by *reduction, from partial operands. */
bool micro_batch_is_linear(const MicroBatchRewrite *self, int32_t i, SbpReduction *reduction);
AmStatus micro_batch_find_levels(MicroBatchRewrite *self, AmError *error);
AmStatus micro_batch_find_demands(MicroBatchRewrite *self, AmError *error);
int32_t micro_batch_component(const MicroBatchRewrite *self, int32_t instruction);
/* Returns the state in which the operator takes operand k where it splits this factor and gives `state`. */
MicroBatchState micro_batch_operand_state(const MicroBatchRewrite *self, int32_t i, int32_t k, int32_t factor,
                                          MicroBatchState state);
/* Returns the state in which a split loop carries an array. */
MicroBatchState micro_batch_leaf_state(const MicroBatchRewrite *self, const PlannedLoop *loop, int32_t leaf);
int32_t micro_batch_find_copy(const MicroBatchRewrite *self, int32_t instruction, int32_t leaf,
                              MicroBatchState state);
/* Returns the level of the loop that computes the value. */
static inline int32_t micro_batch_level(const MicroBatchRewrite *self, int32_t instruction) {
    return self->level[micro_batch_component(self, instruction)];
}
/* Returns whether an iteration makes (a part of) the value: it is split, partial or a split loop. */
bool micro_batch_in_loop(const MicroBatchRewrite *self, int32_t i);
/* Refuses: AM_ERROR_INFEASIBLE with the place of instruction i, `why`, and the relaxation `allow` (or NULL),
 * if the system of the plan runs it. */
AmStatus micro_batch_refuse(const MicroBatchRewrite *self, int32_t i, const char *why, const char *allow,
                            AmError *error);

/* Checks that operators take no examples of other micro-batches, but for sums over the batch; after the
 * states. */
AmStatus micro_batch_check_operators(const MicroBatchRewrite *rewrite, AmError *error);
/* Checks the rows of what such operators read and give; after the demands. dimensions [parameter] becomes
 * that of the examples, -1 for what is read whole. */
AmStatus micro_batch_check_examples(int32_t *dimensions, const MicroBatchRewrite *rewrite, AmError *error);
/* Replicas: instead of iterations, which are equal parts one after another, parts of several rows beside
 * one another. */
typedef struct MicroBatchReplicas {
    const int32_t *parts; /* [count]: rows of each, of every settings.micro_batches */
    int32_t count;
    int32_t
        *replica_of; /* result [instruction of the new entry]: -1 for what no replica computes for itself */
    int32_t noted, capacity;
} MicroBatchReplicas;

/* Writes the new module: *split is the caller's, *origins in its arena, as replicas->replica_of. `replicas`
 * NULL: in loops. */
AmStatus micro_batch_emit(IrModule **split, int32_t **origins, MicroBatchRewrite *self,
                          MicroBatchReplicas *replicas, AmError *error);

#endif
