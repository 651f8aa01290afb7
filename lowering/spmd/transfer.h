/* Resharding between two sets of devices (OneFlow section 3.2, table 2): a value in one state on
 * one mesh is needed in another state on another mesh.
 *
 * The two sets may be disjoint (two stages of a pipeline), overlap, or be equal. A transfer has
 * three parts: the source reshards inside its own mesh, the pieces are sent, the target reshards
 * inside its own mesh. All parts follow from the shape and the two ends alone, so that both sides,
 * lowered separately, agree; each collective belongs to one mesh.
 */
#ifndef LOWERING_SPMD_TRANSFER_H
#define LOWERING_SPMD_TRANSFER_H

#include "lowering/spmd/lower_internal.h"

/* Finds the cheapest route by bytes; among equals the one with fewer transfers and reshards.
 * AM_ERROR_INTERNAL: no memory. */
AmStatus transfer_route(TransferRoute *route, const IrShape *shape, const TransferEnd *source,
                        const TransferEnd *target, AmError *error);

/* Finds the pieces that `rank` sends and receives on a route; in the arena. A rank in neither set does
 * nothing. Several copies of a part send alternately; a rank that has a part uses its own. */
AmStatus transfer_pieces(const ProgramTransfer **transfer, Arena *arena, const IrShape *shape,
                         const TransferRoute *route, int32_t rank, AmError *error);

/* Elements that one rank gives another. */
typedef struct TransferPair {
    int32_t sender, receiver;
    double elements;
} TransferPair;

/* Lists all pairs of a route whose ranks differ, once each; in the arena. */
AmStatus transfer_pairs(TransferPair **pairs, int32_t *count, Arena *arena, const IrShape *shape,
                        const TransferRoute *route, AmError *error);

/* Sends (instruction i, leaf), which this stage has in state `source`, goes to `target`. Reshards it to the
 * state of the route and adds the transfer, on every device of the stage. */
AmStatus lower_send(Lowering *self, int32_t i, int32_t leaf, SbpState source, const TransferEnd *target,
                    AmError *error);
/* Adds the transfer and reshards to state `target`, in which lower_operand_in_state() finds the value
 * afterwards. */
AmStatus lower_receive(Lowering *self, int32_t i, int32_t leaf, const TransferEnd *source, SbpState target,
                       AmError *error);

#endif
