/* The machine that a process runs on, as far as it decides how fast programs run.
 *
 * Processors are those that the process may use: the affinity mask, cut by the CPU quota of its control
 * groups. Memory likewise is the physical memory or the limit of a control group. Both stay the same from
 * boot to boot, so that a Machine identifies measurements of it.
 */
#ifndef BASE_SYSTEM_MACHINE_H
#define BASE_SYSTEM_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct Machine {
    char processor[128];  /* "Intel(R) Xeon(R) Platinum 8480C"; the architecture where the name is unknown */
    int32_t processors;   /* at least 1 */
    int64_t memory_bytes; /* a multiple of 1 MiB; at least 1 MiB */
    char vectors[16];     /* the widest vectors that kernels use: "avx512", "avx2", "none" */
    char blas[256];       /* version and kernels of the BLAS library */
} Machine;

/* Describes this machine. `root` is put before /proc and /sys: "", or a folder with copies of their files. */
void machine_find(Machine *machine, const char *root);
/* Processors that this process may use, at least 1. */
int32_t machine_processors(void);
/* Returns the memory that this process may use, bytes: also below memory.high and its own limits
 * (base/system/memory_limit.h). */
int64_t machine_memory(void);

#endif
