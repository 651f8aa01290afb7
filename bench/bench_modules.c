/* Seconds that whole modules take on the CPU: each file's entry computation, lowered, fused and prepared as
 * in a training step, is run on random values again and again. Prints one line for each file: the least of
 * several rounds, in seconds. bench/convolutions.py writes the files and sets JAX beside it.
 *
 *   bench_modules [--threads N] FILE.hlo.txt ...
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "base/system/clock.h"
#include "executor/program/executable.h"
#include "ir/canonical/canonical.h"
#include "lowering/spmd/lower.h"

#define SECONDS 0.03 /* of a round, at least */
#define ROUNDS  5

typedef struct Loaded {
    Arena arena;
    IrModule *module, *canonical;
    Program *program;
    Executable *entry;
    char *memory;
} Loaded;

static void fill_parameters(KernelDevice *device, const Loaded *loaded) {
    Random random;
    random_seed(&random, 1);
    for (int32_t k = 0; k < loaded->program->roles->parameter_count; k++) {
        const IrShape *shape = &loaded->program->values[loaded->program->parameters[k]].shape;
        char *to = executable_parameter(loaded->entry, k);
        for (int64_t at = 0; shape->type == DTYPE_F32 && at < ir_shape_bytes(shape); at += 4) {
            float number = (float)(2 * random_uniform(&random) - 1);
            device->back_end->copy_in(device, to + at, &number, 4);
        }
    }
}

static AmStatus load(Loaded *loaded, KernelDevice *device, const char *path, AmError *error) {
    const KernelBackEnd *back_end = device->back_end;
    TRY(ir_read(&loaded->module, path, error));
    TRY(ir_canonicalize(&loaded->canonical, loaded->module, error));
    TRY(program_from_computation(&loaded->program, &loaded->arena, loaded->canonical,
                                 loaded->canonical->entry, false, error));
    TRY(executable_prepare(&loaded->entry, &loaded->arena, device, NULL, loaded->program, false, error));
    TRY(executable_allocate(loaded->entry, &loaded->memory, NULL, error));
    TRY(back_end->finish(device, error));
    fill_parameters(device, loaded);
    return AM_OK;
}

static AmStatus measure(const Loaded *loaded, double *least, AmError *error) {
    for (int32_t round = 0; round < ROUNDS; round++) {
        int32_t count = 0;
        double begin = clock_seconds(), spent = 0;
        while (spent < SECONDS) {
            executable_issue(loaded->entry, error);
            count++;
            spent = clock_seconds() - begin;
        }
        if (error->code != AM_OK) return error->code;
        if (round == 0 || spent / count < *least) *least = spent / count;
    }
    return AM_OK;
}

int main(int argc, char **argv) {
    KernelOptions options = {.threads = 1, .ranks_here = 1};
    KernelDevice *device;
    AmError error = {0};
    int first = 1;
    if (argc > 2 && strcmp(argv[1], "--threads") == 0) {
        options.threads = (int32_t)strtol(argv[2], NULL, 10);
        first = 3;
    }
    if (first >= argc) {
        fprintf(stderr, "usage: bench_modules [--threads N] FILE.hlo.txt ...\n");
        return AM_ERROR_USAGE;
    }
    AmStatus status = kernels_cpu.open(&device, &options, &error);
    if (status != AM_OK) return status;
    for (int k = first; k < argc && status == AM_OK; k++) {
        Loaded loaded = {0};
        double seconds = 0;
        status = load(&loaded, device, argv[k], &error);
        if (status == AM_OK) status = measure(&loaded, &seconds, &error);
        if (status == AM_OK) printf("%.9f\n", seconds);
        if (loaded.memory) kernels_cpu.release(device, loaded.memory);
        arena_free(&loaded.arena);
        ir_module_free(loaded.canonical);
        ir_module_free(loaded.module);
    }
    if (status != AM_OK) fprintf(stderr, "bench_modules: %s\n", error.text);
    kernels_cpu.close(device);
    return status;
}
