/* Planning through loops: which values a loop hands on, classes that reach
 * through it, and where its reductions take place. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "ir/canonical/canonical.h"
#include "lowering/spmd/lower.h"

#define MODELS SOURCE_DIR "/datasets/models/"

/* Rows of x times w, scaled by the running count: w and x are invariant, sum accumulates, rows is
 * filled row by row, last is replaced. */
static const char text[] =
    "HloModule m\n"
    "body {\n"
    "  p = (s32[], f32[6,8], f32[8,4], f32[4], (f32[6,4], f32[4])) parameter(0)\n"
    "  i = s32[] get-tuple-element(p), index=0\n"
    "  x = f32[6,8] get-tuple-element(p), index=1\n"
    "  w = f32[8,4] get-tuple-element(p), index=2\n"
    "  sum = f32[4] get-tuple-element(p), index=3\n"
    "  inner = (f32[6,4], f32[4]) get-tuple-element(p), index=4\n"
    "  rows = f32[6,4] get-tuple-element(inner), index=0\n"
    "  one = s32[] constant(1)\n"
    "  next = s32[] add(i, one)\n"
    "  zero = s32[] constant(0)\n"
    "  again = s32[] constant(0)\n"
    "  row = f32[1,8] dynamic-slice(x, i, zero), dynamic_slice_sizes={1,8}\n"
    "  y = f32[1,4] dot(row, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
    "  flat = f32[4] reshape(y)\n"
    "  new_sum = f32[4] add(sum, flat)\n"
    "  new_rows = f32[6,4] dynamic-update-slice(rows, y, i, again)\n"
    "  new_inner = (f32[6,4], f32[4]) tuple(new_rows, flat)\n"
    "  ROOT r = (s32[], f32[6,8], f32[8,4], f32[4], (f32[6,4], f32[4])) tuple(next, x, w, new_sum, "
    "new_inner)\n"
    "}\n"
    "condition {\n"
    "  p = (s32[], f32[6,8], f32[8,4], f32[4], (f32[6,4], f32[4])) parameter(0)\n"
    "  i = s32[] get-tuple-element(p), index=0\n"
    "  six = s32[] constant(6)\n"
    "  ROOT go = pred[] compare(i, six), direction=LT\n"
    "}\n"
    "ENTRY main {\n"
    "  x = f32[6,8] parameter(0)\n"
    "  w = f32[8,4] parameter(1)\n"
    "  zero = s32[] constant(0)\n"
    "  nothing = f32[] constant(0)\n"
    "  no_sum = f32[4] broadcast(nothing), dimensions={}\n"
    "  no_rows = f32[6,4] broadcast(nothing), dimensions={}\n"
    "  inner = (f32[6,4], f32[4]) tuple(no_rows, no_sum)\n"
    "  t = (s32[], f32[6,8], f32[8,4], f32[4], (f32[6,4], f32[4])) tuple(zero, x, w, no_sum, inner)\n"
    "  loop = (s32[], f32[6,8], f32[8,4], f32[4], (f32[6,4], f32[4])) while(t), condition=condition, "
    "body=body\n"
    "  total = f32[4] get-tuple-element(loop), index=3\n"
    "  same_w = f32[8,4] get-tuple-element(loop), index=2\n"
    "  filled = (f32[6,4], f32[4]) get-tuple-element(loop), index=4\n"
    "  all = f32[6,4] get-tuple-element(filled), index=0\n"
    "  ROOT o = (f32[4], f32[8,4], f32[6,4]) tuple(total, same_w, all)\n"
    "}\n";

static int32_t find(const IrModule *module, const char *name) {
    for (int32_t i = 0; i < module->instruction_count; i++)
        if (strcmp(module->instructions[i].name, name) == 0) return i;
    fail_msg("no instruction %s", name);
    return -1;
}

static void values_are_known_by_their_readers(void **state) {
    (void)state;
    AmError error = {0};
    Arena arena = {0};
    IrModule *read, *module;
    Rules *rules;
    assert_int_equal(ir_read_bytes(&read, "test", text, (int64_t)strlen(text), &error), AM_OK);
    assert_int_equal(ir_canonicalize(&module, read, &error), AM_OK);
    assert_int_equal(rules_build(&rules, &arena, module, &error), AM_OK);
    assert_int_equal(rules->loop_count, 1);
    const PlannedLoop *loop = rules_loop(rules, find(module, "loop"));
    assert_ptr_equal(loop, &rules->loops[0]);
    assert_int_equal(loop->leaf_count, 6);
    static const bool invariant[] = {false, true, true, false, false, false};
    for (int32_t k = 0; k < 6; k++) assert_int_equal(loop->leaves[k].is_invariant, invariant[k]);
    assert_int_equal(loop->leaves[4].in_body, find(module, "rows"));
    assert_int_equal(loop->leaves[4].next, find(module, "new_rows"));
    assert_int_equal(loop->leaves[4].afterwards, find(module, "all"));
    assert_int_equal(loop->leaves[5].in_body, -1);
    assert_int_equal(loop->leaves[5].next, find(module, "flat"));
    assert_int_equal(rules->alias[find(module, "total")], find(module, "total"));
    int32_t again = find(module, "again"), zero = rules->alias[again];
    assert_int_not_equal(zero, again);
    assert_string_equal(module->instructions[zero].name, "zero");
    assert_int_not_equal(zero, find(module, "zero")); /* the entry's */
    /* The body runs 6 times, the condition once more. */
    assert_float_equal(rules->times[loop->body], 6, 0);
    assert_float_equal(rules->times[loop->condition], 7, 0);
    arena_free(&arena);
    ir_module_free(module);
    ir_module_free(read);
}

static PlanContext *read_context(const char *model) {
    AmError error = {0};
    PlanContext *context;
    char path[512];
    snprintf(path, sizeof path, MODELS "%s/model.hlo.pb", model);
    if (plan_context_read(&context, path, NULL, &error) != AM_OK)
        fail_msg("%s: %s", error.source, error.text);
    return context;
}

static int32_t parameter(const PlanContext *context, const char *path) {
    for (int32_t k = 0; k < context->roles->parameter_count; k++)
        if (strcmp(context->roles->parameters[k].path, path) == 0)
            return context->roles->parameters[k].instruction;
    fail_msg("no parameter %s", path);
    return -1;
}

static Program *lower(const PlanContext *context, Arena *arena, const char *mesh, int32_t class) {
    AmError error = {0};
    PlanStage *stage = ARENA_ARRAY(arena, PlanStage, 1);
    PlanEntry *entry = ARENA_ARRAY(arena, PlanEntry, 1);
    Assignment *assignment;
    Program *program;
    assert_int_equal(mesh_parse(&stage->mesh, arena, mesh, &error), AM_OK);
    entry->class_index = class;
    stage->axis_priorities[0] = (PlanAxisPriority){1, entry};
    assert_int_equal(plan_assign(&assignment, arena, context, stage, &error), AM_OK);
    if (plan_lower(&program, arena, context, assignment, 1, &error) != AM_OK) fail_msg("%s", error.text);
    return program;
}

/* Arrays that collectives of a kind move, in a program without its regions. */
static int32_t moved(const Program *program, ProgramCollectiveKind kind) {
    int32_t count = 0;
    for (int32_t i = 0; i < program->instruction_count; i++) {
        const ProgramInstruction *instruction = &program->instructions[i];
        if (instruction->kind == PROGRAM_COLLECTIVE && instruction->collective->kind == kind)
            count += instruction->operand_count;
    }
    return count;
}

static const ProgramInstruction *loop_of(const Program *program, int32_t number) {
    for (int32_t i = 0; i < program->instruction_count; i++)
        if (program->instructions[i].opcode == IR_WHILE && number-- == 0) return &program->instructions[i];
    fail_msg("no such loop");
    return NULL;
}

/* A stacked weight, its slices in both loops and its gradient are one class. */
static void layers_of_a_scan_are_one_decision(void **state) {
    (void)state;
    PlanContext *context = read_context("llama_tiny");
    Arena arena = {0};
    int32_t kernel = parameter(context, "state['params']['layers']['down']['kernel']");
    int32_t moment = parameter(context, "state['mean']['layers']['down']['kernel']");
    int32_t other = parameter(context, "state['params']['layers']['up']['kernel']");
    int32_t class = classes_of(context->classes, context->rules, kernel, 1);
    assert_true(class >= 0);
    assert_int_equal(classes_of(context->classes, context->rules, moment, 1), class);
    assert_int_equal(classes_of(context->classes, context->rules, other, 2), class);
    /* Megatron's split of the feed-forward block: the forward body adds its results, the backward
     * body its gradient for the previous layer: two products in f32, which are added and scattered
     * as one. Both are rounded in shards and gathered as 16 bits. No data moves outside. */
    Program *program = lower(context, &arena, "model=2", class);
    assert_int_equal(context->rules->loop_count, 2);
    const ProgramInstruction *forward = loop_of(program, 0), *backward = loop_of(program, 1);
    assert_int_equal(moved(forward->regions.programs[0], PROGRAM_ALL_REDUCE), 0);
    assert_int_equal(moved(forward->regions.programs[0], PROGRAM_REDUCE_SCATTER), 1);
    assert_int_equal(moved(forward->regions.programs[0], PROGRAM_ALL_GATHER), 1);
    assert_int_equal(moved(backward->regions.programs[0], PROGRAM_ALL_REDUCE), 0);
    assert_int_equal(moved(backward->regions.programs[0], PROGRAM_REDUCE_SCATTER), 1);
    assert_int_equal(moved(backward->regions.programs[0], PROGRAM_ALL_GATHER), 1);
    assert_int_equal(moved(program, PROGRAM_ALL_REDUCE), 0);
    assert_int_equal(moved(program, PROGRAM_ALL_GATHER), 0);
    arena_free(&arena);
    plan_context_free(context);
}

/* Each device holds the part of the batch in every micro-batch; the loss and all
 * gradients are reduced once, after the loop. */
static void accumulated_gradients_are_reduced_once(void **state) {
    (void)state;
    PlanContext *context = read_context("accumulated_tiny");
    Arena arena = {0};
    int32_t batch = -1;
    for (int32_t c = 0; c < context->classes->count; c++) {
        const DimensionClass *class = &context->classes->classes[c];
        if (class->data_count > 0 && class->weight_count == 0 && class->flops > 0) batch = c;
    }
    assert_true(batch >= 0);
    assert_false(context->classes->classes[batch].named_by_parameter);
    Program *program = lower(context, &arena, "data=2", batch);
    const Program *body = loop_of(program, 0)->regions.programs[0];
    assert_int_equal(moved(program, PROGRAM_ALL_REDUCE), 7);
    assert_int_equal(moved(body, PROGRAM_ALL_REDUCE), 0);
    int32_t dots = 0;
    for (int32_t i = 0; i < body->instruction_count; i++) {
        const ProgramInstruction *instruction = &body->instructions[i];
        if (instruction->opcode != IR_DOT || instruction->kind != PROGRAM_COMPUTE) continue;
        dots += sbp_is_partial(body->values[instruction->first_result].state.axis[0]);
    }
    assert_int_equal(dots, 3);
    arena_free(&arena);
    plan_context_free(context);
}

/* A loop's tuple as a whole: into another loop, through a barrier, and inside the
 * body into a branch. */
static const char whole_tuples[] =
    "HloModule m\n"
    "double { t = (s32[], f32[4]) parameter(0)\n"
    "  i = s32[] get-tuple-element(t), index=0 x = f32[4] get-tuple-element(t), index=1\n"
    "  y = f32[4] add(x, x) ROOT r = (s32[], f32[4]) tuple(i, y) }\n"
    "keep { ROOT t = (s32[], f32[4]) parameter(0) }\n"
    "body { p = (s32[], f32[4]) parameter(0)\n"
    "  i = s32[] get-tuple-element(p), index=0 one = s32[] constant(1) next = s32[] add(i, one)\n"
    "  two = s32[] constant(2) early = pred[] compare(i, two), direction=LT\n"
    "  c = (s32[], f32[4]) conditional(early, p, p), true_computation=double, false_computation=keep\n"
    "  x = f32[4] get-tuple-element(c), index=1 ROOT r = (s32[], f32[4]) tuple(next, x) }\n"
    "again { p = (s32[], f32[4]) parameter(0)\n"
    "  i = s32[] get-tuple-element(p), index=0 one = s32[] constant(1) next = s32[] add(i, one)\n"
    "  x = f32[4] get-tuple-element(p), index=1 ROOT r = (s32[], f32[4]) tuple(next, x) }\n"
    "below_3 { p = (s32[], f32[4]) parameter(0) i = s32[] get-tuple-element(p), index=0\n"
    "  n = s32[] constant(3) ROOT go = pred[] compare(i, n), direction=LT }\n"
    "below_5 { p = (s32[], f32[4]) parameter(0) i = s32[] get-tuple-element(p), index=0\n"
    "  n = s32[] constant(5) ROOT go = pred[] compare(i, n), direction=LT }\n"
    "ENTRY main { x = f32[4] parameter(0) zero = s32[] constant(0)\n"
    "  t = (s32[], f32[4]) tuple(zero, x)\n"
    "  first = (s32[], f32[4]) while(t), condition=below_3, body=body\n"
    "  second = (s32[], f32[4]) while(first), condition=below_5, body=again\n"
    "  b = (s32[], f32[4]) opt-barrier(second)\n"
    "  i = s32[] get-tuple-element(b), index=0 y = f32[4] get-tuple-element(b), index=1\n"
    "  ROOT o = (s32[], f32[4]) tuple(i, y) }\n";

static void whole_tuples_are_taken_apart(void **state) {
    (void)state;
    AmError error = {0};
    Arena arena = {0};
    PlanContext *context;
    Program *program;
    char path[] = "/tmp/automap-loops-XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    assert_int_equal(write(file, whole_tuples, sizeof whole_tuples - 1), sizeof whole_tuples - 1);
    close(file);
    AmStatus status = plan_context_read(&context, path, NULL, &error);
    unlink(path);
    if (status != AM_OK) fail_msg("%s", error.text);
    if (plan_lower_one_device(&program, &arena, context, &error) != AM_OK) fail_msg("%s", error.text);
    const ProgramInstruction *first = loop_of(program, 0), *second = loop_of(program, 1);
    assert_int_equal(first->result_count, 2);
    assert_int_equal(second->result_count, 2);
    assert_int_equal(second->operands[1], first->first_result + 1);
    assert_int_equal(program->outputs[1], second->first_result + 1);
    arena_free(&arena);
    plan_context_free(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_known_by_their_readers),
        cmocka_unit_test(whole_tuples_are_taken_apart),
        cmocka_unit_test(layers_of_a_scan_are_one_decision),
        cmocka_unit_test(accumulated_gradients_are_reduced_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
