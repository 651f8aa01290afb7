/* NVRTC compiles every generated kernel of the models for sm_80, sm_90 or sm_100
 * without a message and without local memory; the cache on disk serves, notices
 * damage and may be missing; refusals are clear. Skipped (77) in a build without CUDA and where
 * there is no NVRTC. Needs no GPU. */
#include <stdio.h>

#include "automap_features.h"

enum { SKIPPED = 77 };

#ifdef AUTOMAP_HAVE_CUDA
#include <glob.h>

#include "base/cuda/nvrtc.h"
#include "base/files/file.h"
#include "executor/cuda/codegen/source_product.h"
#include "tests/support/generated_module.h"
#include "tests/support/opcode_case.h"

static char cache[] = "/tmp/automap_cache_XXXXXX";
static const char *kept_cache = "/dev/null"; /* from run to run, where ctest names it */

static void empty_cache(void) {
    char pattern[128];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s/automap/kernels/*", cache);
    if (glob(pattern, 0, NULL, &found) == 0) {
        for (size_t k = 0; k < found.gl_pathc; k++) unlink(found.gl_pathv[k]);
        globfree(&found);
    }
}

static void compile_model(const char *model, bool all) {
    Generated generated = {0};
    PlanContext *context = generated_read(model);
    setenv("XDG_CACHE_HOME", kept_cache, 1);
    generated_add_model(&generated, context);
    generated_check_devices(&generated, model, all);
    setenv("XDG_CACHE_HOME", cache, 1);
    generated_free(&generated);
    plan_context_free(context);
}

/* Small models of every kind; AUTOMAP_FULL: these for all architectures, and every other model, of the T5
 * models of one table the smallest: the others have more of the same layers. */
static void test_models_compile(void **state) {
    (void)state;
    static const char *const models[] = {"mlp_tiny",    "gpt2_tiny",  "gpt2_bf16_tiny",
                                         "resnet_tiny", "llama_tiny", "moe_tiny",
                                         "lstm_tiny",   "vgg_tiny",   "exact_gather"};
    glob_t found;
    bool full = getenv("AUTOMAP_FULL");
    for (size_t k = 0; k < sizeof models / sizeof *models; k++) compile_model(models[k], full);
    if (!full) return;
    assert_int_equal(glob(SOURCE_DIR "/datasets/models/*", GLOB_ONLYDIR, NULL, &found), 0);
    assert_true(found.gl_pathc >= 15);
    for (size_t k = 0; k < found.gl_pathc; k++) {
        const char *name = strrchr(found.gl_pathv[k], '/') + 1;
        if (!strstr(name, "_24_")) compile_model(name, false);
    }
    globfree(&found);
}

/* The row groups of plans with fused attention: norms, softmax and cross-entropy, and their gradients.
 * Kernels of the large model, for all architectures: they index in 64 bits, with rows in scratch memory. */
static void test_row_groups_compile(void **state) {
    (void)state;
    static const char *const models[] = {"gpt2_tiny", "gpt2_bf16"};
    setenv("XDG_CACHE_HOME", kept_cache, 1);
    for (size_t k = 0; k < sizeof models / sizeof *models; k++) {
        AmError error = {0};
        Generated generated = {0};
        bool is_large = k + 1 == sizeof models / sizeof *models;
        if (is_large && access(SOURCE_DIR "/datasets/models/gpt2_bf16", R_OK) != 0) {
            print_message("skipped: no gpt2_bf16, as in a pack of bench/gpu.sh\n");
            continue;
        }
        PlanContext *context = generated_read(models[k]), *fused;
        Program *program;
        if (plan_context_fuse(&fused, context, &error) != AM_OK ||
            plan_lower_one_device(&program, &generated.arena, fused, &error) != AM_OK)
            fail_msg("%s", error.text);
        generated_add_rows(&generated, program);
        assert_true(generated.count > 5);
        generated_check_devices(&generated, "row groups", is_large || getenv("AUTOMAP_FULL"));
        generated_free(&generated);
        plan_context_free(context);
    }
    setenv("XDG_CACHE_HOME", cache, 1);
}

/* Adds the kernels of a module's steps; false: the generator refuses one. The canonical form has no step for
 * some operators, such as a reshape. */
static bool add_operator(Generated *generated, const Program *program) {
    CudaSource sources[4];
    KernelCall *calls[4];
    int32_t count = 0;
    for (int32_t s = 0; s < program->execution.step_count; s++) {
        const ProgramStep *step = &program->execution.steps[s];
        const ProgramInstruction *instruction = &program->instructions[step->instruction];
        IrOpcode opcode = step->fusion < 0 ? instruction->opcode : IR_FUSION;
        AmStatus (*write)(CudaSource *, Arena *, const KernelCall *, AmError *) =
            opcode == IR_DOT           ? cuda_source_dot
            : opcode == IR_CONVOLUTION ? cuda_source_convolution
                                       : cuda_source_make;
        if (step->fusion < 0 && write == cuda_source_make && !cuda_source_covers(opcode)) continue;
        assert_true(count < 4);
        if (kernel_prepare(&calls[count], &generated->arena, &kernel_device_cpu, program, step, NULL) !=
            AM_OK)
            return false;
        if (write(&sources[count], &generated->arena, calls[count], NULL) != AM_OK) return false;
        count++;
    }
    for (int32_t k = 0; k < count; k++) generated_add_source(generated, sources[k], calls[k]);
    return true;
}

/* The kernels of every operator that has one, also of products and convolutions that a library refuses, in
 * the first of these types that it takes, for all architectures. */
static void test_every_operator_compiles(void **state) {
    (void)state;
    enum { MOST = 256 };
    static const char *const types[] = {"f32", "s32", "pred", "c64"};
    static bool is_compiled[IR_OPCODE_COUNT];
    ModuleCase *modules = calloc(MOST, sizeof *modules);
    Generated generated = {0};
    OpcodeTemplate form;
    FileBytes bytes;
    const char *wrong;
    int32_t count = 0;
    setenv("XDG_CACHE_HOME", kept_cache, 1);
    assert_int_equal(file_read(&bytes, SOURCE_DIR "/tests/cuda/types.txt", NULL), AM_OK);
    for (const char *at = bytes.data; opcode_next(&form, &at, &wrong);)
        for (int32_t k = 0; k < form.operator_count; k++) {
            bool is_added = false;
            form.chosen = form.operators[k];
            for (size_t t = 0; t < sizeof types / sizeof *types && !is_added; t++) {
                Text text = opcode_text(&form, types[t], 4);
                assert_true(count < MOST);
                is_added = module_open(&modules[count], text.data) == AM_OK &&
                           add_operator(&generated, modules[count].program);
                text_free(&text);
                if (is_added) count++;
                else module_close(&modules[count]);
            }
            is_compiled[ir_opcode_from_name(form.chosen)] |= is_added;
        }
    for (int32_t k = 0; k < IR_OPCODE_COUNT; k++)
        if ((cuda_source_covers((IrOpcode)k) || k == IR_DOT || k == IR_CONVOLUTION) && !is_compiled[k])
            fail_msg("tests/cuda/types.txt has no kernel of '%s'", ir_opcode_name((IrOpcode)k));
    generated_check_devices(&generated, "operators", true);
    setenv("XDG_CACHE_HOME", cache, 1);
    for (int32_t k = 0; k < count; k++) module_close(&modules[k]);
    generated_free(&generated);
    file_release(&bytes);
    free(modules);
}

/* A thread of a large space has a group of elements, which are to stay in registers in a long body too. */
static void test_groups_are_in_registers(void **state) {
    (void)state;
    static const char *const types[] = {"f32", "bf16", "f64"};
    GeneratedModules *modules = calloc(1, sizeof *modules);
    char text[4096];
    setenv("XDG_CACHE_HOME", kept_cache, 1);
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        int length = snprintf(text, sizeof text,
                              "ENTRY e { x = TT[1024,1024] parameter(0)\n"
                              "  y = TT[1024,1024] parameter(1) v0 = TT[1024,1024] tanh(x)\n");
        for (int k = 0; k < 12; k++)
            length += snprintf(text + length, sizeof text - (size_t)length,
                               "  m%d = TT[1024,1024] multiply(v%d, y) e%d = TT[1024,1024] exponential(m%d)\n"
                               "  a%d = TT[1024,1024] add(e%d, x) v%d = TT[1024,1024] divide(a%d, y)\n",
                               k, k, k, k, k, k, k + 1, k);
        snprintf(text + length, sizeof text - (size_t)length, "  ROOT r = TT[1024,1024] tanh(v12) }\n");
        char whole[4096], *to = whole;
        for (const char *at = text; *at; at++) {
            if (strncmp(at, "TT", 2) == 0) to += sprintf(to, "%s", types[t]), at++;
            else *to++ = *at;
        }
        *to = '\0';
        generated_add_text(modules, whole);
    }
    assert_non_null(strstr(generated_text(&modules->generated, 0), "Group<"));
    generated_check_devices(&modules->generated, "groups", getenv("AUTOMAP_FULL"));
    setenv("XDG_CACHE_HOME", cache, 1);
    for (int32_t k = 0; k < modules->count; k++) module_close(&modules->modules[k]);
    generated_free(&modules->generated);
    free(modules);
}

static const char small[] = "extern \"C\" __global__ void small(float *x) { x[threadIdx.x] += 1; }\n";

static void test_cache(void **state) {
    (void)state;
    Arena arena = {0};
    CudaImage first, second;
    char pattern[128];
    glob_t found;
    FileBytes file;
    empty_cache();
    assert_int_equal(cuda_compile(&first, &arena, small, 80, NULL), AM_OK);
    assert_false(first.cached);
    assert_int_equal(cuda_compile(&second, &arena, small, 80, NULL), AM_OK);
    assert_true(second.cached);
    assert_int_equal(first.bytes, second.bytes);
    assert_memory_equal(first.data, second.data, (size_t)first.bytes);
    snprintf(pattern, sizeof pattern, "%s/automap/kernels/*.cubin", cache);
    assert_int_equal(glob(pattern, 0, NULL, &found), 0);
    assert_int_equal(found.gl_pathc, 1);
    assert_int_equal(file_read(&file, found.gl_pathv[0], NULL), AM_OK);
    file.data[file.length - 1] ^= 1;
    assert_int_equal(file_write(found.gl_pathv[0], file.data, (size_t)file.length, NULL), AM_OK);
    file_release(&file);
    globfree(&found);
    assert_int_equal(cuda_compile(&second, &arena, small, 80, NULL), AM_OK);
    assert_false(second.cached);
    assert_int_equal(cuda_compile(&second, &arena, small, 90, NULL), AM_OK);
    assert_false(second.cached);
    setenv("XDG_CACHE_HOME", "/dev/null", 1);
    assert_int_equal(cuda_compile(&second, &arena, small, 80, NULL), AM_OK);
    assert_false(second.cached);
    setenv("XDG_CACHE_HOME", cache, 1);
    arena_free(&arena);
}

static void test_refusals(void **state) {
    (void)state;
    Arena arena = {0};
    CudaImage image;
    AmError error = {0};
    assert_int_equal(cuda_compile(&image, &arena, "int f( {", 80, &error), AM_ERROR_INTERNAL);
    assert_non_null(strstr(error.text, "automap.cu(1)"));
    char two[512];
    snprintf(two, sizeof two,
             "%sextern \"C\" __global__ void __launch_bounds__(256) second(float *x) {\n    int unused;\n"
             "    x[0] = nothing;\n}\n%s",
             small, small);
    error = (AmError){0};
    assert_int_equal(cuda_compile(&image, &arena, two, 80, &error), AM_ERROR_INTERNAL);
    assert_non_null(strstr(error.text, "kernel second does not compile"));
    assert_non_null(strstr(error.text, "automap.cu(4): error"));
    assert_null(strchr(error.text, '\n'));
    error = (AmError){0};
    assert_int_equal(cuda_compile(&image, &arena, small, 7, &error), AM_ERROR_RUNTIME);
    assert_non_null(strstr(error.text, "sm_7"));
    arena_free(&arena);
}

/* A card that NVRTC does not know yet gets PTX of the newest below it. */
static void test_newer_card(void **state) {
    (void)state;
    Arena arena = {0};
    CudaImage image;
    AmError error = {0};
    for (int32_t round = 0; round < 2; round++) {
        if (cuda_compile(&image, &arena, small, 9999, &error) != AM_OK) fail_msg("%s", error.text);
        assert_non_null(strstr(image.data, ".target sm_"));
        assert_int_equal(image.data[image.bytes - 1], '\0');
        assert_int_equal(image.cached, round);
    }
    arena_free(&arena);
}

static int remove_cache(void **state) {
    (void)state;
    char path[128];
    empty_cache();
    static const char *const folders[] = {"/automap/kernels", "/automap", ""};
    for (size_t k = 0; k < 3; k++) {
        snprintf(path, sizeof path, "%s%s", cache, folders[k]);
        rmdir(path);
    }
    return 0;
}

int main(void) {
    AmError error = {0};
    if (cuda_compiler_present(&error) != AM_OK) {
        printf("skipped: %s\n", error.text);
        return SKIPPED;
    }
    if (!mkdtemp(cache)) return 1;
    if (getenv("XDG_CACHE_HOME")) kept_cache = strdup(getenv("XDG_CACHE_HOME"));
    setenv("XDG_CACHE_HOME", cache, 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_models_compile),
        cmocka_unit_test(test_row_groups_compile),
        cmocka_unit_test(test_every_operator_compiles),
        cmocka_unit_test(test_groups_are_in_registers),
        cmocka_unit_test(test_cache),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_newer_card),
    };
    return cmocka_run_group_tests(tests, NULL, remove_cache);
}
#else
#include "tests/support/without_cuda.h"
#endif
