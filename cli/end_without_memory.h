/* The end of the program when an allocation fails: exit code 1 and one line. */
#ifndef CLI_END_WITHOUT_MEMORY_H
#define CLI_END_WITHOUT_MEMORY_H

#include <stdbool.h>

/* Lets a failing allocation end the program, also of JSON; errors are printed as JSON if `as_json`. */
void cli_end_without_memory(bool as_json);

#endif
