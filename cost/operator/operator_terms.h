/* The decomposition of a step into classes of operators (operator_curves.h). */
#ifndef COST_OPERATOR_OPERATOR_TERMS_H
#define COST_OPERATOR_OPERATOR_TERMS_H

#include "cost/cluster/operator_curves.h"
#include "lowering/program/program.h"

/* Seconds of a step by measured curves; false: one of the classes that it needs was not measured, or it has
 * none. */
bool operator_terms_seconds(double *seconds, const OperatorCurves *curves, const Program *program,
                            const ProgramStep *step);

#endif
