/* Options of the training system of a run.
 *
 * Defaults follow from the type, ZeRO's level and the attention. Then lists of sayings change them: of
 * sources, then of phrases in notes, such as "RMS kernel". Columns of the row have the last word.
 */
#include "published/conventions.h"

#include <string.h>

typedef enum Option {
    NORMS,
    SOFTMAX,
    EAGER,
    FLASH,
    FIRST_FLASH,
    DROPOUT,
    WIDE_GRADIENTS,
    WIDE_REDUCTIONS,
    REDUCES_WHOLE,
    COUNTS_TABLES,
    KEEPS_OUTPUTS,
    GATHERS_LOGITS,
    JOINS_LOSS,
    JOINS_PRODUCTS,
    OVERLAP,
    OPTIONS
} Option;

/* What a phrase of a note, or a source, says about an option. */
typedef struct Saying {
    const char *text;
    Option option;
    bool value;
} Saying;

/* Later ones win. */
static const Saying phrases[] = {
    {"kernel torch", SOFTMAX, false},
    {"kernel torch", NORMS, false},
    {"kernel fused", NORMS, false},
    {"kernel flash_attention", NORMS, false},
    {"kernel flash_attention", FIRST_FLASH, true},
    {"kernel flash_attention2", FIRST_FLASH, false},
    {"RMS kernel", NORMS, true},
    {"precision PURE", WIDE_GRADIENTS, false},
    {"precision DEFAULT", WIDE_GRADIENTS, true},
    {"gradients in f32", WIDE_GRADIENTS, true},
    {"no overlap of gradient", OVERLAP, false},
};

/* The Scaling framework of Aleph Alpha runs PyTorch's operators one by one. Its gradients are added in 16
 * bits. Behind the backward pass, an all-reduce in f32 sums them, also with ZeRO 1
 * (github.com/Aleph-Alpha/scaling, core/optimizer/allreduce.py). Its stages have equal numbers of modules,
 * tables and the last norm among them (core/nn/parallel_module/pipeline_partitioning.py), and each device has
 * all logits (transformer/model/layers/lm_head.py). llm-foundry's published runs used the Triton kernels of
 * the first FlashAttention, and its kernels of the cross-entropy. */
static const Saying sources[] = {
    {"AlephAlpha", EAGER, true},           {"AlephAlpha", OVERLAP, false},
    {"AlephAlpha", WIDE_GRADIENTS, false}, {"AlephAlpha", WIDE_REDUCTIONS, true},
    {"AlephAlpha", REDUCES_WHOLE, true},   {"AlephAlpha", COUNTS_TABLES, true},
    {"AlephAlpha", GATHERS_LOGITS, true},  {"AlephAlpha", KEEPS_OUTPUTS, true},
    {"llm-foundry", JOINS_LOSS, true},     {"llm-foundry", FIRST_FLASH, true},
};

typedef struct Column {
    const char *name, *text;
    Option option;
    const char *yes, *no; /* the values of the column */
} Column;

/* Megatron-LM's fused softmax takes numbers of matrices that are multiples of four (is_kernel_available() in
 * megatron/core/fusions/fused_softmax.py). */
static bool suits_fused_softmax(const PublishedRun *run) {
    int64_t heads = run->tensor > 0 ? run->heads / run->tensor : run->heads;
    return run->micro_batch <= 0 || run->micro_batch % 4 * (heads % 4) % 4 == 0;
}

/* Megatron-LM adds gradients of f16 in f16 and of bf16 in f32. Fused attention came into use together with
 * overlapped reductions and without dropout. */
static void take_defaults(bool *values, const PublishedRun *run) {
    bool is_flash = strcmp(run->attention, "flash") == 0, is_llama = strcmp(run->model, "llama") == 0;
    values[NORMS] = true;
    values[SOFTMAX] = suits_fused_softmax(run);
    values[EAGER] = values[FIRST_FLASH] = false;
    values[FLASH] = is_flash;
    values[DROPOUT] = !is_flash && !is_llama;
    values[WIDE_GRADIENTS] = strcmp(run->type, "f16") != 0;
    values[WIDE_REDUCTIONS] = values[REDUCES_WHOLE] = values[COUNTS_TABLES] = false;
    values[GATHERS_LOGITS] = values[JOINS_LOSS] = values[KEEPS_OUTPUTS] = false;
    values[JOINS_PRODUCTS] = true;
    values[OVERLAP] = is_flash || run->zero >= 2;
}

static AmStatus read_column(bool *values, const Column *column, AmError *error) {
    if (!column->text[0]) return AM_OK;
    bool is_yes = strcmp(column->text, column->yes) == 0;
    if (!is_yes && strcmp(column->text, column->no) != 0)
        return am_fail(error, AM_ERROR_INPUT, "", "unknown %s %.60s (expected %s or %s)", column->name,
                       column->text, column->yes, column->no);
    values[column->option] = is_yes;
    return AM_OK;
}

AmStatus published_conventions(PublishedConventions *conventions, const PublishedRun *run, AmError *error) {
    const char *narrow = strcmp(run->type, "f16") == 0 ? "f16" : "bf16";
    const Column columns[] = {
        {"attention", strcmp(run->attention, "flash1") == 0 ? "" : run->attention, FLASH, "flash", "unfused"},
        {"kernels", run->kernels, SOFTMAX, "fused", "unfused"},
        {"kernels", run->kernels, NORMS, "fused", "unfused"},
        {"norms", run->norms, NORMS, "fused", "unfused"},
        {"eager", run->eager, EAGER, "yes", "no"},
        {"dropout", run->dropout, DROPOUT, "yes", "no"},
        {"gradients", run->gradients, WIDE_GRADIENTS, "f32", narrow},
        {"reductions", run->reductions, WIDE_REDUCTIONS, "f32", narrow},
        {"gradient_sum", run->gradient_sum, REDUCES_WHOLE, "all_reduce", "reduce_scatter"},
        {"cuts", run->cuts, COUNTS_TABLES, "modules", "layers"},
        {"outputs", run->outputs, KEEPS_OUTPUTS, "kept", "freed"},
        {"logits", run->logits, GATHERS_LOGITS, "gathered", "split"},
        {"loss", run->loss, JOINS_LOSS, "fused", "unfused"},
        {"qkv", run->qkv, JOINS_PRODUCTS, "joined", "separate"},
        {"overlap", run->overlap, OVERLAP, "yes", "no"},
    };
    bool values[OPTIONS];
    take_defaults(values, run);
    for (size_t k = 0; k < sizeof sources / sizeof *sources; k++)
        if (strcmp(run->source, sources[k].text) == 0) values[sources[k].option] = sources[k].value;
    for (size_t k = 0; k < sizeof phrases / sizeof *phrases; k++)
        if (strstr(run->note, phrases[k].text)) values[phrases[k].option] = phrases[k].value;
    for (size_t k = 0; k < sizeof columns / sizeof *columns; k++)
        TRY(read_column(values, &columns[k], error));
    if (strcmp(run->attention, "flash1") == 0) values[FLASH] = values[FIRST_FLASH] = true;
    *conventions = (PublishedConventions){.fuses_norms = values[NORMS],
                                          .fuses_softmax = values[SOFTMAX],
                                          .is_eager = values[EAGER],
                                          .is_flash = values[FLASH],
                                          .is_first_flash = values[FLASH] && values[FIRST_FLASH],
                                          .has_dropout = values[DROPOUT],
                                          .has_wide_gradients = values[WIDE_GRADIENTS],
                                          .has_wide_reductions = values[WIDE_REDUCTIONS],
                                          .reduces_whole = values[REDUCES_WHOLE],
                                          .counts_tables = values[COUNTS_TABLES],
                                          .keeps_outputs = values[KEEPS_OUTPUTS],
                                          .gathers_logits = values[GATHERS_LOGITS],
                                          .joins_loss = values[JOINS_LOSS],
                                          .joins_products = values[JOINS_PRODUCTS],
                                          .overlaps = values[OVERLAP]};
    return AM_OK;
}
