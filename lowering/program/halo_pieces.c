/* Pieces of a halo_exchange (program.h): parts lie one after another along the
 * dimension, in group order; a piece is where one member's part and another
 * member's range overlap:
 *
 *     part from  |-------------|
 *     range to          |-------------|
 *     piece             |------|
 */
#include "lowering/program/program.h"

int64_t program_halo_piece(const ProgramMovement *movement, int32_t from, int32_t to, int64_t *start,
                           int64_t *part_start) {
    *part_start = 0;
    for (int32_t k = 0; k < from; k++) *part_start += movement->parts[k];
    int64_t part_end = *part_start + movement->parts[from];
    int64_t range_start = movement->range_start[to], range_end = range_start + movement->range_extent[to];
    *start = range_start > *part_start ? range_start : *part_start;
    int64_t end = range_end < part_end ? range_end : part_end;
    return end > *start ? end - *start : 0;
}
