/* A model of the zoo and a cluster to plan it for. */
#ifndef TESTS_SUPPORT_CLUSTER_CASE_H
#define TESTS_SUPPORT_CLUSTER_CASE_H

#include "model_case.h"

#include "cost/cluster/cluster.h"

typedef struct ClusterCase {
    Arena arena;
    PlanContext *context;
    Cluster *cluster;
} ClusterCase;

static inline void open_case(ClusterCase *self, const char *model, const char *cluster) {
    AmError error = {0};
    *self = (ClusterCase){.context = read_model(model)};
    assert_int_equal(cluster_read(&self->cluster, &self->arena, cluster, &error), AM_OK);
}

static inline void close_case(ClusterCase *self) {
    cluster_free(self->cluster);
    plan_context_free(self->context);
    arena_free(&self->arena);
}

#endif
