/* Roles of values for storage entries (docs/method.md): weights, gradients and optimizer state, by
 * data flow.
 *
 * Weight side: a weight and its views and casts to types that are no wider, also in the loops that
 * read it. Gradient: from its producer (a product, a reduction, a scatter) through element-wise
 * operators and views to the optimizer, including accumulation in loops, without other users.
 * Optimizer: from there to the new weight and the new state. Every such value follows a weight: its
 * dimensions are dimensions of that weight, so that all of them can be stored in the same shards.
 */
#ifndef PROPAGATION_PLAN_STORAGE_ROLES_H
#define PROPAGATION_PLAN_STORAGE_ROLES_H

#include "ir/analysis/roles.h"
#include "propagation/rules/rules.h"

struct SplitOptions;

typedef enum StorageRole { STORAGE_NONE, STORAGE_WEIGHT, STORAGE_GRADIENT, STORAGE_OPTIMIZER } StorageRole;

typedef struct StorageRoles {
    uint8_t *role;     /* [instruction] StorageRole */
    int32_t *weight;   /* [instruction]: entry parameter that it follows, or -1 */
    int32_t *first;    /* [instruction]: dimension d of instruction i is first[i] + d in `dimension` */
    int8_t *dimension; /* the weight's dimension that it is, or -1 */
    bool *is_added_up; /* [instruction]: a gradient that a loop goes on adding to */
    bool *is_reread; /* [instruction]: of the entry a weight, a view or cast that recomputed instructions read
                      */
    int32_t reread_count;
} StorageRoles;

/* Finds the roles. Everything lives in the arena. `split_options` has uses and operands already.
 * AM_ERROR_INTERNAL without memory. */
AmStatus storage_find_roles(const StorageRoles **roles, Arena *arena, const Rules *rules,
                            const struct SplitOptions *split_options, const IrRoles *module_roles,
                            AmError *error);

#endif
