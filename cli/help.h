/* --help texts, printed from the tables that parse the options. */
#ifndef CLI_HELP_H
#define CLI_HELP_H

#include "cli/common.h"

/* A heading and the commands below it; `commands` ends with NULL. */
typedef struct CliSection {
    const char *title;
    const CliCommand *const *commands;
} CliSection;

/* All commands; ends with a row without a title. */
extern const CliSection cli_sections[];

/* Appends usage, summary, options, notes and examples of a command. */
void help_append_command(Text *text, const CliCommand *command);
/* Appends the list of all commands. */
void help_append_usage(Text *text);

#endif
