/* Control flow: loops, conditionals and calls, for every back end. They run other programs, their
 * regions, and copy values; they compute nothing themselves. */
#ifndef EXECUTOR_PROGRAM_CONTROL_FLOW_H
#define EXECUTOR_PROGRAM_CONTROL_FLOW_H

#include "executor/program/executable.h"

typedef struct Control {
    KernelDevice *device;
    Comm *comm; /* NULL: no collectives inside */
    const Program *program;
    const ProgramInstruction *instruction;
    Executable **regions;
    const int32_t *first_operand;              /* [region]: where its parameters begin among the operands */
    void **operands, **results;                /* addresses, bound */
    int64_t scratch_bytes, comm_scratch_bytes; /* of the regions */
    bool waits_on_host;
    AmStatus (*run)(const struct Control *control, AmError *error);
} Control;

/* Returns whether the operator runs regions, such as while, conditional and call. */
bool control_covers(IrOpcode opcode);

/* Prepares an instruction of `program` whose opcode control_covers() with its
 * regions. AM_ERROR_INPUT: an operator in them has no kernel, or they do not fit. */
AmStatus control_prepare(Control **control, Arena *arena, KernelDevice *device, Comm *comm,
                         const Program *program, const ProgramInstruction *instruction, AmError *error);
/* Binds a program. `addresses` [value] and `memory` are the caller's. */
AmStatus control_bind(Control *control, void *const *addresses, const ExecutableMemory *memory,
                      AmError *error);
AmStatus control_run(const Control *control, AmError *error);

/* Enters a loop, iteration by iteration: initialises the carried values; then executable_run_steps() of the
 * body, once per iteration. */
void control_enter(const Control *loop);
static inline Executable *control_body(const Control *loop) {
    return loop->regions[0];
}

#endif
