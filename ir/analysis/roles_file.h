/* model.roles.json: the exporter's record of each parameter. */
#ifndef IR_ANALYSIS_ROLES_FILE_H
#define IR_ANALYSIS_ROLES_FILE_H

#include "ir/analysis/roles.h"
#include "ir/dataflow.h"

/* Fills role, output and paired_by of roles->parameters, and roles->loss. The
 * parameters' numbers and paths and the outputs must be there already: paths,
 * shapes and indices are checked against them. Fills roles->whole_batch, in `arena`. */
AmStatus ir_read_roles_file(IrRoles *roles, Arena *arena, const IrDataflow *flow, const char *path,
                            AmError *error);

#endif
