/* Operators that no back end runs: those of modules that are divided or compiled already, and those that
 * need a channel to the host. Others repeat or exchange in ways for which a program of steps has no form.
 */
#include "executor/refused.h"

static const struct {
    IrOpcodeFact fact;
    const char *reason;
} groups[] = {
    {FACT_PARTITIONED, "the module is divided among devices already; give the one for a single device"},
    {FACT_COMPILED, "such pairs belong to a compiled program; pass the module before optimization"},
    {FACT_HOST, "the host has no channel to the running program; pass values as parameters and results"},
};

static const struct {
    IrOpcode opcode;
    const char *reason;
} single[] = {
    {IR_RNG_GET_AND_UPDATE_STATE, "its state belongs to a compiled program, not to a module"},
    {IR_SHUFFLE, "it moves data between the threads of one device"},
    {IR_SCALED_DOT, "products of scaled blocks are not supported"},
    {IR_SCAN, "only a while loop can repeat a computation"},
};

const char *refused_reason(IrOpcode opcode) {
    for (size_t k = 0; k < sizeof groups / sizeof *groups; k++)
        if (ir_opcode_has(opcode, groups[k].fact)) return groups[k].reason;
    for (size_t k = 0; k < sizeof single / sizeof *single; k++)
        if (single[k].opcode == opcode) return single[k].reason;
    return NULL;
}
