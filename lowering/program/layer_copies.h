/* How many copies of a value exist at once in the program of a sample (ir/layers/sample_layers.h).
 *
 * A value of a kept layer represents the same value of several layers. Whether their copies exist at the same
 * time follows from the kept layers. Values at the same place of these are alike:
 *
 *     layer        0    1    2    3        steps from the first use to the last one
 *     saved      ------------------             of an activation: at one moment all exist
 *                     ------------
 *     gathered   ---                            of a gathered weight: two layers at most
 *                    ---
 *
 * If all but one of them exist at one moment, so do the copies of the layers between them. Otherwise the
 * kept layers have as many as the module has at once. A layer's own steps run with one copy more or less for
 * each layer that it represents. Its other copies are therefore made when its pass of the layer ends, or
 * freed then.
 */
#ifndef LOWERING_PROGRAM_LAYER_COPIES_H
#define LOWERING_PROGRAM_LAYER_COPIES_H

#include "lowering/program/program.h"

/* What the values at the same place of other layers show. */
typedef struct ComparedValue {
    bool is_compared;            /* there are enough of them */
    bool exists_for_all;         /* the copies of all layers exist at one moment */
    int32_t made_gap, freed_gap; /* the steps between those of two layers that are made, or freed */
} ComparedValue;

typedef struct LayerCopies {
    const Program *program;
    /* [value], of the planner of buffers: whose memory it is, and the steps that make it and last read it */
    const int32_t *storage, *made_at, *last_use;
    bool has_loop;     /* the program has one */
    int32_t *steps_of; /* [layer * (step_count + 1) + step]: the steps before that are of that layer or the
                          next ones to it; NULL: the program is of no sample */
    int32_t *forward_steps;              /* [step]: the forward steps before */
    int32_t *forward_end, *backward_end; /* [layer]: its last step that computes in this pass; -1: none */
    int32_t layer_count;                 /* of the sample, in the program */
    ComparedValue *compared;             /* [value] */
} LayerCopies;

/* Finds the copies, in the arena. Does nothing for programs of other modules than samples. */
AmStatus layer_copies_find(LayerCopies *self, Arena *arena, AmError *error);

/* The copies of a value. */
typedef struct ValueCopies {
    int32_t own;         /* that exist with the value */
    int32_t others;      /* further ones, which exist from the end of step `from` until that of `until` */
    int32_t from, until; /* `until` is step_count for an output */
} ValueCopies;

/* Returns the copies of a result of `step`, which is step s or runs together with it: before anything of it
 * is freed. */
ValueCopies layer_copies_of(const LayerCopies *self, const ProgramStep *step, int32_t s, int32_t value);

#endif
