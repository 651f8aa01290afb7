/* Options of a command as the API stores them: a list of values for each row of the command's table.
 *
 * am_options_set() checks every value by the rule of its row, so that the readers below do not fail.
 * Readers accept NULL options, which have no values. Errors name options as the caller does:
 * "--seed x: expected an integer of at least 0" after am_options_set(options, "--seed", ...).
 */
#ifndef API_OPTIONS_H
#define API_OPTIONS_H

#include <stdbool.h>

#include "automap.h"
#include "base/option_value.h"

typedef enum OptionKind {
    OPTION_TEXT,
    OPTION_SWITCH,
    OPTION_INTEGER,
    OPTION_NUMBER,
    OPTION_CHOICE,
    OPTION_MICRO_BATCHES, /* "auto" or an integer */
    OPTION_PIN            /* PATTERN=SHARDING */
} OptionKind;

/* Lists of names; OPTION_BASELINES has the aliases after the names. */
typedef enum OptionList {
    OPTION_SPACES,
    OPTION_TARGETS, /* names and aliases */
    OPTION_SEARCHERS,
    OPTION_BASELINES,
    OPTION_OBJECTIVES,
    OPTION_ATTENTIONS,
    OPTION_OFFLOADS,
    OPTION_DEVICES,
    OPTION_SCHEDULES,
    OPTION_RELAXATIONS,
    OPTION_SPELLINGS,
    OPTION_LAYERS,
    OPTION_ON_NAN,
    OPTION_GROUP_ORDERS,
    OPTION_PRECISIONS,
    OPTION_LISTS
} OptionList;

typedef struct OptionRule {
    OptionKind kind;
    int64_t least, most; /* OPTION_INTEGER */
    double from, to;     /* OPTION_NUMBER */
    OptionList list;     /* OPTION_CHOICE */
} OptionRule;

typedef struct OptionRow {
    const char *key, *value, *help; /* value NULL: a switch */
    bool is_repeatable;
    OptionRule rule;
} OptionRow;

enum { OPTION_MOST_ROWS = 64 };

struct AmOptions {
    AmCommand command;
    const char *dashes; /* before a key in errors, as in the last am_options_set(): "" or "--" */
    bool has_noted;     /* notes on these values were given (search_settings.h) */
    struct {
        char **values; /* [count], C heap */
        int32_t count;
    } given[OPTION_MOST_ROWS];
};

/* Returns the table of a command, which ends with a row without a key; NULL for an unknown command. */
const OptionRow *option_table(AmCommand command);

/* Returns the name of a spelling of exported shardings. */
const char *option_spelling_name(int32_t k);

/* Returns name k that a row's rule accepts; NULL beyond the last, and for a row without a list. */
const char *option_choice_name(const OptionRow *row, int32_t k);

/* Makes the checks of am_options_check(): whether the values of one command fit together. */
AmStatus search_options_check(const AmOptions *options, AmError *error);
AmStatus export_options_check(const AmOptions *options, AmError *error);
AmStatus cluster_options_check(const AmOptions *options, AmError *error);

/* Returns the last value of an option, or NULL. */
const char *option_text(const AmOptions *options, const char *key);
bool option_has(const AmOptions *options, const char *key);
/* Removes the values of an option from a copy of the struct, which borrows the others. */
void option_drop(AmOptions *copy, const char *key);
/* Finds all values of a repeatable option; returns their number. */
int32_t option_texts(const AmOptions *options, const char *key, const char *const **values);
/* Reads an integer. Leaves *value unchanged if the option has no value. */
void option_integer(const AmOptions *options, const char *key, int64_t *value);
void option_number(const AmOptions *options, const char *key, double *value);
void option_choice(const AmOptions *options, const char *key, int32_t *choice);
/* Returns the choices of a repeatable option as bits 1 << choice. */
uint32_t option_choices(const AmOptions *options, const char *key);

#endif
