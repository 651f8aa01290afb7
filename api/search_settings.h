/* The options of a search as the planners take them. */
#ifndef API_SEARCH_SETTINGS_H
#define API_SEARCH_SETTINGS_H

#include "api/handles.h"
#include "api/hints_file.h"
#include "api/options.h"

/* Stacked parameters of layers (ir/layers/layers.h). */
typedef enum LayersChoice {
    LAYERS_AUTO,  /* split where the plan that is found is a pipeline */
    LAYERS_LOOP,  /* the module as read */
    LAYERS_SPLIT, /* one parameter for each layer */
    LAYERS_CHOICES
} LayersChoice;
const char *layers_choice_name(LayersChoice choice); /* "auto", ... */

typedef struct SearchSettings {
    SearchOptions options;
    HintsFile hints; /* of --hints; its pins are followed by the marks of the module */
    MicroBatching micro_batching;
    LayersChoice layers;     /* LAYERS_LOOP also where the other options exclude a split */
    bool chooses_attention;  /* its form is the faster one: no option and no given plan decides it */
    const char *narrowed_by; /* the option that excludes pipelines, "mesh"; or NULL */
} SearchSettings;

/* Reads options, whose texts must outlive the settings, the file of hints and the marks of the module (NULL:
 * it is not read yet), and checks that they fit together: AM_ERROR_USAGE. NULL options: the defaults. */
AmStatus search_settings_read(SearchSettings *settings, Arena *arena, const PlanContext *module,
                              const AmOptions *options, AmError *error);
/* The same without the option "for", beside settings that were read with it. */
AmStatus search_settings_without_target(SearchSettings *settings, const SearchSettings *with, Arena *arena,
                                        const AmOptions *options, AmError *error);
/* Replaces `*whole` by its form with fused attention where the options ask for it, or leave the choice and it
 * is faster on the cluster; `*other` is then the other form, else NULL (attention_choice.h). `initial` is the
 * plan to start from, or NULL; its form is taken unless the options name another. AM_ERROR_USAGE: the module
 * has no attention operator, or the two differ. */
AmStatus search_settings_fuse(PlanContext **whole, PlanContext **other, SearchSettings *settings,
                              const Plan *initial, const Cluster *cluster, const AmOptions *options,
                              AmError *error);
/* Completes them for a module: its own shardings, and the number of evaluations. */
AmStatus search_settings_complete(SearchSettings *settings, Arena *arena, const AmOptions *options,
                                  const PlanContext *context, AmError *error);
/* The settings for the plan file, without figures of the clock. The caller's reference; NULL: no memory. */
json_t *search_settings_to_json(const SearchSettings *settings, const AmOptions *options);

#endif
