/* The value that changes nothing in a reduction. */
#include "propagation/sharding/reduction_identity.h"

#include <math.h>
#include <string.h>

void reduction_encode(char bytes[16], Dtype type, double value) {
    memset(bytes, 0, 16);
    float single = (float)value;
    uint16_t half = type == DTYPE_BF16 ? dtype_float_to_bf16(single) : dtype_float_to_f16(single);
    if (type == DTYPE_F64) {
        memcpy(bytes, &value, sizeof value);
    } else if (type == DTYPE_F32 || type == DTYPE_C64) {
        memcpy(bytes, &single, sizeof single);
    } else if (dtype_is_16bit_float(type)) {
        memcpy(bytes, &half, sizeof half);
    } else {
        int64_t integer = (int64_t)value;
        memcpy(bytes, &integer, (size_t)(dtype_bytes(type) < 8 ? dtype_bytes(type) : 8));
    }
}

/* Writes the least or greatest value of a type: the identity of max and of min. */
static void encode_extreme(char *bytes, Dtype type, bool least) {
    if (dtype_is_floating(type)) {
        reduction_encode(bytes, type, least ? -INFINITY : INFINITY);
        return;
    }
    size_t size = (size_t)dtype_bytes(type);
    bool is_signed = dtype_is_signed(type) && type != DTYPE_PRED;
    memset(bytes, least ? 0 : type == DTYPE_PRED ? 1 : 0xff, size);
    if (is_signed) bytes[size - 1] = (char)(least ? 0x80 : 0x7f);
}

void reduction_identity(char bytes[16], Dtype type, SbpReduction reduction) {
    memset(bytes, 0, 16);
    switch (reduction) {
    case SBP_MAX: encode_extreme(bytes, type, true); break;
    case SBP_MIN: encode_extreme(bytes, type, false); break;
    case SBP_MULTIPLY: reduction_encode(bytes, type, 1); break;
    case SBP_AND: memset(bytes, type == DTYPE_PRED ? 1 : 0xff, 16); break;
    default: break;
    }
}
