/* The choice between attention as separate operators and as one (ir/attention/attention.h). */
#ifndef PLANNERS_PROBLEM_ATTENTION_CHOICE_H
#define PLANNERS_PROBLEM_ATTENTION_CHOICE_H

#include "cost/cluster/cluster.h"
#include "propagation/plan/plan.h"

/* Replaces `*primary` by its form with fused attention if that is faster on one device of every type, without
 * communication. A device type must have kernels of known times: measured operators of a host, or for 16-bit
 * types a bf16 rate, as GPUs with such kernels have. `*other` is the form that is not chosen, or NULL where
 * there is no choice: a module without attention, or a device type without kernels. */
AmStatus attention_choose(PlanContext **primary, PlanContext **other, const Cluster *cluster, AmError *error);

/* Chooses for each of `count` forms of a module as attention_choose() does, on several threads. others[k] is
 * the form not chosen instead of forms[k]. */
AmStatus attention_choose_all(PlanContext **forms, PlanContext **others, int32_t count,
                              const Cluster *cluster, AmError *error);

/* Returns in `*has` whether the unfused module has attention and every device type has kernels for it. */
AmStatus attention_has_kernels(bool *has, PlanContext *unfused, const Cluster *cluster, AmError *error);

#endif
