/* `host:N`: this machine as N ranks, described from one measurement of it.
 *
 * A measurement (executor/calibrate/probe.h, probe_measure_host()) has four parts:
 *
 *   alone       the device type of one rank with all P processors
 *   together    the device type of P ranks with one processor each
 *   link        the link between those
 *   shared      collectives of 2 P ranks
 *
 * Other numbers of ranks follow from these:
 *
 *   N = 1       alone
 *   1 < N < P   operators take alone^(1-w) together^w seconds, w = log N / log P
 *   N = P       together
 *   N > P       s = N / P ranks share a processor: each has P / N of it, so operators take s times as long;
 *               a collective takes t1 + (s - 1)(t2 - t1) up to s = 2 and s / 2 t2 beyond, with t1 by "link"
 *               and t2 by "shared"
 *
 * Rates and memory of the machine are divided by N.
 */
#ifndef COST_CLUSTER_HOST_CLUSTER_H
#define COST_CLUSTER_HOST_CLUSTER_H

#include <jansson.h>

#include "base/status.h"
#include "base/system/machine.h"

enum { HOST_MOST_RANKS = 1024 };

/* Returns the N of "host:N" in *ranks, 0 for any other name. AM_ERROR_USAGE: N is not from 1 to 1024. */
AmStatus host_cluster_ranks(int32_t *ranks, const char *name, AmError *error);

/* Describes "host:N" in the form of a cluster file, the caller's reference. AM_ERROR_INPUT: the measurement
 * lacks a member; `source` names it. */
AmStatus host_cluster_describe(json_t **description, json_t *measurement, const Machine *machine,
                               int32_t ranks, const char *source, AmError *error);

/* Checks that clusters of 1, P and 2 P ranks can be described from the measurement and read. AM_ERROR_INPUT:
 * the first problem. */
AmStatus host_cluster_check(json_t *measurement, const Machine *machine, const char *source, AmError *error);

#endif
