/* Prints tables of parameters, with one row for repeated layers and one for the states of an optimizer. */
#ifndef API_REPORTS_PARAMETERS_H
#define API_REPORTS_PARAMETERS_H

#include "propagation/plan/plan.h"

/* Prints a table: "layers[{0..5}]['kernel'] weight f32[8,4] 6". Parameters whose paths differ in numbers
 * only, and that agree in all other columns, share a row. `sharding` of parameter k is a further column, and
 * parameters for which it is "" are only counted; NULL: no such column, and the optimizer's parameters are
 * only counted. States of an optimizer with equal columns, such as mu and nu, share a row
 * "{mu,nu}['kernel']" unless `is_verbose`. */
void parameters_print(Text *text, const PlanContext *context, const char *const *sharding, bool is_verbose);

#endif
