/* The value that changes nothing in a reduction. */
#ifndef PROPAGATION_SHARDING_REDUCTION_IDENTITY_H
#define PROPAGATION_SHARDING_REDUCTION_IDENTITY_H

#include "propagation/sharding/sbp.h"

/* Writes `value` as one element of a type; of complex ones the real part. */
void reduction_encode(char bytes[16], Dtype type, double value);
/* Writes the identity of a reduction: zeros, ones, the least or the greatest value. */
void reduction_identity(char bytes[16], Dtype type, SbpReduction reduction);

#endif
