/* Names of the baselines, and the baselines that differ in recomputation alone. */
#include "planners/problem/baseline_list.h"

const char *baseline_name(Baseline baseline) {
    static const char *const names[] = {
#define BASELINE_NAME(name, text, help) text,
        BASELINE_LIST(BASELINE_NAME)
#undef BASELINE_NAME
    };
    return names[baseline];
}

/* The baselines with recomputation. */
static const struct {
    BaselineRecompute recompute;
    Baseline without;
} recomputing[BASELINE_COUNT] = {
    [BASELINE_ZERO3_FULL] = {BASELINE_RECOMPUTES_LAYERS, BASELINE_ZERO3},
    [BASELINE_MEGATRON_FULL] = {BASELINE_RECOMPUTES_LAYERS, BASELINE_MEGATRON},
    [BASELINE_MEGATRON_SELECTIVE] = {BASELINE_RECOMPUTES_ATTENTION, BASELINE_MEGATRON_SEQUENCE},
    [BASELINE_EVEN_PIPELINE_FULL] = {BASELINE_RECOMPUTES_LAYERS, BASELINE_EVEN_PIPELINE},
    [BASELINE_MEGATRON_3D_FULL] = {BASELINE_RECOMPUTES_LAYERS, BASELINE_MEGATRON_3D},
    [BASELINE_MEGATRON_3D_SELECTIVE] = {BASELINE_RECOMPUTES_ATTENTION, BASELINE_MEGATRON_3D}};

BaselineRecompute baseline_recompute(Baseline baseline) {
    return recomputing[baseline].recompute;
}

Baseline baseline_without_recompute(Baseline baseline) {
    bool has_other = recomputing[baseline].recompute != BASELINE_RECOMPUTES_NOTHING;
    return has_other ? recomputing[baseline].without : baseline;
}

bool baseline_has_stages(Baseline baseline) {
    Baseline without = baseline_without_recompute(baseline);
    return without == BASELINE_EVEN_PIPELINE || without == BASELINE_MEGATRON_3D;
}

bool baseline_has_groups(Baseline baseline) {
    return baseline == BASELINE_HSDP || baseline == BASELINE_HSDP_ZERO2;
}

const char *baseline_alias(int32_t k, Baseline *baseline) {
    static const struct {
        Baseline baseline;
        const char *name;
    } aliases[BASELINE_ALIAS_COUNT] = {
#define BASELINE_ALIAS(of, text) {BASELINE_##of, text},
        BASELINE_ALIAS_LIST(BASELINE_ALIAS)
#undef BASELINE_ALIAS
    };
    *baseline = aliases[k].baseline;
    return aliases[k].name;
}
