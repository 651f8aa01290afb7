/* Finds the forms of a module: first its layers, then its recomputation, then its attention. */
#include "planners/forms/module_forms.h"

#include "planners/problem/attention_choice.h"
#include "planners/sample_search.h"
#include "planners/single_stage/single_stage_search.h"

typedef struct FormFinder {
    PlanContext *module; /* as read */
    const Cluster *cluster;
    const SearchScope *scope;
    const SearchRequest *request; /* of the scope */
} FormFinder;

/* Sets *found if attention in the module is a near miss and might be fused. In a loop that stores its scores
 * for the backward pass it is one only while its layers are not separate. */
static AmStatus find_near_miss(bool *found, const FormFinder *self, AmError *error) {
    *found = false;
    if (self->request->forms.attention == ATTENTION_UNFUSED ||
        target_is_xla(self->request->constraints.target))
        return AM_OK;
    TRY(plan_context_find_attention(self->module, error));
    for (int32_t r = 0; r < self->module->attention->count; r++)
        *found |= self->module->attention->rows[r].reason != NULL;
    return AM_OK;
}

/* Returns whether a weight has one parameter for each layer. A random key, whose two rows are read apart, is
 * a stack, but not of layers. */
static bool splits_weights(const PlanContext *form) {
    for (int32_t p = 0; p < form->roles->parameter_count; p++)
        if (form->roles->parameters[p].role == IR_ROLE_WEIGHT && plan_source_parameter(form, p).layer >= 0)
            return true;
    return false;
}

/* Splits the layers of stacked parameters, if the request allows it. A large module is split only if a sample
 * of it is searched; on one device a module is split for the sake of its attention alone. */
static AmStatus split_layers(PlanContext **form, const FormFinder *self, AmError *error) {
    enum { MOST_DEVICES = 4096 }; /* simulations of the split module take longer on more */
    const SearchScope *scope = self->scope;
    bool is_free = self->request->forms.layers == LAYERS_AUTO;
    AmError refusal = {0};
    *form = self->module;
    if (self->request->forms.layers == LAYERS_LOOP) return AM_OK;
    if (is_free && self->cluster->device_count < 2) {
        bool has_near_miss;
        TRY(find_near_miss(&has_near_miss, self, error));
        if (!has_near_miss) return AM_OK;
    }
    AmStatus status =
        plan_context_rewrite(form, self->module, (PlanRewrites){.splits_layers = true}, &refusal);
    if (status == AM_ERROR_INFEASIBLE && is_free) {
        *form = self->module;
        return AM_OK;
    }
    TRY(am_pass_error(status, &refusal, error));
    bool is_baseline = !search_method_explores(scope->searcher);
    if (is_free && is_baseline && !splits_weights(*form)) *form = self->module;
    if (!is_free || !sample_is_wanted(*form)) return AM_OK;
    bool is_sampled = sample_is_allowed(scope, *form) && self->cluster->device_count <= MOST_DEVICES;
    if (is_sampled) TRY(sample_is_possible(&is_sampled, *form, error));
    if (!is_sampled) *form = self->module;
    return AM_OK;
}

/* Takes the form in which the source recomputes nothing, so that the plan decides. `*recomputing` is the form
 * before; NULL: nothing was undone. */
static AmStatus undo_recomputation(PlanContext **form, PlanContext **recomputing, const FormFinder *self,
                                   AmError *error) {
    const SearchScope *scope = self->scope;
    AmError refusal = {0};
    *recomputing = NULL;
    if (scope->request->constraints.target != TARGET_AUTOMAP ||
        scope->request->objective == OBJECTIVE_PAPER || !search_method_explores(scope->searcher) ||
        self->request->forms.keeps_recomputation || self->request->forms.keeps_shardings)
        return AM_OK;
    PlanContext *undone;
    PlanRewrites rewriting = (*form)->rewriting;
    rewriting.undoes_recomputation = true;
    AmStatus status = plan_context_rewrite(&undone, self->module, rewriting, &refusal);
    if (status == AM_ERROR_INFEASIBLE) return AM_OK;
    TRY(am_pass_error(status, &refusal, error));
    *recomputing = *form;
    *form = undone;
    return AM_OK;
}

/* Fuses attention if the request selects it. */
static AmStatus fuse_attention(PlanContext **form, const FormFinder *self, AmError *error) {
    if (self->request->forms.attention != ATTENTION_FUSED) return AM_OK;
    if (self->request->objective == OBJECTIVE_PAPER)
        return am_fail(error, AM_ERROR_USAGE, "", "--objective paper has no fused attention");
    TRY(plan_context_fuse(form, *form, error));
    if (!(*form)->unfused)
        return am_fail(
            error, AM_ERROR_USAGE, "",
            "--attention fused: the module has no attention operator (automap info has near misses%s)",
            self->request->forms.layers == LAYERS_LOOP ? "; --layers split separates the layers" : "");
    return AM_OK;
}

/* Returns in *has whether the form may be chosen: --attention fused excludes forms without an attention
 * operator. */
static AmStatus allows_attention(bool *has, PlanContext *form, const FormFinder *self, AmError *error) {
    *has = self->request->forms.attention != ATTENTION_FUSED;
    if (*has || !form) return AM_OK;
    TRY(plan_context_find_attention(form, error));
    *has = ir_count_attention(form->attention) > 0;
    return AM_OK;
}

/* Takes the form of the initial plan. */
static AmStatus take_initial(ModuleForms *forms, const FormFinder *self, AmError *error) {
    PlanRewrites rewriting = plan_context_primary(self->request->space.initial->context)->rewriting;
    LayersChoice layers = self->request->forms.layers;
    AttentionChoice attention = self->request->forms.attention;
    if (layers != LAYERS_AUTO && (layers == LAYERS_SPLIT) != rewriting.splits_layers)
        return am_fail(error, AM_ERROR_USAGE, "", "--init-plan: its layers are %s (expected --layers %s)",
                       rewriting.splits_layers ? "split" : "not split",
                       rewriting.splits_layers ? "split" : "loop");
    if (attention != ATTENTION_AUTO && (attention == ATTENTION_FUSED) != rewriting.fuses_attention)
        return am_fail(error, AM_ERROR_USAGE, "", "--attention %s: the plan of --init-plan has it %s",
                       attention_choice_name(attention), rewriting.fuses_attention ? "fused" : "unfused");
    TRY(plan_context_rewrite(&forms->chosen, self->module, rewriting, error));
    forms->forms[0] = (ModuleForm){.module = forms->chosen, .attention = ATTENTION_UNFUSED};
    forms->count = 1;
    return AM_OK;
}

AmStatus module_forms_find(ModuleForms *forms, PlanContext *module, const Cluster *cluster,
                           const SearchScope *scope, AmError *error) {
    const FormFinder self = {module, cluster, scope, scope->request};
    PlanContext *chosen, *recomputing;
    *forms = (ModuleForms){0};
    if (scope->request->space.initial) return take_initial(forms, &self, error);
    TRY(split_layers(&chosen, &self, error));
    TRY(undo_recomputation(&chosen, &recomputing, &self, error));
    bool recomputes_first = recomputing && sample_is_wanted(recomputing), has_loops, recomputes;
    PlanContext *attended[] = {chosen, recomputing}, *others[] = {NULL, NULL};
    bool is_chosen = self.request->forms.attention == ATTENTION_AUTO &&
                     !target_is_xla(self.request->constraints.target) &&
                     self.request->objective != OBJECTIVE_PAPER && !self.request->forms.keeps_shardings;
    TRY(fuse_attention(&attended[0], &self, error));
    if (is_chosen) /* also for the first form that is searched */
        TRY(attention_choose_all(attended, others, recomputes_first ? 2 : 1, cluster, error));
    chosen = attended[0];
    TRY(allows_attention(&has_loops, module, &self, error));
    TRY(allows_attention(&recomputes, recomputing, &self, error));
    if (!recomputes) recomputing = NULL;
    recomputes_first = recomputes_first && recomputes;
    has_loops = has_loops && scope->request->forms.layers == LAYERS_AUTO && chosen->layer_map;
    *forms = (ModuleForms){.chosen = chosen};
    bool is_free = scope->request->constraints.target == TARGET_AUTOMAP;
    AttentionChoice attention = is_chosen         ? ATTENTION_AUTO
                                : chosen->unfused ? ATTENTION_FUSED
                                                  : ATTENTION_UNFUSED;
    const ModuleForm first = {
        .module = chosen, .other = is_free ? others[0] : NULL, .attention = ATTENTION_UNFUSED};
    ModuleForm second = {
        .module = recomputing, .condition = FORM_WHERE_MEMORY_IS_SCARCE, .attention = attention};
    if (is_chosen && recomputes_first) {
        second.module = attended[1];
        second.other = others[1];
        second.attention = ATTENTION_UNFUSED;
    }
    /* The search of a small form has as many evaluations as that of any smaller module. */
    bool is_small = chosen->canonical->instruction_count <= SEARCH_DEFAULT_WORK / SEARCH_DEFAULT_EVALUATIONS;
    bool is_baseline = !search_method_explores(scope->searcher);
    FormCondition of_loops = FORM_WHERE_ONE_STAGE;
    if (is_baseline || (is_small && !is_free)) of_loops = FORM_ALWAYS;
    else if (is_free && !sample_is_wanted(chosen)) of_loops = FORM_WHERE_BASELINES_ARE_NEAR;
    const ModuleForm loops = {.module = module, .condition = of_loops, .attention = attention};
    /* One-stage plans of loops need fewer evaluations than pipelines of separate layers. */
    bool begins_with_loops = has_loops && !is_free && scope->limits.evaluations > 0;
    if (begins_with_loops) forms->forms[forms->count++] = loops;
    if (recomputes_first) forms->forms[forms->count++] = second;
    forms->forms[forms->count++] = first;
    if (recomputing && !recomputes_first) forms->forms[forms->count++] = second;
    if (has_loops && !begins_with_loops) forms->forms[forms->count++] = loops;
    return AM_OK;
}
