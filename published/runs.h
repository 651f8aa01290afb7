/* Published training runs as rows of a CSV file: model, machine, strategy and measurements.
 *
 * The first line names the columns, in any order; unknown columns are ignored:
 *
 *   source,group,row,model,layers,hidden,heads,vocab,sequence,device,devices,global_batch,step_seconds
 *   Megatron,table 1,1.7B,gpt,24,2304,24,51200,2048,A100-80GB,32,512,3.5
 *
 * An empty field was not published, also one without which the row cannot be planned. Fields may stand in
 * double quotes, which are doubled inside.
 */
#ifndef PUBLISHED_RUNS_H
#define PUBLISHED_RUNS_H

#include "base/arena.h"
#include "base/status.h"

typedef struct PublishedRun {
    int64_t line;        /* in the file, from 1 */
    const char *missing; /* the first column that every row needs, and that is empty here; or NULL */
    /* "" where they are empty */
    const char *source, *group, *row, *model, *type, *device, *schedule, *recompute, *attention, *kernels,
        *norms, *eager, *dropout, *gradients, *reductions, *gradient_sum, *cuts, *logits, *outputs, *head,
        *lengths, *loss, *qkv, *overlap, *outcome, *optimizer, *note;
    /* -1 where they are empty */
    int64_t layers, hidden, heads, kv_heads, ffn, vocabulary, sequence, devices, per_server, global_batch,
        micro_batch, data, tensor, pipeline, chunks, context, expert, zero;
    int64_t splits_sequence; /* 1 yes, 0 no, -1 empty */
    /* NAN where they are empty */
    double network_gbit_per_device, step_seconds, peak_gib;
} PublishedRun;

/* Reads the text of a file; everything but the name `source` is the arena's. AM_ERROR_INPUT names file, line
 * and the expectation: a missing column, another number of fields than columns, a field that is no number. */
AmStatus published_read(PublishedRun **runs, int32_t *count, Arena *arena, const char *source,
                        const char *text, int64_t length, AmError *error);

#endif
