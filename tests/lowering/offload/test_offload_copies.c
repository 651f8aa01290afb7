/* Offloaded optimizer state: the places of the copies among the steps, the memory of each value, and
 * unchanged values. On Adam and Adafactor, in one stage of two devices. */
#include "tests/support/model_case.h"

#include "base/dtype.h"
#include "lowering/spmd/lower.h"

typedef struct Case {
    Arena arena;
    PlanContext *context;
    PlanStage stage;
    int32_t devices[2];
    Program *kept, *offloaded;
} Case;

static Program *lower(Case *self, AmError *error) {
    Assignment *assignment;
    Program *program = NULL;
    if (plan_assign(&assignment, &self->arena, self->context, &self->stage, error) != AM_OK ||
        plan_lower(&program, &self->arena, self->context, assignment, 0, error) != AM_OK)
        fail_msg("%s", error->text);
    return program;
}

static void open_case(Case *self, const char *model) {
    AmError error = {0};
    *self = (Case){.context = read_model(model), .devices = {0, 1}};
    self->stage =
        (PlanStage){.mesh = {.axis_count = 1, .axes = {{.name = "data", .size = 2}}, .device_count = 2},
                    .devices = self->devices};
    self->kept = lower(self, &error);
    self->stage.offloads_optimizer = true;
    self->offloaded = lower(self, &error);
}

static void close_case(Case *self) {
    plan_context_free(self->context);
    arena_free(&self->arena);
}

static const ProgramInstruction *copy_at(const Program *program, int32_t s) {
    const ProgramStep *step = &program->execution.steps[s];
    const ProgramInstruction *instruction =
        step->fusion < 0 ? &program->instructions[step->instruction] : NULL;
    return instruction && program_is_host_copy(instruction->collective) ? instruction : NULL;
}

static bool reads(const Program *program, const ProgramStep *step, int32_t value) {
    for (int32_t k = 0; k < program_step_operands(program, step); k++)
        if (program->values[program_step_operand(program, step, k)].storage == value) return true;
    return false;
}

/* Arrays of the optimizer are in the host, one after the other; all else is where it was. */
static void check_memory(const Case *self) {
    const Program *program = self->offloaded;
    int64_t bytes = 0;
    for (int32_t k = 0; k < program->roles->parameter_count; k++) {
        const ProgramValue *value = &program->values[program->parameters[k]];
        bool is_state = program->roles->parameters[k].role == IR_ROLE_OPTIMIZER && value->shape.rank > 0;
        assert_int_equal(value->is_on_host, is_state);
        if (!is_state) {
            assert_true(value->offset >= 0);
            continue;
        }
        assert_int_equal(value->host_offset, bytes);
        assert_int_equal(value->offset, -1);
        assert_int_equal(program->outputs[program->roles->parameters[k].output], program->parameters[k]);
        bytes += value->bytes;
    }
    assert_true(bytes > 0);
    assert_int_equal(program->allocation.host_bytes, bytes);
    assert_int_equal(program->allocation.parameter_bytes, self->kept->allocation.parameter_bytes - bytes);
    assert_int_equal(self->kept->allocation.host_bytes, 0);
    for (int32_t k = 0; k < program->execution.update_count; k++)
        assert_false(
            program->values[program->parameters[program->execution.updates[k].parameter]].is_on_host);
}

/* Each array is loaded once before its readers, and stored once after its new value is made. A load is for
 * the next step that reads state, or for the one after it. */
static void check_copies(const Case *self) {
    const Program *program = self->offloaded;
    int32_t loads = 0, stores = 0, arrays = 0;
    for (int32_t k = 0; k < program->roles->parameter_count; k++)
        arrays += program->values[program->parameters[k]].is_on_host;
    for (int32_t s = 0; s < program->execution.step_count; s++) {
        const ProgramInstruction *copy = copy_at(program, s);
        const ProgramStep *step = &program->execution.steps[s];
        for (int32_t k = 0; k < program_step_operands(program, step) && !copy; k++)
            assert_false(program->values[program_step_operand(program, step, k)].is_on_host);
        if (!copy) continue;
        assert_int_equal(copy->collective->group_count, 1);
        if (copy->collective->kind == PROGRAM_HOST_STORE) {
            int32_t count = copy->operand_count / 2;
            stores += count;
            for (int32_t k = 0; k < count; k++) {
                const ProgramValue *made = &program->values[copy->operands[k]];
                const ProgramValue *place = &program->values[copy->operands[count + k]];
                assert_true(place->is_on_host && !made->is_on_host);
                assert_int_equal(ir_shape_bytes(&made->shape), ir_shape_bytes(&place->shape));
            }
            continue;
        }
        loads += copy->result_count;
        int32_t users = 0; /* steps that read loaded state, up to the first that reads this one */
        bool is_read = false;
        for (int32_t before = 0; before < s; before++)
            assert_false(reads(program, &program->execution.steps[before], copy->first_result));
        for (int32_t after = s + 1; after < program->execution.step_count && !is_read; after++) {
            const ProgramStep *user = &program->execution.steps[after];
            if (copy_at(program, after)) continue;
            is_read = reads(program, user, copy->first_result);
            bool reads_state = is_read;
            for (int32_t other = 0; other < s; other++) {
                const ProgramInstruction *earlier = copy_at(program, other);
                if (earlier && earlier->result_count > 0)
                    reads_state |= reads(program, user, earlier->first_result);
            }
            users += reads_state;
        }
        assert_true(is_read);
        assert_true(users >= 1);
    }
    assert_int_equal(loads, arrays);
    assert_int_equal(stores, arrays);
}

static void test_models(void **state) {
    (void)state;
    static const char *const models[] = {"adamw_tiny", "adafactor_tiny", "gpt2_bf16_tiny", "gpt2_tiny"};
    for (size_t k = 0; k < sizeof models / sizeof *models; k++) {
        Case self;
        open_case(&self, models[k]);
        check_memory(&self);
        check_copies(&self);
        assert_true(self.offloaded->allocation.bytes <= self.kept->allocation.bytes);
        close_case(&self);
    }
}

/* The device has the state of two updates at most: all else has been stored, or is not loaded yet. */
static void test_two_updates_at_a_time(void **state) {
    (void)state;
    Case self;
    open_case(&self, "gpt2_tiny");
    const Program *program = self.offloaded;
    int32_t loaded = 0, stored = 0, most = 0;
    for (int32_t s = 0; s < program->execution.step_count; s++) {
        const ProgramInstruction *copy = copy_at(program, s);
        if (copy && copy->collective->kind == PROGRAM_HOST_LOAD) loaded++;
        if (copy && copy->collective->kind == PROGRAM_HOST_STORE) stored++;
        if (loaded - stored > most) most = loaded - stored;
    }
    assert_int_equal(loaded, stored);
    assert_int_equal(most, 2);
    close_case(&self);
}

/* A module without optimizer state has the same program. */
static void test_nothing_to_offload(void **state) {
    (void)state;
    Case self;
    open_case(&self, "mlp_tiny");
    Text kept = {0}, offloaded = {0};
    program_print(&kept, self.kept);
    program_print(&offloaded, self.offloaded);
    assert_string_equal(kept.data, offloaded.data);
    text_free(&kept);
    text_free(&offloaded);
    close_case(&self);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_models),
        cmocka_unit_test(test_two_updates_at_a_time),
        cmocka_unit_test(test_nothing_to_offload),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
