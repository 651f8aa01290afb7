/* Propagation from pins, and sharding attributes as JAX prints them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "ir/canonical.h"
#include "propagation/propagate.h"

static PlanContext *read_model(const char *name) {
    PlanContext *context;
    AmError error = {0};
    char path[512];
    snprintf(path, sizeof path, SOURCE_DIR "/datasets/models/%s", name);
    if (plan_context_read(&context, path, NULL, &error) != AM_OK) fail_msg("%s", error.text);
    return context;
}

/* What NamedSharding(mesh, spec) gives in JAX. */
static void test_sharding_text(void **state) {
    (void)state;
    static const struct {
        const char *mesh;
        Sbp axis[MESH_MAX_AXES];
        int32_t rank;
        const char *text;
    } cases[] = {
        {"data=2,model=4", {1, 0}, 2, "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"},
        {"data=2,model=4", {0, 2}, 2, "{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}"},
        {"data=2,model=4", {2, 1}, 2, "{devices=[4,2]<=[2,4]T(1,0)}"},
        {"data=2,model=4", {1, 1}, 1, "{devices=[8]<=[8]}"},
        {"data=2,model=4", {0, 0}, 2, "{replicated}"},
        {"data=2,model=4", {0, 0}, 0, "{replicated}"},
        {"data=2,model=4", {0, 1}, 1, "{devices=[4,2]<=[2,4]T(1,0) last_tile_dim_replicate}"},
        {"a=2,b=2,c=2", {2, 0, 1}, 2, "{devices=[2,2,2]<=[4,2]T(1,0) last_tile_dim_replicate}"},
        {"a=2,b=2,c=2", {0, 1, 0}, 1, "{devices=[2,4]<=[2,2,2]T(1,0,2) last_tile_dim_replicate}"},
        {"a=2,b=2,c=2", {1, 0, 2}, 2, "{devices=[2,2,2]<=[2,2,2]T(0,2,1) last_tile_dim_replicate}"},
        {"a=2,b=2,c=2", {0, 2, 1}, 2, "{devices=[2,2,2]<=[2,2,2]T(2,1,0) last_tile_dim_replicate}"},
        {"a=2,b=2,c=2", {0, 2, 2}, 3, "{devices=[1,4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}"},
        {"a=2,b=1,c=4", {1, 0, 2}, 2, "{devices=[2,4]<=[8]}"},
        {"a=8", {-1}, 1, "{devices=[1,8]<=[8] last_tile_dims={unreduced}}"},
        {"a=2,b=4", {0, -1}, 0, "{devices=[4,2]<=[2,4]T(1,0) last_tile_dims={unreduced, replicated}}"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        Arena arena = {0};
        Mesh mesh;
        AmError error = {0};
        Text text = {0};
        SbpState states;
        memcpy(states.axis, cases[k].axis, sizeof states.axis);
        assert_int_equal(mesh_parse(&mesh, &arena, cases[k].mesh, &error), AM_OK);
        propagation_sharding_text(&text, &mesh, states, cases[k].rank);
        assert_string_equal(text.data, cases[k].text);
        text_free(&text);
        arena_free(&arena);
    }
}

static int32_t instruction_of(const PlanContext *context, const char *path) {
    for (int32_t p = 0; p < context->roles->parameter_count; p++) {
        if (strcmp(context->roles->parameters[p].path, path) == 0)
            return context->roles->parameters[p].instruction;
    }
    fail_msg("no parameter %s", path);
    return -1;
}

static void parse_pins(PropagationPin *pins, Arena *arena, const char *const *texts, int32_t count) {
    AmError error = {0};
    for (int32_t k = 0; k < count; k++)
        assert_int_equal(propagation_parse_pin(&pins[k], arena, texts[k], &error), AM_OK);
}

static void test_propagates_through_t5(void **state) {
    (void)state;
    PlanContext *context = read_model("t5_tiny/model.hlo.pb");
    Arena arena = {0};
    AmError error = {0};
    PlanStage stage = {0};
    assert_int_equal(mesh_parse(&stage.mesh, &arena, "data=2,model=4", &error), AM_OK);
    stage.range_count = 1;
    int32_t whole[1][2] = {{0, context->rules->count}};
    stage.ranges = whole;
    static const char *const texts[] = {"inputs=data,-",
                                        "state['params']*['attention']['query']['kernel']=-,model",
                                        "state['params']*['mlp_in']['kernel']=-,model"};
    PropagationPin pins[3];
    parse_pins(pins, &arena, texts, 3);
    assert_int_equal(propagation_pin_lists(&stage, &arena, context, pins, 3, &error), AM_OK);
    assert_int_equal(stage.lists[0].count, 1);
    assert_int_equal(stage.lists[1].count, 6 + 2); /* attention of 4 layers, MLPs of 4 */
    SbpState *states;
    assert_int_equal(propagate(&states, &arena, context, &stage, &error), AM_OK);
    static const struct {
        const char *path;
        Sbp data, model;
    } expected[] = {
        {"inputs", 1, 0},
        {"targets", 1, 0},
        {"state['params']['encoder'][1]['attention']['value']['kernel']", 0, 2},
        {"state['params']['encoder'][1]['attention']['output']['kernel']", 0, 1},
        {"state['params']['decoder'][0]['mlp_out']['kernel']", 0, 1},
        {"state['params']['decoder'][0]['mlp_in']['bias']", 0, 1},
        {"state['mean']['decoder'][0]['mlp_in']['bias']", 0, 1},
        {"state['params']['decoder'][0]['mlp_out']['bias']", 0, 0},
        {"state['params']['softmax_table']", 0, 0},
    };
    for (size_t k = 0; k < sizeof expected / sizeof *expected; k++) {
        SbpState found = states[instruction_of(context, expected[k].path)];
        assert_int_equal(found.axis[0], expected[k].data);
        assert_int_equal(found.axis[1], expected[k].model);
    }
    /* A broadcast of a split bias is made in the state of its use. */
    int32_t split_broadcasts = 0;
    for (int32_t i = 0; i < context->rules->count; i++) {
        const IrInstruction *instruction = &context->canonical->instructions[i];
        if (instruction->opcode == IR_BROADCAST && !context->rules->is_free[i])
            split_broadcasts += states[i].axis[1] != SBP_B;
    }
    assert_true(split_broadcasts >= 4);
    Text text = {0};
    assert_int_equal(propagation_module_text(&text, context, &stage.mesh, states, &error), AM_OK);
    assert_non_null(strstr(text.data, "sharding={devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}, "));
    assert_non_null(strstr(text.data, "sharding={{replicated}, "));
    /* It reads back as the same module. */
    IrModule *again, *canonical;
    char sha256[65];
    if (ir_read_bytes(&again, "text", text.data, (int64_t)text.length, &error) != AM_OK)
        fail_msg("line %d: %s", (int)error.line, error.text);
    assert_int_equal(ir_canonicalize(&canonical, again, &error), AM_OK);
    ir_hash(canonical, sha256);
    assert_string_equal(sha256, context->sha256);
    ir_module_free(canonical);
    ir_module_free(again);
    text_free(&text);
    arena_free(&arena);
    plan_context_free(context);
}

static void test_refuses_pins(void **state) {
    (void)state;
    PlanContext *context = read_model("mlp_tiny/model.hlo.pb");
    Arena arena = {0};
    PlanStage stage = {0};
    AmError error = {0};
    assert_int_equal(mesh_parse(&stage.mesh, &arena, "data=2,model=4", &error), AM_OK);
    static const char *const bad[] = {"nothing=data,-",     "*=data,-,-,-,-",        "*kernel*=mode,-",
                                      "*kernel*=data,data", "*kernel*=model+data,-", "*kernel*=,",
                                      "*kernel*=data+,-",   "*kernel*=data,",        "*kernel*=-,data+"};
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        PropagationPin pin;
        parse_pins(&pin, &arena, &bad[k], 1);
        error = (AmError){0};
        assert_int_equal(propagation_pin_lists(&stage, &arena, context, &pin, 1, &error), AM_ERROR_USAGE);
        assert_true(error.text[0] != '\0');
    }
    static const char *const no_pins[] = {"", "=data", "x=", "x"};
    for (size_t k = 0; k < sizeof no_pins / sizeof *no_pins; k++) {
        PropagationPin pin;
        assert_int_equal(propagation_parse_pin(&pin, &arena, no_pins[k], NULL), AM_ERROR_USAGE);
    }
    arena_free(&arena);
    plan_context_free(context);
}

static void test_strict(void **state) {
    (void)state;
    PlanContext *context = read_model("vgg_tiny/model.hlo.pb");
    Arena arena = {0};
    AmError error = {0};
    Mesh mesh;
    assert_int_equal(mesh_parse(&mesh, &arena, "model=2", &error), AM_OK);
    static const char *const texts[] = {"state['params']['fc1']['kernel']=-,model",
                                        "state['params']['fc2']['kernel']=-,model"};
    PropagationPin pins[2];
    parse_pins(pins, &arena, texts, 2);
    SbpState *states;
    assert_int_equal(propagate_strictly(&states, &arena, context, &mesh, pins, 1, &error), AM_OK);
    assert_int_equal(states[instruction_of(context, "state['params']['fc1']['bias']")].axis[0], 1);
    assert_int_equal(states[instruction_of(context, "state['params']['fc2']['kernel']")].axis[0], 1);
    assert_int_equal(states[instruction_of(context, "state['params']['fc2']['bias']")].axis[0], 0);
    assert_int_equal(propagate_strictly(&states, &arena, context, &mesh, pins, 2, &error),
                     AM_ERROR_INFEASIBLE);
    arena_free(&arena);
    plan_context_free(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sharding_text),
        cmocka_unit_test(test_propagates_through_t5),
        cmocka_unit_test(test_refuses_pins),
        cmocka_unit_test(test_strict),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
