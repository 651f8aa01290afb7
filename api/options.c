/* The tables of options, and handles of their values.
 *
 *     am_options_set(options, "mesh", "data=4,model=8", &error)
 *
 * finds the row "mesh" of the command's table, checks the value by the rule of the row, and stores a copy.
 */
#define _POSIX_C_SOURCE 200809L
#include "api/options.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/handles.h"
#include "api/option_rows.h"
#include "base/suggest.h"
#include "executor/data/feed.h"
#include "lowering/micro_batch/micro_batches.h"
#include "planners/cut_agent/cut_agent.h"
#include "planners/cut_agent/cut_agent_file.h"
#include "propagation/groups/groups.h"
#include "propagation/plan/pipeline_schedule.h"

#define RULE_TEXT \
    { .kind = OPTION_TEXT }
#define RULE_SWITCH \
    { .kind = OPTION_SWITCH }
#define RULE_INTEGER(least_, most_) \
    { .kind = OPTION_INTEGER, .least = (least_), .most = (most_) }
#define RULE_NUMBER(from_, to_) \
    { .kind = OPTION_NUMBER, .from = (from_), .to = (to_) }
#define RULE_CHOICE(list_) \
    { .kind = OPTION_CHOICE, .list = (list_) }
#define RULE_MICRO_BATCHES \
    { .kind = OPTION_MICRO_BATCHES }
#define RULE_PIN \
    { .kind = OPTION_PIN }
#define ROW(key, value, help, is_repeatable, ...) {key, value, help, is_repeatable, __VA_ARGS__},

static const OptionRow search_rows[] = {
    SEARCH_SPACE_ROWS(ROW) SEARCH_METHOD_ROWS(ROW) OPTION_ROW_MEMORY_FRACTION(ROW) SEARCH_ATTENTION_ROWS(ROW)
        SEARCH_PIPELINE_ROWS(ROW) SEARCH_INPUT_ROWS(ROW) OPTION_ROW_INFERENCE(ROW){0}};
static const OptionRow simulate_rows[] = {SIMULATE_ROWS(ROW) SIMULATE_OUTPUT_ROWS(ROW)
                                              SIMULATE_TRACE_ROWS(ROW){0}};
static const OptionRow explain_rows[] = {
    EXPLAIN_ROWS(ROW) ROW("timeline", NULL, "timeline of the stages, for HTML", false, RULE_SWITCH)
        ROW("command", "TEXT", "command line named on the page of HTML", false, RULE_TEXT){0}};
static const OptionRow export_rows[] = {EXPORT_FORMAT_ROWS(ROW) EXPORT_ROWS(ROW)
                                            ROW("json", NULL, "JSON instead of text", false, RULE_SWITCH){0}};
static const OptionRow run_rows[] = {RUN_TRAINING_ROWS(ROW) OPTION_ROW_INFERENCE(ROW) RUN_DATA_ROWS(ROW)
                                         RUN_VALIDATION_ROWS(ROW) RUN_CHECKPOINT_ROWS(ROW)
                                             RUN_OUTPUT_ROWS(ROW) RUN_TRACE_ROWS(ROW) RUN_DEVICE_ROWS(ROW)
                                                 RUN_PRECISION_ROWS(ROW){0}};

static const OptionRow sweep_rows[] = {SWEEP_ROWS(ROW) OPTION_ROW_PROFILE(ROW)
                                           OPTION_ROW_MEMORY_FRACTION(ROW){0}};

static const OptionRow compare_rows[] = {COMPARE_ROWS(ROW){0}};
static const OptionRow info_rows[] = {INFO_ROWS(ROW){0}};
static const OptionRow convert_rows[] = {CONVERT_ROWS(ROW){0}};
static const OptionRow groups_rows[] = {GROUPS_ROWS(ROW){0}};
static const OptionRow propagate_rows[] = {PROPAGATE_ROWS(ROW){0}};
static const OptionRow lower_rows[] = {LOWER_ROWS(ROW){0}};
static const OptionRow cluster_rows[] = {CLUSTER_PROBE_ROWS(ROW) OPTION_ROW_NO_PROBE(ROW)
                                             CLUSTER_FORGET_ROWS(ROW) CLUSTER_IMPORT_ROWS(ROW){0}};
static const OptionRow published_rows[] = {PUBLISHED_ROWS(ROW) PUBLISHED_OUTPUT_ROWS(ROW){0}};
static const OptionRow train_rows[] = {AGENT_TRAIN_ROWS(ROW)
                                           AGENT_CHECKPOINT_ROWS(ROW, "episodes", "third"){0}};
static const OptionRow train_search_rows[] = {AGENT_TRAIN_SEARCH_ROWS(ROW)
                                                  AGENT_CHECKPOINT_ROWS(ROW, "problems", "tenth"){0}};
static const OptionRow evaluate_rows[] = {AGENT_EVALUATE_ROWS(ROW){0}};
static const OptionRow generate_rows[] = {AGENT_GENERATE_ROWS(ROW){0}};

static const OptionRow *const tables[] = {[AM_COMMAND_SEARCH] = search_rows,
                                          [AM_COMMAND_SIMULATE] = simulate_rows,
                                          [AM_COMMAND_EXPLAIN] = explain_rows,
                                          [AM_COMMAND_EXPORT] = export_rows,
                                          [AM_COMMAND_RUN] = run_rows,
                                          [AM_COMMAND_SWEEP] = sweep_rows,
                                          [AM_COMMAND_INFO] = info_rows,
                                          [AM_COMMAND_GROUPS] = groups_rows,
                                          [AM_COMMAND_PROPAGATE] = propagate_rows,
                                          [AM_COMMAND_LOWER] = lower_rows,
                                          [AM_COMMAND_CLUSTER] = cluster_rows,
                                          [AM_COMMAND_PUBLISHED] = published_rows,
                                          [AM_COMMAND_AGENT_TRAIN] = train_rows,
                                          [AM_COMMAND_AGENT_TRAIN_SEARCH] = train_search_rows,
                                          [AM_COMMAND_AGENT_EVALUATE] = evaluate_rows,
                                          [AM_COMMAND_AGENT_GENERATE] = generate_rows,
                                          [AM_COMMAND_COMPARE] = compare_rows,
                                          [AM_COMMAND_CONVERT] = convert_rows};
enum { COMMAND_COUNT = sizeof tables / sizeof *tables };

const OptionRow *option_table(AmCommand command) {
    return (int)command >= 0 && (int)command < COMMAND_COUNT ? tables[command] : NULL;
}

/* ---- lists of names ---- */

#define NAMES_OF(list, name_of_value, type)   \
    static const char *list##_of(int32_t k) { \
        return name_of_value((type)k);        \
    }
NAMES_OF(space, plan_space_name, PlanSpace)
NAMES_OF(searcher, searcher_name, Searcher)
NAMES_OF(objective, search_objective_name, SearchObjective)
NAMES_OF(device, dqn_device_name, DqnDevice)
NAMES_OF(schedule, schedule_kind_name, ScheduleKind)
NAMES_OF(relaxation, relaxation_name, Relaxation)
NAMES_OF(layers, layers_choice_name, LayersChoice)
NAMES_OF(attention, attention_choice_name, AttentionChoice)
NAMES_OF(offload, offload_choice_name, OffloadChoice)
NAMES_OF(group_order, groups_order_name, GroupOrder)
#undef NAMES_OF

/* Returns name k of the baselines, then of their aliases. */
static const char *baseline_of(int32_t k) {
    Baseline baseline;
    return k < BASELINE_COUNT ? baseline_name((Baseline)k) : baseline_alias(k - BASELINE_COUNT, &baseline);
}

const char *option_spelling_name(int32_t k) {
    static const char *const names[] = {"tiles", "named", "closed", "open"};
    return names[k];
}

static const char *on_nan_of(int32_t k) {
    static const char *const names[] = {"stop", "warn"};
    return names[k];
}

static const char *precision_of(int32_t k) {
    static const char *const names[] = {"bf16"};
    return names[k];
}

static const struct {
    const char *(*name_of)(int32_t);
    int32_t count;
} lists[OPTION_LISTS] = {[OPTION_SPACES] = {space_of, SPACE_COUNT},
                         [OPTION_TARGETS] = {target_name, TARGET_NAMES},
                         [OPTION_SEARCHERS] = {searcher_of, SEARCHER_COUNT},
                         [OPTION_BASELINES] = {baseline_of, BASELINE_COUNT + BASELINE_ALIAS_COUNT},
                         [OPTION_OBJECTIVES] = {objective_of, OBJECTIVE_COUNT},
                         [OPTION_DEVICES] = {device_of, DQN_DEVICE_COUNT},
                         [OPTION_SCHEDULES] = {schedule_of, SCHEDULE_KINDS},
                         [OPTION_RELAXATIONS] = {relaxation_of, RELAXATION_COUNT},
                         [OPTION_SPELLINGS] = {option_spelling_name, 4},
                         [OPTION_LAYERS] = {layers_of, LAYERS_CHOICES},
                         [OPTION_ON_NAN] = {on_nan_of, 2},
                         [OPTION_PRECISIONS] = {precision_of, 1},
                         [OPTION_GROUP_ORDERS] = {group_order_of, GROUP_ORDER_COUNT},
                         [OPTION_ATTENTIONS] = {attention_of, ATTENTION_CHOICES},
                         [OPTION_OFFLOADS] = {offload_of, OFFLOAD_CHOICES}};

const char *option_choice_name(const OptionRow *row, int32_t k) {
    bool has_name = row->rule.kind == OPTION_CHOICE && k >= 0 && k < lists[row->rule.list].count;
    return has_name ? lists[row->rule.list].name_of(k) : NULL;
}

/* ---- rows ---- */

/* Returns whether a key of a caller, in which '_' equals '-', is that of a row. */
static bool is_key(const char *given, const char *key) {
    for (; *given && *key; given++, key++)
        if (*given != *key && !(*given == '_' && *key == '-')) return false;
    return *given == *key;
}

const char *option_present_key(const char *key) {
    static const char *const earlier[][2] = {{"expert", "baseline"}, {"no-exceptions", "no-overrides"}};
    for (size_t k = 0; k < sizeof earlier / sizeof *earlier; k++)
        if (is_key(key, earlier[k][0])) return earlier[k][1];
    return key;
}

static int32_t find_row(const OptionRow *rows, const char *key) {
    key = option_present_key(key);
    for (int32_t k = 0; rows[k].key; k++)
        if (is_key(key, rows[k].key)) return k;
    return -1;
}

static AmStatus fail_unknown_key(const OptionRow *rows, const char *key, AmError *error) {
    const char *names[OPTION_MOST_ROWS];
    char word[100], hint[SUGGEST_HINT_BYTES];
    size_t count = 0, length = 0;
    for (; rows[count].key; count++) names[count] = rows[count].key;
    for (; key[length] && length + 1 < sizeof word; length++)
        word[length] = key[length] == '_' ? '-' : key[length];
    word[length] = '\0';
    return am_fail(error, AM_ERROR_USAGE, "", "unknown option %.100s%s", *key ? key : "(empty)",
                   suggest_hint(hint, word, names, count));
}

static AmStatus check_micro_batches(const char *name, const char *text, AmError *error) {
    int64_t ignored;
    if (strcmp(text, "auto") == 0) return AM_OK;
    if (!isdigit((unsigned char)*text))
        return am_fail(error, AM_ERROR_USAGE, "", "%s %.60s: expected auto or an integer from 1 to %d", name,
                       text, MICRO_BATCHES_MOST);
    return option_parse_integer(name, text, 1, MICRO_BATCHES_MOST, &ignored, error);
}

/* Checks a value by the rule of its row; `name`: the option in errors. */
static AmStatus check_value(const OptionRow *row, const char *name, const char *text, AmError *error) {
    const OptionRule *rule = &row->rule;
    int64_t integer;
    double number;
    int32_t choice;
    if (*text == '\0')
        return am_fail(error, AM_ERROR_USAGE, "", "%s: the value is empty (expected %s)", name,
                       row->value ? row->value : "true or false");
    switch (rule->kind) {
    case OPTION_TEXT: return AM_OK;
    case OPTION_SWITCH:
        if (strcmp(text, "true") == 0 || strcmp(text, "false") == 0) return AM_OK;
        return am_fail(error, AM_ERROR_USAGE, "", "%s %.100s: expected true or false", name, text);
    case OPTION_INTEGER: return option_parse_integer(name, text, rule->least, rule->most, &integer, error);
    case OPTION_NUMBER: return option_parse_number(name, text, rule->from, rule->to, &number, error);
    case OPTION_CHOICE:
        return option_parse_choice(name, text, lists[rule->list].name_of, lists[rule->list].count, &choice,
                                   error);
    case OPTION_MICRO_BATCHES: return check_micro_batches(name, text, error);
    case OPTION_PIN: {
        Arena arena = {0};
        PropagationPin pin;
        AmStatus status = propagation_parse_pin(&pin, &arena, text, error);
        arena_free(&arena);
        return status;
    }
    }
    return AM_OK;
}

/* ---- handles ---- */

AmStatus am_options_new(AmOptions **options, AmCommand command, AmError *error) {
    api_begin(error);
    TRY(api_require(options, "options", error));
    *options = NULL;
    if (!option_table(command))
        return am_fail(error, AM_ERROR_USAGE, "", "command %d: expected one of AmCommand", (int)command);
    AmOptions *self = calloc(1, sizeof *self);
    if (!self) return am_fail_memory(error, (int64_t)sizeof *self);
    self->command = command;
    self->dashes = "";
    *options = self;
    return AM_OK;
}

static void remove_values(AmOptions *self, int32_t row) {
    for (int32_t k = 0; k < self->given[row].count; k++) free(self->given[row].values[k]);
    free(self->given[row].values);
    self->given[row].values = NULL;
    self->given[row].count = 0;
}

void am_options_free(AmOptions *options) {
    if (!options) return;
    for (int32_t row = 0; row < OPTION_MOST_ROWS; row++) remove_values(options, row);
    free(options);
}

static AmStatus set_option(AmOptions *options, const char *key, const char *value, AmError *error) {
    const OptionRow *rows = option_table(options->command);
    bool has_dashes = strncmp(key, "--", 2) == 0;
    if (has_dashes) key += 2;
    options->dashes = has_dashes ? "--" : "";
    int32_t k = find_row(rows, key);
    if (k < 0) return fail_unknown_key(rows, key, error);
    const OptionRow *row = &rows[k];
    bool is_switch = row->rule.kind == OPTION_SWITCH;
    if (is_switch && !value) value = "true";
    if (value && strcmp(row->key, "searcher") == 0) value = option_present_key(value);
    if (value) {
        char name[64];
        snprintf(name, sizeof name, "%s%s", options->dashes, row->key);
        TRY(check_value(row, name, value, error));
    }
    options->has_noted = false;
    if (!value || !row->is_repeatable) remove_values(options, k);
    if (!value || (is_switch && strcmp(value, "false") == 0)) return AM_OK;
    int32_t count = options->given[k].count;
    char *copy = strdup(value);
    char **values = copy ? realloc(options->given[k].values, sizeof *values * (size_t)(count + 1)) : NULL;
    if (!values) {
        free(copy);
        return am_fail_memory(error, (int64_t)strlen(value) + 1);
    }
    values[count] = copy;
    options->given[k].values = values;
    options->given[k].count = count + 1;
    return AM_OK;
}

AmStatus am_options_set(AmOptions *options, const char *key, const char *value, AmError *error) {
    api_begin(error);
    TRY(api_require(options, "options", error));
    TRY(api_require(key, "key", error));
    AmStatus status;
    API_IN_C_LOCALE(status, set_option(options, key, value, error), error);
    return status;
}

AmStatus am_options_check(const AmOptions *options, AmError *error) {
    AmStatus status = AM_OK;
    api_begin(error);
    TRY(api_require(options, "options", error));
    if (options->command == AM_COMMAND_SEARCH)
        API_IN_C_LOCALE(status, search_options_check(options, error), error);
    else if (options->command == AM_COMMAND_EXPORT) status = export_options_check(options, error);
    else if (options->command == AM_COMMAND_CLUSTER) status = cluster_options_check(options, error);
    return status;
}

const char *am_options_get(const AmOptions *options, const char *key) {
    return key ? option_text(options, key) : NULL;
}

int32_t am_option_count(AmCommand command) {
    const OptionRow *rows = option_table(command);
    int32_t count = 0;
    while (rows && rows[count].key) count++;
    return count;
}

AmStatus am_option(AmCommand command, int32_t k, AmOptionFacts *facts, AmError *error) {
    api_begin(error);
    TRY(api_require(facts, "facts", error));
    TRY(api_check_index(k, am_option_count(command), "option", error));
    const OptionRow *row = &option_table(command)[k];
    const AmOptionFacts all = {
        .key = row->key, .value = row->value, .help = row->help, .is_repeatable = row->is_repeatable};
    return api_copy_facts(facts, facts->size, &all, sizeof all, error);
}

/* ---- readers ---- */

int32_t option_texts(const AmOptions *options, const char *key, const char *const **values) {
    int32_t row = options ? find_row(option_table(options->command), key) : -1;
    *values = row < 0 ? NULL : (const char *const *)options->given[row].values;
    return row < 0 ? 0 : options->given[row].count;
}

const char *option_text(const AmOptions *options, const char *key) {
    const char *const *values;
    int32_t count = option_texts(options, key, &values);
    return count > 0 ? values[count - 1] : NULL;
}

bool option_has(const AmOptions *options, const char *key) {
    return option_text(options, key) != NULL;
}

void option_drop(AmOptions *copy, const char *key) {
    const OptionRow *rows = option_table(copy->command);
    for (int32_t k = 0; rows[k].key; k++)
        if (strcmp(rows[k].key, key) == 0) copy->given[k].count = 0;
}

void option_integer(const AmOptions *options, const char *key, int64_t *value) {
    const char *text = option_text(options, key);
    if (text) option_parse_integer(key, text, INT64_MIN, INT64_MAX, value, NULL);
}

void option_number(const AmOptions *options, const char *key, double *value) {
    const char *text = option_text(options, key);
    if (text) option_parse_number(key, text, -1e300, 1e300, value, NULL);
}

/* Returns the index of a value that the rule of its row has accepted. */
static int32_t choice_of(const AmOptions *options, const char *key, const char *text) {
    const OptionRow *rows = option_table(options->command);
    OptionList list = rows[find_row(rows, key)].rule.list;
    int32_t k = 0;
    while (k + 1 < lists[list].count && strcmp(lists[list].name_of(k), text) != 0) k++;
    return k;
}

void option_choice(const AmOptions *options, const char *key, int32_t *choice) {
    const char *text = option_text(options, key);
    if (text) *choice = choice_of(options, key, text);
}

uint32_t option_choices(const AmOptions *options, const char *key) {
    const char *const *texts;
    int32_t count = option_texts(options, key, &texts);
    uint32_t bits = 0;
    for (int32_t k = 0; k < count; k++) bits |= 1u << choice_of(options, key, texts[k]);
    return bits;
}
