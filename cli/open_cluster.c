/* Opens clusters for commands, with the progress of a measurement. */
#define _DEFAULT_SOURCE
#include "cli/open_cluster.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Draws one line, from 0 to 1, if stderr is a terminal and --quiet is absent; the last call removes it. An
 * interrupt ends the program. */
static int show_measuring(void *user, const AmProgress *progress) {
    static const char full[] = "##############################", empty[] = "..............................";
    const Cli *cli = user;
    cli_leave_if_interrupted();
    if (strcmp(progress->phase, "waiting") == 0) cli_release_notes(cli);
    if (!isatty(2) || cli_has(cli, "--quiet")) return 0;
    double done = (double)progress->evaluations / (double)progress->limit;
    int length = (int)(done * (double)(sizeof full - 1));
    if (progress->is_last) fputs("\r\033[K", stderr);
    else fprintf(stderr, "\rmeasuring [%.*s%s] %3.0f %%\033[K", length, full, empty + length, 100 * done);
    fflush(stderr);
    return 0;
}

AmStatus cli_open_cluster(const Cli *cli, AmCluster **cluster, const char *name, const AmOptions *options,
                          AmError *error) {
    AmCallbacks callbacks = cli_callbacks(cli);
    AmOptions *own = NULL;
    AmStatus status = AM_OK;
    callbacks.on_progress = show_measuring;
    if (!options && cli_has(cli, "--no-probe")) {
        TRY(am_options_new(&own, AM_COMMAND_CLUSTER, error));
        status = am_options_set(own, "--no-probe", NULL, error);
    }
    if (status == AM_OK) status = am_cluster_open(cluster, name, options ? options : own, &callbacks, error);
    am_options_free(own);
    return status;
}
