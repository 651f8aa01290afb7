/* Fused attention by cuDNN's graph API: regions of several forms beside the exact results and beside the
 * operators one after the other on the CPU, and forms that cuDNN does not get. On the stand-in, which
 * evaluates graphs tensor by tensor. Skipped (77) in a build without CUDA and where there is neither a GPU
 * nor a stand-in. */
#include <stdio.h>

#include "automap_features.h"

enum { SKIPPED = 77 };

#ifdef AUTOMAP_HAVE_CUDA
#include "executor/cuda/device.h"
#include "tests/support/attention_case.h"
#include "tests/support/cuda_case.h"
#include "tests/support/gpu_present.h"

typedef struct Case {
    AttentionForm form;
    const char *reason; /* why the generated kernels run; NULL: cuDNN does */
} Case;

/* The call of a region on the device, with memory of its own. */
typedef struct DeviceRegion {
    Arena arena;
    KernelDevice *device;
    KernelCall *call;
    void *scratch;
} DeviceRegion;

/* Rows of the tests' positions are seven behind keys of the same number (attention_fill()). */
static void mark_positions(AttentionRegion *region, const AttentionForm *form) {
    int32_t first = 3 + form->has_bias;
    for (int32_t k = 0; k < 2 && form->has_positions; k++) {
        ProgramValue *value = &region->region->values[region->region->parameters[first + k]];
        value->is_iota = true;
        value->iota_first = k == 0 ? 7 : 0;
    }
}

static void *device_array(KernelDevice *device, int64_t bytes, const void *data) {
    void *memory = NULL;
    AmError error = {0};
    cuda_case_check(device->back_end->allocate(device, &memory, bytes, &error), &error);
    device->back_end->copy_in(device, memory, data, bytes);
    return memory;
}

static void open_region(DeviceRegion *self, KernelDevice *device, AttentionRegion *region) {
    AmError error = {0};
    ProgramStep step = {.instruction = 0, .fusion = -1};
    *self = (DeviceRegion){.device = device};
    cuda_case_check(kernel_prepare(&self->call, &self->arena, device, &region->wrapper, &step, &error),
                    &error);
    for (int32_t k = 0; k < region->input_count; k++)
        self->call->operands[k] =
            device_array(device, ir_shape_bytes(attention_input(region, k)), region->inputs[k]);
    for (int32_t k = 0; k < region->output_count; k++) {
        memset(region->outputs[k], 0x7f, (size_t)ir_shape_bytes(attention_output(region, k)));
        self->call->results[k] =
            device_array(device, ir_shape_bytes(attention_output(region, k)), region->outputs[k]);
    }
    int64_t bytes = kernel_align(self->call->scratch_bytes + 1);
    cuda_case_check(device->back_end->allocate(device, &self->scratch, bytes, &error), &error);
    self->call->scratch = self->scratch;
    if (self->call->bind) self->call->bind(self->call);
    cuda_case_check(device->back_end->finish(device, &error), &error);
}

static void close_region(DeviceRegion *self, const AttentionRegion *region) {
    for (int32_t k = 0; k < region->input_count; k++)
        self->device->back_end->release(self->device, self->call->operands[k]);
    for (int32_t k = 0; k < region->output_count; k++)
        self->device->back_end->release(self->device, self->call->results[k]);
    self->device->back_end->release(self->device, self->scratch);
    arena_free(&self->arena);
}

/* Sums in another order may be twice as far from the exact ones. */
static void compare(const AttentionRegion *region, const AttentionRegion *exact, const AttentionForm *form) {
    for (int32_t k = 0; k < region->output_count; k++) {
        double errors[2];
        attention_find_errors(errors, region, exact, k);
        if (!(errors[1] <= 2 * errors[0] + 1e-8))
            fail_msg("%s %s, output %d: error %g, %g instruction by instruction", form->type,
                     form->is_backward ? "backward" : "forward", k, errors[1], errors[0]);
    }
}

static bool states(const AmWarnings *warnings, const char *text) {
    for (int32_t k = 0; k < warnings->count; k++)
        if (strstr(warnings->texts[k], text)) return true;
    return false;
}

/* Doubles the sums of a backward region, as if they were of more keys than it has. */
static void double_sums(AttentionRegion *region, const AttentionForm *form) {
    int32_t k = attention_operands(form) + 2;
    AmError error = {0};
    const IrShape *shape = attention_input(region, k);
    for (int64_t i = 0; i < ir_shape_elements(shape); i++)
        attention_set_number(region->inputs[k], shape->type, i,
                             2 * attention_number(region->inputs[k], shape->type, i));
    cuda_case_check(attention_run_plain(region, &error), &error);
}

/* Returns whether cuDNN ran the region; its warnings are in `warnings`. */
static bool run_form(AttentionForm form, bool doubles, AmWarnings *warnings) {
    AttentionRegion region, exact;
    DeviceRegion on_device;
    KernelDevice *device = NULL;
    AmError error = {0};
    AttentionForm of_exact = form;
    of_exact.type = "f64";
    attention_load(&exact, &kernel_device_cpu, &of_exact);
    attention_load(&region, &kernel_device_cpu, &form);
    if (doubles) double_sums(&exact, &of_exact);
    if (doubles) double_sums(&region, &form);
    mark_positions(&region, &form);
    cuda_case_check(kernels_cuda.open(&device, &(KernelOptions){.warnings = warnings}, &error), &error);
    open_region(&on_device, device, &region);
    int64_t before = stand_in() ? stand_in()->count("cudnnBackendExecute") : 0;
    on_device.call->run(on_device.call);
    int64_t runs = stand_in() ? stand_in()->count("cudnnBackendExecute") - before : 0;
    cuda_case_check(device->back_end->synchronize(device, &error), &error);
    for (int32_t k = 0; k < region.output_count; k++)
        device->back_end->copy_out(device, region.outputs[k], on_device.call->results[k],
                                   ir_shape_bytes(attention_output(&region, k)));
    compare(&region, &exact, &form);
    close_region(&on_device, &region);
    device->back_end->close(device);
    attention_free(&region);
    attention_free(&exact);
    return runs > 0;
}

static void check(const Case *cases, size_t count) {
    for (size_t k = 0; k < 2 * count; k++) {
        Arena arena = {0};
        AmWarnings warnings = {.arena = &arena};
        AttentionForm form = cases[k / 2].form;
        form.is_backward = k % 2;
        bool is_fused = run_form(form, false, &warnings);
        const char *reason = cases[k / 2].reason;
        if (stand_in() && is_fused != !reason)
            fail_msg("form %d %s: cuDNN %s: %s", (int)(k / 2), k % 2 ? "backward" : "forward",
                     is_fused ? "runs" : "does not run", warnings.count > 0 ? warnings.texts[0] : "");
        if (reason && !states(&warnings, reason))
            fail_msg("\"%s\" in place of \"%s\"", warnings.count > 0 ? warnings.texts[0] : "", reason);
        arena_free(&arena);
    }
}

/* Types, masks, groups, both layouts, and sizes that differ. */
static void test_forms(void **state) {
    static const Case cases[] = {
        {{2, 2, 1, 17, 17, 8, "bf16", .is_causal = true}, NULL},
        {{2, 3, 1, 20, 33, 16, "f16", .heads_first = true}, NULL},
        {{2, 2, 3, 18, 18, 8, "bf16", .is_causal = true}, NULL},
        {{2, 2, 2, 12, 30, 24, "f16", .heads_first = true, .is_causal = true, .has_positions = true}, NULL},
        {{1, 2, 2, 40, 40, 8, "bf16", .is_causal = true, .window = 9}, NULL},
        {{1, 1, 4, 9, 14, 8, "bf16", .heads_first = true}, NULL},
    };
    (void)state;
    check(cases, sizeof cases / sizeof *cases);
}

/* The saved statistics count, though cuDNN's forward pass has its own: gradients of a part of the keys. */
static void test_statistics(void **state) {
    AmWarnings none = {0};
    AttentionForm form = {2, 2, 2, 18, 18, 8, "bf16", .is_backward = true, .is_causal = true};
    (void)state;
    bool is_fused = run_form(form, true, &none);
    if (stand_in()) assert_true(is_fused);
}

/* A bias is an operand of the forward pass. cuDNN does not compute its gradient here. */
static void test_bias(void **state) {
    Arena arena = {0};
    AmWarnings warnings = {.arena = &arena};
    AttentionForm form = {1, 2, 1, 19, 11, 8, "bf16", .has_bias = true};
    (void)state;
    bool is_fused = run_form(form, false, &warnings);
    if (stand_in()) assert_true(is_fused);
    form.is_backward = true;
    assert_false(run_form(form, false, &warnings));
    assert_true(states(&warnings, "an output has another form"));
    arena_free(&arena);
}

/* Regions that cuDNN does not get, with the reason. */
static void test_refusals(void **state) {
    static const Case cases[] = {
        {{1, 2, 1, 20, 20, 12, "bf16", .is_causal = false}, "its head size is no multiple of 8"},
        {{1, 2, 1, 20, 20, 8, "bf16", .has_cap = true}, "it has another form than a softmax of scores"},
        {{1, 2, 1, 20, 20, 8, "f16", .has_drops = true}, "another form"},
    };
    AmWarnings none = {0};
    (void)state;
    check(cases, sizeof cases / sizeof *cases);
    assert_false(run_form((AttentionForm){1, 2, 1, 20, 20, 8, "f32", .is_causal = false}, false, &none));
}

/* A library without an engine, or that refuses to run one: the generated kernels. */
static void test_failures(void **state) {
    static const Case cases[] = {{{1, 2, 1, 20, 20, 8, "bf16", .is_causal = false}, "not by cuDNN"}};
    static const char *const refusals[] = {"0:100:cudnnBackendFinalize", "0:100:cudnnBackendExecute"};
    (void)state;
    for (size_t k = 0; stand_in() && k < sizeof refusals / sizeof *refusals; k++) {
        (stand_in()->refuse)(refusals[k]);
        Arena arena = {0};
        AmWarnings warnings = {.arena = &arena};
        run_form(cases[0].form, false, &warnings);
        assert_true(states(&warnings, cases[0].reason));
        (stand_in()->refuse)("");
        arena_free(&arena);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_forms), cmocka_unit_test(test_statistics),
                                       cmocka_unit_test(test_bias), cmocka_unit_test(test_refusals),
                                       cmocka_unit_test(test_failures)};
    if (!gpu_is_present()) return SKIPPED;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
#include "tests/support/without_cuda.h"
#endif
