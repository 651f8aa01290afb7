/* Search over all that the options leave open: spaces, and the number of micro-batches. */
#ifndef PLANNERS_MICRO_BATCH_SEARCH_H
#define PLANNERS_MICRO_BATCH_SEARCH_H

#include "planners/search.h"
#include "propagation/micro_batches.h"

/* SPACE_AUTO, unless search_narrow() makes it less, is one-stage plans and of several; a given plan
 * (options->initial, whose number of devices must be the cluster's: AM_ERROR_INPUT) is among them.
 * settings->micro_batches 0: all powers of two that divide the batch, which share
 * the evaluations; the fastest plan that fits wins, of equal ones that of fewer
 * micro-batches. `*result` is the winner's, with the evaluations and the time of
 * all; its plan's context is owned by `whole`. Where a number cannot be split
 * exactly, larger ones are not tried. AM_ERROR_INFEASIBLE as of search(), or as
 * of plan_context_split() where one number was asked for. */
AmStatus search_micro_batches(SearchResult *result, Arena *arena, PlanContext *whole, const Cluster *cluster,
                              const SearchOptions *options, const MicroBatching *settings, AmError *error);

#endif
