/* Clusters named on the command line, `host:N` among them: this machine as measured. */
#ifndef CLI_HOST_H
#define CLI_HOST_H

#include "cli/common.h"
#include "cost/cluster/cluster.h"

/* The row of --no-probe, for every command with a CLUSTER. */
#define CLI_OPTION_NO_PROBE \
    { "--no-probe", NULL, "never measure this machine for host:N; nominal figures instead", false }

/* Reads a cluster file, a built-in cluster or `host:N`. The first `host:N` measures this machine, at most 10
 * s, and keeps the result; with --no-probe or AUTOMAP_NO_PROBE=1 it is never measured, and has the kept
 * measurement or nominal figures. Notes and warnings go to stderr. Errors are those of cluster_read(), and
 * AM_ERROR_RUNTIME where the measurement fails. */
AmStatus cli_read_cluster(const Cli *cli, Cluster **cluster, Arena *arena, const char *name, AmError *error);

/* The same as a handle of the API. */
AmStatus cli_open_cluster(const Cli *cli, AmCluster **cluster, const char *name, AmError *error);

/* Removes the kept measurements of this machine and reports their number. */
AmStatus cli_forget_host(const Cli *cli, AmError *error);

/* Draws one line of progress, from 0 to 1, if stderr is a terminal and --quiet is absent; 1 removes the line.
 */
void cli_show_measuring(const Cli *cli, double done);

#endif
