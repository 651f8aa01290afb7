/* Gathers of weights in a sample of layers run beside as many layers as in the module.
 *
 * A sample has layer 0, and one layer that stands for 15. In the module the gather of layer 1 runs beside
 * layer 0, and those of layers 2 to 15 beside layers 1 to 14.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cost/step/device_streams.h"

enum { LAYERS = 15, GATHER = 10, COMPUTE = 30 }; /* of one layer, in ticks */

static const StreamLayers of_gather = {LAYERS, true}, of_last = {1, true}, of_other = {1, false};

static void open(DeviceStreams *streams, Arena *arena) {
    AmError error = {0};
    assert_int_equal(streams_open(streams, arena, 8, true, &error), AM_OK);
}

static Ticks communicate(DeviceStreams *streams, int32_t step, Ticks ticks, StreamLayers layers) {
    Moment start = streams_ready_for_layers(streams, ticks, layers);
    streams_communicate(streams, step, start, ticks, layers, -1);
    return start.at;
}

/* A sum of layer 0 waits for the gather of layer 1 alone. */
static void test_a_sum_waits_for_one_gather(void **state) {
    (void)state;
    Arena arena = {0};
    DeviceStreams streams;
    open(&streams, &arena);
    communicate(&streams, 0, LAYERS * GATHER, of_gather);
    assert_float_equal(communicate(&streams, 1, 1, of_other), GATHER, 0);
    assert_float_equal(streams_ready(&streams, 0).at, GATHER, 0);
    arena_free(&arena);
}

/* The gather of a single layer after the 15 takes the time of those that were put off. */
static void test_the_others_run_beside_their_layers(void **state) {
    (void)state;
    Arena arena = {0};
    DeviceStreams streams;
    open(&streams, &arena);
    communicate(&streams, 0, LAYERS * GATHER, of_gather);
    streams.of_layers = LAYERS;
    streams_compute(&streams, streams_ready(&streams, 0), LAYERS * COMPUTE, -1);
    Ticks start = communicate(&streams, 1, GATHER, of_last);
    assert_float_equal(streams.network.at - start, LAYERS * GATHER, 0);
    assert_float_equal(streams_ready(&streams, 1).at - start, GATHER, 0);
    assert_float_equal(streams.totals.communicated, (LAYERS + 1) * GATHER, 0);
    arena_free(&arena);
}

/* Gathers that were put off take time at the end, unless the network was idle for as long. */
static void test_no_gather_is_lost(void **state) {
    (void)state;
    Arena arena = {0};
    for (int32_t computes = 0; computes < 2; computes++) {
        DeviceStreams streams;
        open(&streams, &arena);
        communicate(&streams, 0, LAYERS * GATHER, of_gather);
        if (computes) streams_compute(&streams, streams_ready(&streams, 0), LAYERS * COMPUTE, -1);
        Ticks start = communicate(&streams, 1, 1, of_other);
        streams_join(&streams);
        assert_float_equal(streams.compute.at, computes ? start + 1 : LAYERS * GATHER + 1, 0);
    }
    arena_free(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_sum_waits_for_one_gather),
                                       cmocka_unit_test(test_the_others_run_beside_their_layers),
                                       cmocka_unit_test(test_no_gather_is_lost)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
