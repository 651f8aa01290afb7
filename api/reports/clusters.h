/* Clusters that calls of the API open: files, built-in names, and `host:N`, this machine as measured. */
#ifndef API_REPORTS_CLUSTERS_H
#define API_REPORTS_CLUSTERS_H

#include "api/handles.h"
#include "api/options.h"

/* The settings of a call that opens a cluster. */
typedef struct ClusterCall {
    const AmOptions *options; /* with the key "no-probe"; or NULL */
    const AmCallbacks *callbacks;
} ClusterCall;

/* Reads a cluster file, a built-in cluster or `host:N`. The first `host:N` measures this machine, at most 10
 * s, and keeps the result; with "no-probe" or AUTOMAP_NO_PROBE=1 it is never measured, and has the kept
 * measurement or nominal figures. Errors are those of cluster_read(), and AM_ERROR_RUNTIME where the
 * measurement fails. */
AmStatus report_read_cluster(Cluster **cluster, Arena *arena, const ClusterCall *call, const char *name,
                             AmError *error);

/* Removes the kept measurements of this machine and reports their number. */
AmStatus report_forget_host(const ClusterCall *call, AmError *error);

/* Reports the finished fraction of a measurement to on_progress. */
void report_measuring(const AmCallbacks *callbacks, const char *phase, double done);

#endif
