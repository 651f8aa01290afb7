/* Builds the sharding graph: the cost of a one-stage plan as a sum over operators and edges.
 *
 * create_graph() adds a node for each operator that can be split, with a label for each way to split it. It
 * adds a node for each parameter and each value with several readers, with states as labels. Edges follow the
 * operands, the updates of parameters, and the values that loops carry. Costs come from node_costs.c and
 * reshard_costs.c. plan_cost.c prices assignments.
 */
#include "cost/relaxation/node_costs.h"

#include <string.h>

#include "ir/analysis/loops.h"
#include "lowering/spmd/lower_internal.h"

enum { MOST_OPTIONS = 24 };

typedef struct GraphBuilder {
    Arena *arena;
    ShardingGraph *graph;
    const PlanContext *context;
    const IrModule *module;
    const Rules *rules;
    const SplitOptions *split_options;
    ShardingGraphPart *parts;
    double *times; /* [instruction]: runs in a step */
    bool *
        is_f32_sum; /* [instruction]: its partial sums are those of 16-bit products alone, which are in f32 */
    FusionGroups fusion_groups;
    ShardingGraphUse *uses;
    int32_t use_count, use_capacity, node_capacity, edge_capacity;
} GraphBuilder;

/* ---- operators and sources ---- */

/* Has no operands that are resharded for it: a parameter, or what reads an array of a loop or branch. */
static bool is_source(const GraphBuilder *self, int32_t i) {
    IrOpcode opcode = ir_instruction(self->module, i)->opcode;
    return opcode == IR_PARAMETER || opcode == IR_GET_TUPLE_ELEMENT;
}

static double array_bytes(const GraphBuilder *self, int32_t i) {
    return self->split_options->array_bytes[i];
}

/* ---- labels ---- */

static int32_t label_count(const ShardingGraphPart *part) {
    return part->option_count[0] * part->option_count[1];
}

/* Returns whether operands may be partial together, as linearity_carries() allows it for sums or maxima. */
static bool may_carry(const GraphBuilder *self, int32_t i, uint8_t partial) {
    static const SbpReduction tried[] = {SBP_ADD, SBP_MAX, SBP_MIN, SBP_AND, SBP_OR};
    const IrInstruction *instruction = ir_instruction(self->module, i);
    Linearity linearity = (Linearity)self->split_options->linearity[i];
    if (linearity == LINEARITY_NONE || partial >> instruction->operand_count) return false;
    for (size_t k = 0; k < sizeof tried / sizeof tried[0]; k++) {
        SbpReduction reduction = tried[k];
        uint32_t whole;
        if (linearity_carries(self->module, instruction, linearity, partial, &reduction, &whole)) return true;
    }
    return false;
}

static void list_options(GraphBuilder *self, int32_t i, int32_t axis) {
    const SplitOptions *split_options = self->split_options;
    ShardingGraphPart *part = &self->parts[i];
    ShardingGraphOption options[MOST_OPTIONS];
    int32_t count = 0;
    options[count++] = (ShardingGraphOption){.factor = -1};
    if (axis < self->graph->reshards->axis_count) {
        for (int32_t k = split_options->first_factor[i]; k < split_options->first_factor[i + 1]; k++) {
            const SplitOption *choice = &split_options->factors[k];
            bool may_split = choice->size >= self->graph->reshards->sizes[axis];
            for (int32_t o = 0; o < count; o++) may_split &= options[o].factor != (int8_t)choice->place;
            if (may_split && count < MOST_OPTIONS - SHARDING_GRAPH_MOST_CARRYING)
                options[count++] = (ShardingGraphOption){.factor = (int8_t)choice->place};
        }
        for (uint8_t partial = 1; partial < 1u << SHARDING_GRAPH_MOST_CARRYING && count < MOST_OPTIONS;
             partial++)
            if (may_carry(self, i, partial))
                options[count++] = (ShardingGraphOption){.factor = -1, .partial = partial};
    }
    part->options[axis] = ARENA_ARRAY(self->arena, ShardingGraphOption, count);
    part->option_count[axis] = count;
    if (part->options[axis]) memcpy(part->options[axis], options, sizeof *options * (size_t)count);
}

static Sbp slot_sbp(const GraphBuilder *self, int32_t i, ShardingGraphOption option, int32_t slot) {
    const FactorRule *rule = &self->rules->rules[i];
    if (slot < rule->operand_count && option.partial >> slot & 1) return sbp_partial(SBP_ADD);
    if (option.factor < 0)
        return slot >= rule->operand_count && option.partial ? sbp_partial(SBP_ADD) : SBP_B;
    const Factor *factor = &rule->factors[option.factor];
    if (slot >= rule->operand_count && factor_leaves_partial(factor, slot))
        return sbp_partial(factor->reduction);
    return factor->dimension[slot] < 0 ? SBP_B : sbp_split(factor->dimension[slot]);
}

/* Returns the states of a slot by label; states of dimensions that are not distinguished are RESHARD_ANY.
 * `dimensions` maps them to the dimensions of another array, or is NULL. */
static const ReshardState *slot_states(GraphBuilder *self, int32_t i, int32_t slot,
                                       const int32_t *dimensions) {
    int32_t count = label_count(&self->parts[i]);
    ReshardState *states = ARENA_ARRAY(self->arena, ReshardState, count);
    for (int32_t label = 0; !self->arena->failed && label < count; label++) {
        int32_t state = 0;
        for (int32_t axis = 0; axis < self->graph->reshards->axis_count && state != RESHARD_ANY; axis++) {
            Sbp sbp = slot_sbp(self, i, sharding_graph_option(&self->parts[i], label, axis), slot);
            int32_t d = sbp_is_split(sbp) ? sbp_dimension(sbp) : -1;
            if (d >= 0 && dimensions) d = dimensions[d];
            if (d >= RESHARD_DIMENSIONS) state = RESHARD_ANY;
            else state += reshard_state_part(axis, sbp_is_split(sbp) ? (d < 0 ? SBP_B : sbp_split(d)) : sbp);
        }
        states[label] = (ReshardState)state;
    }
    return states;
}

/* ---- nodes and edges ---- */

static int32_t add_node(GraphBuilder *self, int32_t i, bool is_tensor, int32_t labels) {
    ShardingGraph *graph = self->graph;
    ARENA_RESERVE(self->arena, graph->nodes, graph->node_count, self->node_capacity);
    if (self->arena->failed) return 0;
    graph->nodes[graph->node_count] =
        (ShardingGraphNode){.instruction = i, .is_tensor = is_tensor, .label_count = labels};
    return graph->node_count++;
}

static void add_use(GraphBuilder *self, int32_t source, int32_t reader, const ReshardState *needed_states,
                    double times, bool is_from_memory) {
    if (self->parts[source].operator_node < 0 && self->parts[source].tensor_node < 0) return;
    ARENA_RESERVE(self->arena, self->uses, self->use_count, self->use_capacity);
    if (self->arena->failed) return;
    self->uses[self->use_count++] = (ShardingGraphUse){source, reader, needed_states, times};
    self->parts[source].readers++;
    self->parts[source].is_written |= is_from_memory;
}

static void add_edge(GraphBuilder *self, int32_t producer, const ReshardState *produced_states,
                     int32_t reader, const ReshardState *needed_states, double scale, double share,
                     bool is_f32_sum) {
    ShardingGraph *graph = self->graph;
    ARENA_RESERVE(self->arena, graph->edges, graph->edge_count, self->edge_capacity);
    if (self->arena->failed) return;
    graph->edges[graph->edge_count++] = (ShardingGraphEdge){.producer = producer,
                                                            .reader = reader,
                                                            .produced_states = produced_states,
                                                            .needed_states = needed_states,
                                                            .scale = (float)scale,
                                                            .share = (float)share,
                                                            .is_f32_sum = is_f32_sum};
}

/* Adds a node for the states in which i's result may be kept, which are its labels, and returns it. */
static const ReshardState *add_tensor(GraphBuilder *self, int32_t i) {
    const ReshardCosts *reshards = self->graph->reshards;
    const IrShape *shape = split_options_array_shape(ir_instruction(self->module, i));
    int32_t ranks = shape->rank < RESHARD_DIMENSIONS ? shape->rank : RESHARD_DIMENSIONS, count = 0;
    bool may_be_partial = false, has_more = shape->rank > ranks;
    /* A source that reads or continues a sum over micro-batches may be partial. */
    for (int32_t k = 0; k < self->split_options->accumulation_count && is_source(self, i); k++)
        may_be_partial |= self->split_options->accumulations[k].reader == i ||
                          self->split_options->accumulations[k].afterwards == i;
    ReshardState *states = ARENA_ARRAY(self->arena, ReshardState, RESHARD_STATES + 1);
    for (int32_t state = 0; states && state < RESHARD_STATES; state++) {
        bool is_fit = true;
        int64_t left[RESHARD_DIMENSIONS + 1];
        for (int32_t d = 0; d < ranks; d++) left[d] = shape->dimensions[d];
        for (int32_t k = 0; k < RESHARD_AXES; k++) {
            int32_t here = reshard_axis_state((ReshardState)state, k), d = here - 2;
            if (k >= reshards->axis_count) is_fit &= here == 0;
            else if (here == 1) is_fit &= may_be_partial;
            else if (d >= ranks) is_fit = false;
            else if (d >= 0) is_fit &= (left[d] /= reshards->sizes[k]) > 0;
        }
        if (is_fit) states[count++] = (ReshardState)state;
    }
    if (states && has_more) states[count++] = RESHARD_ANY;
    self->parts[i].tensor_node = add_node(self, i, true, count);
    return states;
}

static void add_nodes(GraphBuilder *self) {
    const SplitOptions *split_options = self->split_options;
    for (int32_t n = 0; n < split_options->decided_count; n++) {
        int32_t i = split_options->decided[n];
        ShardingGraphPart *part = &self->parts[i];
        if (is_source(self, i)) {
            part->produced_states = add_tensor(self, i);
        } else if (self->rules->rules[i].result_count > 0 && !rules_loop(self->rules, i) &&
                   !rules_conditional(self->rules, i)) {
            for (int32_t axis = 0; axis < RESHARD_AXES; axis++) list_options(self, i, axis);
            part->operator_node = add_node(self, i, false, label_count(part));
            part->operator_states = slot_states(self, i, self->rules->rules[i].operand_count, NULL);
            part->produced_states = part->operator_states;
        }
    }
}

/* Adds the use of operand k of i, from where it is kept, through broadcasts that are made on demand. */
static void use_operand(GraphBuilder *self, int32_t i, int32_t k) {
    const IrInstruction *instruction = ir_instruction(self->module, i);
    int32_t place = self->split_options->first_operand[i] + k, source = self->split_options->operands[place];
    int32_t dimensions[IR_MAX_RANK];
    const int32_t *mapped = NULL;
    if (k >= self->rules->rules[i].operand_count) return;
    if (ir_instruction(self->module, instruction->operands[k])->shape.type == DTYPE_TUPLE ||
        self->rules->leaf[instruction->operands[k]] != 0)
        return;
    bool is_made = self->rules->on_demand[source];
    if (is_made) {
        int32_t rank = split_options_array_shape(ir_instruction(self->module, source))->rank,
                kept = SHARDING_GRAPH_NOWHERE;
        for (int32_t d = 0; d < rank && d < IR_MAX_RANK; d++) {
            int32_t value = source, leaf = 0, dimension = d;
            dimensions[d] = SHARDING_GRAPH_NOWHERE;
            if (!rules_resolve(self->rules, &value, &leaf, &dimension) || leaf != 0) continue;
            kept = value;
            dimensions[d] = dimension;
        }
        if (kept < 0) return;
        source = kept;
        mapped = dimensions;
    }
    add_use(self, source, self->parts[i].operator_node, slot_states(self, i, k, mapped), self->times[i],
            is_made || !fusion_groups_is_element_wise(self->module, i) ||
                (self->fusion_groups.is_from_memory[place] && !self->fusion_groups.is_recomputed[place]));
}

/* Outputs are written; the new value of a parameter is resharded to the state in which it is kept. */
static void use_outputs(GraphBuilder *self) {
    const IrRoles *roles = self->context->roles;
    for (int32_t k = 0; k < roles->output_count; k++)
        if (self->rules->leaf[roles->outputs[k]] == 0)
            self->parts[self->rules->alias[roles->outputs[k]]].is_written = true;
    for (int32_t p = 0; p < roles->parameter_count; p++) {
        const IrParameter *parameter = &roles->parameters[p];
        if (parameter->output < 0 || self->parts[parameter->instruction].tensor_node < 0) continue;
        int32_t producer = self->rules->alias[roles->outputs[parameter->output]];
        if (self->rules->leaf[roles->outputs[parameter->output]] != 0 || producer == parameter->instruction)
            continue;
        add_use(self, producer, self->parts[parameter->instruction].tensor_node,
                self->parts[parameter->instruction].produced_states, 1, true);
    }
}

static void use_leaf(GraphBuilder *self, int32_t value, int32_t value_leaf, int32_t reader, double times) {
    int32_t leaf = value_leaf, producer = value;
    if (reader < 0 || producer < 0 || self->parts[reader].tensor_node < 0) return;
    rules_find_value(self->rules, &producer, &leaf);
    if (leaf != 0 || producer == reader) return;
    add_use(self, producer, self->parts[reader].tensor_node, self->parts[reader].produced_states, times,
            true);
}

/* Values that a loop carries have two sources: the initial value and, per iteration, the body. */
static void use_loops(GraphBuilder *self) {
    for (int32_t l = 0; l < self->rules->loop_count; l++) {
        const PlannedLoop *loop = &self->rules->loops[l];
        double outside = self->times[loop->instruction];
        for (int32_t k = 0; k < loop->leaf_count; k++) {
            const LoopLeaf *leaf = &loop->leaves[k];
            int32_t reader = loop_leaf_reader(leaf);
            if (reader < 0) continue;
            use_leaf(self, leaf->initial, leaf->initial_leaf, reader, outside);
            if (!leaf->is_invariant)
                use_leaf(self, leaf->next, leaf->next_leaf, reader, self->rules->times[loop->body]);
            if (leaf->afterwards >= 0 && leaf->afterwards != reader && self->parts[reader].tensor_node >= 0)
                use_leaf(self, reader, 0, leaf->afterwards, outside);
        }
    }
}

/* Returns whether operand k of i, an operator, may be partial, and that only with sums in f32;
 * `*narrow`: also with others. A result of several readers is finished before it is read. */
static bool takes_f32_sum(const GraphBuilder *self, int32_t i, int32_t k, bool *narrow) {
    const ShardingGraphPart *part = &self->parts[i];
    bool is_carried = false;
    for (int32_t axis = 0; axis < self->graph->reshards->axis_count; axis++)
        for (int32_t o = 0; o < part->option_count[axis]; o++)
            is_carried |= part->options[axis][o].partial >> k & 1;
    if (!is_carried) return false;
    int32_t source = self->split_options->operands[self->split_options->first_operand[i] + k];
    bool is_finished = self->parts[source].operator_node >= 0 && self->parts[source].readers > 1;
    if (is_finished) return false;
    *narrow |= !self->is_f32_sum[source];
    return self->is_f32_sum[source];
}

/* Marks 16-bit products whose partial sums are in f32 (linearity_is_16bit_product()), wherever they are
 * finished. */
static void find_f32_sums(GraphBuilder *self) {
    for (int32_t n = 0; n < self->split_options->decided_count; n++) {
        int32_t i = self->split_options->decided[n];
        const IrInstruction *instruction = ir_instruction(self->module, i);
        bool is_half = dtype_is_16bit_float(instruction->shape.type);
        const FactorRule *rule = &self->rules->rules[i];
        bool takes = false, narrow = false;
        if (self->parts[i].operator_node < 0 || !is_half) continue;
        for (int32_t f = 0; f < rule->factor_count; f++) narrow |= rule->factors[f].kind == FACTOR_REDUCTION;
        for (int32_t k = 0; k < instruction->operand_count && k < SHARDING_GRAPH_MOST_CARRYING; k++)
            takes |= takes_f32_sum(self, i, k, &narrow);
        self->is_f32_sum[i] = linearity_is_16bit_product(instruction) || (takes && !narrow);
    }
}

static void add_edges(GraphBuilder *self) {
    for (int32_t n = 0; n < self->split_options->decided_count; n++) {
        int32_t i = self->split_options->decided[n];
        ShardingGraphPart *part = &self->parts[i];
        if (part->operator_node < 0 || part->readers < 2) continue;
        const ReshardState *states = add_tensor(self, i);
        add_edge(self, part->operator_node, part->operator_states, part->tensor_node, states,
                 array_bytes(self, i) * self->times[i], 1, self->is_f32_sum[i]);
        part->produced_states = states;
    }
    for (int32_t u = 0; u < self->use_count; u++) {
        const ShardingGraphUse *use = &self->uses[u];
        const ShardingGraphPart *part = &self->parts[use->source];
        bool is_kept = part->tensor_node >= 0;
        double share = is_kept ? 1.0 / part->readers : 1;
        add_edge(self, is_kept ? part->tensor_node : part->operator_node, part->produced_states, use->reader,
                 use->needed_states, array_bytes(self, use->source) * use->times, share,
                 !is_kept && self->is_f32_sum[use->source]);
    }
}

/* Builds the index for looking up plans: uses by their sources, in the order of discovery. */
static AmStatus set_parts(const GraphBuilder *self, ShardingGraphParts *parts, AmError *error) {
    int32_t count = self->rules->count;
    const IrRoles *roles = self->context->roles;
    *parts = (ShardingGraphParts){.parts = self->parts,
                                  .times = self->times,
                                  .is_f32_sum = self->is_f32_sum,
                                  .uses = ARENA_ARRAY(self->arena, ShardingGraphUse, self->use_count + 1),
                                  .first_use = ARENA_ARRAY(self->arena, int32_t, count + 2),
                                  .is_optimizer = ARENA_ARRAY(self->arena, bool, count + 1),
                                  .kept_bytes = ARENA_ARRAY(self->arena, double, count + 1)};
    if (self->arena->failed) return am_fail_memory(error, count);
    for (int32_t u = 0; u < self->use_count; u++) parts->first_use[self->uses[u].source + 2]++;
    for (int32_t i = 0; i < count; i++) parts->first_use[i + 2] += parts->first_use[i + 1];
    for (int32_t u = 0; u < self->use_count; u++)
        parts->uses[parts->first_use[self->uses[u].source + 1]++] = self->uses[u];
    for (int32_t p = 0; p < roles->parameter_count; p++)
        parts->is_optimizer[roles->parameters[p].instruction] =
            roles->parameters[p].role == IR_ROLE_OPTIMIZER;
    for (int32_t p = 0; p < roles->parameter_count; p++)
        if (roles->parameters[p].output >= 0)
            parts->kept_bytes[roles->parameters[p].instruction] =
                array_bytes(self, roles->parameters[p].instruction) *
                ir_layers_of(self->module, roles->parameters[p].instruction);
    return AM_OK;
}

/* Builds the graph with these costs of its edges; type NULL: without seconds of computing. */
static AmStatus create_graph(ShardingGraph **graph, Arena *arena, const PlanContext *context,
                             const Mesh *mesh, const ReshardCosts *reshards, const ClusterDeviceType *type,
                             AmError *error) {
    int32_t count = context->rules->count;
    GraphBuilder self = {.arena = arena,
                         .graph = ARENA_ARRAY(arena, ShardingGraph, 1),
                         .context = context,
                         .module = context->canonical,
                         .rules = context->rules,
                         .split_options = context->split_options,
                         .parts = ARENA_ARRAY(arena, ShardingGraphPart, count + 1),
                         .times = ARENA_ARRAY(arena, double, count + 1),
                         .is_f32_sum = ARENA_ARRAY(arena, bool, count + 1)};
    ShardingGraphParts *parts = ARENA_ARRAY(arena, ShardingGraphParts, 1);
    if (arena->failed) return am_fail_memory(error, count);
    *self.graph = (ShardingGraph){.context = context, .mesh = mesh, .reshards = reshards, .parts = parts};
    parts->parts = self.parts;
    for (int32_t i = 0; i < count; i++)
        self.parts[i].operator_node = self.parts[i].tensor_node = SHARDING_GRAPH_NOWHERE;
    TRY(fusion_groups_find(&self.fusion_groups, arena, context, error));
    for (int32_t c = 0; c < self.module->computation_count; c++) {
        const IrComputation *computation = &self.module->computations[c];
        for (int32_t i = computation->first; i < computation->first + computation->count; i++)
            self.times[i] =
                self.rules->is_planned[c] ? self.rules->times[c] * ir_layers_of(self.module, i) : 0;
    }
    add_nodes(&self);
    for (int32_t n = 0; n < self.split_options->decided_count && !arena->failed; n++) {
        int32_t i = self.split_options->decided[n];
        if (self.parts[i].operator_node < 0) continue;
        for (int32_t k = 0; k < ir_instruction(self.module, i)->operand_count; k++) use_operand(&self, i, k);
    }
    use_outputs(&self);
    use_loops(&self);
    if (arena->failed) return am_fail_memory(error, count);
    const ShardingGraphComputing computing = {.graph = self.graph,
                                              .context = self.graph->context,
                                              .reshards = self.graph->reshards,
                                              .parts = self.parts,
                                              .times = self.times,
                                              .fusion_groups = &self.fusion_groups,
                                              .type = type};
    if (type) TRY(sharding_graph_set_seconds(&computing, arena, error));
    find_f32_sums(&self);
    add_edges(&self);
    if (arena->failed) return am_fail_memory(error, count);
    *graph = self.graph;
    return set_parts(&self, parts, error);
}

AmStatus sharding_graph_create(ShardingGraph **graph, Arena *arena, const PlanContext *context,
                               const PlacedMesh *on, AmError *error) {
    const ClusterDeviceType *type = cluster_device_type(on->cluster, on->devices[0]);
    ReshardCosts *reshards;
    *graph = NULL;
    for (int32_t d = 1; d < on->mesh->device_count; d++)
        if (cluster_device_type(on->cluster, on->devices[d]) != type) return AM_OK;
    if (type->profile || type->operators || !mesh_has_equal_shares(on->mesh)) return AM_OK;
    TRY(reshard_costs_create(&reshards, arena, on, RESHARD_ANY_ORDER, error));
    return reshards ? create_graph(graph, arena, context, on->mesh, reshards, type, error) : AM_OK;
}

AmStatus sharding_graph_create_estimate(ShardingGraph **graph, Arena *arena, const PlanContext *context,
                                        const PlacedMesh *on, AmError *error) {
    const ClusterDeviceType *slowest = cluster_device_type(on->cluster, on->devices[0]);
    ReshardCosts *reshards;
    *graph = NULL;
    for (int32_t d = 0; d < on->mesh->device_count; d++) {
        const ClusterDeviceType *type = cluster_device_type(on->cluster, on->devices[d]);
        if (type->profile || type->operators) return AM_OK;
        if (type->flops_per_second[DTYPE_F32] < slowest->flops_per_second[DTYPE_F32]) slowest = type;
    }
    TRY(reshard_costs_create(&reshards, arena, on, RESHARD_ANY_ORDER, error));
    return reshards ? create_graph(graph, arena, context, on->mesh, reshards, slowest, error) : AM_OK;
}

AmStatus sharding_graph_create_mixed(ShardingGraph **graph, Arena *arena, const PlanContext *context,
                                     const PlacedMesh *on, AmError *error) {
    ReshardCosts *reshards;
    *graph = NULL;
    TRY(reshard_costs_create(&reshards, arena, on, RESHARD_ANY_SHARES, error));
    return reshards ? create_graph(graph, arena, context, on->mesh, reshards, NULL, error) : AM_OK;
}
