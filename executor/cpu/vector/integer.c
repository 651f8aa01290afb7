/* Loops of the operators on integers and pred, one row per operator.
 *
 * Sums and products wrap; x/0 is all ones, x%0 is x, MIN/-1 is MIN, MIN%-1 is 0; a shift by the width or more
 * gives 0 (arithmetic: the sign); pred adds as or and multiplies as and. Each operator is written once for a
 * signed or unsigned 64-bit x and y of `bits` significant bits.
 */
#include <limits.h>

#include "executor/cpu/integer_bits.h"
#include "executor/cpu/vector/vector.h"

static inline int64_t divide_signed(int64_t x, int64_t y) {
    if (y == 0) return -1;
    return y == -1 ? (int64_t)(0 - (uint64_t)x) : x / y;
}

static inline uint64_t divide_unsigned(uint64_t x, uint64_t y) {
    return y == 0 ? UINT64_MAX : x / y;
}

static inline int64_t remainder_signed(int64_t x, int64_t y) {
    if (y == 0) return x;
    return y == -1 ? 0 : x % y;
}

static inline uint64_t remainder_unsigned(uint64_t x, uint64_t y) {
    return y == 0 ? x : x % y;
}

/* Returns the upper half of a product of twice the width. */
static inline int64_t high_signed(int64_t x, int64_t y, int32_t bits) {
    __extension__ typedef __int128 Long;
    return (int64_t)((Long)x * y >> bits);
}

static inline uint64_t high_unsigned(uint64_t x, uint64_t y, int32_t bits) {
    __extension__ typedef unsigned __int128 Long;
    return (uint64_t)((Long)x * y >> bits);
}

static inline uint64_t power_unsigned(uint64_t base, uint64_t exponent) {
    uint64_t result = 1;
    for (; exponent; exponent >>= 1, base *= base)
        if (exponent & 1) result *= base;
    return result;
}

/* Returns a power. A negative exponent leaves the integer part: of 1 and -1 alone it is not 0. */
static inline int64_t power_signed(int64_t base, int64_t exponent) {
    if (exponent >= 0) return (int64_t)power_unsigned((uint64_t)base, (uint64_t)exponent);
    if (base == 1) return 1;
    return base == -1 ? (exponent & 1 ? -1 : 1) : 0;
}

#define DEFINE_LOOP(NAME, TYPE, LONG, EXPRESSION)                \
    static void NAME##_##TYPE(LOOP_ARGUMENTS) {                  \
        UNUSED_ARGUMENTS;                                        \
        enum { bits = sizeof(TYPE) * CHAR_BIT };                 \
        TYPE *target = out;                                      \
        const TYPE *first = a, *second = b ? b : a;              \
        VECTOR_INDEPENDENT for (int64_t i = 0; i < count; i++) { \
            LONG x = first[i], y = second[i];                    \
            (void)y;                                             \
            target[i] = (TYPE)(EXPRESSION);                      \
        }                                                        \
    }

/* Name, expression for signed, expression for unsigned. */
#define OPERATORS(X)                                                                                    \
    X(ABS, x < 0 ? 0 - (uint64_t)x : (uint64_t)x, x)                                                    \
    X(COPY, x, x)                                                                                       \
    X(COUNT_LEADING_ZEROS, leading_zeros((uint64_t)x, bits), leading_zeros(x, bits))                    \
    X(NEGATE, 0 - (uint64_t)x, 0 - x)                                                                   \
    X(NOT, ~x, ~x)                                                                                      \
    X(POPCNT, ones((uint64_t)x, bits), ones(x, bits))                                                   \
    X(SIGN, (x > 0) - (x < 0), x > 0)                                                                   \
    X(ADD, (uint64_t)x + (uint64_t)y, x + y)                                                            \
    X(AND, x &y, x &y)                                                                                  \
    X(DIVIDE, divide_signed(x, y), divide_unsigned(x, y))                                               \
    X(MAXIMUM, x > y ? x : y, x > y ? x : y)                                                            \
    X(MINIMUM, x < y ? x : y, x < y ? x : y)                                                            \
    X(MULHI, high_signed(x, y, bits), high_unsigned(x, y, bits))                                        \
    X(MULTIPLY, (uint64_t)x *(uint64_t)y, x *y)                                                         \
    X(OR, x | y, x | y)                                                                                 \
    X(POWER, power_signed(x, y), power_unsigned(x, y))                                                  \
    X(REMAINDER, remainder_signed(x, y), remainder_unsigned(x, y))                                      \
    X(SHIFT_LEFT, low((uint64_t)y, bits) < bits ? (uint64_t)x << low((uint64_t)y, bits) : 0,            \
      y < bits ? x << y : 0)                                                                            \
    X(SHIFT_RIGHT_ARITHMETIC, x >> (low((uint64_t)y, bits) < bits ? low((uint64_t)y, bits) : bits - 1), \
      shift_arithmetic(x, y, bits))                                                                     \
    X(SHIFT_RIGHT_LOGICAL,                                                                              \
      low((uint64_t)y, bits) < bits ? low((uint64_t)x, bits) >> low((uint64_t)y, bits) : 0,             \
      y < bits ? x >> y : 0)                                                                            \
    X(SUBTRACT, (uint64_t)x - (uint64_t)y, x - y)                                                       \
    X(XOR, x ^ y, x ^ y)

#define DEFINE_ALL(NAME, SIGNED, UNSIGNED)          \
    DEFINE_LOOP(NAME, int8_t, int64_t, SIGNED)      \
    DEFINE_LOOP(NAME, int16_t, int64_t, SIGNED)     \
    DEFINE_LOOP(NAME, int32_t, int64_t, SIGNED)     \
    DEFINE_LOOP(NAME, int64_t, int64_t, SIGNED)     \
    DEFINE_LOOP(NAME, uint8_t, uint64_t, UNSIGNED)  \
    DEFINE_LOOP(NAME, uint16_t, uint64_t, UNSIGNED) \
    DEFINE_LOOP(NAME, uint32_t, uint64_t, UNSIGNED) \
    DEFINE_LOOP(NAME, uint64_t, uint64_t, UNSIGNED)
OPERATORS(DEFINE_ALL)

/* pred holds 0 or 1 in a byte. */
#define PRED_OPERATORS(X) \
    X(COPY, x)            \
    X(NOT, !x)            \
    X(ADD, x | y)         \
    X(AND, x &y)          \
    X(MAXIMUM, x | y)     \
    X(MINIMUM, x &y)      \
    X(MULTIPLY, x &y)     \
    X(OR, x | y)          \
    X(XOR, x ^ y)
typedef uint8_t pred;
#define DEFINE_PRED(NAME, EXPRESSION) DEFINE_LOOP(NAME, pred, uint64_t, EXPRESSION)
PRED_OPERATORS(DEFINE_PRED)

typedef struct IntegerRow {
    IrOpcode opcode;
    ElementLoop *s8, *s16, *s32, *s64, *u8, *u16, *u32, *u64;
} IntegerRow;

static const IntegerRow rows[] = {
#define ROW(NAME, SIGNED, UNSIGNED)                                                    \
    {IR_##NAME,      NAME##_int8_t,   NAME##_int16_t,  NAME##_int32_t, NAME##_int64_t, \
     NAME##_uint8_t, NAME##_uint16_t, NAME##_uint32_t, NAME##_uint64_t},
    OPERATORS(ROW)};

static const struct {
    IrOpcode opcode;
    ElementLoop *loop;
} pred_rows[] = {
#define PRED_ROW(NAME, EXPRESSION) {IR_##NAME, NAME##_pred},
    PRED_OPERATORS(PRED_ROW)};

static ElementLoop *pick_loop(const IntegerRow *row, Dtype type) {
    switch (type) {
    case DTYPE_S8: return row->s8;
    case DTYPE_S16: return row->s16;
    case DTYPE_S32: return row->s32;
    case DTYPE_S64: return row->s64;
    case DTYPE_U8: return row->u8;
    case DTYPE_U16: return row->u16;
    case DTYPE_U32: return row->u32;
    case DTYPE_U64: return row->u64;
    default: return NULL;
    }
}

ElementLoop *VECTOR_NAME(vector_integer)(IrOpcode opcode, Dtype type) {
    if (type == DTYPE_PRED) {
        for (size_t k = 0; k < sizeof pred_rows / sizeof *pred_rows; k++)
            if (pred_rows[k].opcode == opcode) return pred_rows[k].loop;
        return NULL;
    }
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
        if (rows[k].opcode == opcode) return pick_loop(&rows[k], type);
    return NULL;
}
