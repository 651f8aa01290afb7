/* The element types of every operator on CUDA: the modules of tests/cuda/types.txt, in all types, are
 * prepared for the CPU and for CUDA. If only the CPU takes one, the table of executor/cuda/coverage.c has
 * the reason and docs/running.md the name of the types. Nothing is compiled or run. With the name of
 * another such file, prints the refusals of CUDA. Skipped (77) in a build without CUDA and where there is
 * neither a GPU nor a stand-in. */
#include <stdio.h>

#include "automap_features.h"

enum { SKIPPED = 77 };

#ifdef AUTOMAP_HAVE_CUDA
#include "executor/cuda/coverage.h"
#include "tests/support/cuda_case.h"
#include "tests/support/gpu_present.h"
#include "tests/support/opcode_case.h"

typedef struct Answers {
    bool takes[IR_OPCODE_COUNT][DTYPE_COUNT];   /* on the CPU */
    bool refuses[IR_OPCODE_COUNT][DTYPE_COUNT]; /* on CUDA, a module that the CPU takes */
    bool prints;
} Answers;

/* Prepares the module's kernels; false: refused. */
static bool is_taken(CudaCase *self, KernelDevice *device, const char *text) {
    AmError *error = &self->error;
    *self = (CudaCase){.device = device};
    return ir_read_bytes(&self->module, "test", text, (int64_t)strlen(text), error) == AM_OK &&
           ir_canonicalize(&self->canonical, self->module, error) == AM_OK &&
           program_from_computation(&self->program, &self->arena, self->canonical, self->canonical->entry,
                                    false, error) == AM_OK &&
           executable_prepare(&self->entry, &self->arena, device, NULL, self->program, false, error) == AM_OK;
}

/* The caller closes `gpu` after the device, which keeps its calls. */
static void ask(Answers *self, const OpcodeTemplate *form, Dtype type, CudaCase *gpu, KernelDevice *device) {
    IrOpcode opcode = ir_opcode_from_name(form->chosen);
    Text text = opcode_text(form, dtype_name(type), 4);
    CudaCase cpu;
    if (opcode == IR_UNKNOWN) fail_msg("there is no operator '%s'", form->chosen);
    if (is_taken(&cpu, &kernel_device_cpu, text.data)) {
        bool is_refused = !is_taken(gpu, device, text.data);
        self->takes[opcode][type] = true;
        self->refuses[opcode][type] |= is_refused;
        if (is_refused && self->prints)
            printf("%s, %s: %s\n", form->chosen, dtype_name(type), gpu->error.text);
    }
    cuda_case_close(&cpu);
    text_free(&text);
}

static void ask_in_all_types(Answers *self, const OpcodeTemplate *form) {
    CudaCase cases[DTYPE_COUNT] = {0};
    KernelDevice *device = cuda_case_device(&kernels_cuda);
    for (Dtype type = DTYPE_INVALID; type < DTYPE_COUNT; type++)
        if (dtype_bytes(type) > 0) ask(self, form, type, &cases[type], device);
    device->back_end->close(device);
    for (Dtype type = DTYPE_INVALID; type < DTYPE_COUNT; type++) cuda_case_close(&cases[type]);
}

static void ask_all(Answers *self, const char *path) {
    FileBytes bytes;
    OpcodeTemplate form;
    const char *wrong;
    KernelDevice *keeper = cuda_case_device(&kernels_cuda); /* of the context, which takes long to make */
    assert_int_equal(file_read(&bytes, path, NULL), AM_OK);
    for (const char *at = bytes.data; opcode_next(&form, &at, &wrong);) {
        if (wrong) fail_msg("not understood: %.60s", wrong);
        for (int32_t k = 0; k < form.operator_count; k++) {
            form.chosen = form.operators[k];
            ask_in_all_types(self, &form);
        }
    }
    file_release(&bytes);
    keeper->back_end->close(keeper);
}

/* Checks the tables on one opcode: no more is lacking than they say, and no less. */
static void check(const Answers *self, IrOpcode opcode) {
    const char *name = ir_opcode_name(opcode);
    unsigned lacking = cuda_lacking_types(opcode), found = 0;
    bool is_taken_somewhere = false;
    for (Dtype type = DTYPE_INVALID; type < DTYPE_COUNT; type++) {
        if (!self->takes[opcode][type]) continue;
        bool expected = cuda_lacks(opcode) || (lacking & cuda_type_set(type)) != 0;
        is_taken_somewhere = true;
        if (expected) found |= cuda_type_set(type);
        if (self->refuses[opcode][type] != expected)
            fail_msg("CUDA %s '%s' on %s, executor/cuda/coverage.c says otherwise",
                     expected ? "takes" : "refuses", name, dtype_name(type));
    }
    if (!is_taken_somewhere) fail_msg("tests/cuda/types.txt has no module with '%s' for the CPU", name);
    if ((found & lacking) != lacking)
        fail_msg("executor/cuda/coverage.c: '%s' lacks types that the CPU lacks, too", name);
}

static void test_tables_name_what_is_refused(void **state) {
    static Answers self;
    (void)state;
    ask_all(&self, SOURCE_DIR "/tests/cuda/types.txt");
    for (int32_t k = 0; k < IR_OPCODE_COUNT; k++)
        if (strcmp(cuda_coverage_way((IrOpcode)k), "-") != 0) check(&self, (IrOpcode)k);
}

int main(int count, char **arguments) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_tables_name_what_is_refused)};
    if (!gpu_is_present()) return SKIPPED;
    if (count == 2) {
        static Answers self = {.prints = true};
        ask_all(&self, arguments[1]);
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
#include "tests/support/without_cuda.h"
#endif
