/* The syntaxes that HLO text has for one kind of attribute each.
 *
 *   window       {size=3x3 stride=2x2 pad=0_1x0_1 lhs_dilate=.. rhs_dilate=.. rhs_reversal=1x1}
 *   dim_labels   b01f_01io->b01f: where batch, feature and spatial dimensions are
 *   slice        {[0:9:2], [0:5]}: start, limit, stride
 *   padding      0_1x2_0_1: low, high, interior
 *   groups       {{0,1},{2,3}} or [2,2]<=[4] or mesh['a'=2,'b'=4] {'b'}
 *   aliases      {{0}: (0, {}), {1}: (2, {1})}: of outputs with operands
 */
#include <string.h>

#include "ir/text/text_values.h"

/* ------------------------------------------------------------------- Windows */

/* The keys of a window, each one number per dimension, separated by 'x'. */
static const struct {
    const char *name;
    size_t field;
    int64_t usual; /* the value of a dimension that is not listed */
    bool is_boolean;
} WINDOW_KEYS[] = {
    {"size", offsetof(Hlo__WindowDimension, size), INT64_MIN, false},
    {"stride", offsetof(Hlo__WindowDimension, stride), 1, false},
    {"pad", offsetof(Hlo__WindowDimension, padding_low), 0, false},
    {"lhs_dilate", offsetof(Hlo__WindowDimension, base_dilation), 1, false},
    {"rhs_dilate", offsetof(Hlo__WindowDimension, window_dilation), 1, false},
    {"rhs_reversal", offsetof(Hlo__WindowDimension, window_reversal), 0, true},
};
#define WINDOW_KEY_COUNT (sizeof WINDOW_KEYS / sizeof WINDOW_KEYS[0])
#define PAD_KEY          2

static AmStatus window_dimension(IrScanner *scanner, Hlo__Window *window, size_t index,
                                 Hlo__WindowDimension **dimension) {
    if (index >= IR_MAX_RANK) return ir_scan_fail(scanner, scanner->at, "a window of too many dimensions");
    if (index == window->n_dimensions) {
        Hlo__WindowDimension **slot =
            ir_push(scanner->arena, &window->dimensions, &window->n_dimensions, sizeof *slot);
        if (!slot || !(*slot = ir_new_message(scanner->arena, &hlo__window_dimension__descriptor))) {
            return ir_scan_memory(scanner);
        }
        (*slot)->size = (*slot)->stride = (*slot)->window_dilation = (*slot)->base_dilation = 1;
    }
    *dimension = window->dimensions[index];
    return AM_OK;
}

/* Reads a key of a window. `*count` dimensions are known from an earlier key; 0: none. */
static AmStatus read_window_key(IrScanner *scanner, Hlo__Window *window, size_t key, size_t *count) {
    size_t index = 0;
    int64_t start = scanner->at;
    do {
        Hlo__WindowDimension *dimension = NULL;
        int64_t value;
        TRY(window_dimension(scanner, window, index++, &dimension));
        TRY(ir_scan_integer(scanner, &value));
        char *field = (char *)dimension + WINDOW_KEYS[key].field;
        if (WINDOW_KEYS[key].is_boolean) {
            *(protobuf_c_boolean *)(void *)field = value != 0;
        } else {
            *(int64_t *)(void *)field = value;
        }
        if (key == PAD_KEY) {
            TRY(ir_scan_expect(scanner, "_"));
            TRY(ir_scan_integer(scanner, &dimension->padding_high));
        }
    } while (ir_scan_accept_here(scanner, 'x'));
    if (*count == 0) *count = index;
    if (*count == index) return AM_OK;
    return ir_scan_fail(scanner, start, "%s has %zu dimensions, expected %zu as the others have",
                        WINDOW_KEYS[key].name, index, *count);
}

static AmStatus read_window(IrTextReader *reader, const IrAttributeRow *row, void *part, void *field) {
    (void)row, (void)part;
    IrScanner *scanner = &reader->scanner;
    Hlo__Window *window = ir_new_message(scanner->arena, &hlo__window__descriptor);
    if (!window) return ir_scan_memory(scanner);
    *(Hlo__Window **)field = window;
    size_t count = 0;
    TRY(ir_scan_expect(scanner, "{"));
    while (!ir_scan_accept(scanner, "}")) {
        int64_t start = scanner->at;
        IrWord word;
        size_t key = 0;
        TRY(ir_scan_word(scanner, "a key of the window", &word));
        while (key < WINDOW_KEY_COUNT && !ir_word_is(word, WINDOW_KEYS[key].name)) key++;
        if (key == WINDOW_KEY_COUNT) return ir_scan_fail(scanner, start, "unknown key of a window");
        TRY(ir_scan_expect(scanner, "="));
        TRY(read_window_key(scanner, window, key, &count));
    }
    return AM_OK;
}

static int64_t window_value(const Hlo__WindowDimension *dimension, size_t key) {
    const char *field = (const char *)dimension + WINDOW_KEYS[key].field;
    if (WINDOW_KEYS[key].is_boolean) return *(const protobuf_c_boolean *)(const void *)field != 0;
    int64_t value = *(const int64_t *)(const void *)field;
    return value == 0 && WINDOW_KEYS[key].usual == 1 ? 1 : value;
}

static void write_window(IrTextWriter *writer, const IrAttributeRow *row, const void *part,
                         const void *field) {
    (void)row, (void)part;
    const Hlo__Window *window = *(Hlo__Window *const *)field;
    Text *out = writer->out;
    text_append_string(out, "{");
    for (size_t key = 0; key < WINDOW_KEY_COUNT; key++) {
        bool is_usual = true;
        for (size_t i = 0; i < window->n_dimensions; i++)
            is_usual &= window_value(window->dimensions[i], key) == WINDOW_KEYS[key].usual &&
                        (key != PAD_KEY || window->dimensions[i]->padding_high == 0);
        if (is_usual) continue;
        text_append(out, key ? " %s=" : "%s=", WINDOW_KEYS[key].name);
        for (size_t i = 0; i < window->n_dimensions; i++) {
            text_append(out, i ? "x%lld" : "%lld", (long long)window_value(window->dimensions[i], key));
            if (key == PAD_KEY) text_append(out, "_%lld", (long long)window->dimensions[i]->padding_high);
        }
    }
    text_append_string(out, "}");
}
static bool has_no_window(const IrAttributeRow *row, const void *part, const void *field) {
    (void)row, (void)part;
    const Hlo__Window *window = *(Hlo__Window *const *)field;
    return !window || window->n_dimensions == 0;
}
const IrSyntax IR_SYNTAX_WINDOW = {read_window, write_window, has_no_window};

/* ---------------------------------------------------- Convolution dimensions */

/* One of the three groups of labels: the letters of its two named dimensions. */
typedef struct Labels {
    char letters[2];
    int64_t *named[2];
    size_t *count;
    int64_t **spatial;
} Labels;

static void label_groups(Hlo__ConvolutionDimensionNumbers *numbers, Labels groups[3]) {
    groups[0] = (Labels){{'b', 'f'},
                         {&numbers->input_batch_dimension, &numbers->input_feature_dimension},
                         &numbers->n_input_spatial_dimensions,
                         &numbers->input_spatial_dimensions};
    groups[1] =
        (Labels){{'i', 'o'},
                 {&numbers->kernel_input_feature_dimension, &numbers->kernel_output_feature_dimension},
                 &numbers->n_kernel_spatial_dimensions,
                 &numbers->kernel_spatial_dimensions};
    groups[2] = (Labels){{'b', 'f'},
                         {&numbers->output_batch_dimension, &numbers->output_feature_dimension},
                         &numbers->n_output_spatial_dimensions,
                         &numbers->output_spatial_dimensions};
}

/* Reads b01f: position i holds dimension letter i. Every named one and every digit below the number of
 * spatial dimensions occurs once; '?' stands for none. */
static AmStatus read_labels(IrScanner *scanner, const Labels *labels) {
    int64_t start = scanner->at, positions[IR_MAX_RANK], named[2] = {-1, -1};
    size_t count = 0;
    for (int32_t i = 0; i < IR_MAX_RANK; i++) positions[i] = -1;
    for (int64_t at = start; scanner->at < scanner->length; scanner->at++) {
        char letter = scanner->text[scanner->at];
        int64_t *slot = letter == labels->letters[0]     ? &named[0]
                        : letter == labels->letters[1]   ? &named[1]
                        : letter >= '0' && letter <= '9' ? &positions[letter - '0']
                                                         : NULL;
        if (!slot && letter != '?') break;
        if (slot && *slot >= 0) return ir_scan_fail(scanner, scanner->at, "'%c' occurs twice", letter);
        if (slot) *slot = scanner->at - at;
        count += letter >= '0' && letter <= '9';
    }
    *labels->spatial = ARENA_ARRAY(scanner->arena, int64_t, count ? count : 1);
    if (!*labels->spatial) return ir_scan_memory(scanner);
    *labels->count = count;
    bool is_whole = named[0] >= 0 && named[1] >= 0;
    for (size_t i = 0; i < count; i++) {
        (*labels->spatial)[i] = positions[i];
        is_whole = is_whole && positions[i] >= 0;
    }
    if (!is_whole) {
        return ir_scan_fail(scanner, start, "expected the labels '%c', '%c' and 0, 1, ...",
                            labels->letters[0], labels->letters[1]);
    }
    *labels->named[0] = named[0];
    *labels->named[1] = named[1];
    return AM_OK;
}

static AmStatus read_dimension_labels(IrTextReader *reader, const IrAttributeRow *row, void *part,
                                      void *field) {
    (void)row, (void)part;
    IrScanner *scanner = &reader->scanner;
    Hlo__ConvolutionDimensionNumbers *numbers =
        ir_new_message(scanner->arena, &hlo__convolution_dimension_numbers__descriptor);
    if (!numbers) return ir_scan_memory(scanner);
    *(Hlo__ConvolutionDimensionNumbers **)field = numbers;
    static const char *const behind[3] = {"_", "->", ""};
    Labels groups[3];
    label_groups(numbers, groups);
    ir_scan_space(scanner);
    for (int i = 0; i < 3; i++) {
        TRY(read_labels(scanner, &groups[i]));
        TRY(ir_scan_expect(scanner, behind[i]));
    }
    return AM_OK;
}

/* Returns the rank that has a dimension at this position, too: '?' stands between labels. */
static size_t reach(size_t rank, int64_t position) {
    return position >= (int64_t)rank && position < IR_MAX_RANK ? (size_t)position + 1 : rank;
}

static void write_labels(Text *out, const Labels *labels) {
    char letters[IR_MAX_RANK + 1];
    size_t rank = *labels->count + 2;
    for (int i = 0; i < 2; i++) rank = reach(rank, *labels->named[i]);
    for (size_t i = 0; i < *labels->count; i++) rank = reach(rank, (*labels->spatial)[i]);
    if (rank > IR_MAX_RANK) rank = IR_MAX_RANK;
    memset(letters, '?', sizeof letters);
    for (int i = 0; i < 2; i++) {
        int64_t position = *labels->named[i];
        if (position >= 0 && position < (int64_t)rank) letters[position] = labels->letters[i];
    }
    for (size_t i = 0; i < *labels->count && i < 10; i++) {
        int64_t position = (*labels->spatial)[i];
        if (position >= 0 && position < (int64_t)rank) letters[position] = (char)('0' + i);
    }
    text_append_bytes(out, letters, rank);
}

static void write_dimension_labels(IrTextWriter *writer, const IrAttributeRow *row, const void *part,
                                   const void *field) {
    (void)row, (void)part;
    Labels groups[3];
    label_groups(*(Hlo__ConvolutionDimensionNumbers *const *)field, groups);
    write_labels(writer->out, &groups[0]);
    text_append_string(writer->out, "_");
    write_labels(writer->out, &groups[1]);
    text_append_string(writer->out, "->");
    write_labels(writer->out, &groups[2]);
}
static bool is_absent(const IrAttributeRow *row, const void *part, const void *field) {
    (void)row, (void)part;
    return !*(void *const *)field;
}
const IrSyntax IR_SYNTAX_DIMENSION_LABELS = {read_dimension_labels, write_dimension_labels, is_absent};

/* --------------------------------------------------------- Slices and padding */

static AmStatus read_slices(IrTextReader *reader, const IrAttributeRow *row, void *part, void *field) {
    (void)row, (void)field;
    IrScanner *scanner = &reader->scanner;
    Hlo__HloInstructionProto *instruction = part;
    TRY(ir_scan_expect(scanner, "{"));
    if (ir_scan_accept(scanner, "}")) return AM_OK;
    do {
        Hlo__HloInstructionProto__SliceDimensions **slot = ir_push(
            scanner->arena, &instruction->slice_dimensions, &instruction->n_slice_dimensions, sizeof *slot);
        if (!slot || !(*slot = ir_new_message(scanner->arena,
                                              &hlo__hlo_instruction_proto__slice_dimensions__descriptor))) {
            return ir_scan_memory(scanner);
        }
        TRY(ir_scan_expect(scanner, "["));
        TRY(ir_scan_integer(scanner, &(*slot)->start));
        TRY(ir_scan_expect(scanner, ":"));
        TRY(ir_scan_integer(scanner, &(*slot)->limit));
        (*slot)->stride = 1;
        if (ir_scan_accept(scanner, ":")) TRY(ir_scan_integer(scanner, &(*slot)->stride));
        TRY(ir_scan_expect(scanner, "]"));
    } while (ir_scan_accept(scanner, ","));
    return ir_scan_expect(scanner, "}");
}
static void write_slices(IrTextWriter *writer, const IrAttributeRow *row, const void *part,
                         const void *field) {
    (void)row, (void)field;
    const Hlo__HloInstructionProto *instruction = part;
    text_append_string(writer->out, "{");
    for (size_t i = 0; i < instruction->n_slice_dimensions; i++) {
        const Hlo__HloInstructionProto__SliceDimensions *slice = instruction->slice_dimensions[i];
        text_append(writer->out, i ? ", [%lld:%lld" : "[%lld:%lld", (long long)slice->start,
                    (long long)slice->limit);
        if (slice->stride > 1) text_append(writer->out, ":%lld", (long long)slice->stride);
        text_append_string(writer->out, "]");
    }
    text_append_string(writer->out, "}");
}
static bool has_no_slices(const IrAttributeRow *row, const void *part, const void *field) {
    (void)row, (void)field;
    return ((const Hlo__HloInstructionProto *)part)->n_slice_dimensions == 0;
}
const IrSyntax IR_SYNTAX_SLICES = {read_slices, write_slices, has_no_slices};

static AmStatus read_padding(IrTextReader *reader, const IrAttributeRow *row, void *part, void *field) {
    (void)row, (void)part;
    IrScanner *scanner = &reader->scanner;
    Hlo__PaddingConfig *padding = ir_new_message(scanner->arena, &hlo__padding_config__descriptor);
    if (!padding) return ir_scan_memory(scanner);
    *(Hlo__PaddingConfig **)field = padding;
    char next = ir_scan_peek(scanner);
    if (next != '-' && (next < '0' || next > '9')) return AM_OK;
    do {
        Hlo__PaddingConfig__PaddingConfigDimension **slot =
            ir_push(scanner->arena, &padding->dimensions, &padding->n_dimensions, sizeof *slot);
        if (!slot || !(*slot = ir_new_message(scanner->arena,
                                              &hlo__padding_config__padding_config_dimension__descriptor))) {
            return ir_scan_memory(scanner);
        }
        TRY(ir_scan_integer(scanner, &(*slot)->edge_padding_low));
        TRY(ir_scan_expect(scanner, "_"));
        TRY(ir_scan_integer(scanner, &(*slot)->edge_padding_high));
        if (ir_scan_accept_here(scanner, '_')) TRY(ir_scan_integer(scanner, &(*slot)->interior_padding));
    } while (ir_scan_accept_here(scanner, 'x'));
    return AM_OK;
}
static void write_padding(IrTextWriter *writer, const IrAttributeRow *row, const void *part,
                          const void *field) {
    (void)row, (void)part;
    const Hlo__PaddingConfig *padding = *(Hlo__PaddingConfig *const *)field;
    for (size_t i = 0; i < padding->n_dimensions; i++) {
        const Hlo__PaddingConfig__PaddingConfigDimension *dimension = padding->dimensions[i];
        text_append(writer->out, i ? "x%lld_%lld" : "%lld_%lld", (long long)dimension->edge_padding_low,
                    (long long)dimension->edge_padding_high);
        if (dimension->interior_padding) {
            text_append(writer->out, "_%lld", (long long)dimension->interior_padding);
        }
    }
}
const IrSyntax IR_SYNTAX_PADDING = {read_padding, write_padding, is_absent};

/* -------------------------------------------------------------- Device groups */

static AmStatus read_iota_groups(IrScanner *scanner, Hlo__HloInstructionProto *instruction) {
    Hlo__IotaReplicaGroupListProto *list =
        ir_new_message(scanner->arena, &hlo__iota_replica_group_list_proto__descriptor);
    if (!list) return ir_scan_memory(scanner);
    instruction->replica_group_list_case =
        HLO__HLO_INSTRUCTION_PROTO__REPLICA_GROUP_LIST_IOTA_COLLECTIVE_DEVICE_LIST;
    instruction->iota_collective_device_list = list;
    size_t count;
    int64_t *sizes, *order = NULL, start = scanner->at;
    TRY(ir_scan_integers(scanner, "[", "]", &count, &sizes));
    if (count != 2) return ir_scan_fail(scanner, start, "expected [groups,devices]");
    list->num_replica_groups = sizes[0];
    list->num_devices_per_group = sizes[1];
    TRY(ir_scan_expect(scanner, "<="));
    TRY(ir_scan_integers(scanner, "[", "]", &list->n_iota_reshape_dims, &list->iota_reshape_dims));
    if (ir_scan_accept(scanner, "T")) TRY(ir_scan_integers(scanner, "(", ")", &count, &order));
    if (!order) count = list->n_iota_reshape_dims;
    list->iota_transpose_perm = ARENA_ARRAY(scanner->arena, int32_t, count ? count : 1);
    if (!list->iota_transpose_perm) return ir_scan_memory(scanner);
    list->n_iota_transpose_perm = count;
    for (size_t i = 0; i < count; i++)
        list->iota_transpose_perm[i] = (int32_t)(order ? order[i] : (int64_t)i);
    return AM_OK;
}

/* Makes the groups of a mesh: devices that differ in the named axes alone. */
static AmStatus read_mesh_groups(IrScanner *scanner, Hlo__HloInstructionProto *instruction) {
    Hlo__MeshAxesReplicaGroupListProto *list =
        ir_new_message(scanner->arena, &hlo__mesh_axes_replica_group_list_proto__descriptor);
    if (!list) return ir_scan_memory(scanner);
    instruction->replica_group_list_case =
        HLO__HLO_INSTRUCTION_PROTO__REPLICA_GROUP_LIST_MESH_AXES_REPLICA_GROUP_LIST;
    instruction->mesh_axes_replica_group_list = list;
    bool is_open;
    TRY(ir_read_mesh(scanner, &list->mesh));
    return ir_read_axes(scanner, list->mesh, &list->n_axes, &list->axes, &is_open);
}

static AmStatus read_groups(IrTextReader *reader, const IrAttributeRow *row, void *part, void *field) {
    (void)row, (void)field;
    IrScanner *scanner = &reader->scanner;
    Hlo__HloInstructionProto *instruction = part;
    if (ir_scan_peek(scanner) == '[') return read_iota_groups(scanner, instruction);
    if (ir_scan_peek(scanner) == 'm') return read_mesh_groups(scanner, instruction);
    Hlo__CollectiveDeviceListProto *list =
        ir_new_message(scanner->arena, &hlo__collective_device_list_proto__descriptor);
    if (!list) return ir_scan_memory(scanner);
    instruction->replica_group_list_case =
        HLO__HLO_INSTRUCTION_PROTO__REPLICA_GROUP_LIST_COLLECTIVE_DEVICE_LIST;
    instruction->collective_device_list = list;
    TRY(ir_scan_expect(scanner, "{"));
    if (ir_scan_accept(scanner, "}")) return AM_OK;
    do {
        Hlo__ReplicaGroup **group =
            ir_push(scanner->arena, &list->replica_groups, &list->n_replica_groups, sizeof *group);
        if (!group || !(*group = ir_new_message(scanner->arena, &hlo__replica_group__descriptor))) {
            return ir_scan_memory(scanner);
        }
        TRY(ir_scan_integers(scanner, "{", "}", &(*group)->n_replica_ids, &(*group)->replica_ids));
    } while (ir_scan_accept(scanner, ","));
    return ir_scan_expect(scanner, "}");
}

static void write_iota_groups(Text *out, const Hlo__IotaReplicaGroupListProto *list) {
    text_append(out, "[%lld,%lld]<=[", (long long)list->num_replica_groups,
                (long long)list->num_devices_per_group);
    ir_write_integers(out, list->n_iota_reshape_dims, list->iota_reshape_dims);
    text_append_string(out, "]");
    for (size_t i = 0; list->n_iota_transpose_perm > 1 && i < list->n_iota_transpose_perm; i++) {
        text_append(out, i ? ",%d" : "T(%d", (int)list->iota_transpose_perm[i]);
    }
    if (list->n_iota_transpose_perm > 1) text_append_string(out, ")");
}

static void write_groups(IrTextWriter *writer, const IrAttributeRow *row, const void *part,
                         const void *field) {
    (void)row, (void)field;
    const Hlo__HloInstructionProto *instruction = part;
    size_t count = instruction->n_replica_groups;
    Hlo__ReplicaGroup *const *groups = instruction->replica_groups;
    const Hlo__IotaReplicaGroupListProto *iota = NULL;
    switch (instruction->replica_group_list_case) {
    case HLO__HLO_INSTRUCTION_PROTO__REPLICA_GROUP_LIST_COLLECTIVE_DEVICE_LIST:
        iota = instruction->collective_device_list->iota_replica_group_list;
        if (count == 0) {
            count = instruction->collective_device_list->n_replica_groups;
            groups = instruction->collective_device_list->replica_groups;
        }
        break;
    case HLO__HLO_INSTRUCTION_PROTO__REPLICA_GROUP_LIST_IOTA_COLLECTIVE_DEVICE_LIST:
        iota = instruction->iota_collective_device_list;
        break;
    case HLO__HLO_INSTRUCTION_PROTO__REPLICA_GROUP_LIST_MESH_AXES_REPLICA_GROUP_LIST: {
        static const Hlo__MeshProto no_mesh = HLO__MESH_PROTO__INIT;
        const Hlo__MeshAxesReplicaGroupListProto *list = instruction->mesh_axes_replica_group_list;
        const Hlo__MeshProto *mesh = list->mesh ? list->mesh : &no_mesh;
        ir_write_mesh(writer->out, mesh);
        text_append_string(writer->out, " ");
        ir_write_axes(writer->out, mesh, list->n_axes, list->axes, false);
        return;
    }
    default: break;
    }
    if (iota) {
        write_iota_groups(writer->out, iota);
        return;
    }
    text_append_string(writer->out, "{");
    for (size_t i = 0; i < count; i++) {
        text_append_string(writer->out, i ? ",{" : "{");
        ir_write_integers(writer->out, groups[i]->n_replica_ids, groups[i]->replica_ids);
        text_append_string(writer->out, "}");
    }
    text_append_string(writer->out, "}");
}
static bool has_no_groups(const IrAttributeRow *row, const void *part, const void *field) {
    (void)row, (void)field;
    const Hlo__HloInstructionProto *instruction = part;
    return instruction->n_replica_groups == 0 &&
           instruction->replica_group_list_case == HLO__HLO_INSTRUCTION_PROTO__REPLICA_GROUP_LIST__NOT_SET;
}
const IrSyntax IR_SYNTAX_GROUPS = {read_groups, write_groups, has_no_groups};

static AmStatus read_pairs(IrTextReader *reader, const IrAttributeRow *row, void *part, void *field) {
    (void)row, (void)field;
    IrScanner *scanner = &reader->scanner;
    Hlo__HloInstructionProto *instruction = part;
    TRY(ir_scan_expect(scanner, "{"));
    if (ir_scan_accept(scanner, "}")) return AM_OK;
    do {
        Hlo__SourceTarget **pair = ir_push(scanner->arena, &instruction->source_target_pairs,
                                           &instruction->n_source_target_pairs, sizeof *pair);
        if (!pair || !(*pair = ir_new_message(scanner->arena, &hlo__source_target__descriptor))) {
            return ir_scan_memory(scanner);
        }
        TRY(ir_scan_expect(scanner, "{"));
        TRY(ir_scan_integer(scanner, &(*pair)->source));
        TRY(ir_scan_expect(scanner, ","));
        TRY(ir_scan_integer(scanner, &(*pair)->target));
        TRY(ir_scan_expect(scanner, "}"));
    } while (ir_scan_accept(scanner, ","));
    return ir_scan_expect(scanner, "}");
}
static void write_pairs(IrTextWriter *writer, const IrAttributeRow *row, const void *part,
                        const void *field) {
    (void)row, (void)field;
    const Hlo__HloInstructionProto *instruction = part;
    text_append_string(writer->out, "{");
    for (size_t i = 0; i < instruction->n_source_target_pairs; i++) {
        const Hlo__SourceTarget *pair = instruction->source_target_pairs[i];
        text_append(writer->out, i ? ",{%lld,%lld}" : "{%lld,%lld}", (long long)pair->source,
                    (long long)pair->target);
    }
    text_append_string(writer->out, "}");
}
static bool has_no_pairs(const IrAttributeRow *row, const void *part, const void *field) {
    (void)row, (void)field;
    return ((const Hlo__HloInstructionProto *)part)->n_source_target_pairs == 0;
}
const IrSyntax IR_SYNTAX_PAIRS = {read_pairs, write_pairs, has_no_pairs};

/* Reads slice_sizes={{2,8},{1,4}} of a collective-permute that moves slices. The message has one list, which
 * the numbers of start indices in operand 2 divide. */
static AmStatus read_slice_sizes(IrTextReader *reader, const IrAttributeRow *row, void *part, void *field) {
    (void)row, (void)field;
    IrScanner *scanner = &reader->scanner;
    Hlo__HloInstructionProto *instruction = part;
    TRY(ir_scan_expect(scanner, "{"));
    if (ir_scan_accept(scanner, "}")) return AM_OK;
    do {
        size_t count;
        int64_t *sizes;
        TRY(ir_scan_integers(scanner, "{", "}", &count, &sizes));
        for (size_t i = 0; i < count; i++) {
            int64_t *size = ir_push(scanner->arena, &instruction->dynamic_slice_sizes,
                                    &instruction->n_dynamic_slice_sizes, sizeof *size);
            if (!size) return ir_scan_memory(scanner);
            *size = sizes[i];
        }
    } while (ir_scan_accept(scanner, ","));
    return ir_scan_expect(scanner, "}");
}
/* Writes the slices of a tuple of start indices: one for every innermost tuple, which has an index for each
 * dimension of the slice. */
static void write_moved_slices(IrTextWriter *writer, const Hlo__HloInstructionProto *instruction,
                               const Hlo__ShapeProto *starts, size_t *at) {
    size_t left = instruction->n_dynamic_slice_sizes - *at, rank = left;
    if (starts && starts->n_tuple_shapes > 0 && starts->tuple_shapes[0]->n_tuple_shapes > 0) {
        for (size_t k = 0; k < starts->n_tuple_shapes; k++)
            write_moved_slices(writer, instruction, starts->tuple_shapes[k], at);
        return;
    }
    if (left == 0) return;
    if (starts && starts->n_tuple_shapes > 0 && starts->n_tuple_shapes < left) rank = starts->n_tuple_shapes;
    text_append_string(writer->out, *at ? ",{" : "{");
    ir_write_integers(writer->out, rank, instruction->dynamic_slice_sizes + *at);
    text_append_string(writer->out, "}");
    *at += rank;
}
static void write_slice_sizes(IrTextWriter *writer, const IrAttributeRow *row, const void *part,
                              const void *field) {
    (void)row, (void)field;
    const Hlo__HloInstructionProto *instruction = part;
    int32_t starts =
        instruction->n_operand_ids > 2 ? ir_writer_instruction(writer, instruction->operand_ids[2]) : -1;
    size_t at = 0;
    text_append_string(writer->out, "{");
    write_moved_slices(writer, instruction,
                       starts < 0 ? NULL : writer->computation->instructions[starts]->shape, &at);
    write_moved_slices(writer, instruction, NULL, &at); /* those without start indices */
    text_append_string(writer->out, "}");
}
static bool has_no_slice_sizes(const IrAttributeRow *row, const void *part, const void *field) {
    (void)row, (void)field;
    return ((const Hlo__HloInstructionProto *)part)->n_dynamic_slice_sizes == 0;
}
const IrSyntax IR_SYNTAX_SLICE_SIZES = {read_slice_sizes, write_slice_sizes, has_no_slice_sizes};

/* ---------------------------------------------------------- Operand aliasing */

static AmStatus read_operand_aliases(IrTextReader *reader, const IrAttributeRow *row, void *part,
                                     void *field) {
    (void)row, (void)field;
    IrScanner *scanner = &reader->scanner;
    Hlo__HloInstructionProto *instruction = part;
    TRY(ir_scan_expect(scanner, "{"));
    if (ir_scan_accept(scanner, "}")) return AM_OK;
    do {
        Hlo__OutputOperandAliasing **alias = ir_push(scanner->arena, &instruction->output_operand_aliasing,
                                                     &instruction->n_output_operand_aliasing, sizeof *alias);
        if (!alias || !(*alias = ir_new_message(scanner->arena, &hlo__output_operand_aliasing__descriptor))) {
            return ir_scan_memory(scanner);
        }
        TRY(ir_scan_integers(scanner, "{", "}", &(*alias)->n_output_shape_index,
                             &(*alias)->output_shape_index));
        TRY(ir_scan_expect(scanner, ":"));
        TRY(ir_scan_expect(scanner, "("));
        TRY(ir_scan_integer(scanner, &(*alias)->operand_index));
        TRY(ir_scan_expect(scanner, ","));
        TRY(ir_scan_integers(scanner, "{", "}", &(*alias)->n_operand_shape_index,
                             &(*alias)->operand_shape_index));
        TRY(ir_scan_expect(scanner, ")"));
    } while (ir_scan_accept(scanner, ","));
    return ir_scan_expect(scanner, "}");
}
static void write_operand_aliases(IrTextWriter *writer, const IrAttributeRow *row, const void *part,
                                  const void *field) {
    (void)row, (void)field;
    const Hlo__HloInstructionProto *instruction = part;
    Text *out = writer->out;
    text_append_string(out, "{");
    for (size_t i = 0; i < instruction->n_output_operand_aliasing; i++) {
        const Hlo__OutputOperandAliasing *alias = instruction->output_operand_aliasing[i];
        text_append_string(out, i ? ", {" : "{");
        ir_write_integers(out, alias->n_output_shape_index, alias->output_shape_index);
        text_append(out, "}: (%lld, {", (long long)alias->operand_index);
        ir_write_integers(out, alias->n_operand_shape_index, alias->operand_shape_index);
        text_append_string(out, "})");
    }
    text_append_string(out, "}");
}
static bool has_no_operand_aliases(const IrAttributeRow *row, const void *part, const void *field) {
    (void)row, (void)field;
    return ((const Hlo__HloInstructionProto *)part)->n_output_operand_aliasing == 0;
}
const IrSyntax IR_SYNTAX_OPERAND_ALIASES = {read_operand_aliases, write_operand_aliases,
                                            has_no_operand_aliases};

/* Reads parameter_replication={true,false}: one per leaf of the parameter. */
static AmStatus read_replication(IrTextReader *reader, const IrAttributeRow *row, void *part, void *field) {
    (void)row, (void)part;
    IrScanner *scanner = &reader->scanner;
    Hlo__ParameterReplication *replication =
        ir_new_message(scanner->arena, &hlo__parameter_replication__descriptor);
    if (!replication) return ir_scan_memory(scanner);
    *(Hlo__ParameterReplication **)field = replication;
    TRY(ir_scan_expect(scanner, "{"));
    if (ir_scan_accept(scanner, "}")) return AM_OK;
    do {
        bool value;
        TRY(ir_scan_boolean(scanner, &value));
        protobuf_c_boolean *slot = ir_push(scanner->arena, &replication->replicated_at_leaf_buffers,
                                           &replication->n_replicated_at_leaf_buffers, sizeof *slot);
        if (!slot) return ir_scan_memory(scanner);
        *slot = value;
    } while (ir_scan_accept(scanner, ","));
    return ir_scan_expect(scanner, "}");
}
static void write_replication(IrTextWriter *writer, const IrAttributeRow *row, const void *part,
                              const void *field) {
    (void)row, (void)part;
    const Hlo__ParameterReplication *replication = *(Hlo__ParameterReplication *const *)field;
    text_append_string(writer->out, "{");
    for (size_t i = 0; i < replication->n_replicated_at_leaf_buffers; i++) {
        if (i) text_append_string(writer->out, ",");
        text_append_string(writer->out, replication->replicated_at_leaf_buffers[i] ? "true" : "false");
    }
    text_append_string(writer->out, "}");
}
const IrSyntax IR_SYNTAX_REPLICATION = {read_replication, write_replication, is_absent};

/* Reads domain={kind="sharding", entry={..}, exit={..}}: a border between shardings. The entry of the text
 * (the users' side) is the exit of the message, and vice versa. */
static AmStatus read_domain(IrTextReader *reader, const IrAttributeRow *row, void *part, void *field) {
    (void)row, (void)field;
    IrScanner *scanner = &reader->scanner;
    Hlo__HloInstructionProto *instruction = part;
    ProtobufCBinaryData kind;
    static const char *const marks[] = {"{", "kind", "="};
    for (int i = 0; i < 3; i++) TRY(ir_scan_expect(scanner, marks[i]));
    TRY(ir_scan_string(scanner, &kind));
    TRY(ir_scan_expect(scanner, ","));
    TRY(ir_scan_expect(scanner, "entry="));
    TRY(ir_read_sharding(scanner, &instruction->domain_exit_sharding));
    TRY(ir_scan_expect(scanner, ","));
    TRY(ir_scan_expect(scanner, "exit="));
    TRY(ir_read_sharding(scanner, &instruction->domain_entry_sharding));
    return ir_scan_expect(scanner, "}");
}
static void write_domain(IrTextWriter *writer, const IrAttributeRow *row, const void *part,
                         const void *field) {
    (void)row, (void)field;
    const Hlo__HloInstructionProto *instruction = part;
    text_append_string(writer->out, "{kind=\"sharding\", entry=");
    ir_write_sharding(writer->out, instruction->domain_exit_sharding);
    text_append_string(writer->out, ", exit=");
    ir_write_sharding(writer->out, instruction->domain_entry_sharding);
    text_append_string(writer->out, "}");
}
static bool has_no_domain(const IrAttributeRow *row, const void *part, const void *field) {
    (void)row, (void)field;
    const Hlo__HloInstructionProto *instruction = part;
    return !instruction->domain_entry_sharding || !instruction->domain_exit_sharding;
}
const IrSyntax IR_SYNTAX_DOMAIN = {read_domain, write_domain, has_no_domain};

/* cross_program_prefetch_index=0: present or absent, 0 being a value like others. */
#define PREFETCH_SET \
    HLO__HLO_INSTRUCTION_PROTO__OPTIONAL_CROSS_PROGRAM_PREFETCH_INDEX_CROSS_PROGRAM_PREFETCH_INDEX
static AmStatus read_prefetch(IrTextReader *reader, const IrAttributeRow *row, void *part, void *field) {
    ((Hlo__HloInstructionProto *)part)->optional_cross_program_prefetch_index_case = PREFETCH_SET;
    return IR_SYNTAX_INTEGER32.read(reader, row, part, field);
}
static void write_prefetch(IrTextWriter *writer, const IrAttributeRow *row, const void *part,
                           const void *field) {
    IR_SYNTAX_INTEGER32.write(writer, row, part, field);
}
static bool has_no_prefetch(const IrAttributeRow *row, const void *part, const void *field) {
    (void)row, (void)field;
    const Hlo__HloInstructionProto *instruction = part;
    return instruction->optional_cross_program_prefetch_index_case != PREFETCH_SET;
}
const IrSyntax IR_SYNTAX_PREFETCH = {read_prefetch, write_prefetch, has_no_prefetch};
