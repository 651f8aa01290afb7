/* Dinic's algorithm: breadth-first levels, then augmenting paths along increasing levels. Paths are followed
 * with an explicit stack, because graphs of thousands of operators have long chains. */
#include "base/min_cut.h"

#include <string.h>

void min_cut_open(MinCut *self, Arena *arena, int32_t node_count) {
    *self = (MinCut){.arena = arena,
                     .node_count = node_count,
                     .first = ARENA_ARRAY(arena, int32_t, node_count + 1),
                     .level = ARENA_ARRAY(arena, int32_t, node_count + 1),
                     .at = ARENA_ARRAY(arena, int32_t, node_count + 1),
                     .queue = ARENA_ARRAY(arena, int32_t, node_count + 1)};
    if (!arena->failed) memset(self->first, -1, sizeof *self->first * (size_t)node_count);
}

static bool make_room(MinCut *self) {
    if (self->edge_count + 2 <= self->capacity) return true;
    size_t before = (size_t)self->capacity, after = before ? 2 * before : 64;
    self->next = arena_grow(self->arena, self->next, sizeof *self->next * before, sizeof *self->next * after);
    self->to = arena_grow(self->arena, self->to, sizeof *self->to * before, sizeof *self->to * after);
    self->room = arena_grow(self->arena, self->room, sizeof *self->room * before, sizeof *self->room * after);
    if (self->arena->failed) return false;
    self->capacity = (int32_t)after;
    return true;
}

static void add_half(MinCut *self, int32_t from, int32_t to, int64_t capacity) {
    int32_t edge = self->edge_count++;
    self->to[edge] = to;
    self->room[edge] = capacity;
    self->next[edge] = self->first[from];
    self->first[from] = edge;
}

void min_cut_add(MinCut *self, int32_t from, int32_t to, int64_t capacity) {
    if (self->arena->failed || !make_room(self)) return;
    add_half(self, from, to, capacity);
    add_half(self, to, from, 0);
}

/* Sets the distance of each node from the source over edges with room; -1 where there is no path. */
static void find_levels(MinCut *self, int32_t source) {
    int32_t count = 0;
    for (int32_t n = 0; n < self->node_count; n++) self->level[n] = -1;
    self->level[source] = 0;
    self->queue[count++] = source;
    for (int32_t k = 0; k < count; k++) {
        int32_t node = self->queue[k];
        for (int32_t e = self->first[node]; e >= 0; e = self->next[e]) {
            if (self->room[e] == 0 || self->level[self->to[e]] >= 0) continue;
            self->level[self->to[e]] = self->level[node] + 1;
            self->queue[count++] = self->to[e];
        }
    }
}

/* Sends as much as fits along the path of edges in `queue` [length]. */
static void augment(MinCut *self, int32_t length) {
    int64_t least = MIN_CUT_UNLIMITED;
    for (int32_t k = 0; k < length; k++)
        if (self->room[self->queue[k]] < least) least = self->room[self->queue[k]];
    for (int32_t k = 0; k < length; k++) {
        self->room[self->queue[k]] -= least;
        self->room[self->queue[k] ^ 1] += least;
    }
}

/* Sends flow along paths of increasing levels until no such path is left. */
static void send_flow(MinCut *self, int32_t source, int32_t sink) {
    int32_t length = 0, node = source;
    memcpy(self->at, self->first, sizeof *self->at * (size_t)self->node_count);
    for (;;) {
        if (node == sink) {
            augment(self, length);
            length = 0;
            node = source;
            continue;
        }
        int32_t e = self->at[node];
        while (e >= 0 && (self->room[e] == 0 || self->level[self->to[e]] != self->level[node] + 1))
            e = self->next[e];
        self->at[node] = e;
        if (e >= 0) {
            self->queue[length++] = e;
            node = self->to[e];
        } else if (node == source) {
            return;
        } else { /* a dead end: no later path enters it */
            self->level[node] = -1;
            node = self->to[self->queue[--length] ^ 1];
        }
    }
}

void min_cut_find(MinCut *self, int32_t source, int32_t sink) {
    if (self->arena->failed) return;
    for (find_levels(self, source); self->level[sink] >= 0; find_levels(self, source))
        send_flow(self, source, sink);
}

bool min_cut_is_source_side(const MinCut *self, int32_t node) {
    return self->level[node] >= 0;
}
