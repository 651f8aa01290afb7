/* Degrees of parallelism that the user has fixed: `search --stages 4 --tensor 2`.
 *
 * Each degree restricts every plan of a search; 0 leaves one free. The devices of a stage form a mesh
 * data x model, so that
 *
 *     width = data * tensor,    stages * width = devices  (if all stages are equally wide).
 *
 * A tensor degree above 1 counts only if the model axis splits something other than the examples, and a
 * data degree above 1 only if the data axis splits data.
 */
#ifndef PLANNERS_PROBLEM_DEGREES_H
#define PLANNERS_PROBLEM_DEGREES_H

#include "cost/cluster/cluster.h"
#include "propagation/plan/plan.h"
#include "propagation/stages/stages.h"

/* The degrees: kind, member of Degrees, option, key in files, name in messages, largest value. `width` are
 * the devices of each stage. */
#define DEGREE_LIST(X)                                                                                 \
    X(STAGES, stages, "--stages", "stages", "stages", STAGES_MOST)                                     \
    X(WIDTH, width, "--devices-per-stage", "devices_per_stage", "devices per stage", MESH_MAX_DEVICES) \
    X(DATA, data, "--data", "data", "data degree", MESH_MAX_DEVICES)                                   \
    X(TENSOR, tensor, "--tensor", "tensor", "tensor degree", MESH_MAX_DEVICES)

typedef enum DegreeKind {
#define DEGREE_ENUM(kind, member, option, key, name, most) DEGREE_##kind,
    DEGREE_LIST(DEGREE_ENUM)
#undef DEGREE_ENUM
        DEGREE_KINDS
} DegreeKind;

typedef struct DegreeRow {
    const char *option, *key, *name;
    int32_t most;
} DegreeRow;
extern const DegreeRow degree_rows[DEGREE_KINDS];

typedef struct Degrees {
    union {
        int32_t values[DEGREE_KINDS]; /* by DegreeKind; 0: free */
        struct {
#define DEGREE_MEMBER(kind, member, option, key, name, most) int32_t member;
            DEGREE_LIST(DEGREE_MEMBER)
#undef DEGREE_MEMBER
        };
    };
    const char *origins[DEGREE_KINDS]; /* "--stages", "hints.json: $.stages"; NULL: derived or free */
    bool excludes_one_stage;           /* the places of pins leave no one-stage plan */
} Degrees;

bool degrees_are_free(const Degrees *degrees);

/* Derives degrees from the others: width from data and tensor, data from width and tensor. AM_ERROR_USAGE
 * names options that contradict each other. */
AmStatus degrees_derive(Degrees *degrees, AmError *error);
/* Derives those that follow from the number of devices. AM_ERROR_INFEASIBLE: the cluster has too few or too
 * many devices for them. */
AmStatus degrees_complete(Degrees *degrees, const Cluster *cluster, AmError *error);

bool degrees_allow_stages(const Degrees *degrees, int32_t stages);
bool degrees_allow_width(const Degrees *degrees, int32_t width);
/* Returns whether stages may have so many devices with that tensor degree. */
bool degrees_allow_mesh(const Degrees *degrees, int32_t width, int32_t tensor);
/* Returns whether a stage has the degrees, and its axis priorities use them. */
bool degrees_allow_stage(const Degrees *degrees, const PlanContext *context, const PlanStage *stage);
/* Returns AM_ERROR_INFEASIBLE for a plan with other degrees. */
AmStatus degrees_check_plan(const Degrees *degrees, const Plan *plan, AmError *error);

/* Writes the degrees with origins into a buffer, such as "--stages 4 --tensor 2", and derived stages as
 * "4 stages". */
enum { DEGREES_TEXT_BYTES = 512 };
const char *degrees_text(char *buffer, const Degrees *degrees);

#endif
