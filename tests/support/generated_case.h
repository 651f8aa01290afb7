/* Generated kernels in tests: those of the zoo's small models, and a library
 * that runs them on the host (tests/cuda/host.h). */
#ifndef TESTS_SUPPORT_GENERATED_CASE_H
#define TESTS_SUPPORT_GENERATED_CASE_H

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "base/random.h"
#include "cubin_case.h"
#include "executor/cuda/codegen/source.h"
#include "kernel_case.h"
#include "lowering/spmd/lower.h"
#include "tests/cuda/host_compiler.h"

typedef void HostKernel(void **addresses, unsigned blocks, unsigned threads, bool waits);

/* Different kernels, each with a call that it serves. */
typedef struct Generated {
    Arena arena;
    CudaSource *sources;
    KernelCall **calls;
    int32_t count, capacity, call_capacity;
    bool counts; /* the library counts basic blocks: generated_steps() */
    void *library;
} Generated;

/* Returns whether two sources are the same kernels. */
static inline bool generated_equal(const CudaSource *a, const CudaSource *b) {
    if (a->launch_count != b->launch_count || a->upload != b->upload) return false;
    for (int32_t k = 0; k < a->launch_count; k++)
        if (strcmp(a->launches[k].name, b->launches[k].name) != 0 ||
            a->launches[k].number != b->launches[k].number)
            return false;
    return true;
}

/* Which source has the kernels of `source`. */
static inline int32_t generated_find(const Generated *self, const CudaSource *source) {
    for (int32_t k = 0; k < self->count; k++)
        if (generated_equal(&self->sources[k], source)) return k;
    return -1;
}

static inline void generated_add_source(Generated *self, CudaSource source, KernelCall *call) {
    if (generated_find(self, &source) >= 0) return;
    int32_t count = self->count;
    ARENA_RESERVE(&self->arena, self->sources, count, self->capacity);
    ARENA_RESERVE(&self->arena, self->calls, count, self->call_capacity);
    self->sources[self->count] = source;
    self->calls[self->count++] = call;
}

static inline void generated_add(Generated *self, KernelCall *call) {
    AmError error = {0};
    CudaSource source;
    if (cuda_source_make(&source, &self->arena, call, &error) != AM_OK) fail_msg("%s", error.text);
    generated_add_source(self, source, call);
}

/* Adds the kernels of a program's row groups, which run only as a whole. */
static inline void generated_add_rows(Generated *self, const Program *program) {
    AmError error = {0};
    for (int32_t g = 0; g < program->execution.row_group_count; g++) {
        const ProgramRowGroup *rows = &program->execution.row_groups[g];
        KernelCall **calls = ARENA_ARRAY(&self->arena, KernelCall *, rows->count);
        CudaSource source;
        void ***slots;
        for (int32_t k = 0; k < rows->count; k++)
            if (kernel_prepare(&calls[k], &self->arena, &kernel_device_cpu, program,
                               &program->execution.steps[rows->first + k], &error) != AM_OK)
                fail_msg("%s", error.text);
        if (cuda_source_rows(&source, &slots, &self->arena, calls, &error) != AM_OK)
            fail_msg("%s", error.text);
        generated_add_source(self, source, calls[0]);
    }
}

/* Adds every step of a program that is a generated kernel. */
static inline void generated_add_program(Generated *self, const Program *program) {
    AmError error = {0};
    for (int32_t s = 0; s < program->execution.step_count; s++) {
        const ProgramStep *step = &program->execution.steps[s];
        KernelCall *call;
        if (step->fusion < 0) {
            const ProgramInstruction *instruction = &program->instructions[step->instruction];
            if (instruction->kind != PROGRAM_COMPUTE || !cuda_source_covers(instruction->opcode)) continue;
        }
        if (kernel_prepare(&call, &self->arena, &kernel_device_cpu, program, step, &error) != AM_OK)
            fail_msg("%s", error.text);
        generated_add(self, call);
    }
}

/* The model on one device, and twice split at random on data=2,model=2. */
static inline void generated_add_model(Generated *self, PlanContext *context) {
    AmError error = {0};
    Program *program;
    assert_int_equal(plan_lower_one_device(&program, &self->arena, context, &error), AM_OK);
    generated_add_program(self, program);
    for (uint64_t seed = 0; seed < 2; seed++) {
        Random random;
        random_seed(&random, seed);
        PlanStage stage = {0};
        Assignment *assignment;
        assert_int_equal(mesh_parse(&stage.mesh, &self->arena, "data=2,model=2", &error), AM_OK);
        for (int32_t axis = 0; axis < stage.mesh.axis_count; axis++) {
            PlanAxisPriority *priority = &stage.axis_priorities[axis];
            priority->entries = ARENA_ARRAY(&self->arena, PlanEntry, context->classes->count + 1);
            for (int32_t c = 0; c < context->classes->count; c++)
                if (random_below(&random, 3) == 0) priority->entries[priority->count++].class_index = c;
        }
        if (plan_assign(&assignment, &self->arena, context, &stage, &error) != AM_OK ||
            plan_lower(&program, &self->arena, context, assignment, 3, &error) != AM_OK)
            fail_msg("%s", error.text);
        generated_add_program(self, program);
    }
}

static inline PlanContext *generated_read(const char *model) {
    AmError error = {0};
    PlanContext *context;
    char path[512];
    snprintf(path, sizeof path, SOURCE_DIR "/datasets/models/%s/model.hlo.pb", model);
    if (access(path, R_OK) != 0)
        snprintf(path, sizeof path, SOURCE_DIR "/datasets/models/%s/model.hlo.pb.zst", model);
    if (plan_context_read(&context, path, NULL, &error) != AM_OK)
        fail_msg("%s: %s", error.source, error.text);
    return context;
}

/* One launcher for every kernel. */
static inline void generated_write_launchers(const Generated *self, FILE *file) {
    for (int32_t k = 0; k < self->count; k++)
        for (int32_t n = 0; n < self->sources[k].launch_count; n++) {
            const char *name = self->sources[k].launches[n].name;
            bool repeated = false;
            for (int32_t other = 0; other <= k && !repeated; other++)
                for (int32_t m = 0; m < (other < k ? self->sources[other].launch_count : n); m++)
                    repeated = repeated || strcmp(self->sources[other].launches[m].name, name) == 0;
            if (!repeated) fprintf(file, "LAUNCHER(%s)\n", name);
        }
}

/* The compiler calls this in every basic block. The race detector must not check it: it would call itself. */
static const char generated_counter[] =
    "extern \"C\" unsigned long long generated_counted = 0;\n"
    "extern \"C\" __attribute__((no_sanitize(\"thread\"), no_sanitize_coverage))\n"
    "void __sanitizer_cov_trace_pc() {\n"
    "    generated_counted++;\n"
    "}\n";

/* Basic blocks that kernels have run since the library was opened. */
static inline uint64_t generated_steps(const Generated *self) {
    const unsigned long long *counted = dlsym(self->library, "generated_counted");
    assert_non_null(counted);
    return *counted;
}

/* Compiles all kernels for the host, instrumented as AUTOMAP_HOST_KERNELS says (host_compiler.h). */
static inline void generated_compile(Generated *self) {
    char folder[] = "/tmp/automap_generated_XXXXXX", path[128], log[128], library[128], words[512] = "";
    const char *unit;
    assert_non_null(mkdtemp(folder));
    assert_int_equal(cuda_source_unit(&unit, &self->arena, self->sources, self->count, NULL), AM_OK);
    snprintf(path, sizeof path, "%s/unit.cpp", folder);
    snprintf(log, sizeof log, "%s/log", folder);
    snprintf(library, sizeof library, "%s/unit.so", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "#include \"tests/cuda/host.h\"\n%s%s\n", self->counts ? generated_counter : "", unit);
    generated_write_launchers(self, file);
    assert_int_equal(fclose(file), 0);
    bool done = host_compile(path, library, log, SOURCE_DIR,
                             self->counts ? "-O0 -fsanitize-coverage=trace-pc" : "-O0", NULL);
    if (!done && (file = fopen(log, "r"))) {
        words[fread(words, 1, sizeof words - 1, file)] = '\0';
        fclose(file);
    }
    unlink(path);
    unlink(log);
    if (!done) fail_msg("%s", words);
    self->library = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!self->library) fail_msg("%s", dlerror());
    unlink(library);
    rmdir(folder);
}

/* Compiles all kernels by NVRTC, where there is one, for one architecture that the text chooses, with
 * AUTOMAP_FULL for all. Fails if NVRTC has a message or a kernel has local memory. */
static inline void generated_check_devices(Generated *self, const char *title, bool all) {
    const char *unit;
    uint32_t choice = 0;
    if (getenv("AUTOMAP_HOST_KERNELS") || cuda_compiler_present(NULL) != AM_OK) return;
    if (!getenv("XDG_CACHE_HOME")) setenv("XDG_CACHE_HOME", "/dev/null", 1);
    assert_int_equal(cuda_source_unit(&unit, &self->arena, self->sources, self->count, NULL), AM_OK);
    for (const char *at = unit; *at; at++) choice = choice * 31 + (unsigned char)*at;
    for (int32_t a = 0; a < CUBIN_ARCHITECTURES; a++) {
        int32_t architecture = cubin_architectures[a];
        if (!all && (uint32_t)a != choice % CUBIN_ARCHITECTURES) continue;
        CudaImage image;
        if (!cubin_check(&image, &self->arena, title, unit, architecture))
            print_message("skipped: NVRTC does not know sm_%d\n", architecture);
        for (int32_t k = 0; k < self->count; k++)
            for (int32_t n = 0; n < self->sources[k].launch_count; n++)
                assert_true(cubin_holds(&image, self->sources[k].launches[n].name));
    }
}

/* All launches of source `k`. `addresses`: of operands, then results. Scratch memory is poisoned. */
static inline void generated_run(const Generated *self, int32_t k, void *const *addresses) {
    const CudaSource *source = &self->sources[k];
    void *arguments[128], *scratch = aligned_alloc(64, (size_t)(source->scratch_bytes + 127) / 64 * 64);
    int32_t count = source->parameters;
    assert_true(count + 3 <= 128);
    memcpy(arguments, addresses, (size_t)count * sizeof *arguments);
    memset(scratch, 0xA5, (size_t)source->scratch_bytes);
    if (source->scratch_bytes > 0) arguments[count++] = scratch;
    if (source->upload_bytes > 0) memcpy(&arguments[count++], &source->upload, sizeof source->upload);
    for (int32_t n = 0; n < source->launch_count; n++) {
        const CudaLaunch *launch = &source->launches[n];
        char name[128];
        HostKernel *run;
        snprintf(name, sizeof name, "run_%s", launch->name);
        *(void **)&run = dlsym(self->library, name);
        assert_non_null(run);
        if (launch->numbered) memcpy(&arguments[count], &launch->number, sizeof launch->number);
        run(arguments, (unsigned)launch->blocks, (unsigned)launch->threads,
            strstr(launch->text, "__syncthreads") != NULL);
    }
    free(scratch);
}

/* The text of the first kernel of source `k`, for messages. */
static inline const char *generated_text(const Generated *self, int32_t k) {
    return self->sources[k].launch_count > 0 ? self->sources[k].launches[0].text : "";
}

/* Corner cases of a type first, in all pairs of the first 16 * 16 elements, then random values.
 * `second`: of the two in a pair. pred holds 0 or 1. */
static inline void generated_fill(void *data, Dtype type, int64_t count, bool second, Random *random) {
    static const double floats[16] = {0,   -0.0,  1,     -1,   0.5,    -2.5,  NAN,  INFINITY,
                                      3.7, 1e-41, -1e20, 1e20, 126.99, 300.4, -300, -INFINITY};
    for (int64_t i = 0; i < count; i++) {
        int64_t corner = second ? i / 16 : i % 16;
        bool is_corner = i < 256;
        uint64_t bits = random_bits(random);
        int32_t width = dtype_bits(type);
        double value = is_corner ? floats[corner] : random_normal(random) * 3;
        uint64_t shift = random_bits(random) % (uint64_t)width;
        if (is_corner) {
            uint64_t sign = UINT64_C(1) << (width - 1);
            const uint64_t integers[16] = {0, 1,  UINT64_MAX, sign, sign - 1, 2,  3,   7,
                                           8, 15, 31,         33,   63,       64, 100, sign + 1};
            bits = integers[corner];
        } else {
            bits >>= shift;
        }
        switch (type) {
        case DTYPE_PRED: ((uint8_t *)data)[i] = bits & 1; break;
        case DTYPE_F32: ((float *)data)[i] = (float)value; break;
        case DTYPE_F64: ((double *)data)[i] = value; break;
        case DTYPE_BF16: ((uint16_t *)data)[i] = dtype_float_to_bf16((float)value); break;
        case DTYPE_F16: ((uint16_t *)data)[i] = dtype_float_to_f16((float)value); break;
        case DTYPE_C64:
            ((float *)data)[2 * i] = (float)random_normal(random);
            ((float *)data)[2 * i + 1] = (float)random_normal(random) * 2;
            break;
        default: memcpy((char *)data + i * dtype_bytes(type), &bits, (size_t)dtype_bytes(type));
        }
    }
}

static inline double generated_value(const void *data, Dtype type, int64_t i) {
    switch (type) {
    case DTYPE_F32: return ((const float *)data)[i];
    case DTYPE_F64: return ((const double *)data)[i];
    case DTYPE_BF16: return dtype_bf16_to_float(((const uint16_t *)data)[i]);
    default: return dtype_f16_to_float(((const uint16_t *)data)[i]);
    }
}

/* Integers bit for bit; floating values to `tolerance` of their size, at least of `least` (complex ones: of
 * their modulus), NaN like NaN. The first that differs, or -1. */
static inline int64_t generated_difference(const void *a, const void *b, Dtype type, int64_t count,
                                           double tolerance, double least) {
    if (type == DTYPE_C64) {
        const float *x = a, *y = b;
        for (int64_t i = 0; i < 2 * count; i += 2) {
            bool missing = isnan(x[i]) || isnan(x[i + 1]), expected = isnan(y[i]) || isnan(y[i + 1]);
            if (memcmp(x + i, y + i, 8) == 0 || (missing && expected)) continue;
            if (!(hypot(x[i] - y[i], x[i + 1] - y[i + 1]) <= tolerance * hypot(y[i], y[i + 1]))) return i / 2;
        }
        return -1;
    }
    int64_t bytes = dtype_bytes(type);
    for (int64_t i = 0; i < count; i++) {
        if (memcmp((const char *)a + i * bytes, (const char *)b + i * bytes, (size_t)bytes) == 0) continue;
        if (!dtype_is_floating(type)) return i;
        double x = generated_value(a, type, i), y = generated_value(b, type, i);
        if (isnan(x) && isnan(y)) continue;
        if (!(fabs(x - y) <= tolerance * fmax(fabs(y), least))) return i;
    }
    return -1;
}

/* Two units in the last place. */
static inline double generated_tolerance(Dtype type) {
    return type == DTYPE_F64                        ? 0x1p-51
           : type == DTYPE_F32 || type == DTYPE_C64 ? 0x1p-22
           : type == DTYPE_BF16                     ? 0x1p-6
                                                    : 0x1p-9;
}

/* The operands of an instruction on hand-made values are the first values, its results the last `results`. */
static inline void generated_add_case(Generated *self, KernelCase *values, int32_t results) {
    int32_t operands = values->program.value_count - results;
    int32_t *list = ARENA_ARRAY(&values->arena, int32_t, operands + 1);
    for (int32_t k = 0; k < operands; k++) list[k] = k;
    values->instruction.operands = list;
    values->instruction.operand_count = values->instruction.first_result = operands;
    values->instruction.result_count = results;
    ProgramStep step = {.instruction = 0, .fusion = -1};
    KernelCall *call;
    if (kernel_prepare(&call, &values->arena, &kernel_device_cpu, &values->program, &step, &values->error) !=
        AM_OK)
        fail_msg("%s", values->error.text);
    generated_add(self, call);
}

/* Operand `o` of a call at random. Indices are near their limits, on both sides. */
static inline void generated_fill_operand(void *data, const KernelCall *call, int32_t o, bool corners,
                                          Random *random) {
    const IrShape *shape = call->operand_shapes[o];
    IrOpcode opcode = call->instruction ? call->instruction->opcode : IR_UNKNOWN;
    int64_t count = ir_shape_elements(shape);
    generated_fill(data, shape->type, count, o % 2 == 1, random);
    if (!corners && shape->type == DTYPE_F32)
        for (int64_t i = 0; i < count; i++) ((float *)data)[i] = (float)random_normal(random);
    bool indexed = ((opcode == IR_GATHER || opcode == IR_SCATTER) && o == 1) ||
                   (opcode == IR_DYNAMIC_SLICE && o > 0) || (opcode == IR_DYNAMIC_UPDATE_SLICE && o > 1);
    for (int64_t i = 0; indexed && i < count; i++) {
        int64_t index =
            (int64_t)random_below(random, (uint64_t)call->operand_shapes[0]->dimensions[0] + 4) - 2;
        memcpy((char *)data + i * dtype_bytes(shape->type), &index, (size_t)dtype_bytes(shape->type));
    }
}

/* Runs source `k` beside the CPU's kernel on random values, in f32 with `corners` or without, and
 * compares every result: within `tolerance` times generated_tolerance() of its size, or of 1. The
 * two sides round elementary functions differently, and a small difference of two large values
 * keeps that error. */
static inline void generated_compare(const Generated *self, int32_t k, bool corners, double tolerance,
                                     Random *random) {
    KernelCall *call = self->calls[k];
    int32_t operands = call->operand_count, count = operands + call->result_count;
    void *addresses[80], *expected[16];
    assert_true(count <= 80 && call->result_count <= 16);
    for (int32_t a = 0; a < count; a++) {
        const IrShape *shape = a < operands ? call->operand_shapes[a] : call->result_shapes[a - operands];
        size_t bytes = (size_t)ir_shape_bytes(shape);
        addresses[a] = aligned_alloc(64, bytes / 64 * 64 + 64);
        memset(addresses[a], 0xA5, bytes);
        if (a < operands) {
            generated_fill_operand(addresses[a], call, a, corners, random);
            call->operands[a] = addresses[a];
        } else {
            call->results[a - operands] = expected[a - operands] = calloc(bytes + 1, 1);
        }
    }
    call->scratch = aligned_alloc(64, (size_t)(call->scratch_bytes + 127) / 64 * 64);
    call->run(call);
    generated_run(self, k, addresses);
    for (int32_t r = 0; r < call->result_count; r++) {
        const IrShape *shape = call->result_shapes[r];
        int64_t at =
            generated_difference(addresses[operands + r], expected[r], shape->type, ir_shape_elements(shape),
                                 tolerance * generated_tolerance(shape->type), 1);
        if (at >= 0)
            fail_msg("result %d (%s) differs at element %lld, of\n%s", r, dtype_name(shape->type),
                     (long long)at, generated_text(self, k));
        free(expected[r]);
    }
    for (int32_t a = 0; a < count; a++) free(addresses[a]);
    free(call->scratch);
}

static inline void generated_free(Generated *self) {
    if (self->library) dlclose(self->library);
    arena_free(&self->arena);
}

#endif
