/* Collectives: one interface for several back ends (architecture, decision 9).
 * executor/comm_local.c, ranks as threads of one process, is the first.
 *
 * Every rank holds a Comm. Before the first training step each collective of
 * the program becomes a CommCall (shapes and group resolved), then the runner
 * binds addresses, and every step runs it. Results do not depend on timing:
 * reductions go in group order, floating ones accumulate in double and are
 * rounded once. When one rank fails the others are released: their collectives
 * return AM_ERROR_RUNTIME instead of waiting for ever.
 */
#ifndef EXECUTOR_COMM_H
#define EXECUTOR_COMM_H

#include "propagation/program.h"

typedef struct Comm Comm;

/* One collective of one rank. Operand and result k may share memory only in an all_reduce. */
typedef struct CommCall {
    const ProgramCollective *collective;
    int32_t group;    /* the back end's name of the group */
    int32_t position; /* of this rank in it */
    int32_t operand_count;
    const IrShape **operand_shapes, **result_shapes; /* local */
    void **operands, **results;
} CommCall;

typedef struct CommBackEnd {
    const char *name; /* "local" */
    /* Names the group of these ranks (the caller is one of them); the same ranks, the same name. */
    AmStatus (*join)(Comm *comm, const int32_t *ranks, int32_t count, int32_t *group, AmError *error);
    AmStatus (*run)(Comm *comm, const CommCall *call, AmError *error);
    AmStatus (*barrier)(Comm *comm, AmError *error); /* of all ranks */
    /* Releases all ranks from what they wait for; any rank, any number of times. */
    void (*abort)(Comm *comm);
} CommBackEnd;

struct Comm {
    const CommBackEnd *back_end;
    int32_t rank, size;
    struct CommWorld *world; /* the back end's own */
};

/* Makes a step's collective ready: shapes and group. Addresses are bound by comm_bind(). */
AmStatus comm_prepare(CommCall **call, Arena *arena, Comm *comm, const Program *program,
                      const ProgramInstruction *instruction, AmError *error);
void comm_bind(CommCall *call, const Program *program, const ProgramInstruction *instruction, char *base);

/* Ranks as threads: fills comms[size]; close once, when no thread uses them any more. */
AmStatus comm_local_open(Comm *comms, int32_t size, AmError *error);
void comm_local_close(Comm *comms);

#endif
