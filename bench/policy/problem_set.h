/* The generated problems of a benchmark of searchers: SEED, FIRST and COUNT of its command line, and its
 * modules. Problems FIRST .. FIRST + COUNT - 1 are the modules on random clusters with random meshes
 * (assignment_problems.h). */
#ifndef BENCH_POLICY_PROBLEM_SET_H
#define BENCH_POLICY_PROBLEM_SET_H

#include <stdlib.h>

#include "bench/check.h"
#include "planners/single_stage/assignment_problems.h"

enum { PROBLEM_SET_MODELS = 16 };

typedef struct ProblemSet {
    AssignmentModule modules[PROBLEM_SET_MODELS];
    PlanContext *contexts[PROBLEM_SET_MODELS];
    int32_t module_count;
    uint64_t seed, first, count;
} ProblemSet;

/* Reads SEED, FIRST and COUNT from words 1 to 3, and the modules of words[first_model .. word_count). Returns
 * false where there are none, or too many. */
static inline bool problem_set_open(ProblemSet *self, char **words, int32_t first_model, int32_t word_count) {
    AmError error = {0};
    if (word_count <= first_model || word_count - first_model > PROBLEM_SET_MODELS) return false;
    *self = (ProblemSet){.seed = strtoull(words[1], NULL, 10),
                         .first = strtoull(words[2], NULL, 10),
                         .count = strtoull(words[3], NULL, 10)};
    for (int32_t k = first_model; k < word_count; k++, self->module_count++) {
        PlanContext **context = &self->contexts[self->module_count];
        bench_check(plan_context_read(context, words[k], NULL, &error), &error);
        bench_check(assignment_module_measure(&self->modules[self->module_count], *context, &error), &error);
    }
    return true;
}

/* Calls `run` with each problem and its number. */
static inline void problem_set_run(const ProblemSet *self,
                                   void (*run)(void *user, const GeneratedProblem *given, uint64_t number),
                                   void *user) {
    for (uint64_t number = self->first; number < self->first + self->count; number++) {
        GeneratedProblem given;
        AmError error = {0};
        bench_check(
            generated_problem_open(&given, self->modules, self->module_count, self->seed, number, &error),
            &error);
        run(user, &given, number);
        generated_problem_close(&given);
    }
}

static inline void problem_set_close(ProblemSet *self) {
    for (int32_t k = 0; k < self->module_count; k++) plan_context_free(self->contexts[k]);
}

#endif
