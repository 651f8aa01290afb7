/* Numbers of kept layers: in the run, in the sample, and of the operands that take the place of omitted ones.
 */
#include "ir/layers/kept_layers.h"

bool kept_layers_omit(const LayerRun *self, int32_t layer) {
    return layer >= self->low + LAYERS_KEPT - LAYER_REACH && layer <= self->high - LAYER_REACH;
}

/* Returns the first layer of the run that the kept layer at a place represents. The layers of the run are
 * divided evenly. If LAYERS_KEPT divides all layers, these are: the layers outside of the run belong to the
 * first and to the last stage. */
static int32_t first_represented(const LayerRun *self, int32_t at) {
    int32_t low = self->low, end = self->high + 1, last = end - (LAYERS_KEPT - at);
    if (at == 0 || at == LAYERS_KEPT) return at == 0 ? low : end;
    if (self->layers % LAYERS_KEPT != 0) return low + (end - low) * at / LAYERS_KEPT;
    int32_t first = self->layers / LAYERS_KEPT * at;
    return first < low + at ? low + at : first > last ? last : first;
}

int32_t kept_layers_count(const LayerRun *self, int32_t layer) {
    int32_t at =
        layer <= self->high - LAYER_REACH ? layer - self->low : LAYERS_KEPT - 1 - (self->high - layer);
    bool is_in_run = layer >= self->low && layer <= self->high;
    return is_in_run ? first_represented(self, at + 1) - first_represented(self, at) : 1;
}

int32_t kept_layers_standing(const LayerRun *self, int32_t layer) {
    if (layer < self->low || layer > self->high) return layer;
    int32_t kept = self->low, end = self->low + kept_layers_count(self, self->low);
    while (layer >= end) {
        kept = kept == self->low + LAYERS_KEPT - LAYER_REACH - 1 ? self->high - LAYER_REACH + 1 : kept + 1;
        end += kept_layers_count(self, kept);
    }
    return kept;
}

int32_t kept_layers_move(const LayerRun *self, int32_t i, int32_t layer) {
    return self->members[self->first[layer] + self->place[i]];
}

int32_t kept_layers_operand(const LayerRun *self, int32_t operand, int32_t layer) {
    int32_t of = self->layer[operand], last = self->low + LAYERS_KEPT - LAYER_REACH - 1;
    if (of < 0 || !kept_layers_omit(self, of)) return operand;
    if (layer < 0) return kept_layers_move(self, operand, last);
    int32_t wanted =
        layer <= last ? of - last - 1 + self->high - LAYER_REACH + 1 : of - (self->high - LAYER_REACH) + last;
    bool is_in_run = wanted >= self->low && wanted <= self->high;
    return kept_layers_move(self, operand, is_in_run ? wanted : last);
}

int32_t kept_layers_number(const LayerRun *self, int32_t layer) {
    int32_t left_out = self->high - self->low + 1 - LAYERS_KEPT;
    return layer > self->high - LAYER_REACH ? layer - left_out : layer;
}
