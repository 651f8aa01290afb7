/* Floating values as text: growing precision until the bits come back. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/float_format.h"
#include "ir/text/hlo_text.h"

void ir_float_write(Text *out, Dtype type, uint64_t bits) {
    bool negative;
    uint64_t payload;
    if (float_format_nan(type, bits, &negative, &payload)) {
        text_append_string(out, negative ? "-nan" : "nan");
        if (payload) text_append(out, "(0x%llx)", (unsigned long long)payload);
        return;
    }
    double value = float_format_decode(type, bits);
    char digits[40];
    for (int precision = type == DTYPE_F64 ? 15 : type == DTYPE_F32 ? 6 : 1; precision <= 17; precision++) {
        snprintf(digits, sizeof digits, "%.*g", precision, value);
        uint64_t again;
        if (float_format_encode(type, strtod(digits, NULL), 0, &again) && again == bits) break;
    }
    /* XLA takes "-0" for an integer and loses its sign. */
    text_append_string(out, strcmp(digits, "-0") == 0 ? "-0.0" : digits);
}
