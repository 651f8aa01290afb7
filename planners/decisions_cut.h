/* Decision problems cut from modules: a window of operators with their real costs. */
#ifndef PLANNERS_DECISIONS_CUT_H
#define PLANNERS_DECISIONS_CUT_H

#include "cost/cluster.h"
#include "planners/decisions.h"
#include "propagation/plan.h"

#define CUT_DECISIONS 20

/* A window of CUT_DECISIONS operators of the entry, side by side in its order, the first of them drawn by
 * the seed, on a mesh of servers x devices of a server. Each operator decides by itself (repeated layers
 * are not tied) which factor it splits on each axis. AM_ERROR_INFEASIBLE: the window is too loosely or
 * too closely knit; another seed may do. Arrays live in the arena. */
AmStatus decisions_cut(Decisions *decisions, Arena *arena, const PlanContext *context, const Cluster *cluster,
                       uint64_t seed, AmError *error);

#endif
