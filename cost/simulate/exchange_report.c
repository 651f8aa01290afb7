/* Reports transfers; values of one size between two stages share a line. */
#include "cost/simulate/exchange_report.h"

#include <stdlib.h>

enum { MOST_TOLD = 24 };

static int by_value(const void *a, const void *b) {
    const ToldExchange *x = a, *y = b;
    double left = x->bytes * y->count, right = y->bytes * x->count; /* of one time */
    if (x->sender != y->sender) return x->sender < y->sender ? -1 : 1;
    if (x->receiver != y->receiver) return x->receiver < y->receiver ? -1 : 1;
    return (left > right) - (left < right);
}

static int by_seconds(const void *a, const void *b) {
    const ToldExchange *x = a, *y = b;
    if (x->seconds != y->seconds) return x->seconds > y->seconds ? -1 : 1;
    return by_value(a, b);
}

static int32_t merge(ToldExchange *told, int32_t count) {
    int32_t merged = 0;
    for (int32_t k = 0; k < count; k++) {
        if (merged == 0 || by_value(&told[merged - 1], &told[k]) != 0) {
            told[merged++] = told[k];
            continue;
        }
        told[merged - 1].count += told[k].count;
        told[merged - 1].bytes += told[k].bytes;
        told[merged - 1].seconds += told[k].seconds;
    }
    return merged;
}

AmStatus exchange_report(Text *text, Arena *arena, const Cluster *cluster, ToldExchange *told, int32_t count,
                         const int32_t *device_of, AmError *error) {
    qsort(told, (size_t)count, sizeof *told, by_value);
    count = merge(told, count);
    qsort(told, (size_t)count, sizeof *told, by_seconds);
    if (count > 0) text_append_string(text, "\ntransfers between stages\n");
    for (int32_t k = 0; k < count && k < MOST_TOLD; k++) {
        text_append(text, "from stage %d to %d, %.0f a step of ", told[k].sender, told[k].receiver,
                    told[k].count);
        text_append_bytes_size(text, told[k].count > 0 ? told[k].bytes / told[k].count : 0);
        text_append_string(text, ", ");
        text_append_seconds(text, told[k].seconds);
        text_append_string(text, " in all:\n");
        TRY(exchange_describe(text, arena, cluster, told[k].transfer, device_of, error));
    }
    if (count > MOST_TOLD) text_append(text, "and %d kinds and sizes more\n", count - MOST_TOLD);
    return text->failed ? am_fail_memory(error, 0) : AM_OK;
}
