/* Expressions by precedence climbing: a table of operators with the strength by
 * which they bind, evaluated while they are read. Depth is bounded, sums that do
 * not fit 64 bits are refused.
 */
#include "cost/cluster/topology_expression.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { DEEPEST = 32 };

typedef enum Operation {
    OR,
    AND,
    EQUAL,
    UNEQUAL,
    AT_MOST,
    AT_LEAST,
    BELOW,
    ABOVE,
    PLUS,
    MINUS,
    TIMES,
    DIVIDED,
    REMAINDER
} Operation;

/* A sign comes after those that begin with it. */
static const struct {
    const char *sign;
    int32_t strength;
    Operation operation;
} operators[] = {
    {"||", 1, OR},       {"&&", 2, AND},    {"==", 3, EQUAL},    {"!=", 3, UNEQUAL}, {"<=", 3, AT_MOST},
    {">=", 3, AT_LEAST}, {"<", 3, BELOW},   {">", 3, ABOVE},     {"+", 4, PLUS},     {"-", 4, MINUS},
    {"*", 5, TIMES},     {"/", 5, DIVIDED}, {"%", 5, REMAINDER},
};
enum { OPERATOR_COUNT = sizeof operators / sizeof *operators, SIGN_STRENGTH = 6 };

typedef struct Parser {
    const char *at, *end;
    const TopologyVariables *variables;
    const char *fault;
    int32_t depth;
} Parser;

static int64_t fail(Parser *self, const char *fault) {
    if (!self->fault) self->fault = fault;
    self->at = self->end;
    return 0;
}

static void skip_blanks(Parser *self) {
    while (self->at < self->end && *self->at == ' ') self->at++;
}

static int64_t read_variable(Parser *self) {
    const char *start = self->at;
    for (; self->at < self->end; self->at++) {
        char c = *self->at;
        if (!(c >= 'a' && c <= 'z') && !(c >= '0' && c <= '9') && c != '_') break;
    }
    size_t length = (size_t)(self->at - start);
    for (int32_t k = 0; k < self->variables->count; k++)
        if (strlen(self->variables->names[k]) == length &&
            memcmp(self->variables->names[k], start, length) == 0)
            return self->variables->values[k];
    return fail(self, length > 0 ? "a name that \"for\" does not have" : "expected a number or a name");
}

/* Computes one binary operation; an overflow or a division by zero is an error. */
static int64_t apply_operation(Parser *self, Operation operation, int64_t a, int64_t b) {
    int64_t value = 0;
    bool overflows = false;
    switch (operation) {
    case OR: return a || b;
    case AND: return a && b;
    case EQUAL: return a == b;
    case UNEQUAL: return a != b;
    case AT_MOST: return a <= b;
    case AT_LEAST: return a >= b;
    case BELOW: return a < b;
    case ABOVE: return a > b;
    case PLUS: overflows = __builtin_add_overflow(a, b, &value); break;
    case MINUS: overflows = __builtin_sub_overflow(a, b, &value); break;
    case TIMES: overflows = __builtin_mul_overflow(a, b, &value); break;
    case DIVIDED:
    case REMAINDER:
        if (b == 0) return fail(self, "division by zero");
        if (a == INT64_MIN && b == -1) return fail(self, "the value is too large");
        value = operation == DIVIDED ? a / b : a % b;
        break;
    }
    return overflows ? fail(self, "the value is too large") : value;
}

static int64_t read_expression(Parser *self, int32_t least_strength);

static int64_t read_operand(Parser *self) {
    skip_blanks(self);
    if (self->at == self->end) return fail(self, "expected a number or a name");
    if (*self->at >= '0' && *self->at <= '9') {
        int64_t value = 0;
        for (; self->at < self->end && *self->at >= '0' && *self->at <= '9'; self->at++)
            if (__builtin_mul_overflow(value, (int64_t)10, &value) ||
                __builtin_add_overflow(value, (int64_t)(*self->at - '0'), &value))
                return fail(self, "the number is too large");
        return value;
    }
    if (*self->at == '-') {
        self->at++;
        return apply_operation(self, MINUS, 0, read_expression(self, SIGN_STRENGTH));
    }
    if (*self->at != '(') return read_variable(self);
    self->at++;
    int64_t value = read_expression(self, 1);
    skip_blanks(self);
    if (self->at == self->end || *self->at != ')') return fail(self, "a parenthesis is not closed");
    self->at++;
    return value;
}

/* Returns the next operator, OPERATOR_COUNT without one. */
static int32_t next_operator(Parser *self) {
    skip_blanks(self);
    size_t left = (size_t)(self->end - self->at);
    int32_t k = 0;
    for (; k < OPERATOR_COUNT; k++) {
        size_t length = strlen(operators[k].sign);
        if (length <= left && memcmp(self->at, operators[k].sign, length) == 0) break;
    }
    return k;
}

static int64_t read_expression(Parser *self, int32_t least_strength) {
    if (++self->depth > DEEPEST) return fail(self, "nested too deeply");
    int64_t value = read_operand(self);
    for (int32_t k; (k = next_operator(self)) < OPERATOR_COUNT && operators[k].strength >= least_strength;) {
        self->at += strlen(operators[k].sign);
        int64_t right = read_expression(self, operators[k].strength + 1);
        value = apply_operation(self, operators[k].operation, value, right);
    }
    self->depth--;
    return value;
}

const char *topology_expression(int64_t *value, const char *text, size_t length,
                                const TopologyVariables *variables) {
    Parser self = {.at = text, .end = text + length, .variables = variables};
    *value = read_expression(&self, 1);
    if (!self.fault && self.at != self.end) self.fault = "expected an operator";
    return self.fault;
}

const char *topology_format(char *name, size_t capacity, const char *format,
                            const TopologyVariables *variables) {
    size_t used = 0;
    while (*format) {
        char digits[24];
        const char *piece = format;
        size_t length = strcspn(format, "{}");
        format += length;
        if (length == 0) {
            const char *close = *format == '{' ? strchr(format, '}') : NULL;
            if (!close) return "a brace without its pair";
            int64_t value;
            const char *fault =
                topology_expression(&value, format + 1, (size_t)(close - format) - 1, variables);
            if (fault) return fault;
            if (value < 0) return "a number below zero";
            length = (size_t)snprintf(digits, sizeof digits, "%lld", (long long)value);
            piece = digits;
            format = close + 1;
        }
        if (length >= capacity - used) return "a name that is too long";
        memcpy(name + used, piece, length);
        used += length;
    }
    name[used] = '\0';
    return NULL;
}
