/* Progress of a search, sweep, explanation or training on a terminal: one line of stderr, drawn over itself.
 *
 *   search 12 s   single stage   best 425 ms   132 of 500 evaluations   gap 12 %   30 s left
 *   sweep 2 s   best 425 ms   12 of 96 strategies   15 s left
 *   explain 2 s   12 of 96 changes   15 s left
 *
 * It is drawn five times a second, by the callback on_progress of the API. Shown where stderr is a terminal,
 * unless --quiet.
 */
#ifndef CLI_COMMANDS_SEARCH_PROGRESS_H
#define CLI_COMMANDS_SEARCH_PROGRESS_H

#include <pthread.h>

#include "automap.h"
#include "cli/terminal.h"

typedef enum ProgressKind {
    PROGRESS_SEARCH,
    PROGRESS_SWEEP,
    PROGRESS_EXPLANATION,
    PROGRESS_TRAINING
} ProgressKind;

typedef struct SearchProgressLine {
    const Cli *cli;
    TerminalLine line;
    ProgressKind kind;
    double started, seconds; /* clock at the beginning; the time limit, 0: none */
    pthread_mutex_t mutex;   /* of stderr: messages of a training are of its thread */
} SearchProgressLine;

/* Opens a line for search_progress_show(); returns whether it is shown. `seconds`: the user's limit, 0:
 * none. */
bool search_progress_open(SearchProgressLine *self, const Cli *cli, ProgressKind kind, double seconds);
int search_progress_show(void *line, const AmProgress *progress); /* AmCallbacks.on_progress */
/* Wipes the line out and keeps it away until the release, around other lines of stderr. */
void search_progress_hold(SearchProgressLine *self);
void search_progress_release(SearchProgressLine *self);
/* Wipes the line out; to be called before anything else is written to stderr. */
void search_progress_close(SearchProgressLine *self);

#endif
