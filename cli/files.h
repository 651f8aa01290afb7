/* Finds the arguments of a command line that are input or output files, and protects them from
 * being overwritten. */
#ifndef CLI_FILES_H
#define CLI_FILES_H

#include "cli/common.h"

/* Returns AM_ERROR_USAGE if an output would replace an input, or two outputs are one file or both stdout. Is
 * called before files are read or written. `output` is the path of the result without -o; NULL: stdout.
 * Allowed: /dev/null, folders, and -o on the plan of --init-plan, which is improved in place. */
AmStatus cli_check_files(const Cli *cli, const char *output, AmError *error);

/* Returns the file that an error without a file is about: that of --import, the module, or the first
 * argument; NULL: none. */
const char *cli_main_input(const Cli *cli);

#endif
