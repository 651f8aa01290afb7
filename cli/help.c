/* Prints --help texts: a line per option in columns, under the headings of the table.
 *
 * The texts of options and commands come from the tables that also parse them, so that no option lacks its
 * line.
 */
#include "cli/help.h"

#include <string.h>

enum { INDENT = 2, GAP = 2 };

static const CliCommand *const modules[] = {&CLI_INFO,      &CLI_CONVERT, &CLI_GROUPS,
                                            &CLI_PROPAGATE, &CLI_LOWER,   NULL};
static const CliCommand *const plans[] = {&CLI_CLUSTER, &CLI_SEARCH, &CLI_SIMULATE,  &CLI_EXPLAIN, &CLI_DIFF,
                                          &CLI_COMPARE, &CLI_EXPORT, &CLI_PUBLISHED, NULL};
static const CliCommand *const training[] = {&CLI_RUN, &CLI_AGENT, NULL};
const CliSection cli_sections[] = {
    {"modules", modules}, {"clusters and plans", plans}, {"training", training}, {0}};

static size_t option_width(const CliOption *option) {
    return strlen(option->name) + (option->value ? strlen(option->value) + 1 : 0);
}

static size_t widest_option(const CliOption *options, size_t width) {
    for (const CliOption *option = options; option->name; option++)
        if (*option->name && option_width(option) > width) width = option_width(option);
    return width;
}

static void append_heading(Text *text, const char *title) {
    text_append_string(text, "\n");
    text_append_style(text, TEXT_BOLD);
    text_append(text, "%s:", title);
    text_append_style(text, TEXT_PLAIN);
    text_append_string(text, "\n");
}

static void append_options(Text *text, const CliOption *options, size_t width) {
    if (options->name && *options->name) append_heading(text, "options");
    for (const CliOption *option = options; option->name; option++) {
        if (*option->name == '\0') {
            append_heading(text, option->help);
            continue;
        }
        text_append(text, "%*s%s%s%s%*s%s%s\n", INDENT, "", option->name, option->value ? " " : "",
                    option->value ? option->value : "", (int)(width - option_width(option)) + GAP, "",
                    option->help, option->is_repeatable ? " (repeatable)" : "");
    }
}

static void append_commands(Text *text, const CliCommand *const *commands, size_t width) {
    for (; *commands; commands++)
        text_append(text, "%*s%-*s%s\n", INDENT, "", (int)width + GAP, (*commands)->name,
                    (*commands)->summary);
}

static void append_examples(Text *text, const char *examples) {
    append_heading(text, strchr(examples, '\n') ? "examples" : "example");
    while (*examples) {
        size_t length = strcspn(examples, "\n");
        text_append(text, "%*sautomap %.*s\n", INDENT, "", (int)length, examples);
        examples += length + (examples[length] == '\n');
    }
}

void help_append_command(Text *text, const CliCommand *command) {
    size_t width = widest_option(cli_common_options, widest_option(command->options, 0));
    text_append(text, "usage: automap %s %s%s[OPTION...]\n\n%s\n", command->name, command->arguments,
                *command->arguments ? " " : "", command->summary);
    if (command->actions) {
        append_heading(text, "actions");
        size_t widest = 0;
        for (const CliCommand *const *action = command->actions; *action; action++)
            if (strlen((*action)->name) > widest) widest = strlen((*action)->name);
        append_commands(text, command->actions, widest);
    }
    append_options(text, command->options, width);
    append_options(text, cli_common_options, width);
    if (command->notes) text_append(text, "\n%s\n", command->notes);
    if (command->examples) append_examples(text, command->examples);
}

void help_append_usage(Text *text) {
    const CliSection *sections = cli_sections;
    static const size_t width = sizeof "propagate";
    text_append_string(text, "usage: automap COMMAND ARGUMENT... [OPTION...]\n\n"
                             "Plans distributed training of XLA HLO modules, and runs it.\n");
    for (; sections->title; sections++) {
        append_heading(text, sections->title);
        append_commands(text, sections->commands, width);
    }
    append_heading(text, "help");
    text_append(text, "%*s%-*s%s\n", INDENT, "", (int)width + GAP, "help",
                "this list, or the options of a command: automap help search");
    text_append(text, "%*s%-*s%s\n", INDENT, "", (int)width + GAP, "version",
                "version and features of this program");
    append_examples(text, "search model.hlo.pb --cluster h100:4 -o plan.json\n"
                          "run model.hlo.pb --plan plan.json --state random --data data.npz --steps 100");
    text_append_string(text,
                       "\nexit codes: 0 ok, 1 internal, 2 usage, 3 bad input file, 4 no feasible plan,\n"
                       "5 failure at run time, 130 interrupted\n");
}
