/* Reports transfers; values of one size between two stages share a line. */
#include "cost/simulate/transfer_report.h"

#include <stdlib.h>

enum { MOST_ROWS = 24 };

static int by_value(const void *a, const void *b) {
    const TransferRow *x = a, *y = b;
    double left = x->bytes * y->count, right = y->bytes * x->count; /* of one time */
    if (x->sender != y->sender) return x->sender < y->sender ? -1 : 1;
    if (x->receiver != y->receiver) return x->receiver < y->receiver ? -1 : 1;
    return (left > right) - (left < right);
}

static int by_seconds(const void *a, const void *b) {
    const TransferRow *x = a, *y = b;
    if (x->seconds != y->seconds) return x->seconds > y->seconds ? -1 : 1;
    return by_value(a, b);
}

AmStatus transfer_report(Text *text, Arena *arena, const Cluster *cluster, TransferRow *rows, int32_t count,
                         const int32_t *device_of, AmError *error) {
    qsort(rows, (size_t)count, sizeof *rows, by_value);
    /* Equal rows are neighbours, and become one. */
    int32_t merged = 0;
    for (int32_t k = 0; k < count; k++) {
        if (merged == 0 || by_value(&rows[merged - 1], &rows[k]) != 0) {
            rows[merged++] = rows[k];
            continue;
        }
        rows[merged - 1].count += rows[k].count;
        rows[merged - 1].bytes += rows[k].bytes;
        rows[merged - 1].seconds += rows[k].seconds;
    }
    count = merged;
    qsort(rows, (size_t)count, sizeof *rows, by_seconds);
    if (count > 0) text_append_string(text, "\ntransfers between stages\n");
    for (int32_t k = 0; k < count && k < MOST_ROWS; k++) {
        text_append(text, "from stage %d to %d, %.0f a step of ", rows[k].sender, rows[k].receiver,
                    rows[k].count);
        text_append_bytes_size(text, rows[k].count > 0 ? rows[k].bytes / rows[k].count : 0);
        text_append_string(text, ", ");
        text_append_seconds(text, rows[k].seconds);
        text_append_string(text, " in all:\n");
        TRY(transfer_describe(text, arena, cluster, rows[k].transfer, device_of, error));
    }
    if (count > MOST_ROWS) text_append(text, "and %d kinds and sizes more\n", count - MOST_ROWS);
    return text->failed ? am_fail_memory(error, 0) : AM_OK;
}
