/* The canonical module: calls inlined, simplified, entry first, in one order.
 *
 * 1. A depth-first walk over the computations refuses recursion and gives each
 *    computation its size after inlining; sizes are bounded before anything is
 *    built, because nested calls can multiply a module's size at every level.
 * 2. The computations that something other than a call mentions are kept, in
 *    order of discovery from the entry. Each is flattened: its instructions are
 *    visited operands first, and a call is replaced by the body it calls, with
 *    the call's operands for the body's parameters. A copied instruction keeps
 *    its position in the file, a body taking the place of its call.
 * 3. Indices that count rows become batching dimensions (ir/canonical/row_indices.h), and the
 *    flat list is simplified (ir/canonical/simplify.h), so that computations which only
 *    dead code mentions are never reached. Lookups of one table meet (ir/canonical/lookups.h).
 * 4. It is numbered topologically, the smallest position first (ir/topological_order.h): a
 *    file that lists operands first keeps its order, but for these lookups.
 * Linear in the size of the inlined module, but for the heap's logarithm.
 */
#include "ir/canonical/canonical.h"

#include <stdlib.h>
#include <string.h>

#include "ir/analysis/flops.h"
#include "ir/analysis/loops.h"
#include "ir/canonical/lookups.h"
#include "ir/canonical/row_indices.h"
#include "ir/canonical/simplify.h"
#include "ir/names.h"
#include "ir/topological_order.h"

/* Bounds against hostile input: computations inside one another, and the size
 * after inlining in proportion to the file, with room for small files that call
 * their layers by name. */
#define MAX_NESTING      500
#define MAX_EXPANSION    16
#define EXPANSION_ALWAYS (1 << 18)
#define MAX_OP_NAME      4096 /* longer names are not joined */

typedef enum Visit { NOT_VISITED, OPEN, DONE } Visit;

typedef struct Canonicalizer {
    const IrModule *module;
    IrModule *result;
    AmError *error;
    Arena scratch; /* until the end */
    Arena frames;  /* of flatten(), released as it returns */
    /* per computation of `module` */
    Visit *visits;
    int64_t *sizes;   /* instructions after inlining, parameters included */
    bool *has_effect; /* more than a result comes of it (ir/canonical/simplify.h) */
    int32_t **orders; /* topological order of its instructions, made on first use */
    int32_t *kept;    /* new index, or -1 */
    int32_t *queue;   /* old index of each kept computation, in order of discovery */
    int32_t kept_count;
    /* the computation being flattened: new instructions and their positions */
    IrInstruction *flat;
    int64_t *positions;
    int32_t flat_count;
} Canonicalizer;

/* A computation body being copied: a kept computation itself, or one inlined. */
typedef struct Site {
    const int32_t *arguments; /* flat index of each parameter's value; NULL: keep the parameters */
    int64_t position;         /* of the body's first instruction */
    const char *op_name;      /* of the call, joined with those around it */
    const char *source_file;
    int32_t source_line;
} Site;

/* Fails if computation `index` contains itself; fills sizes and visits, callees first. */
static AmStatus measure_computation(Canonicalizer *work, int32_t index, int32_t depth) {
    const IrModule *module = work->module;
    const IrComputation *body = &module->computations[index];
    if (depth > MAX_NESTING)
        return am_fail(work->error, AM_ERROR_INPUT, module->source,
                       "computation %s: computations are nested more than %d levels deep", body->name,
                       MAX_NESTING);
    work->visits[index] = OPEN;
    int64_t size = 0;
    for (int32_t i = body->first; i < body->first + body->count; i++) {
        const IrInstruction *instruction = &module->instructions[i];
        for (int32_t k = 0; k < instruction->called_count; k++) {
            int32_t callee = instruction->called[k];
            if (work->visits[callee] == OPEN)
                return am_fail(work->error, AM_ERROR_INPUT, module->source,
                               "instruction %s: computation %s contains itself", instruction->name,
                               module->computations[callee].name);
            if (work->visits[callee] == NOT_VISITED) TRY(measure_computation(work, callee, depth + 1));
            work->has_effect[index] |= work->has_effect[callee];
        }
        work->has_effect[index] |= ir_has_effect(instruction);
        if (instruction->opcode != IR_CALL) {
            size++;
            continue;
        }
        if (instruction->called_count != 1)
            return am_fail(work->error, AM_ERROR_INPUT, module->source,
                           "instruction %s: a call names %d computations, expected one", instruction->name,
                           instruction->called_count);
        const IrComputation *callee = &module->computations[instruction->called[0]];
        if (callee->parameter_count != instruction->operand_count)
            return am_fail(work->error, AM_ERROR_INPUT, module->source,
                           "instruction %s: %d operands for the %d parameters of %s", instruction->name,
                           instruction->operand_count, callee->parameter_count, callee->name);
        size += work->sizes[instruction->called[0]];
    }
    int64_t limit = EXPANSION_ALWAYS + (int64_t)MAX_EXPANSION * module->instruction_count;
    if (size > limit)
        return am_fail(work->error, AM_ERROR_INPUT, module->source,
                       "computation %s: more than %lld instructions after inlining its calls", body->name,
                       (long long)limit);
    work->sizes[index] = size;
    work->visits[index] = DONE;
    return AM_OK;
}

/* Joins the names of a call and of an operator in it: "x" inside "jit(f)/y" is "jit(f)/y/x". A name that
 * starts with the call's first component is absolute already. */
static const char *join_op_name(Arena *arena, const char *outer, const char *own) {
    if (!*outer) return own;
    if (!*own) return outer;
    if (strnlen(outer, MAX_OP_NAME) + strnlen(own, MAX_OP_NAME) >= MAX_OP_NAME) return own;
    size_t component = strcspn(outer, "/");
    if (strncmp(own, outer, component) == 0 && (own[component] == '/' || own[component] == '\0')) return own;
    return arena_format(arena, "%s/%s", outer, own);
}

/* Finds the topological order of one computation of the module as read. */
static AmStatus order_of(Canonicalizer *work, int32_t index, const int32_t **order) {
    const IrComputation *body = &work->module->computations[index];
    if (!work->orders[index]) {
        int32_t ordered = -1;
        ArenaMark mark = arena_mark(&work->frames);
        work->orders[index] = ARENA_ARRAY(&work->scratch, int32_t, body->count);
        if (work->orders[index])
            ordered = ir_topological_order(work->orders[index], work->module->instructions + body->first,
                                           body->count, body->first, NULL, &work->frames);
        arena_release(&work->frames, mark);
        if (ordered < 0) return am_fail_memory(work->error, (int64_t)body->count * 16);
        if (ordered < body->count)
            return am_fail(work->error, AM_ERROR_INPUT, work->module->source,
                           "computation %s: operands and control dependencies form a cycle", body->name);
    }
    *order = work->orders[index];
    return AM_OK;
}

/* Returns the indices of a computation that starts at `first`, translated by values[]. */
static int32_t *translate_indices(Arena *arena, const int32_t *indices, int32_t count, const int32_t *values,
                                  int32_t first) {
    int32_t *result = ARENA_ARRAY(arena, int32_t, count);
    for (int32_t k = 0; result && k < count; k++) result[k] = values[indices[k] - first];
    return result;
}

/* Copies one instruction to the end of the flat list; values[] maps operands. */
static int32_t copy_instruction(Canonicalizer *work, const Site *site, const IrInstruction *from,
                                const int32_t *values, int32_t first, int64_t position) {
    Arena *arena = &work->result->arena;
    int32_t index = work->flat_count++;
    IrInstruction *to = &work->flat[index];
    *to = *from;
    to->operands = translate_indices(&work->scratch, from->operands, from->operand_count, values, first);
    to->control = from->control_count > 0
                      ? translate_indices(&work->scratch, from->control, from->control_count, values, first)
                      : NULL;
    to->op_name = join_op_name(arena, site->op_name, from->op_name);
    if (!*from->source_file) {
        to->source_file = site->source_file;
        to->source_line = site->source_line;
    }
    work->positions[index] = position;
    return index;
}

/* Makes the control predecessors of an inlined call precede the root of its body. */
static void inherit_control(Canonicalizer *work, const IrInstruction *call, const int32_t *values,
                            int32_t first, int32_t root) {
    IrInstruction *to = &work->flat[root];
    int32_t *control = ARENA_ARRAY(&work->scratch, int32_t, (int64_t)to->control_count + call->control_count);
    if (!control) return;
    for (int32_t k = 0; k < to->control_count; k++) control[k] = to->control[k];
    for (int32_t k = 0; k < call->control_count; k++)
        control[to->control_count + k] = values[call->control[k] - first];
    to->control = control;
    to->control_count += call->control_count;
}

/* Copies computation `index` at `site`; `*root` is the flat index of its root.
 * The depth of recursion is bounded by measure_computation(). */
static AmStatus flatten(Canonicalizer *work, const Site *site, int32_t index, int32_t *root) {
    const IrModule *module = work->module;
    const IrComputation *body = &module->computations[index];
    const int32_t *order = NULL;
    TRY(order_of(work, index, &order));
    ArenaMark mark = arena_mark(&work->frames);
    int32_t *values = ARENA_ARRAY(&work->frames, int32_t, body->count);
    int64_t *positions = ARENA_ARRAY(&work->frames, int64_t, body->count);
    if (!values || !positions) return am_fail_memory(work->error, (int64_t)body->count * 12);
    int64_t position = site->position;
    for (int32_t k = 0; k < body->count; k++) {
        const IrInstruction *from = &module->instructions[body->first + k];
        positions[k] = position;
        position += from->opcode == IR_CALL ? work->sizes[from->called[0]] : 1;
    }
    for (int32_t n = 0; n < body->count; n++) {
        int32_t k = order[n];
        const IrInstruction *from = &module->instructions[body->first + k];
        if (from->opcode == IR_PARAMETER && site->arguments) {
            values[k] = site->arguments[from->attributes->parameter_number];
        } else if (from->opcode != IR_CALL) {
            values[k] = copy_instruction(work, site, from, values, body->first, positions[k]);
        } else {
            bool has_source = *from->source_file != '\0';
            int32_t count_before = work->flat_count;
            Site inner = {
                translate_indices(&work->frames, from->operands, from->operand_count, values, body->first),
                positions[k], join_op_name(&work->result->arena, site->op_name, from->op_name),
                has_source ? from->source_file : site->source_file,
                has_source ? from->source_line : site->source_line};
            if (!inner.arguments || !inner.op_name)
                return am_fail_memory(work->error, (int64_t)from->operand_count * 4);
            TRY(flatten(work, &inner, from->called[0], &values[k]));
            if (from->control_count > 0 && values[k] >= count_before)
                inherit_control(work, from, values, body->first, values[k]);
        }
    }
    *root = values[body->root - body->first];
    arena_release(&work->frames, mark);
    return AM_OK;
}

/* Instructions of all computations that will be kept, at most; -1: no memory. */
static int64_t count_kept(Canonicalizer *work) {
    const IrModule *module = work->module;
    bool *reached = ARENA_ARRAY(&work->scratch, bool, module->computation_count);
    bool *mentioned = ARENA_ARRAY(&work->scratch, bool, module->computation_count);
    int32_t *stack = ARENA_ARRAY(&work->scratch, int32_t, module->computation_count);
    if (!reached || !mentioned || !stack) return -1;
    int32_t depth = 0;
    stack[depth++] = module->entry;
    reached[module->entry] = mentioned[module->entry] = true;
    while (depth > 0) {
        const IrComputation *body = &module->computations[stack[--depth]];
        for (int32_t i = body->first; i < body->first + body->count; i++) {
            const IrInstruction *instruction = &module->instructions[i];
            for (int32_t k = 0; k < instruction->called_count; k++) {
                int32_t callee = instruction->called[k];
                if (instruction->opcode != IR_CALL) mentioned[callee] = true;
                if (!reached[callee]) stack[depth++] = callee;
                reached[callee] = true;
            }
        }
    }
    int64_t total = 0;
    for (int32_t c = 0; c < module->computation_count; c++)
        if (mentioned[c]) total += work->sizes[c];
    return total;
}

/* Returns the new index of a computation that is mentioned; the first mention gives it one. */
static int32_t keep_computation(Canonicalizer *work, int32_t computation) {
    if (work->kept[computation] < 0) {
        work->kept[computation] = work->kept_count;
        work->queue[work->kept_count++] = computation;
    }
    return work->kept[computation];
}

/* Numbers the flat list and appends it to the result as computation `computation`. */
static AmStatus append_computation(Canonicalizer *work, IrComputation *computation, const IrComputation *from,
                                   int32_t flat_root) {
    IrModule *result = work->result;
    int32_t count = work->flat_count, first = result->instruction_count;
    int32_t *order = ARENA_ARRAY(&work->frames, int32_t, count);
    int32_t *rank = ARENA_ARRAY(&work->frames, int32_t, count);
    int32_t *parameters = ARENA_ARRAY(&result->arena, int32_t, from->parameter_count);
    if (!order || !rank || !parameters || result->arena.failed || work->scratch.failed)
        return am_fail_memory(work->error, (int64_t)count * (int64_t)sizeof(IrInstruction));
    int32_t ordered = ir_topological_order(order, work->flat, count, 0, work->positions, &work->frames);
    if (ordered < 0) return am_fail_memory(work->error, (int64_t)count * 16);
    if (ordered < count)
        return am_fail(work->error, AM_ERROR_INPUT, work->module->source,
                       "computation %s: control dependencies into inlined calls form a cycle", from->name);
    for (int32_t n = 0; n < count; n++) rank[order[n]] = first + n;
    for (int32_t n = 0; n < count; n++) {
        IrInstruction *to = &result->instructions[first + n];
        *to = work->flat[order[n]];
        int32_t *called =
            to->called_count > 0 ? ARENA_ARRAY(&result->arena, int32_t, to->called_count) : NULL;
        to->operands = translate_indices(&result->arena, to->operands, to->operand_count, rank, 0);
        to->control = to->control_count > 0
                          ? translate_indices(&result->arena, to->control, to->control_count, rank, 0)
                          : NULL;
        if (result->arena.failed) return am_fail_memory(work->error, (int64_t)count * 8);
        /* A custom call that only annotates the sharding of its operand is a barrier. */
        const char *target = to->attributes->custom_call_target;
        if (to->opcode == IR_CUSTOM_CALL && to->operand_count == 1 && target &&
            strcmp(target, "Sharding") == 0 &&
            ir_shape_equal(&to->shape, &result->instructions[to->operands[0]].shape))
            to->opcode = IR_OPT_BARRIER;
        for (int32_t k = 0; k < to->called_count; k++) called[k] = keep_computation(work, to->called[k]);
        to->called = called;
        if (to->opcode == IR_PARAMETER) parameters[to->attributes->parameter_number] = first + n;
    }
    result->instruction_count += count;
    *computation =
        (IrComputation){from->name, first, count, rank[flat_root], from->parameter_count, parameters};
    return ir_unique_instruction_names(result->instructions + first, count, &result->arena, &work->frames,
                                       work->error);
}

static AmStatus canonicalize(Canonicalizer *work) {
    const IrModule *module = work->module;
    IrModule *result = work->result;
    int32_t computations = module->computation_count;
    work->visits = ARENA_ARRAY(&work->scratch, Visit, computations);
    work->sizes = ARENA_ARRAY(&work->scratch, int64_t, computations);
    work->has_effect = ARENA_ARRAY(&work->scratch, bool, computations);
    work->orders = ARENA_ARRAY(&work->scratch, int32_t *, computations);
    work->kept = ARENA_ARRAY(&work->scratch, int32_t, computations);
    work->queue = ARENA_ARRAY(&work->scratch, int32_t, computations);
    if (work->scratch.failed) return am_fail_memory(work->error, (int64_t)computations * 32);
    for (int32_t c = 0; c < computations; c++) work->kept[c] = -1;
    TRY(measure_computation(work, module->entry, 0));

    int64_t total = count_kept(work);
    int64_t limit = EXPANSION_ALWAYS + (int64_t)MAX_EXPANSION * module->instruction_count;
    if (total > limit || total > INT32_MAX)
        return am_fail(work->error, AM_ERROR_INPUT, module->source,
                       "the module has more than %lld instructions after inlining its calls",
                       (long long)limit);
    result->source = module->source;
    result->name = module->name;
    result->is_optimized = module->is_optimized;
    result->aliases = module->aliases;
    result->alias_count = module->alias_count;
    result->warnings.arena = &result->arena;
    for (int32_t w = 0; w < module->warnings.count; w++)
        am_warn(&result->warnings, "%s", module->warnings.texts[w]);
    result->instructions = ARENA_ARRAY(&result->arena, IrInstruction, total);
    result->computations = ARENA_ARRAY(&result->arena, IrComputation, computations);
    work->flat = ARENA_ARRAY(&work->scratch, IrInstruction, total);
    work->positions = ARENA_ARRAY(&work->scratch, int64_t, total);
    if (total < 0 || !result->instructions || !result->computations || !work->flat || !work->positions)
        return am_fail_memory(work->error, total * (int64_t)sizeof(IrInstruction));

    result->entry = keep_computation(work, module->entry);
    for (int32_t c = 0; c < work->kept_count; c++) {
        const Site whole = {NULL, 0, "", "", 0};
        int32_t root = 0;
        ArenaMark mark = arena_mark(&work->frames);
        work->flat_count = 0;
        TRY(flatten(work, &whole, work->queue[c], &root));
        if (result->arena.failed || work->scratch.failed)
            return am_fail_memory(work->error, work->flat_count);
        IrInstructionList list = {work->flat, work->positions, work->flat_count, root, c == 0};
        TRY(ir_batch_row_indices(&list, &result->arena, work->error));
        TRY(ir_simplify(&list, work->has_effect, &work->frames, work->error));
        if (list.is_entry) TRY(ir_join_lookups(&list, &work->frames, work->error));
        work->flat_count = list.count;
        root = list.root;
        TRY(append_computation(work, &result->computations[c], &module->computations[work->queue[c]], root));
        arena_release(&work->frames, mark);
        result->computation_count++;
    }
    TRY(ir_find_called_work(result, work->error));
    return ir_find_loops(result, work->error);
}

AmStatus ir_canonicalize(IrModule **canonical, const IrModule *module, AmError *error) {
    *canonical = NULL;
    /* Everything that works on the canonical module needs sizes, and types as kernels take them. */
    if (module->unplanned) return am_pass_error(AM_ERROR_INPUT, module->unplanned, error);
    if (module->unbounded)
        return am_fail(error, AM_ERROR_INPUT, module->source,
                       "instruction %s: its shape has a dimension '?' without a size (expected a number)",
                       module->unbounded);
    IrModule *result = calloc(1, sizeof *result);
    if (!result) return am_fail_memory(error, sizeof *result);
    Canonicalizer work = {.module = module, .result = result, .error = error};
    AmStatus status = canonicalize(&work);
    arena_free(&work.frames);
    arena_free(&work.scratch);
    if (status != AM_OK) {
        ir_module_free(result);
        return status;
    }
    *canonical = result;
    return AM_OK;
}
