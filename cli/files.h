/* Which arguments of a command line are files that it reads or writes, and that none of them is lost. */
#ifndef CLI_FILES_H
#define CLI_FILES_H

#include "cli/common.h"

/* AM_ERROR_USAGE where an output would replace a file that is read, or two outputs are one file or both
 * stdout; to be asked before anything is read or written. `output` is where the result goes without -o; NULL:
 * to stdout. Allowed: /dev/null, folders, and -o on the plan of --init-plan, which is improved in place. */
AmStatus cli_check_files(const Cli *cli, const char *output, AmError *error);

/* The file that an error without a file is about: that of --import, the module, or the first argument; NULL:
 * none. */
const char *cli_main_input(const Cli *cli);

#endif
