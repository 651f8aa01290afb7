/* A module with fed parameters and its ranks, for the tests of feeding: the tests read the memory
 * of a rank; nothing is computed. */
#ifndef TESTS_SUPPORT_FEED_CASE_H
#define TESTS_SUPPORT_FEED_CASE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/files/array_file.h"
#include "base/files/file.h"
#include "executor/data/feed.h"

enum { BATCH = 4, LENGTH = 3, WIDTH = 2, VOCABULARY = 50, MOST_RANKS = 4 };
enum { TOKENS, TARGETS, X, RATE, PARAMETERS };

/* One device's parameters; every second rank has the second half of the batch, unless it is alone. */
typedef struct FedRank {
    Rank rank;
    Program program;
    Executable ready;
    ProgramValue values[PARAMETERS];
    RankShard shards[PARAMETERS];
    void *addresses[PARAMETERS];
    int32_t tokens[BATCH * LENGTH], targets[BATCH * LENGTH];
    float x[BATCH * WIDTH], rate;
    char host[BATCH * LENGTH * 4];
} FedRank;

typedef struct FeedCase {
    char folder[64];
    PlanContext *context;
    Arena arena;
    AmWarnings warnings;
    AmError error;
    FedRank fed[MOST_RANKS];
    Rank ranks[MOST_RANKS]; /* as feeds_open() takes them */
    int32_t rank_count;
    int64_t loaded; /* batches, since the feeds were opened */
} FeedCase;

static inline const char *in_folder(const FeedCase *self, const char *name) {
    static char paths[8][128];
    static int next;
    char *path = paths[next = (next + 1) % 8];
    snprintf(path, sizeof paths[0], "%s/%s", self->folder, name);
    return path;
}

static inline void save_text(const FeedCase *self, const char *name, const char *text) {
    assert_int_equal(file_write(in_folder(self, name), text, strlen(text), NULL), AM_OK);
}

static inline int feed_setup(void **state) {
    static const char module[] = "HloModule m\n\nENTRY main {\n"
                                 "  tokens = s32[4,3]{1,0} parameter(0)\n"
                                 "  targets = s32[4,3]{1,0} parameter(1)\n"
                                 "  x = f32[4,2]{1,0} parameter(2)\n"
                                 "  rate = f32[] parameter(3)\n"
                                 "  wide = s32[4,3,50]{2,1,0} broadcast(tokens), dimensions={0,1}\n"
                                 "  count = s32[4,3,50]{2,1,0} iota(), iota_dimension=2\n"
                                 "  hot = pred[4,3,50]{2,1,0} compare(wide, count), direction=EQ\n"
                                 "  ROOT all = (pred[4,3,50]{2,1,0}, s32[4,3]{1,0}, f32[4,2]{1,0}, f32[]) "
                                 "tuple(hot, targets, x, rate)\n"
                                 "}\n";
    static const char roles[] =
        "{\"format\": \"automap-roles-1\", \"loss\": null, \"parameters\": [\n"
        "{\"number\": 0, \"path\": \"tokens\", \"role\": \"data\", \"output\": null},\n"
        "{\"number\": 1, \"path\": \"targets\", \"role\": \"data\", \"output\": null},\n"
        "{\"number\": 2, \"path\": \"x\", \"role\": \"data\", \"output\": null},\n"
        "{\"number\": 3, \"path\": \"rate\", \"role\": \"data\", \"output\": null}]}\n";
    FeedCase *self = calloc(1, sizeof *self);
    snprintf(self->folder, sizeof self->folder, "/tmp/automap_feed_XXXXXX");
    assert_non_null(mkdtemp(self->folder));
    save_text(self, "model.hlo.txt", module);
    save_text(self, "model.roles.json", roles);
    if (plan_context_read(&self->context, in_folder(self, "model.hlo.txt"),
                          in_folder(self, "model.roles.json"), &self->error) != AM_OK)
        fail_msg("%s", self->error.text);
    self->warnings.arena = &self->arena;
    *state = self;
    return 0;
}

static inline int feed_teardown(void **state) {
    static const char *const names[] = {"model.hlo.txt", "model.roles.json", "a.npz",     "b.npz", "a.npy",
                                        "a.bin",         "a.safetensors",    "tokens.npy"};
    FeedCase *self = *state;
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) unlink(in_folder(self, names[k]));
    int left = rmdir(self->folder);
    plan_context_free(self->context);
    arena_free(&self->arena);
    free(self);
    return left;
}

/* Rank r holds `part` of `parts` of the batch; the rate is equal on all ranks. */
static inline void make_rank(FeedCase *self, int32_t r, int32_t part, int32_t parts) {
    static KernelDevice *const host = &kernel_device_cpu;
    FedRank *fed = &self->fed[r];
    void *const places[PARAMETERS] = {fed->tokens, fed->targets, fed->x, &fed->rate};
    const PlanContext *context = self->context;
    memset(fed, 0, sizeof *fed);
    fed->program.values = fed->values;
    fed->ready.addresses = fed->addresses;
    for (int32_t k = 0; k < PARAMETERS; k++) {
        const IrShape *whole =
            &context->canonical->instructions[context->roles->parameters[k].instruction].shape;
        ShardLayout *layout = &fed->shards[k].layout;
        fed->values[k].shape = *whole;
        fed->addresses[k] = places[k];
        fed->shards[k].value = k;
        layout->rank = whole->rank;
        for (int32_t d = whole->rank - 1; d >= 0; d--) {
            layout->dimensions[d] = whole->dimensions[d];
            layout->global_strides[d] = layout->local_strides[d] =
                d == whole->rank - 1 ? 1 : layout->global_strides[d + 1] * whole->dimensions[d + 1];
        }
        if (whole->rank == 0) continue;
        int64_t *own = ARENA_ARRAY(&self->arena, int64_t, whole->rank);
        memcpy(own, whole->dimensions, sizeof(int64_t) * (size_t)whole->rank);
        own[0] = layout->dimensions[0] = BATCH / parts;
        layout->start_offset = part * (BATCH / parts) * layout->global_strides[0];
        fed->values[k].shape.dimensions = own;
    }
    self->ranks[r] = (Rank){.device = host,
                            .program = &fed->program,
                            .ready = &fed->ready,
                            .parameters = fed->shards,
                            .host = fed->host};
}

/* `parts` ranks with a part of the batch each, `copies` times. */
static inline void make_ranks(FeedCase *self, int32_t parts, int32_t copies) {
    self->rank_count = parts * copies;
    assert_true(self->rank_count <= MOST_RANKS);
    for (int32_t r = 0; r < self->rank_count; r++) make_rank(self, r, r % parts, parts);
}

static inline AmStatus open_feeds(FeedCase *self, Feeds **feeds, RunOptions *options) {
    options->warnings = &self->warnings;
    self->error = (AmError){0};
    self->loaded = 0;
    return feeds_open(feeds, self->context, options, self->ranks, self->rank_count, NULL, &self->error);
}

#endif
