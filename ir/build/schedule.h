/* The order in which a compiled module says that its instructions run. */
#ifndef IR_BUILD_SCHEDULE_H
#define IR_BUILD_SCHEDULE_H

#include "ir/build/id_map.h"
#include "ir/hlo.pb-c.h"

/* The sequences of a module by the id of their computation. */
typedef struct IrSchedule {
    const Hlo__HloScheduleProto *message; /* NULL: the module has none */
    IdMap sequences;
} IrSchedule;

/* Makes an index; false if memory ran out. */
bool ir_schedule_index(IrSchedule *schedule, const Hlo__HloModuleProto *module, Arena *arena);

/* Sets order[k] to the position in the computation of the instruction that runs k-th. Returns
 * false, with undefined contents of `order`, if the computation has no sequence or its sequence is
 * no permutation of its instructions with operands before users. `positions` maps the low 32 bits
 * of ids. */
bool ir_schedule_order(int32_t *order, const IrSchedule *schedule,
                       const Hlo__HloComputationProto *computation, const IdMap *positions);

#endif
