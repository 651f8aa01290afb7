/* The hash of a canonical module: SHA-256 over the parts that determine its results.
 *
 * Every value enters the digest as a 64-bit little-endian number or as a length and bytes, so that
 * two modules never share an encoding. Instructions are hashed in canonical order and refer to
 * their operands by index. Computations are hashed callees first, and an instruction refers to a
 * computation by its digest; the names and the order of computations therefore do not matter.
 * Layouts, names, ids, metadata, shardings and front-end attributes are omitted. Fields that one
 * encoding writes and another omits as defaults are omitted too. The payload of a NaN is omitted
 * because JSON cannot express it.
 */
#include <stdatomic.h>
#include <string.h>

#include "base/hash.h"
#include "base/system/parallel.h"
#include "ir/canonical/canonical.h"
#include "ir/canonical/hash_encoder.h"
#include "ir/canonical/simplify.h"

typedef struct Digest {
    bool made;
    char hex[65];
} Digest;

static void add_shape(IrHashEncoder *encoder, const IrShape *shape) {
    ir_encode_integer(encoder, shape->type);
    ir_encode_integer(encoder, shape->rank);
    for (int32_t d = 0; d < shape->rank; d++) {
        if (shape->type == DTYPE_TUPLE) add_shape(encoder, &shape->elements[d]);
        else ir_encode_integer(encoder, shape->dimensions[d]);
    }
}

/* Returns the type of a comparison, which follows from its operands where it is left out. */
static const char *comparison_type(const IrAttributes *attributes, Dtype operand) {
    if (attributes->comparison_type && *attributes->comparison_type) return attributes->comparison_type;
    if (dtype_is_floating(operand) || dtype_is_complex(operand)) return "FLOAT";
    return dtype_is_signed(operand) ? "SIGNED" : "UNSIGNED";
}

/* A large constant is hashed once, however often inlining has copied its instruction. */
#define LARGE_LITERAL 4096

typedef struct LiteralDigest {
    const IrLiteral *literal; /* NULL: free slot */
    char hex[65];
} LiteralDigest;

/* State shared by all computations of a module. */
typedef struct Hasher {
    const IrModule *module;
    Digest *digests;         /* per computation */
    LiteralDigest *literals; /* open-addressed by address */
    uint64_t literal_mask;   /* number of slots - 1 */
    const int32_t
        *rank; /* [entry instruction] its number among those that are encoded, -1: left out; or NULL */
    const int32_t *number; /* [entry parameter] likewise */
    IrHashEncoder encoder; /* of the computation whose callees are done */
    bool failed;           /* a part has no digest: there was no memory */
} Hasher;

/* Copies values to out[bytes], with one NaN for all; bytes <= LARGE_LITERAL, entire values. */
static const char *plain_values(char *out, const char *values, size_t bytes, Dtype type) {
    bool is_float = type == DTYPE_F32 || type == DTYPE_C64,
         is_double = type == DTYPE_F64 || type == DTYPE_C128;
    if (!is_float && !is_double) return values;
    memcpy(out, values, bytes);
    for (size_t at = 0; is_float && at < bytes; at += sizeof(float)) {
        float value;
        memcpy(&value, out + at, sizeof value);
        if (value != value) memcpy(out + at, &(uint32_t){0x7FC00000}, sizeof value);
    }
    for (size_t at = 0; is_double && at < bytes; at += sizeof(double)) {
        double value;
        memcpy(&value, out + at, sizeof value);
        if (value != value) memcpy(out + at, &(uint64_t){UINT64_C(0x7FF8) << 48}, sizeof value);
    }
    return out;
}

static void add_large_literal(Hasher *hasher, Dtype type, const IrLiteral *literal) {
    uint64_t at = hash_combine(0, (uint64_t)(uintptr_t)literal) & hasher->literal_mask;
    while (hasher->literals[at].literal && hasher->literals[at].literal != literal)
        at = (at + 1) & hasher->literal_mask;
    LiteralDigest *slot = &hasher->literals[at];
    if (!slot->literal) {
        Sha256 sha;
        sha256_begin(&sha);
        for (int64_t begin = 0; begin < literal->bytes; begin += LARGE_LITERAL) {
            char plain[LARGE_LITERAL];
            int64_t left = literal->bytes - begin;
            size_t bytes = left < LARGE_LITERAL ? (size_t)left : LARGE_LITERAL;
            sha256_add(&sha, plain_values(plain, (const char *)literal->data + begin, bytes, type), bytes);
        }
        sha256_end(&sha, slot->hex);
        hasher->failed = hasher->failed || !slot->hex[0];
        slot->literal = literal;
    }
    ir_encode_integer(&hasher->encoder, literal->bytes);
    ir_encode_string(&hasher->encoder, slot->hex);
}

static void add_literal(Hasher *hasher, const IrShape *shape, const IrLiteral *literal) {
    if (shape->type == DTYPE_TUPLE && literal->elements) {
        for (int32_t e = 0; e < shape->rank; e++)
            add_literal(hasher, &shape->elements[e], &literal->elements[e]);
    } else if (!literal->data) {
        ir_encode_string(&hasher->encoder, "elided");
    } else if (literal->bytes >= LARGE_LITERAL) {
        add_large_literal(hasher, shape->type, literal);
    } else {
        char plain[LARGE_LITERAL];
        size_t bytes = (size_t)literal->bytes;
        ir_encode_bytes(&hasher->encoder, plain_values(plain, literal->data, bytes, shape->type), bytes);
    }
}

static int64_t count_large_literals(const IrShape *shape, const IrLiteral *literal) {
    int64_t count = literal->bytes >= LARGE_LITERAL;
    for (int32_t e = 0; shape->type == DTYPE_TUPLE && literal->elements && e < shape->rank; e++)
        count += count_large_literals(&shape->elements[e], &literal->elements[e]);
    return count;
}

/* Makes a table with room for every large literal of the module. */
static LiteralDigest *make_literal_table(const IrModule *module, Arena *scratch, uint64_t *mask) {
    int64_t count = 0;
    for (int32_t i = 0; i < module->instruction_count; i++)
        if (module->instructions[i].literal)
            count += count_large_literals(&module->instructions[i].shape, module->instructions[i].literal);
    *mask = 1;
    while (*mask < 2 * (uint64_t)count) *mask = *mask * 2 + 1;
    return ARENA_ARRAY(scratch, LiteralDigest, *mask + 1);
}

/* Returns the number of an instruction within its computation. */
static int32_t place_of(const Hasher *hasher, int32_t instruction, int32_t first) {
    bool is_renumbered = hasher->rank && first == hasher->module->computations[hasher->module->entry].first;
    return is_renumbered ? hasher->rank[instruction - first] : instruction - first;
}

static void add_convolution(IrHashEncoder *encoder, const IrConvolution *convolution) {
    const int64_t numbers[] = {convolution->input_batch,          convolution->input_feature,
                               convolution->kernel_input_feature, convolution->kernel_output_feature,
                               convolution->output_batch,         convolution->output_feature,
                               convolution->feature_group_count,  convolution->batch_group_count};
    ir_encode_integers(encoder, numbers, sizeof numbers / sizeof *numbers);
    ir_encode_integers(encoder, convolution->input_spatial, convolution->spatial_count);
    ir_encode_integers(encoder, convolution->kernel_spatial, convolution->spatial_count);
    ir_encode_integers(encoder, convolution->output_spatial, convolution->spatial_count);
}

/* Adds the attributes of a gather or scatter whose operand has `operand_rank` dimensions. */
static void add_gather(IrHashEncoder *encoder, const IrGather *gather, int32_t operand_rank) {
    ir_encode_integers(encoder, gather->offset_dimensions, gather->offset_count);
    ir_encode_integers(encoder, gather->collapsed_dimensions, gather->collapsed_count);
    ir_encode_integers(encoder, gather->start_index_map, gather->index_map_count);
    ir_encode_integers(encoder, gather->operand_batching, gather->batching_count);
    ir_encode_integers(encoder, gather->indices_batching, gather->batching_count);
    ir_encode_integer(encoder, gather->index_vector_dimension);
    ir_encode_integers(encoder, gather->slice_sizes, operand_rank);
}

static void add_attributes(IrHashEncoder *encoder, const Hasher *hasher, const IrInstruction *instruction) {
    const IrAttributes *attributes = instruction->attributes;
    const IrShape *shape = &instruction->shape;
    const IrShape *operand =
        instruction->operand_count > 0 ? &hasher->module->instructions[instruction->operands[0]].shape : NULL;
    ir_encode_integers(encoder, attributes->dimensions, attributes->dimension_count);
    if (attributes->dot) {
        ir_encode_integers(encoder, attributes->dot->lhs_batch, attributes->dot->batch_count);
        ir_encode_integers(encoder, attributes->dot->rhs_batch, attributes->dot->batch_count);
        ir_encode_integers(encoder, attributes->dot->lhs_contracting, attributes->dot->contracting_count);
        ir_encode_integers(encoder, attributes->dot->rhs_contracting, attributes->dot->contracting_count);
    }
    if (attributes->convolution) add_convolution(encoder, attributes->convolution);
    ir_encode_integer(encoder, attributes->window_count);
    for (int32_t d = 0; d < attributes->window_count; d++) {
        const IrWindowDimension *window = &attributes->window[d];
        const int64_t numbers[] = {window->size,         window->stride,          window->padding_low,
                                   window->padding_high, window->window_dilation, window->base_dilation,
                                   window->reversal};
        ir_encode_integers(encoder, numbers, sizeof numbers / sizeof *numbers);
    }
    if (attributes->gather) add_gather(encoder, attributes->gather, operand ? operand->rank : 0);
    if (attributes->padding) {
        for (int32_t d = 0; d < shape->rank; d++) {
            const int64_t numbers[] = {attributes->padding[d].low, attributes->padding[d].high,
                                       attributes->padding[d].interior};
            ir_encode_integers(encoder, numbers, sizeof numbers / sizeof *numbers);
        }
    }
    ir_encode_integers(encoder, attributes->slice_start, shape->rank);
    ir_encode_integers(encoder, attributes->slice_limit, shape->rank);
    ir_encode_integers(encoder, attributes->slice_stride, shape->rank);
    ir_encode_integers(encoder, attributes->slice_sizes, shape->rank);
    if (instruction->opcode == IR_COMPARE && operand) {
        ir_encode_string(encoder, attributes->comparison);
        ir_encode_string(encoder, comparison_type(attributes, operand->type));
    }
    ir_encode_integer(encoder, attributes->tuple_index);
    const IrComputation *entry = &hasher->module->computations[hasher->module->entry];
    int64_t at = instruction - hasher->module->instructions;
    bool is_of_entry = at >= entry->first && at < entry->first + entry->count;
    bool is_renumbered = hasher->number && instruction->opcode == IR_PARAMETER && is_of_entry;
    ir_encode_integer(encoder, is_renumbered ? hasher->number[attributes->parameter_number]
                                             : attributes->parameter_number);
    ir_encode_string(encoder, attributes->custom_call_target);
    ir_encode_integer(encoder, attributes->is_stable);
    ir_encode_integer(encoder, attributes->indices_are_sorted);
    ir_encode_integer(encoder, attributes->unique_indices);
    ir_encode_integer(encoder, attributes->exponent_bits);
    ir_encode_integer(encoder, attributes->mantissa_bits);
    if (instruction->message) ir_encode_message(encoder, instruction->message);
}

static void add_instruction(Hasher *hasher, const IrInstruction *instruction, int32_t first) {
    IrHashEncoder *encoder = &hasher->encoder;
    ir_encode_string(encoder, instruction->opcode_name);
    add_shape(encoder, &instruction->shape);
    ir_encode_integer(encoder, instruction->operand_count);
    for (int32_t k = 0; k < instruction->operand_count; k++)
        ir_encode_integer(encoder, place_of(hasher, instruction->operands[k], first));
    ir_encode_integer(encoder, instruction->control_count);
    for (int32_t k = 0; k < instruction->control_count; k++)
        ir_encode_integer(encoder, place_of(hasher, instruction->control[k], first));
    ir_encode_integer(encoder, instruction->called_count);
    for (int32_t k = 0; k < instruction->called_count; k++)
        ir_encode_string(encoder, hasher->digests[instruction->called[k]].hex);
    add_attributes(encoder, hasher, instruction);
    if (instruction->literal) add_literal(hasher, &instruction->shape, instruction->literal);
}

/* Makes the digest of a computation, callees first. A canonical module has no
 * recursion and bounded nesting. */
static void hash_computation(Hasher *hasher, int32_t computation) {
    const IrModule *module = hasher->module;
    const IrComputation *body = &module->computations[computation];
    Digest *digest = &hasher->digests[computation];
    digest->made = true;
    for (int32_t i = body->first; i < body->first + body->count; i++) {
        const IrInstruction *instruction = &module->instructions[i];
        for (int32_t k = 0; k < instruction->called_count; k++)
            if (!hasher->digests[instruction->called[k]].made)
                hash_computation(hasher, instruction->called[k]);
    }
    ir_encode_begin(&hasher->encoder);
    int32_t encoded = 0;
    for (int32_t i = body->first; i < body->first + body->count; i++)
        encoded += place_of(hasher, i, body->first) >= 0;
    ir_encode_integer(&hasher->encoder, encoded);
    ir_encode_integer(&hasher->encoder, place_of(hasher, body->root, body->first));
    for (int32_t i = body->first; i < body->first + body->count; i++)
        if (place_of(hasher, i, body->first) >= 0)
            add_instruction(hasher, &module->instructions[i], body->first);
    ir_encode_end(&hasher->encoder, digest->hex);
    hasher->failed = hasher->failed || !digest->hex[0];
}

/* Donations in order of output and parameter, whatever their order in the file; false: no memory. */
static bool add_aliases(IrHashEncoder *encoder, const IrModule *module, Arena *scratch) {
    const IrShape *result = &module->instructions[module->computations[module->entry].root].shape;
    int32_t outputs = result->type == DTYPE_TUPLE ? result->rank : 0;
    int32_t *parameters = ARENA_ARRAY(scratch, int32_t, (int64_t)outputs + 1);
    if (!parameters) return false;
    for (int32_t a = 0; a < module->alias_count; a++) {
        int32_t output = module->aliases[a].output;
        if (output >= -1 && output < outputs) parameters[output + 1] = module->aliases[a].parameter + 1;
    }
    for (int32_t o = 0; o <= outputs; o++) {
        if (!parameters[o]) continue;
        ir_encode_integer(encoder, o - 1);
        ir_encode_integer(encoder, parameters[o] - 1);
    }
    return true;
}

/* Hashes the entry, with donations unless parameters are renumbered. */
static void hash_entry(Hasher *hasher, char hex[65], Arena *scratch) {
    const IrModule *canonical = hasher->module;
    hex[0] = '\0';
    hasher->digests = ARENA_ARRAY(scratch, Digest, canonical->computation_count);
    hasher->literals = make_literal_table(canonical, scratch, &hasher->literal_mask);
    if (!hasher->digests || !hasher->literals) return;
    hash_computation(hasher, canonical->entry);
    ir_encode_begin(&hasher->encoder);
    ir_encode_string(&hasher->encoder, "automap-hlo-1");
    ir_encode_string(&hasher->encoder, hasher->digests[canonical->entry].hex);
    bool is_whole = hasher->rank || add_aliases(&hasher->encoder, canonical, scratch);
    ir_encode_end(&hasher->encoder, hex);
    if (hasher->failed || !is_whole) hex[0] = '\0';
}

void ir_hash(const IrModule *canonical, char hex[65]) {
    Arena scratch = {0};
    Hasher hasher = {.module = canonical};
    hash_entry(&hasher, hex, &scratch);
    arena_free(&scratch);
}

void ir_hash_structure(const IrModule *canonical, char hex[65], Arena *arena, IrUnused *unused) {
    Arena scratch = {0};
    const IrComputation *entry = &canonical->computations[canonical->entry];
    bool *is_read = ARENA_ARRAY(&scratch, bool, entry->count + 1);
    int32_t *rank = ARENA_ARRAY(&scratch, int32_t, entry->count + 1);
    int32_t *number = ARENA_ARRAY(&scratch, int32_t, entry->parameter_count + 1);
    Hasher hasher = {.module = canonical, .rank = rank, .number = number};
    *unused =
        (IrUnused){.rows = arena_alloc(arena, sizeof *unused->rows * ((size_t)entry->parameter_count + 1))};
    hex[0] = '\0';
    if (!scratch.failed && unused->rows) {
        int32_t next = 0, next_number = 0;
        is_read[entry->root - entry->first] = true;
        for (int32_t i = entry->first; i < entry->first + entry->count; i++) {
            const IrInstruction *reader = &canonical->instructions[i];
            for (int32_t k = 0; k < reader->operand_count; k++)
                is_read[reader->operands[k] - entry->first] = true;
            for (int32_t k = 0; k < reader->control_count; k++)
                is_read[reader->control[k] - entry->first] = true;
        }
        for (int32_t i = 0; i < entry->count; i++) {
            bool is_left_out =
                canonical->instructions[entry->first + i].opcode == IR_PARAMETER && !is_read[i];
            rank[i] = is_left_out ? -1 : next++;
        }
        for (int32_t p = 0; p < entry->parameter_count; p++) {
            int32_t instruction = entry->parameters[p];
            bool is_left_out = instruction < 0 || rank[instruction - entry->first] < 0;
            number[p] = is_left_out ? -1 : next_number++;
            if (!is_left_out) continue;
            unused->rows[unused->count][0] = p;
            unused->rows[unused->count++][1] = instruction;
        }
        hash_entry(&hasher, hex, &scratch);
    }
    arena_free(&scratch);
}

/* ---- operators ---- */

/* Instructions of the entry that one thread hashes. */
enum { OPERATORS_OF_TASK = 4096 };

/* The digests of the entry's operators, by threads. */
typedef struct OperatorTasks {
    const Hasher *hasher; /* with the digests of all called computations */
    Digest *digests;      /* [instruction of the entry] */
    atomic_bool failed;
} OperatorTasks;

static void operator_task(void *user, int32_t k) {
    OperatorTasks *tasks = user;
    Hasher hasher = *tasks->hasher;
    IrHashEncoder *encoder = &hasher.encoder;
    const IrComputation *entry = &hasher.module->computations[hasher.module->entry];
    int32_t begin = k * OPERATORS_OF_TASK, end = begin + OPERATORS_OF_TASK;
    for (int32_t i = begin; i < end && i < entry->count; i++) {
        const IrInstruction *instruction = &hasher.module->instructions[entry->first + i];
        ir_encode_begin(encoder);
        ir_encode_string(encoder, instruction->opcode_name);
        add_shape(encoder, &instruction->shape);
        for (int32_t c = 0; c < instruction->called_count; c++)
            ir_encode_string(encoder, hasher.digests[instruction->called[c]].hex);
        if (instruction->opcode != IR_PARAMETER) add_attributes(encoder, &hasher, instruction);
        ir_encode_end(encoder, tasks->digests[i].hex);
        if (!tasks->digests[i].hex[0]) atomic_store(&tasks->failed, true);
    }
}

/* Makes the digests of opcode, shape, attributes and called computations of the entry's instructions, and
 * those of the computations. Returns [instruction of the entry]; NULL without memory. */
static Digest *digest_operators(Hasher *hasher, Arena *scratch) {
    const IrModule *module = hasher->module;
    const IrComputation *entry = &module->computations[module->entry];
    OperatorTasks tasks = {.hasher = hasher, .digests = ARENA_ARRAY(scratch, Digest, entry->count + 1)};
    hasher->digests = ARENA_ARRAY(scratch, Digest, module->computation_count);
    hasher->literals = make_literal_table(module, scratch, &hasher->literal_mask);
    if (scratch->failed) return NULL;
    for (int32_t i = entry->first; i < entry->first + entry->count; i++)
        for (int32_t k = 0; k < module->instructions[i].called_count; k++)
            if (!hasher->digests[module->instructions[i].called[k]].made)
                hash_computation(hasher, module->instructions[i].called[k]);
    parallel_for((entry->count + OPERATORS_OF_TASK - 1) / OPERATORS_OF_TASK, 0, operator_task, &tasks);
    return hasher->failed || atomic_load(&tasks.failed) ? NULL : tasks.digests;
}

AmStatus ir_hash_operators(uint64_t *hashes, const IrModule *canonical, AmError *error) {
    Arena scratch = {0};
    Hasher hasher = {.module = canonical};
    const Digest *digests = digest_operators(&hasher, &scratch);
    int32_t count = canonical->computations[canonical->entry].count;
    for (int32_t i = 0; digests && i < count; i++) hashes[i] = hash_bytes(digests[i].hex, 64, 0);
    AmStatus status = digests ? AM_OK : am_fail_memory(error, count);
    arena_free(&scratch);
    return status;
}

/* ---- value numbers ---- */

/* Returns whether two instructions have the same operator and operands of the same numbers. */
static bool is_same_value(const IrModule *module, const Digest *digests, const int32_t *numbers, int32_t a,
                          int32_t b) {
    const IrInstruction *one = &module->instructions[a], *other = &module->instructions[b];
    bool is_same = one->operand_count == other->operand_count && strcmp(digests[a].hex, digests[b].hex) == 0;
    for (int32_t k = 0; is_same && k < one->operand_count; k++)
        is_same = numbers[one->operands[k]] == numbers[other->operands[k]];
    return is_same;
}

AmStatus ir_number_values(int32_t *numbers, const IrModule *canonical, const int32_t *sources,
                          AmError *error) {
    Arena scratch = {0};
    const IrComputation *entry = &canonical->computations[canonical->entry]; /* its first instruction is 0 */
    Hasher hasher = {.module = canonical};
    uint64_t mask = 1;
    while (mask < 2 * (uint64_t)entry->count) mask = mask * 2 + 1;
    int32_t *slots = ARENA_ARRAY(&scratch, int32_t, mask + 1); /* an instruction + 1; 0: free */
    Digest *digests = digest_operators(&hasher, &scratch);
    hasher.failed |= scratch.failed || !digests;
    for (int32_t i = 0; i < entry->count && !hasher.failed; i++) {
        const IrInstruction *instruction = &canonical->instructions[i];
        numbers[i] = sources[i] == i ? i : numbers[sources[i]];
        if (sources[i] != i || instruction->opcode == IR_PARAMETER || instruction->opcode == IR_RNG ||
            instruction->control_count > 0 || ir_has_effect(instruction))
            continue;
        if (instruction->literal) {
            ir_encode_begin(&hasher.encoder);
            ir_encode_string(&hasher.encoder, digests[i].hex);
            add_literal(&hasher, &instruction->shape, instruction->literal);
            ir_encode_end(&hasher.encoder, digests[i].hex);
            hasher.failed |= !digests[i].hex[0];
        }
        uint64_t at = hash_bytes(digests[i].hex, 64, 0);
        for (int32_t k = 0; k < instruction->operand_count; k++)
            at = hash_combine(at, (uint64_t)numbers[instruction->operands[k]]);
        while (slots[at & mask] && !is_same_value(canonical, digests, numbers, slots[at & mask] - 1, i)) at++;
        if (!slots[at & mask]) slots[at & mask] = i + 1;
        numbers[i] = slots[at & mask] - 1;
    }
    AmStatus status =
        hasher.failed ? am_fail_memory(error, (int64_t)entry->count * (int64_t)sizeof(Digest)) : AM_OK;
    arena_free(&scratch);
    return status;
}
