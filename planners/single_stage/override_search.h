/* Overrides: improvements beyond a plan's axis priorities.
 *
 * Axis priorities treat a class of dimensions equally everywhere. For single operators, equal in repeated
 * layers, another choice may be better: an embedding whose gather is split along its width while
 * the rest splits the sequence, or a product with a replicated operand instead of a scattered sum.
 * The dual of the sharding graph (cost/relaxation/graph_bound.h) shows where a plan exceeds the bound and
 * proposes changes. Operators and tensors that gain by changing together (sharding_graph_patches()), then
 * single operators with the most slack, equal ones of all layers together, are tried as overrides
 * of the plan; the real price decides. The result of an operator with overrides is stored in the
 * state that its only reader needs.
 *
 * Pins hold in every trial. Pinned weights, their views and the operators that read them get no overrides.
 */
#ifndef PLANNERS_SINGLE_STAGE_OVERRIDE_SEARCH_H
#define PLANNERS_SINGLE_STAGE_OVERRIDE_SEARCH_H

#include "planners/single_stage/single_stage_search.h"

/* The changes that are tried. */
typedef enum OverrideExtent {
    OVERRIDES_ALL,
    /* One batch, of the patches with the largest gains: the plan had all changes on a sample of its layers,
     * and plans of a large module are priced slowly. */
    OVERRIDES_AFTER_SAMPLE
} OverrideExtent;

/* Adds overrides, in the arena, to a plan of the problem as long as they make it quicker; `price` is its
 * price, then that with them. Every plan that is priced is one of the problem's evaluations. Does nothing
 * where the sharding graph claims nothing. The result does not depend on the number of threads. */
AmStatus stage_add_overrides(PlanStage *stage, PlanPrice *price, Arena *arena, StageProblem *problem,
                             OverrideExtent extent, AmError *error);

/* Returns the number of a search's evaluations for overrides: 0 where the request excludes overrides or keeps
 * the module's shardings. */
int64_t override_evaluations(const SearchScope *scope, int64_t limit);

/* Adds overrides to a simulated one-stage plan with one micro-batch. `budget`: a part of the caller's,
 * whose limit is lowered to the overrides' share of such a search. The plan is simulated anew. */
AmStatus plan_add_overrides(Plan *plan, SearchBudget *budget, Arena *arena, const PlanContext *context,
                            const Cluster *cluster, const SearchScope *scope, OverrideExtent extent,
                            AmError *error);

#endif
