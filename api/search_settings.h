/* The options of a search as the planners take them.
 *
 * search_settings_read() translates an AmOptions into a SearchRequest (planners/problem/search_scope.h) and
 * refuses options that exclude each other; search_settings_complete() adds the parts that depend on the
 * module.
 */
#ifndef API_SEARCH_SETTINGS_H
#define API_SEARCH_SETTINGS_H

#include "api/handles.h"
#include "api/hints_file.h"
#include "api/options.h"
#include "planners/problem/search_scope.h"

typedef struct SearchSettings {
    SearchRequest request;
    SearchScope scope;       /* of this request: a copy of the settings would share it */
    HintsFile hints;         /* of --hints; its pins are followed by the marks of the module */
    const char *narrowed_by; /* the option that excludes pipelines, "mesh"; or NULL */
} SearchSettings;

/* Reads options, whose texts must outlive the settings, the file of hints and the marks of the module (NULL:
 * it is not read yet), and checks that they fit together: AM_ERROR_USAGE. NULL options: the defaults. */
AmStatus search_settings_read(SearchSettings *settings, Arena *arena, const PlanContext *module,
                              const AmOptions *options, AmError *error);
/* Reads the options but "for", beside settings that were read with it. */
AmStatus search_settings_without_target(SearchSettings *settings, const SearchSettings *with, Arena *arena,
                                        const AmOptions *options, AmError *error);
/* Completes them for a module: its own shardings, and the number of evaluations. */
AmStatus search_settings_complete(SearchSettings *settings, Arena *arena, const AmOptions *options,
                                  const PlanContext *context, AmError *error);
/* Returns the settings for the plan file, without figures of the clock. The caller's reference; NULL: no
 * memory. */
json_t *search_settings_to_json(const SearchSettings *settings, const AmOptions *options);

#endif
