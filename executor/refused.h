/* Operators that no back end runs, and why. */
#ifndef EXECUTOR_REFUSED_H
#define EXECUTOR_REFUSED_H

#include "ir/module.h"

/* Returns the reason for which an operator is refused on every device, or NULL. */
const char *refused_reason(IrOpcode opcode);

#endif
