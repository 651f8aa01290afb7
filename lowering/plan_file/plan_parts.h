/* Parts of plan files that writing, reading and reports share.
 *
 * These functions derive parameters with their shardings and decisions by class from the stages of a plan:
 * plan_write.c writes them, plan_read.c compares them, and reports print them.
 */
#ifndef LOWERING_PLAN_FILE_PLAN_PARTS_H
#define LOWERING_PLAN_FILE_PLAN_PARTS_H

#include "propagation/plan/plan.h"

/* Returns the class of an entry, "*" for any. The caller's reference. */
json_t *plan_entry_class_to_json(const PlanEntry *entry, const Classes *classes);
/* Returns a string of the module; bytes that are no UTF-8 become '?'. */
json_t *plan_string_to_json(const char *string);
/* Returns "file:line", or "" where the module has none. */
json_t *plan_source_to_json(const IrInstruction *instruction);
/* Returns the instruction that a class is named by. */
const IrInstruction *plan_class_instruction(const PlanContext *context, const DimensionClass *class);

/* Returns {"layers": "split", "recomputation": "undone", "attention": "fused"}; NULL where nothing is
 * rewritten. The caller's reference. */
json_t *plan_rewriting_to_json(PlanRewrites rewriting);
/* Returns [10, 6], the parts of the batch; NULL where the plan has no replicas. The caller's reference. */
json_t *plan_replicas_to_json(const PlanReplicas *replicas);

/* Writes the hash of a JSON value in its canonical form: 64 digits. */
AmStatus plan_json_sha256(char hex[65], const json_t *value, AmError *error);
/* Writes the hash of a plan file's decisions: stages, micro-batches, schedule and relaxations. Its prediction
 * refers to these. */
AmStatus plan_decided_sha256(char hex[65], const json_t *root, AmError *error);

/* Returns "data+model" for the axes that split a dimension, "" for none; NULL: no memory. */
const char *plan_axes_text(Arena *arena, const json_t *axes);
/* Returns [["data"], []]: for each dimension the names of the axes that split it, major first. The caller's
 * reference. */
json_t *plan_sharding_to_json(const Mesh *mesh, SbpState state, const IrShape *shape);
/* Writes how every parameter lies: [{"number", "path", "stage", "sharding": [["data"], []]}]. */
AmStatus plan_parameters_to_json(json_t **parameters, const Plan *plan, const PlanContext *context,
                                 AmError *error);
/* Writes every entry of every list: [{"class", "choice", "op_name", "source"}]. */
AmStatus plan_decisions_to_json(json_t **decisions, const Plan *plan, const PlanContext *context,
                                AmError *error);

#endif
