/* Names of instructions that all forms of a model's layers share.
 *
 *     forward dot f32[16,128,256] 1/2 at state['params']['decoder'][3]['down']
 *
 * is the first of the two forward products of this shape that belong to this weight: of all weights in their
 * ancestry the one that is used last. A backward operator belongs to the last one of the weights whose
 * gradients need it, an operator of the update to the first one. The order within such a group is by the
 * longest path of arithmetic operators from the inputs, which is the same in all forms.
 */
#ifndef LOWERING_PLAN_FILE_INSTRUCTION_NAMES_H
#define LOWERING_PLAN_FILE_INSTRUCTION_NAMES_H

#include "lowering/plan_file/parameter_keys.h"
#include "propagation/plan/plan.h"

typedef struct InstructionNames {
    const PlanContext *context;
    int32_t count;                   /* instructions of the entry */
    int32_t *anchor;                 /* [count]: the number of the weight, or -1 */
    int32_t *depth;                  /* [count]: arithmetic operators on the longest path to it */
    int32_t *place, *group;          /* [count]: from 1, of so many */
    struct NamedInstruction *sorted; /* [count]: by group, then by place */
} InstructionNames;

/* Names the entry's instructions of a module without micro-batches. The arena owns the names. */
AmStatus instruction_names_make(InstructionNames *names, Arena *arena, const PlanContext *context,
                                AmError *error);

/* Appends the name of an instruction of the entry. */
void instruction_names_append(Text *text, const InstructionNames *names, int32_t instruction);

/* Returns the instruction with the name, which may be of another form; -1: none. */
int32_t instruction_names_find(const InstructionNames *names, const ParameterKeys *keys, const char *name);

/* Returns the first forward arithmetic operator at or after a place in the entry; -1: none. */
int32_t instruction_names_at_or_after(const InstructionNames *names, int32_t place);

#endif
