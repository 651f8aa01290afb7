/* The search for an order of servers: kinds as a word, in which equal letters are interchangeable.
 *
 * For at most MOST_WORDS different words all are priced. Otherwise the words with one run for each kind are
 * priced, and the best one is changed by swaps of neighbours as long as that makes its best pipeline faster.
 */
#include "planners/pipeline/device_orders.h"

#include <math.h>
#include <string.h>

#include "planners/pipeline/stage_model.h"

enum { MOST_WORDS = 90, MOST_RUNS = 24, MOST_SWAPS = 64 };

typedef struct OrderSearch {
    const StageModel *model;
    const Cluster *cluster;
    Arena arena;
    int32_t *kind_of; /* [server] */
    int32_t kind_count, servers;
    int32_t *word;    /* [servers] the kinds of the candidate */
    int32_t *devices; /* [device_count] of that order */
    int32_t numbers[MICRO_BATCHES_MOST_NUMBERS], number_count;
    DeviceOrders *orders;
    int32_t priced;
} OrderSearch;

/* Returns whether two servers have equal devices, as many of them, and equal links. */
static bool is_same_kind(const Cluster *cluster, int32_t server, int32_t other) {
    const ClusterServer *a = &cluster->servers[server], *b = &cluster->servers[other];
    return a->type == b->type && a->device_count == b->device_count && a->link == b->link &&
           a->width == b->width;
}

bool device_orders_are_uniform(const Cluster *cluster) {
    for (int32_t s = 1; s < cluster->server_count; s++)
        if (!is_same_kind(cluster, 0, s)) return false;
    return true;
}

/* ---- one order ---- */

/* Keeps a model and its fastest pipelines [count], or closes it where those of others are faster. */
static void keep_model(DeviceOrders *orders, StageModel *model, const PipelineLayout *pipelines,
                       int32_t count) {
    int32_t at = orders->count;
    while (at > 0 && orders->pipelines[at - 1][0].seconds > pipelines[0].seconds) at--;
    if (at == DEVICE_ORDERS_MOST_MODELS) {
        stage_model_close(model);
        return;
    }
    if (orders->count == DEVICE_ORDERS_MOST_MODELS) stage_model_close(orders->models[--orders->count]);
    for (int32_t k = orders->count++; k > at; k--) {
        orders->models[k] = orders->models[k - 1];
        memcpy(orders->pipelines[k], orders->pipelines[k - 1], sizeof orders->pipelines[k]);
        orders->pipeline_counts[k] = orders->pipeline_counts[k - 1];
    }
    orders->models[at] = model;
    memcpy(orders->pipelines[at], pipelines, sizeof orders->pipelines[at]);
    orders->pipeline_counts[at] = count;
}

/* Writes the devices of the word: of each kind the next server. */
static void write_devices(OrderSearch *self) {
    for (int32_t k = 0, devices = 0; k < self->servers; k++) {
        int32_t server = 0, skipped = 0;
        for (int32_t j = 0; j < k; j++) skipped += self->word[j] == self->word[k];
        while (self->kind_of[server] != self->word[k] || skipped-- > 0) server++;
        for (int32_t d = 0; d < self->cluster->servers[server].device_count; d++)
            self->devices[devices++] = self->cluster->servers[server].first_device + d;
    }
}

/* Finds the fastest pipelines of the word, a candidate; `*seconds` is INFINITY without one. */
static AmStatus price_word(OrderSearch *self, double *seconds, AmError *error) {
    StageModel *model;
    PipelineLayout pipelines[DEVICE_ORDERS_EACH];
    int32_t count;
    *seconds = INFINITY;
    if (stop_wanted(&self->model->costs->stop)) return AM_OK;
    write_devices(self);
    self->priced++;
    TRY(stage_model_reorder(&model, self->model, self->devices, self->numbers, self->number_count, error));
    AmStatus status = stage_dp_find(model, pipelines, DEVICE_ORDERS_EACH, &count, NULL, error);
    if (status != AM_OK || count == 0) {
        stage_model_close(model);
        return status;
    }
    *seconds = pipelines[0].seconds;
    keep_model(self->orders, model, pipelines, count);
    return AM_OK;
}

/* ---- all orders ---- */

static void swap(int32_t *a, int32_t *b) {
    int32_t kept = *a;
    *a = *b;
    *b = kept;
}

/* Replaces the word by the next one in lexical order. Returns false after the last. */
static bool next_word(int32_t *word, int32_t count) {
    int32_t k = count - 2, other = count - 1;
    while (k >= 0 && word[k] >= word[k + 1]) k--;
    if (k < 0) return false;
    while (word[other] <= word[k]) other--;
    swap(&word[k], &word[other]);
    for (int32_t a = k + 1, b = count - 1; a < b; a++, b--) swap(&word[a], &word[b]);
    return true;
}

/* Returns the number of different words, at most `most` + 1. */
static int32_t count_words(const int32_t *word, int32_t count, int32_t most) {
    double words = 1;
    for (int32_t k = 0, same = 0; k < count; k++) {
        same = k > 0 && word[k] == word[k - 1] ? same + 1 : 1;
        words *= (double)(k + 1) / same;
    }
    return words > most ? most + 1 : (int32_t)lround(words);
}

/* Finds the kinds of the servers, and the first word. */
static AmStatus open_words(OrderSearch *self, AmError *error) {
    self->servers = self->cluster->server_count;
    self->kind_of = ARENA_ARRAY(&self->arena, int32_t, self->servers);
    self->word = ARENA_ARRAY(&self->arena, int32_t, self->servers);
    self->devices = ARENA_ARRAY(&self->arena, int32_t, self->cluster->device_count);
    if (self->arena.failed) return am_fail_memory(error, self->servers);
    for (int32_t s = 0; s < self->servers; s++) {
        int32_t other = 0;
        while (!is_same_kind(self->cluster, other, s)) other++;
        self->kind_of[s] = other < s ? self->kind_of[other] : self->kind_count++;
        self->word[s] = self->kind_of[s];
    }
    return AM_OK;
}

/* Makes the word in which each kind is one run of all its servers. */
static void make_runs(OrderSearch *self, const int32_t *kinds) {
    int32_t at = 0;
    for (int32_t k = 0; k < self->kind_count; k++)
        for (int32_t s = 0; s < self->servers; s++)
            if (self->kind_of[s] == kinds[k]) self->word[at++] = kinds[k];
}

/* ---- the search ---- */

/* Prices the orders of the servers: all of them where they are few, else the best of runs of equal servers,
 * improved by swaps. `known`: the step of the fastest pipeline in the cluster's order, or INFINITY. */
static AmStatus search_orders(OrderSearch *self, double known, AmError *error) {
    TRY(open_words(self, error));
    if (count_words(self->word, self->servers, MOST_WORDS) <= MOST_WORDS) {
        double seconds;
        while (next_word(self->word, self->servers)) TRY(price_word(self, &seconds, error));
        return AM_OK;
    }
    int32_t *best = ARENA_ARRAY(&self->arena, int32_t, self->servers);
    if (!best) return am_fail_memory(error, self->servers);
    memcpy(best, self->word, sizeof *best * (size_t)self->servers);
    double least = known;
    /* Prices the orders of the kinds, each a run of all its servers; `best` [servers] becomes the fastest. */
    int32_t *kinds = ARENA_ARRAY(&self->arena, int32_t, self->kind_count);
    if (!kinds) return am_fail_memory(error, self->kind_count);
    for (int32_t k = 0; k < self->kind_count; k++) kinds[k] = k;
    for (int32_t run = 0; run < MOST_RUNS && next_word(kinds, self->kind_count); run++) {
        double seconds;
        make_runs(self, kinds);
        TRY(price_word(self, &seconds, error));
        if (seconds >= least) continue;
        least = seconds;
        memcpy(best, self->word, sizeof *best * (size_t)self->servers);
    }
    /* Swaps neighbours of different kinds of the best word as long as that helps. */
    size_t bytes = sizeof *best * (size_t)self->servers;
    int32_t in_vain = 0, end = self->priced + MOST_SWAPS;
    for (int32_t k = 0; in_vain < self->servers && self->priced < end; k = (k + 1) % (self->servers - 1)) {
        double seconds;
        in_vain++;
        if (best[k] == best[k + 1]) continue;
        memcpy(self->word, best, bytes);
        swap(&self->word[k], &self->word[k + 1]);
        TRY(price_word(self, &seconds, error));
        if (seconds >= least) continue;
        least = seconds;
        in_vain = 0;
        memcpy(best, self->word, bytes);
    }
    return AM_OK;
}

AmStatus device_orders_find(DeviceOrders *self, const StageModel *model, const PipelineLayout *known,
                            int32_t known_count, AmError *error) {
    OrderSearch orders = {.model = model, .cluster = model->cluster, .orders = self};
    device_orders_close(self);
    if (device_orders_are_uniform(model->cluster)) return AM_OK;
    /* The numbers of micro-batches of the known pipelines; all numbers where none is known. */
    for (int32_t n = 0; n < model->number_count && known_count == 0; n++)
        orders.numbers[orders.number_count++] = model->numbers[n];
    for (int32_t k = 0; k < known_count; k++) {
        bool is_new = true;
        for (int32_t n = 0; n < orders.number_count; n++)
            is_new &= orders.numbers[n] != known[k].micro_batches;
        if (is_new) orders.numbers[orders.number_count++] = known[k].micro_batches;
    }
    AmStatus status = search_orders(&orders, known_count > 0 ? known[0].seconds : INFINITY, error);
    arena_free(&orders.arena);
    return status;
}

AmStatus device_orders_list(int32_t ***orders, int32_t *count, Arena *arena, const Cluster *cluster,
                            AmError *error) {
    OrderSearch self = {.cluster = cluster};
    int32_t devices = cluster->device_count, *kinds = NULL;
    AmStatus status = AM_OK;
    *count = 0;
    if (device_orders_are_uniform(cluster)) return AM_OK;
    *orders = ARENA_ARRAY(arena, int32_t *, MOST_RUNS);
    TRY_OR_FAIL(open_words(&self, error));
    kinds = ARENA_ARRAY(&self.arena, int32_t, self.kind_count);
    for (int32_t k = 0; kinds && k < self.kind_count; k++) kinds[k] = k;
    if (kinds) make_runs(&self, kinds); /* the first word in lexical order */
    bool are_few = count_words(self.word, self.servers, MOST_RUNS) <= MOST_RUNS;
    for (bool is_left = kinds && *orders; is_left && *count < MOST_RUNS;) {
        if (!are_few) make_runs(&self, kinds);
        self.devices = (*orders)[(*count)++] = ARENA_ARRAY(arena, int32_t, devices);
        if (!self.devices) break;
        write_devices(&self);
        is_left = are_few ? next_word(self.word, self.servers) : next_word(kinds, self.kind_count);
    }
    if (arena->failed || !kinds) status = am_fail_memory(error, devices);
fail:
    arena_free(&self.arena);
    return status;
}

void device_orders_close(DeviceOrders *self) {
    for (int32_t k = 0; k < self->count; k++) stage_model_close(self->models[k]);
    self->count = 0;
}
