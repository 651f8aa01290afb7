/* A hash table of prices: open addressing with linear steps, at most half full, doubled when it is fuller. */
#include "planners/problem/price_memo.h"

#define FIRST_CAPACITY 256

typedef struct PriceMemoEntry {
    uint64_t key;
    PlanPrice price;
    bool used;
} PriceMemoEntry;

static PriceMemoEntry *place_of(PriceMemoEntry *entries, int32_t capacity, uint64_t key) {
    for (uint64_t at = key;; at++) {
        PriceMemoEntry *entry = &entries[at & (uint64_t)(capacity - 1)];
        if (!entry->used || entry->key == key) return entry;
    }
}

const PlanPrice *price_memo_find(const PriceMemo *memo, uint64_t key) {
    if (memo->capacity == 0) return NULL;
    const PriceMemoEntry *entry = place_of(memo->entries, memo->capacity, key);
    return entry->used ? &entry->price : NULL;
}

bool price_memo_add(PriceMemo *memo, uint64_t key, const PlanPrice *price) {
    if (2 * memo->count >= memo->capacity) {
        int32_t capacity = memo->capacity ? 2 * memo->capacity : FIRST_CAPACITY;
        PriceMemoEntry *entries = ARENA_ARRAY(memo->arena, PriceMemoEntry, capacity);
        if (!entries) return false;
        for (int32_t k = 0; k < memo->capacity; k++)
            if (memo->entries[k].used) *place_of(entries, capacity, memo->entries[k].key) = memo->entries[k];
        memo->entries = entries;
        memo->capacity = capacity;
    }
    PriceMemoEntry *entry = place_of(memo->entries, memo->capacity, key);
    if (entry->used) return true;
    *entry = (PriceMemoEntry){.key = key, .price = *price, .used = true};
    memo->count++;
    return true;
}
