/* Operators that no back end runs: those of modules that are divided or compiled
 * already, those that need a channel to the host, and those that repeat or
 * exchange in ways which a program of steps has no form for.
 */
#include "executor/refused.h"

#define DIVIDED  "the module is divided among devices already; give the one for a single device"
#define COMPILED "such pairs belong to a compiled program; pass the module before optimization"
#define HOST     "the host has no channel to the running program; pass values as parameters and results"

static const struct {
    IrOpcode first, last; /* opcodes from one to the other, as ir/opcodes.def has them */
    const char *reason;
} rows[] = {
    {IR_ALL_GATHER, IR_ALL_TO_ALL, DIVIDED},
    {IR_COLLECTIVE_BROADCAST, IR_COLLECTIVE_REDUCE, DIVIDED},
    {IR_ASYNC_DONE, IR_ASYNC_UPDATE, COMPILED},
    {IR_COPY_DONE, IR_COPY_START, COMPILED},
    {IR_PARTITION_ID, IR_PARTITION_ID, DIVIDED},
    {IR_RAGGED_ALL_TO_ALL, IR_RAGGED_ALL_TO_ALL, DIVIDED},
    {IR_REDUCE_SCATTER, IR_REDUCE_SCATTER, DIVIDED},
    {IR_REPLICA_ID, IR_REPLICA_ID, DIVIDED},
    {IR_INFEED, IR_INFEED, HOST},
    {IR_OUTFEED, IR_OUTFEED, HOST},
    {IR_SEND, IR_SEND_DONE, HOST},
    {IR_RECV, IR_RECV_DONE, HOST},
    {IR_RNG_GET_AND_UPDATE_STATE, IR_RNG_GET_AND_UPDATE_STATE,
     "its state belongs to a compiled program, not to a module"},
    {IR_SHUFFLE, IR_SHUFFLE, "it moves data between the threads of one device"},
    {IR_SCALED_DOT, IR_SCALED_DOT, "products of scaled blocks are not supported"},
    {IR_SCAN, IR_SCAN, "only a while loop can repeat a computation"},
};

const char *refused_reason(IrOpcode opcode) {
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
        if (opcode >= rows[k].first && opcode <= rows[k].last) return rows[k].reason;
    return NULL;
}
