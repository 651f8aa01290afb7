/* The contents of the API's handles, and the parts that all of its calls share (handles.c, work.h).
 *
 * A handle owns an arena with everything that it refers to, except the module: a plan, a simulation and an
 * explanation refer to their AmModule, which outlives them. Calls check their arguments by api_require() and
 * functions such as api_check_index(), and return text by api_end_text().
 */
#ifndef API_HANDLES_H
#define API_HANDLES_H

#include <jansson.h>
#include <pthread.h>

#include "automap.h"
#include "base/files/json.h"
#include "base/system/locale_scope.h"
#include "base/text.h"
#include "cost/operator/profile.h"
#include "cost/simulate/simulate.h"
#include "planners/explain/explain_plan.h"
#include "planners/forms/target_search.h"

struct AmModule {
    PlanContext *context;
};

struct AmCluster {
    Arena arena;
    Cluster *cluster;
};

typedef struct PlanMeasurements PlanMeasurements; /* measure.h */

struct AmPlan {
    Arena arena;
    PlanContext *module;  /* the module's, which outlives the plan */
    PlanContext *primary; /* the same, or of the rewritten module to which the plan refers */
    Plan *plan;
    json_t *root;        /* the file that the plan points into: its own, or that of "init-plan"; or NULL */
    json_t *settings;    /* of the search; or NULL */
    Cluster *cluster;    /* with measured operators, of the option "profile"; or NULL */
    Profile *profile;    /* or NULL */
    SearchResult result; /* of am_search() */
    bool is_searched;
    const PlanMeasurements *measurements; /* of the option "measure", in `arena`; or NULL */
    TargetPlans targets;                  /* of am_search() */
    double memory_fraction;               /* of the search: the usable part of a device */
    pthread_mutex_t mutex;                /* of the members below, which are made at their first use */
    json_t *document;                     /* plan_to_json() */
    AmPlanParameter *parameters;          /* [parameter_count], in `arena` */
};

struct AmSimulation {
    Arena arena;
    Cluster *cluster; /* own: the plan's, or one with measured operators; or NULL */
    Profile *profile;
    Simulation *simulation;
    Text collectives; /* the option "verbose": derivation of each price */
    json_t *carried;  /* api_carried_to_json() */
};

struct AmExplanation {
    Arena arena;
    Cluster *cluster;
    const AmPlan *plan;
    Explanation *explanation;
    const char *title;   /* "MODULE on cluster CLUSTER" */
    const char *command; /* the option "command", or NULL */
};

/* Clears the error of an earlier call, or whatever the caller's memory held: errors are filled once
 * inside the library, so every public call begins here. */
void api_begin(AmError *error);
/* Returns AM_ERROR_USAGE if the argument is NULL. */
AmStatus api_require(const void *argument, const char *name, AmError *error);
/* Returns AM_ERROR_USAGE if k is not in 0..count - 1; `what`: "stage". */
AmStatus api_check_index(int32_t k, int32_t count, const char *what, AmError *error);
/* Copies a struct whose first member is its size into the caller's, which has `size` bytes, and keeps that
 * size. AM_ERROR_USAGE for a size below that of the member. */
AmStatus api_copy_facts(void *facts, size_t size, const void *all, size_t all_size, AmError *error);
/* Copies the caller's callbacks as the library knows them: members that the caller's struct lacks are NULL.
 * `callbacks` may be NULL. AM_ERROR_USAGE for a size below that of the member `size`. */
AmStatus api_copy_callbacks(AmCallbacks *own, const AmCallbacks *callbacks, AmError *error);
/* Returns AM_ERROR_USAGE if the options are those of another command; NULL is allowed. */
AmStatus api_check_options(const AmOptions *options, AmCommand command, AmError *error);
/* Returns AM_ERROR_USAGE for a format that the report does not have. */
AmStatus api_check_format(AmFormat format, bool has_html, AmError *error);
/* Moves the bytes of a text to the caller, who frees *buffer; `text` is empty afterwards. */
AmStatus api_give_text(char **buffer, size_t *bytes, Text *text, AmError *error);
/* Ends a call that makes a text: hands the text over if `status` is AM_OK, else frees it and returns
 * `status`. */
AmStatus api_end_text(AmStatus status, char **buffer, size_t *bytes, Text *text, AmError *error);
/* Appends a JSON value, whose reference is taken, with a line end; NULL: no memory. */
AmStatus api_append_json(Text *text, json_t *root, JsonStyle style, AmError *error);
/* Gives the caller the text of a JSON value, whose reference is taken; NULL: no memory. */
AmStatus api_give_json(char **buffer, size_t *bytes, json_t *root, JsonStyle style, AmError *error);
/* Sends warnings as messages, one for each. */
/* Notes that the plan is for another module, whose decisions apply here by their names. */
void api_note_carried(const AmCallbacks *callbacks, const AmPlan *plan);
/* Returns both modules of such a plan, the value of "carried" in reports; NULL for other plans. */
json_t *api_carried_to_json(const AmPlan *plan);
void api_warn(const AmCallbacks *callbacks, const AmWarnings *warnings);
void api_message(const AmCallbacks *callbacks, AmMessage kind, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Assigns the result of CALL to STATUS with numbers in the format of the C locale. */
#define API_IN_C_LOCALE(STATUS, CALL, ERROR)           \
    do {                                               \
        LocaleScope scope_;                            \
        (STATUS) = locale_scope_enter(&scope_, ERROR); \
        if ((STATUS) == AM_OK) (STATUS) = (CALL);      \
        locale_scope_leave(&scope_);                   \
    } while (0)

/* Returns AM_ERROR_INPUT for a module that XLA has optimized: it has no plan. */
AmStatus api_check_module(const AmModule *module, AmError *error);
/* Returns AM_ERROR_INPUT if a parameter is a tuple: a plan has shardings of arrays. */
AmStatus api_check_arrays(const AmModule *module, AmError *error);
/* Returns AM_ERROR_INPUT if the module trains nothing. */
AmStatus api_check_trains(const AmModule *module, AmError *error);
/* Finds the plan's document (plan_to_json), which belongs to the plan. Any thread. */
AmStatus api_plan_document(json_t **document, const AmPlan *plan, AmError *error);
/* Returns an empty plan of the module, or NULL and an error. */
AmPlan *api_new_plan(AmModule *module, AmError *error);

#endif
