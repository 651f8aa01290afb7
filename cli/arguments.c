/* Parses the options of a command by its table and converts their values.
 *
 * "--name VALUE" and "--name=VALUE" are equal; "--" ends the options. Every refusal
 * names the argument and the expectation, and proposes the nearest known name:
 * `automap search m.pb --clustr C` gives "unknown option --clustr; did you mean
 * --cluster?".
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/option_rows.h"
#include "base/option_value.h"
#include "base/suggest.h"
#include "cli/common.h"
#include "cli/hints.h"

const CliOption cli_common_options[] = {
    CLI_GROUP("all commands"),
    {"-o", "FILE", "file of the result; - is stdout", false},
    {"--json", NULL, "JSON instead of text", false},
    {"--quiet", NULL, "no notes, warnings and progress", false},
    {"--color", "auto|always|never", "colours on terminals (default auto; NO_COLOR: never)", false},
    {"--help", NULL, "this text; also -h", false},
    {0},
};

static const CliOption *find_in(const CliOption *options, const char *name, size_t length) {
    for (const CliOption *option = options; option->name; option++)
        if (strlen(option->name) == length && strncmp(option->name, name, length) == 0) return option;
    return NULL;
}

/* Returns the option that the word names, up to an equals sign, or NULL. */
static const CliOption *find_option(const CliCommand *command, const char *word) {
    size_t length = strcspn(word, "=");
    char name[64];
    const CliOption *option = find_in(command->options, word, length);
    if (!option) option = find_in(cli_common_options, word, length);
    if (option || length < 3 || length >= sizeof name) return option;
    snprintf(name, sizeof name, "--%.*s", (int)length - 2, word + 2);
    const char *present = option_present_key(name + 2);
    if (present == name + 2) return NULL;
    snprintf(name, sizeof name, "--%s", present);
    return find_in(command->options, name, strlen(name));
}

static AmStatus usage_error(const Cli *cli, AmError *error, const char *text, const char *what) {
    return am_fail(error, AM_ERROR_USAGE, "", "%s%.200s; see automap %s --help", text, what,
                   cli->command->name);
}

static AmStatus add_value(Cli *cli, const CliOption *option, const char *value, AmError *error) {
    int32_t k = 0;
    if (*value == '\0')
        return am_fail(error, AM_ERROR_USAGE, "", "%s: the value is empty (expected %s)", option->name,
                       option->value);
    while (k < cli->given_count && cli->given[k].option != option) k++;
    if (k == cli->given_count) {
        if (k == CLI_MAX_OPTIONS) return usage_error(cli, error, "too many options at ", option->name);
        cli->given[k].option = option;
        cli->given[k].count = 0;
        cli->given_count++;
    } else if (!option->value) {
        return AM_OK;
    } else if (!option->is_repeatable) {
        return am_fail(error, AM_ERROR_USAGE, "", "%s: given twice (%.80s and %.80s); expected once",
                       option->name, cli->given[k].values[0], value);
    }
    if (cli->given[k].count == CLI_MAX_REPEATS)
        return am_fail(error, AM_ERROR_USAGE, "", "%s: given more than %d times", option->name,
                       CLI_MAX_REPEATS);
    cli->given[k].values[cli->given[k].count++] = value;
    return AM_OK;
}

/* Collects the names of the command's options into names[0..CLI_MAX_OPTIONS * 2); returns their number. */
static size_t option_names(const CliCommand *command, const char **names) {
    size_t count = 0;
    for (const CliOption *option = command->options; option->name; option++)
        if (*option->name && count < CLI_MAX_OPTIONS) names[count++] = option->name;
    for (const CliOption *option = cli_common_options; option->name; option++)
        if (*option->name && count < 2 * CLI_MAX_OPTIONS) names[count++] = option->name;
    return count;
}

/* Returns whether "--model" names an argument of the command, such as MODEL. */
static bool names_argument(const CliCommand *command, const char *name) {
    char word[100];
    size_t length = 0;
    for (const char *at = name + strspn(name, "-"); *at && length + 1 < sizeof word; at++)
        word[length++] = (char)toupper((unsigned char)*at);
    word[length] = '\0';
    const char *at = length > 2 && command->arguments ? strstr(command->arguments, word) : NULL;
    return at && (at == command->arguments || at[-1] == ' ') && (at[length] == ' ' || at[length] == '\0');
}

static AmStatus fail_unknown_option(const Cli *cli, const char *word, AmError *error) {
    const char *names[2 * CLI_MAX_OPTIONS];
    char name[100], hint[SUGGEST_HINT_BYTES];
    size_t count = option_names(cli->command, names);
    snprintf(name, sizeof name, "%.*s", (int)strcspn(word, "="), word);
    if (word[1] == 'o' && word[2] != '\0' && word[2] != '=')
        return am_fail(error, AM_ERROR_USAGE, "", "unknown option %.100s; did you mean -o %.100s?", word,
                       word + 2);
    if (names_argument(cli->command, name))
        return am_fail(error, AM_ERROR_USAGE, "", "unknown option %s (expected automap %s %s)", name,
                       cli->command->name, cli->command->arguments);
    const char *synonym;
    for (int32_t k = 0; (synonym = hint_synonym(name, k)) != NULL; k++)
        if (find_option(cli->command, synonym) &&
            (strcmp(synonym, "--data") != 0 || find_option(cli->command, "--tensor"))) /* else a file */
            return am_fail(error, AM_ERROR_USAGE, "", "unknown option %s; did you mean %s?", name, synonym);
    bool is_letter = strlen(name) == 2; /* every other letter is as near */
    if (!is_letter && *suggest_hint(hint, name, names, count))
        return am_fail(error, AM_ERROR_USAGE, "", "unknown option %s%s", name, hint);
    return usage_error(cli, error, "unknown option ", name);
}

/* Refuses an argument beyond those of the command, with the option that it stands for where that is plain. */
static AmStatus fail_surplus(const Cli *cli, const char *word, AmError *error) {
    const char *names[2 * CLI_MAX_OPTIONS];
    size_t count = option_names(cli->command, names), length = strcspn(word, "=");
    for (size_t k = 0; k < count && length > 0; k++)
        if (strlen(names[k]) == length + 2 && strncmp(names[k] + 2, word, length) == 0)
            return am_fail(error, AM_ERROR_USAGE, "", "one argument too many: %.200s; did you mean --%.200s?",
                           word, word);
    for (int32_t k = cli->argument_count; k >= 0; k--) {
        const char *argument = k < cli->argument_count ? cli->arguments[k] : word;
        const char *option = hint_option_for(argument);
        if (option && find_option(cli->command, option) && !cli_has(cli, option))
            return am_fail(error, AM_ERROR_USAGE, "",
                           "one argument too many: %.200s; did you mean %s %.200s?", argument, option,
                           argument);
    }
    return am_fail(error, AM_ERROR_USAGE, "", "one argument too many: %.200s (expected automap %s %s)", word,
                   cli->command->name, cli->command->arguments);
}

static AmStatus add_argument(Cli *cli, const char *word, bool is_after_dashes, AmError *error) {
    size_t dash = hint_typographic_dash(word);
    if (dash > 0 && access(word, F_OK) != 0)
        return am_fail(error, AM_ERROR_USAGE, "",
                       "%.100s: begins with a typographic dash (expected --%.100s)", word, word + dash);
    if (*word == '\0')
        return am_fail(error, AM_ERROR_USAGE, "", "argument %d is empty (expected automap %s %s)",
                       cli->argument_count + 1, cli->command->name, cli->command->arguments);
    if (is_after_dashes && find_option(cli->command, word) && access(word, F_OK) != 0)
        return am_fail(error, AM_ERROR_USAGE, "", "%.100s: an option after -- (expected before --)", word);
    if (cli->argument_count == cli->command->most_arguments) return fail_surplus(cli, word, error);
    cli->arguments[cli->argument_count++] = word;
    return AM_OK;
}

AmStatus cli_parse(Cli *cli, const CliCommand *command, int count, char **arguments, AmError *error) {
    *cli = (Cli){.command = command};
    bool only_arguments = false;
    for (int k = 0; k < count; k++) {
        const char *word = arguments[k];
        if (!only_arguments && strcmp(word, "--") == 0) {
            only_arguments = true;
            continue;
        }
        if (only_arguments || word[0] != '-' || word[1] == '\0') {
            TRY(add_argument(cli, word, only_arguments, error));
            continue;
        }
        const CliOption *option = find_option(command, word);
        if (!option) return fail_unknown_option(cli, word, error);
        const char *value = option->name, *equals = strchr(word, '=');
        if (!option->value && equals)
            return am_fail(error, AM_ERROR_USAGE, "", "%s takes no argument (got %.100s)", option->name,
                           equals + 1);
        if (option->value && equals) {
            value = equals + 1;
        } else if (option->value) {
            bool is_missing =
                k + 1 == count || (arguments[k + 1][0] == '-' && find_option(command, arguments[k + 1]));
            if (is_missing)
                return am_fail(error, AM_ERROR_USAGE, "", "%s needs an argument (expected %s %s%s%.60s)",
                               option->name, option->name, option->value, k + 1 == count ? "" : " before ",
                               k + 1 == count ? "" : arguments[k + 1]);
            value = arguments[++k];
        }
        TRY(add_value(cli, option, value, error));
    }
    if (cli->argument_count < command->least_arguments) {
        if (cli->argument_count == 0) return usage_error(cli, error, "expected ", command->arguments);
        if (cli->argument_count > 1)
            return am_fail(error, AM_ERROR_USAGE, "", "expected automap %s %s, got %d arguments",
                           command->name, command->arguments, cli->argument_count);
        return am_fail(error, AM_ERROR_USAGE, "", "expected automap %s %s, got one argument, %.200s",
                       command->name, command->arguments, cli->arguments[0]);
    }
    return AM_OK;
}

int32_t cli_texts(const Cli *cli, const char *name, const char *const **values) {
    for (int32_t k = 0; k < cli->given_count; k++) {
        if (strcmp(cli->given[k].option->name, name) != 0) continue;
        *values = cli->given[k].values;
        return cli->given[k].count;
    }
    *values = NULL;
    return 0;
}

const char *cli_text(const Cli *cli, const char *name) {
    const char *const *values;
    return cli_texts(cli, name, &values) > 0 ? values[0] : NULL;
}

bool cli_has(const Cli *cli, const char *name) {
    return cli_text(cli, name) != NULL;
}

AmStatus cli_need(const Cli *cli, const char *name, const char **value, AmError *error) {
    *value = cli_text(cli, name);
    if (*value) return AM_OK;
    const CliOption *option = find_option(cli->command, name);
    return am_fail(error, AM_ERROR_USAGE, "", "expected %s %s; see automap %s --help", name,
                   option && option->value ? option->value : "", cli->command->name);
}

AmStatus cli_integer(const Cli *cli, const char *name, int64_t least, int64_t most, int64_t *value,
                     AmError *error) {
    const char *text = cli_text(cli, name);
    return text ? option_parse_integer(name, text, least, most, value, error) : AM_OK;
}

AmStatus cli_number(const Cli *cli, const char *name, double least, double most, double *value,
                    AmError *error) {
    const char *text = cli_text(cli, name);
    return text ? option_parse_number(name, text, least, most, value, error) : AM_OK;
}

AmStatus cli_choice(const Cli *cli, const char *name, const char *(*name_of)(int32_t), int32_t count,
                    int32_t *choice, AmError *error) {
    const char *text = cli_text(cli, name);
    return text ? option_parse_choice(name, text, name_of, count, choice, error) : AM_OK;
}
