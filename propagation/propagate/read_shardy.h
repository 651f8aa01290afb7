/* Shardy's shardings in HLO's frontend attributes (internal to `--keep-shardings`). */
#ifndef PROPAGATION_PROPAGATE_READ_SHARDY_H
#define PROPAGATION_PROPAGATE_READ_SHARDY_H

#include "base/arena.h"
#include "base/status.h"
#include "ir/hlo.pb-c.h"

/* Reads the Shardy sharding of an instruction, as a sharding over named axes; *message is NULL without one.
 * AM_ERROR_INPUT for other text, and for shardings of sub-axes or of several values. */
AmStatus shardy_read(Hlo__OpSharding **message, Arena *arena, const Hlo__HloModuleProto *module,
                     const Hlo__HloInstructionProto *instruction, AmError *error);

#endif
