/* Propagation from pins, and sharding attributes as JAX prints them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/files/file.h"
#include "ir/canonical/canonical.h"
#include "ir/hlo.pb-c.h"
#include "ir/text/hlo_text.h"
#include "propagation/propagate/path_pattern.h"
#include "propagation/propagate/read_sharding.h"
#include "propagation/propagate/sharded_module.h"
#include "propagation/propagate/sharding_message.h"
#include "tests/support/model_case.h"
#include "tests/support/pin_case.h"

/* The text of the sharding attribute of an array, as modules have it. */
static void append_sharding(Text *text, Arena *arena, const Mesh *mesh, SbpState state, int32_t rank) {
    Hlo__OpSharding *message = sharding_message(arena, mesh, state, rank, SHARDING_TILES);
    assert_non_null(message);
    ir_write_sharding(text, message);
}

/* The sharding of NamedSharding(mesh, spec) in JAX. */
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
        append_sharding(&text, &arena, &mesh, states, cases[k].rank);
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

static AmStatus module_text(Text *text, const PlanContext *context, const Mesh *mesh, const SbpState *states,
                            AmError *error) {
    const ShardedModule how = {.spelling = SHARDING_TILES, .mesh = mesh, .states = states};
    return propagation_sharded_text(text, context, &how, error);
}

static void test_propagates_through_t5(void **state) {
    (void)state;
    PlanContext *context = read_model("t5_tiny");
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
    assert_int_equal(pin_stage(&stage, &arena, context, pins, 3, &error), AM_OK);
    assert_int_equal(stage.axis_priorities[0].count, 1);
    assert_int_equal(stage.axis_priorities[1].count, 6 + 2); /* attention of 4 layers, MLPs of 4 */
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
    assert_int_equal(module_text(&text, context, &stage.mesh, states, &error), AM_OK);
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

/* The module's own shardings, on `mesh` or, where that is NULL, on the mesh that they infer. */
static AmStatus keep(SbpState **states, PlanStage *stage, Arena *arena, const PlanContext *context,
                     const char *mesh, AmWarnings *warnings, AmError *error) {
    KeptShardings *kept;
    *stage = (PlanStage){0};
    TRY(propagation_read_shardings(&kept, arena, context, error));
    if (mesh) TRY(mesh_parse(&stage->mesh, arena, mesh, error));
    else TRY(propagation_infer_mesh(&stage->mesh, arena, kept, error));
    TRY(propagation_keep_shardings(stage, arena, context, kept, warnings, error));
    return propagate(states, arena, context, stage, error);
}

/* Printed shardings are read back unchanged. */
static void test_keeps_its_own_shardings(void **state) {
    (void)state;
    static const struct {
        const char *model, *mesh;
        const char *pins[2];
    } cases[] = {
        {"t5_tiny", "x0=2,x1=4", {"inputs=x0,-", "*['mlp_in']['kernel']=-,x1"}},
        {"t5_tiny", "x0=2,x1=2,x2=2", {"inputs=x0+x2,-", "*['mlp_in']['kernel']=x1,-"}},
        {"mlp_tiny", "x0=2,x1=4", {"*kernel*=x1,x0", "*kernel*=x0,-"}},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        PlanContext *context = read_model(cases[k].model);
        Arena arena = {0};
        AmError error = {0};
        AmWarnings warnings = {.arena = &arena};
        PlanStage stage = {0};
        PropagationPin pins[2];
        SbpState *pinned, *states;
        Text text = {0};
        parse_pins(pins, &arena, cases[k].pins, 2);
        assert_int_equal(mesh_parse(&stage.mesh, &arena, cases[k].mesh, &error), AM_OK);
        assert_int_equal(pin_stage(&stage, &arena, context, pins, 2, &error), AM_OK);
        assert_int_equal(propagate(&pinned, &arena, context, &stage, &error), AM_OK);
        assert_int_equal(module_text(&text, context, &stage.mesh, pinned, &error), AM_OK);
        PlanContext *again = read_model_text(text.data);
        assert_string_equal(again->sha256, context->sha256);
        for (int32_t inferred = 0; inferred < 2; inferred++) {
            PlanStage kept;
            AmStatus status =
                keep(&states, &kept, &arena, again, inferred ? NULL : cases[k].mesh, &warnings, &error);
            if (status != AM_OK) fail_msg("%s", error.text);
            assert_int_equal(warnings.count, 0);
            assert_int_equal(kept.mesh.axis_count, stage.mesh.axis_count);
            for (int32_t axis = 0; axis < stage.mesh.axis_count; axis++) {
                assert_int_equal(kept.mesh.axes[axis].size, stage.mesh.axes[axis].size);
                assert_string_equal(kept.mesh.axes[axis].name, stage.mesh.axes[axis].name);
            }
            assert_memory_equal(states, pinned, sizeof *states * (size_t)context->rules->count);
        }
        /* Another mesh of as many devices cannot give them. */
        PlanStage kept;
        assert_int_equal(keep(&states, &kept, &arena, again, "x0=8", &warnings, &error), AM_ERROR_INPUT);
        assert_non_null(strstr(error.text, "of the mesh"));
        text_free(&text);
        plan_context_free(again);
        arena_free(&arena);
        plan_context_free(context);
    }
}

/* A step that JAX lowered with in_shardings and with_sharding_constraint over (data=2, model=4). */
static void test_keeps_shardings_of_jax(void **state) {
    (void)state;
    PlanContext *context;
    AmError error = {0};
    Arena arena = {0};
    AmWarnings warnings = {.arena = &arena};
    PlanStage stage;
    SbpState *states;
    assert_int_equal(plan_context_read(&context, SOURCE_DIR "/tests/data/text/sharded.hlo.txt", NULL, &error),
                     AM_OK);
    if (keep(&states, &stage, &arena, context, NULL, &warnings, &error) != AM_OK) fail_msg("%s", error.text);
    assert_int_equal(stage.mesh.axis_count, 2);
    assert_int_equal(stage.mesh.axes[0].size, 2);
    assert_int_equal(stage.mesh.axes[1].size, 4);
    assert_int_equal(stage.override_count, 0);
    static const struct {
        const char *name;
        Sbp data, model;
    } expected[] = {{"w1.1", 0, 2},          {"w2.1", 0, 1},  {"x.1", 1, 0},    {"y.1", 1, 0},
                    {"dot_general.5", 1, 2}, {"max.1", 1, 2}, {"mul.11", 1, 2}, {"sub.5", 0, 1}};
    for (int32_t i = 0; i < context->rules->count; i++) {
        for (size_t k = 0; k < sizeof expected / sizeof *expected; k++) {
            if (strcmp(context->canonical->instructions[i].name, expected[k].name) != 0) continue;
            assert_int_equal(states[i].axis[0], expected[k].data);
            assert_int_equal(states[i].axis[1], expected[k].model);
        }
    }
    arena_free(&arena);
    plan_context_free(context);
}

/* One parameter of 8 x 6 with this sharding; NULL with the error filled where the reader refuses it. */
static PlanContext *read_one(const char *sharding, AmError *error) {
    const char *path = "test_propagate.one.hlo.txt";
    PlanContext *context = NULL;
    Text text = {0};
    text_append(&text,
                "HloModule one\n\nENTRY main {\n  a = f32[8,6] parameter(0), sharding=%s\n"
                "  ROOT r = f32[8,6] negate(a)\n}\n",
                sharding);
    assert_int_equal(file_write(path, text.data, text.length, error), AM_OK);
    if (plan_context_read(&context, path, NULL, error) != AM_OK) context = NULL;
    remove(path);
    text_free(&text);
    return context;
}

static void test_reads_shardings(void **state) {
    (void)state;
    static const struct {
        const char *sharding;
        const char *mesh;   /* inferred; NULL: refused */
        const char *answer; /* the state as text, or the error */
        int32_t warnings;
    } cases[] = {
        {"{devices=[2,1]<=[2]}", "x0=2", "{devices=[2,1]<=[2]}", 0},
        {"{devices=[2,2]0,1,2,3}", "x0=2 x1=2", "{devices=[2,2]<=[4]}", 0},
        {"{devices=[2,2]0,2,1,3}", "x0=2 x1=2", "{devices=[2,2]<=[2,2]T(1,0)}", 0},
        {"{devices=[1,2,2]0,1,2,3 last_tile_dim_replicate}", "x0=2 x1=2",
         "{devices=[1,2,2]<=[4] last_tile_dim_replicate}", 0},
        {"{devices=[1,3,2]<=[2,3]T(1,0) last_tile_dims={replicated}}", "x0=2 x1=3",
         "{devices=[1,3,2]<=[2,3]T(1,0) last_tile_dim_replicate}", 0},
        {"{devices=[4,1,2]<=[2,2,2]T(0,2,1) last_tile_dim_replicate}", "x0=2 x1=2 x2=2",
         "{devices=[4,1,2]<=[2,2,2]T(0,2,1) last_tile_dim_replicate}", 0},
        {"{devices=[1,4]<=[4]}", "x0=4", "{replicated}", 1},         /* 6 over 4 */
        {"{devices=[4,1]<=[2,2]T(1,0)}", NULL, "in their order", 0}, /* minor axis first */
        {"{devices=[4,1]0,3,1,2}", NULL, "in their order", 0},
        {"{devices=[2,2]0,3,1,2}", NULL, "no mesh", 0},
        {"{devices=[2,1]0,0}", NULL, "a device twice", 0},
        {"{devices=[2,1]0,7}", NULL, "each device", 0},
        {"{devices=[2,2]0,1}", NULL, "another number of devices", 0},
        {"{devices=[2]<=[2]}", NULL, "1 tile dimensions, expected 2", 0},
        {"{devices=[2,1]<=[3]}", NULL, "another number of devices", 0},
        {"{devices=[2,1]<=[2,1]T(0,0)}", NULL, "no permutation", 0},
        {"{devices=[100000,100000]<=[10000000000]}", NULL, "", 0},
        {"{devices=[2,0]<=[2]}", NULL, "below 1", 0},
        {"{maximal device=1}", NULL, "maximal", 0},
        {"{manual}", NULL, "manual", 0},
        {"{devices=[1,1,2]<=[2] last_tile_dims={unreduced}}", NULL, "unreduced", 0},
        {"{replicated}", NULL, "give --mesh", 0},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        Arena arena = {0};
        AmError error = {0};
        AmWarnings warnings = {.arena = &arena};
        PlanStage stage;
        SbpState *states;
        PlanContext *context = read_one(cases[k].sharding, &error);
        AmStatus status =
            context ? keep(&states, &stage, &arena, context, NULL, &warnings, &error) : error.code;
        Text mesh = {0}, text = {0};
        if (cases[k].mesh) {
            if (status != AM_OK) fail_msg("%s: %s", cases[k].sharding, error.text);
            for (int32_t axis = 0; axis < stage.mesh.axis_count; axis++)
                text_append(&mesh, "%s%s=%d", axis ? " " : "", stage.mesh.axes[axis].name,
                            stage.mesh.axes[axis].size);
            append_sharding(&text, &arena, &stage.mesh, states[0], 2);
            assert_string_equal(mesh.data, cases[k].mesh);
            assert_string_equal(text.data, cases[k].answer);
            assert_int_equal(warnings.count, cases[k].warnings);
        } else {
            if (status != AM_ERROR_INPUT) fail_msg("%s was read", cases[k].sharding);
            if (!strstr(error.text, cases[k].answer)) fail_msg("%s: %s", cases[k].sharding, error.text);
        }
        text_free(&mesh);
        text_free(&text);
        arena_free(&arena);
        plan_context_free(context);
    }
}

/* Shardings over named axes: the axes of a dimension come major first. */
static void test_reads_named_shardings(void **state) {
    (void)state;
    Hlo__MeshProto__MeshAxis axes[2];
    Hlo__AxisRefProto rows, columns;
    Hlo__NamedShardingProto__DimensionSharding whole, split;
    Hlo__MeshProto mesh_message;
    Hlo__NamedShardingProto named;
    Hlo__OpSharding message;
    hlo__mesh_proto__mesh_axis__init(&axes[0]);
    hlo__mesh_proto__mesh_axis__init(&axes[1]);
    hlo__axis_ref_proto__init(&rows);
    hlo__axis_ref_proto__init(&columns);
    hlo__named_sharding_proto__dimension_sharding__init(&whole);
    hlo__named_sharding_proto__dimension_sharding__init(&split);
    hlo__mesh_proto__init(&mesh_message);
    hlo__named_sharding_proto__init(&named);
    hlo__op_sharding__init(&message);
    axes[0].name = "rows", axes[0].size = 2;
    axes[1].name = "columns", axes[1].size = 4;
    columns.mesh_axis_index = 1;
    mesh_message.n_axes = 2;
    mesh_message.axes = (Hlo__MeshProto__MeshAxis *[]){&axes[0], &axes[1]};
    split.n_axes = 2;
    split.axes = (Hlo__AxisRefProto *[]){&rows, &columns};
    named.mesh = &mesh_message;
    named.n_dim_shardings = 2;
    named.dim_shardings = (Hlo__NamedShardingProto__DimensionSharding *[]){&whole, &split};
    message.named_sharding = &named;
    Arena arena = {0};
    AmError error = {0};
    DeviceTiles tiles;
    const DeviceTiles *all = &tiles;
    Mesh mesh;
    SbpState found;
    assert_int_equal(sharding_read(&tiles, &arena, &message, &error), AM_OK);
    assert_int_equal(sharding_infer_mesh(&mesh, &arena, &all, 1, &error), AM_OK);
    assert_int_equal(mesh.axis_count, 2);
    assert_string_equal(mesh.axes[1].name, "columns");
    assert_true(sharding_to_state(&found, &tiles, &mesh));
    assert_int_equal(found.axis[0], sbp_split(1));
    assert_int_equal(found.axis[1], sbp_split(1));
    split.axes = (Hlo__AxisRefProto *[]){&columns, &rows}; /* columns major: no state of this mesh */
    assert_int_equal(sharding_read(&tiles, &arena, &message, &error), AM_OK);
    assert_false(sharding_to_state(&found, &tiles, &mesh));
    split.axes = (Hlo__AxisRefProto *[]){&columns, &columns};
    assert_int_equal(sharding_read(&tiles, &arena, &message, &error), AM_ERROR_INPUT);
    columns.mesh_axis_index = 7;
    assert_int_equal(sharding_read(&tiles, &arena, &message, NULL), AM_ERROR_INPUT);
    arena_free(&arena);
}

/* A pin overrides the module's shardings wherever it reaches. */
static void test_pins_prevail(void **state) {
    (void)state;
    AmError unread = {0};
    PlanContext *context = read_one("{devices=[2,1,2]<=[4] last_tile_dim_replicate}", &unread);
    assert_non_null(context);
    Arena arena = {0};
    AmError error = {0};
    AmWarnings warnings = {.arena = &arena};
    PlanStage stage = {0};
    KeptShardings *kept;
    SbpState *states;
    PropagationPin pin;
    static const char *const text = "a=-,y";
    parse_pins(&pin, &arena, &text, 1);
    assert_int_equal(mesh_parse(&stage.mesh, &arena, "x=2,y=2", &error), AM_OK);
    assert_int_equal(pin_stage(&stage, &arena, context, &pin, 1, &error), AM_OK);
    assert_int_equal(propagation_read_shardings(&kept, &arena, context, &error), AM_OK);
    assert_int_equal(propagation_keep_shardings(&stage, &arena, context, kept, &warnings, &error), AM_OK);
    assert_int_equal(propagate(&states, &arena, context, &stage, &error), AM_OK);
    assert_int_equal(states[0].axis[0], 1); /* as carried */
    assert_int_equal(states[0].axis[1], 2); /* as pinned */
    arena_free(&arena);
    plan_context_free(context);
}

static void test_refuses_pins(void **state) {
    (void)state;
    PlanContext *context = read_model("mlp_tiny");
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
        assert_int_equal(pin_stage(&stage, &arena, context, &pin, 1, &error), AM_ERROR_USAGE);
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

static void test_matches_paths_as_users_write_them(void **state) {
    (void)state;
    static const struct {
        const char *pattern, *path;
        bool is_match;
    } cases[] = {
        {"layers/1/kernel", "model['layers'][1]['kernel']", true},
        {"layers.1.kernel", "model['layers'][1]['kernel']", true},
        {"layers[1].kernel", "model['layers'][1]['kernel']", true},
        {"/model/layers/1/kernel", "model['layers'][1]['kernel']", true},
        {"model['layers'][1]['kernel']", "model['layers'][1]['kernel']", true},
        {"layers/*/kernel", "model['layers'][1]['kernel']", true},
        {"params/*/kernel", "state['params']['layers'][1]['kernel']", true},
        {"*/kernel", "state['params']['layers'][1]['kernel']", true},
        {"*kernel*", "state['params']['layers'][1]['kernel']", true},
        {"layers.0.weight", "model.layers[0].weight", true},
        {"*", "w", true},
        {"w", "w", true},
        {"a*b", "a*b", true},
        {"ayers/1/kernel", "model['layers'][1]['kernel']", false},
        {"layers/1", "model['layers'][1]['kernel']", false},
        {"layers/1/kernel", "model['layers'][11]['kernel']", false},
        {"layers/1/kernel", "model['layers'][1]['kernels']", false},
        {"*/kernel", "kernel", false},
        {"kernel/x", "kernel", false},
        {"", "kernel", false},
        {"//", "kernel", false},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
        if (path_matches(cases[k].pattern, cases[k].path) != cases[k].is_match)
            fail_msg("%s, %s: expected %d", cases[k].pattern, cases[k].path, cases[k].is_match);
    char longest[2000];
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    assert_true(path_matches(longest, longest));
    assert_false(path_matches("y", longest));
}

static void test_names_the_nearest_paths(void **state) {
    (void)state;
    PlanContext *context = read_model("t5_tiny");
    static const struct {
        const char *pattern, *nearest;
    } cases[] = {
        {"decoder/1/mlp_ot/kernel", "state['params']['decoder'][1]['mlp_out']['kernel']"},
        {"decoder/1/qury/kernel", "state['params']['decoder'][1]['attention']['query']['kernel']"},
        {"encoder/1/kernel", "state['params']['encoder'][1]['mlp_in']['kernel']"},
        {"encoder/*/mlp_inn/kernel", "state['params']['encoder'][0]['mlp_in']['kernel']"},
        {"mean/encoder/1/mlp_iin/kernel", "state['mean']['encoder'][1]['mlp_in']['kernel']"},
        {"decoder/1/mlp_in", "state['params']['decoder'][1]['mlp_in']['bias']"},
        {"tabel", "state['params']['decoder_table']"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        Text text = {0}, wanted = {0};
        path_append_nearest(&text, context->roles, cases[k].pattern);
        text_append(&wanted, "; the nearest are %s,", cases[k].nearest);
        if (!text.data || strncmp(text.data, wanted.data, wanted.length) != 0)
            fail_msg("%s: expected %s, got %s", cases[k].pattern, wanted.data, text.data);
        text_free(&text);
        text_free(&wanted);
    }
    plan_context_free(context);
}

static void test_pins_leave_out_factored_moments(void **state) {
    (void)state;
    PlanContext *context = read_model("adafactor_tiny");
    Arena arena = {0};
    PlanStage stage = {0};
    AmError error = {0};
    PropagationPin pin;
    assert_int_equal(mesh_parse(&stage.mesh, &arena, "data=2,model=4", &error), AM_OK);
    parse_pins(&pin, &arena, (const char *const[]){"0/kernel=-,model"}, 1);
    assert_int_equal(pin_stage(&stage, &arena, context, &pin, 1, &error), AM_OK);
    assert_true(stage.axis_priorities[1].count > 0);
    parse_pins(&pin, &arena, (const char *const[]){"0/kernel=[-,data,model]"}, 1);
    assert_int_equal(pin_stage(&stage, &arena, context, &pin, 1, &error), AM_ERROR_USAGE);
    arena_free(&arena);
    plan_context_free(context);
}

static void test_strict(void **state) {
    (void)state;
    PlanContext *context = read_model("vgg_tiny");
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
        cmocka_unit_test(test_keeps_its_own_shardings),
        cmocka_unit_test(test_keeps_shardings_of_jax),
        cmocka_unit_test(test_reads_shardings),
        cmocka_unit_test(test_reads_named_shardings),
        cmocka_unit_test(test_pins_prevail),
        cmocka_unit_test(test_refuses_pins),
        cmocka_unit_test(test_matches_paths_as_users_write_them),
        cmocka_unit_test(test_names_the_nearest_paths),
        cmocka_unit_test(test_pins_leave_out_factored_moments),
        cmocka_unit_test(test_strict),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
