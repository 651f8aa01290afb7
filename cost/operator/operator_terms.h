/* The decomposition of a step into classes of operators (operator_curves.h). */
#ifndef COST_OPERATOR_OPERATOR_TERMS_H
#define COST_OPERATOR_OPERATOR_TERMS_H

#include "cost/cluster/operator_curves.h"
#include "lowering/program/program.h"

/* Returns the seconds of a step by measured curves; false: one of the classes that it needs was not measured,
 * or it has none. */
bool operator_terms_seconds(double *seconds, const OperatorCurves *curves, const Program *program,
                            const ProgramStep *step);
/* Returns the seconds of a step in a kernel that runs `blocks` times, each with that part of the elements,
 * and computes the given share of them. Products have the rate of the whole. */
bool operator_terms_in_blocks(double *seconds, const OperatorCurves *curves, const Program *region,
                              const ProgramStep *step, double blocks, double share);
/* Returns the seconds of the copy of an array into its transpose, whose innermost dimension stays; 0: not
 * measured. */
double operator_terms_copy(const OperatorCurves *curves, const IrShape *shape);

#endif
