/* Computing costs of the labels of an additive model's operators (cost/relaxation/additive.h has the model).
 */
#ifndef COST_RELAXATION_ADDITIVE_COMPUTING_H
#define COST_RELAXATION_ADDITIVE_COMPUTING_H

#include "cost/cluster/cluster.h"
#include "cost/relaxation/additive_parts.h"
#include "cost/relaxation/fusion_groups.h"

typedef struct AdditiveComputing {
    const AdditiveModel *model; /* with all its nodes */
    const AdditivePart *parts;  /* [instruction] */
    const double *times;        /* [instruction]: runs in a step */
    const FusionGroups *fusion_groups;
    const ClusterDeviceType *type;
} AdditiveComputing;

/* Sets `seconds` of the operators' nodes, in the arena. AM_ERROR_INTERNAL: no memory. */
AmStatus additive_set_seconds(const AdditiveComputing *self, Arena *arena, AmError *error);

#endif
