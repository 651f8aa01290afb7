/* Benchmark of attention by blocks beside the same region instruction by instruction.
 *
 * Forward and backward alternate, on the same random inputs. A row has the smaller processor time of each,
 * their ratio and the memory for values and scratch of both.
 *
 *   bench_attention [--small] [--threads N]
 */
#include <stdio.h>
#include <time.h>

#include "bench/attention_regions.h"

enum { ROUNDS = 5 };

typedef struct Case {
    const char *name;
    AttentionForm form;
} Case;

static const Case cases[] = {
    {"GPT-2, batch 1, 1,024 tokens",
     {.batch = 1,
      .heads = 12,
      .groups = 1,
      .rows = 1024,
      .keys = 1024,
      .width = 64,
      .type = "f32",
      .is_causal = true}},
    {"GPT-2, batch 4, 1,024 tokens",
     {.batch = 4,
      .heads = 12,
      .groups = 1,
      .rows = 1024,
      .keys = 1024,
      .width = 64,
      .type = "f32",
      .is_causal = true}},
    {"8 query and 2 key heads, 2,048 tokens",
     {.batch = 1,
      .heads = 2,
      .groups = 4,
      .rows = 2048,
      .keys = 2048,
      .width = 64,
      .type = "f32",
      .is_causal = true}},
    {"12 heads bf16, 1,024 tokens",
     {.batch = 1,
      .heads = 12,
      .groups = 1,
      .rows = 1024,
      .keys = 1024,
      .width = 64,
      .type = "bf16",
      .is_causal = true}},
    {"12 heads, 512 tokens, all keys",
     {.batch = 4, .heads = 12, .groups = 1, .rows = 512, .keys = 512, .width = 64, .type = "f32"}},
};

/* Returns the processor time of all threads, so that other work on the machine does not count. */
static double processor_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void fill(AttentionRegion *region) {
    Random random;
    random_seed(&random, 1);
    for (int32_t k = 0; k < region->input_count; k++) {
        const IrShape *shape = attention_input(region, k);
        for (int64_t i = 0; i < ir_shape_elements(shape); i++) {
            float value = (float)(2 * random_uniform(&random) - 1);
            uint32_t bits;
            memcpy(&bits, &value, sizeof bits);
            uint16_t narrow = (uint16_t)(bits >> 16);
            if (shape->type == DTYPE_F32) memcpy((char *)region->inputs[k] + 4 * i, &value, 4);
            else memcpy((char *)region->inputs[k] + 2 * i, &narrow, 2);
        }
    }
}

static AmStatus measure(KernelDevice *device, const AttentionForm *form, double seconds[2], double bytes[2],
                        AmError *error) {
    AttentionRegion region;
    Text text = attention_text(form);
    AmStatus status = attention_prepare(&region, device, text.data, text.length, error);
    text_free(&text);
    if (status == AM_OK) fill(&region);
    for (int32_t round = 0; round < ROUNDS && status == AM_OK; round++) {
        double begin = processor_seconds();
        status = attention_run_plain(&region, error);
        double middle = processor_seconds();
        region.blocked->run(region.blocked);
        double end = processor_seconds();
        if (round == 0 || middle - begin < seconds[0]) seconds[0] = middle - begin;
        if (round == 0 || end - middle < seconds[1]) seconds[1] = end - middle;
    }
    if (status == AM_OK) {
        const Program *program = region.region;
        bytes[0] = (double)(program->allocation.bytes - program->allocation.parameter_bytes +
                            region.plain->scratch_bytes);
        bytes[1] = (double)region.blocked->scratch_bytes;
    }
    attention_free(&region);
    return status;
}

int main(int count, char **arguments) {
    AmError error = {0};
    KernelOptions options = {0};
    bool is_small = false;
    for (int k = 1; k < count; k++) {
        is_small |= strcmp(arguments[k], "--small") == 0;
        if (strcmp(arguments[k], "--threads") == 0 && k + 1 < count) options.threads = atoi(arguments[k + 1]);
    }
    KernelDevice *device;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (kernels_cpu.open(&device, &options, &error) != AM_OK) return 1;
    AmStatus status = kernels_cpu.finish(device, &error);
    printf("%-40s %12s %12s %8s %10s %10s\n", "", "plain, ms", "blocks, ms", "ratio", "plain, MB",
           "blocks, MB");
    for (size_t c = 0; c < sizeof cases / sizeof *cases && status == AM_OK; c++) {
        double all[2] = {0};
        for (int pass = 0; pass < 2 && status == AM_OK; pass++) {
            AttentionForm form = cases[c].form;
            double seconds[2] = {0}, bytes[2] = {0};
            form.is_backward = pass == 1;
            if (is_small) form.rows = form.keys = form.rows / 8;
            status = measure(device, &form, seconds, bytes, &error);
            for (int way = 0; way < 2; way++) all[way] += seconds[way];
            printf("%-31s %-8s %12.2f %12.2f %8.2f %10.1f %10.1f\n", pass ? "" : cases[c].name,
                   pass ? "backward" : "forward", seconds[0] * 1e3, seconds[1] * 1e3, seconds[0] / seconds[1],
                   bytes[0] / 1e6, bytes[1] / 1e6);
        }
        printf("%-31s %-8s %12.2f %12.2f %8.2f\n", "", "both", all[0] * 1e3, all[1] * 1e3, all[0] / all[1]);
    }
    kernels_cpu.close(device);
    if (status != AM_OK) fprintf(stderr, "bench_attention: %s\n", error.text);
    return status == AM_OK ? 0 : 1;
}
