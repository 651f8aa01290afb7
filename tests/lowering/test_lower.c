/* Lowering: the collectives that known plans need on the small models, the
 * states between which resharding moves, fusions and buffers that never overlap. */
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/random.h"
#include "lowering/spmd/lower.h"

#define MODELS SOURCE_DIR "/datasets/models/"

typedef struct Counts {
    int32_t collectives[4], operands[4];
} Counts;

static PlanContext *read_context(const char *model) {
    AmError error = {0};
    PlanContext *context;
    char path[512];
    snprintf(path, sizeof path, MODELS "%s/model.hlo.pb", model);
    AmStatus status = plan_context_read(&context, path, NULL, &error);
    if (status != AM_OK) fail_msg("%s: %s", error.source, error.text);
    return context;
}

/* The class that a parameter's dimension belongs to. */
static int32_t class_of(const PlanContext *context, const char *path, int32_t dimension) {
    for (int32_t k = 0; k < context->roles->parameter_count; k++)
        if (strcmp(context->roles->parameters[k].path, path) == 0)
            return classes_of(context->classes, context->rules, context->roles->parameters[k].instruction,
                              dimension);
    fail_msg("no parameter %s", path);
    return -1;
}

/* Appends all classes tied to the one of (path, dimension). */
static void list_tied(const PlanContext *context, PlanAxisPriority *priority, const char *path,
                      int32_t dimension) {
    int32_t class = class_of(context, path, dimension);
    assert_true(class >= 0);
    for (int32_t c = 0; c < context->classes->count; c++)
        if (context->classes->classes[c].tie == context->classes->classes[class].tie)
            priority->entries[priority->count++].class_index = c;
}

static Program *lower(const PlanContext *context, Arena *arena, const PlanStage *stage, int32_t device) {
    AmError error = {0};
    Assignment *assignment;
    Program *program;
    AmStatus status = plan_assign(&assignment, arena, context, stage, &error);
    if (status == AM_OK) status = plan_lower(&program, arena, context, assignment, device, &error);
    if (status != AM_OK) fail_msg("%s: %s", error.source, error.text);
    return program;
}

static Counts count(const Program *program) {
    Counts counts = {{0}, {0}};
    for (int32_t i = 0; i < program->instruction_count; i++) {
        const ProgramInstruction *instruction = &program->instructions[i];
        if (instruction->kind != PROGRAM_COLLECTIVE) continue;
        counts.collectives[instruction->collective->kind]++;
        counts.operands[instruction->collective->kind] += instruction->operand_count;
    }
    return counts;
}

static void start_stage(PlanStage *stage, Arena *arena, const PlanContext *context, const char *mesh) {
    AmError error = {0};
    *stage = (PlanStage){0};
    assert_int_equal(mesh_parse(&stage->mesh, arena, mesh, &error), AM_OK);
    for (int32_t axis = 0; axis < stage->mesh.axis_count; axis++)
        stage->axis_priorities[axis].entries = ARENA_ARRAY(arena, PlanEntry, context->classes->count + 1);
}

/* [batch]: one all_reduce per weight and one for the loss, nothing else. */
static void test_data_parallelism_reduces_gradients(void **state) {
    (void)state;
    PlanContext *context = read_context("t5_tiny");
    Arena arena = {0};
    PlanStage stage;
    int32_t weights = 0;
    for (int32_t k = 0; k < context->roles->parameter_count; k++)
        weights += context->roles->parameters[k].role == IR_ROLE_WEIGHT;
    start_stage(&stage, &arena, context, "data=8");
    list_tied(context, &stage.axis_priorities[0], "inputs", 0);
    Counts counts = count(lower(context, &arena, &stage, 0));
    assert_int_equal(counts.operands[PROGRAM_ALL_REDUCE], weights + 1);
    assert_int_equal(counts.collectives[PROGRAM_ALL_GATHER], 0);
    assert_int_equal(counts.collectives[PROGRAM_REDUCE_SCATTER], 0);
    assert_int_equal(counts.collectives[PROGRAM_ALL_TO_ALL], 0);
    arena_free(&arena);
    plan_context_free(context);
}

/* The transposes of weights' gradients vanish in the products that make them, though a sum over devices
 * stands between, as they do on one device. */
static void test_no_transpose_after_a_sum(void **state) {
    (void)state;
    PlanContext *context = read_context("t5_tiny");
    Arena arena = {0};
    PlanStage stage;
    start_stage(&stage, &arena, context, "data=4");
    list_tied(context, &stage.axis_priorities[0], "inputs", 0);
    const Program *program = lower(context, &arena, &stage, 0);
    assert_true(count(program).operands[PROGRAM_ALL_REDUCE] > 0);
    for (int32_t i = 0; i < program->instruction_count; i++) {
        const ProgramInstruction *instruction = &program->instructions[i];
        if (instruction->kind != PROGRAM_COMPUTE || instruction->opcode != IR_TRANSPOSE) continue;
        int32_t producer = program->values[instruction->operands[0]].instruction;
        assert_false(producer >= 0 && program->instructions[producer].kind == PROGRAM_COLLECTIVE);
    }
    arena_free(&arena);
    plan_context_free(context);
}

/* Everything that is not a lowered instruction's own: the program is the same
 * on all devices but for starts, so that collectives meet. */
static void test_devices_run_the_same_instructions(void **state) {
    (void)state;
    PlanContext *context = read_context("gpt2_tiny");
    Arena arena = {0};
    PlanStage stage;
    start_stage(&stage, &arena, context, "data=2,model=4");
    for (int32_t c = 0; c < context->classes->count; c++)
        stage.axis_priorities[c % 2].entries[stage.axis_priorities[c % 2].count++].class_index = c;
    const Program *first = lower(context, &arena, &stage, 0);
    assert_true(count(first).operands[PROGRAM_ALL_REDUCE] > 0);
    for (int32_t device = 1; device < 8; device++) {
        const Program *other = lower(context, &arena, &stage, device);
        assert_int_equal(other->instruction_count, first->instruction_count);
        assert_int_equal(other->execution.step_count, first->execution.step_count);
        assert_int_equal(other->allocation.bytes, first->allocation.bytes);
        for (int32_t i = 0; i < first->instruction_count; i++) {
            const ProgramInstruction *a = &first->instructions[i], *b = &other->instructions[i];
            assert_int_equal(a->kind, b->kind);
            assert_int_equal(a->opcode, b->opcode);
            assert_int_equal(a->operand_count, b->operand_count);
            if (a->kind != PROGRAM_COLLECTIVE) continue;
            bool inside = false;
            for (int32_t k = 0; k < b->collective->group_count; k++)
                inside = inside || b->collective->group[k] == device;
            assert_true(inside);
        }
    }
    arena_free(&arena);
    plan_context_free(context);
}

/* Value memory of two values that live at once never overlaps: replayed step by
 * step from the printed contract (operands are read before results may reuse
 * them only in fusions that read in place). */
static void check_buffers(const Program *program) {
    int32_t *last = calloc((size_t)program->value_count, sizeof *last);
    int32_t *made = calloc((size_t)program->value_count, sizeof *made);
    assert_non_null(last);
    assert_non_null(made);
    for (int32_t v = 0; v < program->value_count; v++) made[v] = last[v] = -2;
    for (int32_t k = 0; k < program->roles->parameter_count; k++) {
        made[program->parameters[k]] = -1;
        last[program->parameters[k]] = program->execution.step_count;
    }
    for (int32_t s = 0; s < program->execution.step_count; s++) {
        const ProgramStep *step = &program->execution.steps[s];
        const ProgramFusion *fusion = step->fusion >= 0 ? &program->execution.fusions[step->fusion] : NULL;
        const ProgramInstruction *instruction =
            step->instruction >= 0 ? &program->instructions[step->instruction] : NULL;
        int32_t operands = fusion ? fusion->input_count : instruction->operand_count;
        int32_t results = fusion ? fusion->output_count : instruction->result_count;
        for (int32_t k = 0; k < operands; k++) {
            int32_t value = fusion ? fusion->inputs[k].value : instruction->operands[k];
            int32_t storage = program->values[value].storage;
            assert_true(made[storage] > -2); /* made before it is read */
            if (last[storage] < s) last[storage] = s;
        }
        for (int32_t k = 0; k < results; k++) {
            int32_t value = fusion ? fusion->output_values[k] : instruction->first_result + k;
            if (program->values[value].storage == value) made[value] = last[value] = s;
        }
    }
    for (int32_t k = 0; k < program->roles->output_count; k++)
        last[program->values[program->outputs[k]].storage] = program->execution.step_count;
    for (int32_t a = 0; a < program->value_count; a++) {
        if (made[a] == -2) continue;
        const ProgramValue *x = &program->values[a];
        assert_true(x->offset >= 0 && x->offset + x->bytes <= program->allocation.bytes);
        for (int32_t b = 0; b < a; b++) {
            const ProgramValue *y = &program->values[b];
            /* A value may start in the very step in which another is read for the last time, as a
             * fusion that works in place does; the test of results covers that case. */
            bool together = made[b] > -2 && made[a] < last[b] && made[b] < last[a];
            bool overlap = x->offset < y->offset + y->bytes && y->offset < x->offset + x->bytes;
            assert_false(together && overlap);
        }
    }
    free(last);
    free(made);
}

static void test_buffers_do_not_overlap(void **state) {
    (void)state;
    static const char *const models[] = {"mlp_tiny", "vgg_tiny", "exact_gather", "gpt2_tiny"};
    Random random;
    random_seed(&random, 7);
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        PlanContext *context = read_context(models[m]);
        for (int32_t round = 0; round < 3; round++) {
            Arena arena = {0};
            PlanStage stage;
            start_stage(&stage, &arena, context, round == 0 ? "data=1" : "data=2,model=4");
            for (int32_t c = 0; c < context->classes->count; c++) {
                PlanAxisPriority *priority =
                    &stage.axis_priorities[random_below(&random, stage.mesh.axis_count)];
                priority->entries[priority->count++].class_index = c;
            }
            check_buffers(lower(context, &arena, &stage, 0));
            arena_free(&arena);
        }
        plan_context_free(context);
    }
}

/* Values with disjoint lifetimes share memory: the temporaries together are at least twice as large
 * as their allocation. */
static void test_temporaries_share_memory(void **state) {
    (void)state;
    static const char *const models[] = {"gpt2_tiny", "t5_tiny", "vgg_tiny"};
    for (size_t m = 0; m < sizeof models / sizeof models[0]; m++) {
        AmError error = {0};
        Arena arena = {0};
        PlanContext *context = read_context(models[m]);
        Program *program;
        assert_int_equal(plan_lower_one_device(&program, &arena, context, &error), AM_OK);
        int64_t apart = 0;
        for (int32_t v = 0; v < program->value_count; v++)
            if (program->values[v].kind == PROGRAM_VALUE_TEMPORARY && program->values[v].storage == v)
                apart += program->values[v].bytes;
        int64_t together = program->allocation.bytes - program->allocation.parameter_bytes;
        if (apart < 2 * together)
            fail_msg("%s: temporaries of %lld bytes take %lld", models[m], (long long)apart,
                     (long long)together);
        arena_free(&arena);
        plan_context_free(context);
    }
}

/* The optimizer's arrays are read where their new values are made, over the old ones: what Adam makes of a
 * mean before it adds the gradient is no array of its own. */
static void test_state_is_read_once(void **state) {
    (void)state;
    AmError error = {0};
    Arena arena = {0};
    PlanContext *context = read_context("gpt2_tiny");
    Program *program;
    int32_t arrays = 0;
    assert_int_equal(plan_lower_one_device(&program, &arena, context, &error), AM_OK);
    for (int32_t k = 0; k < program->execution.update_count; k++) {
        int32_t parameter = program->parameters[program->execution.updates[k].parameter], readers = 0;
        if (context->roles->parameters[program->execution.updates[k].parameter].role != IR_ROLE_OPTIMIZER)
            continue;
        for (int32_t f = 0; f < program->execution.fusion_count; f++)
            for (int32_t n = 0; n < program->execution.fusions[f].input_count; n++)
                readers += program->execution.fusions[f].inputs[n].value == parameter;
        assert_int_equal(readers, 1);
        assert_true(program->execution.updates[k].in_place);
        arrays++;
    }
    assert_true(arrays > 50);
    arena_free(&arena);
    plan_context_free(context);
}

/* A merged collective shows every result's shape, a scalar its value, a reduction its operator. */
static void test_the_text_shows_what_is_computed(void **state) {
    (void)state;
    PlanContext *context = read_context("mlp_tiny");
    Arena arena = {0};
    PlanStage stage;
    Text text = {0};
    bool any_merged = false;
    start_stage(&stage, &arena, context, "data=2");
    for (int32_t k = 0; k < context->roles->parameter_count; k++)
        if (context->roles->parameters[k].role == IR_ROLE_DATA) {
            list_tied(context, &stage.axis_priorities[0], context->roles->parameters[k].path, 0);
            break;
        }
    const Program *program = lower(context, &arena, &stage, 0);
    program_print(&text, program);
    assert_non_null(text.data);
    for (int32_t i = 0; i < program->instruction_count; i++) {
        const ProgramInstruction *instruction = &program->instructions[i];
        if (instruction->result_count < 2) continue;
        Text shapes = {0};
        for (int32_t k = 0; k < instruction->result_count; k++) {
            text_append_string(&shapes, k ? ", " : " = (");
            ir_shape_append(&shapes, &program->values[instruction->first_result + k].shape);
        }
        text_append_string(&shapes, ") all_reduce(");
        if (!strstr(text.data, shapes.data)) fail_msg("no %s in\n%s", shapes.data, text.data);
        text_free(&shapes);
        any_merged = true;
    }
    assert_true(any_merged);
    assert_non_null(strstr(text.data, " f32[] constant(0)"));
    assert_null(strstr(text.data, "constant()"));
    assert_non_null(strstr(text.data, "to_apply=add "));
    assert_null(strstr(text.data, "to_apply=region"));
    text_free(&text);
    arena_free(&arena);
    plan_context_free(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_data_parallelism_reduces_gradients),
        cmocka_unit_test(test_devices_run_the_same_instructions),
        cmocka_unit_test(test_buffers_do_not_overlap),
        cmocka_unit_test(test_no_transpose_after_a_sum),
        cmocka_unit_test(test_state_is_read_once),
        cmocka_unit_test(test_temporaries_share_memory),
        cmocka_unit_test(test_the_text_shows_what_is_computed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
