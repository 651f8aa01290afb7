/* Finds layers as spans of forward operators: from the first to the last operator that reads a weight of the
 * layer. A boundary may be anywhere between the end of one span and the begin of the next.
 */
#include "planners/baselines/layer_spans.h"

/* Adds operator i to the layer whose weights it reads. */
static AmStatus add_operator(LayerSpans *spans, int32_t *capacity, Arena *arena, const LayerPath *path,
                             int32_t i, AmError *error) {
    int32_t k = spans->count;
    while (k > 0 && !(layer_path_is_same(&spans->layers[k - 1].path, path) &&
                      spans->layers[k - 1].path.number == path->number))
        k--;
    if (k > 0) {
        spans->layers[k - 1].last = i;
        return AM_OK;
    }
    ARENA_RESERVE(arena, spans->layers, spans->count, *capacity);
    if (!spans->layers) return am_fail_memory(error, *capacity);
    spans->layers[spans->count++] = (LayerSpan){*path, i, i};
    return AM_OK;
}

AmStatus layer_spans_find(LayerSpans *spans, Arena *arena, const PlanContext *primary, AmError *error) {
    int32_t capacity = 0;
    *spans = (LayerSpans){0};
    TRY(even_pipeline_work(&spans->work, arena, primary, error));
    spans->tables_after = spans->work.count - 1;
    for (int32_t i = 0; i < primary->rules->entry_count; i++) {
        const char *name = layer_weight_of(primary, i);
        LayerPath path = layer_path(name);
        if (!name[0]) continue;
        if (path.number >= 0) TRY(add_operator(spans, &capacity, arena, &path, i, error));
        else if (spans->count == 0) spans->tables_before = i;
    }
    int32_t last = 0;
    for (int32_t k = 0; k < spans->count; k++)
        if (spans->layers[k].last > last) last = spans->layers[k].last;
    for (int32_t i = last + 1; i < spans->work.count - 1 && i < spans->tables_after; i++) {
        const char *name = layer_weight_of(primary, i);
        if (name[0]) spans->tables_after = i;
    }
    return AM_OK;
}

void layer_spans_boundary(const LayerSpans *spans, int32_t layer, int32_t places[2]) {
    places[0] = 1 + (layer > 0 ? spans->layers[layer - 1].last : spans->tables_before);
    places[1] = layer < spans->count ? spans->layers[layer].first : spans->tables_after;
}

int32_t layer_spans_cut(const LayerSpans *spans, int32_t first, int32_t last) {
    const PipelineWork *work = &spans->work;
    int32_t best = -1;
    for (int32_t i = first; i <= last; i++)
        if (work->is_cut[i] && (best < 0 || work->crossing[i] < work->crossing[best])) best = i;
    return best;
}
