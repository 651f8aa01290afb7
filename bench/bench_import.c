/* Benchmark of import: from a file to the module that is planned.
 *
 * Every model of datasets/models is read from its binary, and from JSON and HLO
 * text that are written for the occasion. Per model and encoding:
 *   read      ir_read(): decompress, parse, build, verify (median and least)
 *   decode    what protobuf-c alone takes for the same binary, the floor of any
 *             reader that uses it (binary only)
 *   analyse   the rest of plan_context_read(): inline, order, hash, roles,
 *             factor rules, dimension classes; difference of the least
 *             times with and without it
 *   peak      the most memory that the process held, modules freed in between
 * Each case runs in a process of its own, so that its peak is its own. With
 * --quick only the smallest files are read.
 * bench/import_beside_jax.py times jaxlib's parsers on the same files.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "bench/zoo.h"
#include "ir/hlo.pb-c.h"
#include "propagation/plan.h"

#define RUNS       7
#define QUICK_SIZE 50000 /* bytes of the largest file that --quick reads */

typedef enum Encoding { BINARY, JSON, HLO_TEXT, ENCODING_COUNT } Encoding;
static const char *const encoding_names[] = {"binary", "JSON", "text"};
static const char *const encoding_suffixes[] = {"hlo.pb", "hlo.json", "hlo.txt"};

typedef struct Measured {
    bool failed;
    int32_t instructions;
    int64_t bytes; /* of the file, decompressed */
    double read_median, read_least, decode, analyse;
} Measured;

/* Seconds that protobuf-c takes to decode the binary into its own structures. */
static double decode_seconds(const FileBytes *bytes) {
    double seconds[RUNS];
    for (int32_t run = 0; run < RUNS; run++) {
        double begin = clock_seconds();
        Hlo__HloModuleProto *message =
            hlo__hlo_module_proto__unpack(NULL, (size_t)bytes->length, (const uint8_t *)bytes->data);
        seconds[run] = clock_seconds() - begin;
        if (message) hlo__hlo_module_proto__free_unpacked(message, NULL);
    }
    return zoo_median(seconds, RUNS);
}

static AmStatus measure(Measured *measured, const char *path, const char *roles, Encoding encoding,
                        AmError *error) {
    double reads[RUNS], contexts[RUNS];
    FileBytes bytes;
    TRY(file_read(&bytes, path, error));
    measured->bytes = bytes.length;
    if (encoding == BINARY) measured->decode = decode_seconds(&bytes);
    file_release(&bytes);
    for (int32_t run = 0; run < RUNS; run++) {
        IrModule *module = NULL;
        double begin = clock_seconds();
        TRY(ir_read(&module, path, error));
        reads[run] = clock_seconds() - begin;
        measured->instructions = module->instruction_count;
        ir_module_free(module);

        PlanContext *context = NULL;
        begin = clock_seconds();
        TRY(plan_context_read(&context, path, roles, error));
        contexts[run] = clock_seconds() - begin;
        plan_context_free(context);
    }
    measured->read_median = zoo_median(reads, RUNS);
    measured->read_least = reads[0];
    zoo_median(contexts, RUNS);
    measured->analyse = contexts[0] - reads[0];
    return AM_OK;
}

/* Measures in a child process; its peak of memory is told by the kernel. */
static bool measure_apart(Measured *measured, int64_t *peak_bytes, const char *path, const char *roles,
                          Encoding encoding) {
    int ends[2];
    if (pipe(ends) != 0) return false;
    fflush(stdout);
    pid_t child = fork();
    if (child < 0) return false;
    if (child == 0) {
        AmError error = {0};
        Measured result = {0};
        close(ends[0]);
        if (measure(&result, path, roles, encoding, &error) != AM_OK) {
            fprintf(stderr, "bench_import: %s\n", error.text);
            result.failed = true;
        }
        _exit(write(ends[1], &result, sizeof(result)) == (ssize_t)sizeof(result) ? 0 : 1);
    }
    close(ends[1]);
    struct rusage usage;
    int status;
    bool is_read = read(ends[0], measured, sizeof(*measured)) == (ssize_t)sizeof(*measured);
    close(ends[0]);
    if (wait4(child, &status, 0, &usage) != child || status != 0) return false;
    *peak_bytes = (int64_t)usage.ru_maxrss * 1024;
    return is_read && !measured->failed;
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

static bool measure_model(const char *model, const char *binary, const char *roles, const char *folder) {
    for (Encoding encoding = BINARY; encoding < ENCODING_COUNT; encoding++) {
        char path[4096];
        snprintf(path, sizeof(path), "%s", binary);
        if (encoding != BINARY) {
            snprintf(path, sizeof(path), "%s/model.%s", folder, encoding_suffixes[encoding]);
            if (!convert(binary, path)) return false;
        }
        Measured measured;
        int64_t peak_bytes;
        bool is_measured = measure_apart(&measured, &peak_bytes, path, roles, encoding);
        if (encoding != BINARY) remove(path);
        if (!is_measured) return false;
        char decode[16] = "";
        if (encoding == BINARY) snprintf(decode, sizeof(decode), "%.2f", 1e3 * measured.decode);
        printf("%-16s %-7s %8d %9.3f %9.2f %9.2f %9s %10.2f %9.2f %9.1f\n", model, encoding_names[encoding],
               measured.instructions, (double)measured.bytes / 1e6, 1e3 * measured.read_median,
               1e3 * measured.read_least, decode, (double)measured.instructions / measured.read_median / 1e6,
               1e3 * measured.analyse, (double)peak_bytes / 1e6);
    }
    return true;
}

int main(int count, char **arguments) {
    bool is_quick = count > 1 && strcmp(arguments[1], "--quick") == 0;
    const char *only = !is_quick && count > 1 ? arguments[1] : NULL;
    if (count > 2) {
        fprintf(stderr, "usage: bench_import [--quick | MODEL], in the source folder\n");
        return AM_ERROR_USAGE;
    }
    char folder[] = "/tmp/bench_import.XXXXXX";
    struct dirent **models;
    int model_count = zoo_list(&models);
    if (model_count < 0 || !mkdtemp(folder)) {
        perror("bench_import: " ZOO_FOLDER);
        return AM_ERROR_INPUT;
    }
    printf("%-16s %-7s %8s %9s %9s %9s %9s %10s %9s %9s\n", "model", "from", "instr.", "file MB", "read ms",
           "least ms", "decode ms", "M instr/s", "analys ms", "peak MB");
    bool passed = true;
    for (int i = 0; i < model_count; i++) {
        char binary[4096], roles[4096];
        struct stat status;
        if (only && strcmp(models[i]->d_name, only) != 0) continue;
        if (!zoo_paths(models[i]->d_name, binary, roles) || stat(binary, &status) != 0) continue;
        if (is_quick && status.st_size > QUICK_SIZE) continue;
        passed = measure_model(models[i]->d_name, binary, roles, folder) && passed;
    }
    for (int i = 0; i < model_count; i++) free(models[i]);
    free(models);
    rmdir(folder);
    return passed ? 0 : AM_ERROR_INTERNAL;
}
