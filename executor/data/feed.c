/* Values of parameters in a run: initial values, and the examples of every step. Processes agree on batches,
 * order and position. */
#include "executor/data/feed.h"

#include <stdlib.h>
#include <string.h>

#include "executor/data/feed_load.h"
#include "executor/data/feed_source.h"

/* Copied in the time that a thread takes to wake, or about that. */
enum { SMALL_BYTES = 1 << 16 };

struct Feeds {
    Arena arena;
    const PlanContext *context; /* of the module as read, whose parameters files name */
    const PlanContext *used;    /* of the ranks' programs, whose parameters the callers name */
    int32_t *first;             /* [count]: the first used parameter that is part of parameter k */
    int32_t *next;              /* [parameter used]: the next of the same parameter, or -1 */
    const RunOptions *options;
    FeedSource source;
    const char *data_path; /* the first file of --data, the options'; NULL: none */
    Feed *feeds;           /* [count], by parameter */
    int32_t count;
    FeedOrder order;
    FeedLoader loader;
};

/* One batch more or less is a remainder; anything else is a mistake. */
static AmStatus align_batches(Feeds *self, AmError *error) {
    const Feed *first = NULL;
    for (int32_t k = 0; k < self->count; k++) {
        const Feed *feed = &self->feeds[k];
        if (!feed_in_batches(feed)) continue;
        if (!first) {
            first = feed;
            self->order.batches = feed->batches;
        }
        int64_t difference = feed->batches - first->batches;
        if (difference > 1 || difference < -1)
            return am_fail(error, AM_ERROR_INPUT, feed->path,
                           "'%s' holds %lld batches and '%s' holds %lld: expected the same number",
                           first->parameter->path, (long long)first->batches, feed->parameter->path,
                           (long long)feed->batches);
        if (feed->batches < self->order.batches) self->order.batches = feed->batches;
        if (difference != 0 && self->options->warnings)
            am_warn(self->options->warnings,
                    "'%s' and '%s' hold different numbers of batches: only %lld are used",
                    first->parameter->path, feed->parameter->path, (long long)self->order.batches);
    }
    return AM_OK;
}

/* Examples that belong together must be as many in every batch. */
static AmStatus align_examples(Feeds *self, AmError *error) {
    const Feed *first = NULL;
    FeedOrder *order = &self->order;
    for (int32_t k = 0; k < self->count && order->shuffled; k++) {
        const Feed *feed = &self->feeds[k];
        if (!feed_in_batches(feed) || feed->in_order) continue;
        if (!first) {
            first = feed;
            order->per_batch = feed->per_batch;
            order->examples = feed->examples;
        }
        if (feed->per_batch != order->per_batch)
            return am_fail(
                error, AM_ERROR_INPUT, feed->path,
                "'%s' has %lld examples in a batch and '%s' has %lld: they cannot be shuffled alike",
                first->parameter->path, (long long)first->per_batch, feed->parameter->path,
                (long long)feed->per_batch);
        if (feed->examples < order->examples) order->examples = feed->examples;
    }
    return AM_OK;
}

/* Sends constant parameters to the ranks at once, one by one. */
static AmStatus read_all(Feeds *self, Rank *ranks, int32_t rank_count, const bool *is_resumed,
                         AmError *error) {
    for (int32_t k = 0; k < self->count; k++) {
        Feed *feed = &self->feeds[k];
        if (is_resumed && is_resumed[self->first[k]]) continue;
        TRY(feed_open(feed, &self->source, k, error));
        feed->number = self->first[k];
        if (feed_in_batches(feed) && self->next[self->first[k]] >= 0)
            return am_fail(
                error, AM_ERROR_INPUT, feed->path,
                "'%s' has a value for every step, and the plan splits its layers (expected a plan of "
                "search --layers loop)",
                feed->parameter->path);
        for (int32_t part = self->first[k]; part >= 0 && feed->once; part = self->next[part]) {
            const char *values =
                feed->once + plan_source_parameter(self->used, part).first * dtype_bytes(feed->shape->type);
            for (int32_t r = 0; r < rank_count; r++) rank_set_parameter(&ranks[r], part, values);
        }
        if (feed->once) feed_close(feed);
    }
    if (self->source.data_count > 0) self->data_path = self->source.data[0].path;
    feed_source_close(&self->source);
    return self->arena.failed ? am_fail_memory(error, self->count) : AM_OK;
}

AmStatus feeds_open(Feeds **feeds, const PlanContext *context, const RunOptions *options, Rank *ranks,
                    int32_t rank_count, const bool *is_resumed, AmError *error) {
    Feeds *self = calloc(1, sizeof *self);
    if (!self) return am_fail_memory(error, (int64_t)sizeof *self);
    *feeds = self;
    self->context = plan_context_source(context);
    self->used = context;
    self->options = options;
    AmStatus status = AM_OK;
    int32_t depth = options->prefetch > 0 ? options->prefetch : FEED_PREFETCH;
    self->count = self->context->roles->parameter_count;
    self->feeds = ARENA_ARRAY(&self->arena, Feed, self->count + 1);
    self->first = ARENA_ARRAY(&self->arena, int32_t, self->count + 1);
    int32_t parts = context->roles->parameter_count;
    self->next = ARENA_ARRAY(&self->arena, int32_t, parts + 1);
    if (self->arena.failed) TRY_OR_FAIL(am_fail_memory(error, (int64_t)sizeof(Feed) * self->count));
    for (int32_t k = 0; k < self->count; k++) self->first[k] = -1;
    for (int32_t part = parts - 1; part >= 0; part--) {
        int32_t original = plan_source_parameter(context, part).original;
        self->next[part] = self->first[original];
        self->first[original] = part;
    }
    TRY_OR_FAIL(feed_source_open(&self->source, self->context, options, &self->arena, error));
    TRY_OR_FAIL(read_all(self, ranks, rank_count, is_resumed, error));
    self->order = (FeedOrder){.seed = options->seed, .shuffled = options->shuffle};
    TRY_OR_FAIL(align_batches(self, error));
    TRY_OR_FAIL(align_examples(self, error));
    status = feed_loader_open(&self->loader, &self->arena, self->feeds, self->count, ranks, rank_count, depth,
                              error);
    if (status == AM_OK) return AM_OK;
fail:
    feeds_close(self);
    *feeds = NULL;
    return status;
}

void feeds_close(Feeds *self) {
    if (!self) return;
    feed_loader_close(&self->loader);
    for (int32_t k = 0; self->feeds && k < self->count; k++) feed_close(&self->feeds[k]);
    feed_source_close(&self->source);
    arena_free(&self->arena);
    free(self);
}

bool feeds_has_batches(const Feeds *self, int32_t parameter) {
    return feed_in_batches(&self->feeds[plan_source_parameter(self->used, parameter).original]);
}

FeedPosition feeds_position(const Feeds *self, int64_t steps) {
    const FeedOrder *order = &self->order;
    int64_t number = order->start + steps, batches = order->batches > 0 ? order->batches : 1;
    return (FeedPosition){.seed = order->seed,
                          .shuffled = order->shuffled,
                          .epoch = number / batches,
                          .batch = number % batches,
                          .batches = order->batches};
}

AmStatus feeds_seek(Feeds *self, const FeedPosition *position, AmError *error) {
    FeedOrder *order = &self->order;
    const char *file = self->data_path;
    if (position->batches != order->batches)
        return am_fail(
            error, AM_ERROR_INPUT, file,
            "the data has %lld batches, the checkpoint's data had %lld (expected the same data, or a "
            "new folder for --checkpoint)",
            (long long)order->batches, (long long)position->batches);
    if (order->batches == 0) return AM_OK;
    if (position->shuffled != order->shuffled)
        return am_fail(
            error, AM_ERROR_INPUT, file, "the data is %s, the checkpoint's data was %s (expected %s)",
            order->shuffled ? "shuffled" : "in order", position->shuffled ? "shuffled" : "in order",
            position->shuffled ? "--shuffle" : "no --shuffle");
    if (position->epoch < 0 || position->batch < 0 || position->batch >= order->batches ||
        position->epoch > INT64_MAX / order->batches - 1)
        return am_fail(error, AM_ERROR_INPUT, file, "epoch %lld, batch %lld of %lld is outside the data",
                       (long long)position->epoch, (long long)position->batch, (long long)order->batches);
    order->seed = position->seed;
    order->start = position->epoch * order->batches + position->batch;
    return AM_OK;
}

AmStatus feeds_start(Feeds *self, AmError *error) {
    return feed_loader_start(&self->loader, &self->order, &self->arena, error);
}

int32_t feeds_depth(const Feeds *self) {
    return self->loader.count > 0 ? self->loader.depth : 0;
}

bool feeds_are_small(const Feeds *self) {
    return self->loader.place_bytes <= SMALL_BYTES;
}

AmStatus feeds_load(void *feeds, int64_t iteration, AmError *error) {
    Feeds *self = feeds;
    (void)error;
    feed_loader_load(&self->loader, iteration);
    return AM_OK;
}

AmStatus feeds_take(Feeds *self, int32_t r, int64_t step, AmError *error) {
    return feed_loader_take(&self->loader, r, step, error);
}
