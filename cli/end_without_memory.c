/* The end of the program when an allocation fails.
 *
 * A command that has no memory left cannot finish; it ends here with exit code 1 and one line, and no partial
 * output becomes visible: outputs are complete files, renamed at their end (base/files/file.h). Nothing is
 * allocated.
 */
#include "cli/end_without_memory.h"

#include <jansson.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/out_of_memory.h"
#include "cli/common.h"

static bool errors_are_json;

static void end_program(int64_t bytes) {
    AmError error = {0};
    am_fail_memory(&error, bytes);
    cli_print_error(&error, errors_are_json);
    _exit(AM_ERROR_INTERNAL);
}

/* Ends the program without memory, where jansson would leave members out of a document. */
static void *allocate_json(size_t bytes) {
    void *memory = malloc(bytes);
    if (!memory) end_program((int64_t)bytes);
    return memory;
}

void cli_end_without_memory(bool as_json) {
    errors_are_json = as_json;
    out_of_memory_set(end_program);
    json_set_alloc_funcs(allocate_json, free);
}
