/* Red zones: the unused bytes around the values of a rank's allocation. Every step is
 * checked to leave them unchanged. Only with AUTOMAP_RED_ZONES
 * (lowering/passes/buffers.c), for tests.
 *
 *   | zone | value 3 | zone | value 4: 40 bytes, then padding to 64 | zone | ...
 *
 * A zone holds 0xFF, which is NaN in every floating type and -1 in integers: a
 * kernel that reads it gives wrong results. A kernel that writes it fails its
 * step, with the step's and the value's names. All steps are issued one by one.
 */
#ifndef EXECUTOR_PROGRAM_RED_ZONES_H
#define EXECUTOR_PROGRAM_RED_ZONES_H

#include "executor/kernels.h"

typedef struct RedZones RedZones;

/* Finds the zones of a program; NULL where the buffer plan has none. `memory`: the byte at offset `first` of
 * the plan, with which the memory of the program's values begins. In the arena. */
AmStatus red_zones_find(RedZones **zones, Arena *arena, const Program *program, KernelDevice *device,
                        char *memory, int64_t first, AmError *error);
/* Fills all zones; before the first step. */
void red_zones_fill(const RedZones *zones);
/* Waits for step `s` and reads all zones; AM_ERROR_INTERNAL: a byte has changed. */
AmStatus red_zones_check(const RedZones *zones, int32_t s, AmError *error);

#endif
