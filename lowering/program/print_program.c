/* The lowered program as text: how a plan is read and debugged.
 *
 *     %12 = f32[8,64] dot(%3, %7)  contract 1,0   @ data=S(0) model=B   # layer_0/dot  model.py:12
 *     %13 = f32[8,64] all_reduce(%12) add over model [0,1,2,3]
 *     fusion f32[8,64] {
 *       %20 = add(%13, %4[.,c])
 *     } -> %20
 */
#include "ir/analysis/loops.h"
#include "ir/text/hlo_text.h"
#include "lowering/program/program.h"

#include <string.h>

static const char *const collective_names[] = {"all_reduce",    "all_gather", "reduce_scatter", "all_to_all",
                                               "halo_exchange", "host_load",  "host_store"};

const char *program_collective_name(ProgramCollectiveKind kind) {
    return collective_names[kind];
}

static void print_shape(Text *text, const IrShape *shape) {
    text_append(text, "%s[", dtype_name(shape->type));
    for (int32_t d = 0; d < shape->rank; d++)
        text_append(text, "%s%lld", d ? "," : "", (long long)shape->dimensions[d]);
    text_append_string(text, "]");
}

static void print_numbers(Text *text, const char *label, const int64_t *numbers, int32_t count) {
    if (count == 0) return;
    text_append(text, " %s={", label);
    for (int32_t k = 0; k < count; k++) text_append(text, "%s%lld", k ? "," : "", (long long)numbers[k]);
    text_append_string(text, "}");
}

static void print_origin(Text *text, const Program *program, int32_t origin) {
    const IrInstruction *instruction = &program->module->instructions[origin];
    text_append(text, "  # %s", instruction->op_name[0] ? instruction->op_name : instruction->name);
    if (instruction->source_file[0])
        text_append(text, " %s:%d", instruction->source_file, instruction->source_line);
}

static void print_number(Text *text, Dtype type, const char *data) {
    int32_t bits = dtype_bits(type);
    uint64_t raw = 0;
    memcpy(&raw, data, (size_t)dtype_bytes(type));
    if (type == DTYPE_PRED) text_append_string(text, raw ? "true" : "false");
    else if (dtype_is_floating(type)) ir_float_write(text, type, raw);
    else if (dtype_is_signed(type))
        text_append(text, "%lld", (long long)((int64_t)(raw << (64 - bits)) >> (64 - bits)));
    else text_append(text, "%llu", (unsigned long long)raw);
}

/* Prints a scalar's value; arrays and elided values are shortened. */
static void print_literal(Text *text, Dtype type, int64_t elements, const IrLiteral *literal) {
    if (!literal || !literal->data || elements != 1 || dtype_bits(type) == 0) {
        text_append_string(text, "{...}");
    } else if (dtype_is_complex(type)) {
        Dtype part = type == DTYPE_C64 ? DTYPE_F32 : DTYPE_F64;
        text_append_string(text, "(");
        print_number(text, part, literal->data);
        text_append_string(text, ", ");
        print_number(text, part, (const char *)literal->data + dtype_bytes(part));
        text_append_string(text, ")");
    } else {
        print_number(text, type, literal->data);
    }
}

static void print_attributes(Text *text, const Program *program, const ProgramInstruction *instruction) {
    const IrAttributes *attributes = instruction->attributes;
    int32_t rank = instruction->operand_count > 0 ? program->values[instruction->operands[0]].shape.rank
                                                  : program->values[instruction->first_result].shape.rank;
    print_numbers(text, "dimensions", attributes->dimensions, attributes->dimension_count);
    if (attributes->dot) {
        const IrDot *dot = attributes->dot;
        print_numbers(text, "lhs_batch", dot->lhs_batch, dot->batch_count);
        print_numbers(text, "lhs_contracting", dot->lhs_contracting, dot->contracting_count);
        print_numbers(text, "rhs_batch", dot->rhs_batch, dot->batch_count);
        print_numbers(text, "rhs_contracting", dot->rhs_contracting, dot->contracting_count);
    }
    if (attributes->slice_start) {
        print_numbers(text, "start", attributes->slice_start, rank);
        print_numbers(text, "limit", attributes->slice_limit, rank);
    }
    if (attributes->gather && attributes->gather->slice_sizes)
        print_numbers(text, "slice_sizes", attributes->gather->slice_sizes, rank);
    if (instruction->compute.shard) {
        print_numbers(text, "shard_start", instruction->compute.shard->start, rank);
        print_numbers(text, "of", instruction->compute.shard->global, rank);
    }
    if (instruction->compute.called >= 0 && instruction->regions.count == 0) {
        IrOpcode combined = ir_computation_operator(program->module, instruction->compute.called);
        text_append(text, " to_apply=%s",
                    combined != IR_UNKNOWN ? ir_opcode_name(combined)
                                           : program->module->computations[instruction->compute.called].name);
    }
}

static void print_collective(Text *text, const Program *program, const ProgramInstruction *instruction) {
    const ProgramCollective *collective = instruction->collective;
    if (program_is_host_copy(collective)) return;
    if (collective->kind == PROGRAM_ALL_REDUCE || collective->kind == PROGRAM_REDUCE_SCATTER)
        text_append(text, " %s", sbp_reduction_name(collective->reduction));
    if (collective->movements) {
        print_numbers(text, "dimension", (int64_t[]){collective->movements[0].dimension}, 1);
        if (collective->kind == PROGRAM_ALL_TO_ALL)
            print_numbers(text, "to", (int64_t[]){collective->movements[0].other}, 1);
    }
    if (collective->kind == PROGRAM_HALO_EXCHANGE) {
        print_numbers(text, "range_start", collective->movements[0].range_start, collective->group_count);
        print_numbers(text, "range_extent", collective->movements[0].range_extent, collective->group_count);
    }
    text_append_string(text, " over");
    for (int32_t axis = 0; axis < program->mesh->axis_count; axis++)
        if (collective->axes >> axis & 1) text_append(text, " %s", program->mesh->axes[axis].name);
    text_append_string(text, " [");
    for (int32_t k = 0; k < collective->group_count; k++)
        text_append(text, "%s%d", k ? "," : "", collective->group[k]);
    text_append_string(text, "]");
}

static void print_pieces(Text *text, const char *word, const ProgramPiece *pieces, int32_t count) {
    for (int32_t k = 0; k < count; k++) text_append(text, "%s%d", k ? "," : word, pieces[k].peer);
    if (count > 0) text_append_string(text, "]");
}

/* Prints a state. A region that is replicated on every device has no mesh. */
static void print_state(Text *text, const Program *program, SbpState state) {
    if (!program->mesh) return;
    text_append_string(text, "  @ ");
    sbp_print(text, program->mesh, state);
}

/* Prints the states of the results, once where all are equal. */
static void print_states(Text *text, const Program *program, const ProgramInstruction *instruction) {
    const ProgramValue *results = &program->values[instruction->first_result];
    bool is_one = true;
    for (int32_t k = 1; k < instruction->result_count; k++)
        if (!sbp_equal(results[k].state, results[0].state)) is_one = false;
    if (!program->mesh) return;
    text_append_string(text, "  @ ");
    for (int32_t k = 0; k < (is_one ? 1 : instruction->result_count); k++) {
        if (k) text_append_string(text, ", ");
        sbp_print(text, program->mesh, results[k].state);
    }
}

static const char *instruction_name(const ProgramInstruction *instruction) {
    if (instruction->kind == PROGRAM_COLLECTIVE)
        return program_collective_name(instruction->collective->kind);
    if (instruction->kind != PROGRAM_TRANSFER) return ir_opcode_name(instruction->opcode);
    return instruction->result_count == 0 ? "send" : instruction->operand_count == 0 ? "receive" : "exchange";
}

static void print_instruction(Text *text, const Program *program, const ProgramInstruction *instruction) {
    for (int32_t k = 0; k < instruction->result_count; k++)
        text_append(text, "%s%%%d", k ? ", " : "", instruction->first_result + k);
    if (instruction->result_count > 0) text_append_string(text, " = ");
    if (instruction->result_count > 1) text_append_string(text, "(");
    for (int32_t k = 0; k < instruction->result_count; k++) {
        if (k) text_append_string(text, ", ");
        print_shape(text, &program->values[instruction->first_result + k].shape);
    }
    if (instruction->result_count > 1) text_append_string(text, ")");
    text_append(text, "%s%s(", instruction->result_count > 0 ? " " : "", instruction_name(instruction));
    for (int32_t k = 0; k < instruction->operand_count; k++)
        text_append(text, "%s%%%d", k ? ", " : "", instruction->operands[k]);
    const ProgramValue *result = &program->values[instruction->first_result];
    if (instruction->opcode == IR_CONSTANT && instruction->kind == PROGRAM_COMPUTE)
        print_literal(text, result->shape.type, ir_shape_elements(&result->shape),
                      instruction->compute.literal);
    text_append_string(text, ")");
    if (instruction->kind == PROGRAM_COLLECTIVE) print_collective(text, program, instruction);
    else if (instruction->kind == PROGRAM_TRANSFER) {
        print_pieces(text, " to ranks [", instruction->transfer->sends, instruction->transfer->send_count);
        print_pieces(text, " from ranks [", instruction->transfer->receives,
                     instruction->transfer->receive_count);
    } else print_attributes(text, program, instruction);
    if (instruction->result_count > 0) print_states(text, program, instruction);
    print_origin(text, program, instruction->origin);
    if (instruction->result_count > 1) text_append(text, " and %d more", instruction->result_count - 1);
    text_append_string(text, "\n");
}

static void print_slot(Text *text, const ProgramFusion *fusion, int32_t slot) {
    if (slot >= fusion->input_count) {
        text_append(text, "t%d", slot - fusion->input_count);
        return;
    }
    const ProgramFusionInput *input = &fusion->inputs[slot];
    text_append(text, "%%%d", input->value);
    int64_t step = 1;
    bool plain = true;
    for (int32_t d = fusion->rank - 1; d >= 0; d--) {
        plain = plain && (fusion->dimensions[d] == 1 || input->strides[d] == step);
        step *= fusion->dimensions[d];
    }
    if (plain) return;
    text_append_string(text, "[");
    for (int32_t d = 0; d < fusion->rank; d++)
        text_append_string(text, input->strides[d] ? (d ? ",:" : ":") : (d ? ",0" : "0"));
    text_append_string(text, "]");
}

static void print_fusion(Text *text, const Program *program, const ProgramFusion *fusion) {
    IrShape space = {.type = fusion->ops[fusion->op_count - 1].type,
                     .rank = fusion->rank,
                     .dimensions = fusion->dimensions};
    text_append_string(text, "fusion ");
    print_shape(text, &space);
    text_append_string(text, " {\n");
    for (int32_t k = 0; k < fusion->op_count; k++) {
        const ProgramFusionOp *op = &fusion->ops[k];
        text_append(text, "    t%d = %s %s(", k, dtype_name(op->type), ir_opcode_name(op->opcode));
        for (int32_t o = 0; o < op->operand_count; o++) {
            if (o) text_append_string(text, ", ");
            print_slot(text, fusion, op->operands[o]);
        }
        if (op->opcode == IR_CONSTANT) print_literal(text, op->type, 1, op->literal);
        if (op->opcode == IR_IOTA) text_append(text, "%lld..", (long long)op->iota_start);
        text_append_string(text, ")");
        if (op->attributes && op->attributes->comparison)
            text_append(text, " direction=%s", op->attributes->comparison);
        print_origin(text, program, op->origin);
        text_append_string(text, "\n");
    }
    text_append_string(text, "  } ->");
    for (int32_t k = 0; k < fusion->output_count; k++) {
        text_append(text, "%s %%%d = ", k ? "," : "", fusion->output_values[k]);
        print_slot(text, fusion, fusion->output_slots[k]);
    }
    text_append_string(text, "\n");
}

static void print_steps(Text *text, const Program *program) {
    text_append_string(text, "\nviews\n");
    for (int32_t i = 0; i < program->instruction_count; i++) {
        const ProgramInstruction *instruction = &program->instructions[i];
        if (!program_is_view(instruction)) continue;
        text_append(text, "  %%%d = ", instruction->first_result);
        print_shape(text, &program->values[instruction->first_result].shape);
        text_append(text, " view of %%%d", instruction->operands[0]);
        if (instruction->compute.place && instruction->opcode == IR_DYNAMIC_UPDATE_SLICE)
            text_append(text, " with %%%d", instruction->operands[1]);
        text_append_string(text, instruction->compute.place ? " in the slice of the iteration\n" : "\n");
    }
    text_append_string(text, "\nsteps\n");
    for (int32_t s = 0; s < program->execution.step_count; s++) {
        const ProgramRowGroup *rows = program_row_group(program, &program->execution.steps[s]);
        if (rows && rows->first == s)
            text_append(text, "  row group of the next %d steps: %lld rows, %lld at a time\n",
                        (int)rows->count, (long long)rows->rows, (long long)rows->block);
        text_append_string(text, "  ");
        if (program->execution.steps[s].fusion >= 0)
            print_fusion(text, program, &program->execution.fusions[program->execution.steps[s].fusion]);
        else
            print_instruction(text, program, &program->instructions[program->execution.steps[s].instruction]);
    }
}

static void print_regions(Text *text, const Program *program);

/* Prints a region. Its values are numbered by themselves; its parameters are the operands'. */
static void print_region(Text *text, const Program *program, const ProgramInstruction *instruction,
                         int32_t k) {
    const Program *region = instruction->regions.programs[k];
    const char *name = instruction->opcode == IR_WHILE         ? (k == 0 ? "body" : "condition")
                       : instruction->opcode == IR_CONDITIONAL ? "branch"
                                                               : "computation";
    text_append(text, "\n%s", name);
    if (instruction->opcode == IR_CONDITIONAL) text_append(text, " %d", k);
    text_append(text, " of %%%d", instruction->first_result);
    print_origin(text, program, instruction->origin);
    int64_t trips = instruction->opcode == IR_WHILE ? ir_loop_trips(program->module, instruction->origin) : 0;
    if (trips == IR_TRIPS_UNKNOWN) text_append_string(text, ", an unknown number of times");
    else if (instruction->opcode == IR_WHILE) text_append(text, ", %lld times", (long long)trips + k);
    if (instruction->loop.iterations && instruction->loop.iterations->second >= 0 && k == 0)
        text_append(text, ", up to %d ahead of those of %%%d", instruction->loop.iterations->kept,
                    program->instructions[instruction->loop.iterations->second].first_result);
    if (instruction->loop.iterations && instruction->loop.iterations->third >= 0 && k == 0)
        text_append(text, " and %d of those of %%%d", instruction->loop.iterations->kept_until_third,
                    program->instructions[instruction->loop.iterations->third].first_result);
    text_append(text, ", %d steps\n\nparameters\n", region->execution.step_count);
    for (int32_t p = 0; p < region->roles->parameter_count; p++) {
        text_append(text, "  %%%d = ", region->parameters[p]);
        print_shape(text, &region->values[region->parameters[p]].shape);
        print_state(text, region, region->values[region->parameters[p]].state);
        text_append_string(text, "\n");
    }
    print_steps(text, region);
    text_append_string(text, "\noutputs\n");
    for (int32_t o = 0; o < region->roles->output_count; o++) {
        text_append(text, "  output[%d] = %%%d", o, region->outputs[o]);
        print_state(text, region, region->values[region->outputs[o]].state);
        for (int32_t u = 0; u < region->execution.update_count; u++)
            if (region->execution.updates[u].value == region->outputs[o] &&
                region->execution.updates[u].parameter == o)
                text_append(text, "  next of %%%d%s", region->parameters[o],
                            region->execution.updates[u].in_place ? " in place" : "");
        text_append_string(text, "\n");
    }
    print_regions(text, region);
}

static void print_regions(Text *text, const Program *program) {
    for (int32_t i = 0; i < program->instruction_count; i++)
        for (int32_t k = 0; k < program->instructions[i].regions.count; k++)
            print_region(text, program, &program->instructions[i], k);
}

void program_print(Text *text, const Program *program) {
    text_append(text, "device %d of ", program->device);
    mesh_append(text, program->mesh, " ");
    text_append(text, ", %d steps, ", program->execution.step_count);
    text_append_bytes_size(text, (double)program->allocation.bytes);
    text_append_string(text, " allocated\n\nparameters\n");
    for (int32_t k = 0; k < program->roles->parameter_count; k++) {
        if (program->parameters[k] < 0) continue; /* another stage's */
        const ProgramValue *value = &program->values[program->parameters[k]];
        text_append(text, "  %%%d = ", program->parameters[k]);
        print_shape(text, &value->shape);
        text_append(text, " %s %s  @ ", ir_role_name(program->roles->parameters[k].role),
                    program->roles->parameters[k].path);
        sbp_print(text, program->mesh, value->state);
        if (value->is_on_host) text_append_string(text, " in the host's memory");
        text_append_string(text, "\n");
    }
    print_steps(text, program);
    text_append_string(text, "\noutputs\n");
    for (int32_t k = 0; k < program->roles->output_count; k++) {
        if (program->outputs[k] < 0) continue;
        const ProgramValue *value = &program->values[program->outputs[k]];
        text_append(text, "  output[%d] = %%%d  @ ", k, program->outputs[k]);
        sbp_print(text, program->mesh, value->state);
        for (int32_t u = 0; u < program->execution.update_count; u++)
            if (program->execution.updates[u].value == program->outputs[k])
                text_append(text, "  updates %s%s",
                            program->roles->parameters[program->execution.updates[u].parameter].path,
                            program->execution.updates[u].in_place ? " in place" : "");
        text_append_string(text, "\n");
    }
    print_regions(text, program);
}
