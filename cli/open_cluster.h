/* Clusters named on the command line, `host:N` among them: this machine as measured. */
#ifndef CLI_OPEN_CLUSTER_H
#define CLI_OPEN_CLUSTER_H

#include "cli/common.h"

/* The row of --no-probe, for every command with a CLUSTER. */
#define CLI_OPTION_NO_PROBE OPTION_ROW_NO_PROBE(CLI_ROW)

/* Opens a cluster by am_cluster_open(), with a line of progress on a terminal; notes and warnings go to
 * stderr. `options`: of AM_COMMAND_CLUSTER; NULL: --no-probe alone, where it is given. */
AmStatus cli_open_cluster(const Cli *cli, AmCluster **cluster, const char *name, const AmOptions *options,
                          AmError *error);

#endif
