/* The attributes of instructions, one row each: the name in the text, the syntax of the value, the
 * field of the message, and the opcodes with that attribute.
 *
 * The reader finds the row by name and opcode; it skips a name without a row with a warning. The
 * printer visits the rows in order and writes values that differ from the default. The reader then
 * adds the fields that text omits because they follow from the operands: comparison types, empty
 * groups of dimension numbers, the mark of fused computations. Text and binary thus produce the
 * same message.
 */
#include <string.h>

#include "ir/module.h"
#include "ir/text/text_values.h"

#define FIELD(name) .field = offsetof(Hlo__HloInstructionProto, name)
#define LIST(name)  FIELD(name), .count = offsetof(Hlo__HloInstructionProto, n_##name)
#define CALLED      LIST(called_computation_ids)
/* A field of a message that the instruction points to. */
#define PART(pointer, Type, descriptor, name)                                        \
    .part = offsetof(Hlo__HloInstructionProto, pointer), .part_type = &(descriptor), \
    .field = offsetof(Type, name)
#define PART_LIST(pointer, Type, descriptor, name) \
    PART(pointer, Type, descriptor, name), .count = offsetof(Type, n_##name)

#define DOT(name) \
    PART_LIST(dot_dimension_numbers, Hlo__DotDimensionNumbers, hlo__dot_dimension_numbers__descriptor, name)
#define RAGGED(name)                                                        \
    PART_LIST(ragged_dot_dimension_numbers, Hlo__RaggedDotDimensionNumbers, \
              hlo__ragged_dot_dimension_numbers__descriptor, name)
#define RAGGED_DOT(name)                                                      \
    .part = offsetof(Hlo__HloInstructionProto, ragged_dot_dimension_numbers), \
    .part_type = &hlo__ragged_dot_dimension_numbers__descriptor,              \
    .inner = offsetof(Hlo__RaggedDotDimensionNumbers, dot_dimension_numbers), \
    .inner_type = &hlo__dot_dimension_numbers__descriptor,                    \
    .field = offsetof(Hlo__DotDimensionNumbers, name),                        \
    .count = offsetof(Hlo__DotDimensionNumbers, n_##name), .opcodes = "ragged-dot"
#define GATHER(name)                                                 \
    PART_LIST(gather_dimension_numbers, Hlo__GatherDimensionNumbers, \
              hlo__gather_dimension_numbers__descriptor, name)
#define SCATTER(name)                                                  \
    PART_LIST(scatter_dimension_numbers, Hlo__ScatterDimensionNumbers, \
              hlo__scatter_dimension_numbers__descriptor, name)
#define SOLVE(name)                                                                                        \
    PART(triangular_solve_options, Hlo__TriangularSolveOptions, hlo__triangular_solve_options__descriptor, \
         name)

#define CONVOLVES "convolution custom-call"
#define REDUCES                                                               \
    "reduce reduce-window map scatter sort call all-reduce all-reduce-start " \
    "reduce-scatter "                                                         \
    "collective-reduce scan"

static const IrAttributeRow ROWS[] = {
    /* Dimensions. */
    {"dimensions", &IR_SYNTAX_INTEGERS, LIST(dimensions), .is_always_written = true,
     .opcodes = "broadcast transpose reduce concatenate reverse sort"},
    {"dimensions", &IR_SYNTAX_INTEGERS, LIST(dimensions),
     .opcodes = "map get-dimension-size set-dimension-size all-gather "
                "all-gather-start all-to-all "
                "reduce-scatter scan ragged-all-to-all"},
    {"inferred_dimension", &IR_SYNTAX_SINGLE, LIST(dimensions), .opcodes = "reshape"},
    {"iota_dimension", &IR_SYNTAX_SINGLE, LIST(dimensions), .opcodes = "iota", .is_always_written = true},
    {"index", &IR_SYNTAX_INTEGER, FIELD(tuple_index), .opcodes = "get-tuple-element",
     .is_always_written = true},
    {"slice", &IR_SYNTAX_SLICES, FIELD(slice_dimensions), .opcodes = "slice", .is_always_written = true},
    {"dynamic_slice_sizes", &IR_SYNTAX_INTEGERS, LIST(dynamic_slice_sizes), .opcodes = "dynamic-slice",
     .is_always_written = true},
    {"padding", &IR_SYNTAX_PADDING, FIELD(padding_config), .opcodes = "pad"},
    {"window", &IR_SYNTAX_WINDOW, FIELD(window), .opcodes = "reduce-window select-and-scatter " CONVOLVES},
    {"dim_labels", &IR_SYNTAX_DIMENSION_LABELS, FIELD(convolution_dimension_numbers), .opcodes = CONVOLVES},
    {"feature_group_count", &IR_SYNTAX_INTEGER, FIELD(feature_group_count), .opcodes = CONVOLVES,
     .unwritten = 1},
    {"batch_group_count", &IR_SYNTAX_INTEGER, FIELD(batch_group_count), .opcodes = CONVOLVES, .unwritten = 1},
    {"lhs_batch_dims", &IR_SYNTAX_INTEGERS, DOT(lhs_batch_dimensions), .opcodes = "dot scaled-dot"},
    {"lhs_contracting_dims", &IR_SYNTAX_INTEGERS, DOT(lhs_contracting_dimensions),
     .opcodes = "dot scaled-dot"},
    {"rhs_batch_dims", &IR_SYNTAX_INTEGERS, DOT(rhs_batch_dimensions), .opcodes = "dot scaled-dot"},
    {"rhs_contracting_dims", &IR_SYNTAX_INTEGERS, DOT(rhs_contracting_dimensions),
     .opcodes = "dot scaled-dot"},
    {"lhs_batch_dims", &IR_SYNTAX_INTEGERS, RAGGED_DOT(lhs_batch_dimensions)},
    {"lhs_contracting_dims", &IR_SYNTAX_INTEGERS, RAGGED_DOT(lhs_contracting_dimensions)},
    {"rhs_batch_dims", &IR_SYNTAX_INTEGERS, RAGGED_DOT(rhs_batch_dimensions)},
    {"rhs_contracting_dims", &IR_SYNTAX_INTEGERS, RAGGED_DOT(rhs_contracting_dimensions)},
    {"lhs_ragged_dims", &IR_SYNTAX_INTEGERS, RAGGED(lhs_ragged_dimensions), .opcodes = "ragged-dot"},
    {"rhs_group_dims", &IR_SYNTAX_INTEGERS, RAGGED(rhs_group_dimensions), .opcodes = "ragged-dot"},
    {"offset_dims", &IR_SYNTAX_INTEGERS, GATHER(offset_dims), .opcodes = "gather", .is_always_written = true},
    {"collapsed_slice_dims", &IR_SYNTAX_INTEGERS, GATHER(collapsed_slice_dims), .opcodes = "gather",
     .is_always_written = true},
    {"start_index_map", &IR_SYNTAX_INTEGERS, GATHER(start_index_map), .opcodes = "gather",
     .is_always_written = true},
    {"operand_batching_dims", &IR_SYNTAX_INTEGERS, GATHER(operand_batching_dims), .opcodes = "gather"},
    {"start_indices_batching_dims", &IR_SYNTAX_INTEGERS, GATHER(start_indices_batching_dims),
     .opcodes = "gather"},
    {"index_vector_dim", &IR_SYNTAX_INTEGER,
     PART(gather_dimension_numbers, Hlo__GatherDimensionNumbers, hlo__gather_dimension_numbers__descriptor,
          index_vector_dim),
     .opcodes = "gather", .is_always_written = true},
    {"slice_sizes", &IR_SYNTAX_INTEGERS, LIST(gather_slice_sizes), .opcodes = "gather",
     .is_always_written = true},
    {"update_window_dims", &IR_SYNTAX_INTEGERS, SCATTER(update_window_dims), .opcodes = "scatter",
     .is_always_written = true},
    {"inserted_window_dims", &IR_SYNTAX_INTEGERS, SCATTER(inserted_window_dims), .opcodes = "scatter",
     .is_always_written = true},
    {"scatter_dims_to_operand_dims", &IR_SYNTAX_INTEGERS, SCATTER(scatter_dims_to_operand_dims),
     .opcodes = "scatter", .is_always_written = true},
    {"input_batching_dims", &IR_SYNTAX_INTEGERS, SCATTER(input_batching_dims), .opcodes = "scatter"},
    {"scatter_indices_batching_dims", &IR_SYNTAX_INTEGERS, SCATTER(scatter_indices_batching_dims),
     .opcodes = "scatter"},
    {"index_vector_dim", &IR_SYNTAX_INTEGER,
     PART(scatter_dimension_numbers, Hlo__ScatterDimensionNumbers, hlo__scatter_dimension_numbers__descriptor,
          index_vector_dim),
     .opcodes = "scatter", .is_always_written = true},
    {"indices_are_sorted", &IR_SYNTAX_BOOLEAN, FIELD(indices_are_sorted), .opcodes = "gather scatter"},
    {"unique_indices", &IR_SYNTAX_BOOLEAN, FIELD(unique_indices), .opcodes = "scatter"},
    /* attributes of single opcodes */
    {"direction", &IR_SYNTAX_WORD, FIELD(comparison_direction), .opcodes = "compare"},
    {"type", &IR_SYNTAX_WORD, FIELD(comparison_type), .opcodes = "compare"},
    {"is_stable", &IR_SYNTAX_BOOLEAN, FIELD(is_stable), .opcodes = "sort"},
    {"exponent_bits", &IR_SYNTAX_INTEGER32, FIELD(exponent_bits), .opcodes = "reduce-precision",
     .is_always_written = true},
    {"mantissa_bits", &IR_SYNTAX_INTEGER32, FIELD(mantissa_bits), .opcodes = "reduce-precision",
     .is_always_written = true},
    {"k", &IR_SYNTAX_INTEGER, FIELD(k), .opcodes = "topk", .is_always_written = true},
    {"largest", &IR_SYNTAX_BOOLEAN, FIELD(largest), .opcodes = "topk", .is_always_written = true},
    {"algorithm", &IR_SYNTAX_ENUMERATION, FIELD(rng_algorithm), .names = &hlo__random_algorithm__descriptor,
     .is_lower_case = true, .opcodes = "rng-bit-generator", .is_always_written = true},
    {"distribution", &IR_SYNTAX_ENUMERATION, FIELD(distribution),
     .names = &hlo__random_distribution__descriptor, .is_lower_case = true, .opcodes = "rng"},
    {"delta", &IR_SYNTAX_INTEGER, FIELD(delta), .opcodes = "rng-get-and-update-state",
     .is_always_written = true},
    {"fft_type", &IR_SYNTAX_ENUMERATION, FIELD(fft_type), .names = &hlo__fft_type__descriptor,
     .opcodes = "fft", .is_always_written = true},
    {"fft_length", &IR_SYNTAX_INTEGERS, LIST(fft_length), .opcodes = "fft", .is_always_written = true},
    {"epsilon", &IR_SYNTAX_FLOAT, FIELD(epsilon),
     .opcodes = "batch-norm-training batch-norm-inference batch-norm-grad", .is_always_written = true},
    {"feature_index", &IR_SYNTAX_INTEGER, FIELD(feature_index),
     .opcodes = "batch-norm-training batch-norm-inference batch-norm-grad", .is_always_written = true},
    {"left_side", &IR_SYNTAX_BOOLEAN, SOLVE(left_side), .opcodes = "triangular-solve"},
    {"lower", &IR_SYNTAX_BOOLEAN, SOLVE(lower), .opcodes = "triangular-solve"},
    {"unit_diagonal", &IR_SYNTAX_BOOLEAN, SOLVE(unit_diagonal), .opcodes = "triangular-solve"},
    {"transpose_a", &IR_SYNTAX_ENUMERATION, SOLVE(transpose_a),
     .names = &hlo__triangular_solve_options__transpose__descriptor, .opcodes = "triangular-solve"},
    {"lower", &IR_SYNTAX_BOOLEAN,
     PART(cholesky_options, Hlo__CholeskyOptions, hlo__cholesky_options__descriptor, lower),
     .opcodes = "cholesky"},
    {"operand_precision", &IR_SYNTAX_PRECISIONS,
     PART_LIST(precision_config, Hlo__PrecisionConfig, hlo__precision_config__descriptor, operand_precision),
     .names = &hlo__precision_config__precision__descriptor, .is_lower_case = true,
     .opcodes = "dot convolution custom-call ragged-dot scaled-dot"},
    {"algorithm", &IR_SYNTAX_ENUMERATION,
     PART(precision_config, Hlo__PrecisionConfig, hlo__precision_config__descriptor, algorithm),
     .names = &hlo__precision_config__algorithm__descriptor, .prefix = "ALG_", .is_lower_case = true,
     .opcodes = "dot convolution scaled-dot ragged-dot"},
    {"padding_type", &IR_SYNTAX_ENUMERATION, FIELD(padding_type), .names = &hlo__padding_type__descriptor,
     .opcodes = CONVOLVES},
    {"convolution_kind", &IR_SYNTAX_ENUMERATION, FIELD(conv_kind),
     .names = &hlo__convolution_kind__descriptor, .prefix = "CONVOLUTION_KIND_", .is_lower_case = true,
     .opcodes = CONVOLVES},
    {"sparsity_config", &IR_SYNTAX_SPARSITY, FIELD(sparsity_config), .opcodes = CONVOLVES},
    {"result_accuracy", &IR_SYNTAX_ACCURACY, FIELD(result_accuracy), .is_of_functions = true},
    {"is_reverse", &IR_SYNTAX_BOOLEAN, FIELD(is_reverse), .opcodes = "scan"},
    {"num_carries", &IR_SYNTAX_INTEGER, FIELD(num_carries), .opcodes = "scan", .is_always_written = true},
    {"is_associative", &IR_SYNTAX_ENUMERATION, FIELD(is_associative), .names = &hlo__tri_state__descriptor,
     .prefix = "TRI_STATE_", .is_lower_case = true, .opcodes = "scan"},
    {"domain", &IR_SYNTAX_DOMAIN, FIELD(domain_entry_sharding), .opcodes = "domain"},
    {"cross_program_prefetch_index", &IR_SYNTAX_PREFETCH, FIELD(cross_program_prefetch_index),
     .opcodes = "copy-start"},
    {"parameter_replication", &IR_SYNTAX_REPLICATION, FIELD(parameter_replication)},
    {"infeed_config", &IR_SYNTAX_BYTES, FIELD(infeed_config), .opcodes = "infeed"},
    {"outfeed_config", &IR_SYNTAX_BYTES, FIELD(outfeed_config), .opcodes = "outfeed"},
    {"outfeed_shape", &IR_SYNTAX_SHAPE, FIELD(outfeed_shape), .opcodes = "outfeed"},
    /* Communication. */
    {"channel_id", &IR_SYNTAX_INTEGER, FIELD(channel_id)},
    {"replica_groups", &IR_SYNTAX_GROUPS, FIELD(replica_groups)},
    {"mode", &IR_SYNTAX_IGNORED, FIELD(replica_groups)}, /* follows from channel and device ids */
    {"source_target_pairs", &IR_SYNTAX_PAIRS, FIELD(source_target_pairs),
     .opcodes = "collective-permute collective-permute-start", .is_always_written = true},
    {"slice_sizes", &IR_SYNTAX_SLICE_SIZES, FIELD(dynamic_slice_sizes),
     .opcodes = "collective-permute collective-permute-start"},
    {"use_global_device_ids", &IR_SYNTAX_BOOLEAN, FIELD(use_global_device_ids)},
    {"constrain_layout", &IR_SYNTAX_BOOLEAN, FIELD(constrain_layout),
     .opcodes = "all-reduce all-reduce-start all-gather all-gather-start "
                "all-to-all reduce-scatter"},
    {"is_host_transfer", &IR_SYNTAX_BOOLEAN, FIELD(is_host_transfer),
     .opcodes = "send recv send-done recv-done"},
    /* Calls of computations. */
    {"kind", &IR_SYNTAX_WORD, FIELD(fusion_kind), .opcodes = "fusion"},
    {"output_to_operand_aliasing", &IR_SYNTAX_OPERAND_ALIASES, FIELD(output_operand_aliasing),
     .opcodes = "fusion custom-call async-start async-update"},
    {"condition", &IR_SYNTAX_COMPUTATION, CALLED, .opcodes = "while", .unwritten = 1},
    {"body", &IR_SYNTAX_COMPUTATION, CALLED, .opcodes = "while", .unwritten = 0},
    {"select", &IR_SYNTAX_COMPUTATION, CALLED, .opcodes = "select-and-scatter", .unwritten = 0},
    {"scatter", &IR_SYNTAX_COMPUTATION, CALLED, .opcodes = "select-and-scatter", .unwritten = 1},
    {"true_computation", &IR_SYNTAX_COMPUTATION, CALLED, .opcodes = "conditional", .unwritten = 0},
    {"false_computation", &IR_SYNTAX_COMPUTATION, CALLED, .opcodes = "conditional", .unwritten = 1},
    {"branch_computations", &IR_SYNTAX_COMPUTATIONS, CALLED, .opcodes = "conditional"},
    {"called_computations", &IR_SYNTAX_COMPUTATIONS, CALLED, .opcodes = "custom-call"},
    {"to_apply", &IR_SYNTAX_COMPUTATION, CALLED, .opcodes = REDUCES " custom-call"},
    {"calls", &IR_SYNTAX_COMPUTATION, CALLED, .opcodes = "fusion async-start async-update async-done"},
    {"custom_call_target", &IR_SYNTAX_STRING, FIELD(custom_call_target), .opcodes = "custom-call",
     .is_always_written = true},
    {"custom_call_has_side_effect", &IR_SYNTAX_BOOLEAN, FIELD(custom_call_has_side_effect),
     .opcodes = "custom-call"},
    {"operand_layout_constraints", &IR_SYNTAX_SHAPES, LIST(operand_shapes_with_layout),
     .opcodes = "custom-call"},
    {"schedule", &IR_SYNTAX_ENUMERATION, FIELD(custom_call_schedule),
     .names = &hlo__custom_call_schedule__descriptor, .opcodes = "custom-call"},
    {"api_version", &IR_SYNTAX_ENUMERATION, FIELD(custom_call_api_version),
     .names = &hlo__custom_call_api_version__descriptor, .opcodes = "custom-call", .unwritten = 1,
     .has_no_zero = true},
    {"literal", &IR_SYNTAX_LITERAL, FIELD(literal), .opcodes = "custom-call"},
    {"is_composite", &IR_SYNTAX_BOOLEAN, FIELD(is_composite), .opcodes = "call"},
    {"async_execution_thread", &IR_SYNTAX_STRING, FIELD(async_execution_thread),
     .opcodes = "async-start async-update async-done"},
    /* attributes of every instruction */
    {"sharding", &IR_SYNTAX_SHARDING, FIELD(sharding)},
    {"frontend_attributes", &IR_SYNTAX_FRONTEND, FIELD(frontend_attributes)},
    {"control-predecessors", &IR_SYNTAX_PREDECESSORS, LIST(control_predecessor_ids)},
    {"metadata", &IR_SYNTAX_METADATA, FIELD(metadata)},
    {"backend_config", &IR_SYNTAX_BYTES, FIELD(backend_config)},
    {"origin", &IR_SYNTAX_ORIGIN, FIELD(original_value)},
    {"statistics", &IR_SYNTAX_STATISTICS, FIELD(statistics_viz)},
};
#define ROW_COUNT ((int32_t)(sizeof ROWS / sizeof ROWS[0]))

/* Attributes of one instruction that are compared with each other. */
#define MOST_ATTRIBUTES 32

/* Attribute names that are warned about, each once, before warnings stop. */
#define MOST_WARNINGS 100

static bool has_word(const char *words, const char *word) {
    size_t length = strlen(word);
    if (length == 0) return false;
    for (const char *at = words; (at = strstr(at, word)) != NULL; at += length) {
        bool starts = at == words || at[-1] == ' ';
        if (starts && (at[length] == ' ' || at[length] == '\0')) return true;
    }
    return false;
}

static bool fits_opcode(const IrAttributeRow *row, const char *opcode) {
    if (row->is_of_functions) {
        IrOpcode known = ir_opcode_from_name(opcode);
        return ir_opcode_arity(known) == 1 && ir_opcode_has(known, FACT_TRANSCENDENTAL);
    }
    return !row->opcodes || has_word(row->opcodes, opcode);
}

AmStatus ir_attributes_index(IrTextReader *reader) {
    for (int32_t i = ROW_COUNT - 1; i >= 0; i--) {
        IrWord name = {ROWS[i].name, (int64_t)strlen(ROWS[i].name)};
        if (!ir_names_add(&reader->attributes, reader->scanner.arena, name, i)) {
            return ir_scan_memory(&reader->scanner);
        }
    }
    return AM_OK;
}

/* Returns the row of that name that fits the opcode, else the first of that name. */
static const IrAttributeRow *find_row(const IrTextReader *reader, IrWord name, const char *opcode) {
    int32_t first = ir_names_find(&reader->attributes, name);
    if (first < 0) return NULL;
    for (int32_t i = first; i < ROW_COUNT; i++) {
        if (ir_word_is(name, ROWS[i].name) && fits_opcode(&ROWS[i], opcode)) return &ROWS[i];
    }
    return &ROWS[first];
}

/* Returns the message to which the pointer at `offset` refers; if it is NULL, allocates the message
 * in `arena`, unless `arena` is NULL. */
static void *follow_pointer(void *message, size_t offset, const ProtobufCMessageDescriptor *type,
                            Arena *arena) {
    void **pointer = (void **)(void *)((char *)message + offset);
    if (!*pointer && arena) *pointer = ir_new_message(arena, type);
    return *pointer;
}

/* Returns the message that holds the row's field, or NULL; made if `arena` is given. */
static void *find_part(const IrAttributeRow *row, Hlo__HloInstructionProto *instruction, Arena *arena) {
    if (!row->part) return instruction;
    void *part = follow_pointer(instruction, row->part, row->part_type, arena);
    return part && row->inner_type ? follow_pointer(part, row->inner, row->inner_type, arena) : part;
}

/* Returns whether the row belongs to conditionals with another type of selector: pred has two named
 * branches. */
static bool is_for_other_selector(const IrTextReader *reader, const IrAttributeRow *row,
                                  const Hlo__HloInstructionProto *instruction) {
    bool is_list = row->syntax == &IR_SYNTAX_COMPUTATIONS;
    if (strcmp(instruction->opcode, "conditional") != 0 || instruction->n_operand_ids == 0 ||
        (!is_list && row->syntax != &IR_SYNTAX_COMPUTATION))
        return false;
    const Hlo__ShapeProto *selector =
        ir_reader_instruction(reader->computation, instruction->operand_ids[0])->shape;
    return is_list == (selector->element_type == HLO__PRIMITIVE_TYPE__PRED);
}

static AmStatus read_attribute(IrTextReader *reader, Hlo__HloInstructionProto *instruction, IrWord name,
                               int64_t start) {
    IrScanner *scanner = &reader->scanner;
    const IrAttributeRow *row = find_row(reader, name, instruction->opcode);
    if (row && is_for_other_selector(reader, row, instruction)) {
        return ir_scan_fail(scanner, start, "a conditional with this selector has no attribute '%s'",
                            row->name);
    }
    if (row && !fits_opcode(row, instruction->opcode) &&
        ir_opcode_from_name(instruction->opcode) != IR_UNKNOWN) {
        return ir_scan_fail(scanner, start, "'%s' has no attribute '%s'", instruction->opcode, row->name);
    }
    if (row) {
        void *part = find_part(row, instruction, scanner->arena);
        if (!part) return ir_scan_memory(scanner);
        return row->syntax->read(reader, row, part, (char *)part + row->field);
    }
    bool is_new = reader->unknown.count < MOST_WARNINGS && ir_names_find(&reader->unknown, name) < 0;
    if (is_new) {
        if (!ir_names_add(&reader->unknown, &reader->tables, name, 0)) return ir_scan_memory(scanner);
        am_warn(reader->warnings, "%s: unknown attribute '%.*s' of '%s' is ignored", scanner->source,
                (int)(name.length < 64 ? name.length : 64), name.text, instruction->opcode);
    }
    return ir_scan_skip_value(scanner);
}

/* The parts an opcode always has, whether or not the text mentions them. */
static const struct {
    const char *opcode;
    size_t part;
    const ProtobufCMessageDescriptor *type;
} PARTS[] = {
    {"dot", offsetof(Hlo__HloInstructionProto, dot_dimension_numbers),
     &hlo__dot_dimension_numbers__descriptor},
    {"convolution", offsetof(Hlo__HloInstructionProto, window), &hlo__window__descriptor},
    {"reduce-window", offsetof(Hlo__HloInstructionProto, window), &hlo__window__descriptor},
    {"select-and-scatter", offsetof(Hlo__HloInstructionProto, window), &hlo__window__descriptor},
    {"gather", offsetof(Hlo__HloInstructionProto, gather_dimension_numbers),
     &hlo__gather_dimension_numbers__descriptor},
    {"scatter", offsetof(Hlo__HloInstructionProto, scatter_dimension_numbers),
     &hlo__scatter_dimension_numbers__descriptor},
    {"pad", offsetof(Hlo__HloInstructionProto, padding_config), &hlo__padding_config__descriptor},
    {"triangular-solve", offsetof(Hlo__HloInstructionProto, triangular_solve_options),
     &hlo__triangular_solve_options__descriptor},
    {"cholesky", offsetof(Hlo__HloInstructionProto, cholesky_options), &hlo__cholesky_options__descriptor},
};

/* Adds the attributes that follow from others, and checks those that belong together. */
static AmStatus complete(IrTextReader *reader, Hlo__HloInstructionProto *instruction, int64_t start) {
    IrScanner *scanner = &reader->scanner;
    for (size_t i = 0; i < sizeof PARTS / sizeof PARTS[0]; i++) {
        if (strcmp(PARTS[i].opcode, instruction->opcode) != 0) continue;
        if (!follow_pointer(instruction, PARTS[i].part, PARTS[i].type, scanner->arena))
            return ir_scan_memory(scanner);
    }
    for (size_t i = 0; i < instruction->n_called_computation_ids; i++) {
        if (instruction->called_computation_ids[i] >= 0) continue;
        return ir_scan_fail(scanner, start, "this %s names only one of its two computations",
                            instruction->opcode);
    }
    if (strcmp(instruction->opcode, "compare") == 0 && !*instruction->comparison_type &&
        instruction->n_operand_ids > 0) {
        const Hlo__HloInstructionProto *operand =
            ir_reader_instruction(reader->computation, instruction->operand_ids[0]);
        Dtype type = (Dtype)operand->shape->element_type;
        bool is_float = dtype_is_floating(type) || dtype_is_complex(type);
        bool is_signed = dtype_is_signed(type) && type != DTYPE_PRED;
        instruction->comparison_type = arena_copy_string(scanner->arena, is_float    ? "FLOAT"
                                                                         : is_signed ? "SIGNED"
                                                                                     : "UNSIGNED");
        if (!instruction->comparison_type) return ir_scan_memory(scanner);
    }
    if (strcmp(instruction->opcode, "custom-call") == 0 && instruction->custom_call_api_version == 0) {
        instruction->custom_call_api_version = HLO__CUSTOM_CALL_API_VERSION__API_VERSION_ORIGINAL;
    }
    if (strcmp(instruction->opcode, "fusion") == 0 && instruction->n_called_computation_ids > 0) {
        int64_t called = instruction->called_computation_ids[0] - reader->module->computations[0]->id;
        reader->module->computations[called]->is_fusion_computation = true;
    }
    return AM_OK;
}

/* Returns whether an attribute belongs to the asynchronous instruction itself and not to its operator.
 * Aliases belong to an operator that may have any. */
static bool is_outer(IrWord name, const Hlo__HloInstructionProto *wrapped) {
    static const char *const names[] = {
        "async_execution_thread", "control-predecessors", "sharding", "metadata",
        "backend_config",         "frontend_attributes",  "origin",   "statistics"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (ir_word_is(name, names[i])) return true;
    bool may_alias = strcmp(wrapped->opcode, "custom-call") == 0 || strcmp(wrapped->opcode, "fusion") == 0;
    return !may_alias && ir_word_is(name, "output_to_operand_aliasing");
}

AmStatus ir_read_attributes(IrTextReader *reader, Hlo__HloInstructionProto *instruction,
                            Hlo__HloInstructionProto *wrapped, bool has_any) {
    IrScanner *scanner = &reader->scanner;
    int64_t start = scanner->at;
    IrWord seen[MOST_ATTRIBUTES];
    size_t count = 0;
    while (has_any && ir_scan_accept(scanner, ",")) {
        IrWord name;
        int64_t name_start = scanner->at;
        TRY(ir_scan_word(scanner, "the name of an attribute", &name));
        for (size_t i = 0; i < count; i++)
            if (seen[i].length == name.length && !memcmp(seen[i].text, name.text, (size_t)name.length))
                return ir_scan_fail(scanner, name_start, "this attribute is there already");
        if (count < MOST_ATTRIBUTES) seen[count++] = name;
        TRY(ir_scan_expect(scanner, "="));
        TRY(read_attribute(reader, wrapped && !is_outer(name, wrapped) ? wrapped : instruction, name,
                           name_start));
    }
    if (wrapped) TRY(complete(reader, wrapped, start));
    return complete(reader, instruction, start);
}

/* Returns whether a conditional has a pred selector and therefore two named branches. */
static bool has_two_branches(const IrTextWriter *writer, const Hlo__HloInstructionProto *instruction) {
    if (instruction->n_called_computation_ids != 2 || instruction->n_operand_ids == 0) return false;
    int32_t selector = ir_writer_instruction(writer, instruction->operand_ids[0]);
    if (selector < 0) return false;
    const Hlo__ShapeProto *shape = writer->computation->instructions[selector]->shape;
    return shape && shape->element_type == HLO__PRIMITIVE_TYPE__PRED;
}

static bool is_left_out(const IrTextWriter *writer, const IrAttributeRow *row,
                        const Hlo__HloInstructionProto *instruction) {
    if (strcmp(instruction->opcode, "custom-call") == 0 && row->syntax == &IR_SYNTAX_COMPUTATION)
        return true; /* called_computations has it */
    if (strcmp(instruction->opcode, "conditional") == 0 &&
        row->count == offsetof(Hlo__HloInstructionProto, n_called_computation_ids)) {
        bool is_list = row->syntax == &IR_SYNTAX_COMPUTATIONS;
        return is_list == has_two_branches(writer, instruction);
    }
    /* Comparison types other than this one follow from the operands. */
    return row->field == offsetof(Hlo__HloInstructionProto, comparison_type) &&
           row->syntax == &IR_SYNTAX_WORD && strcmp(instruction->comparison_type, "TOTALORDER") != 0;
}

AmStatus ir_write_attributes(IrTextWriter *writer, const Hlo__HloInstructionProto *instruction) {
    for (int32_t i = 0; i < ROW_COUNT; i++) {
        const IrAttributeRow *row = &ROWS[i];
        const char *part = find_part(row, (Hlo__HloInstructionProto *)(uintptr_t)instruction, NULL);
        if (!part) continue;
        bool is_default = row->syntax->is_default && row->syntax->is_default(row, part, part + row->field);
        if (is_default && (!row->is_always_written || !row->syntax->write)) continue;
        if (!fits_opcode(row, instruction->opcode) || is_left_out(writer, row, instruction)) continue;
        text_append(writer->out, ", %s=", row->name);
        row->syntax->write(writer, row, part, part + row->field);
    }
    return writer->error && writer->error->code != AM_OK ? writer->error->code : AM_OK;
}
