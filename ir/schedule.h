/* The order in which a compiled module says that its instructions run. */
#ifndef IR_SCHEDULE_H
#define IR_SCHEDULE_H

#include "ir/hlo.pb-c.h"
#include "ir/id_map.h"

/* The sequences of a module by the id of their computation. */
typedef struct IrSchedule {
    const Hlo__HloScheduleProto *message; /* NULL: the module has none */
    IdMap sequences;
} IrSchedule;

/* False if memory ran out. */
bool ir_schedule_index(IrSchedule *schedule, const Hlo__HloModuleProto *module, Arena *arena);

/* order[k] = position in the computation of what runs k-th. False, and nothing
 * that may be relied on, where there is no sequence for the computation or it is
 * no permutation of its instructions with operands before their users. `positions` maps the low 32 bits of
 * ids. */
bool ir_schedule_order(int32_t *order, const IrSchedule *schedule,
                       const Hlo__HloComputationProto *computation, const IdMap *positions);

#endif
