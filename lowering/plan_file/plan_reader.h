/* The state of a plan file that is read, and the readers of its parts.
 *
 * plan_read.c reads the head of the file and the derived parts, plan_read_stages.c the stages. Both refuse a
 * value by its place in the file, such as "$.stages[0].ranges".
 */
#ifndef LOWERING_PLAN_FILE_PLAN_READER_H
#define LOWERING_PLAN_FILE_PLAN_READER_H

#include <jansson.h>

#include "propagation/plan/plan.h"

typedef struct PlanReader {
    Arena *arena;
    const PlanContext *context;
    const char *source;
    Plan *plan;
    bool *taken;                  /* [MESH_MAX_DEVICES]: devices that a stage has named */
    PlanRecomputation recomputed; /* across stages, in order */
    AmError *error;
} PlanReader;

/* Returns a place in the file, such as "$.stages[2]", by a format with a place and a number. */
const char *plan_reader_place(const PlanReader *self, const char *format, const char *where, int32_t index);
/* Fails: AM_ERROR_INPUT with the place and the expectation. */
AmStatus plan_reader_refuse(const PlanReader *self, const char *where, const char *expected);
/* Reads one integer of an array, within [least, most]. */
AmStatus plan_reader_integer(const PlanReader *self, int32_t *value, const json_t *array, int32_t index,
                             const char *where, int64_t least, int64_t most);
/* Reads the stages of the plan: meshes, devices, axis priorities, overrides, ranges. Ranges must cover every
 * instruction of the entry once. */
AmStatus plan_reader_stages(const PlanReader *self, const json_t *stages);

#endif
