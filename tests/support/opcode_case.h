/* Modules of the opcode sweep: read from tests/cuda/opcodes/FAMILY.txt, made for
 * every element type and size, filled, and compared.
 *
 * A file holds modules. Lines that begin with ':' before each describe its values; '#' begins a comment:
 *
 *   : types f32 bf16      <T> is one of them, <U>, <S> the integers of its width, <R> a complex one's part,
 *                         <W> twice its width
 *   : sizes 0 1 257       <N>, <N+1>, <N-1>, <2N>, <3N+2> are numbers
 *   : ulps 8              bound of floating results in units in the last place; none: 0
 *   : ulps 16 largest     in units of the largest element of the result
 *   : fill 1 index 9      parameter 1 holds indices from -2 to 10
 *   : fill 0 definite 5   parameter 0 holds positive definite 5 x 5 matrices
 *   : fill 0 small        whole numbers from -3 to 3; "positive": above 0.1; "plain": no corner cases
 *   : fill 0 count 7      numbers from 0 to 6
 *   : once                one run, as the bits of the next are other ones
 *   : fuse attention      attention is one fusion
 *   : refused WORDS       CUDA refuses it, in a line that has these words
 *   : operators abs sign  <OP> is one of them; such lines add up
 *   : alike 2             <OP> is one of the element-wise opcodes of two operands of one shape and type
 *
 * A line of the entry that begins with '*' is one of its outputs: the root, a
 * tuple of them, is written after the last line.
 */
#ifndef TESTS_SUPPORT_OPCODE_CASE_H
#define TESTS_SUPPORT_OPCODE_CASE_H

#include <math.h>

#include "base/files/file.h"
#include "base/random.h"
#include "base/text.h"
#include "generated_case.h"
#include "tests/support/alike_opcodes.h"

enum { OPCODE_WORDS = 40, OPCODE_FILLS = 6, OPCODE_BYTES = 8192 };

typedef struct OpcodeFill {
    char kind[16];
    int64_t limit;
} OpcodeFill;

/* One module of a family with its types and sizes. */
typedef struct OpcodeTemplate {
    char types[OPCODE_WORDS][16], operators[OPCODE_WORDS][32], refused[64];
    int64_t sizes[OPCODE_WORDS];
    int32_t type_count, size_count, operator_count;
    const char *chosen; /* the one that <OP> stands for */
    double ulps;
    bool of_largest, once, fuses_attention;
    OpcodeFill fills[OPCODE_FILLS];
    const char *text; /* length bytes */
    size_t length;
} OpcodeTemplate;

static inline bool opcode_is_word(const char *line, const char *word, const char **rest) {
    size_t length = strlen(word);
    if (strncmp(line, word, length) != 0 || (line[length] != ' ' && line[length] != '\n')) return false;
    *rest = line + length;
    return true;
}

/* Reads one line that begins with ": ". False: nothing like it. */
static inline bool opcode_read_directive(OpcodeTemplate *self, const char *line) {
    const char *rest;
    int used;
    if (opcode_is_word(line, "types", &rest)) {
        while (self->type_count < OPCODE_WORDS &&
               sscanf(rest, "%*[ ]%15[a-z0-9]%n", self->types[self->type_count], &used) == 1)
            self->type_count++, rest += used;
    } else if (opcode_is_word(line, "sizes", &rest)) {
        long long size;
        while (self->size_count < OPCODE_WORDS && sscanf(rest, "%*[ ]%lld%n", &size, &used) == 1)
            self->sizes[self->size_count++] = size, rest += used;
    } else if (opcode_is_word(line, "operators", &rest)) {
        while (self->operator_count < OPCODE_WORDS &&
               sscanf(rest, "%*[ ]%31[a-z0-9-]%n", self->operators[self->operator_count], &used) == 1)
            self->operator_count++, rest += used;
    } else if (opcode_is_word(line, "alike", &rest)) {
        for (int32_t k = 0; k < ALIKE_OPCODE_COUNT && self->operator_count < OPCODE_WORDS; k++)
            if (alike_is(&alike_opcodes[k]) && alike_opcodes[k].operands == atoi(rest))
                snprintf(self->operators[self->operator_count++], sizeof *self->operators, "%s",
                         alike_opcodes[k].name);
    } else if (opcode_is_word(line, "ulps", &rest)) {
        char of[16] = "";
        sscanf(rest, "%lf %15[a-z]", &self->ulps, of);
        self->of_largest = strcmp(of, "largest") == 0;
    } else if (opcode_is_word(line, "fill", &rest)) {
        int k;
        char kind[16];
        long long limit = 0;
        if (sscanf(rest, "%d %15[a-z] %lld", &k, kind, &limit) < 2 || k < 0 || k >= OPCODE_FILLS)
            return false;
        memcpy(self->fills[k].kind, kind, sizeof kind);
        self->fills[k].limit = limit;
    } else if (opcode_is_word(line, "refused", &rest)) {
        sscanf(rest, " %63[^\n]", self->refused);
    } else if (opcode_is_word(line, "once", &rest)) {
        self->once = true;
    } else if (opcode_is_word(line, "fuse attention", &rest)) {
        self->fuses_attention = true;
    } else {
        return false;
    }
    return true;
}

/* The next template of a file at *at; false at its end. *wrong: a line that means nothing, or NULL. */
static inline bool opcode_next(OpcodeTemplate *self, const char **at, const char **wrong) {
    const char *line = *at;
    memset(self, 0, sizeof *self);
    *wrong = NULL;
    for (; *line && !self->length; line = strchr(line, '\n') + 1) {
        if (*line == ':' && !opcode_read_directive(self, line + 1 + strspn(line + 1, " "))) *wrong = line;
        if (*line == ':' || *line == '#' || *line == '\n') continue;
        self->text = line;
        const char *end = strstr(line, "\n:");
        self->length = end ? (size_t)(end + 1 - line) : strlen(line);
        line += self->length - 1;
        if (*line != '\n') break;
    }
    *at = line;
    if (self->type_count == 0) snprintf(self->types[self->type_count++], 16, "f32");
    if (self->size_count == 0) self->sizes[self->size_count++] = 1;
    return self->length > 0;
}

/* Appends what stands between '<' and '>', or the character itself where that is nothing known. */
static inline const char *opcode_expand(Text *out, const OpcodeTemplate *self, const char *at,
                                        const char *type, int64_t size) {
    Dtype dtype = dtype_from_name(type);
    char term[24] = "";
    int used = 0;
    long long factor = 1, summand = 0;
    if (sscanf(at, "<%23[^<>=]>%n", term, &used) != 1 || used == 0) {
        text_append_bytes(out, at, 1);
        return at + 1;
    }
    const char *n = strchr(term, 'N');
    if (strcmp(term, "T") == 0) text_append_string(out, type);
    else if (strcmp(term, "OP") == 0) text_append_string(out, self->chosen);
    else if (strcmp(term, "U") == 0) text_append(out, "u%d", dtype_bits(dtype));
    else if (strcmp(term, "S") == 0) text_append(out, "s%d", dtype_bits(dtype));
    else if (strcmp(term, "W") == 0) text_append(out, "%d", 2 * dtype_bits(dtype));
    else if (strcmp(term, "R") == 0) text_append_string(out, dtype_name(dtype_real_part(dtype)));
    else if (n) {
        if (n > term) factor = strtoll(term, NULL, 10);
        if (n[1]) summand = strtoll(n + 1, NULL, 10);
        text_append(out, "%lld", (long long)(factor * size + summand));
    }
    return at + used;
}

/* Notes the shape and the name of an output, "NAME = SHAPE OPERATOR(...)". */
static inline void opcode_add_output(Text *shapes, Text *names, const char *line) {
    const char *equals = strstr(line, " = "), *end = equals + 3;
    for (int32_t depth = 0; *end && (depth > 0 || *end != ' '); end++) depth += (*end == '(') - (*end == ')');
    text_append(shapes, "%s%.*s", shapes->length > 0 ? ", " : "", (int)(end - equals - 3), equals + 3);
    text_append(names, "%s%.*s", names->length > 0 ? ", " : "", (int)(equals - line), line);
}

/* The text of a module; text_free(). */
static inline Text opcode_text(const OpcodeTemplate *self, const char *type, int64_t size) {
    Text all = {0}, out = {0}, shapes = {0}, names = {0};
    for (const char *at = self->text; at < self->text + self->length;)
        if (*at == '<') at = opcode_expand(&all, self, at, type, size);
        else text_append_bytes(&all, at++, 1);
    text_append_string(&out, "HloModule m\n");
    for (const char *line = all.data; *line; line = strchr(line, '\n') + 1) {
        size_t indent = strspn(line, " "), length = strcspn(line, "\n");
        bool is_output = line[indent] == '*';
        if (is_output) opcode_add_output(&shapes, &names, line + indent + 2);
        if (line[0] == '}' && names.length > 0)
            text_append(&out, "  ROOT outputs = (%s) tuple(%s)\n", shapes.data, names.data);
        text_append_bytes(&out, line + (is_output ? indent + 2 : 0), length - (is_output ? indent + 2 : 0));
        text_append_string(&out, "\n");
    }
    text_free(&all);
    text_free(&shapes);
    text_free(&names);
    return out;
}

static inline void opcode_store(void *data, Dtype type, int64_t i, double value) {
    int64_t whole = (int64_t)value;
    switch (type) {
    case DTYPE_PRED: ((uint8_t *)data)[i] = value != 0; break;
    case DTYPE_F32: ((float *)data)[i] = (float)value; break;
    case DTYPE_F64: ((double *)data)[i] = value; break;
    case DTYPE_BF16: ((uint16_t *)data)[i] = dtype_float_to_bf16((float)value); break;
    case DTYPE_F16: ((uint16_t *)data)[i] = dtype_float_to_f16((float)value); break;
    case DTYPE_C64:
        ((float *)data)[2 * i] = (float)value, ((float *)data)[2 * i + 1] = (float)value / 2;
        break;
    case DTYPE_C128: ((double *)data)[2 * i] = value, ((double *)data)[2 * i + 1] = value / 2; break;
    default: memcpy((char *)data + i * dtype_bytes(type), &whole, (size_t)dtype_bytes(type));
    }
}

/* n x n matrices, dominated by their diagonals, symmetric. */
static inline void opcode_fill_definite(void *data, Dtype type, int64_t count, int64_t n, Random *random) {
    for (int64_t i = 0; i < count; i++) {
        int64_t row = i / n % n, column = i % n;
        double value = row == column ? 2 * (double)n : sin((double)((row + 1) * (column + 1)));
        opcode_store(data, type, i, value + (row == column ? random_uniform(random) : 0));
    }
}

/* Values of parameter `k`, corner cases of the type first unless the fill says otherwise. */
static inline void opcode_fill(void *data, Dtype type, int64_t count, const OpcodeFill *fill, int32_t k,
                               Random *random) {
    if (strcmp(fill->kind, "definite") == 0) {
        opcode_fill_definite(data, type, count, fill->limit, random);
        return;
    }
    if (fill->kind[0] == '\0' && type != DTYPE_C128) {
        generated_fill(data, type, count, k % 2 == 1, random);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        double normal = random_normal(random);
        if (strcmp(fill->kind, "index") == 0) normal = (double)random_below(random, fill->limit + 4) - 2;
        else if (strcmp(fill->kind, "count") == 0) normal = (double)random_below(random, fill->limit);
        else if (strcmp(fill->kind, "small") == 0) normal = (double)random_below(random, 7) - 3;
        else if (strcmp(fill->kind, "positive") == 0) normal = fabs(normal) + 0.1;
        opcode_store(data, type, i, normal);
    }
}

/* Unit in the last place of a floating type at a size, of normal numbers. */
static inline double opcode_unit(Dtype type, double size) {
    int32_t digits = type == DTYPE_F64 ? 53 : type == DTYPE_F32 ? 24 : type == DTYPE_F16 ? 11 : 8, exponent;
    double least = type == DTYPE_F64 ? 0x1p-1022 : type == DTYPE_F16 ? 0x1p-14 : 0x1p-126;
    frexp(size < least ? least : size, &exponent);
    return ldexp(1, exponent - digits);
}

static inline double opcode_part(const void *data, Dtype type, int64_t i) {
    return generated_value(data, type, i);
}

/* The first element of `made` that is farther from `expected` than the bound, or -1. */
static inline int64_t opcode_difference(const void *made, const void *expected, Dtype type, int64_t count,
                                        double ulps, bool of_largest) {
    Dtype real = dtype_real_part(type);
    int64_t bytes = dtype_bytes(type), parts = real == type ? 1 : 2;
    double largest = 0;
    if (memcmp(made, expected, (size_t)(bytes * count)) == 0) return -1;
    for (int64_t i = 0; i < count * parts && dtype_is_floating(real); i++) {
        double size = fabs(opcode_part(expected, real, i));
        if (isfinite(size) && size > largest) largest = size;
    }
    for (int64_t i = 0; i < count; i++) {
        double size = 0, off = 0;
        bool has_nan = false, expects_nan = false;
        if (memcmp((const char *)made + i * bytes, (const char *)expected + i * bytes, (size_t)bytes) == 0)
            continue;
        if (!dtype_is_floating(real)) return i;
        for (int64_t k = i * parts; k < (i + 1) * parts; k++) {
            double x = opcode_part(made, real, k), y = opcode_part(expected, real, k);
            has_nan |= isnan(x), expects_nan |= isnan(y);
            size = hypot(size, y), off = x == y ? off : hypot(off, x - y);
        }
        if (has_nan && expects_nan) continue;
        if (!(off <= ulps * opcode_unit(real, of_largest ? largest : size))) return i;
    }
    return -1;
}

#endif
