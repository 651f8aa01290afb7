/* Edits of a program that has no fusions and buffers yet: new values, uses, another list of instructions. */
#ifndef LOWERING_PROGRAM_PROGRAM_EDIT_H
#define LOWERING_PROGRAM_PROGRAM_EDIT_H

#include "lowering/program/program.h"

/* Definitions and uses of each value of a program. */
typedef struct ProgramUses {
    int32_t *producer;      /* [value]: instruction, or -1 */
    int32_t *first, *users; /* value v is used by instructions users[first[v]] .. users[first[v + 1] - 1] */
    bool *is_output;        /* [value] */
} ProgramUses;

/* Adds a value that has its own memory. Returns its number. */
int32_t program_add_value(Program *program, const ProgramValue *value);
/* Makes room for `more` instructions and opens a gap for them before instruction `place`: the list has them
 * then, and the caller fills them in and renumbers the producers (program_number_producers()). */
AmStatus program_insert(Program *program, int32_t place, int32_t more, AmError *error);
/* Sets the producers of the results of instructions from `first` on. */
void program_number_producers(Program *program, int32_t first);
/* Finds producers and users of all values, in the arena. */
AmStatus program_uses(ProgramUses *uses, Arena *arena, const Program *program, AmError *error);
/* Returns the value of which `value` is a view, or `value` itself. */
int32_t program_viewed(const Program *program, int32_t value);
/* Replaces the list of instructions by list[count], a selection and order of the present ones. */
AmStatus program_relist(Program *program, const int32_t *list, int32_t count, AmError *error);

#endif
