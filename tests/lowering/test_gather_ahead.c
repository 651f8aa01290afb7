/* Gathers of stored weights begin before the steps that precede their users, within a limit, and no
 * other instruction moves: on random programs, and on a model whose weights are stored in shards. */
/* labels: threads */
#include "tests/support/model_case.h"

#include "base/random.h"
#include "cost/simulate/simulate.h"
#include "lowering/passes/gather_ahead.h"
#include "lowering/spmd/ranks.h"
#include "planners/single_stage/single_stage_search.h"

enum { MOST = 160, MIB = 1 << 20 };

/* Weights, each cast and gathered for one user, and users in a chain. */
typedef struct Made {
    IrModule module;
    IrInstruction whole[MOST];
    Mesh mesh;
    Program program;
    ProgramGraph graph;
    ProgramValue values[MOST];
    ProgramInstruction instructions[MOST];
    int32_t operands[MOST][2], first[MOST + 1], producers[2 * MOST], order[MOST];
    int32_t first_user[MOST + 1], users[2 * MOST], leader[MOST];
    int64_t sizes[MOST];
    bool late[MOST];
    int32_t count;
} Made;

static ProgramCollective gather = {.kind = PROGRAM_ALL_GATHER}, sum = {.kind = PROGRAM_ALL_REDUCE};

static int32_t add(Made *self, const int32_t *producers, int32_t count, int64_t mebibytes,
                   const ProgramCollective *collective) {
    int32_t i = self->count++;
    self->sizes[i] = mebibytes * MIB;
    self->whole[i].shape = (IrShape){.type = DTYPE_S8, .rank = 1, .dimensions = &self->sizes[i]};
    self->values[i] =
        (ProgramValue){.shape = self->whole[i].shape, .origin = i, .instruction = i, .storage = i};
    self->first[i + 1] = self->first[i];
    for (int32_t k = 0; k < count; k++) {
        self->operands[i][k] = producers[k];
        self->producers[self->first[i + 1]++] = producers[k];
    }
    self->instructions[i] = (ProgramInstruction){.kind = collective ? PROGRAM_COLLECTIVE : PROGRAM_COMPUTE,
                                                 .opcode = IR_CONVERT,
                                                 .operand_count = count,
                                                 .operands = self->operands[i],
                                                 .result_count = 1,
                                                 .first_result = i,
                                                 .collective = collective};
    self->order[i] = self->leader[i] = i;
    return i;
}

static void open_program(Made *self, Arena *arena) {
    *self = (Made){.module.instructions = self->whole,
                   .program = {.arena = arena,
                               .module = &self->module,
                               .mesh = &self->mesh,
                               .values = self->values,
                               .instructions = self->instructions}};
}

static void close_program(Made *self) {
    for (int32_t i = 0, u = 0; i < self->count; i++) {
        for (int32_t user = i + 1; user < self->count; user++)
            for (int32_t e = self->first[user]; e < self->first[user + 1]; e++)
                if (self->producers[e] == i) self->users[u++] = user;
        self->first_user[i + 1] = u;
    }
    self->graph = (ProgramGraph){.count = self->count,
                                 .first = self->first,
                                 .producers = self->producers,
                                 .first_user = self->first_user,
                                 .users = self->users};
    self->program.value_count = self->program.instruction_count = self->count;
}

static void make_program(Made *self, Arena *arena, Random *random) {
    open_program(self, arena);
    int32_t users = 2 + (int32_t)random_below(random, 20), last = -1, shared = -1;
    for (int32_t u = 0; u < users; u++) {
        int32_t needed[2], count = 0;
        if (random_below(random, 4) > 0) {
            int32_t cast = shared >= 0 && random_below(random, 5) == 0 ? shared : add(self, NULL, 0, 1, NULL);
            self->late[shared = cast] = true;
            needed[count] = add(self, &cast, 1, 1 + (int64_t)random_below(random, 100), &gather);
            self->late[needed[count++]] = true;
        }
        if (last >= 0) needed[count++] = last;
        last = add(self, needed, count, 1 + (int64_t)random_below(random, 30), NULL);
        self->instructions[last].opcode = IR_CONVOLUTION;
        int32_t leader = last = add(self, &last, 1, 1, NULL);
        for (int64_t more = random_below(random, 3); more > 0; more--) {
            last = add(self, &last, 1, 1, NULL);
            self->leader[last] = leader;
        }
        if (random_below(random, 3) == 0)
            last = add(self, &last, 1, 1 + (int64_t)random_below(random, 5), &sum);
    }
    close_program(self);
}

/* The bytes gathered before a place and used at it or later; the number of arrays. */
static int64_t bytes_ahead(const Made *self, int32_t place, int32_t *count) {
    int64_t bytes = 0;
    *count = 0;
    for (int32_t k = 0; k < place; k++) {
        int32_t g = self->order[k];
        bool is_used = false;
        if (self->instructions[g].collective != &gather) continue;
        for (int32_t u = 0; u < place; u++)
            for (int32_t e = self->first[self->order[u]]; e < self->first[self->order[u] + 1]; e++)
                is_used |= self->producers[e] == g;
        if (is_used) continue;
        bytes += self->sizes[g];
        ++*count;
    }
    return bytes;
}

static void check_order(const Made *self, const int32_t *before) {
    bool is_placed[MOST] = {false};
    int32_t next = 0;
    int64_t all = 0;
    for (int32_t k = 0; k < self->count; k++) {
        int32_t i = self->order[k];
        assert_false(is_placed[i]);
        is_placed[i] = true;
        for (int32_t e = self->first[i]; e < self->first[i + 1]; e++)
            assert_true(is_placed[self->producers[e]]);
        if (self->leader[i] != i) assert_int_equal(self->leader[self->order[k - 1]], self->leader[i]);
        if (self->instructions[i].collective == &gather) all += self->sizes[i];
        if (self->late[i]) continue;
        while (self->late[before[next]]) next++;
        assert_int_equal(i, before[next++]); /* other instructions keep their order */
    }
    for (int32_t k = 0; k < self->count; k++) {
        int32_t ahead;
        int64_t bytes = bytes_ahead(self, k, &ahead);
        if (self->late[self->order[k]] || ahead < 2) continue;
        assert_true(bytes <= GATHER_AHEAD_BYTES && (ahead == 2 || bytes <= all / GATHER_AHEAD_MOST_PART));
    }
}

static void test_random_programs(void **state) {
    (void)state;
    static Made made;
    Random random;
    random_seed(&random, 7);
    int32_t moved = 0;
    for (int32_t round = 0; round < 2000; round++) {
        Arena arena = {0};
        AmError error = {0};
        int32_t before[MOST];
        make_program(&made, &arena, &random);
        memcpy(before, made.order, sizeof before);
        assert_int_equal(program_gather_ahead(made.order, &arena, &made.program, &made.graph, made.leader,
                                              made.late, &error),
                         AM_OK);
        check_order(&made, before);
        moved += memcmp(before, made.order, sizeof before) != 0;
        arena_free(&arena);
    }
    assert_true(moved > 1000);
}

/* A gather that may begin before an awaited sum begins after it, where there is time. */
static void test_a_sum_goes_first(void **state) {
    (void)state;
    static Made made;
    Arena arena = {0};
    AmError error = {0};
    open_program(&made, &arena);
    int32_t gathers[2], last = -1, all_reduce = -1, after = -1;
    for (int32_t u = 0; u < 2; u++) {
        gathers[u] = add(&made, NULL, 0, 40, &gather);
        made.late[gathers[u]] = true;
        int32_t needed[2] = {gathers[u], last};
        last = add(&made, needed, last < 0 ? 1 : 2, 1, NULL);
        made.instructions[last].opcode = IR_CONVOLUTION;
        if (u > 0) break;
        all_reduce = last = add(&made, &last, 1, 1, &sum);
        after = last = add(&made, &last, 1, 4000, NULL);
    }
    close_program(&made);
    assert_int_equal(
        program_gather_ahead(made.order, &arena, &made.program, &made.graph, made.leader, made.late, &error),
        AM_OK);
    const int32_t expected[] = {gathers[0], gathers[0] + 1, all_reduce, gathers[1], after, last};
    assert_memory_equal(made.order, expected, sizeof expected);
    arena_free(&arena);
}

/* Weights in shards: most of their gathers are hidden, but none if each waits for its user. */
static void test_communication_is_hidden(void **state) {
    (void)state;
    const SearchRequest request = {.space.mesh = "data=16", .constraints.memory_fraction = 1};
    SearchScope scope = {.request = &request, .searcher = SEARCHER_BASELINE, .baseline = BASELINE_ZERO3};
    SearchResult result;
    Simulation *simulation;
    Cluster *cluster;
    Arena arena = {0};
    AmError error = {0};
    PlanContext *context = read_model("gpt2");
    assert_int_equal(cluster_read(&cluster, &arena, "A", &error), AM_OK);
    if (single_stage_search(&result, &arena, context, cluster, &scope, &error) != AM_OK)
        fail_msg("%s", error.text);
    if (simulate_plan(&simulation, &arena, context, result.plan, cluster,
                      &(SimulationOptions){.memory_fraction = 1}, &error) != AM_OK)
        fail_msg("%s", error.text);
    const SimulatedDevice *device = &simulation->devices[0];
    if (device->hidden_seconds <= 0.4 * device->communication_seconds)
        fail_msg("%.3g of %.3g s is hidden", device->hidden_seconds, device->communication_seconds);
    cluster_free(cluster);
    plan_context_free(context);
    arena_free(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_programs),
        cmocka_unit_test(test_a_sum_goes_first),
        cmocka_unit_test(test_communication_is_hidden),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
