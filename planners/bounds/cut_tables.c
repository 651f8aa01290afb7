/* Tables of the work at each place of the forward spine, by sets of classes.
 *
 * Items of equal seconds form a class, and many places have the same classes: seconds are kept once for each
 * set of classes and width, and places refer to sets. An item whose border may divide it belongs to the sets
 * across the borders that follow its first place, too.
 */
#include "planners/bounds/cut_search.h"

enum { LONGEST = 8 /* places between borders of one item; items beyond are on any stage */ };

typedef struct Filler {
    CutTables *tables;
    Arena *arena;
    int32_t *first, *next; /* [place], [placed]: lists of the items at a place */
    int32_t *slots, slot_count;
} Filler;

/* Returns the set of the members from `first_member` on. A set of the same classes is used again, and then
 * has these members. */
static int32_t find_place_set(Filler *self, int32_t first_member) {
    CutTables *tables = self->tables;
    PlaceSet set = {.first_member = first_member, .member_count = tables->member_count - first_member};
    for (int32_t k = first_member; k < tables->member_count; k++)
        set.signature += bound_scramble((uint64_t)tables->members[k] + 1);
    int32_t slot = (int32_t)(set.signature % (uint64_t)self->slot_count);
    for (; self->slots[slot] >= 0; slot = (slot + 1) % self->slot_count) {
        const PlaceSet *other = &tables->sets[self->slots[slot]];
        if (other->signature != set.signature || other->member_count != set.member_count) continue;
        tables->member_count = first_member;
        return self->slots[slot];
    }
    ARENA_RESERVE(self->arena, tables->sets, tables->set_count, tables->set_capacity);
    if (self->arena->failed) return 0;
    self->slots[slot] = tables->set_count;
    tables->sets[tables->set_count] = set;
    return tables->set_count++;
}

/* Adds the items that begin at a place: all, or those that cross the border after `border`. */
static void add_members(Filler *self, int32_t place, int32_t border) {
    CutTables *tables = self->tables;
    for (int32_t k = self->first[place]; k >= 0; k = self->next[k]) {
        const Placed *placed = &tables->work->placed[k];
        if (border >= 0 && placed->borders.end <= border) continue;
        ARENA_RESERVE(self->arena, tables->members, tables->member_count, tables->member_capacity);
        if (self->arena->failed) return;
        tables->members[tables->member_count++] = placed->class;
    }
}

/* Chains the items at each place, and finds the sets there and across the borders that follow. */
static void find_place_sets(Filler *self) {
    CutTables *tables = self->tables;
    const CutWork *work = tables->work;
    for (int32_t p = 0; p < work->places; p++) self->first[p] = -1;
    tables->longest = 1;
    for (int32_t k = 0; k < work->placed_count; k++) {
        const Placed *placed = &work->placed[k];
        int32_t length = placed->borders.end - placed->borders.first;
        if (!placed->is_placed || length > LONGEST) {
            tables->unplaced[placed->class]++;
            tables->divisible[placed->class] += length > 0;
            continue;
        }
        if (length > tables->longest) tables->longest = length;
        self->next[k] = self->first[placed->borders.first];
        self->first[placed->borders.first] = k;
    }
    for (int32_t p = 0; p < work->places && !self->arena->failed; p++) {
        int32_t first = tables->member_count;
        add_members(self, p, -1);
        tables->at[p] = find_place_set(self, first);
        for (int32_t k = 0; k < tables->longest; k++) {
            first = tables->member_count;
            for (int32_t q = p - k > 0 ? p - k : 0; q <= p; q++) add_members(self, q, p);
            tables->across[p * tables->longest + k] = find_place_set(self, first);
        }
    }
}

/* Finds the first places of stages whose weights fit. A stage of the places p .. q - 1 keeps all items that
 * begin in it, except those that a border at q or later may divide. */
static AmStatus find_first_places(CutTables *tables, Arena *arena, AmError *error) {
    const CutWork *work = tables->work;
    int32_t row = work->places + 1;
    double *before = ARENA_ARRAY(arena, double, row + 1); /* [p] of items that begin before place p */
    double *inside = ARENA_ARRAY(arena, double, row + 1); /* [q] of items that end before place q */
    int32_t *first = ARENA_ARRAY(arena, int32_t, work->width_count * row);
    if (arena->failed) return am_fail_memory(error, row);
    for (int32_t k = 0; k < work->placed_count; k++) {
        const Placed *placed = &work->placed[k];
        if (placed->kept.end >= work->places) continue;
        double bytes = placed->kept_bytes[0] + (work->offloads_optimizer ? 0 : placed->kept_bytes[1]);
        before[placed->kept.first + 1] += bytes;
        inside[placed->kept.end + 1] += bytes;
    }
    for (int32_t p = 1; p < row; p++) {
        before[p] += before[p - 1];
        inside[p] += inside[p - 1];
    }
    for (int32_t w = 0; w < work->width_count; w++)
        for (int32_t q = 1; q < row; q++) {
            int32_t *p = &first[w * row + q];
            *p = first[w * row + q - 1];
            while (*p < q && inside[q] - before[*p] > work->memory[w]) (*p)++;
        }
    for (int32_t k = 0; k < work->width_count * row && !tables->first_places; k++)
        if (first[k] > 0) tables->first_places = first;
    return AM_OK;
}

void class_seconds_add(ClassSeconds *sum, const ClassSeconds *seconds) {
    for (int32_t pass = 0; pass < PATH_PASSES; pass++)
        for (int32_t order = 0; order < BOUND_ORDERS; order++)
            sum->of[pass][order] += seconds->of[pass][order];
}

AmStatus cut_tables_create(CutTables **created, Arena *arena, const CutWork *work, AmError *error) {
    CutTables *tables = *created = ARENA_ARRAY(arena, CutTables, 1);
    if (!tables) return am_fail_memory(error, 1);
    *tables = (CutTables){.work = work,
                          .at = ARENA_ARRAY(arena, int32_t, work->places + 1),
                          .across = ARENA_ARRAY(arena, int32_t, work->places * LONGEST + 1),
                          .unplaced = ARENA_ARRAY(arena, int32_t, work->class_count + 1),
                          .divisible = ARENA_ARRAY(arena, int32_t, work->class_count + 1)};
    Filler filler = {.tables = tables,
                     .arena = arena,
                     .first = ARENA_ARRAY(arena, int32_t, work->places + 1),
                     .next = ARENA_ARRAY(arena, int32_t, work->placed_count + 1),
                     .slot_count = 2 * work->places * (LONGEST + 1) + 1};
    filler.slots = ARENA_ARRAY(arena, int32_t, filler.slot_count);
    if (arena->failed) return am_fail_memory(error, work->places);
    for (int32_t k = 0; k < filler.slot_count; k++) filler.slots[k] = -1;
    find_place_sets(&filler);
    if (work->memory) TRY(find_first_places(tables, arena, error));
    int32_t widths = work->width_count;
    tables->seconds = ARENA_ARRAY(arena, ClassSeconds, tables->set_count * widths + 1);
    tables->all = ARENA_ARRAY(arena, ClassSeconds, widths + 1);
    if (arena->failed) return am_fail_memory(error, tables->set_count);
    for (int32_t k = 0; k < work->placed_count; k++)
        for (int32_t w = 0; w < widths; w++)
            class_seconds_add(&tables->all[w], &work->seconds[work->placed[k].class * widths + w]);
    for (int32_t b = 0; b < tables->set_count; b++)
        for (int32_t k = 0; k < tables->sets[b].member_count; k++)
            for (int32_t w = 0; w < widths; w++) {
                int32_t class = tables->members[tables->sets[b].first_member + k];
                class_seconds_add(&tables->seconds[b * widths + w], &work->seconds[class * widths + w]);
            }
    return AM_OK;
}
