/* Benchmark of import: from a file to the module that is planned.
 *
 * Every model of datasets/models is read from its binary, and from JSON and HLO
 * text that are written for the occasion; then modules made here, of 10,000 to
 * 1,000,000 instructions, to see that time and memory grow in proportion. Per
 * module and encoding:
 *   read       ir_read(): decompress, parse, build, verify (median, least, and
 *              the least processor time, which other programs disturb less)
 *   MB, /file  the most memory that the process held until then, and that over
 *              the size of the (decompressed) file
 *   canon.     ir_canonicalize(): inline calls, number topologically
 *   analyse    all of plan_context_read() but reading: canonical module, hash,
 *              roles, factor rules, dimension classes; least times
 *   peak       the most memory in the end
 * Each case runs in a process of its own, so that its peak is its own. With
 * --quick only the smallest files are read, with --sizes only generated files.
 * bench/import_beside_jax.py times jaxlib's parsers on the same files.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/files/file.h"
#include "base/system/clock.h"
#include "base/system/process.h"
#include "bench/zoo.h"
#include "ir/canonical/canonical.h"
#include "propagation/plan/plan.h"

#define RUNS       7
#define FEW_RUNS   3     /* of the largest modules */
#define LAYER_SIZE 100   /* instructions of a computation of a module made here */
#define QUICK_SIZE 50000 /* bytes of the largest file that --quick reads */

typedef enum Encoding { BINARY, JSON, HLO_TEXT, ENCODING_COUNT } Encoding;
static const char *const encoding_names[] = {"binary", "JSON", "text"};
static const char *const encoding_suffixes[] = {"hlo.pb", "hlo.json", "hlo.txt"};

typedef struct Measured {
    bool failed;
    int32_t instructions;
    int64_t bytes; /* of the file, decompressed */
    double read_median, read_least, read_processor, canonicalize, analyse;
    int64_t read_peak, peak; /* bytes of memory */
} Measured;

static AmStatus read_once(Measured *measured, double *seconds, double *processor, const char *path,
                          AmError *error) {
    IrModule *module = NULL;
    double begin = clock_seconds(), processor_begin = clock_cpu_seconds();
    TRY(ir_read(&module, path, error));
    *processor = clock_cpu_seconds() - processor_begin;
    *seconds = clock_seconds() - begin;
    measured->instructions = module->instruction_count;
    ir_module_free(module);
    return AM_OK;
}

static AmStatus canonicalize_once(double *seconds, const char *path, AmError *error) {
    IrModule *module = NULL, *canonical = NULL;
    TRY(ir_read(&module, path, error));
    double begin = clock_seconds();
    AmStatus status = ir_canonicalize(&canonical, module, error);
    *seconds = clock_seconds() - begin;
    if (status == AM_OK) ir_module_free(canonical);
    ir_module_free(module);
    return status;
}

static AmStatus analyse_once(double *seconds, const char *path, const char *roles, AmError *error) {
    PlanContext *context = NULL;
    double begin = clock_seconds();
    TRY(plan_context_read(&context, path, roles, error));
    *seconds = clock_seconds() - begin;
    plan_context_free(context);
    return AM_OK;
}

static AmStatus measure(Measured *measured, const char *path, const char *roles, int32_t runs,
                        AmError *error) {
    double reads[RUNS], processor[RUNS], canonical[RUNS], contexts[RUNS];
    FileBytes bytes;
    for (int32_t run = 0; run < runs; run++)
        TRY(read_once(measured, &reads[run], &processor[run], path, error));
    measured->read_peak = process_peak_resident_bytes();
    for (int32_t run = 0; run < runs; run++) {
        TRY(canonicalize_once(&canonical[run], path, error));
        TRY(analyse_once(&contexts[run], path, roles, error));
    }
    measured->peak = process_peak_resident_bytes();
    TRY(file_read(&bytes, path, error));
    measured->bytes = bytes.length;
    file_release(&bytes);
    measured->read_median = zoo_median(reads, runs);
    measured->read_least = reads[0];
    zoo_median(processor, runs);
    measured->read_processor = processor[0];
    zoo_median(canonical, runs);
    measured->canonicalize = canonical[0];
    zoo_median(contexts, runs);
    measured->analyse = contexts[0] - reads[0];
    return AM_OK;
}

/* Measures in a child process, so that the peak of memory is this case's own. */
static bool measure_apart(Measured *measured, const char *path, const char *roles, int32_t runs) {
    int ends[2];
    if (pipe(ends) != 0) return false;
    fflush(stdout);
    pid_t child = fork();
    if (child < 0) return false;
    if (child == 0) {
        AmError error = {0};
        Measured result = {0};
        close(ends[0]);
        if (measure(&result, path, roles, runs, &error) != AM_OK) {
            fprintf(stderr, "bench_import: %s\n", error.text);
            result.failed = true;
        }
        _exit(write(ends[1], &result, sizeof(result)) == (ssize_t)sizeof(result) ? 0 : 1);
    }
    close(ends[1]);
    int status;
    bool is_read = read(ends[0], measured, sizeof(*measured)) == (ssize_t)sizeof(*measured);
    close(ends[0]);
    return waitpid(child, &status, 0) == child && status == 0 && is_read && !measured->failed;
}

/* Writes the model in the encoding; in a child, whose memory goes with it. */
static bool convert(const char *source, const char *target) {
    pid_t child = fork();
    if (child == 0) {
        IrModule *module = NULL;
        AmError error = {0};
        bool written = ir_read(&module, source, &error) == AM_OK && ir_write(module, target, &error) == AM_OK;
        if (!written) fprintf(stderr, "bench_import: %s\n", error.text);
        _exit(!written);
    }
    int status;
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

/* One line per encoding of the module in the file `source`, which is in the encoding `given`. */
static bool measure_module(const char *name, const char *source, Encoding given, const char *roles,
                           const char *folder, int32_t runs) {
    for (Encoding encoding = BINARY; encoding < ENCODING_COUNT; encoding++) {
        char path[4096];
        Measured measured;
        snprintf(path, sizeof(path), "%s", source);
        if (encoding != given) {
            snprintf(path, sizeof(path), "%s/other.%s", folder, encoding_suffixes[encoding]);
            if (!convert(source, path)) return false;
        }
        bool is_measured = measure_apart(&measured, path, roles, runs);
        if (encoding != given) remove(path);
        if (!is_measured) return false;
        printf("%-16s %-7s %8d %9.3f %9.2f %9.2f %9.2f %9.2f %8.1f %6.1f %9.2f %9.2f %9.1f\n", name,
               encoding_names[encoding], measured.instructions, (double)measured.bytes / 1e6,
               1e3 * measured.read_median, 1e3 * measured.read_least, 1e3 * measured.read_processor,
               (double)measured.instructions / measured.read_median / 1e6, (double)measured.read_peak / 1e6,
               (double)measured.read_peak / (double)measured.bytes, 1e3 * measured.canonicalize,
               1e3 * measured.analyse, (double)measured.peak / 1e6);
    }
    return true;
}

/* Writes the computation of one layer, of LAYER_SIZE instructions: a parameter, a
 * weight, and products and element-wise operators in a chain. */
static void write_layer(FILE *file, int32_t layer) {
    static const char *const operators[] = {"add", "multiply", "subtract", "maximum"};
    fprintf(file,
            "%%layer_%d (x: f32[128,256], w: f32[256,256]) -> f32[128,256] {\n"
            "  %%v.0 = f32[128,256]{1,0} parameter(0)\n  %%w = f32[256,256]{1,0} parameter(1)\n",
            layer);
    for (int32_t i = 1; i <= LAYER_SIZE - 2; i++) {
        const char *opcode = i % 8 == 1 ? "dot" : operators[i % 4];
        const char *place = i == LAYER_SIZE - 2 ? "  ROOT " : "  ";
        fprintf(file, "%s%%v.%d = f32[128,256]{1,0} %s(%%v.%d, ", place, i, opcode, i - 1);
        if (i % 8 == 1) {
            fprintf(file, "%%w), lhs_contracting_dims={1}, rhs_contracting_dims={0}");
        } else {
            fprintf(file, "%%v.%d)", i / 2);
        }
        fprintf(
            file,
            ", metadata={op_name=\"jit(train_step)/jit(main)/transpose(jvp(Chain))/layer_%d/block_%d/%s\" "
            "source_file=\"/usr/lib/python3/site-packages/models/chain.py\" source_line=%d}\n",
            layer, i / 8, opcode, 100 + i);
    }
    fprintf(file, "}\n\n");
}

/* A module as text: an entry that calls so many layers one after the other. */
static bool write_chain(const char *path, int32_t instructions) {
    FILE *file = fopen(path, "w");
    if (!file) return false;
    int32_t layers = instructions / (LAYER_SIZE + 1);
    fprintf(file, "HloModule chain\n\n");
    for (int32_t layer = 0; layer < layers; layer++) write_layer(file, layer);
    fprintf(file, "ENTRY %%main (x: f32[128,256], w: f32[256,256]) -> f32[128,256] {\n"
                  "  %%h.0 = f32[128,256]{1,0} parameter(0)\n  %%w = f32[256,256]{1,0} parameter(1)\n");
    for (int32_t layer = 0; layer < layers; layer++) {
        fprintf(file,
                "  %s%%h.%d = f32[128,256]{1,0} call(%%h.%d, %%w), to_apply=%%layer_%d, "
                "metadata={op_name=\"jit(train_step)/jit(main)/layer_%d\"}\n",
                layer == layers - 1 ? "ROOT " : "", layer + 1, layer, layer, layer);
    }
    fprintf(file, "}\n");
    return fclose(file) == 0;
}

static bool measure_chain(int32_t instructions, const char *folder, int32_t runs) {
    char text[4096], name[32];
    snprintf(text, sizeof(text), "%s/chain.hlo.txt", folder);
    snprintf(name, sizeof(name), "chain_%d", instructions);
    bool is_measured =
        write_chain(text, instructions) && measure_module(name, text, HLO_TEXT, NULL, folder, runs);
    remove(text);
    return is_measured;
}

int main(int count, char **arguments) {
    bool is_quick = count > 1 && strcmp(arguments[1], "--quick") == 0;
    bool sizes_only = count > 1 && strcmp(arguments[1], "--sizes") == 0;
    const char *only = count > 1 && !is_quick && !sizes_only ? arguments[1] : NULL;
    if (count > 2) {
        fprintf(stderr, "usage: bench_import [--quick | --sizes | MODEL], in the source folder\n");
        return AM_ERROR_USAGE;
    }
    char folder[] = "/tmp/bench_import.XXXXXX";
    struct dirent **models;
    int model_count = zoo_list(&models);
    if (model_count < 0 || !mkdtemp(folder)) {
        perror("bench_import: " ZOO_FOLDER);
        return AM_ERROR_INPUT;
    }
    printf("%-16s %-7s %8s %9s %9s %9s %9s %9s %8s %6s %9s %9s %9s\n", "module", "from", "instr.", "file MB",
           "read ms", "least ms", "proc. ms", "M instr/s", "MB", "/file", "canon. ms", "analys ms",
           "peak MB");
    bool passed = true;
    for (int i = 0; i < model_count; i++) {
        char binary[4096], roles[4096];
        struct stat status;
        if (sizes_only || (only && strcmp(models[i]->d_name, only) != 0)) continue;
        if (!zoo_paths(models[i]->d_name, binary, roles) || stat(binary, &status) != 0) continue;
        if (is_quick && status.st_size > QUICK_SIZE) continue;
        passed = measure_module(models[i]->d_name, binary, BINARY, roles, folder, RUNS) && passed;
    }
    static const int32_t sizes[] = {10000, 31000, 100000, 300000, 1000000};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes) && !only; i++) {
        if (is_quick && i > 0) break;
        passed = measure_chain(sizes[i], folder, sizes[i] > 100000 ? FEW_RUNS : RUNS) && passed;
    }
    for (int i = 0; i < model_count; i++) free(models[i]);
    free(models);
    rmdir(folder);
    return passed ? 0 : AM_ERROR_INTERNAL;
}
