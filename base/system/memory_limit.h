/* The memory that this process can use: of the machine, its control groups and its own limits. */
#ifndef BASE_SYSTEM_MEMORY_LIMIT_H
#define BASE_SYSTEM_MEMORY_LIMIT_H

#include <stdint.h>

typedef struct MemoryLimit {
    int64_t bytes; /* 0: unknown */
    const char *
        name; /* of the smallest limit: "this machine", "its control group" or "the limit on address space" */
} MemoryLimit;

/* Returns the smallest of: physical memory; memory.max and memory.high of every control group
 * (version 2), or memory.limit_in_bytes (version 1), from the process's group to the root;
 * RLIMIT_AS and RLIMIT_DATA. Above memory.high the kernel does not kill a process but stops it for
 * most of its time. Files are read below `root`, "" on a running system. */
MemoryLimit memory_limit(const char *root);
/* Returns the smallest of those that stay the same from boot to boot: physical memory, memory.max and
 * memory.limit_in_bytes; bytes, 0: unknown. */
int64_t memory_limit_lasting(const char *root);

#endif
