/* A model of the zoo, a built-in cluster and a mesh of its first devices, as a problem of one-stage
 * plans.
 */
#ifndef TESTS_SUPPORT_PROBLEM_CASE_H
#define TESTS_SUPPORT_PROBLEM_CASE_H

#include "model_case.h"

#include "planners/problem/problem.h"

enum { PROBLEM_CASE_DEVICES = 32 };

typedef struct ProblemCase {
    PlanContext *context;
    Cluster *cluster;
    Mesh mesh;
    int32_t devices[PROBLEM_CASE_DEVICES];
    Arena arena;
    StageProblem *problem;
} ProblemCase;

/* With the settings. Release with problem_case_close(). */
static inline void problem_case_open_with(ProblemCase *self, const char *model, const char *cluster,
                                          const char *mesh, const ProblemSettings *settings) {
    AmError error = {0};
    *self = (ProblemCase){.context = read_model(model)};
    assert_int_equal(cluster_read(&self->cluster, &self->arena, cluster, &error), AM_OK);
    assert_int_equal(mesh_parse(&self->mesh, &self->arena, mesh, &error), AM_OK);
    for (int32_t d = 0; d < PROBLEM_CASE_DEVICES; d++) self->devices[d] = d;
    assert_int_equal(problem_create(&self->problem, self->context, self->cluster, &self->mesh, self->devices,
                                    settings, &error),
                     AM_OK);
}

/* With so many evaluations. Release with problem_case_close(). */
static inline void problem_case_open(ProblemCase *self, const char *model, const char *cluster,
                                     const char *mesh, int64_t evaluations) {
    const ProblemSettings settings = {.constraints.memory_fraction = 0.9, .budget = {.limit = evaluations}};
    problem_case_open_with(self, model, cluster, mesh, &settings);
}

static inline void problem_case_close(ProblemCase *self) {
    problem_free(self->problem);
    cluster_free(self->cluster);
    plan_context_free(self->context);
    arena_free(&self->arena);
}

#endif
