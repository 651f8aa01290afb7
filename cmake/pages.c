/* Writes man pages and completions of bash, zsh and fish from the command line's tables of options.
 *
 *     automap_pages FOLDER
 *
 * makes FOLDER/automap.1, FOLDER/automap-search.1 and so on, FOLDER/automap.bash, FOLDER/_automap (zsh) and
 * FOLDER/automap.fish. The build runs it, so that the pages have every option that the program parses.
 */
#include <stdio.h>
#include <string.h>

#include "api/options.h"
#include "base/files/file.h"
#include "cli/help.h"

enum { MOST_COMMANDS = 64 };

/* All commands and actions ("agent train"), in the order of the help. */
typedef struct Pages {
    const CliCommand *commands[MOST_COMMANDS];
    int32_t count;
    const char *folder;
} Pages;

static void list_commands(Pages *pages) {
    for (const CliSection *section = cli_sections; section->title; section++)
        for (const CliCommand *const *command = section->commands; *command; command++) {
            pages->commands[pages->count++] = *command;
            const CliCommand *const *action = (*command)->actions;
            for (; action && *action; action++) pages->commands[pages->count++] = *action;
        }
}

static AmStatus write_page(const Pages *pages, const char *name, Text *text, AmError *error) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", pages->folder, name);
    AmStatus status =
        text->failed ? am_fail_memory(error, 0) : file_write(path, text->data, text->length, error);
    text_free(text);
    *text = (Text){0};
    return status;
}

/* Calls `visit` for the options of a command, those of all commands included; headings have an empty name. */
static void for_each_option(Text *text, const CliCommand *command,
                            void (*visit)(Text *text, const CliCommand *command, const CliOption *option)) {
    for (const CliOption *option = command->options; option->name; option++) visit(text, command, option);
    for (const CliOption *option = cli_common_options; option->name; option++) visit(text, command, option);
}

/* ---- man ---- */

/* Appends text for roff: no escapes, and no request at the beginning of a line. */
static void append_roff(Text *text, const char *string) {
    bool is_line_start = true;
    for (const char *c = string; *c; c++) {
        if (is_line_start && (*c == '.' || *c == '\'')) text_append_string(text, "\\&");
        if (*c == '\\') text_append_string(text, "\\e");
        else if (*c == '-') text_append_string(text, "\\-");
        else text_append_bytes(text, c, 1);
        is_line_start = *c == '\n';
    }
}

static void append_man_option(Text *text, const CliCommand *command, const CliOption *option) {
    (void)command;
    if (*option->name == '\0') {
        text_append_string(text, ".SS ");
        append_roff(text, option->help);
        text_append_string(text, "\n");
        return;
    }
    text_append_string(text, ".TP\n\\fB");
    append_roff(text, option->name);
    text_append_string(text, "\\fR");
    if (option->value) {
        text_append_string(text, " \\fI");
        append_roff(text, option->value);
        text_append_string(text, "\\fR");
    }
    text_append_string(text, "\n");
    append_roff(text, option->help);
    text_append_string(text, option->is_repeatable ? " (repeatable)\n" : "\n");
}

static void append_man_head(Text *text, const char *page, const char *summary) {
    text_append_string(text, ".TH ");
    append_roff(text, page);
    text_append(text, " 1 \"\" \"automap %s\" \"User Commands\"\n.SH NAME\n", AM_VERSION);
    append_roff(text, page);
    text_append_string(text, " \\- ");
    append_roff(text, summary);
    text_append_string(text, "\n.SH SYNOPSIS\n");
}

/* "automap-agent-train" of "agent train". */
static void page_name(char name[128], const CliCommand *command) {
    snprintf(name, 128, "automap-%s", command->name);
    for (char *c = name; *c; c++)
        if (*c == ' ') *c = '-';
}

static void append_man_page(Text *text, const CliCommand *command) {
    char name[128];
    page_name(name, command);
    append_man_head(text, name, command->summary);
    text_append_string(text, "\\fBautomap ");
    append_roff(text, command->name);
    text_append_string(text, "\\fR ");
    append_roff(text, command->arguments);
    text_append_string(text, " [OPTION...]\n.SH OPTIONS\n");
    for_each_option(text, command, append_man_option);
    if (command->notes) {
        text_append_string(text, ".SH NOTES\n.nf\n");
        append_roff(text, command->notes);
        text_append_string(text, "\n.fi\n");
    }
    if (command->examples) {
        text_append_string(text, ".SH EXAMPLES\n.nf\n");
        for (const char *line = command->examples; *line;) {
            int length = (int)strcspn(line, "\n");
            char example[1024];
            snprintf(example, sizeof example, "automap %.*s\n", length, line);
            append_roff(text, example);
            line += length + (line[length] == '\n');
        }
        text_append_string(text, ".fi\n");
    }
    text_append_string(text, ".SH SEE ALSO\n.BR automap (1)\n");
}

static AmStatus write_man_pages(const Pages *pages, AmError *error) {
    Text text = {0};
    char name[128], file[160];
    append_man_head(&text, "automap", "plans distributed training of XLA HLO modules, and runs it");
    text_append_string(&text, "\\fBautomap\\fR COMMAND ARGUMENT... [OPTION...]\n.SH COMMANDS\n");
    for (int32_t k = 0; k < pages->count; k++) {
        page_name(name, pages->commands[k]);
        text_append_string(&text, ".TP\n\\fB");
        append_roff(&text, name);
        text_append_string(&text, "\\fR(1)\n");
        append_roff(&text, pages->commands[k]->summary);
        text_append_string(&text, "\n");
    }
    text_append_string(&text,
                       ".SH EXIT STATUS\n0 ok, 1 internal, 2 usage, 3 bad input file, 4 no feasible plan,\n"
                       "5 failure at run time, 130 interrupted\n");
    TRY(write_page(pages, "automap.1", &text, error));
    for (int32_t k = 0; k < pages->count; k++) {
        page_name(name, pages->commands[k]);
        snprintf(file, sizeof file, "%s.1", name);
        append_man_page(&text, pages->commands[k]);
        TRY(write_page(pages, file, &text, error));
    }
    return AM_OK;
}

/* ---- values ---- */

/* The row of the API for an option, or NULL. */
static const OptionRow *find_row(const CliCommand *command, const CliOption *option) {
    static const struct {
        const char *name;
        AmCommand command;
    } tables[] = {{"search", AM_COMMAND_SEARCH},   {"simulate", AM_COMMAND_SIMULATE},
                  {"explain", AM_COMMAND_EXPLAIN}, {"compare", AM_COMMAND_COMPARE},
                  {"export", AM_COMMAND_EXPORT},   {"run", AM_COMMAND_RUN}};
    for (size_t k = 0; k < sizeof tables / sizeof *tables; k++) {
        if (strcmp(command->name, tables[k].name) != 0) continue;
        for (const OptionRow *row = option_table(tables[k].command); row->key; row++)
            if (strncmp(option->name, "--", 2) == 0 && strcmp(option->name + 2, row->key) == 0) return row;
    }
    return NULL;
}

/* Appends the values that an option may have, separated by spaces: names of a list, or "a|b" of its table
 * without words in capitals, which stand for any text. */
static void append_values(Text *text, const CliCommand *command, const CliOption *option) {
    const OptionRow *row = find_row(command, option);
    const char *name, *part = option->value;
    for (int32_t k = 0; row && (name = option_choice_name(row, k)); k++)
        text_append(text, "%s%s", k ? " " : "", name);
    if (text->data || !part || !strchr(part, '|')) return;
    for (size_t length; *part; part += length + (part[length] == '|')) {
        length = strcspn(part, "|");
        bool is_capital = *part >= 'A' && *part <= 'Z';
        if (!is_capital) text_append(text, "%s%.*s", text->data ? " " : "", (int)length, part);
    }
}

/* ---- bash ---- */

static void append_bash_name(Text *text, const CliCommand *command, const CliOption *option) {
    (void)command;
    if (*option->name) text_append(text, " %s", option->name);
}

static void append_bash_values(Text *text, const CliCommand *command, const CliOption *option) {
    Text values = {0};
    append_values(&values, command, option);
    if (values.data)
        text_append(text, "    '%s %s') values='%s' ;;\n", command->name, option->name, values.data);
    text_free(&values);
}

static void append_bash(Text *text, const Pages *pages) {
    text_append_string(text, "# Completion of automap in bash, from the tables of options.\n"
                             "_automap() {\n"
                             "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}\n"
                             "  local command=${COMP_WORDS[1]} options='' values='' actions=''\n"
                             "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
                             "    COMPREPLY=($(compgen -W 'help version");
    for (int32_t k = 0; k < pages->count; k++)
        if (!strchr(pages->commands[k]->name, ' ')) text_append(text, " %s", pages->commands[k]->name);
    text_append_string(text, "' -- \"$word\"))\n    return\n  fi\n  case $command in\n");
    for (int32_t k = 0; k < pages->count; k++) {
        const CliCommand *command = pages->commands[k];
        if (!command->actions) continue;
        text_append(text, "    %s) actions='", command->name);
        for (const CliCommand *const *action = command->actions; *action; action++)
            text_append(text, "%s%s", action == command->actions ? "" : " ",
                        (*action)->name + strlen(command->name) + 1);
        text_append_string(text, "' ;;\n");
    }
    text_append_string(text, "  esac\n"
                             "  if [ -n \"$actions\" ] && [ \"$COMP_CWORD\" -eq 2 ]; then\n"
                             "    COMPREPLY=($(compgen -W \"$actions\" -- \"$word\"))\n"
                             "    return\n"
                             "  fi\n"
                             "  if [ -n \"$actions\" ]; then command=\"$command ${COMP_WORDS[2]}\"; fi\n"
                             "  case \"$command $before\" in\n");
    for (int32_t k = 0; k < pages->count; k++) for_each_option(text, pages->commands[k], append_bash_values);
    text_append_string(text, "  esac\n  case $command in\n");
    for (int32_t k = 0; k < pages->count; k++) {
        text_append(text, "    '%s') options='", pages->commands[k]->name);
        for_each_option(text, pages->commands[k], append_bash_name);
        text_append_string(text, "' ;;\n");
    }
    text_append_string(text, "  esac\n"
                             "  if [ -n \"$values\" ]; then\n"
                             "    COMPREPLY=($(compgen -W \"$values\" -- \"$word\"))\n"
                             "  elif [ \"${word:0:1}\" = - ]; then\n"
                             "    COMPREPLY=($(compgen -W \"$options\" -- \"$word\"))\n"
                             "  else\n"
                             "    COMPREPLY=($(compgen -f -- \"$word\"))\n"
                             "  fi\n"
                             "}\n"
                             "complete -o filenames -F _automap automap\n");
}

/* ---- zsh and fish ---- */

/* Appends text inside single quotes of a shell, with a backslash before each character of `special`. */
static void append_quoted(Text *text, const char *string, const char *special) {
    for (const char *c = string; *c; c++) {
        if (*c == '\'') {
            text_append_string(text, "'\\''");
            continue;
        }
        if (strchr(special, *c)) text_append_string(text, "\\");
        text_append_bytes(text, c, 1);
    }
}

static void append_zsh_option(Text *text, const CliCommand *command, const CliOption *option) {
    Text values = {0};
    if (*option->name == '\0') return;
    text_append(text, " \\\n        '%s%s[", option->is_repeatable ? "*" : "", option->name);
    append_quoted(text, option->help, "[]:\\");
    text_append_string(text, "]");
    append_values(&values, command, option);
    if (option->value) {
        text_append_string(text, ":");
        append_quoted(text, option->value, ":\\");
        if (values.data) text_append(text, ":(%s)", values.data);
        else text_append_string(text, ":_files");
    }
    text_append_string(text, "'");
    text_free(&values);
}

static void append_zsh(Text *text, const Pages *pages) {
    text_append_string(text, "#compdef automap\n"
                             "# Completion of automap in zsh, from the tables of options.\n"
                             "_automap() {\n"
                             "  local -a commands\n"
                             "  commands=(\n");
    for (int32_t k = 0; k < pages->count; k++) {
        if (strchr(pages->commands[k]->name, ' ')) continue;
        text_append(text, "    '%s:", pages->commands[k]->name);
        append_quoted(text, pages->commands[k]->summary, ":\\");
        text_append_string(text, "'\n");
    }
    text_append_string(text, "  )\n"
                             "  if (( CURRENT == 2 )); then _describe command commands; return; fi\n"
                             "  shift words; (( CURRENT-- ))\n"
                             "  local name=$words[1]\n"
                             "  if [[ $name == agent ]]; then\n"
                             "    if (( CURRENT == 2 )); then _values action");
    for (int32_t k = 0; k < pages->count; k++) {
        const char *space = strchr(pages->commands[k]->name, ' ');
        if (space) text_append(text, " %s", space + 1);
    }
    text_append_string(text, "; return; fi\n"
                             "    shift words; (( CURRENT-- )); name=\"agent $words[1]\"\n"
                             "  fi\n"
                             "  case $name in\n");
    for (int32_t k = 0; k < pages->count; k++) {
        text_append(text, "    '%s')\n      _arguments -S", pages->commands[k]->name);
        for_each_option(text, pages->commands[k], append_zsh_option);
        text_append_string(text, " \\\n        '*:file:_files' ;;\n");
    }
    text_append_string(text, "  esac\n}\n_automap \"$@\"\n");
}

static void append_fish_option(Text *text, const CliCommand *command, const CliOption *option) {
    Text values = {0};
    const char *name = option->name;
    if (*name == '\0') return;
    text_append_string(text, "complete -c automap -n '__fish_seen_subcommand_from ");
    const char *space = strchr(command->name, ' ');
    text_append(text, "%s' ", space ? space + 1 : command->name);
    if (strncmp(name, "--", 2) == 0) text_append(text, "-l %s", name + 2);
    else text_append(text, "-s %s", name + 1);
    append_values(&values, command, option);
    if (values.data) text_append(text, " -x -a '%s'", values.data);
    else if (option->value) text_append_string(text, " -r");
    text_append_string(text, " -d '");
    for (const char *c = option->help; *c; c++) { /* fish escapes quotes inside quotes */
        if (*c == '\'' || *c == '\\') text_append_string(text, "\\");
        text_append_bytes(text, c, 1);
    }
    text_append_string(text, "'\n");
    text_free(&values);
}

static void append_fish(Text *text, const Pages *pages) {
    text_append_string(text, "# Completion of automap in fish, from the tables of options.\n");
    for (int32_t k = 0; k < pages->count; k++) {
        const CliCommand *command = pages->commands[k];
        const char *space = strchr(command->name, ' ');
        text_append(text, "complete -c automap -n '%s' -a %s -d '",
                    space ? "__fish_seen_subcommand_from agent" : "__fish_use_subcommand",
                    space ? space + 1 : command->name);
        append_quoted(text, command->summary, "");
        text_append_string(text, "'\n");
        if (!command->actions) for_each_option(text, command, append_fish_option);
    }
}

int main(int count, char **words) {
    Pages pages = {.folder = count > 1 ? words[1] : "."};
    AmError error = {0};
    Text bash = {0}, zsh = {0}, fish = {0};
    list_commands(&pages);
    append_bash(&bash, &pages);
    append_zsh(&zsh, &pages);
    append_fish(&fish, &pages);
    AmStatus status = write_man_pages(&pages, &error);
    if (status == AM_OK) status = write_page(&pages, "automap.bash", &bash, &error);
    if (status == AM_OK) status = write_page(&pages, "_automap", &zsh, &error);
    if (status == AM_OK) status = write_page(&pages, "automap.fish", &fish, &error);
    if (status != AM_OK) fprintf(stderr, "automap_pages: %s: %s\n", error.source, error.text);
    text_free(&bash);
    text_free(&zsh);
    text_free(&fish);
    return status;
}
