/* Products of one size whose factors are of the same class sets are counted together: repeated layers make
 * a few groups of thousands of products. */
#include "planners/single_stage/product_bound.h"

#include <math.h>
#include <string.h>

#include "ir/analysis/flops.h"

typedef struct ProductGroup {
    double flops, times; /* of one product; how many there are in a step */
    bool is_convolution;
    Dtype type;
    uint64_t class_sets[(UINT8_MAX + 1) / 64]; /* that split it (bits) */
    bool is_pinned;                            /* a pin may split it on any axis */
} ProductGroup;

struct ProductBound {
    const StageProblem *problem;
    const ClusterDeviceType *type;
    ProductGroup *groups;
    int32_t count, capacity;
};

static void add_product(ProductBound *self, Arena *arena, const ProductGroup *product) {
    for (int32_t g = 0; g < self->count; g++) {
        ProductGroup *group = &self->groups[g];
        if (group->flops != product->flops || group->is_convolution != product->is_convolution) continue;
        if (group->type != product->type || group->is_pinned != product->is_pinned) continue;
        if (memcmp(group->class_sets, product->class_sets, sizeof group->class_sets) != 0) continue;
        group->times += product->times;
        return;
    }
    ARENA_RESERVE(arena, self->groups, self->count, self->capacity);
    if (!arena->failed) self->groups[self->count++] = *product;
}

AmStatus product_bound_create(ProductBound **bound, Arena *arena, const StageProblem *problem,
                              AmError *error) {
    const PlanContext *context = problem->context;
    const IrModule *module = context->canonical;
    const Classes *classes = context->classes;
    const SplitOptions *split_options = context->split_options;
    ProductBound *self = ARENA_ARRAY(arena, ProductBound, 1);
    int32_t *class_set_of = ARENA_ARRAY(arena, int32_t, classes->count + 1);
    if (arena->failed) return am_fail_memory(error, classes->count);
    *self = (ProductBound){.problem = problem,
                           .type = cluster_device_type(problem->cluster, problem->devices[0])};
    *bound = self;
    if (self->type->profile || self->type->operators || problem->pins.override_count > 0) return AM_OK;
    for (int32_t c = 0; c < classes->count; c++) class_set_of[c] = -1;
    for (int32_t k = 0; k < problem->class_set_count; k++)
        for (int32_t m = 0; m < problem->class_sets[k].class_count; m++)
            class_set_of[problem->class_sets[k].classes[m]] = k;
    Arena scratch = {0};
    for (int32_t c = 0; c < module->computation_count; c++) {
        const IrComputation *within = &module->computations[c];
        if (!context->rules->is_planned[c]) continue;
        for (int32_t i = within->first; i < within->first + within->count; i++) {
            IrOpcode opcode = module->instructions[i].opcode;
            bool is_product = ir_is_product(opcode);
            if (!is_product || !split_options->live[i] || context->rules->on_demand[i]) continue;
            const IrInstruction *first = &module->instructions[module->instructions[i].operands[0]];
            ProductGroup product = {.flops = ir_instruction_flops(module, i, &scratch),
                                    .times = context->rules->times[c],
                                    .is_convolution = !ir_is_matrix_product(opcode),
                                    .type = first->shape.type};
            for (int32_t k = split_options->first_factor[i]; k < split_options->first_factor[i + 1]; k++) {
                int32_t class = split_options->factors[k].class_index, class_set = class_set_of[class];
                product.is_pinned = product.is_pinned || problem->pins.is_pinned[class];
                if (class_set >= 0) product.class_sets[class_set / 64] |= 1ull << class_set % 64;
            }
            add_product(self, arena, &product);
        }
    }
    bool failed = scratch.failed || arena->failed;
    arena_free(&scratch);
    return failed ? am_fail_memory(error, self->count) : AM_OK;
}

/* Returns the least of f / e(f) over all f from `flops` on, e being the curve: on a segment where e = a + b
 * ln f the quotient is least where e = b. */
static double least_effective_flops(const ClusterCurve *curve, double flops) {
    double least = flops / cluster_efficiency(curve, flops);
    for (int32_t k = 0; k + 1 < curve->count; k++) {
        double low = curve->fractions[k], high = curve->fractions[k + 1];
        double begin = curve->log_sizes[k], end = curve->log_sizes[k + 1];
        double slope = (high - low) / ((end - begin) * M_LN2);
        double corners[2] = {exp2(end), exp2(begin + (slope - low) / (high - low) * (end - begin))};
        bool is_inside = slope > low && slope < high;
        for (int32_t c = 0; c < 1 + is_inside; c++)
            if (corners[c] > flops) least = fmin(least, corners[c] / cluster_efficiency(curve, corners[c]));
    }
    return least;
}

double product_bound_seconds(const ProductBound *self, const AllowedClassSets *allowed) {
    const Mesh *mesh = &self->problem->mesh;
    double seconds = 0;
    for (int32_t g = 0; g < self->count; g++) {
        const ProductGroup *group = &self->groups[g];
        const ClusterCurve *curve =
            &(group->is_convolution ? self->type->convolution : self->type->dot)[group->type];
        double ways = 1;
        for (int32_t axis = 0; axis < mesh->axis_count; axis++) {
            bool may_split = group->is_pinned;
            for (int32_t c = 0; c < self->problem->class_set_count && !may_split; c++)
                may_split = group->class_sets[c / 64] >> c % 64 & 1 && allowed->may[axis][c];
            if (may_split) ways *= mesh->axes[axis].size;
        }
        double flops = least_effective_flops(curve, group->flops / ways);
        seconds += group->times *
                   (self->type->kernel_launch_seconds + flops / self->type->flops_per_second[group->type]);
    }
    return seconds * (1 - 1e-9); /* sums are rounded otherwise than the simulator's ticks */
}
