/* Floating values of every width as bits: f64 down to f4, for the readers and printers of literals
 * and for kernels.
 *
 * A format is defined by its exponent and mantissa widths, its bias and its largest codes: IEEE
 * formats have infinities and NaNs, "fn" formats a single NaN and no infinity, "fnuz" formats
 * neither infinity nor negative zero, whose code is NaN, f4 has finite numbers only. Rounding is to
 * nearest, ties to even.
 */
#ifndef BASE_FLOAT_FORMAT_H
#define BASE_FLOAT_FORMAT_H

#include "base/dtype.h"

/* Returns the code of a value; a NaN takes `payload` where the format has room (0: the usual one). False: the
 * format has no such number. `type` is floating. */
bool float_format_encode(Dtype type, double value, uint64_t payload, uint64_t *bits);

/* Converts as HLO's convert: an overflow becomes infinity, in formats without infinity NaN, and in
 * formats without either the largest number. */
uint64_t float_format_convert(Dtype type, double value);

double float_format_decode(Dtype type, uint64_t bits);

/* Returns whether the code is a NaN; its sign, and its payload where that is not the usual one (else 0). */
bool float_format_nan(Dtype type, uint64_t bits, bool *negative, uint64_t *payload);

#endif
