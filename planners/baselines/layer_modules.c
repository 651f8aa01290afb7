/* Finds the modules of layers by their products: those with weights, and those of attention, which have none.
 */
#include "planners/baselines/layer_modules.h"

#include "lowering/micro_batch/recompute.h"
#include "propagation/stages/stages.h"

/* One layer: the forward operators [first, end), and its products (-1: the layer lacks it). */
typedef struct Layer {
    int32_t first, end;
    int32_t first_product;           /* with a weight */
    int32_t scores, weighted_values; /* the first and the last product of attention */
    int32_t output_product;          /* the first product with a weight after attention */
    int32_t first_mlp, last_mlp;     /* products with weights after that */
} Layer;

typedef struct Finder {
    const PlanContext *primary;
    const LayerSpans *spans;
    bool *is_recomputed; /* [entry instruction] */
    bool *is_reached;    /* [entry instruction] by the walk at hand */
    AmError *error;
} Finder;

static bool has_weight(const Finder *self, int32_t i) {
    return layer_weight_of(self->primary, i)[0] != '\0';
}

/* Returns whether the operator is a product with a weight. */
static bool is_weight_product(const Finder *self, int32_t i) {
    return ir_is_matrix_product(ir_instruction(self->primary->canonical, i)->opcode) &&
           plan_context_in_forward(self->primary, i) && has_weight(self, i);
}

/* Returns whether the operator is a product of attention, or attention as one operator. */
static bool is_attention(const Finder *self, int32_t i) {
    const IrInstruction *instruction = ir_instruction(self->primary->canonical, i);
    if (!plan_context_in_forward(self->primary, i) || has_weight(self, i)) return false;
    if (instruction->opcode == IR_FUSION) return self->primary->unfused != NULL;
    return ir_is_matrix_product(instruction->opcode) && instruction->attributes->dot->batch_count > 0;
}

/* Marks what depends on the operators that are marked already, in [first, end). */
static void reach(Finder *self, int32_t first, int32_t end) {
    for (int32_t i = first; i < end; i++) {
        const IrInstruction *instruction = ir_instruction(self->primary->canonical, i);
        for (int32_t k = 0; plan_context_in_forward(self->primary, i) && k < instruction->operand_count; k++)
            self->is_reached[i] |= self->is_reached[instruction->operands[k]];
    }
}

static void forget(Finder *self, const Layer *layer) {
    for (int32_t i = layer->first; i < layer->end; i++) self->is_reached[i] = false;
}

static void find_products(Finder *self, Layer *layer) {
    layer->first_product = layer->scores = layer->weighted_values = -1;
    layer->output_product = layer->first_mlp = layer->last_mlp = -1;
    for (int32_t i = layer->first; i < layer->end; i++) {
        if (is_weight_product(self, i) && layer->first_product < 0) layer->first_product = i;
        if (!is_attention(self, i)) continue;
        if (layer->scores < 0) layer->scores = i;
        layer->weighted_values = i;
    }
    if (layer->scores < 0) return;
    self->is_reached[layer->weighted_values] = true;
    reach(self, layer->weighted_values + 1, layer->end);
    for (int32_t i = layer->weighted_values + 1; i < layer->end; i++) {
        if (!is_weight_product(self, i) || !self->is_reached[i]) continue;
        if (layer->output_product < 0) layer->output_product = i;
        else {
            if (layer->first_mlp < 0) layer->first_mlp = i;
            layer->last_mlp = i;
        }
    }
    forget(self, layer);
}

/* Adds the operators of [first, end), a norm. Returns whether it has a sum. */
static bool add_norm(Finder *self, int32_t first, int32_t end) {
    bool has_sum = false;
    for (int32_t i = first; first >= 0 && i < end; i++) {
        if (!plan_context_in_forward(self->primary, i)) continue;
        has_sum |= ir_instruction(self->primary->canonical, i)->opcode == IR_REDUCE;
        self->is_recomputed[i] = true;
    }
    return has_sum;
}

static bool add_norms(Finder *self, const Layer *layer) {
    int32_t middle = layer_spans_cut(self->spans, layer->output_product + 1, layer->first_mlp);
    return add_norm(self, layer->first, layer->first_product) && add_norm(self, middle, layer->first_mlp);
}

static void add_mlp(Finder *self, const Layer *layer) {
    for (int32_t i = layer->first_mlp; i <= layer->last_mlp; i++)
        if (is_weight_product(self, i)) self->is_reached[i] = true;
    reach(self, layer->first_mlp, layer->last_mlp + 1);
    for (int32_t i = layer->first_mlp; i <= layer->last_mlp; i++)
        self->is_recomputed[i] |= self->is_reached[i];
    forget(self, layer);
}

static void add_light_operators(Finder *self, const Layer *layer) {
    int32_t products = 0;
    for (int32_t i = layer->first; i < layer->end; i++) {
        if (!plan_context_in_forward(self->primary, i)) continue;
        bool is_saved = is_attention(self, i);
        if (is_weight_product(self, i)) is_saved = ++products % 2 == 1;
        self->is_recomputed[i] = !is_saved;
    }
}

static AmStatus add_modules(Finder *self, const Layer *layer, uint32_t modules) {
    const char *lacks = NULL;
    bool has_mlp = layer->first_mlp >= 0;
    if (layer->scores < 0) lacks = "attention";
    else if (modules & LAYER_CORE_ATTENTION && layer->scores == layer->weighted_values)
        lacks = "scores outside of fused attention";
    else if (modules & (LAYER_MLP | LAYER_NORMS) && !has_mlp) lacks = "MLP after its attention";
    else if (modules & LAYER_NORMS && !add_norms(self, layer)) lacks = "norm before attention and MLP";
    if (lacks)
        return am_fail(self->error, AM_ERROR_INFEASIBLE, plan_context_file(self->primary),
                       "selective recomputation: the layer from %s on has no %s",
                       layer_first_weight(self->primary, layer->first), lacks);
    if (modules & LAYER_CORE_ATTENTION) {
        self->is_reached[layer->scores] = true;
        reach(self, layer->scores + 1, layer->weighted_values);
        for (int32_t i = layer->scores; i < layer->weighted_values; i++)
            self->is_recomputed[i] |= self->is_reached[i];
        forget(self, layer);
    }
    if (modules & LAYER_MLP) add_mlp(self, layer);
    if (modules & LAYER_LIGHT_OPERATORS) add_light_operators(self, layer);
    return AM_OK;
}

AmStatus layer_modules_save(PlanRecomputation *recompute, Arena *arena, const PlanContext *primary,
                            const LayerSpans *spans, uint32_t modules, AmError *error) {
    int32_t entry = primary->rules->entry_count;
    Finder self = {.primary = primary,
                   .spans = spans,
                   .is_recomputed = ARENA_ARRAY(arena, bool, entry + 1),
                   .is_reached = ARENA_ARRAY(arena, bool, entry + 1),
                   .error = error};
    bool *is_needed = ARENA_ARRAY(arena, bool, entry + 1);
    recompute->saved = ARENA_ARRAY(arena, int32_t, entry + 1);
    recompute->saved_count = 0;
    if (arena->failed) return am_fail_memory(error, entry);
    for (int32_t r = 0; r < recompute->range_count; r++) {
        Layer layer = {.first = recompute->ranges[r][0], .end = recompute->ranges[r][1]};
        find_products(&self, &layer);
        TRY(add_modules(&self, &layer, modules));
    }
    for (int32_t i = 0; i < entry; i++)
        self.is_recomputed[i] |= plan_context_in_forward(primary, i) && stages_is_transparent(primary, i);
    /* Operators whose values the backward pass or a recomputed operator reads. */
    for (int32_t i = 0; i < self.primary->rules->entry_count; i++) {
        IrPhase phase = self.primary->roles->phases[i];
        const IrInstruction *instruction = ir_instruction(self.primary->canonical, i);
        bool reads = phase == IR_PHASE_BACKWARD || phase == IR_PHASE_RECOMPUTED || self.is_recomputed[i];
        for (int32_t k = 0; reads && k < instruction->operand_count; k++)
            is_needed[instruction->operands[k]] = true;
    }
    for (int32_t r = 0; r < recompute->range_count; r++)
        for (int32_t i = recompute->ranges[r][0]; i < recompute->ranges[r][1]; i++)
            if (recompute_covers(primary, i) && is_needed[i] && !self.is_recomputed[i])
                recompute->saved[recompute->saved_count++] = i;
    return AM_OK;
}
