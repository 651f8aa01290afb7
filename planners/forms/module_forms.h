/* The forms of a module, by exact rewritings, in which a search looks for plans.
 *
 * A module is searched as the options and its size demand, and in up to two further forms:
 *
 *     form                searched                              rewriting
 *     ------------------  ------------------------------------  -------------------------------------------
 *     chosen              always                                layers apart, source's recomputation undone
 *     with recomputation  where the plan is short of memory     layers apart
 *     with loops          where its baselines are near          none (loops over layers stay)
 *
 * Operators over all layers are launched once in loops, and plans decide less. The fastest baseline of loops
 * takes 1.15 to 2.4 times that of separate layers for 13 models on 3 clusters. In dropout_tiny, whose only
 * stack is a random key, it takes 1.04 times, and loops have the faster plan. A large module with loops, and
 * one for a target, is searched where the plan found has one stage. A requested baseline is priced in both
 * forms.
 *
 * With a limit of evaluations, loops come first for a target: they have the plans of a search of loops alone.
 * A large module, which is searched by a sample (planners/sample_search.h), is always short of memory: its
 * form with recomputation is the first one. Each form has attention as separate operators or as one,
 * whichever is faster on the cluster (planners/problem/attention_choice.h).
 */
#ifndef PLANNERS_FORMS_MODULE_FORMS_H
#define PLANNERS_FORMS_MODULE_FORMS_H

#include "planners/problem/search_scope.h"

/* When a form is searched, if it is not the first one. */
typedef enum FormCondition {
    FORM_ALWAYS,
    FORM_WHERE_MEMORY_IS_SCARCE,  /* no plan fits so far, or that found uses much memory */
    FORM_WHERE_ONE_STAGE,         /* no plan fits so far, or that found has one stage */
    FORM_WHERE_BASELINES_ARE_NEAR /* no plan fits so far, or its fastest baseline is near that so far */
} FormCondition;

typedef struct ModuleForm {
    PlanContext *module; /* NULL while another form is searched before it: form_search() makes it again */
    PlanContext *other;  /* the form with the other choice of attention, if that is made; or NULL */
    FormCondition condition;
    PlanRewrites rewriting, other_rewriting; /* of the two, while they are put off */
    /* AUTO: attention is chosen when the form is searched; FUSED: it is fused then; UNFUSED: it stays. */
    AttentionChoice attention;
} ModuleForm;

enum { MODULE_FORMS_MOST = 3 };
typedef struct ModuleForms {
    PlanContext *chosen; /* the module of the form that is always searched */
    ModuleForm forms[MODULE_FORMS_MOST];
    int32_t count; /* in the order of the searches */
} ModuleForms;

/* Finds the forms of a module as read, which owns them. `scope->request->space.initial` is the plan to
 * start from, or NULL; its form of attention is taken. AM_ERROR_USAGE: the module lacks a form that the
 * options name. */
AmStatus module_forms_find(ModuleForms *forms, PlanContext *module, const Cluster *cluster,
                           const SearchScope *scope, AmError *error);

#endif
