/* One rank: a device's program with its memory, ready to run step by step.
 *
 * rank_open() prepares kernels and collectives, allocates one block of device memory and binds all
 * addresses; rank_set_parameter() fills shards, rank_run() runs a step, and rank_get_output() copies results
 * to the host.
 */
#ifndef EXECUTOR_PROGRAM_RANK_H
#define EXECUTOR_PROGRAM_RANK_H

#include "executor/program/executable.h"
#include "propagation/sharding/shard.h"

/* The part of a global array that a rank holds. */
typedef struct RankShard {
    int32_t value;    /* -1: none, as the array is another stage's */
    bool writes_part; /* this rank is the one that writes the part to the host */
    ShardLayout layout;
} RankShard;

typedef struct Rank {
    Arena arena;
    KernelDevice *device;
    Comm *comm;
    Program *program;
    Executable *ready;
    RankShard *parameters, *outputs;     /* [parameter_count], [output_count] */
    char *memory;                        /* device memory: the program's, scratch */
    int64_t memory_bytes, scratch_bytes; /* all of it; scratch of kernels and collectives in it */
    char *host_memory;                   /* the program's in the host; NULL: none */
    char *host;                          /* for one shard on its way */
    Timeline *timeline;                  /* NULL: nothing is measured */
    double step_begin;                   /* of the step in work, for the timeline */
} Rank;

/* Prepares the program, allocates and binds. The program lives in rank->arena;
 * device and comm stay the caller's. */
AmStatus rank_open(Rank *rank, KernelDevice *device, Comm *comm, Program *program, AmError *error);
/* Records the rank's activities, with space for the last `steps` steps of a plan in so many micro-batches.
 * To be called after rank_open(). */
AmStatus rank_watch(Rank *rank, int64_t steps, int32_t micro_batches, AmError *error);
/* Starts the rank in its own thread, once before the first run: actions that involve other ranks, or take
 * time. */
AmStatus rank_start(Rank *rank, AmError *error);
void rank_close(Rank *rank);

/* Copies this rank's shard of parameter k from the global array on the host. */
void rank_set_parameter(Rank *rank, int32_t k, const void *global);
/* Sets this rank's shard of parameter k, row-major, unchanged. */
void rank_set_shard(Rank *rank, int32_t k, const void *shard);
/* Copies this rank's shard of parameter k to its place in the global array, unless another rank copies it. */
void rank_get_parameter(Rank *rank, int32_t k, void *global);
void rank_get_output(Rank *rank, int32_t k, void *global);

/* Copies a value's memory, which may be the host's, to or from the host; between two steps. */
void rank_read_value(Rank *rank, int32_t value, void *to);
void rank_write_value(Rank *rank, int32_t value, const void *from);

/* Runs the program once, without the updates. */
AmStatus rank_run(Rank *rank, AmError *error);
/* Ends a run by steps (actor_schedule.h): waits for issued work. */
AmStatus rank_finish(Rank *rank, AmError *error);
/* Lets parameters take over their new values. */
void rank_update(Rank *rank);

#endif
