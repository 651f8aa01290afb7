/* Boxing between two sets of devices (OneFlow section 3.2, table 2): a value
 * that lies on one mesh in one state is wanted on another mesh in another.
 *
 * The two sets may be disjoint (two stages of a pipeline), overlap, or be the
 * same. A transfer has three parts: the source boxes inside its own mesh, the
 * pieces go across, the target boxes inside its own. All of it follows from the
 * shape and the two ends alone, so that both sides, lowered for themselves,
 * agree; collectives that are needed on the way belong to one mesh.
 */
#ifndef PROPAGATION_TRANSFER_H
#define PROPAGATION_TRANSFER_H

#include "propagation/lower_internal.h"

/* A value's place: mesh device d is rank first_rank + d. */
typedef struct TransferEnd {
    const Mesh *mesh;
    int32_t first_rank;
    SbpState state;
} TransferEnd;

/* What goes across: `source` and `target` are the ends that were asked for, with
 * the states between which the pieces go (never partial). */
typedef struct TransferRoute {
    TransferEnd source, target;
    double bytes; /* moved in all, collectives included: whole tensors (T of table 2) */
} TransferRoute;

/* The cheapest route by bytes; among equals what crosses less and boxes less. AM_ERROR_INTERNAL: no memory.
 */
AmStatus transfer_route(TransferRoute *route, const IrShape *shape, const TransferEnd *source,
                        const TransferEnd *target, AmError *error);

/* What `rank` sends and receives on a route; in the arena. A rank that is in
 * neither set does nothing. Of several copies of a part those give in turn; a
 * rank that has a part already takes its own. */
AmStatus transfer_pieces(const ProgramTransfer **transfer, Arena *arena, const IrShape *shape,
                         const TransferRoute *route, int32_t rank, AmError *error);

/* Elements that one rank gives another. */
typedef struct TransferPair {
    int32_t giver, taker;
    double elements;
} TransferPair;

/* All pairs of a route whose ranks differ, once each; in the arena. */
AmStatus transfer_pairs(TransferPair **pairs, int32_t *count, Arena *arena, const IrShape *shape,
                        const TransferRoute *route, AmError *error);

/* Lowering, giving side: (instruction i, leaf), which this stage has in state
 * `source`, goes to `target`. Boxes it to what the route wants and adds the
 * transfer, on every device of the stage. */
AmStatus lower_send(Lowering *self, int32_t i, int32_t leaf, SbpState source, const TransferEnd *target,
                    AmError *error);
/* Lowering, taking side: adds the transfer and boxes to state `target`, in which
 * lower_ask_for() finds the value afterwards. */
AmStatus lower_receive(Lowering *self, int32_t i, int32_t leaf, const TransferEnd *source, SbpState target,
                       AmError *error);

#endif
