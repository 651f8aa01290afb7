/* Reads the options of a search and the file of hints into the request of the planners.
 *
 * Each read_*() function reads one topic; search_conflicts.c then refuses pairs that exclude one another.
 * Texts name options as the command line does, like those of the planners.
 */
#include "api/search_settings.h"

#include <stdlib.h>
#include <string.h>

#include "api/search_conflicts.h"
#include "lowering/plan_file/plan_parts.h"
#include "planners/single_stage/single_stage_search.h"
#include "propagation/plan/pipeline_schedule.h"
#include "propagation/propagate/marks.h"
#include "propagation/propagate/propagate.h"

static AmStatus read_search(SearchSettings *settings, const AmOptions *options, AmError *error) {
    SearchRequest *request = &settings->request;
    SearchScope *search = &settings->scope;
    int32_t objective = OBJECTIVE_TIME, space = SPACE_AUTO, searcher = SEARCHER_AUTO,
            baseline = BASELINE_DATA_PARALLEL, device = DQN_CPU, target = TARGET_AUTOMAP,
            offload = OFFLOAD_AUTO;
    int64_t seed = 0, measures = 0;
    *request = (SearchRequest){.space.mesh = option_text(options, "mesh"),
                               .constraints.memory_fraction = CLUSTER_DEFAULT_MEMORY_FRACTION};
    *search = (SearchScope){.request = request};
    option_choice(options, "objective", &objective);
    option_choice(options, "for", &target);
    request->constraints.target = target_of_name(target);
    option_choice(options, "space", &space);
    bool is_learned = option_has(options, "policy") || option_has(options, "device");
    if (is_learned || objective == OBJECTIVE_PAPER) searcher = SEARCHER_DQN;
    option_choice(options, "searcher", &searcher);
    option_choice(options, "baseline", &baseline);
    option_choice(options, "device", &device);
    option_number(options, "seconds", &search->limits.seconds);
    option_number(options, "memory-fraction", &request->constraints.memory_fraction);
    option_integer(options, "seed", &seed);
    option_integer(options, "measure", &measures);
    request->measures = (int32_t)measures;
    search->limits.evaluations =
        objective == OBJECTIVE_PAPER ? SEARCH_PAPER_EPISODES : search_default_evaluations((Searcher)searcher);
    option_integer(options, "evaluations", &search->limits.evaluations);
    search->limits.is_default = !option_has(options, "evaluations");
    if (option_has(options, "baseline") && !option_has(options, "searcher")) searcher = SEARCHER_BASELINE;
    if (searcher == SEARCHER_BASELINE && !option_has(options, "baseline"))
        return am_fail(error, AM_ERROR_USAGE, "",
                       "--searcher baseline prices one baseline: expected --baseline NAME");
    option_choice(options, "offload", &offload);
    request->offload = (OffloadChoice)offload;
    request->constraints.offloads_optimizer = offload == OFFLOAD_OPTIMIZER;
    request->method.agent = option_text(options, "agent");
    request->constraints.is_even =
        option_has(options, "even") || target_row(request->constraints.target)->has_equal_shards;
    request->devices.keeps_order =
        option_has(options, "keep-order") || option_has(options, "keep-shardings") ||
        request->constraints.target != TARGET_AUTOMAP || objective == OBJECTIVE_PAPER;
    request->space.no_overrides = option_has(options, "no-overrides");
    request->method.policy = option_text(options, "policy");
    request->method.learner = option_text(options, "learner");
    request->method.no_seeds = option_has(options, "no-seeds");
    request->method.no_polish = option_has(options, "no-polish");
    request->objective = (SearchObjective)objective;
    request->explores_prices = objective == OBJECTIVE_COST || option_has(options, "pareto");
    search->kind = (PlanSpace)space;
    search->searcher = (Searcher)searcher;
    search->baseline = (Baseline)baseline;
    request->method.called = baseline < BASELINE_COUNT
                                 ? baseline_name(search->baseline)
                                 : baseline_alias(baseline - BASELINE_COUNT, &search->baseline);
    request->method.device = (DqnDevice)device;
    search->seed = (uint64_t)seed;
    return AM_OK;
}

/* Reads the quotas, "H100=8". */
static AmStatus read_quotas(SearchRequest *request, Arena *arena, const AmOptions *options, AmError *error) {
    const char *const *texts;
    int32_t count = option_texts(options, "quota", &texts);
    DeviceQuota *quotas = ARENA_ARRAY(arena, DeviceQuota, count + 1);
    if (!quotas) return am_fail_memory(error, count);
    for (int32_t k = 0; k < count; k++) {
        const char *equals = strrchr(texts[k], '=');
        char *end = NULL;
        long most = equals ? strtol(equals + 1, &end, 10) : -1;
        if (!equals || equals == texts[k] || end == equals + 1 || *end || most < 0 || most > MESH_MAX_DEVICES)
            return am_fail(error, AM_ERROR_USAGE, "", "--quota \"%s\": expected TYPE=N, such as H100=8",
                           texts[k]);
        char *type = arena_copy_string(arena, texts[k]);
        if (!type) return am_fail_memory(error, 0);
        type[equals - texts[k]] = '\0';
        quotas[k] = (DeviceQuota){type, (int32_t)most};
    }
    request->devices.quotas = quotas;
    request->devices.quota_count = count;
    return AM_OK;
}

/* Reads the pins of the command line, and adds those of the file of hints. */
static AmStatus read_pins(SearchRequest *request, Arena *arena, const HintsFile *hints,
                          const AmOptions *options, AmError *error) {
    const char *const *texts;
    int32_t count = option_texts(options, "pin", &texts), total = count + hints->pin_count;
    PropagationPin *pins = ARENA_ARRAY(arena, PropagationPin, total + 1);
    if (!pins) return am_fail_memory(error, total);
    for (int32_t k = 0; k < count; k++) TRY(propagation_parse_pin(&pins[k], arena, texts[k], error));
    for (int32_t k = 0; k < hints->pin_count; k++) pins[count + k] = hints->pins[k];
    request->constraints.pins = pins;
    request->constraints.pin_count = total;
    return AM_OK;
}

/* Takes a number of the file of hints. AM_ERROR_USAGE: the option has another value. */
static AmStatus take_hint(int64_t *value, const char *option, const char *place, int32_t hint,
                          AmError *error) {
    if (hint == 0) return AM_OK;
    if (*value > 0 && *value != hint)
        return am_fail(error, AM_ERROR_USAGE, "", "%s %d and %.300s %d contradict each other", option,
                       (int)*value, place, hint);
    *value = hint;
    return AM_OK;
}

/* Reads the degrees of the options and of the file of hints. */
static AmStatus read_degrees(SearchRequest *request, const HintsFile *hints, const AmOptions *options,
                             AmError *error) {
    const Degrees *hint = &hints->degrees;
    int64_t values[DEGREE_KINDS] = {0}, pipeline = 0;
    Degrees *degrees = &request->constraints.degrees;
    for (int32_t k = 0; k < DEGREE_KINDS; k++)
        option_integer(options, degree_rows[k].option + strlen("--"), &values[k]);
    option_integer(options, "pipeline", &pipeline);
    if (values[DEGREE_STAGES] > 0 && pipeline > 0 && values[DEGREE_STAGES] != pipeline)
        return am_fail(error, AM_ERROR_USAGE, "",
                       "--stages %d and --pipeline %d: expected one number of stages",
                       (int)values[DEGREE_STAGES], (int)pipeline);
    bool is_pipeline = values[DEGREE_STAGES] == 0 && pipeline > 0;
    if (is_pipeline) values[DEGREE_STAGES] = pipeline;
    *degrees = (Degrees){0};
    for (int32_t k = 0; k < DEGREE_KINDS; k++) {
        const char *name = k == DEGREE_STAGES && is_pipeline ? "--pipeline" : degree_rows[k].option;
        bool is_option = values[k] > 0;
        TRY(take_hint(&values[k], name, hint->origins[k], hint->values[k], error));
        if (values[k] > 0) degrees->origins[k] = is_option ? name : hint->origins[k];
    }
    for (int32_t k = 0; k < DEGREE_KINDS; k++) degrees->values[k] = (int32_t)values[k];
    return degrees_derive(degrees, error);
}

/* Sets the number of stages that pins imply. */
static AmStatus take_stages(SearchRequest *request, AmError *error) {
    const PropagationPin *last;
    char label[PIN_LABEL_BYTES];
    int32_t stages = placement_stages(request->constraints.pins, request->constraints.pin_count, &last);
    if (stages == 0) return AM_OK;
    if (stages > STAGES_MOST)
        return am_fail(error, pin_error(last), pin_file(last), "%s: a plan has at most %d stages",
                       pin_place(label, last), STAGES_MOST);
    if (request->constraints.degrees.stages > 0 && request->constraints.degrees.stages < stages)
        return am_fail(error, pin_error(last), pin_file(last), "%s and %.200s %d: stages are 0 to %d",
                       pin_place(label, last), request->constraints.degrees.origins[DEGREE_STAGES],
                       request->constraints.degrees.stages, request->constraints.degrees.stages - 1);
    if (request->constraints.degrees.stages == 0) request->constraints.degrees.stages = stages;
    return AM_OK;
}

static AmStatus read_micro_batches(SearchSettings *settings, const AmOptions *options, AmError *error) {
    const SearchScope *search = &settings->scope;
    const char *text = option_text(options, "micro-batches");
    bool is_paper = search->request->objective == OBJECTIVE_PAPER && search->kind == SPACE_PIPELINE;
    bool is_baseline = search->searcher == SEARCHER_BASELINE && !option_has(options, "keep-shardings");
    bool is_searched =
        is_paper || is_baseline || search_spans_stages(search); /* as many as suit the search */
    int64_t micro_batches = is_searched ? 0 : 1;
    if (text && strcmp(text, "auto") == 0) micro_batches = 0;
    else option_integer(options, "micro-batches", &micro_batches);
    if (!text && settings->hints.micro_batches > 0) micro_batches = settings->hints.micro_batches;
    else if (text)
        TRY(take_hint(&micro_batches, "--micro-batches", settings->hints.micro_batches_place,
                      settings->hints.micro_batches, error));
    bool is_free = micro_batches == 0 && settings->hints.micro_batches == 0;
    if (!target_row(search->request->constraints.target)->has_micro_batches && is_free) micro_batches = 1;
    settings->scope.micro_batches = (int32_t)micro_batches;
    settings->request.space.relaxations = option_choices(options, "relax");
    return AM_OK;
}

/* Reads the forms of the module that a search takes. Shardings of parameters by the user and the paper's mode
 * are about the module as read. */
static void read_forms(SearchSettings *settings, const AmOptions *options) {
    const SearchScope *search = &settings->scope;
    FormRequest *forms = &settings->request.forms;
    int32_t layers = LAYERS_AUTO, attention = ATTENTION_AUTO;
    Target target = search->request->constraints.target;
    /* One-stage plans for another system are shardings of the parameters that the step has. */
    bool is_free =
        !settings->narrowed_by && target == TARGET_AUTOMAP && !search->request->constraints.is_even;
    bool is_one_stage = !search_has_stages(search) && !(search->kind == SPACE_SINGLE_STAGE && is_free);
    bool is_as_read = search->request->constraints.pin_count > 0 || option_has(options, "keep-shardings") ||
                      search->request->objective == OBJECTIVE_PAPER || !target_row(target)->splits_layers;
    option_choice(options, "layers", &layers);
    option_choice(options, "attention", &attention);
    *forms = (FormRequest){.layers = (LayersChoice)layers,
                           .attention = (AttentionChoice)attention,
                           .keeps_recomputation = option_has(options, "keep-remat"),
                           .keeps_shardings = option_has(options, "keep-shardings")};
    if (forms->layers == LAYERS_AUTO && (is_as_read || is_one_stage)) forms->layers = LAYERS_LOOP;
}

static AmStatus read_all(SearchSettings *settings, Arena *arena, const AmOptions *options, AmError *error) {
    int64_t chunks = 0;
    TRY(read_search(settings, options, error));
    TRY(read_quotas(&settings->request, arena, options, error));
    TRY(read_pins(&settings->request, arena, &settings->hints, options, error));
    TRY(read_degrees(&settings->request, &settings->hints, options, error));
    TRY(take_stages(&settings->request, error));
    /* The space is restricted to plans that the options allow. Shardings to keep are not read yet. */
    SearchScope *search = &settings->scope;
    settings->narrowed_by = search_narrow(search);
    if (search_spans_stages(search) && search->kind == SPACE_AUTO && option_has(options, "keep-shardings")) {
        search->kind = SPACE_SINGLE_STAGE;
        settings->narrowed_by = "--keep-shardings";
    }
    if (search_spans_stages(search) && !option_has(options, "evaluations"))
        search->limits.evaluations = 0; /* by the module */
    TRY(read_micro_batches(settings, options, error));
    read_forms(settings, options);
    settings->request.space.schedule = option_text(options, "schedule");
    option_integer(options, "chunks", &chunks);
    settings->request.space.chunks = (int32_t)chunks;
    TRY(search_conflicts_check(settings, options, error));
    return dqn_device_check(settings->scope.request->method.device, error);
}

/* Appends the marks of a module to the pins of the file. */
static AmStatus add_marks(HintsFile *hints, Arena *arena, const IrModule *module, AmError *error) {
    PropagationPin *marks;
    int32_t count;
    TRY(marks_read(&marks, &count, arena, module, error));
    if (count == 0) return AM_OK;
    PropagationPin *all = ARENA_ARRAY(arena, PropagationPin, hints->pin_count + count);
    if (!all) return am_fail_memory(error, count);
    for (int32_t k = 0; k < hints->pin_count; k++) all[k] = hints->pins[k];
    for (int32_t k = 0; k < count; k++) all[hints->pin_count + k] = marks[k];
    hints->pins = all;
    hints->pin_count += count;
    return AM_OK;
}

AmStatus search_settings_read(SearchSettings *settings, Arena *arena, const PlanContext *module,
                              const AmOptions *options, AmError *error) {
    const char *hints = option_text(options, "hints");
    *settings = (SearchSettings){0};
    if (hints) TRY(hints_file_read(&settings->hints, arena, hints, error));
    if (module) TRY(add_marks(&settings->hints, arena, module->canonical, error));
    return read_all(settings, arena, options, error);
}

AmStatus search_settings_without_target(SearchSettings *settings, const SearchSettings *with, Arena *arena,
                                        const AmOptions *options, AmError *error) {
    AmOptions others;
    *settings = (SearchSettings){.hints = with->hints};
    if (!options) return read_all(settings, arena, options, error);
    others = *options;
    option_drop(&others, "for");
    return read_all(settings, arena, &others, error);
}

/* Reads the module's own shardings, on the mesh of the options or the one that they imply. */
static AmStatus read_kept(SearchRequest *request, Arena *arena, const PlanContext *context, AmError *error) {
    KeptShardings *kept;
    TRY(propagation_read_shardings(&kept, arena, context, error));
    request->constraints.kept = kept;
    if (request->space.mesh) return AM_OK;
    Mesh mesh;
    Text text = {0};
    TRY(propagation_infer_mesh(&mesh, arena, kept, error));
    mesh_append(&text, &mesh, ",");
    request->space.mesh = text.data ? arena_copy_string(arena, text.data) : NULL;
    text_free(&text);
    return request->space.mesh ? AM_OK : am_fail_memory(error, 0);
}

AmStatus search_settings_complete(SearchSettings *settings, Arena *arena, const AmOptions *options,
                                  const PlanContext *context, AmError *error) {
    SearchScope *search = &settings->scope;
    if (option_has(options, "keep-shardings")) TRY(read_kept(&settings->request, arena, context, error));
    bool has_number = option_has(options, "evaluations");
    bool is_scaled = !has_number && search->request->objective != OBJECTIVE_PAPER;
    bool is_one = search->searcher == SEARCHER_RANDOM && !has_number && search->limits.seconds <= 0;
    search->limits.is_default = is_scaled;
    settings->request.space.may_add_micro_batches =
        !option_has(options, "micro-batches") &&
        target_row(search->request->constraints.target)->has_micro_batches;
    if (is_one) search->limits.evaluations = 0; /* until a plan fits */
    else if (is_scaled && !search_spans_stages(search))
        search->limits.evaluations =
            search_evaluations_for(search->searcher, context->canonical->instruction_count);
    return AM_OK;
}

json_t *search_settings_to_json(const SearchSettings *settings, const AmOptions *options) {
    const SearchScope *search = &settings->scope;
    json_t *object = json_pack(
        "{s:o, s:f, s:s?}", "evaluations",
        search->limits.evaluations > 0 ? json_integer(search->limits.evaluations) : json_null(),
        "memory_fraction", search->request->constraints.memory_fraction, "mesh", search->request->space.mesh);
    if (!object) return NULL;
    if (search->searcher == SEARCHER_BASELINE)
        json_object_set_new(object, "baseline", json_string(baseline_name(search->baseline)));
    if (search->request->objective != OBJECTIVE_TIME)
        json_object_set_new(object, "objective",
                            json_string(search_objective_name(search->request->objective)));
    const DeviceOptions *devices = &settings->request.devices;
    if (search->request->devices.quota_count > 0) {
        json_t *quotas = json_object();
        for (int32_t k = 0; k < devices->quota_count; k++)
            json_object_set_new(quotas, devices->quotas[k].type, json_integer(devices->quotas[k].most));
        json_object_set_new(object, "quotas", quotas);
    }
    if (search->request->constraints.target != TARGET_AUTOMAP)
        json_object_set_new(object, "for",
                            json_string(target_row(search->request->constraints.target)->name));
    if (option_has(options, "keep-order")) json_object_set_new(object, "keep_order", json_true());
    for (int32_t k = 0; k < DEGREE_KINDS; k++)
        if (search->request->constraints.degrees.values[k] > 0)
            json_object_set_new(object, degree_rows[k].key,
                                json_integer(search->request->constraints.degrees.values[k]));
    json_t *pins = search->request->constraints.pin_count > 0 ? json_array() : NULL;
    for (int32_t k = 0; k < search->request->constraints.pin_count; k++)
        json_array_append_new(pins, json_sprintf("%s=%s", search->request->constraints.pins[k].pattern,
                                                 search->request->constraints.pins[k].sharding));
    if (pins) json_object_set_new(object, "pins", pins);
    if (search->request->constraints.kept) json_object_set_new(object, "keep_shardings", json_true());
    if (search->request->constraints.is_even) json_object_set_new(object, "even", json_true());
    if (option_has(options, "offload"))
        json_object_set_new(object, "offload", json_string(offload_choice_name(search->request->offload)));
    if (search->request->space.no_overrides) json_object_set_new(object, "no_overrides", json_true());
    if (search->request->method.policy)
        json_object_set_new(object, "policy", plan_string_to_json(search->request->method.policy));
    if (search->request->method.learner)
        json_object_set_new(object, "learner", plan_string_to_json(search->request->method.learner));
    if (search->request->method.no_seeds) json_object_set_new(object, "no_seeds", json_true());
    if (search->request->method.no_polish) json_object_set_new(object, "no_polish", json_true());
    if (search->limits.seconds > 0) json_object_set_new(object, "seconds", json_real(search->limits.seconds));
    if (option_has(options, "inference")) json_object_set_new(object, "inference", json_true());
    return object;
}

AmStatus search_options_check(const AmOptions *options, AmError *error) {
    Arena arena = {0};
    SearchSettings settings;
    AmStatus status = search_settings_read(&settings, &arena, NULL, options, error);
    arena_free(&arena);
    return status;
}
