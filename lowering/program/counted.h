/* Values that are consecutive integers: results of iota, a shard of them included, and what loops pass on
 * unchanged. */
#ifndef LOWERING_PROGRAM_COUNTED_H
#define LOWERING_PROGRAM_COUNTED_H

#include "lowering/program/program.h"

/* Sets is_counted and first_number of the vectors of a program and of its regions that are known to be
 * consecutive integers. */
void program_find_counted(Program *program);

#endif
