/* Roles, pairs, loss and phases: every committed model against the exporter's
 * own account of it, then small modules for the cases that models lack. */
/* cost: 5 seconds */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ir/analysis/roles.h"
#include "ir/canonical/canonical.h"
#include "tests/support/sample.h"

#define MODELS SOURCE_DIR "/datasets/models"

typedef struct Case {
    IrModule *module, *canonical;
    IrRoles *roles;
    Arena arena;
    AmError error;
} Case;

/* The parts removed from a module before its analysis. */
typedef enum Stripped { NOTHING, METADATA, DONATIONS, BOTH, STRIPPED_COUNT } Stripped;

static void strip(IrModule *module, Stripped stripped) {
    if (stripped == DONATIONS || stripped == BOTH) module->alias_count = 0;
    for (int32_t i = 0; (stripped == METADATA || stripped == BOTH) && i < module->instruction_count; i++) {
        module->instructions[i].op_name = module->instructions[i].source_file = "";
        module->instructions[i].source_line = 0;
    }
}

static void open_stripped(Case *c, const char *path, Stripped stripped) {
    *c = (Case){0};
    if (ir_read(&c->module, path, &c->error) != AM_OK) fail_msg("%s: %s", path, c->error.text);
    strip(c->module, stripped);
    if (ir_canonicalize(&c->canonical, c->module, &c->error) != AM_OK)
        fail_msg("%s: %s", path, c->error.text);
}

static void open_case(Case *c, const char *path) {
    open_stripped(c, path, NOTHING);
}

static void close_case(Case *c) {
    ir_module_free(c->canonical);
    ir_module_free(c->module);
    arena_free(&c->arena);
}

static const char *model_file(const char *model, char path[512]) {
    snprintf(path, 512, MODELS "/%s/model.hlo.pb", model);
    if (access(path, R_OK) != 0) snprintf(path, 512, MODELS "/%s/model.hlo.pb.zst", model);
    return path;
}

static const char *roles_file(const char *model, char path[512]) {
    snprintf(path, 512, MODELS "/%s/model.roles.json", model);
    return path;
}

static void assert_same_phases(const char *model, const Case *c, const IrPhase *found, const IrPhase *told) {
    for (int32_t i = 0; i < c->canonical->instruction_count; i++)
        if (found[i] != told[i])
            fail_msg("%s: %s (%s): found %s, expected %s", model, c->canonical->instructions[i].name,
                     c->canonical->instructions[i].op_name, ir_phase_name(found[i]), ir_phase_name(told[i]));
}

/* Without the file and the removed parts, the analysis agrees with the exporter. */
static void check_model(const char *model, Stripped stripped) {
    char path[512];
    Case c, whole;
    IrRoles *told;
    open_stripped(&c, model_file(model, path), stripped);
    open_case(&whole, path);
    assert_int_equal(ir_find_roles(&c.roles, &c.arena, c.canonical, NULL, &c.error), AM_OK);
    if (ir_find_roles(&told, &whole.arena, whole.canonical, roles_file(model, path), &whole.error) != AM_OK)
        fail_msg("%s: %s", whole.error.source, whole.error.text);
    assert_int_equal(c.roles->loss, told->loss);
    for (int32_t p = 0; p < told->parameter_count; p++) {
        const IrParameter *found = &c.roles->parameters[p], *expected = &told->parameters[p];
        if (found->role != expected->role || found->output != expected->output)
            fail_msg("%s: %s: found %s, output %d, expected %s, output %d", model, found->path,
                     ir_role_name(found->role), found->output, ir_role_name(expected->role),
                     expected->output);
        assert_string_equal(expected->paired_by, expected->output >= 0 ? "roles file" : "");
        if (found->output >= 0 && stripped != NOTHING) assert_string_not_equal(found->paired_by, "alias");
    }
    assert_same_phases(model, &whole, c.roles->phases, told->phases);
    close_case(&c);
    close_case(&whole);
}

static bool is_product(const IrInstruction *instruction) {
    return instruction->opcode == IR_DOT || instruction->opcode == IR_CONVOLUTION;
}

/* Checks the phases implied by op_names: transposed instructions are not the optimizer's, and
 * instructions recomputed by a checkpoint are recomputed. Returns the number of recomputed
 * products. */
static int check_names(const char *model) {
    char path[512];
    Case c;
    int recomputed = 0;
    open_case(&c, model_file(model, path));
    assert_int_equal(ir_find_roles(&c.roles, &c.arena, c.canonical, NULL, &c.error), AM_OK);
    for (int32_t i = 0; i < c.canonical->instruction_count; i++) {
        const IrInstruction *instruction = &c.canonical->instructions[i];
        IrPhase phase = c.roles->phases[i];
        bool is_rematted = strstr(instruction->op_name, "rematted_computation") != NULL;
        bool is_transposed = strstr(instruction->op_name, "transpose(") != NULL;
        if (is_product(instruction)) {
            recomputed += phase == IR_PHASE_RECOMPUTED;
            if (is_rematted != (phase == IR_PHASE_RECOMPUTED) ||
                (is_transposed && !is_rematted && phase != IR_PHASE_BACKWARD))
                fail_msg("%s: %s is %s", model, instruction->op_name, ir_phase_name(phase));
        }
        if (is_transposed && (phase == IR_PHASE_OPTIMIZER || phase == IR_PHASE_FORWARD))
            fail_msg("%s: %s is %s", model, instruction->op_name, ir_phase_name(phase));
    }
    close_case(&c);
    return recomputed;
}

/* Data flow alone finds the roles that the exporter takes from the pytrees, also without op_names
 * and donations. With a single example it cannot identify the batch dimension. */
static void every_model_as_exported(void **state) {
    (void)state;
    DIR *directory = opendir(MODELS);
    assert_non_null(directory);
    int models = 0;
    for (struct dirent *entry = readdir(directory); entry; entry = readdir(directory)) {
        char path[512];
        if (entry->d_name[0] == '.' || access(roles_file(entry->d_name, path), R_OK) != 0) continue;
        if (strcmp(entry->d_name, "gpt2_batch1") == 0) continue;
        /* Of the full-size models, which are compressed, only the hardest case. */
        bool is_large = strstr(model_file(entry->d_name, path), ".zst") != NULL;
        if (is_large && sample_of(1, 0) == 0) continue;
        for (int stripped = is_large ? BOTH : NOTHING; stripped < STRIPPED_COUNT; stripped++)
            check_model(entry->d_name, (Stripped)stripped);
        int recomputed = check_names(entry->d_name);
        assert_int_equal(recomputed > 0, strncmp(entry->d_name, "llama", 5) == 0);
        models++;
    }
    closedir(directory);
    assert_true(models >= 10);
}

/* XLA aliases donated buffers by shape; the pairs cross here, with a warning unless a roles file has them. */
static void swapped_states(void **state) {
    (void)state;
    for (int with_file = 0; with_file < 2; with_file++) {
        char path[512];
        Case c;
        open_case(&c, model_file("two_swapped", path));
        const char *roles = with_file ? roles_file("two_swapped", path) : NULL;
        assert_int_equal(ir_find_roles(&c.roles, &c.arena, c.canonical, roles, &c.error), AM_OK);
        assert_int_equal(c.roles->parameters[0].output, 1);
        assert_int_equal(c.roles->parameters[1].output, 0);
        assert_int_equal(c.roles->loss, 2);
        assert_string_equal(c.roles->parameters[0].paired_by, with_file ? "roles file" : "data flow");
        assert_int_equal(c.canonical->warnings.count, !with_file);
        if (!with_file) assert_non_null(strstr(c.canonical->warnings.texts[0], "2 donated parameters"));
        close_case(&c);
    }
}

/* Finds the roles of a module given as text. */
static void open_text(Case *c, const char *text) {
    *c = (Case){0};
    if (ir_read_bytes(&c->module, "test.hlo.txt", text, (int64_t)strlen(text), &c->error) != AM_OK)
        fail_msg("line %d: %s", (int)c->error.line, c->error.text);
    assert_int_equal(ir_canonicalize(&c->canonical, c->module, &c->error), AM_OK);
    assert_int_equal(ir_find_roles(&c->roles, &c->arena, c->canonical, NULL, &c->error), AM_OK);
}

static void assert_parameter(const Case *c, int32_t number, const char *role, int32_t output) {
    const IrParameter *parameter = &c->roles->parameters[number];
    if (strcmp(ir_role_name(parameter->role), role) != 0 || parameter->output != output)
        fail_msg("parameter %d: found %s with output %d, expected %s with output %d", number,
                 ir_role_name(parameter->role), parameter->output, role, output);
}

static void assert_phase(const Case *c, const char *name, const char *phase) {
    for (int32_t i = 0; i < c->canonical->instruction_count; i++) {
        if (strcmp(c->canonical->instructions[i].name, name) != 0) continue;
        if (strcmp(ir_phase_name(c->roles->phases[i]), phase) != 0)
            fail_msg("%s: found %s, expected %s", name, ir_phase_name(c->roles->phases[i]), phase);
        return;
    }
    fail_msg("no instruction %s", name);
}

/* loss = sum((x w)^2): the start of the modules below, up to dw, the gradient of w. */
#define SQUARES                                                                                       \
    "add_up {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] add(a, b)\n}\n\n" \
    "ENTRY main {\n  w = f32[4,4]{1,0} parameter(0)\n  x = f32[8,4]{1,0} parameter(1)\n"              \
    "  y = f32[8,4]{1,0} dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"             \
    "  yy = f32[8,4]{1,0} multiply(y, y)\n  zero = f32[] constant(0)\n"                               \
    "  loss = f32[] reduce(yy, zero), dimensions={0,1}, to_apply=add_up\n"                            \
    "  two = f32[] constant(2)\n  twos = f32[8,4]{1,0} broadcast(two), dimensions={}\n"               \
    "  dy = f32[8,4]{1,0} multiply(y, twos)\n"                                                        \
    "  dw = f32[4,4]{1,0} dot(x, dy), lhs_contracting_dims={0}, rhs_contracting_dims={0}\n"           \
    "  rate = f32[] constant(0.1)\n  rates = f32[4,4]{1,0} broadcast(rate), dimensions={}\n"

/* Adam with the weight's own decay in the gradient, so that w also reaches m and v. */
static void adam_with_weight_decay(void **state) {
    (void)state;
    Case c;
    open_text(&c,
              "HloModule adam\n\n" SQUARES
              "  m = f32[4,4]{1,0} parameter(3)\n  v = f32[4,4]{1,0} parameter(2)\n  t = s32[] parameter(4)\n"
              "  decay = f32[4,4]{1,0} multiply(w, rates)\n  g = f32[4,4]{1,0} add(dw, decay)\n"
              "  m1 = f32[4,4]{1,0} multiply(m, rates)\n  m2 = f32[4,4]{1,0} multiply(g, rates)\n"
              "  new_m = f32[4,4]{1,0} add(m1, m2)\n"
              "  gg = f32[4,4]{1,0} multiply(g, g)\n  v1 = f32[4,4]{1,0} multiply(v, rates)\n"
              "  v2 = f32[4,4]{1,0} multiply(gg, rates)\n  new_v = f32[4,4]{1,0} add(v1, v2)\n"
              "  one = s32[] constant(1)\n  new_t = s32[] add(t, one)\n  tf = f32[] convert(new_t)\n"
              "  correction = f32[] power(rate, tf)\n"
              "  corrections = f32[4,4]{1,0} broadcast(correction), dimensions={}\n"
              "  root = f32[4,4]{1,0} sqrt(new_v)\n  ratio = f32[4,4]{1,0} divide(new_m, root)\n"
              "  step = f32[4,4]{1,0} multiply(ratio, corrections)\n"
              "  new_w = f32[4,4]{1,0} subtract(w, step)\n"
              "  ROOT all = (f32[], f32[4,4]{1,0}, f32[4,4]{1,0}, s32[], f32[4,4]{1,0}) "
              "tuple(loss, new_v, new_w, new_t, new_m)\n}\n");
    assert_int_equal(c.roles->loss, 0);
    assert_parameter(&c, 0, "weight", 2);
    assert_parameter(&c, 1, "data", -1);
    assert_parameter(&c, 2, "optimizer", 1);
    assert_parameter(&c, 3, "optimizer", 4);
    assert_parameter(&c, 4, "state", 3);
    assert_phase(&c, "y", "forward");
    assert_phase(&c, "dy", "backward");
    assert_phase(&c, "twos", "backward");
    assert_phase(&c, "dw", "backward");
    static const char *const updates[] = {"rates", "g",          "m2",          "gg",
                                          "new_t", "correction", "corrections", "new_w"};
    for (size_t i = 0; i < sizeof updates / sizeof *updates; i++) assert_phase(&c, updates[i], "optimizer");
    assert_phase(&c, "w", "other");
    assert_phase(&c, "rate", "other");
    assert_phase(&c, "all", "other");
    close_case(&c);
}

/* The gradient of a weight that is used twice ends with the sum of its two parts. */
static void gradient_ends_where_all_parts_meet(void **state) {
    (void)state;
    Case c;
    open_text(
        &c,
        "HloModule twice\n\n" SQUARES "  dw2 = f32[4,4]{1,0} transpose(dw), dimensions={1,0}\n"
        "  half = f32[4,4]{1,0} multiply(dw2, rates)\n  sum = f32[4,4]{1,0} add(dw, half)\n"
        "  scaled = f32[4,4]{1,0} multiply(sum, rates)\n  new_w = f32[4,4]{1,0} subtract(w, scaled)\n"
        "  metric = f32[] negate(loss)\n  norm = f32[] reduce(sum, zero), dimensions={0,1}, to_apply=add_up\n"
        "  ROOT all = (f32[4,4]{1,0}, f32[], f32[], f32[]) tuple(new_w, loss, metric, norm)\n}\n");
    assert_int_equal(c.roles->loss, 1);
    assert_phase(&c, "half", "backward");
    assert_phase(&c, "sum", "backward");
    assert_phase(&c, "scaled", "optimizer");
    assert_phase(&c, "metric", "forward");
    assert_phase(&c, "norm", "optimizer");
    close_case(&c);
}

/* A scalar that multiplies the loss is not paired with it, whether it is fed back or not. */
static void loss_scale(void **state) {
    (void)state;
    static const char update[] = "  scale = f32[] parameter(2)\n  scaled_loss = f32[] multiply(loss, scale)\n"
                                 "  dws = f32[4,4]{1,0} multiply(dw, rates)\n"
                                 "  new_w = f32[4,4]{1,0} subtract(w, dws)\n";
    char text[4096];
    Case c;
    snprintf(text, sizeof text, "HloModule scaled\n\n%s%s%s", SQUARES, update,
             "  ROOT all = (f32[], f32[4,4]{1,0}) tuple(scaled_loss, new_w)\n}\n");
    open_text(&c, text);
    assert_int_equal(c.roles->loss, 0);
    assert_parameter(&c, 0, "weight", 1);
    assert_parameter(&c, 2, "constant", -1);
    close_case(&c);
    snprintf(text, sizeof text, "HloModule scaled\n\n%s%s%s", SQUARES, update,
             "  norm = f32[] reduce(dw, zero), dimensions={0,1}, to_apply=add_up\n  fine = pred[] "
             "is-finite(norm)\n"
             "  more = f32[] multiply(scale, two)\n  less = f32[] multiply(scale, rate)\n"
             "  new_scale = f32[] select(fine, more, less)\n"
             "  ROOT all = (f32[], f32[4,4]{1,0}, f32[]) tuple(scaled_loss, new_w, new_scale)\n}\n");
    open_text(&c, text);
    assert_int_equal(c.roles->loss, 0);
    assert_parameter(&c, 0, "weight", 1);
    assert_parameter(&c, 2, "state", 2);
    close_case(&c);
}

/* Updates that are not element-wise are paired by position; unused parameters are constants. */
static void keys_pair_by_order(void **state) {
    (void)state;
    Case c;
    open_text(
        &c,
        "HloModule keys\n\n" SQUARES
        "  key = u32[2]{0} parameter(2)\n  fresh = u32[2]{0} parameter(3)\n  table = f32[9]{0} parameter(4)\n"
        "  new_key = u32[2]{0} reverse(key), dimensions={0}\n"
        "  dws = f32[4,4]{1,0} multiply(dw, rates)\n  new_w = f32[4,4]{1,0} subtract(w, dws)\n"
        "  ROOT all = (u32[2]{0}, f32[4,4]{1,0}, f32[]) tuple(new_key, new_w, loss)\n}\n");
    /* Before the weight in the outputs but after it in the parameters: the pair is uncertain. */
    assert_parameter(&c, 2, "constant", -1);
    close_case(&c);
    open_text(&c, "HloModule keys\n\n" SQUARES
                  "  key = u32[2]{0} parameter(2)\n  table = f32[9]{0} parameter(3)\n"
                  "  new_key = u32[2]{0} reverse(key), dimensions={0}\n"
                  "  dws = f32[4,4]{1,0} multiply(dw, rates)\n  new_w = f32[4,4]{1,0} subtract(w, dws)\n"
                  "  ROOT all = (f32[4,4]{1,0}, u32[2]{0}, f32[]) tuple(new_w, new_key, loss)\n}\n");
    assert_parameter(&c, 2, "state", 1);
    assert_string_equal(c.roles->parameters[2].paired_by, "order");
    assert_parameter(&c, 3, "constant", -1);
    close_case(&c);
}

/* Results in the shape of the data, such as predictions and a reconstruction, are no new data. */
static void results_like_data_update_nothing(void **state) {
    (void)state;
    static const char update[] = "  dws = f32[4,4]{1,0} multiply(dw, rates)\n"
                                 "  new_w = f32[4,4]{1,0} subtract(w, dws)\n";
    static const struct {
        const char *body;
        int32_t loss;
    } steps[] = {
        {"  labels = f32[8,4]{1,0} parameter(2)\n"
         "  ROOT all = (f32[4,4]{1,0}, f32[], f32[8,4]{1,0}) tuple(new_w, loss, y)\n}\n",
         1},
        {"  labels = s32[8,4]{1,0} parameter(2)\n  found = s32[8,4]{1,0} convert(y)\n"
         "  ROOT all = (f32[4,4]{1,0}, s32[8,4]{1,0}, f32[]) tuple(new_w, found, loss)\n}\n",
         2},
        {"  unused = s32[] parameter(2)\n"
         "  ROOT all = (f32[8,4]{1,0}, f32[], f32[4,4]{1,0}) tuple(y, loss, new_w)\n}\n",
         1},
    };
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        char text[4096];
        Case c;
        snprintf(text, sizeof text, "HloModule results\n\n%s%s%s", SQUARES, update, steps[i].body);
        open_text(&c, text);
        assert_int_equal(c.roles->loss, steps[i].loss);
        assert_int_equal(c.roles->parameters[1].output, -1);
        assert_int_equal(c.roles->parameters[2].output, -1);
        close_case(&c);
    }
}

/* A state found only by its position causes a warning, unless it is donated. */
static void places_alone_are_warned_of(void **state) {
    (void)state;
    static const char body[] =
        SQUARES "  dws = f32[4,4]{1,0} multiply(dw, rates)\n  new_w = f32[4,4]{1,0} subtract(w, dws)\n"
                "  ROOT all = (f32[4,4]{1,0}, f32[8,4]{1,0}, f32[]) tuple(new_w, y, loss)\n}\n";
    char text[4096];
    Case c;
    snprintf(text, sizeof text, "HloModule carry\n\n%s", body);
    open_text(&c, text);
    assert_int_equal(c.roles->parameters[1].output, 1);
    assert_int_equal(c.canonical->warnings.count, 1);
    assert_non_null(strstr(c.canonical->warnings.texts[0], "by their places alone"));
    close_case(&c);
    snprintf(text, sizeof text, "HloModule carry, input_output_alias={ {1}: (1, {}, may-alias) }\n\n%s",
             body);
    open_text(&c, text);
    assert_int_equal(c.roles->parameters[1].output, 1);
    assert_int_equal(c.canonical->warnings.count, 0);
    close_case(&c);
}

/* Among several scalars the one that can be minimised is taken, at any position; a warning reports
 * undecided cases and scalars without a weight. */
static void loss_among_scalars(void **state) {
    (void)state;
    static const struct {
        const char *results;
        int32_t loss;
        const char *warning;
    } steps[] = {
        {"f32[], f32[], f32[4,4]{1,0}) tuple(loss, size, new_w)", 0, NULL},
        {"f32[], f32[], f32[4,4]{1,0}) tuple(size, loss, new_w)", 1, NULL},
        {"f32[], f32[], f32[4,4]{1,0}) tuple(right, loss, new_w)", 1, NULL},
        {"f32[], f32[], f32[4,4]{1,0}) tuple(norm, loss, new_w)", 1, NULL},
        {"f32[], f32[], f32[4,4]{1,0}) tuple(slope, loss, new_w)", 1, NULL},
        {"f32[], f32[], f32[4,4]{1,0}) tuple(half, loss, new_w)", 0, "2 outputs could be the loss"},
        {"f32[], f32[4,4]{1,0}) tuple(size, new_w)", 0, "output 0, depends on no weight"},
    };
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        char text[4096];
        Case c;
        snprintf(text, sizeof text,
                 "HloModule doubt\n\n%s  dws = f32[4,4]{1,0} multiply(dw, rates)\n"
                 "  new_w = f32[4,4]{1,0} subtract(w, dws)\n"
                 "  size = f32[] reduce(x, zero), dimensions={0,1}, to_apply=add_up\n"
                 "  norm = f32[] reduce(w, zero), dimensions={0,1}, to_apply=add_up\n"
                 "  slope = f32[] reduce(dw, zero), dimensions={0,1}, to_apply=add_up\n"
                 "  half = f32[] multiply(loss, rate)\n  is_right = pred[8,4]{1,0} compare(y, x), "
                 "direction=LT\n  ones = f32[8,4]{1,0} convert(is_right)\n"
                 "  right = f32[] reduce(ones, zero), dimensions={0,1}, to_apply=add_up\n"
                 "  ROOT all = (%s\n}\n",
                 SQUARES, steps[i].results);
        open_text(&c, text);
        assert_int_equal(c.roles->loss, steps[i].loss);
        assert_int_equal(c.canonical->warnings.count, steps[i].warning != NULL);
        if (steps[i].warning) assert_non_null(strstr(c.canonical->warnings.texts[0], steps[i].warning));
        close_case(&c);
    }
}

/* An update that is skipped when the loss is not finite: a branch that keeps the state, one that changes it.
 */
static void updates_inside_branches(void **state) {
    (void)state;
    static const char branches[] =
        "keep {\n  s = (f32[4,4]{1,0}, f32[4,4]{1,0}, f32[4,4]{1,0}) parameter(0)\n"
        "  kw = f32[4,4]{1,0} get-tuple-element(s), index=0\n  km = f32[4,4]{1,0} get-tuple-element(s), "
        "index=1\n"
        "  ROOT kept = (f32[4,4]{1,0}, f32[4,4]{1,0}) tuple(km, kw)\n}\n\n"
        "change {\n  u = (f32[4,4]{1,0}, f32[4,4]{1,0}, f32[4,4]{1,0}) parameter(0)\n"
        "  uw = f32[4,4]{1,0} get-tuple-element(u), index=0\n  um = f32[4,4]{1,0} get-tuple-element(u), "
        "index=1\n"
        "  ug = f32[4,4]{1,0} get-tuple-element(u), index=2\n  nm = f32[4,4]{1,0} add(um, ug)\n"
        "  nw = f32[4,4]{1,0} subtract(uw, nm)\n"
        "  ROOT changed = (f32[4,4]{1,0}, f32[4,4]{1,0}) tuple(nm, nw)\n}\n\n";
    char text[4096];
    Case c;
    snprintf(
        text, sizeof text, "HloModule skipped\n\n%s%s%s", branches, SQUARES,
        "  m = f32[4,4]{1,0} parameter(2)\n  fine = pred[] is-finite(loss)\n"
        "  state = (f32[4,4]{1,0}, f32[4,4]{1,0}, f32[4,4]{1,0}) tuple(w, m, dw)\n"
        "  new = (f32[4,4]{1,0}, f32[4,4]{1,0}) conditional(fine, state, state), true_computation=change, "
        "false_computation=keep\n"
        "  new_m = f32[4,4]{1,0} get-tuple-element(new), index=0\n"
        "  new_w = f32[4,4]{1,0} get-tuple-element(new), index=1\n"
        "  ROOT all = (f32[4,4]{1,0}, f32[4,4]{1,0}, f32[]) tuple(new_m, new_w, loss)\n}\n");
    open_text(&c, text);
    assert_parameter(&c, 0, "weight", 1);
    assert_parameter(&c, 1, "data", -1);
    assert_parameter(&c, 2, "optimizer", 0);
    assert_phase(&c, "dw", "backward");
    assert_phase(&c, "new", "optimizer");
    close_case(&c);
}

/* Operators applied again to the same values, after a barrier, are recomputed; the factor of the
 * derivative computed from them is backward. Names of another kind change nothing. */
static void repeated_values_are_recomputed(void **state) {
    (void)state;
    static const char body[] =
        "add_up {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] add(a, b)\n}\n\n"
        "ENTRY main {\n  w = f32[4,4]{1,0} parameter(0)\n  x = f32[8,4]{1,0} parameter(1)\n"
        "  y = f32[8,4]{1,0} dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
        "  h = f32[8,4]{1,0} tanh(y)\n  zero = f32[] constant(0)\n"
        "  loss = f32[] reduce(h, zero), dimensions={0,1}, to_apply=add_up\n"
        "  given = (f32[4,4]{1,0}, f32[8,4]{1,0}) tuple(w, x)\n"
        "  kept = (f32[4,4]{1,0}, f32[8,4]{1,0}) opt-barrier(given)\n"
        "  kw = f32[4,4]{1,0} get-tuple-element(kept), index=0\n"
        "  kx = f32[8,4]{1,0} get-tuple-element(kept), index=1\n"
        "  y2 = f32[8,4]{1,0} dot(kx, kw), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
        "  h2 = f32[8,4]{1,0} tanh(y2)\n  square = f32[8,4]{1,0} multiply(h2, h2)\n"
        "  one = f32[] constant(1)\n  ones = f32[8,4]{1,0} broadcast(one), dimensions={}\n"
        "  factor = f32[8,4]{1,0} subtract(ones, square)\n"
        "  dw = f32[4,4]{1,0} dot(kx, factor), lhs_contracting_dims={0}, rhs_contracting_dims={0}\n"
        "  rate = f32[] constant(0.1)\n  rates = f32[4,4]{1,0} broadcast(rate), dimensions={}\n"
        "  step = f32[4,4]{1,0} multiply(dw, rates)\n  new_w = f32[4,4]{1,0} subtract(w, step)\n"
        "  ROOT all = (f32[4,4]{1,0}, f32[]) tuple(new_w, loss)\n}\n";
    char text[4096];
    Case c;
    snprintf(text, sizeof text, "HloModule remat\n\n%s", body);
    open_text(&c, text);
    assert_phase(&c, "y", "forward");
    assert_phase(&c, "y2", "recomputed");
    assert_phase(&c, "h2", "recomputed");
    assert_phase(&c, "square", "backward");
    assert_phase(&c, "factor", "backward");
    assert_phase(&c, "dw", "backward");
    assert_phase(&c, "step", "optimizer");
    close_case(&c);
}

/* A loop of whole training steps: the next step's forward pass does not make this one's gradient forward. */
static void steps_in_a_loop(void **state) {
    (void)state;
    Case c;
    open_text(
        &c, "HloModule steps\n\n"
            "add_up {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] add(a, b)\n}\n\n"
            "more {\n  m = (f32[4,4]{1,0}, f32[3,8,4]{2,1,0}, s32[], f32[]) parameter(0)\n"
            "  mi = s32[] get-tuple-element(m), index=2\n  three = s32[] constant(3)\n"
            "  ROOT go = pred[] compare(mi, three), direction=LT\n}\n\n"
            "step {\n  s = (f32[4,4]{1,0}, f32[3,8,4]{2,1,0}, s32[], f32[]) parameter(0)\n"
            "  sw = f32[4,4]{1,0} get-tuple-element(s), index=0\n"
            "  sx = f32[3,8,4]{2,1,0} get-tuple-element(s), index=1\n"
            "  si = s32[] get-tuple-element(s), index=2\n  sl = f32[] get-tuple-element(s), index=3\n"
            "  one = s32[] constant(1)\n  next = s32[] add(si, one)\n  first = s32[] constant(0)\n"
            "  part = f32[1,8,4]{2,1,0} dynamic-slice(sx, si, first, first), dynamic_slice_sizes={1,8,4}\n"
            "  x = f32[8,4]{1,0} reshape(part)\n"
            "  y = f32[8,4]{1,0} dot(x, sw), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
            "  yy = f32[8,4]{1,0} multiply(y, y)\n  zero = f32[] constant(0)\n"
            "  now = f32[] reduce(yy, zero), dimensions={0,1}, to_apply=add_up\n  sum = f32[] add(sl, now)\n"
            "  dw = f32[4,4]{1,0} dot(x, y), lhs_contracting_dims={0}, rhs_contracting_dims={0}\n"
            "  rate = f32[] constant(0.1)\n  rates = f32[4,4]{1,0} broadcast(rate), dimensions={}\n"
            "  change = f32[4,4]{1,0} multiply(dw, rates)\n  nw = f32[4,4]{1,0} subtract(sw, change)\n"
            "  ROOT r = (f32[4,4]{1,0}, f32[3,8,4]{2,1,0}, s32[], f32[]) tuple(nw, sx, next, sum)\n}\n\n"
            "ENTRY main {\n  data = f32[3,8,4]{2,1,0} parameter(0)\n  w = f32[4,4]{1,0} parameter(1)\n"
            "  table = f32[9]{0} parameter(2)\n  start = s32[] constant(0)\n  none = f32[] constant(0)\n"
            "  t = (f32[4,4]{1,0}, f32[3,8,4]{2,1,0}, s32[], f32[]) tuple(w, data, start, none)\n"
            "  loop = (f32[4,4]{1,0}, f32[3,8,4]{2,1,0}, s32[], f32[]) while(t), body=step, condition=more\n"
            "  new_w = f32[4,4]{1,0} get-tuple-element(loop), index=0\n"
            "  loss = f32[] get-tuple-element(loop), index=3\n"
            "  ROOT all = (f32[4,4]{1,0}, f32[]) tuple(new_w, loss)\n}\n");
    assert_int_equal(c.roles->loss, 1);
    assert_parameter(&c, 0, "data", -1);
    assert_parameter(&c, 1, "weight", 0);
    assert_string_equal(c.roles->parameters[1].paired_by, "data flow");
    assert_parameter(&c, 2, "constant", -1);
    assert_phase(&c, "y", "forward");
    assert_phase(&c, "sum", "forward");
    assert_phase(&c, "dw", "backward");
    assert_phase(&c, "change", "optimizer");
    assert_phase(&c, "nw", "optimizer");
    assert_phase(&c, "loop", "forward");
    close_case(&c);
}

/* Two loops with one body: inputs of the second are not results of the first. */
static void shared_bodies_keep_apart(void **state) {
    (void)state;
    static const char loop[] =
        "more {\n  m = (f32[4,4]{1,0}, s32[]) parameter(0)\n  mi = s32[] get-tuple-element(m), index=1\n"
        "  three = s32[] constant(3)\n  ROOT go = pred[] compare(mi, three), direction=LT\n}\n\n"
        "twice {\n  s = (f32[4,4]{1,0}, s32[]) parameter(0)\n"
        "  sv = f32[4,4]{1,0} get-tuple-element(s), index=0\n  si = s32[] get-tuple-element(s), index=1\n"
        "  one = s32[] constant(1)\n  next = s32[] add(si, one)\n  doubled = f32[4,4]{1,0} add(sv, sv)\n"
        "  ROOT r = (f32[4,4]{1,0}, s32[]) tuple(doubled, next)\n}\n\n";
    char text[4096];
    Case c;
    snprintf(text, sizeof text, "HloModule shared\n\n%s%s%s", loop, SQUARES,
             "  start = s32[] constant(0)\n  wt = (f32[4,4]{1,0}, s32[]) tuple(w, start)\n"
             "  wl = (f32[4,4]{1,0}, s32[]) while(wt), body=twice, condition=more\n"
             "  wv = f32[4,4]{1,0} get-tuple-element(wl), index=0\n"
             "  other = f32[] reduce(wv, zero), dimensions={0,1}, to_apply=add_up\n"
             "  total = f32[] add(loss, other)\n"
             "  gt = (f32[4,4]{1,0}, s32[]) tuple(dw, start)\n"
             "  gl = (f32[4,4]{1,0}, s32[]) while(gt), body=twice, condition=more\n"
             "  g = f32[4,4]{1,0} get-tuple-element(gl), index=0\n"
             "  step = f32[4,4]{1,0} multiply(g, rates)\n  new_w = f32[4,4]{1,0} subtract(w, step)\n"
             "  ROOT all = (f32[4,4]{1,0}, f32[]) tuple(new_w, total)\n}\n");
    open_text(&c, text);
    assert_parameter(&c, 0, "weight", 0);
    assert_parameter(&c, 1, "data", -1);
    assert_phase(&c, "wl", "forward");
    assert_phase(&c, "dw", "backward");
    assert_phase(&c, "gl", "backward");
    assert_phase(&c, "step", "optimizer");
    close_case(&c);
}

/* Data in whose buffer JAX puts a prediction is data nevertheless. */
static void donated_data_is_data(void **state) {
    (void)state;
    Case c;
    open_text(&c, "HloModule donated, input_output_alias={ {1}: (1, {}, may-alias) }\n\n" SQUARES
                  "  labels = f32[8,4]{1,0} parameter(2)\n  error = f32[8,4]{1,0} subtract(y, labels)\n"
                  "  sum = f32[] reduce(error, zero), dimensions={0,1}, to_apply=add_up\n"
                  "  total = f32[] add(loss, sum)\n  dws = f32[4,4]{1,0} multiply(dw, rates)\n"
                  "  new_w = f32[4,4]{1,0} subtract(w, dws)\n"
                  "  ROOT all = (f32[], f32[8,4]{1,0}, f32[4,4]{1,0}) tuple(total, y, new_w)\n}\n");
    assert_parameter(&c, 0, "weight", 2);
    assert_parameter(&c, 1, "data", -1);
    assert_parameter(&c, 2, "data", -1);
    close_case(&c);
}

/* A state that nothing uses and that is set anew from constants, between two that are updated. */
static void unused_state_pairs_by_its_place(void **state) {
    (void)state;
    Case c;
    open_text(&c,
              "HloModule unused\n\n" SQUARES "  idle = f32[3]{0} parameter(2)\n  count = s32[] parameter(3)\n"
              "  zeros = f32[3]{0} broadcast(zero), dimensions={}\n  one = s32[] constant(1)\n"
              "  new_count = s32[] add(count, one)\n  dws = f32[4,4]{1,0} multiply(dw, rates)\n"
              "  new_w = f32[4,4]{1,0} subtract(w, dws)\n"
              "  ROOT all = (f32[4,4]{1,0}, f32[3]{0}, s32[], f32[]) tuple(new_w, zeros, new_count, "
              "loss)\n}\n");
    assert_parameter(&c, 0, "weight", 0);
    assert_parameter(&c, 1, "data", -1);
    assert_parameter(&c, 2, "constant", -1); /* x stands between in the parameters: nothing is certain */
    assert_parameter(&c, 3, "state", 2);
    close_case(&c);
    open_text(&c, "HloModule unused\n\n" SQUARES
                  "  idle = f32[3]{0} parameter(2)\n  zeros = f32[3]{0} broadcast(zero), dimensions={}\n"
                  "  dws = f32[4,4]{1,0} multiply(dw, rates)\n  new_w = f32[4,4]{1,0} subtract(w, dws)\n"
                  "  last = f32[8,4]{1,0} add(x, y)\n"
                  "  ROOT all = (f32[4,4]{1,0}, f32[8,4]{1,0}, f32[3]{0}, f32[]) tuple(new_w, last, zeros, "
                  "loss)\n}\n");
    assert_parameter(&c, 2, "state", 2);
    assert_string_equal(c.roles->parameters[2].paired_by, "order");
    close_case(&c);
}

/* Loops that carry nested tuples, and that swap their values forever: no pass loops with them. */
static void odd_loops_come_to_an_end(void **state) {
    (void)state;
    Case c;
    open_text(&c,
              "HloModule odd\n\n"
              "more {\n  m = (f32[4]{0}, (f32[4]{0}, f32[4]{0}), s32[]) parameter(0)\n"
              "  mi = s32[] get-tuple-element(m), index=2\n  three = s32[] constant(3)\n"
              "  ROOT go = pred[] compare(mi, three), direction=LT\n}\n\n"
              "swap {\n  s = (f32[4]{0}, (f32[4]{0}, f32[4]{0}), s32[]) parameter(0)\n"
              "  a = f32[4]{0} get-tuple-element(s), index=0\n"
              "  inner = (f32[4]{0}, f32[4]{0}) get-tuple-element(s), index=1\n"
              "  b = f32[4]{0} get-tuple-element(inner), index=0\n"
              "  d = f32[4]{0} get-tuple-element(inner), index=1\n  i = s32[] get-tuple-element(s), index=2\n"
              "  one = s32[] constant(1)\n  next = s32[] add(i, one)\n"
              "  other = (f32[4]{0}, f32[4]{0}) tuple(d, a)\n"
              "  ROOT r = (f32[4]{0}, (f32[4]{0}, f32[4]{0}), s32[]) tuple(b, other, next)\n}\n\n"
              "ENTRY main {\n  w = f32[4]{0} parameter(0)\n  v = f32[4]{0} parameter(1)\n"
              "  start = s32[] constant(0)\n  both = (f32[4]{0}, f32[4]{0}) tuple(v, v)\n"
              "  t = (f32[4]{0}, (f32[4]{0}, f32[4]{0}), s32[]) tuple(w, both, start)\n"
              "  loop = (f32[4]{0}, (f32[4]{0}, f32[4]{0}), s32[]) while(t), body=swap, condition=more\n"
              "  first = f32[4]{0} get-tuple-element(loop), index=0\n"
              "  rest = (f32[4]{0}, f32[4]{0}) get-tuple-element(loop), index=1\n"
              "  second = f32[4]{0} get-tuple-element(rest), index=1\n"
              "  ROOT all = (f32[4]{0}, f32[4]{0}) tuple(first, second)\n}\n");
    assert_int_equal(c.roles->loss, -1);
    assert_parameter(&c, 0, "weight", 0);
    assert_phase(&c, "loop", "forward"); /* as everything is without a loss */
    close_case(&c);
}

/* Two parameters equally near to one output: the first, unless a donation decides. */
static void alias_breaks_a_tie(void **state) {
    (void)state;
    static const char body[] = "ENTRY main {\n  a = f32[4]{0} parameter(0)\n  b = f32[4]{0} parameter(1)\n"
                               "  c = f32[] constant(1)\n  s = f32[4]{0} add(a, b)\n"
                               "  ROOT t = (f32[4]{0}, f32[]) tuple(s, c)\n}\n";
    char text[1024];
    Case c;
    snprintf(text, sizeof text, "HloModule tie\n\n%s", body);
    open_text(&c, text);
    assert_int_equal(c.roles->parameters[0].output, 0);
    assert_int_equal(c.roles->parameters[1].output, -1);
    close_case(&c);
    snprintf(text, sizeof text, "HloModule tie, input_output_alias={ {0}: (1, {}, may-alias) }\n\n%s", body);
    open_text(&c, text);
    assert_int_equal(c.roles->parameters[0].output, -1);
    assert_int_equal(c.roles->parameters[1].output, 0);
    close_case(&c);
}

/* The average of a frozen weight and of a teacher's is the teacher's next value if its place among the other
 * states says so, against a donation to the first of equal shape. One warning names both, unless the donation
 * and the order agree. */
static void order_breaks_a_tie(void **state) {
    (void)state;
    static const char body[] =
        "ENTRY main {\n  frozen = f32[4]{0} parameter(0)\n  w = f32[5]{0} parameter(1)\n"
        "  teacher = f32[4]{0} parameter(2)\n  average = f32[6]{0} parameter(3)\n"
        "  mean = f32[4]{0} add(teacher, frozen)\n  new_w = f32[5]{0} negate(w)\n"
        "  new_average = f32[6]{0} negate(average)\n";
    static const struct {
        const char *aliases, *results;
        int32_t frozen, teacher;
        bool is_doubtful;
    } orders[] = {
        {"", "(f32[5]{0}, f32[4]{0}, f32[6]{0}) tuple(new_w, mean, new_average)", -1, 1, true},
        {", input_output_alias={ {1}: (0, {}, may-alias) }",
         "(f32[5]{0}, f32[4]{0}, f32[6]{0}) tuple(new_w, mean, new_average)", -1, 1, true},
        {"", "(f32[4]{0}, f32[5]{0}, f32[6]{0}) tuple(mean, new_w, new_average)", 0, -1, true},
        {", input_output_alias={ {0}: (0, {}, may-alias) }",
         "(f32[4]{0}, f32[5]{0}, f32[6]{0}) tuple(mean, new_w, new_average)", 0, -1, false},
        {"", "(f32[5]{0}, f32[6]{0}, f32[4]{0}) tuple(new_w, new_average, mean)", 2, -1, true},
    };
    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++) {
        char text[2048];
        int32_t warnings = 0;
        Case c;
        snprintf(text, sizeof text, "HloModule tie%s\n\n%s  ROOT t = %s\n}\n", orders[i].aliases, body,
                 orders[i].results);
        open_text(&c, text);
        assert_int_equal(c.roles->parameters[0].output, orders[i].frozen);
        assert_int_equal(c.roles->parameters[2].output, orders[i].teacher);
        for (int32_t k = 0; k < c.canonical->warnings.count; k++)
            if (strstr(c.canonical->warnings.texts[k], "data flow leaves open")) {
                assert_non_null(strstr(c.canonical->warnings.texts[k], "parameter 0"));
                assert_non_null(strstr(c.canonical->warnings.texts[k], "parameter 2"));
                warnings++;
            }
        assert_int_equal(warnings, orders[i].is_doubtful);
        close_case(&c);
    }
}

/* A residual block returns x + f(x), which is no new state; all of it is forward. */
static void inference_pairs_nothing(void **state) {
    (void)state;
    Case c;
    open_text(&c,
              "HloModule block\n\nENTRY main {\n  x = f32[8,4]{1,0} parameter(0), metadata={op_name=\"p\"}\n"
              "  w = f32[4,4]{1,0} parameter(1), metadata={op_name=\"p\"}\n"
              "  y = f32[8,4]{1,0} dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
              "  dead = f32[8,4]{1,0} sine(y)\n"
              "  ROOT z = f32[8,4]{1,0} add(x, y), control-predecessors={dead}\n}\n");
    assert_int_equal(c.roles->loss, -1);
    assert_int_equal(c.roles->output_count, 1);
    assert_parameter(&c, 0, "data", -1);
    assert_parameter(&c, 1, "constant", -1);
    assert_string_equal(c.roles->parameters[0].path, "p");
    assert_string_equal(c.roles->parameters[1].path, "p#2");
    assert_phase(&c, "y", "forward");
    assert_phase(&c, "dead", "other");
    close_case(&c);
}

/* Every mistake is refused with the position in the file and the expectation. */
static void bad_roles_files_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *text, *message;
    } files[] = {
        {"[]", "$: expected an object"},
        {"{}", "$.format: missing, expected \"automap-roles-1\""},
        {"{\"format\": \"automap-roles-2\", \"parameters\": [], \"loss\": null}", "$.format"},
        {"{\"format\": \"automap-roles-1\", \"parameters\": [], \"loss\": null}",
         "expected the module's 3 parameters"},
        {"{\"format\": \"automap-roles-1\", \"parameters\": [], \"loss\": null, \"losses\": 1}", "losses"},
        {"FIRST, \"role\": \"weights\", \"output\": 1}", "$.parameters[0].role"},
        {"FIRST, \"role\": \"weight\", \"output\": 3}", "$.parameters[0].output"},
        {"FIRST, \"role\": \"weight\", \"output\": 2}", "another shape"},
        {"FIRST, \"role\": \"weight\", \"output\": null}", "expected the index of an output"},
        {"FIRST, \"role\": \"data\", \"output\": 1}", "expected null"},
        {"FIRST, \"role\": \"weight\"}", "$.parameters[0].output"},
        {"FIRST, \"role\": \"weight\", \"output\": 1, \"extra\": 1}", "extra"},
        {"{\"format\": \"automap-roles-1\", \"loss\": null, \"parameters\": [{\"number\": 1, \"path\": "
         "\"a\"}, 2, 3]}",
         "$.parameters[0].number"},
        {"{\"format\": \"automap-roles-1\", \"loss\": null, \"parameters\": [{\"number\": 0, \"path\": "
         "\"a\", "
         "\"role\": \"data\", \"output\": null}, 2, 3]}",
         "$.parameters[0].path"},
    };
    static const char first[] =
        "{\"format\": \"automap-roles-1\", \"loss\": null, \"parameters\": [{\"number\": 0, "
        "\"path\": \"first['kernel']\"";
    char model[512], path[64], text[512];
    Case c;
    open_case(&c, model_file("two_swapped", model));
    snprintf(path, sizeof path, "/tmp/automap_test_roles.%d.json", (int)getpid());
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        bool begins = strncmp(files[i].text, "FIRST", 5) == 0;
        if (begins) snprintf(text, sizeof text, "%s%s, 2, 3]}", first, files[i].text + 5);
        else snprintf(text, sizeof text, "%s", files[i].text);
        FILE *file = fopen(path, "w");
        assert_non_null(file);
        fputs(text, file);
        fclose(file);
        AmError error = {0};
        AmStatus status = ir_find_roles(&c.roles, &c.arena, c.canonical, path, &error);
        if (status != AM_ERROR_INPUT || !strstr(error.text, files[i].message))
            fail_msg("%s: status %d, \"%s\", expected \"%s\"", text, status, error.text, files[i].message);
    }
    remove(path);
    close_case(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_model_as_exported),
        cmocka_unit_test(swapped_states),
        cmocka_unit_test(adam_with_weight_decay),
        cmocka_unit_test(gradient_ends_where_all_parts_meet),
        cmocka_unit_test(loss_scale),
        cmocka_unit_test(keys_pair_by_order),
        cmocka_unit_test(results_like_data_update_nothing),
        cmocka_unit_test(places_alone_are_warned_of),
        cmocka_unit_test(loss_among_scalars),
        cmocka_unit_test(updates_inside_branches),
        cmocka_unit_test(repeated_values_are_recomputed),
        cmocka_unit_test(steps_in_a_loop),
        cmocka_unit_test(shared_bodies_keep_apart),
        cmocka_unit_test(donated_data_is_data),
        cmocka_unit_test(unused_state_pairs_by_its_place),
        cmocka_unit_test(odd_loops_come_to_an_end),
        cmocka_unit_test(alias_breaks_a_tie),
        cmocka_unit_test(order_breaks_a_tie),
        cmocka_unit_test(inference_pairs_nothing),
        cmocka_unit_test(bad_roles_files_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
