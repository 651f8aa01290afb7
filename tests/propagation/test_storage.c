/* Storage entries: the weight that each value follows, the lifetime of gathered weights, and
 * results that are reduced to the common need of all users. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/text.h"
#include "lowering/spmd/lower.h"
#include "tests/support/model_case.h"

#define LAYERS 16
#define WIDTH  2048
#define BUCKET (64 << 20) /* bytes of gradients that wait for one another */

/* Gradient descent on LAYERS square layers of h -> max(h w, 0), four examples: weights are most of what there
 * is. */
static PlanContext *square_layers(void) {
    Text text = {0};
    const char *m = "f32[2048,2048]", *h = "f32[4,2048]";
    text_append_string(&text, "HloModule layers\nsum {\n a = f32[] parameter(0)\n b = f32[] parameter(1)\n"
                              " ROOT s = f32[] add(a, b)\n}\nENTRY main {\n");
    for (int32_t k = 0; k < LAYERS; k++) text_append(&text, " w%d = %s parameter(%d)\n", k, m, k);
    text_append(&text,
                " h0 = %s parameter(%d)\n zero = f32[] constant(0)\n rate = f32[] constant(0.5)\n"
                " one = f32[] constant(1)\n zeros = %s broadcast(zero), dimensions={}\n",
                h, LAYERS, h);
    for (int32_t k = 0; k < LAYERS; k++)
        text_append(&text,
                    " z%d = %s dot(h%d, w%d), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
                    " h%d = %s maximum(z%d, zeros)\n",
                    k, h, k, k, k + 1, h, k);
    text_append(&text,
                " loss = f32[] reduce(h%d, zero), dimensions={0,1}, to_apply=sum\n"
                " g%d = %s broadcast(one), dimensions={}\n rates = %s broadcast(rate), dimensions={}\n",
                LAYERS, LAYERS, h, m);
    for (int32_t k = LAYERS - 1; k >= 0; k--)
        text_append(&text,
                    " m%d = pred[4,2048] compare(z%d, zeros), direction=GT\n"
                    " d%d = %s select(m%d, g%d, zeros)\n"
                    " q%d = %s dot(h%d, d%d), lhs_contracting_dims={0}, rhs_contracting_dims={0}\n"
                    " g%d = %s dot(d%d, w%d), lhs_contracting_dims={1}, rhs_contracting_dims={1}\n"
                    " u%d = %s multiply(q%d, rates)\n n%d = %s subtract(w%d, u%d)\n",
                    k, k, k, h, k, k + 1, k, m, k, k, k, h, k, k, k, m, k, k, m, k, k);
    text_append_string(&text, " ROOT out = (");
    for (int32_t k = 0; k < LAYERS; k++) text_append(&text, "%s, ", m);
    text_append_string(&text, "f32[]) tuple(");
    for (int32_t k = 0; k < LAYERS; k++) text_append(&text, "n%d, ", k);
    text_append_string(&text, "loss)\n}\n");
    PlanContext *context = read_model_text(text.data);
    text_free(&text);
    return context;
}

/* [batch] on data=4, with so many of the storage kinds. */
static void start_stage(PlanStage *stage, Arena *arena, const PlanContext *context, int32_t kinds) {
    static const PlanEntryKind stored[] = {PLAN_OPTIMIZER, PLAN_GRADIENTS, PLAN_WEIGHTS};
    AmError error = {0};
    *stage = (PlanStage){0};
    assert_int_equal(mesh_parse(&stage->mesh, arena, "data=4", &error), AM_OK);
    PlanAxisPriority *priority = &stage->axis_priorities[0];
    priority->entries = ARENA_ARRAY(arena, PlanEntry, context->classes->count + 4);
    for (int32_t c = 0; c < context->classes->count; c++)
        if (context->classes->classes[c].data_count > 0 && context->classes->classes[c].weight_count == 0)
            priority->entries[priority->count++].class_index = c;
    for (int32_t k = 0; k < kinds; k++)
        priority->entries[priority->count++] = (PlanEntry){.class_index = PLAN_ANY_CLASS, .kind = stored[k]};
}

static Program *lower(const PlanContext *context, Arena *arena, const PlanStage *stage) {
    AmError error = {0};
    Assignment *assignment;
    Program *program;
    AmStatus status = plan_assign(&assignment, arena, context, stage, &error);
    if (status == AM_OK) status = plan_lower(&program, arena, context, assignment, 0, &error);
    if (status != AM_OK) fail_msg("%s: %s", error.source, error.text);
    return program;
}

/* Tensors that collectives of the kind move, in regions only or outside of them only. */
static int32_t count(const Program *program, ProgramCollectiveKind kind, bool inside) {
    int32_t total = 0;
    for (int32_t i = 0; i < program->instruction_count; i++) {
        const ProgramInstruction *instruction = &program->instructions[i];
        if (instruction->kind == PROGRAM_COLLECTIVE && instruction->collective->kind == kind && !inside)
            total += instruction->operand_count;
        for (int32_t r = 0; inside && r < instruction->regions.count; r++)
            total += count(instruction->regions.programs[r], kind, false) +
                     count(instruction->regions.programs[r], kind, true);
    }
    return total;
}

/* Every weight has a gradient and its optimizer state; each is its weight dimension by dimension. */
static void test_roles_follow_weights(void **state) {
    (void)state;
    static const char *const models[] = {"gpt2_tiny", "t5_tiny", "adamw_tiny", "accumulated_tiny",
                                         "llama_tiny"};
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        PlanContext *context = read_model(models[m]);
        const StorageRoles *roles = context->split_options->storage;
        bool *has_gradient = calloc((size_t)context->roles->parameter_count, 1);
        for (int32_t i = 0; i < context->rules->count; i++) {
            if (roles->role[i] == STORAGE_GRADIENT) has_gradient[roles->weight[i]] = true;
            if (roles->role[i] == STORAGE_NONE) assert_int_equal(roles->weight[i], -1);
        }
        for (int32_t p = 0; p < context->roles->parameter_count; p++) {
            const IrParameter *parameter = &context->roles->parameters[p];
            int32_t i = parameter->instruction;
            if (parameter->role == IR_ROLE_WEIGHT && !has_gradient[p])
                fail_msg("%s: %s has no gradient", models[m], parameter->path);
            if (parameter->role != IR_ROLE_OPTIMIZER) continue;
            if (roles->role[i] != STORAGE_OPTIMIZER)
                fail_msg("%s: %s follows no weight", models[m], parameter->path);
            const IrShape *shape = &context->canonical->instructions[i].shape;
            for (int32_t d = 0; d < shape->rank; d++)
                if (shape->dimensions[d] > 1) assert_int_equal(roles->dimension[roles->first[i] + d], d);
        }
        free(has_gradient);
        plan_context_free(context);
    }
}

/* ZeRO 1 and 2 move as many bytes as data parallelism; ZeRO 3 keeps at most a quarter of the
 * weights and the values in use. */
static void test_zero_frees_gathered_weights(void **state) {
    (void)state;
    PlanContext *context = square_layers();
    const int64_t weight = WIDTH * WIDTH * 4, all = LAYERS * weight, work = LAYERS * 6 * WIDTH * 4;
    Arena arena = {0};
    PlanStage stage;
    int64_t peaks[4];
    for (int32_t kinds = 0; kinds <= 3; kinds++) {
        start_stage(&stage, &arena, context, kinds);
        Program *program = lower(context, &arena, &stage);
        peaks[kinds] = program->allocation.bytes;
        assert_int_equal(count(program, PROGRAM_REDUCE_SCATTER, false), kinds > 0 ? LAYERS : 0);
        assert_int_equal(count(program, PROGRAM_ALL_REDUCE, false), kinds > 0 ? 1 : LAYERS + 1);
        int32_t gathers = count(program, PROGRAM_ALL_GATHER, false);
        assert_int_equal(gathers, kinds == 0 ? 0 : kinds < 3 ? LAYERS : 2 * LAYERS - 1);
    }
    assert_true(peaks[0] > all);
    assert_true(peaks[1] <= peaks[0] + BUCKET / 4); /* without optimizer state, the shards to be updated */
    /* Shards of weights and gradients; whole are the gradients of a bucket and of another one whose
     * sum is running, with its shards (reduce_early.h), and the values in use. */
    int64_t bound = all / 4 + all / 4 + 2 * BUCKET + BUCKET / 4 + 3 * weight + work;
    if (peaks[3] > bound) fail_msg("peak %lld, expected %lld", (long long)peaks[3], (long long)bound);
    /* Kept for the backward pass, all weights are there whole at its start. */
    PlanReshard reshard[LAYERS];
    for (int32_t k = 0; k < LAYERS; k++)
        reshard[k] = (PlanReshard){context->roles->parameters[k].instruction, PLAN_KEPT};
    stage.reshard = reshard;
    stage.reshard_count = LAYERS;
    Program *kept = lower(context, &arena, &stage);
    assert_int_equal(count(kept, PROGRAM_ALL_GATHER, false), LAYERS);
    assert_true(kept->allocation.bytes >= all / 4 + all);
    assert_true(kept->allocation.bytes > bound);
    arena_free(&arena);
    plan_context_free(context);
}

/* Between the forward and the backward use of a weight no device has it whole. */
static void test_no_gathered_weight_crosses_phases(void **state) {
    (void)state;
    static const char *const models[] = {"gpt2_tiny", "t5_tiny", "llama_tiny"};
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        PlanContext *context = read_model(models[m]);
        Arena arena = {0};
        PlanStage stage;
        start_stage(&stage, &arena, context, 3);
        const Program *program = lower(context, &arena, &stage);
        int32_t *phase = malloc(sizeof *phase * (size_t)program->value_count);
        int32_t gathered = 0;
        for (int32_t v = 0; v < program->value_count; v++) phase[v] = -2; /* not a gathered weight */
        for (int32_t i = 0; i < program->instruction_count; i++) {
            const ProgramInstruction *instruction = &program->instructions[i];
            for (int32_t k = 0; k < instruction->operand_count; k++) {
                int32_t *known = &phase[instruction->operands[k]];
                int32_t user = (int32_t)context->roles->phases[instruction->origin];
                if (*known == -2 || instruction->opcode == IR_BROADCAST) continue;
                if (*known >= 0) assert_int_equal(*known, user);
                *known = user;
            }
            bool is_gather = instruction->kind == PROGRAM_COLLECTIVE &&
                             instruction->collective->kind == PROGRAM_ALL_GATHER &&
                             context->split_options->storage->role[instruction->origin] == STORAGE_WEIGHT;
            if (!is_gather) continue;
            phase[instruction->first_result] = -1; /* without users so far */
            gathered++;
        }
        assert_true(gathered > 0);
        free(phase);
        arena_free(&arena);
        plan_context_free(context);
    }
}

/* Layers of h -> sin(h w) in bf16 that the backward pass computes once more after barriers. */
static PlanContext *recomputed_layers(void) {
    Text text = {0};
    const char *m = "f32[2048,2048]", *half = "bf16[2048,2048]", *h = "bf16[4,2048]";
    text_append_string(&text, "HloModule layers\nsum {\n a = bf16[] parameter(0)\n b = bf16[] parameter(1)\n"
                              " ROOT s = bf16[] add(a, b)\n}\nENTRY main {\n");
    for (int32_t k = 0; k < LAYERS; k++) text_append(&text, " w%d = %s parameter(%d)\n", k, m, k);
    text_append(&text,
                " h0 = %s parameter(%d)\n zero = bf16[] constant(0)\n one = bf16[] constant(1)\n"
                " rate = f32[] constant(0.5)\n",
                h, LAYERS);
    for (int32_t k = 0; k < LAYERS; k++)
        text_append(&text,
                    " c%d = %s convert(w%d)\n"
                    " z%d = %s dot(h%d, c%d), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
                    " h%d = %s sine(z%d)\n",
                    k, half, k, k, h, k, k, k + 1, h, k);
    text_append(&text,
                " loss = bf16[] reduce(h%d, zero), dimensions={0,1}, to_apply=sum\n"
                " g%d = %s broadcast(one), dimensions={}\n rates = %s broadcast(rate), dimensions={}\n",
                LAYERS, LAYERS, h, m);
    for (int32_t k = LAYERS - 1; k >= 0; k--) {
        text_append(&text,
                    " t%d = (%s, %s, %s) tuple(h%d, w%d, g%d)\n b%d = (%s, %s, %s) opt-barrier(t%d)\n"
                    " i%d = %s get-tuple-element(b%d), index=0\n v%d = %s get-tuple-element(b%d), index=1\n"
                    " y%d = %s get-tuple-element(b%d), index=2\n e%d = %s convert(v%d)\n",
                    k, h, m, h, k, k, k + 1, k, h, m, h, k, k, h, k, k, m, k, k, h, k, k, half, k);
        text_append(&text,
                    " x%d = %s dot(i%d, e%d), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
                    " o%d = %s cosine(x%d)\n d%d = %s multiply(o%d, y%d)\n"
                    " q%d = %s dot(i%d, d%d), lhs_contracting_dims={0}, rhs_contracting_dims={0}\n"
                    " g%d = %s dot(d%d, e%d), lhs_contracting_dims={1}, rhs_contracting_dims={1}\n"
                    " f%d = %s convert(q%d)\n u%d = %s multiply(f%d, rates)\n n%d = %s subtract(w%d, u%d)\n",
                    k, h, k, k, k, h, k, k, h, k, k, k, half, k, k, k, h, k, k, k, m, k, k, m, k, k, m, k, k);
    }
    text_append_string(&text, " ROOT out = (");
    for (int32_t k = 0; k < LAYERS; k++) text_append(&text, "%s, ", m);
    text_append_string(&text, "bf16[]) tuple(");
    for (int32_t k = 0; k < LAYERS; k++) text_append(&text, "n%d, ", k);
    text_append_string(&text, "loss)\n}\n");
    PlanContext *context = read_model_text(text.data);
    text_free(&text);
    return context;
}

/* Gathered values that the forward pass reads and another one too. */
static int32_t count_crossing(const Program *program, const PlanContext *context) {
    int32_t crossing = 0;
    for (int32_t g = 0; g < program->instruction_count; g++) {
        const ProgramInstruction *gather = &program->instructions[g];
        bool in_forward = false, elsewhere = false;
        if (gather->kind != PROGRAM_COLLECTIVE || gather->collective->kind != PROGRAM_ALL_GATHER) continue;
        for (int32_t i = g + 1; i < program->instruction_count; i++)
            for (int32_t k = 0; k < program->instructions[i].operand_count; k++) {
                if (program->instructions[i].operands[k] != gather->first_result) continue;
                bool is_forward = context->roles->phases[program->instructions[i].origin] == IR_PHASE_FORWARD;
                in_forward |= is_forward;
                elsewhere |= !is_forward;
            }
        crossing += in_forward && elsewhere;
    }
    return crossing;
}

/* Each weight is gathered once for each pass, recomputation in the backward pass shares its gather;
 * if kept, it is gathered once, and lives from one pass to the next. */
static void test_recomputation_reads_weights_again(void **state) {
    (void)state;
    PlanContext *context = recomputed_layers();
    const StorageRoles *roles = context->split_options->storage;
    Arena arena = {0};
    PlanStage stage;
    assert_int_equal(roles->reread_count, LAYERS);
    for (int32_t kept = 0; kept < 2; kept++) {
        start_stage(&stage, &arena, context, 3);
        stage.keeps_gathered_weights = kept;
        Program *program = lower(context, &arena, &stage);
        assert_int_equal(count(program, PROGRAM_ALL_GATHER, false), kept ? LAYERS : 2 * LAYERS);
        assert_int_equal(count_crossing(program, context), kept ? LAYERS : 0);
    }
    arena_free(&arena);
    plan_context_free(context);
}

/* An override about how a weight is stored holds for its gradient and its optimizer state, but for other
 * weights and for products nothing changes. */
static void test_optimizer_state_follows_its_weight(void **state) {
    (void)state;
    PlanContext *context = read_model("gpt2_tiny");
    const StorageRoles *roles = context->split_options->storage;
    const IrModule *module = context->canonical;
    AmError error = {0};
    Arena arena = {0};
    PlanStage stage;
    Assignment *plain, *changed;
    int32_t weight = -1, followers = 0;
    start_stage(&stage, &arena, context, 3);
    assert_int_equal(plan_assign(&plain, &arena, context, &stage, &error), AM_OK);
    for (int32_t i = 0; i < context->rules->entry_count && weight < 0; i++) {
        const IrShape *shape = &module->instructions[i].shape;
        bool is_matrix = module->instructions[i].opcode == IR_PARAMETER && roles->role[i] == STORAGE_WEIGHT &&
                         shape->rank == 2;
        if (is_matrix && shape->dimensions[0] % 4 == 0 && shape->dimensions[1] % 4 == 0) weight = i;
    }
    assert_true(weight >= 0);
    int32_t dimension = 1 - sbp_dimension(plain->stored[weight].axis[0]);
    PlanOverride override = {.instruction = weight, .has_states = true};
    sbp_set_split(&override.states, 0, dimension, (SbpCut){0, 0});
    stage.overrides = &override;
    stage.override_count = 1;
    assert_int_equal(plan_assign(&changed, &arena, context, &stage, &error), AM_OK);
    for (int32_t i = 0; i < context->rules->entry_count; i++) {
        bool is_state = roles->role[i] == STORAGE_OPTIMIZER || roles->role[i] == STORAGE_GRADIENT;
        int32_t d = -1;
        for (int32_t k = 0; is_state && k < module->instructions[i].shape.rank; k++)
            if (roles->dimension[roles->first[i] + k] == dimension) d = k;
        if (!changed->live[i] || roles->weight[i] != roles->weight[weight]) {
            assert_memory_equal(&changed->factor[i * MESH_MAX_AXES], &plain->factor[i * MESH_MAX_AXES], 1);
            continue;
        }
        if (d < 0 || context->rules->on_demand[i] || plain->stored[i].axis[0] == SBP_B) continue;
        if (context->rules->alias[i] != i) continue;
        assert_true(sbp_is_split(changed->stored[i].axis[0]));
        assert_int_equal(sbp_dimension(changed->stored[i].axis[0]), d);
        followers++;
    }
    assert_true(followers >= 4); /* two moments, old and new */
    arena_free(&arena);
    plan_context_free(context);
}

/* A loop over micro-batches reads the weights: they are gathered before it, in every iteration and kept, or
 * in every iteration for each of the passes. */
static void test_places_in_a_loop(void **state) {
    (void)state;
    static const struct {
        ReshardPlace place;
        bool before;
    } cases[] = {{PLAN_BEFORE, true}, {PLAN_KEPT, false}, {PLAN_REPEATED, false}};
    PlanContext *context = read_model("accumulated_tiny");
    Arena arena = {0};
    PlanReshard *reshard = ARENA_ARRAY(&arena, PlanReshard, context->rules->count);
    int32_t inside[3], weights = 0;
    for (size_t k = 0; k < 3; k++) {
        PlanStage stage;
        start_stage(&stage, &arena, context, 3);
        stage.reshard = reshard;
        const PlannedLoop *loop = &context->rules->loops[0];
        for (int32_t l = 0; l < loop->leaf_count; l++) {
            int32_t reader = loop->leaves[l].in_body;
            if (reader >= 0 && context->split_options->storage->role[reader] == STORAGE_WEIGHT)
                reshard[stage.reshard_count++] = (PlanReshard){reader, cases[k].place};
        }
        weights = stage.reshard_count;
        const Program *program = lower(context, &arena, &stage);
        inside[k] = count(program, PROGRAM_ALL_GATHER, true);
        assert_int_equal(count(program, PROGRAM_ALL_GATHER, false) > 0, cases[k].before);
    }
    assert_true(weights > 0);
    assert_int_equal(inside[0], 0);
    assert_true(inside[1] > 0 && inside[1] <= weights);
    assert_true(inside[2] > inside[1]);
    /* Outside of loops nothing is before one. */
    PlanStage stage;
    AmError error = {0};
    Assignment *assignment;
    start_stage(&stage, &arena, context, 3);
    reshard[0] = (PlanReshard){context->rules->entry_count - 1, PLAN_BEFORE};
    stage.reshard = reshard;
    stage.reshard_count = 1;
    assert_int_equal(plan_assign(&assignment, &arena, context, &stage, &error), AM_ERROR_INPUT);
    arena_free(&arena);
    plan_context_free(context);
}

/* A sum over devices that its one reader needs in parts is a reduce_scatter. */
static void test_wanted_parts_are_scattered(void **state) {
    (void)state;
    PlanContext *context = read_model_text(
        "HloModule m\nENTRY main {\n a = f32[8,16] parameter(0)\n b = f32[16,12] parameter(1)\n"
        " c = f32[12,4] parameter(2)\n"
        " ab = f32[8,12] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
        " ROOT abc = f32[8,4] dot(ab, c), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n}\n");
    Arena arena = {0};
    AmError error = {0};
    PlanStage stage = {0};
    assert_int_equal(mesh_parse(&stage.mesh, &arena, "data=4", &error), AM_OK);
    int32_t root = context->rules->alias[context->roles->outputs[0]];
    int32_t product = context->split_options->operands[context->split_options->first_operand[root]];
    PlanOverride overrides[2] = {{.instruction = product, .has_factors = true},
                                 {.instruction = root, .has_factors = true}};
    for (int32_t e = 0; e < 2; e++) { /* both split the contracted dimension */
        const FactorRule *rule = &context->rules->rules[overrides[e].instruction];
        for (int32_t f = 0; f < rule->factor_count; f++)
            if (rule->factors[f].kind == FACTOR_REDUCTION) overrides[e].factors[0] = f;
    }
    stage.overrides = overrides;
    stage.override_count = 2;
    const Program *program = lower(context, &arena, &stage);
    assert_int_equal(count(program, PROGRAM_REDUCE_SCATTER, false), 1);
    assert_int_equal(count(program, PROGRAM_ALL_REDUCE, false), 1); /* the output's */
    assert_int_equal(count(program, PROGRAM_ALL_GATHER, false), 0);
    arena_free(&arena);
    plan_context_free(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_roles_follow_weights),
                                       cmocka_unit_test(test_zero_frees_gathered_weights),
                                       cmocka_unit_test(test_no_gathered_weight_crosses_phases),
                                       cmocka_unit_test(test_recomputation_reads_weights_again),
                                       cmocka_unit_test(test_optimizer_state_follows_its_weight),
                                       cmocka_unit_test(test_places_in_a_loop),
                                       cmocka_unit_test(test_wanted_parts_are_scattered)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
