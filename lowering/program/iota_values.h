/* Values that are consecutive integers: results of iota, a shard of them included, and values that loops pass
 * on unchanged. */
#ifndef LOWERING_PROGRAM_IOTA_VALUES_H
#define LOWERING_PROGRAM_IOTA_VALUES_H

#include "lowering/program/program.h"

/* Sets is_iota and iota_first of the vectors of a program and of its regions that are known to be
 * consecutive integers. */
void program_find_iotas(Program *program);

#endif
