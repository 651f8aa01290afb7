/* Layers by the paths of their weights: the first number of a path counts them. */
#include "planners/baselines/layer_path.h"

#include <stdlib.h>
#include <string.h>

/* Operators between a weight and its reader. */
enum { MOST_VIEWS = 8 };

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

LayerPath layer_path(const char *path) {
    LayerPath name = {.path = path, .number = -1};
    while (path[name.before] && !is_digit(path[name.before])) name.before++;
    name.after = name.before;
    while (is_digit(path[name.after])) name.after++;
    name.end = name.after;
    while (path[name.end] == ']' || path[name.end] == '\'' || path[name.end] == '"') name.end++;
    if (name.after > name.before) name.number = strtoll(path + name.before, NULL, 10);
    return name;
}

bool layer_path_is_same(const LayerPath *a, const LayerPath *b) {
    return a->before == b->before && strncmp(a->path, b->path, (size_t)a->before) == 0 &&
           a->end - a->after == b->end - b->after &&
           strncmp(a->path + a->after, b->path + b->after, (size_t)(a->end - a->after)) == 0;
}

int32_t layer_first_operator(const PlanContext *primary, int32_t instruction) {
    for (int32_t i = instruction; i < primary->rules->entry_count; i++)
        if (plan_context_in_forward(primary, i) && plan_context_instruction(primary, i)->op_name[0] &&
            !primary->rules->on_demand[i])
            return i;
    return -1;
}

/* Returns the path of the weight that an operand is, or "". */
static const char *operand_weight(const PlanContext *primary, int32_t operand) {
    const IrRoles *roles = primary->roles;
    const IrInstruction *instructions = primary->canonical->instructions, *at = &instructions[operand];
    for (int32_t k = 0; k < MOST_VIEWS && at->opcode != IR_PARAMETER && at->operand_count == 1; k++)
        at = &instructions[at->operands[0]];
    int64_t number = at->opcode == IR_PARAMETER ? at->attributes->parameter_number : -1;
    bool is_weight = number >= 0 && number < roles->parameter_count &&
                     roles->parameters[number].role == IR_ROLE_WEIGHT &&
                     &instructions[roles->parameters[number].instruction] == at;
    return is_weight ? roles->parameters[number].path : "";
}

const char *layer_weight_of(const PlanContext *primary, int32_t instruction) {
    const IrInstruction *at = plan_context_instruction(primary, instruction);
    const char *path = "";
    if (!plan_context_in_forward(primary, instruction) || at->operand_count < 2) return path;
    for (int32_t o = 0; o < at->operand_count && !path[0]; o++)
        path = operand_weight(primary, at->operands[o]);
    return path;
}

const char *layer_first_weight(const PlanContext *primary, int32_t instruction) {
    const char *path = "";
    for (int32_t i = instruction; i < primary->rules->entry_count && !path[0]; i++)
        path = layer_weight_of(primary, i);
    return path;
}
