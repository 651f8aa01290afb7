/* Options of the training system of a run.
 *
 * Defaults follow from the type, ZeRO's level and the attention. Rules by the source of the run replace them,
 * then rules by phrases of its note, such as "RMS kernel". Columns of the row replace all of these.
 */
#include "published/conventions.h"

#include <stddef.h>
#include <string.h>

/* An option, as its place in PublishedConventions. */
#define OPTION(member) offsetof(PublishedConventions, member)

/* The value of an option that follows from the source of a run, or from a phrase of its note. */
typedef struct ConventionRule {
    const char *text; /* the source or the phrase */
    size_t option;
    bool value;
} ConventionRule;

/* Rules by phrases. Later ones replace earlier ones. */
static const ConventionRule phrase_rules[] = {
    {"kernel torch", OPTION(fuses_softmax), false},
    {"kernel torch", OPTION(fuses_norms), false},
    {"kernel fused", OPTION(fuses_norms), false},
    {"kernel flash_attention", OPTION(fuses_norms), false},
    {"kernel flash_attention", OPTION(uses_flash_1), true},
    {"kernel flash_attention2", OPTION(uses_flash_1), false},
    {"RMS kernel", OPTION(fuses_norms), true},
    {"precision PURE", OPTION(has_f32_gradients), false},
    {"precision DEFAULT", OPTION(has_f32_gradients), true},
    {"gradients in f32", OPTION(has_f32_gradients), true},
    {"no overlap of gradient", OPTION(overlaps), false},
};

/* Rules by sources. The Scaling framework of Aleph Alpha runs PyTorch's operators one by one. Its gradients
 * are added in 16 bits. After the backward pass, an all-reduce in f32 sums them, also with ZeRO 1
 * (github.com/Aleph-Alpha/scaling, core/optimizer/allreduce.py). Its stages have equal numbers of modules,
 * tables and the last norm among them (core/nn/parallel_module/pipeline_partitioning.py), and each device has
 * all logits (transformer/model/layers/lm_head.py). Its full recomputation runs each module again, also that
 * of the logits (core/nn/parallel_module/parallel_module.py). In each
 * attention the host reads the lengths of the sequences (core/nn/attention/attention.py). llm-foundry's
 * published runs used the Triton kernels of the first FlashAttention, and its kernels of the cross-entropy.
 */
static const ConventionRule source_rules[] = {
    {"AlephAlpha", OPTION(is_eager), true},
    {"AlephAlpha", OPTION(overlaps), false},
    {"AlephAlpha", OPTION(has_f32_gradients), false},
    {"AlephAlpha", OPTION(has_f32_reductions), true},
    {"AlephAlpha", OPTION(all_reduces_gradients), true},
    {"AlephAlpha", OPTION(counts_tables), true},
    {"AlephAlpha", OPTION(gathers_logits), true},
    {"AlephAlpha", OPTION(keeps_outputs), true},
    {"AlephAlpha", OPTION(recomputes_head), true},
    {"AlephAlpha", OPTION(reads_lengths), true},
    {"llm-foundry", OPTION(joins_loss), true},
    {"llm-foundry", OPTION(uses_flash_1), true},
};

/* A column that states an option. */
typedef struct Column {
    const char *name, *text;
    size_t option;
    const char *yes, *no; /* its values; empty: not stated */
} Column;

/* Returns whether Megatron-LM's fused softmax takes the numbers of matrices: multiples of four
 * (is_kernel_available() in megatron/core/fusions/fused_softmax.py). */
static bool suits_fused_softmax(const PublishedRun *run) {
    int64_t heads = run->tensor > 0 ? run->heads / run->tensor : run->heads;
    return run->micro_batch <= 0 || run->micro_batch * heads % 4 == 0; /* each is at most 1e9 */
}

/* Megatron-LM adds gradients of f16 in f16 and of bf16 in f32. Fused attention came into use together with
 * overlapped reductions and without dropout. */
static void set_defaults(PublishedConventions *options, const PublishedRun *run) {
    bool is_flash = strcmp(run->attention, "flash") == 0, is_llama = strcmp(run->model, "llama") == 0;
    *options = (PublishedConventions){.fuses_norms = true,
                                      .fuses_softmax = suits_fused_softmax(run),
                                      .is_flash = is_flash,
                                      .has_dropout = !is_flash && !is_llama,
                                      .has_f32_gradients = strcmp(run->type, "f16") != 0,
                                      .joins_products = true,
                                      .overlaps = is_flash || run->zero >= 2};
}

static void set_option(PublishedConventions *options, size_t option, bool value) {
    *(bool *)((char *)options + option) = value;
}

/* The attention has a third value, which says which kernels its fused one has. */
static AmStatus read_attention(PublishedConventions *options, const char *text, AmError *error) {
    bool is_flash_1 = strcmp(text, "flash1") == 0;
    if (!is_flash_1 && text[0] && strcmp(text, "flash") != 0 && strcmp(text, "unfused") != 0)
        return am_fail(error, AM_ERROR_INPUT, "",
                       "unknown attention %.60s (expected flash, flash1 or unfused)", text);
    options->is_flash = is_flash_1 || strcmp(text, "flash") == 0;
    options->uses_flash_1 = options->is_flash && (is_flash_1 || options->uses_flash_1);
    return AM_OK;
}

static AmStatus read_column(PublishedConventions *options, const Column *column, AmError *error) {
    if (!column->text[0]) return AM_OK;
    bool is_yes = strcmp(column->text, column->yes) == 0;
    if (!is_yes && strcmp(column->text, column->no) != 0)
        return am_fail(error, AM_ERROR_INPUT, "", "unknown %s %.60s (expected %s or %s)", column->name,
                       column->text, column->yes, column->no);
    set_option(options, column->option, is_yes);
    return AM_OK;
}

AmStatus published_conventions(PublishedConventions *conventions, const PublishedRun *run, AmError *error) {
    const char *narrow = strcmp(run->type, "f16") == 0 ? "f16" : "bf16";
    const Column columns[] = {
        {"kernels", run->kernels, OPTION(fuses_softmax), "fused", "unfused"},
        {"kernels", run->kernels, OPTION(fuses_norms), "fused", "unfused"},
        {"norms", run->norms, OPTION(fuses_norms), "fused", "unfused"},
        {"eager", run->eager, OPTION(is_eager), "yes", "no"},
        {"dropout", run->dropout, OPTION(has_dropout), "yes", "no"},
        {"gradients", run->gradients, OPTION(has_f32_gradients), "f32", narrow},
        {"reductions", run->reductions, OPTION(has_f32_reductions), "f32", narrow},
        {"gradient_sum", run->gradient_sum, OPTION(all_reduces_gradients), "all_reduce", "reduce_scatter"},
        {"cuts", run->cuts, OPTION(counts_tables), "modules", "layers"},
        {"outputs", run->outputs, OPTION(keeps_outputs), "kept", "freed"},
        {"head", run->head, OPTION(recomputes_head), "recomputed", "kept"},
        {"lengths", run->lengths, OPTION(reads_lengths), "read", "known"},
        {"logits", run->logits, OPTION(gathers_logits), "gathered", "split"},
        {"loss", run->loss, OPTION(joins_loss), "fused", "unfused"},
        {"qkv", run->qkv, OPTION(joins_products), "joined", "separate"},
        {"overlap", run->overlap, OPTION(overlaps), "yes", "no"},
    };
    PublishedConventions options;
    set_defaults(&options, run);
    for (size_t k = 0; k < sizeof source_rules / sizeof *source_rules; k++)
        if (strcmp(run->source, source_rules[k].text) == 0)
            set_option(&options, source_rules[k].option, source_rules[k].value);
    for (size_t k = 0; k < sizeof phrase_rules / sizeof *phrase_rules; k++)
        if (strstr(run->note, phrase_rules[k].text))
            set_option(&options, phrase_rules[k].option, phrase_rules[k].value);
    for (size_t k = 0; k < sizeof columns / sizeof *columns; k++)
        TRY(read_column(&options, &columns[k], error));
    TRY(read_attention(&options, run->attention, error));
    *conventions = options;
    return AM_OK;
}
