/* Compiled units shared by the ranks of a process: ranks on the same card whose
 * programs are alike compile and load their kernels once. */
#ifndef EXECUTOR_CUDA_UNIT_CACHE_H
#define EXECUTOR_CUDA_UNIT_CACHE_H

#include "base/cuda/unit.h"

typedef struct SharedUnit SharedUnit;

/* Takes the unit of this text on this device, which is current: loaded now, or by another rank before. By any
 * thread; ranks that want the same unit at the same time wait for the one that loads it. The caller returns
 * it. Errors are those of cuda_unit_load(). */
AmStatus unit_cache_take(SharedUnit **unit, const CudaDevice *device, const char *text, AmError *error);
const CudaUnit *unit_cache_unit(const SharedUnit *unit);
/* Unloads it if no other rank has it; its device is current. */
void unit_cache_return(SharedUnit *unit);

#endif
