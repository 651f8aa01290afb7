/* Every family of opcodes on CUDA beside the CPU: the modules of
 * tests/cuda/opcodes, at sizes around a block and around 2^18 elements, and above
 * 2^31 elements where memory allows it. The family "types" has every operator in
 * every element type: tests/cuda/types.txt. On the stand-ins a sample of the
 * combinations of a type and a size runs; AUTOMAP_FULL: all.
 *
 * All memory of the device holds a pattern before each run, so that an element
 * which is not written differs. Small modules run three times, which a device
 * does plainly, recorded and replayed. One line for each family, a summary last:
 *
 *   test_cuda_opcodes [--family NAME] [--large] [--seconds N] [--list]
 *
 * The families above 2^31 elements are large_add and so on, "large" all of them
 * (tests/cuda/large.txt); those that would begin after N seconds are left out. They have
 * fewer elements where they are not named, and on stand-ins without --large. Skipped
 * (77) in a build without CUDA and where there is neither a GPU nor a stand-in. */
#include <stdio.h>

#include "automap_features.h"

enum { SKIPPED = 77 };

#ifdef AUTOMAP_HAVE_CUDA
#include <dirent.h>

#include "base/system/clock.h"
#include "executor/cuda/codegen/source_text.h"
#include "executor/cuda/coverage.h"
#include "ir/attention/attention.h"
#include "tests/support/cuda_case.h"
#include "tests/support/gpu_present.h"
#include "tests/support/opcode_case.h"

enum { MOST_FAMILIES = 64, MOST_AT_ONCE = 32, LARGE_SECONDS = 25, SAMPLE = 3, TYPE_SAMPLE = 96 };
#define BYTES_AT_ONCE ((int64_t)32 << 20)

/* One module on both devices. */
typedef struct Instance {
    OpcodeTemplate form;
    char label[64];
    bool is_refused; /* kept until the kernels of the others are made: the device still lists its calls */
    CudaCase gpu, cpu;
    Random random;
} Instance;

typedef struct Sweep {
    KernelDevice *device;
    bool runs_large;
    const char *family;
    Instance *batch[MOST_AT_ONCE];
    int32_t batch_count;
    int64_t batch_bytes;
    int32_t modules, refused, failures;       /* of the family */
    int32_t passed, by_name, skipped, failed; /* families */
    int32_t type_number;                      /* pairs of an operator and a type so far */
    bool seen[IR_OPCODE_COUNT];               /* ran, and was equal */
    char note[512];                           /* the first thing that went wrong, or a refusal */
} Sweep;

static void note(Sweep *self, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void note(Sweep *self, const char *format, ...) {
    va_list arguments;
    if (self->note[0]) return;
    va_start(arguments, format);
    vsnprintf(self->note, sizeof self->note, format, arguments);
    va_end(arguments);
}

static AmStatus fuse_attention(CudaCase *self) {
    IrRoles *roles;
    IrAttentions *found;
    int32_t *origins;
    TRY(ir_find_roles(&roles, &self->arena, self->canonical, NULL, &self->error));
    TRY(ir_find_attention(&found, &self->arena, self->canonical, roles->phases, &self->error));
    if (ir_count_attention(found) == 0)
        return am_fail(&self->error, AM_ERROR_INPUT, "", "the module has no attention operator");
    return ir_fuse_attention(&self->fused, &origins, self->canonical, found, &self->error);
}

static AmStatus open_case(CudaCase *self, KernelDevice *device, const char *text, bool fuses) {
    *self = (CudaCase){.device = device};
    TRY(ir_read_bytes(&self->module, "test", text, (int64_t)strlen(text), &self->error));
    TRY(ir_canonicalize(&self->canonical, self->module, &self->error));
    if (fuses) TRY(fuse_attention(self));
    const IrModule *module = fuses ? self->fused : self->canonical;
    TRY(program_from_computation(&self->program, &self->arena, module, module->entry, false, &self->error));
    TRY(executable_prepare(&self->entry, &self->arena, device, NULL, self->program, false, &self->error));
    return executable_allocate(self->entry, &self->memory, NULL, &self->error);
}

static int64_t memory_of(const CudaCase *self) {
    return kernel_align(self->program->allocation.bytes) + kernel_align(self->entry->scratch_bytes) +
           kernel_align(self->entry->comm_scratch_bytes);
}

/* Fills all memory of the device with a pattern, then both sides' parameters. */
static void fill(Instance *self, uint8_t pattern) {
    CudaCase *gpu = &self->gpu, *cpu = &self->cpu;
    int64_t bytes = memory_of(gpu);
    void *poison = malloc((size_t)bytes + 1);
    memset(poison, pattern, (size_t)bytes);
    gpu->device->back_end->copy_in(gpu->device, gpu->memory, poison, bytes);
    free(poison);
    for (int32_t k = 0; k < cpu->program->roles->parameter_count; k++) {
        const IrShape *shape = &cpu->program->values[cpu->program->parameters[k]].shape;
        int64_t count = ir_shape_elements(shape);
        void *data = calloc((size_t)ir_shape_bytes(shape) + 16, 1);
        static const OpcodeFill plain;
        opcode_fill(data, shape->type, count, k < OPCODE_FILLS ? &self->form.fills[k] : &plain, k,
                    &self->random);
        cuda_case_set(gpu, k, data);
        cuda_case_set(cpu, k, data);
        free(data);
    }
}

/* The operator that gives output k. */
static const char *name_of_output(const CudaCase *self, int32_t k) {
    const IrModule *module = self->module;
    const IrInstruction *root = &module->instructions[module->computations[module->entry].root];
    if (root->opcode == IR_TUPLE && k < root->operand_count) root = &module->instructions[root->operands[k]];
    if (root->opcode == IR_GET_TUPLE_ELEMENT) root = &module->instructions[root->operands[0]];
    return root->opcode_name;
}

static bool compare(Sweep *sweep, Instance *self) {
    for (int32_t k = 0; k < self->cpu.program->roles->output_count; k++) {
        const IrShape *shape = &self->cpu.program->values[self->cpu.program->outputs[k]].shape;
        int64_t bytes = ir_shape_bytes(shape), count = ir_shape_elements(shape);
        void *made = malloc((size_t)bytes + 16), *expected = malloc((size_t)bytes + 16);
        cuda_case_get(&self->gpu, k, made);
        cuda_case_get(&self->cpu, k, expected);
        int64_t at =
            opcode_difference(made, expected, shape->type, count, self->form.ulps, self->form.of_largest);
        if (at >= 0) {
            uint8_t a[16] = {0}, b[16] = {0};
            int64_t width = dtype_bytes(shape->type);
            memcpy(a, (char *)made + at * width, (size_t)width);
            memcpy(b, (char *)expected + at * width, (size_t)width);
            bool shows = dtype_is_floating(shape->type) || dtype_is_integer(shape->type);
            double x = !shows                           ? a[0]
                       : dtype_is_floating(shape->type) ? generated_value(a, shape->type, 0)
                                                        : a[0];
            double y = !shows                           ? b[0]
                       : dtype_is_floating(shape->type) ? generated_value(b, shape->type, 0)
                                                        : b[0];
            note(sweep, "%s: output %d (%s, %s): element %lld of %lld is %.17g (0x%02x), on the CPU %.17g",
                 self->label, k, name_of_output(&self->cpu, k), dtype_name(shape->type), (long long)at,
                 (long long)count, x, a[0], y);
        }
        free(made);
        free(expected);
        if (at >= 0) return false;
    }
    return true;
}

/* The patterns are bytes of a NaN, of a number, and zeros. */
static bool run(Sweep *sweep, Instance *self) {
    static const uint8_t patterns[] = {0xA5, 0xFF, 0};
    int32_t runs = self->form.once || memory_of(&self->gpu) > (8 << 20) ? 1 : 3;
    for (int32_t k = 0; k < runs; k++) {
        fill(self, patterns[k]);
        if (executable_run(self->gpu.entry, &self->gpu.error) != AM_OK ||
            self->gpu.device->back_end->synchronize(self->gpu.device, &self->gpu.error) != AM_OK) {
            note(sweep, "%s: %s", self->label, self->gpu.error.text);
            return false;
        }
        cuda_case_run(&self->cpu);
        if (!compare(sweep, self)) return false;
    }
    return true;
}

static void mark_seen(Sweep *sweep, const IrModule *module) {
    for (int32_t i = 0; i < module->instruction_count; i++)
        sweep->seen[module->instructions[i].opcode] = true;
}

static void close_instance(Instance *self) {
    cuda_case_close(&self->gpu);
    cuda_case_close(&self->cpu);
    free(self);
}

/* Compiles the modules so far, runs and releases them. */
static void flush(Sweep *self) {
    AmError error = {0};
    AmStatus status = self->device->back_end->finish(self->device, &error);
    if (status != AM_OK) note(self, "%s", error.text);
    for (int32_t k = 0; k < self->batch_count; k++) {
        Instance *one = self->batch[k];
        if (one->is_refused) self->refused++;
        else if (status == AM_OK && run(self, one)) mark_seen(self, one->gpu.module);
        else self->failures++;
        close_instance(one);
    }
    self->batch_count = 0;
    self->batch_bytes = 0;
}

/* Returns whether CUDA or the CPU lacks the operator of a template on this type. */
static bool is_lacking(const OpcodeTemplate *form, Dtype type) {
    CudaCase cpu;
    IrOpcode opcode = ir_opcode_from_name(form->chosen);
    if (cuda_lacks(opcode) || (cuda_lacking_types(opcode) & cuda_type_set(type))) return true;
    Text text = opcode_text(form, dtype_name(type), 4);
    bool lacks = open_case(&cpu, &kernel_device_cpu, text.data, false) != AM_OK;
    text_free(&text);
    cuda_case_close(&cpu);
    return lacks;
}

/* Opens the module on both devices; a refusal has to be the expected one. */
static void add(Sweep *self, const OpcodeTemplate *form, const char *type, int64_t size) {
    Instance *one = calloc(1, sizeof *one);
    Text text = opcode_text(form, type, size);
    one->form = *form;
    snprintf(one->label, sizeof one->label, "%s%s%s, %lld", form->chosen ? form->chosen : "",
             form->chosen ? ", " : "", type, (long long)size);
    random_seed(&one->random, (uint64_t)size + 7);
    self->modules++;
    AmStatus cpu = open_case(&one->cpu, &kernel_device_cpu, text.data, form->fuses_attention);
    AmStatus gpu = open_case(&one->gpu, self->device, text.data, form->fuses_attention);
    text_free(&text);
    bool expects_refusal = form->refused[0] != '\0';
    if (expects_refusal && gpu == AM_ERROR_INPUT && strstr(one->gpu.error.text, form->refused) &&
        strstr(one->gpu.error.text, "no kernel for '")) {
        one->is_refused = true;
        note(self, "%s", one->gpu.error.text);
    } else if (expects_refusal || cpu != AM_OK || gpu != AM_OK) {
        one->is_refused = true;
        self->failures++;
        note(self, "%s: the CPU says '%s', CUDA '%s'", one->label, one->cpu.error.text, one->gpu.error.text);
    } else {
        self->batch_bytes += memory_of(&one->gpu);
    }
    self->batch[self->batch_count++] = one;
    if (self->batch_count == MOST_AT_ONCE || self->batch_bytes > BYTES_AT_ONCE) flush(self);
}

static void report(Sweep *self, const char *family, double seconds) {
    bool is_refused = self->refused > 0 && self->refused == self->modules;
    const char *result = self->failures > 0 ? "FAILED" : is_refused ? "refused by name" : "passed";
    printf("%-27s %-16s %4d modules %6.1f s%s%s\n", family, result, self->modules, seconds,
           self->note[0] ? "  " : "", self->note);
    fflush(stdout);
    if (self->failures > 0) self->failed++;
    else if (is_refused) self->by_name++;
    else self->passed++;
}

/* On stand-ins a sample runs. */
static bool runs_all(void) {
    return !stand_in() || getenv("AUTOMAP_FULL");
}

/* Returns whether the sweep runs a template with its type t and its size n. All of them on a card and with
 * AUTOMAP_FULL; on the stand-ins one in SAMPLE, which the template's text chooses: where there are fewer,
 * one of them. */
static bool is_chosen(const OpcodeTemplate *form, int32_t t, int32_t n) {
    uint32_t choice = 0;
    int32_t all = form->type_count * form->size_count;
    if (runs_all()) return true;
    for (size_t k = 0; k < form->length; k++) choice = choice * 31 + (unsigned char)form->text[k];
    if (all < SAMPLE) return t * form->size_count + n == (int32_t)(choice % (uint32_t)all);
    return ((uint32_t)(t + n) + choice) % SAMPLE == 0;
}

/* Every operator of the template in every type that both devices take. */
static void add_types(Sweep *self, OpcodeTemplate *form) {
    for (int32_t k = 0; k < form->operator_count; k++)
        for (Dtype type = DTYPE_INVALID; type < DTYPE_COUNT; type++) {
            form->chosen = form->operators[k];
            if (dtype_bytes(type) == 0 || is_lacking(form, type)) continue;
            if (runs_all() || self->type_number++ % TYPE_SAMPLE == 0) add(self, form, dtype_name(type), 4);
        }
}

static void run_family(Sweep *self, const char *family, const char *path) {
    FileBytes bytes;
    AmError error = {0};
    OpcodeTemplate form;
    const char *wrong;
    double start = clock_seconds();
    self->modules = self->refused = self->failures = 0;
    self->note[0] = '\0';
    if (file_read(&bytes, path, &error) != AM_OK) {
        note(self, "%s", error.text);
        self->failures++;
    } else {
        for (const char *at = bytes.data; opcode_next(&form, &at, &wrong);) {
            if (wrong) note(self, "not understood: %.60s", wrong), self->failures++;
            if (form.operator_count > 0) {
                add_types(self, &form);
                continue;
            }
            for (int32_t t = 0; t < form.type_count; t++)
                for (int32_t n = 0; n < form.size_count; n++)
                    if (is_chosen(&form, t, n)) add(self, &form, form.types[t], form.sizes[n]);
        }
        flush(self);
        file_release(&bytes);
    }
    report(self, family, clock_seconds() - start);
}

/* Sizes of a module in tests/cuda/large.txt. */
enum { SIZE_LARGE, SIZE_MIDDLE, SIZE_SMALL };

/* Operators without a module of this size, with the reason. Element-wise ones and copies share their indices:
 * some are there. */
static const struct {
    IrOpcode opcode;
    const char *reason;
} never_large[] = {
    {IR_CONSTANT, "the text would have as many values"},
    {IR_CUSTOM_CALL, "TopK is the operator topk"},
    {IR_DYNAMIC_RESHAPE, "sizes are s32"},
    {IR_GET_DIMENSION_SIZE, "sizes are s32"},
    {IR_SET_DIMENSION_SIZE, "sizes are s32"},
};

/* Parameters hold small numbers whose period is no power of two. */
static void fill_large(CudaCase *gpu, CudaCase *cpu) {
    enum { PERIOD = 251 * 64 };
    for (int32_t k = 0; k < cpu->program->roles->parameter_count; k++) {
        const IrShape *shape = &cpu->program->values[cpu->program->parameters[k]].shape;
        char *data = executable_parameter(cpu->entry, k);
        int64_t bytes = ir_shape_bytes(shape), width = dtype_bytes(shape->type), done = PERIOD * width;
        bool floats = dtype_is_floating(shape->type);
        char *period = malloc((size_t)done);
        for (int64_t i = 0; i < PERIOD; i++)
            opcode_store(period, shape->type, i, (double)(floats ? i % 251 % 5 + 1 : i % 251));
        for (int64_t at = 0; at < bytes; at += done)
            memcpy(data + at, period, (size_t)(bytes - at < done ? bytes - at : done));
        free(period);
        cuda_case_set(gpu, k, data);
    }
}

/* All memory of the device, so that an element which is not written differs. */
static void poison(const CudaCase *self) {
    enum { MOST = 64 << 20 };
    int64_t bytes = memory_of(self), part = bytes < MOST ? bytes : MOST;
    char *pattern = malloc((size_t)part + 1);
    memset(pattern, 0xA5, (size_t)part);
    for (int64_t at = 0; at < bytes; at += part)
        self->device->back_end->copy_in(self->device, self->memory + at, pattern,
                                        bytes - at < part ? bytes - at : part);
    free(pattern);
}

/* Returns whether all outputs are equal, one in memory at a time. */
static bool compare_large(Sweep *self, CudaCase *gpu, CudaCase *cpu, const OpcodeTemplate *form) {
    for (int32_t k = 0; k < cpu->program->roles->output_count; k++) {
        const IrShape *shape = &cpu->program->values[cpu->program->outputs[k]].shape;
        char *made = malloc((size_t)ir_shape_bytes(shape) + 16), *expected = executable_output(cpu->entry, k);
        cuda_case_get(gpu, k, made);
        int64_t at = opcode_difference(made, expected, shape->type, ir_shape_elements(shape), form->ulps,
                                       form->of_largest);
        int64_t byte = at * dtype_bytes(shape->type);
        if (at >= 0)
            note(self, "output %d: element %lld begins with byte %d, on the CPU %d", k, (long long)at,
                 made[byte], expected[byte]);
        free(made);
        if (at >= 0) return false;
    }
    return true;
}

/* "passed", or why not. */
static const char *run_large(Sweep *self, const OpcodeTemplate *form, int64_t size) {
    CudaCase gpu = {0}, cpu;
    const char *result = "passed";
    Text text = opcode_text(form, "s8", size);
    KernelDevice *host = cuda_case_device(&kernels_cpu); /* with all processors */
    AmStatus of_cpu = open_case(&cpu, host, text.data, false);
    AmStatus of_gpu = of_cpu == AM_OK ? open_case(&gpu, self->device, text.data, false) : AM_OK;
    text_free(&text);
    if (of_cpu == AM_OK && of_gpu == AM_OK) of_gpu = self->device->back_end->finish(self->device, &gpu.error);
    if (of_cpu == AM_ERROR_RUNTIME || of_gpu == AM_ERROR_RUNTIME) {
        result = "skipped";
        note(self, "%s", of_cpu != AM_OK ? cpu.error.text : gpu.error.text);
    } else if (of_cpu != AM_OK || of_gpu != AM_OK) {
        result = "FAILED";
        note(self, "%s", of_cpu != AM_OK ? cpu.error.text : gpu.error.text);
    } else {
        poison(&gpu);
        fill_large(&gpu, &cpu);
        cuda_case_run(&cpu);
        cuda_case_run(&gpu);
        cuda_case_synchronize(&gpu);
        if (!compare_large(self, &gpu, &cpu, form)) result = "FAILED";
    }
    cuda_case_close(&cpu);
    if (of_cpu == AM_OK) cuda_case_close(&gpu);
    host->back_end->close(host);
    return result;
}

/* Every operator with a kernel is in a large module, or there is a reason why not. */
static void check_large(Sweep *self, const bool *is_large) {
    for (int32_t k = 0; k < IR_OPCODE_COUNT; k++) {
        bool has_kernel = strcmp(cuda_coverage_way((IrOpcode)k), "generated") == 0 || k == IR_DOT ||
                          k == IR_CONVOLUTION || k == IR_CUSTOM_CALL;
        const char *reason = NULL;
        for (size_t n = 0; n < sizeof never_large / sizeof *never_large; n++)
            if (never_large[n].opcode == (IrOpcode)k) reason = never_large[n].reason;
        if (!has_kernel || is_large[k] || reason || cuda_source_is_element_wise((IrOpcode)k)) continue;
        printf("FAILED: tests/cuda/large.txt has no module with %s\n", ir_opcode_name((IrOpcode)k));
        self->failed++;
    }
}

/* Returns whether --family names a large module, or is absent. */
static bool is_named_large(const Sweep *self, const char *name) {
    char family[64];
    snprintf(family, sizeof family, "large_%s", name);
    return !self->family || strcmp(self->family, "large") == 0 || strcmp(self->family, family) == 0;
}

/* One line for a module: around 2^18 elements, then above 2^31. Left out if it begins after `seconds`. */
static void run_by_itself(Sweep *self, const OpcodeTemplate *form, double start, double seconds) {
    double begin = clock_seconds();
    char family[64];
    const char *result = "skipped";
    snprintf(family, sizeof family, "large_%s", form->operators[0]);
    self->note[0] = '\0';
    if (begin - start > seconds) note(self, "more than %.0f s have gone by", seconds);
    else result = run_large(self, form, form->sizes[SIZE_MIDDLE]);
    if (strcmp(result, "passed") == 0) result = run_large(self, form, form->sizes[SIZE_LARGE]);
    printf("%-27s %-16s %20.1f s%s%s\n", family, result, clock_seconds() - begin, self->note[0] ? "  " : "",
           self->note);
    fflush(stdout);
    if (strcmp(result, "passed") == 0) self->passed++;
    else if (strcmp(result, "FAILED") == 0) self->failed++;
    else self->skipped++;
}

/* A line for each large module, or one for all with fewer elements. False: no such family
 * exists. */
static bool run_all_large(Sweep *self, double seconds) {
    static bool is_large[IR_OPCODE_COUNT];
    double start = clock_seconds();
    bool known = false;
    FileBytes bytes;
    AmError error = {0};
    OpcodeTemplate form;
    const char *wrong;
    self->modules = self->refused = self->failures = 0;
    self->note[0] = '\0';
    if (file_read(&bytes, SOURCE_DIR "/tests/cuda/large.txt", &error) != AM_OK) {
        printf("FAILED: %s\n", error.text);
        self->failed++;
        return true;
    }
    for (const char *at = bytes.data; opcode_next(&form, &at, &wrong);) {
        form.chosen = form.operators[0];
        is_large[ir_opcode_from_name(form.chosen)] = true;
        if (!is_named_large(self, form.chosen)) continue;
        known = true;
        for (int32_t k = 0; k < OPCODE_FILLS; k++)
            snprintf(form.fills[k].kind, sizeof form.fills[k].kind, "small");
        if (self->runs_large) run_by_itself(self, &form, start, seconds);
        else add(self, &form, "s8", form.sizes[stand_in() ? SIZE_SMALL : SIZE_MIDDLE]);
    }
    file_release(&bytes);
    flush(self);
    if (self->modules > 0) report(self, "large, with fewer elements", clock_seconds() - start);
    check_large(self, is_large);
    return known;
}

static int compare_names(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The names of the families, sorted, and "types"; count of them. */
static int32_t find_families(char **names) {
    int32_t count = 0;
    DIR *folder = opendir(SOURCE_DIR "/tests/cuda/opcodes");
    for (struct dirent *entry; folder && (entry = readdir(folder)) && count < MOST_FAMILIES - 1;) {
        char *end = strstr(entry->d_name, ".txt");
        if (!end || end == entry->d_name) continue;
        names[count++] = strndup(entry->d_name, (size_t)(end - entry->d_name));
    }
    if (folder) closedir(folder);
    names[count++] = strdup("types");
    qsort(names, (size_t)count, sizeof *names, compare_names);
    return count;
}

/* Every opcode that the CUDA back end runs was in a module that was equal. */
static void check_opcodes(Sweep *self) {
    Text missing = {0};
    for (int32_t k = 0; k < IR_OPCODE_COUNT; k++) {
        const char *way = cuda_coverage_way((IrOpcode)k);
        bool runs = strcmp(way, "-") != 0 && strcmp(way, "no") != 0 && strcmp(way, "lowered") != 0;
        if (runs && !self->seen[k]) text_append(&missing, " %s", ir_opcode_name((IrOpcode)k));
    }
    if (missing.length > 0) {
        printf("FAILED: no module was equal that has%s\n", missing.data);
        self->failed++;
    }
    text_free(&missing);
}

int main(int count, char **arguments) {
    Sweep self = {0};
    char *families[MOST_FAMILIES], path[512];
    bool lists = false;
    double seconds = LARGE_SECONDS;
    for (int k = 1; k < count; k++) {
        if (strcmp(arguments[k], "--large") == 0) self.runs_large = true;
        else if (strcmp(arguments[k], "--list") == 0) lists = true;
        else if (strcmp(arguments[k], "--family") == 0 && k + 1 < count) self.family = arguments[++k];
        else if (strcmp(arguments[k], "--seconds") == 0 && k + 1 < count) seconds = atof(arguments[++k]);
        else {
            fprintf(stderr, "usage: %s [--family NAME] [--large] [--seconds N] [--list]\n", arguments[0]);
            return 2;
        }
    }
    int32_t family_count = find_families(families);
    if (!lists && !gpu_is_present()) return SKIPPED;
    bool known = !self.family;
    if (!lists) self.device = cuda_case_device(&kernels_cuda);
    if (!lists && !stand_in() && self.family && strncmp(self.family, "large", 5) == 0) self.runs_large = true;
    for (int32_t k = 0; k < family_count; k++) {
        bool has_types = strcmp(families[k], "types") == 0;
        snprintf(path, sizeof path, SOURCE_DIR "/tests/cuda/%s%s.txt", has_types ? "" : "opcodes/",
                 families[k]);
        bool is_named = self.family && strcmp(self.family, families[k]) == 0;
        known |= is_named;
        if (lists) puts(families[k]);
        else if (!self.family || is_named) run_family(&self, families[k], path);
        free(families[k]);
    }
    if (lists) return 0;
    known |= run_all_large(&self, seconds);
    if (!known) return fprintf(stderr, "there is no family '%s'; see --list\n", self.family), 2;
    if (!self.family) check_opcodes(&self);
    self.device->back_end->close(self.device);
    printf("%d passed, %d refused by name, %d skipped, %d failed\n", self.passed, self.by_name, self.skipped,
           self.failed);
    return self.failed > 0 || self.passed + self.by_name + self.skipped == 0;
}
#else
#include "tests/support/without_cuda.h"
#endif
