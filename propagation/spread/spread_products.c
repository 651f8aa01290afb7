/* Propagation of shardings through dot and convolution.
 *
 * A convolution is a product over its feature dimension; a spatial dimension
 * whose window covers all of the input contracts, one with a window of 1 is free, and so on.
 * Only where a window moves along a split dimension is it treated as a window.
 */
#include "base/int_list.h"
#include "propagation/spread/spread_internal.h"

typedef enum ProductKind {
    PRODUCT_BATCH,
    PRODUCT_LHS,
    PRODUCT_RHS,
    PRODUCT_CONTRACTED,
    PRODUCT_WINDOW
} ProductKind;

/* One dimension of a product: its number in both operands and the result, -1 where it has none. */
typedef struct ProductDimension {
    ProductKind kind;
    int32_t operand[2], result;
} ProductDimension;

typedef struct Product {
    ProductDimension dimensions[3 * IR_MAX_RANK];
    int32_t count;
    bool has_window;
} Product;

static void add_dimension(Product *product, ProductKind kind, int64_t lhs, int64_t rhs, int64_t result) {
    if (product->count == 3 * IR_MAX_RANK) return;
    product->dimensions[product->count++] =
        (ProductDimension){kind, {(int32_t)lhs, (int32_t)rhs}, (int32_t)result};
    product->has_window |= kind == PRODUCT_WINDOW;
}

static Product read_dot(const Spread *self, const IrInstruction *instruction) {
    const IrDot *dot = instruction->attributes->dot;
    const IrShape *lhs = &ir_instruction(self->module, instruction->operands[0])->shape;
    const IrShape *rhs = &ir_instruction(self->module, instruction->operands[1])->shape;
    Product product = {.count = 0};
    int32_t result = 0;
    for (int32_t k = 0; k < dot->batch_count; k++)
        add_dimension(&product, PRODUCT_BATCH, dot->lhs_batch[k], dot->rhs_batch[k], result++);
    for (int32_t k = 0; k < dot->contracting_count; k++)
        add_dimension(&product, PRODUCT_CONTRACTED, dot->lhs_contracting[k], dot->rhs_contracting[k], -1);
    for (int32_t d = 0; d < lhs->rank; d++)
        if (!int_list_contains(dot->lhs_batch, dot->batch_count, d) &&
            !int_list_contains(dot->lhs_contracting, dot->contracting_count, d))
            add_dimension(&product, PRODUCT_LHS, d, -1, result++);
    for (int32_t d = 0; d < rhs->rank; d++)
        if (!int_list_contains(dot->rhs_batch, dot->batch_count, d) &&
            !int_list_contains(dot->rhs_contracting, dot->contracting_count, d))
            add_dimension(&product, PRODUCT_RHS, -1, d, result++);
    return product;
}

/* Returns whether a window pairs position k of the input with position k of the kernel: a batch dimension. */
static bool is_paired(const IrWindowDimension *window, int64_t size) {
    int64_t step = size > 2 ? size - 1 : 1;
    if (window->size == size && window->base_dilation == size && window->padding_low == 0 &&
        window->padding_high == 0 && !window->reversal &&
        ((window->stride == step && window->window_dilation == 1) ||
         (window->stride == 1 && window->window_dilation == step)))
        return true;
    return window->size == size && window->padding_low == size - 1 && window->padding_high == size - 1 &&
           window->reversal && window->window_dilation == size && window->stride == size &&
           window->base_dilation == size - 1;
}

static ProductKind spatial_kind(const IrWindowDimension *window, int64_t size) {
    bool has_padding = window->padding_low != 0 || window->padding_high != 0;
    if (is_paired(window, size)) return PRODUCT_BATCH;
    if (size == window->size && window->base_dilation == 1 && window->window_dilation == 1 && !has_padding &&
        !window->reversal)
        return PRODUCT_CONTRACTED;
    if (window->stride != 1 || window->window_dilation != 1 || window->base_dilation != 1)
        return PRODUCT_WINDOW;
    if (window->size == 1 && !has_padding && !window->reversal) return PRODUCT_LHS;
    bool is_spread_out = window->size == window->padding_low + 1 && window->size == window->padding_high + 1;
    return size == 1 && is_spread_out && window->reversal ? PRODUCT_RHS : PRODUCT_WINDOW;
}

static Product read_convolution(const Spread *self, const IrInstruction *instruction) {
    const IrConvolution *conv = instruction->attributes->convolution;
    const IrShape *lhs = &ir_instruction(self->module, instruction->operands[0])->shape;
    const IrShape *rhs = &ir_instruction(self->module, instruction->operands[1])->shape;
    Product product = {.count = 0};
    if (conv->batch_group_count > 1 && conv->batch_group_count == lhs->dimensions[conv->input_batch] &&
        conv->batch_group_count == rhs->dimensions[conv->kernel_output_feature]) {
        add_dimension(&product, PRODUCT_BATCH, conv->input_batch, conv->kernel_output_feature,
                      conv->output_feature);
        add_dimension(&product, PRODUCT_CONTRACTED, conv->input_feature, conv->kernel_input_feature, -1);
    } else if (conv->feature_group_count > 1 &&
               conv->feature_group_count == lhs->dimensions[conv->input_feature] &&
               conv->feature_group_count == rhs->dimensions[conv->kernel_output_feature]) {
        add_dimension(&product, PRODUCT_BATCH, conv->input_feature, conv->kernel_output_feature,
                      conv->output_feature);
        add_dimension(&product, PRODUCT_LHS, conv->input_batch, -1, conv->output_batch);
    } else {
        add_dimension(&product, PRODUCT_LHS, conv->input_batch, -1, conv->output_batch);
        add_dimension(&product, PRODUCT_RHS, -1, conv->kernel_output_feature, conv->output_feature);
        if (conv->feature_group_count == 1 && conv->batch_group_count == 1)
            add_dimension(&product, PRODUCT_CONTRACTED, conv->input_feature, conv->kernel_input_feature, -1);
    }
    for (int32_t k = 0; k < conv->spatial_count && k < instruction->attributes->window_count; k++) {
        int64_t input = conv->input_spatial[k];
        add_dimension(&product, spatial_kind(&instruction->attributes->window[k], lhs->dimensions[input]),
                      input, conv->kernel_spatial[k], conv->output_spatial[k]);
    }
    return product;
}

static Product read_product(const Spread *self, const IrInstruction *instruction) {
    return instruction->opcode == IR_DOT ? read_dot(self, instruction) : read_convolution(self, instruction);
}

/* Returns whether the dimension belongs to the operand and the result. */
static bool is_shared(const ProductDimension *dimension, int32_t operand) {
    return dimension->kind == PRODUCT_BATCH || dimension->kind == (operand == 0 ? PRODUCT_LHS : PRODUCT_RHS);
}

static const Tiles *result_from(Spread *self, int32_t i, const Product *product, int32_t operand) {
    const IrInstruction *instruction = ir_instruction(self->module, i);
    const Tiles *tiles = spread_array(self, instruction->operands[operand]);
    if (!tiles || tiles->kind == TILES_MAXIMAL) return NULL;
    DimensionMap map = spread_no_map(instruction->shape.rank);
    for (int32_t k = 0; k < product->count; k++)
        if (is_shared(&product->dimensions[k], operand))
            map.to[product->dimensions[k].operand[operand]] = product->dimensions[k].result;
    return spread_apply(self, tiles, &map);
}

/* Returns the sharding that the next users in a row imply, from the first that has one; NULL without any. */
static const Tiles *look_ahead(Spread *self, int32_t i) {
    int32_t *chain = self->path, count = 0, at = i;
    chain[count++] = i;
    do {
        if (self->first_user[at + 1] - self->first_user[at] != 1) return NULL;
        at = self->users[self->first_user[at]];
        if (spread_leaf_count(self, at) != 1) return NULL;
        chain[count++] = at;
    } while (!spread_has(self, at));
    const Tiles *found = NULL;
    for (int32_t k = count - 1; k >= 1; k--) {
        found = NULL;
        if (!spread_from_user(self, chain[k - 1], self->first_user[chain[k - 1]], 3, &found) || k == 1) break;
        self->leaves[self->first_leaf[chain[k - 1]]] = found;
    }
    for (int32_t k = 1; k + 1 < count; k++) self->leaves[self->first_leaf[chain[k]]] = NULL;
    return found;
}

/* Takes the shardings of both operands, that of the larger one or of the one that users imply first. */
static bool product_result(Spread *self, int32_t i, const Product *product) {
    const IrInstruction *instruction = ir_instruction(self->module, i);
    const Tiles *found[2], *old = spread_array(self, i);
    for (int32_t k = 0; k < 2; k++) {
        found[k] = result_from(self, i, product, k);
        if (found[k])
            found[k] = tiles_improve(&self->pool, &instruction->shape, old, found[k], self->level > 0, false);
    }
    if (!found[0] && !found[1]) return false;
    int32_t first = found[0] ? 0 : 1;
    if (found[0] && found[1]) {
        const Tiles *ahead = look_ahead(self, i);
        bool fits[2] = {false, false};
        for (int32_t k = 0; ahead && k < 2; k++)
            fits[k] = tiles_is_refinement(&self->pool, &instruction->shape, ahead, found[k]);
        if (fits[0] != fits[1]) first = fits[0] ? 0 : 1;
        else
            first = ir_shape_bytes(&ir_instruction(self->module, instruction->operands[0])->shape) <
                    ir_shape_bytes(&ir_instruction(self->module, instruction->operands[1])->shape);
    }
    self->leaves[self->first_leaf[i]] = found[first];
    if (found[1 - first]) spread_improve_all(self, i, found[1 - first], false);
    return true;
}

/* Returns whether the window is small compared to the result, so that splitting the input is
 * useful. */
static bool has_small_kernel(const Spread *self, const IrInstruction *instruction) {
    const IrConvolution *conv = instruction->attributes->convolution;
    const IrShape *rhs = &ir_instruction(self->module, instruction->operands[1])->shape;
    int64_t kernel = 1, output = 1;
    for (int32_t k = 0; k < conv->spatial_count; k++) {
        int64_t size = rhs->dimensions[conv->kernel_spatial[k]];
        int64_t result = instruction->shape.dimensions[conv->output_spatial[k]];
        kernel *= size;
        output *= result;
        if (size >= result && (k < 2 || size > 3 || kernel >= output)) return false;
    }
    return true;
}

/* Splits a convolution along a split spatial dimension, or in groups, as its input. */
static bool window_product_result(Spread *self, int32_t i) {
    const IrInstruction *instruction = ir_instruction(self->module, i);
    const IrConvolution *conv = instruction->attributes->convolution;
    const Tiles *tiles = spread_array(self, instruction->operands[0]);
    if (!tiles || tiles->kind == TILES_MAXIMAL) return false;
    if (tiles->kind != TILES_TILED) return spread_improve_all(self, i, tiles, false);
    bool is_small = has_small_kernel(self, instruction);
    if (is_small && tiles->tiles[conv->input_feature] > 1) return false;
    DimensionMap map = spread_no_map(instruction->shape.rank);
    map.to[conv->input_batch] = (int32_t)conv->output_batch;
    for (int32_t k = 0; is_small && k < conv->spatial_count; k++)
        map.to[conv->input_spatial[k]] = (int32_t)conv->output_spatial[k];
    return spread_improve_all(self, i, spread_apply(self, tiles, &map), false);
}

bool spread_product_result(Spread *self, int32_t i) {
    const IrInstruction *instruction = ir_instruction(self->module, i);
    Product product = read_product(self, instruction);
    bool is_split = false;
    for (int32_t k = 0; k < product.count; k++)
        for (int32_t operand = 0; operand < 2; operand++) {
            const Tiles *tiles = spread_array(self, instruction->operands[operand]);
            is_split |= product.dimensions[k].kind == PRODUCT_WINDOW && tiles && tiles->kind == TILES_TILED &&
                        tiles->tiles[product.dimensions[k].operand[operand]] > 1;
        }
    const IrConvolution *conv = instruction->attributes->convolution;
    bool is_grouped = product.has_window && (conv->feature_group_count > 1 || conv->batch_group_count > 1);
    return is_split || is_grouped ? window_product_result(self, i) : product_result(self, i, &product);
}

/* Returns the sharding from the result, and from the other operand for dimensions without a counterpart
 * there. */
const Tiles *spread_product_operand(Spread *self, int32_t user, int32_t operand) {
    const IrInstruction *instruction = ir_instruction(self->module, user);
    if (operand > 1) return NULL;
    Product product = read_product(self, instruction);
    if (product.has_window) return NULL;
    int32_t rank = ir_instruction(self->module, instruction->operands[operand])->shape.rank;
    DimensionMap from_result = spread_no_map(rank), from_other = spread_no_map(rank);
    for (int32_t k = 0; k < product.count; k++) {
        const ProductDimension *dimension = &product.dimensions[k];
        if (is_shared(dimension, operand)) from_result.to[dimension->result] = dimension->operand[operand];
        if (dimension->kind == PRODUCT_BATCH || dimension->kind == PRODUCT_CONTRACTED)
            from_other.to[dimension->operand[1 - operand]] = dimension->operand[operand];
    }
    const Tiles *tiles = spread_apply(self, spread_array(self, user), &from_result);
    const Tiles *other = spread_array(self, instruction->operands[1 - operand]);
    if (!other || !spread_is_spatial(self, instruction->operands[1 - operand])) return tiles;
    other = spread_apply(self, other, &from_other);
    const Tiles *merged = tiles_merge(&self->pool, other, tiles, tiles_count(tiles) + 1);
    return merged ? merged : tiles;
}
