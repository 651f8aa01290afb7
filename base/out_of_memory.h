/* The end of a program whose allocation fails.
 *
 * Arenas, texts and the program's JSON call out_of_memory() before they report a failed allocation. The
 * program ends there. A library that embeds automap sets no function, and NULL results and `failed` travel
 * up.
 */
#ifndef BASE_OUT_OF_MEMORY_H
#define BASE_OUT_OF_MEMORY_H

#include <stdint.h>

/* Calls the function that was set with the number of bytes that the allocation requested; without one, does
 * nothing. */
void out_of_memory(int64_t bytes);

/* Sets the function, before other threads start. NULL: none. */
void out_of_memory_set(void (*end)(int64_t bytes));

#endif
