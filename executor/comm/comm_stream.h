/* The data from one rank to another in a collective or transfer, as a stream of bytes.
 *
 * A stream is a list of boxes: parts of arrays, in row-major order, each beginning at a multiple of 16
 * bytes. Sender and receiver list the same boxes in the same order, each with the layout of its own arrays.
 * So a stream can be cut anywhere at a multiple of 16 and sent in pieces of one size, for any number and
 * shapes of arrays.
 */
#ifndef EXECUTOR_COMM_COMM_STREAM_H
#define EXECUTOR_COMM_COMM_STREAM_H

#include "executor/comm/comm.h"

typedef struct CommBox {
    int32_t array; /* number of the operand or result */
    Dtype type;
    int64_t start, bytes;   /* in the stream */
    int64_t at, row_bytes;  /* of the first byte in the array; of each run of bytes */
    int32_t rank;           /* number of dimensions that step from run to run */
    int64_t *sizes, *steps; /* [rank] of these dimensions, steps in bytes; the last one is the fastest */
} CommBox;

typedef struct CommStream {
    Arena *arena;   /* of the boxes */
    CommBox *boxes; /* [box_count] */
    int32_t box_count, box_capacity;
    int64_t bytes;
    bool of_results; /* boxes of the call's results; else of its operands */
} CommStream;

/* Describes the streams from this rank to the member at `position` of a collective's group (itself included),
 * and back. In reductions every member sends each the part that it reduces. In an all_reduce each member
 * reduces a part of all arrays together: see comm_stream_reduced(). */
AmStatus comm_stream_sent(CommStream *stream, Arena *arena, const CommCall *call, int32_t position,
                          AmError *error);
AmStatus comm_stream_received(CommStream *stream, Arena *arena, const CommCall *call, int32_t position,
                              AmError *error);
/* Finds the pieces of a transfer that go to rank `peer`, or come from it. */
AmStatus comm_stream_pieces(CommStream *stream, Arena *arena, const CommCall *call, int32_t peer,
                            bool of_results, AmError *error);

/* Describes the part of an all_reduce that the member at `position` reduces, in operands or results. Small
 * ones are reduced by every member as a whole: comm_reduces_whole(). */
AmStatus comm_stream_reduced(CommStream *stream, Arena *arena, const CommCall *call, int32_t position,
                             bool of_results, AmError *error);
bool comm_reduces_whole(const CommCall *call);

/* Returns whether bytes [at, at + count) are one run of memory. */
bool comm_stream_is_run(const CommStream *stream, int64_t at, int64_t count);
/* Returns the address of byte `at` of the stream, and the length of the contiguous run from it (`run`); NULL:
 * padding. `*box`: a box that does not begin after `at`; advanced. */
char *comm_stream_place(const CommStream *stream, const CommCall *call, int64_t at, int64_t *run,
                        int32_t *box);
/* Copies bytes [at, at + count) of the stream to and from one piece of memory; `box` is one that does not
 * begin after `at`. */
void comm_stream_pack(const CommStream *stream, const CommCall *call, int64_t at, int64_t count, int32_t box,
                      char *to);
void comm_stream_unpack(const CommStream *stream, const CommCall *call, int64_t at, int64_t count,
                        const char *from);
/* Copies from one stream to another with the same boxes, of the same call. */
void comm_stream_copy(const CommStream *from, const CommStream *to, const CommCall *call);

#endif
