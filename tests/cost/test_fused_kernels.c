/* Fused kernels of a transformer, in memory and price, and the time of the host for kernels. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cost/cluster/cluster_servers.h"
#include "models/transformer.h"
#include "planners/strategy.h"

static double host_seconds; /* of the host for a kernel */
static bool joins_products, joins_loss, has_plain_softmax, reads_lengths, recomputes_head;
static TransformerOptimizer optimizer = TRANSFORMER_SGD;
static int64_t vocabulary = 1024;
static Strategy given = {.data = 1, .tensor = 1, .stages = 1, .chunks = 1};

/* Simulates a GPT of two layers on A100, one unless the given strategy has more. */
static Simulation simulate(Arena *arena, TransformerFused fused, TransformerRecompute recompute,
                           int64_t sequence, int32_t micro_batches) {
    const TransformerShape shape = {.family = TRANSFORMER_GPT,
                                    .layers = 2,
                                    .width = 1024,
                                    .heads = 16,
                                    .kv_heads = 16,
                                    .ffn = 4096,
                                    .vocabulary = vocabulary,
                                    .sequence = sequence,
                                    .batch = 2,
                                    .type = DTYPE_BF16,
                                    .optimizer = optimizer,
                                    .recompute = recompute,
                                    .fused = fused,
                                    .joins_products = joins_products,
                                    .joins_loss = joins_loss,
                                    .has_plain_softmax = has_plain_softmax,
                                    .reads_lengths = reads_lengths,
                                    .recomputes_all = true,
                                    .recomputes_head = recomputes_head};
    Strategy strategy = given;
    strategy.micro_batches = micro_batches;
    const MicroBatchSettings batching = strategy_batching(&strategy);
    const SimulationOptions options = {.memory_fraction = 0.9};
    AmError error = {0};
    IrModule *module;
    PlanContext *whole;
    const PlanContext *context;
    Cluster *cluster;
    PlanCandidate priced;
    Simulation *simulation;
    json_t *description;
    const ClusterServers servers = {.device_type = "A100-80GB",
                                    .devices = given.stages * (given.context > 1 ? given.context : 1),
                                    .per_server = 8};
    if (transformer_module(&module, &shape, &error) != AM_OK ||
        plan_context_of(&whole, module, NULL, &error) != AM_OK ||
        plan_context_for(&context, whole, &batching, &error) != AM_OK ||
        cluster_of_servers(&description, &servers, &error) != AM_OK)
        fail_msg("%s", error.text);
    json_t *type = json_object_get(json_object_get(description, "device_types"), "A100-80GB");
    json_object_set_new(type, "host_kernel_seconds", json_real(host_seconds));
    if (cluster_from_json(&cluster, arena, description, "test", &error) != AM_OK ||
        strategy_simulate(&priced, arena, context, cluster, &strategy, 0.9, &error) != AM_OK ||
        simulate_plan(&simulation, arena, context, priced.plan, cluster, &options, &error) != AM_OK)
        fail_msg("%s", error.text);
    Simulation copy = *simulation;
    json_decref(description);
    cluster_free(cluster);
    plan_context_free(whole);
    return copy;
}

static void fused_kernels_are_faster_and_smaller(void **state) {
    (void)state;
    Arena arena = {0};
    for (int32_t micro_batches = 1; micro_batches <= 2; micro_batches++) {
        double seconds[3];
        int64_t bytes[3];
        for (int32_t fused = 0; fused < 3; fused++) {
            Simulation simulation =
                simulate(&arena, (TransformerFused)fused, TRANSFORMER_RECOMPUTE_NONE, 2048, micro_batches);
            seconds[fused] = simulation.step_seconds;
            bytes[fused] = simulation.fit.needed_bytes;
        }
        assert_true(seconds[1] < 0.9 * seconds[0]);
        assert_true(seconds[2] < 0.9 * seconds[1]);
        assert_true(bytes[1] <= bytes[0]);
        assert_true((double)bytes[2] < 0.7 * (double)bytes[1]);
    }
    arena_free(&arena);
}

/* Without scores, the memory beside the weights grows in proportion to the sequence. */
static void fused_attention_keeps_no_scores(void **state) {
    (void)state;
    Arena arena = {0};
    const TransformerRecompute kinds[] = {TRANSFORMER_RECOMPUTE_NONE, TRANSFORMER_RECOMPUTE_FULL};
    for (int32_t k = 0; k < 2; k++) {
        double bytes[3];
        for (int32_t s = 0; s < 3; s++)
            bytes[s] = (double)simulate(&arena, TRANSFORMER_FUSES_ATTENTION, kinds[k], 4096 << s, 1)
                           .fit.needed_bytes;
        assert_true(bytes[2] - bytes[1] < 2.1 * (bytes[1] - bytes[0]));
        double whole = (double)simulate(&arena, TRANSFORMER_FUSES_NORMS, kinds[k], 4096, 1).fit.needed_bytes;
        assert_true(whole > 1.5 * bytes[0]);
    }
    arena_free(&arena);
}

static double joined_seconds(Arena *arena, bool products, bool loss, int64_t *bytes) {
    joins_products = products;
    joins_loss = loss;
    Simulation simulation = simulate(arena, TRANSFORMER_FUSES_NORMS, TRANSFORMER_RECOMPUTE_NONE, 512, 1);
    joins_products = joins_loss = false;
    *bytes = simulation.fit.needed_bytes;
    return simulation.step_seconds;
}

/* Three products of width 1024 as one of 3072: it has more of the peak, and is launched once. Beside it are
 * five products of a layer. */
static void joined_products_are_faster(void **state) {
    (void)state;
    Arena arena = {0};
    int64_t bytes[2];
    double apart = joined_seconds(&arena, false, false, &bytes[0]);
    double joined = joined_seconds(&arena, true, false, &bytes[1]);
    assert_true(joined < 0.98 * apart && joined > 0.8 * apart);
    double loss = joined_seconds(&arena, false, true, &bytes[1]);
    assert_true(loss < apart && bytes[1] <= bytes[0]);
    arena_free(&arena);
}

/* A step of kernels that take less than the host's time for them takes that time; a large one hides it. */
static void the_host_limits_small_kernels(void **state) {
    (void)state;
    Arena arena = {0};
    const struct {
        int64_t sequence;
        double least, most;
    } cases[] = {{128, 4, 100}, {16384, 1, 1.04}};
    for (int32_t k = 0; k < 2; k++) {
        host_seconds = 0;
        double device =
            simulate(&arena, TRANSFORMER_FUSES_NORMS, TRANSFORMER_RECOMPUTE_NONE, cases[k].sequence, 2)
                .step_seconds;
        host_seconds = 1e-4;
        double both =
            simulate(&arena, TRANSFORMER_FUSES_NORMS, TRANSFORMER_RECOMPUTE_NONE, cases[k].sequence, 2)
                .step_seconds;
        host_seconds = 2e-4;
        double slower =
            simulate(&arena, TRANSFORMER_FUSES_NORMS, TRANSFORMER_RECOMPUTE_NONE, cases[k].sequence, 2)
                .step_seconds;
        assert_true(both >= cases[k].least * device && both <= cases[k].most * device);
        if (k == 0) assert_true(slower > 1.9 * both && slower <= 2 * both);
    }
    host_seconds = 0;
    arena_free(&arena);
}

/* Kernels begin in order: where the host and the device have equal work in all, small kernels still wait for
 * the host, and large ones for the device. The step takes less than both works one after the other. */
static void kernels_wait_for_the_host_in_order(void **state) {
    (void)state;
    Arena arena = {0};
    double seconds[4];
    const double host[] = {0, 1e-2, 2e-2};
    for (int32_t k = 0; k < 4; k++) {
        host_seconds = k < 3 ? host[k] : 1e-2 * seconds[0] / (seconds[2] - seconds[1]);
        seconds[k] =
            simulate(&arena, TRANSFORMER_FUSES_NORMS, TRANSFORMER_RECOMPUTE_NONE, 2048, 1).step_seconds;
    }
    host_seconds = 0;
    assert_true(seconds[3] > 1.02 * seconds[0] && seconds[3] < 2 * seconds[0]);
    arena_free(&arena);
}

/* A host that reads lengths in front of each attention cannot enqueue its kernels ahead: the device waits for
 * the first of them at least, in both layers. */
static void the_host_waits_for_lengths(void **state) {
    (void)state;
    Arena arena = {0};
    const TransformerFused kinds[] = {TRANSFORMER_FUSES_NORMS, TRANSFORMER_FUSES_ATTENTION};
    double seconds[2];
    host_seconds = 1e-4;
    for (int32_t k = 0; k < 2; k++) {
        for (int32_t reads = 0; reads < 2; reads++) {
            reads_lengths = reads;
            seconds[reads] = simulate(&arena, kinds[k], TRANSFORMER_RECOMPUTE_NONE, 16384, 1).step_seconds;
        }
        double waiting = (seconds[1] - seconds[0]) / (2 * host_seconds);
        assert_true(waiting > 0.999 && waiting < 5);
    }
    reads_lengths = false;
    host_seconds = 0;
    arena_free(&arena);
}

/* Logits that are computed again take the time of one more product of 4096 rows. */
static void recomputed_logits_take_a_product(void **state) {
    (void)state;
    Arena arena = {0};
    double seconds[2], product = 2.0 * 4096 * 1024 * 32768 / 312e12;
    vocabulary = 32768;
    for (int32_t k = 0; k < 2; k++) {
        recomputes_head = k;
        seconds[k] =
            simulate(&arena, TRANSFORMER_FUSES_NORMS, TRANSFORMER_RECOMPUTE_FULL, 2048, 1).step_seconds;
    }
    recomputes_head = false;
    vocabulary = 1024;
    assert_true(seconds[1] - seconds[0] > product && seconds[1] - seconds[0] < 3 * product);
    arena_free(&arena);
}

/* A softmax of separate operators is slower, and keeps its result in f32 beside the 16-bit weights. */
static void plain_softmax_keeps_more(void **state) {
    (void)state;
    Arena arena = {0};
    Simulation fused = simulate(&arena, TRANSFORMER_FUSES_NORMS, TRANSFORMER_RECOMPUTE_NONE, 2048, 1);
    has_plain_softmax = true;
    Simulation plain = simulate(&arena, TRANSFORMER_FUSES_NORMS, TRANSFORMER_RECOMPUTE_NONE, 2048, 1);
    Simulation flash = simulate(&arena, TRANSFORMER_FUSES_ATTENTION, TRANSFORMER_RECOMPUTE_NONE, 2048, 1);
    has_plain_softmax = false;
    int64_t wide = 4 * 2 * 16 * 2048LL * 2048; /* bytes of a layer's scores in f32 */
    assert_true(plain.fit.needed_bytes - fused.fit.needed_bytes > 19 * wide / 10);
    assert_true(plain.step_seconds > 1.1 * fused.step_seconds);
    assert_true(flash.fit.needed_bytes < fused.fit.needed_bytes);
    arena_free(&arena);
}

/* Bytes that a system keeps count once, on each device or on those of the last stage. */
static void kept_bytes_are_needed(void **state) {
    (void)state;
    Arena arena = {0};
    given.stages = 2;
    int64_t plain[2], kept[2];
    for (int32_t k = 0; k < 2; k++) {
        given.kept_bytes = 1000 * k;
        given.kept_outputs = 20000 * k;
        Simulation simulation = simulate(&arena, TRANSFORMER_FUSES_NORMS, TRANSFORMER_RECOMPUTE_NONE, 128, 2);
        for (int32_t d = 0; d < 2; d++)
            (k ? kept : plain)[d] = simulation.devices[d].needed_bytes -
                                    simulation.devices[d].memory.peak_bytes -
                                    simulation.devices[d].channel_bytes;
    }
    given = (Strategy){.data = 1, .tensor = 1, .stages = 1, .chunks = 1};
    assert_true(plain[0] == 0 && plain[1] == 0 && kept[0] == 1000 && kept[1] == 21000);
    arena_free(&arena);
}

/* The last stage runs the forward and the backward pass of a micro-batch in turns. With a large vocabulary it
 * needs no more memory for their values than one stage that runs both, and a slot for the shares of all words
 * between them. */
static void joined_loops_share_memory(void **state) {
    (void)state;
    Arena arena = {0};
    int64_t bytes[2];
    vocabulary = 65536;
    for (int32_t k = 0; k < 2; k++) {
        given.stages = 1 + k;
        given.schedule = SCHEDULE_1F1B;
        bytes[k] = simulate(&arena, TRANSFORMER_FUSES_NORMS, TRANSFORMER_RECOMPUTE_FULL, 512, 2)
                       .devices[k]
                       .memory.activation_bytes;
    }
    int64_t slot = (int64_t)sizeof(float) * 512 * vocabulary;
    given = (Strategy){.data = 1, .tensor = 1, .stages = 1, .chunks = 1};
    vocabulary = 1024;
    assert_true(bytes[1] <= bytes[0] + slot);
    arena_free(&arena);
}

/* ZeRO stores the optimizer's state in shards over devices that share a sequence, too. */
static void zero_shards_over_the_context(void **state) {
    (void)state;
    Arena arena = {0};
    int64_t bytes[2];
    optimizer = TRANSFORMER_ADAM;
    given.context = 2;
    for (given.zero = 0; given.zero < 2; given.zero++)
        bytes[given.zero] = simulate(&arena, TRANSFORMER_FUSES_ATTENTION, TRANSFORMER_RECOMPUTE_NONE, 512, 1)
                                .devices[0]
                                .memory.optimizer_bytes;
    given = (Strategy){.data = 1, .tensor = 1, .stages = 1, .chunks = 1};
    optimizer = TRANSFORMER_SGD;
    assert_true((double)bytes[1] < 0.55 * (double)bytes[0]);
    arena_free(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fused_kernels_are_faster_and_smaller),
        cmocka_unit_test(fused_attention_keeps_no_scores),
        cmocka_unit_test(joined_products_are_faster),
        cmocka_unit_test(the_host_limits_small_kernels),
        cmocka_unit_test(recomputed_logits_take_a_product),
        cmocka_unit_test(the_host_waits_for_lengths),
        cmocka_unit_test(kernels_wait_for_the_host_in_order),
        cmocka_unit_test(plain_softmax_keeps_more),
        cmocka_unit_test(kept_bytes_are_needed),
        cmocka_unit_test(joined_loops_share_memory),
        cmocka_unit_test(zero_shards_over_the_context),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
