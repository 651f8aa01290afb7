/* Prices as entries of a hash table (base/open_table.h). */
#include "planners/problem/price_memo.h"

typedef struct PriceMemoEntry {
    OpenEntry entry;
    PlanPrice price;
} PriceMemoEntry;

const PlanPrice *price_memo_find(const PriceMemo *memo, uint64_t key) {
    const PriceMemoEntry *found = open_table_find(memo, sizeof *found, key);
    return found ? &found->price : NULL;
}

bool price_memo_add(PriceMemo *memo, uint64_t key, const PlanPrice *price) {
    const PriceMemoEntry made = {.entry.key = key, .price = *price};
    return open_table_add(memo, sizeof made, &made.entry);
}
