/* The syntaxes of what instructions carry beside the attributes of their operators.
 *
 *   result_accuracy   {mode=highest}, {tolerance={atol=0.1,rtol=0,ulps=2}}
 *   sparsity_config   {lhs={sparsity=2x4 dimension=1 stride=3} rhs={..}}: 2 of 4 values are not zero
 *   statistics        {visualizing_index=1,name=0.5,other=2}
 *   origin            {({"x"}, {"y" {0,1}})}: which array of the traced program each leaf of the
 *                     result is, nested as the result is; {[synthetic_call]}
 *   literal           s32[2]{0} {1, 2} or ( s32[] 1, f32[2]{0} {2, 3} )
 */
#include <string.h>

#include "ir/text/text_values.h"

static bool is_absent(const IrAttributeRow *row, const void *part, const void *field) {
    (void)row, (void)part;
    return !*(void *const *)field;
}

static AmStatus read_double(IrScanner *scanner, double *value) {
    uint64_t payload;
    return ir_scan_real(scanner, value, &payload);
}

static void write_double(Text *out, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    ir_float_write(out, DTYPE_F64, bits);
}

/* Reads "KEY=" with one of the given keys; `*key` is its index. */
static AmStatus read_key(IrScanner *scanner, const char *const *keys, size_t count, size_t *key) {
    IrWord word;
    ir_scan_space(scanner);
    int64_t start = scanner->at;
    TRY(ir_scan_word(scanner, keys[0], &word));
    for (*key = 0; *key < count && !ir_word_is(word, keys[*key]);) ++*key;
    if (*key == count) return ir_scan_fail(scanner, start, "unknown key, expected one such as %s", keys[0]);
    return ir_scan_expect(scanner, "=");
}

/* ------------------------------------------------------------------ Accuracy */

static AmStatus read_tolerance(IrScanner *scanner, Hlo__ResultAccuracy *accuracy) {
    static const char *const keys[] = {"atol", "rtol", "ulps"};
    Hlo__ResultAccuracy__Tolerance *tolerance =
        ir_new_message(scanner->arena, &hlo__result_accuracy__tolerance__descriptor);
    if (!tolerance) return ir_scan_memory(scanner);
    accuracy->tolerance = tolerance;
    accuracy->specs_case = HLO__RESULT_ACCURACY__SPECS_TOLERANCE;
    TRY(ir_scan_expect(scanner, "{"));
    if (ir_scan_accept(scanner, "}")) return AM_OK;
    do {
        size_t key;
        TRY(read_key(scanner, keys, 3, &key));
        if (key == 2) {
            TRY(ir_scan_integer(scanner, &tolerance->ulps));
        } else {
            TRY(read_double(scanner, key == 0 ? &tolerance->atol : &tolerance->rtol));
        }
    } while (ir_scan_accept(scanner, ","));
    return ir_scan_expect(scanner, "}");
}

static AmStatus read_accuracy(IrTextReader *reader, const IrAttributeRow *row, void *part, void *field) {
    (void)row, (void)part;
    static const char *const keys[] = {"mode", "tolerance"};
    IrScanner *scanner = &reader->scanner;
    Hlo__ResultAccuracy *accuracy = ir_new_message(scanner->arena, &hlo__result_accuracy__descriptor);
    if (!accuracy) return ir_scan_memory(scanner);
    *(Hlo__ResultAccuracy **)field = accuracy;
    size_t key;
    TRY(ir_scan_expect(scanner, "{"));
    TRY(read_key(scanner, keys, 2, &key));
    if (key == 1) {
        TRY(read_tolerance(scanner, accuracy));
    } else {
        IrWord word;
        ir_scan_space(scanner);
        int64_t start = scanner->at;
        TRY(ir_scan_word(scanner, "a mode of accuracy", &word));
        bool is_highest = ir_word_is(word, "highest");
        if (!is_highest && !ir_word_is(word, "default"))
            return ir_scan_fail(scanner, start, "unknown mode of accuracy, expected default or highest");
        accuracy->specs_case = HLO__RESULT_ACCURACY__SPECS_MODE;
        accuracy->mode =
            is_highest ? HLO__RESULT_ACCURACY__MODE__HIGHEST : HLO__RESULT_ACCURACY__MODE__DEFAULT;
    }
    return ir_scan_expect(scanner, "}");
}
static void write_accuracy(IrTextWriter *writer, const IrAttributeRow *row, const void *part,
                           const void *field) {
    (void)row, (void)part;
    const Hlo__ResultAccuracy *accuracy = *(Hlo__ResultAccuracy *const *)field;
    Text *out = writer->out;
    if (accuracy->specs_case == HLO__RESULT_ACCURACY__SPECS_MODE) {
        text_append_string(out, "{mode=highest}");
        return;
    }
    text_append_string(out, "{tolerance={atol=");
    write_double(out, accuracy->tolerance->atol);
    text_append_string(out, ",rtol=");
    write_double(out, accuracy->tolerance->rtol);
    text_append(out, ",ulps=%lld}}", (long long)accuracy->tolerance->ulps);
}
static bool is_default_accuracy(const IrAttributeRow *row, const void *part, const void *field) {
    (void)row, (void)part;
    const Hlo__ResultAccuracy *accuracy = *(Hlo__ResultAccuracy *const *)field;
    if (!accuracy) return true;
    if (accuracy->specs_case == HLO__RESULT_ACCURACY__SPECS_TOLERANCE) return !accuracy->tolerance;
    return accuracy->specs_case != HLO__RESULT_ACCURACY__SPECS_MODE ||
           accuracy->mode != HLO__RESULT_ACCURACY__MODE__HIGHEST;
}
const IrSyntax IR_SYNTAX_ACCURACY = {read_accuracy, write_accuracy, is_default_accuracy};

/* ------------------------------------------------------------------ Sparsity */

static AmStatus read_tensor_sparsity(IrScanner *scanner, Hlo__SparsityConfig__TensorSparsityConfig **result) {
    static const char *const keys[] = {"sparsity", "dimension", "stride"};
    Hlo__SparsityConfig__TensorSparsityConfig *sparsity =
        ir_new_message(scanner->arena, &hlo__sparsity_config__tensor_sparsity_config__descriptor);
    if (!sparsity) return ir_scan_memory(scanner);
    *result = sparsity;
    TRY(ir_scan_expect(scanner, "{"));
    while (!ir_scan_accept(scanner, "}")) {
        size_t key;
        TRY(read_key(scanner, keys, 3, &key));
        int64_t *values[] = {&sparsity->num_non_zero, &sparsity->dimension, &sparsity->stride};
        TRY(ir_scan_integer(scanner, values[key]));
        if (key > 0) continue;
        TRY(ir_scan_expect(scanner, "x"));
        TRY(ir_scan_integer(scanner, &sparsity->block_size));
    }
    return AM_OK;
}

static AmStatus read_sparsity(IrTextReader *reader, const IrAttributeRow *row, void *part, void *field) {
    (void)row, (void)part;
    static const char *const keys[] = {"lhs", "rhs"};
    IrScanner *scanner = &reader->scanner;
    Hlo__SparsityConfig *config = ir_new_message(scanner->arena, &hlo__sparsity_config__descriptor);
    if (!config) return ir_scan_memory(scanner);
    *(Hlo__SparsityConfig **)field = config;
    TRY(ir_scan_expect(scanner, "{"));
    while (!ir_scan_accept(scanner, "}")) {
        size_t key;
        TRY(read_key(scanner, keys, 2, &key));
        TRY(read_tensor_sparsity(scanner, key == 0 ? &config->lhs : &config->rhs));
    }
    return AM_OK;
}
static void write_sparsity(IrTextWriter *writer, const IrAttributeRow *row, const void *part,
                           const void *field) {
    (void)row, (void)part;
    const Hlo__SparsityConfig *config = *(Hlo__SparsityConfig *const *)field;
    const Hlo__SparsityConfig__TensorSparsityConfig *sides[] = {config->lhs, config->rhs};
    const char *separator = "{";
    for (int i = 0; i < 2; i++) {
        if (!sides[i]) continue;
        text_append(writer->out, "%s%s={sparsity=%lldx%lld dimension=%lld stride=%lld}", separator,
                    i ? "rhs" : "lhs", (long long)sides[i]->num_non_zero, (long long)sides[i]->block_size,
                    (long long)sides[i]->dimension, (long long)sides[i]->stride);
        separator = " ";
    }
    text_append_string(writer->out, "}");
}
static bool has_no_sparsity(const IrAttributeRow *row, const void *part, const void *field) {
    (void)row, (void)part;
    const Hlo__SparsityConfig *config = *(Hlo__SparsityConfig *const *)field;
    return !config || (!config->lhs && !config->rhs);
}
const IrSyntax IR_SYNTAX_SPARSITY = {read_sparsity, write_sparsity, has_no_sparsity};

/* ---------------------------------------------------------------- Statistics */

static AmStatus read_statistics(IrTextReader *reader, const IrAttributeRow *row, void *part, void *field) {
    (void)row, (void)part;
    IrScanner *scanner = &reader->scanner;
    Hlo__StatisticsViz *statistics = ir_new_message(scanner->arena, &hlo__statistics_viz__descriptor);
    if (!statistics) return ir_scan_memory(scanner);
    *(Hlo__StatisticsViz **)field = statistics;
    TRY(ir_scan_expect(scanner, "{"));
    if (ir_scan_accept(scanner, "}")) return AM_OK;
    do {
        IrWord word;
        TRY(ir_scan_word(scanner, "the name of a statistic", &word));
        TRY(ir_scan_expect(scanner, "="));
        if (ir_word_is(word, "visualizing_index")) {
            TRY(ir_scan_integer(scanner, &statistics->stat_index_to_visualize));
            continue;
        }
        Hlo__Statistic **statistic =
            ir_push(scanner->arena, &statistics->statistics, &statistics->n_statistics, sizeof *statistic);
        if (!statistic || !(*statistic = ir_new_message(scanner->arena, &hlo__statistic__descriptor)) ||
            !((*statistic)->stat_name = ir_word_copy(scanner, word)))
            return ir_scan_memory(scanner);
        TRY(read_double(scanner, &(*statistic)->stat_val));
    } while (ir_scan_accept(scanner, ","));
    return ir_scan_expect(scanner, "}");
}
static void write_statistics(IrTextWriter *writer, const IrAttributeRow *row, const void *part,
                             const void *field) {
    (void)row, (void)part;
    const Hlo__StatisticsViz *statistics = *(Hlo__StatisticsViz *const *)field;
    text_append(writer->out, "{visualizing_index=%lld", (long long)statistics->stat_index_to_visualize);
    for (size_t i = 0; i < statistics->n_statistics; i++) {
        text_append(writer->out, ",%s=", statistics->statistics[i]->stat_name);
        write_double(writer->out, statistics->statistics[i]->stat_val);
    }
    text_append_string(writer->out, "}");
}
/* Names must be words: nothing else can be read back. */
static bool has_no_statistics(const IrAttributeRow *row, const void *part, const void *field) {
    (void)row, (void)part;
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-$";
    const Hlo__StatisticsViz *statistics = *(Hlo__StatisticsViz *const *)field;
    if (!statistics || statistics->n_statistics == 0) return true;
    for (size_t i = 0; i < statistics->n_statistics; i++) {
        const char *name = statistics->statistics[i]->stat_name;
        if (!*name || name[strspn(name, letters)]) return true;
    }
    return false;
}
const IrSyntax IR_SYNTAX_STATISTICS = {read_statistics, write_statistics, has_no_statistics};

/* -------------------------------------------------------------------- Origin */

/* Reads one leaf at path[0..depth): {}, {"name"} or {"name" {0,1}}. */
static AmStatus read_origin_leaf(IrScanner *scanner, Hlo__OriginalValueProto *origin, const int64_t *path,
                                 int32_t depth) {
    Hlo__OriginalValueElementProto **slot =
        ir_push(scanner->arena, &origin->elements, &origin->n_elements, sizeof *slot);
    if (!slot || !(*slot = ir_new_message(scanner->arena, &hlo__original_value_element_proto__descriptor)))
        return ir_scan_memory(scanner);
    Hlo__OriginalValueElementProto *element = *slot;
    element->shape_index = ARENA_ARRAY(scanner->arena, int64_t, depth + 1);
    if (!element->shape_index) return ir_scan_memory(scanner);
    memcpy(element->shape_index, path, sizeof *path * (size_t)depth);
    element->n_shape_index = (size_t)depth;
    TRY(ir_scan_expect(scanner, "{"));
    if (ir_scan_accept(scanner, "}")) return AM_OK;
    Hlo__OriginalArrayProto *array = ir_new_message(scanner->arena, &hlo__original_array_proto__descriptor);
    ProtobufCBinaryData name;
    if (!array) return ir_scan_memory(scanner);
    element->original_array = array;
    TRY(ir_scan_string(scanner, &name));
    array->instruction_name = arena_copy_bytes(scanner->arena, name.data, name.len);
    if (!array->instruction_name) return ir_scan_memory(scanner);
    if (ir_scan_peek(scanner) == '{')
        TRY(ir_scan_integers(scanner, "{", "}", &array->n_shape_index, &array->shape_index));
    return ir_scan_expect(scanner, "}");
}

static AmStatus read_origin_tree(IrScanner *scanner, Hlo__OriginalValueProto *origin, int64_t *path,
                                 int32_t depth) {
    if (ir_scan_peek(scanner) != '(') return read_origin_leaf(scanner, origin, path, depth);
    if (depth >= IR_MAX_TUPLE_DEPTH) return ir_scan_fail(scanner, scanner->at, "origin nested too deeply");
    TRY(ir_scan_expect(scanner, "("));
    path[depth] = 0;
    if (ir_scan_accept(scanner, ")")) return AM_OK;
    do {
        TRY(read_origin_tree(scanner, origin, path, depth + 1));
        path[depth]++;
    } while (ir_scan_accept(scanner, ","));
    return ir_scan_expect(scanner, ")");
}

static AmStatus read_origin(IrTextReader *reader, const IrAttributeRow *row, void *part, void *field) {
    (void)row, (void)part;
    IrScanner *scanner = &reader->scanner;
    int64_t path[IR_MAX_TUPLE_DEPTH + 1];
    Hlo__OriginalValueProto *origin = ir_new_message(scanner->arena, &hlo__original_value_proto__descriptor);
    if (!origin) return ir_scan_memory(scanner);
    *(Hlo__OriginalValueProto **)field = origin;
    TRY(ir_scan_expect(scanner, "{"));
    if (ir_scan_accept(scanner, "[")) {
        TRY(ir_scan_expect(scanner, "synthetic_call"));
        TRY(ir_scan_expect(scanner, "]"));
        origin->is_synthetic_call = true;
    } else if (ir_scan_peek(scanner) != '}') {
        TRY(read_origin_tree(scanner, origin, path, 0));
    }
    return ir_scan_expect(scanner, "}");
}

/* Leaves are printed in the order of the shape; `*next` is the first element not yet printed. */
static void write_origin_tree(Text *out, const Hlo__OriginalValueProto *origin, const Hlo__ShapeProto *shape,
                              int64_t *path, size_t depth, size_t *next) {
    if (shape->element_type == HLO__PRIMITIVE_TYPE__TUPLE && depth < IR_MAX_TUPLE_DEPTH) {
        text_append_string(out, "(");
        for (size_t i = 0; i < shape->n_tuple_shapes; i++) {
            if (i) text_append_string(out, ", ");
            path[depth] = (int64_t)i;
            write_origin_tree(out, origin, shape->tuple_shapes[i], path, depth + 1, next);
        }
        text_append_string(out, ")");
        return;
    }
    const Hlo__OriginalValueElementProto *element =
        *next < origin->n_elements ? origin->elements[*next] : NULL;
    bool is_here = element && element->n_shape_index == depth &&
                   (depth == 0 || memcmp(element->shape_index, path, sizeof *path * depth) == 0);
    *next += is_here;
    text_append_string(out, "{");
    const Hlo__OriginalArrayProto *array = is_here ? element->original_array : NULL;
    if (array) ir_write_string(out, array->instruction_name, strlen(array->instruction_name));
    if (array && array->n_shape_index) {
        text_append_string(out, " {");
        ir_write_integers(out, array->n_shape_index, array->shape_index);
        text_append_string(out, "}");
    }
    text_append_string(out, "}");
}
static void write_origin(IrTextWriter *writer, const IrAttributeRow *row, const void *part,
                         const void *field) {
    (void)row;
    const Hlo__OriginalValueProto *origin = *(Hlo__OriginalValueProto *const *)field;
    const Hlo__HloInstructionProto *instruction = part;
    int64_t path[IR_MAX_TUPLE_DEPTH + 1];
    size_t next = 0;
    text_append_string(writer->out, "{");
    if (origin->is_synthetic_call) {
        text_append_string(writer->out, "[synthetic_call]");
    } else if (instruction->shape) {
        write_origin_tree(writer->out, origin, instruction->shape, path, 0, &next);
    }
    text_append_string(writer->out, "}");
}
static bool has_no_origin(const IrAttributeRow *row, const void *part, const void *field) {
    (void)row, (void)part;
    const Hlo__OriginalValueProto *origin = *(Hlo__OriginalValueProto *const *)field;
    return !origin || (origin->n_elements == 0 && !origin->is_synthetic_call);
}
const IrSyntax IR_SYNTAX_ORIGIN = {read_origin, write_origin, has_no_origin};

/* ------------------------------------------------------------------- Literal */

static AmStatus read_shaped_literal(IrScanner *scanner, Hlo__LiteralProto **result, int32_t depth) {
    if (ir_scan_peek(scanner) != '(') {
        Hlo__ShapeProto *shape;
        TRY(ir_read_shape(scanner, &shape));
        return ir_read_literal(scanner, shape, result);
    }
    if (depth >= IR_MAX_TUPLE_DEPTH) return ir_scan_fail(scanner, scanner->at, "literal nested too deeply");
    Hlo__LiteralProto *literal = ir_new_message(scanner->arena, &hlo__literal_proto__descriptor);
    if (literal) literal->shape = ir_new_message(scanner->arena, &hlo__shape_proto__descriptor);
    if (!literal || !literal->shape) return ir_scan_memory(scanner);
    *result = literal;
    literal->shape->element_type = HLO__PRIMITIVE_TYPE__TUPLE;
    TRY(ir_scan_expect(scanner, "("));
    if (ir_scan_accept(scanner, ")")) return AM_OK;
    do {
        Hlo__LiteralProto **element =
            ir_push(scanner->arena, &literal->tuple_literals, &literal->n_tuple_literals, sizeof *element);
        Hlo__ShapeProto **shape = ir_push(scanner->arena, &literal->shape->tuple_shapes,
                                          &literal->shape->n_tuple_shapes, sizeof *shape);
        if (!element || !shape) return ir_scan_memory(scanner);
        TRY(read_shaped_literal(scanner, element, depth + 1));
        *shape = (*element)->shape;
    } while (ir_scan_accept(scanner, ","));
    return ir_scan_expect(scanner, ")");
}

static AmStatus read_literal(IrTextReader *reader, const IrAttributeRow *row, void *part, void *field) {
    (void)row, (void)part;
    return read_shaped_literal(&reader->scanner, field, 0);
}

static AmStatus write_shaped_literal(IrTextWriter *writer, const Hlo__LiteralProto *literal, int32_t depth) {
    Text *out = writer->out;
    if (!literal->shape || depth > IR_MAX_TUPLE_DEPTH)
        return am_fail(writer->error, AM_ERROR_INPUT, "", "a literal has no shape or is nested too deeply");
    if (literal->shape->element_type != HLO__PRIMITIVE_TYPE__TUPLE) {
        ir_write_shape(out, literal->shape, true);
        text_append_string(out, " ");
        return ir_write_literal(out, literal->shape, literal, writer->error);
    }
    text_append_string(out, "( ");
    for (size_t i = 0; i < literal->n_tuple_literals; i++) {
        if (i) text_append_string(out, ", ");
        TRY(write_shaped_literal(writer, literal->tuple_literals[i], depth + 1));
    }
    text_append_string(out, " )");
    return AM_OK;
}
/* Writes a literal. A failure is in the writer's error, which ir_write_attributes() checks. */
static void write_literal(IrTextWriter *writer, const IrAttributeRow *row, const void *part,
                          const void *field) {
    (void)row, (void)part;
    (void)write_shaped_literal(writer, *(Hlo__LiteralProto *const *)field, 0);
}
const IrSyntax IR_SYNTAX_LITERAL = {read_literal, write_literal, is_absent};
