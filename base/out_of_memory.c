/* The end of a program whose allocation fails: a function that the program sets. */
#include "base/out_of_memory.h"

#include <stddef.h>

static void (*end_program)(int64_t bytes);

void out_of_memory(int64_t bytes) {
    if (end_program) end_program(bytes);
}

void out_of_memory_set(void (*end)(int64_t bytes)) {
    end_program = end;
}
