/* Layers as spans of forward operators, and the boundaries between them.
 *
 * A layer spans the operators from the first to the last that read its weights (layer_path.h). The boundary
 * before a layer is any place after the last operator of what precedes it, up to its first operator; the
 * best place is where the fewest bytes cross.
 */
#ifndef PLANNERS_BASELINES_LAYER_SPANS_H
#define PLANNERS_BASELINES_LAYER_SPANS_H

#include "planners/baselines/even_pipeline.h"
#include "planners/baselines/layer_path.h"

typedef struct LayerSpan {
    LayerPath path;
    int32_t first, last; /* forward operators that read its weights */
} LayerSpan;

typedef struct LayerSpans {
    LayerSpan *layers; /* [count] in the order of their first operators; none has weights without a number */
    int32_t count;
    int32_t tables_before; /* the last operator before the layers that reads another weight, or 0 */
    int32_t tables_after;  /* the first operator after the layers that reads another weight, or that of the
                               loss */
    PipelineWork work;
} LayerSpans;

/* Finds the layers of a module as read; none where no paths of weights number them. Everything lives in the
 * arena. */
AmStatus layer_spans_find(LayerSpans *spans, Arena *arena, const PlanContext *primary, AmError *error);

/* Finds the first and the last place of the boundary before a layer; of layer `count` that after the
 * last. */
void layer_spans_boundary(const LayerSpans *spans, int32_t layer, int32_t places[2]);

/* Returns the place in [first, last] where a stage may begin and the fewest bytes cross; -1: none. */
int32_t layer_spans_cut(const LayerSpans *spans, int32_t first, int32_t last);

#endif
