/* Decision problems cut from modules: a window of operators with their real costs. */
#ifndef BENCH_QUALITY_DECISIONS_CUT_H
#define BENCH_QUALITY_DECISIONS_CUT_H

#include "bench/quality/decisions.h"
#include "cost/cluster/cluster.h"
#include "propagation/plan/plan.h"

#define CUT_LEAST 20
#define CUT_MOST  24

/* Cuts a window of CUT_LEAST to CUT_MOST operators of the entry that hang together, drawn by the seed, on a
 * mesh of servers x devices of a server. Each operator decides by itself (repeated layers are not tied) which
 * factor it splits on each axis. AM_ERROR_INFEASIBLE: the window is too loosely knit; another seed may do.
 * Arrays live in the arena. */
AmStatus decisions_cut(Decisions *decisions, Arena *arena, const PlanContext *context, const Cluster *cluster,
                       uint64_t seed, AmError *error);

#endif
