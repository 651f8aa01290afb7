/* Loads batches into a ring of buffers, cut into the shards of this process's ranks.
 *
 * feed_loader_open() finds the different shards of each parameter: ranks with equal shards share a copy. A
 * thread reads the examples of the next batches (feed_loader_load()), in the order of the epoch's
 * permutation, and feed_loader_take() gives the ranks a batch that is complete.
 */
#include "executor/data/feed_load.h"

#include <stdlib.h>
#include <string.h>

#include "executor/array/strided.h"

static bool same_layout(const ShardLayout *a, const ShardLayout *b) {
    size_t bytes = sizeof(int64_t) * (size_t)a->rank;
    return a->rank == b->rank && a->start_offset == b->start_offset &&
           memcmp(a->dimensions, b->dimensions, bytes) == 0 &&
           memcmp(a->global_strides, b->global_strides, bytes) == 0;
}

/* Finds the cuts of one parameter, and the cut of each rank. */
static AmStatus find_cuts(FeedLoad *load, FeedLoader *loader, Arena *arena, AmError *error) {
    int32_t k = load->feed->number;
    load->cuts = ARENA_ARRAY(arena, FeedCut, loader->rank_count);
    load->cut_of = ARENA_ARRAY(arena, int32_t, loader->rank_count);
    if (!load->cuts || !load->cut_of) return am_fail_memory(error, loader->rank_count * 32);
    for (int32_t r = 0; r < loader->rank_count; r++) {
        const RankShard *shard = &loader->ranks[r].parameters[k];
        int32_t c = 0;
        load->cut_of[r] = -1;
        if (shard->value < 0) continue;
        while (c < load->cut_count && !same_layout(load->cuts[c].layout, &shard->layout)) c++;
        load->cut_of[r] = c;
        if (c < load->cut_count) continue;
        bool is_whole = shard_elements(&shard->layout) == ir_shape_elements(load->feed->shape);
        load->cuts[load->cut_count++] = (FeedCut){.layout = &shard->layout, .is_whole = is_whole};
    }
    return AM_OK;
}

/* Reads a batch directly into a shard that is the whole batch; otherwise reads it into separate
 * memory. */
static AmStatus place_cuts(FeedLoad *load, FeedLoader *loader, AmError *error) {
    int64_t width = dtype_bytes(load->feed->shape->type);
    bool has_whole = false;
    for (int32_t c = 0; c < load->cut_count; c++) {
        FeedCut *cut = &load->cuts[c];
        int64_t bytes = cut->is_whole ? load->feed->batch_bytes : shard_elements(cut->layout) * width;
        cut->offset = loader->place_bytes;
        loader->place_bytes += kernel_align(bytes);
        has_whole |= cut->is_whole;
    }
    if (has_whole || load->cut_count == 0) return AM_OK;
    load->whole = malloc((size_t)load->feed->batch_bytes + 1);
    return load->whole ? AM_OK : am_fail_memory(error, load->feed->batch_bytes);
}

AmStatus feed_loader_open(FeedLoader *loader, Arena *arena, const Feed *feeds, int32_t feed_count,
                          Rank *ranks, int32_t rank_count, int32_t depth, AmError *error) {
    *loader = (FeedLoader){.ranks = ranks, .rank_count = rank_count, .depth = depth, .permuted_epoch = -1};
    loader->loads = ARENA_ARRAY(arena, FeedLoad, feed_count + 1);
    loader->is_lost = ARENA_ARRAY(arena, bool, depth);
    if (!loader->loads || !loader->is_lost) return am_fail_memory(error, feed_count * 64);
    for (int32_t k = 0; k < feed_count; k++) {
        if (!feed_in_batches(&feeds[k])) continue;
        FeedLoad *load = &loader->loads[loader->count++];
        load->feed = &feeds[k];
        TRY(find_cuts(load, loader, arena, error));
        TRY(place_cuts(load, loader, error));
    }
    loader->places = calloc((size_t)depth, (size_t)loader->place_bytes + 1);
    return loader->places ? AM_OK : am_fail_memory(error, depth * loader->place_bytes);
}

void feed_loader_close(FeedLoader *loader) {
    for (int32_t k = 0; k < loader->count; k++) free(loader->loads[k].whole);
    free(loader->places);
    *loader = (FeedLoader){0};
}

/* Chooses the examples of a batch, by the epoch's permutation. */
static void choose_examples(FeedLoader *loader, int64_t epoch, int64_t batch) {
    const FeedOrder *order = &loader->order;
    if (loader->permuted_epoch != epoch)
        permutation_begin(&loader->permutation, order->examples, order->seed, (uint64_t)epoch);
    loader->permuted_epoch = epoch;
    for (int64_t k = 0; k < order->per_batch; k++)
        loader->chosen[k] = permutation_at(&loader->permutation, batch * order->per_batch + k);
}

static AmStatus load_batch(FeedLoader *loader, int64_t step, AmError *error) {
    const FeedOrder *order = &loader->order;
    int64_t number = order->start + step, batch = number % order->batches;
    char *place = loader->places + step % loader->depth * loader->place_bytes;
    if (loader->chosen) choose_examples(loader, number / order->batches, batch);
    for (int32_t k = 0; k < loader->count; k++) {
        const FeedLoad *load = &loader->loads[k];
        char *whole = load->whole;
        for (int32_t c = 0; c < load->cut_count; c++)
            if (load->cuts[c].is_whole) whole = place + load->cuts[c].offset;
        if (!whole) continue;
        TRY(feed_read_batch(load->feed, loader->chosen, batch, whole, error));
        for (int32_t c = 0; c < load->cut_count; c++)
            if (!load->cuts[c].is_whole) {
                /* Row by row, since ranks wait. */
                const FeedCut *cut = &load->cuts[c];
                const ShardLayout *layout = cut->layout;
                int64_t width = dtype_bytes(load->feed->shape->type);
                strided_copy(place + cut->offset, layout->local_strides, whole + layout->start_offset * width,
                             layout->global_strides, layout->dimensions, layout->rank, width);
            }
    }
    return AM_OK;
}

AmStatus feed_loader_start(FeedLoader *loader, const FeedOrder *order, Arena *arena, AmError *error) {
    loader->order = *order;
    if (loader->count == 0) return AM_OK;
    if (order->shuffled && order->per_batch > 0) {
        loader->chosen = ARENA_ARRAY(arena, int64_t, order->per_batch);
        if (!loader->chosen) return am_fail_memory(error, order->per_batch * 8);
    }
    TRY(load_batch(loader, 0, error));
    loader->has_first = true;
    return AM_OK;
}

void feed_loader_load(FeedLoader *loader, int64_t step) {
    if (step == 0 && loader->has_first) return;
    if (!loader->has_failed) loader->has_failed = load_batch(loader, step, &loader->error) != AM_OK;
    loader->is_lost[step % loader->depth] = loader->has_failed;
}

AmStatus feed_loader_take(FeedLoader *loader, int32_t r, int64_t step, AmError *error) {
    const char *place = loader->places + step % loader->depth * loader->place_bytes;
    const AmError *cause = &loader->error;
    if (loader->is_lost[step % loader->depth])
        return am_fail(error, AM_ERROR_RUNTIME, "", "%s%s%s", cause->source, cause->source[0] ? ": " : "",
                       cause->text);
    for (int32_t k = 0; k < loader->count; k++) {
        const FeedLoad *load = &loader->loads[k];
        if (load->cut_of[r] < 0) continue;
        rank_set_shard(&loader->ranks[r], load->feed->number, place + load->cuts[load->cut_of[r]].offset);
    }
    return AM_OK;
}
