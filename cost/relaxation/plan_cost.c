/* The cost of a plan in the sharding graph.
 *
 * A sample has one operator or tensor of each kind, weighted by the frequency of the kind. An
 * assignment of a sample covers these and their neighbours up to NEIGHBOURHOOD uses away, which
 * determine a decision. The cost is approximate if instructions with equal neighbourhoods differ.
 */
#include "cost/relaxation/graph_bound.h"
#include "cost/relaxation/graph_parts.h"

#include <math.h>
#include <string.h>

#include "base/hash.h"
#include "ir/analysis/loops.h"
#include "lowering/spmd/lower_internal.h"

enum { KIND_ROUNDS = 3, NEIGHBOURHOOD = 1, MOST_USES = 6 };
/* Smaller values are ignored in neighbourhoods: scalars that all layers read would connect all
 * layers. */
#define LEAST_BYTES 4096
/* Loops tie values that are far apart, so that a sample of a module with loops is less precise. It replaces
 * the module only if it is at most this part of it. */
#define MOST_OF_LOOPS 0.25

/* Returns the index of the option that an assignment chooses for instruction i on an axis; -1 for a split
 * outside the options, which no plan can request. */
static int32_t find_option(const ShardingGraph *graph, const Assignment *assignment, int32_t i,
                           int32_t axis) {
    const ShardingGraphPart *part = &graph->parts->parts[i];
    const SplitOptions *split_options = graph->context->split_options;
    if (axis >= graph->reshards->axis_count) return 0;
    int32_t mesh_axis = graph->reshards->axes[axis];
    int8_t factor = assignment->factor[(size_t)i * MESH_MAX_AXES + (size_t)mesh_axis];
    uint8_t partial = 0;
    const int32_t *operands = &split_options->operands[split_options->first_operand[i]];
    int32_t count = split_options->first_operand[i + 1] - split_options->first_operand[i];
    if (!(assignment->carries[i] >> mesh_axis & 1)) count = 0;
    for (int32_t k = 0; k < count && k < SHARDING_GRAPH_MOST_CARRYING; k++)
        partial |= (uint8_t)((assignment->deferred[operands[k]] >> mesh_axis & 1) << k);
    for (int32_t o = 0; o < part->option_count[axis]; o++)
        if (part->options[axis][o].factor == factor && part->options[axis][o].partial == partial) return o;
    return -1;
}

/* Looks up the label of instruction i. `*is_listed` is false for a split outside the options; the
 * label is then that of a replicated instruction. */
static int32_t find_label_of_list(const ShardingGraph *graph, const Assignment *assignment, int32_t i,
                                  bool *is_listed) {
    int32_t major = find_option(graph, assignment, i, 0), minor = find_option(graph, assignment, i, 1);
    *is_listed = major >= 0 && minor >= 0;
    return (major < 0 ? 0 : major) * graph->parts->parts[i].option_count[1] + (minor < 0 ? 0 : minor);
}

static int32_t find_label(const ShardingGraph *graph, const Assignment *assignment, int32_t i) {
    bool is_listed;
    return find_label_of_list(graph, assignment, i, &is_listed);
}

/* Returns the state in which i's result is kept for its readers. */
static ReshardState kept_state(const ShardingGraph *graph, const Assignment *assignment, int32_t i) {
    SbpState state = assignment->stored[i];
    for (int32_t axis = 0; axis < MESH_MAX_AXES; axis++)
        if (assignment->deferred[i] >> axis & 1) sbp_set(&state, axis, sbp_partial(SBP_ADD));
    return reshard_state_of(graph->reshards, state);
}

/* Returns the state in which the reader of a use needs the value. */
static ReshardState needed_state(const ShardingGraph *graph, const Assignment *assignment,
                                 const ShardingGraphUse *use) {
    const ShardingGraphNode *reader = &graph->nodes[use->reader];
    if (reader->is_tensor) return kept_state(graph, assignment, reader->instruction);
    return use->needed_states[find_label(graph, assignment, reader->instruction)];
}

/* Returns the number of shards in a state. */
static double ways_of(const ShardingGraph *graph, ReshardState state) {
    double ways = 1;
    for (int32_t axis = 0; axis < graph->reshards->axis_count && state != RESHARD_ANY; axis++)
        if (reshard_axis_state(state, axis) >= 2) ways *= graph->reshards->sizes[axis];
    return ways;
}

static IrPhase phase_of(const ShardingGraph *graph, int32_t i) {
    return graph->context->roles->phases[i];
}

/* Returns the purpose for which a reader takes the result of instruction i. A parameter takes the result that
 * updates it. */
static ShardingGraphPurpose purpose_of(const ShardingGraph *graph, int32_t i, int32_t reader) {
    bool is_update = phase_of(graph, i) == IR_PHASE_OPTIMIZER ||
                     phase_of(graph, reader) == IR_PHASE_OPTIMIZER || graph->parts->kept_bytes[reader] > 0;
    if (is_update) return SHARDING_GRAPH_UPDATES;
    return graph->parts->parts[i].operator_node >= 0 ? SHARDING_GRAPH_VALUES : SHARDING_GRAPH_WEIGHTS;
}

/* A tensor that is resharded, `times` times in all `runs` of a loop. */
typedef struct Moved {
    double runs, times;
    ShardingGraphPurpose purpose;
} Moved;

/* Adds the traffic of resharding a tensor between two states; returns the seconds of one time. `bytes`: of
 * all its runs. */
static double add_reshard(ShardingGraphCost *cost, const ShardingGraph *graph, ReshardState from,
                          ReshardState to, double bytes, bool is_f32_sum, const Moved *of) {
    float per_byte = graph->reshards->seconds[is_f32_sum][from][to];
    double seconds = bytes > 0 && isfinite(per_byte) ? per_byte * bytes : 0;
    bool changes[RESHARD_AXES] = {false};
    int32_t changed = 0, axes = graph->reshards->axis_count;
    if (seconds <= 0 || from == RESHARD_ANY || to == RESHARD_ANY) return seconds;
    for (int32_t axis = 0; axis < axes; axis++) {
        changes[axis] = reshard_axis_state(from, axis) != reshard_axis_state(to, axis);
        changed += changes[axis];
    }
    for (int32_t axis = 0; axis < axes; axis++) {
        if (!changes[axis]) continue;
        cost->traffic[of->purpose][axis].seconds += of->times * seconds / changed;
        cost->traffic[of->purpose][axis].messages += of->times * of->runs / changed;
    }
    return seconds;
}

/* Adds the cost of instruction i, and of resharding its result for all that use it, `times` times. */
static void add_instruction(ShardingGraphCost *cost, const ShardingGraph *graph, const Assignment *assignment,
                            int32_t i, double times, const ShardingGraphUse *uses, int32_t use_count) {
    const ShardingGraphParts *parts = graph->parts;
    const ShardingGraphPart *part = &parts->parts[i];
    double bytes = graph->context->split_options->array_bytes[i], runs = parts->times[i];
    int32_t layers = ir_layers_of(graph->context->canonical, i);
    ReshardState kept = kept_state(graph, assignment, i);
    uint64_t paid = 0; /* states (bits) that it is resharded to */
    double moved = 0;
    bool is_saved = false;
    if (part->operator_node >= 0) {
        const ShardingGraphNode *node = &graph->nodes[part->operator_node];
        int32_t reader = use_count > 0 ? graph->nodes[uses[0].reader].instruction : i;
        bool is_listed;
        int32_t label = find_label_of_list(graph, assignment, i, &is_listed);
        if (node->seconds && is_listed) cost->compute_seconds += times * (double)node->seconds[label];
        const Moved of = {runs, times, purpose_of(graph, i, reader)};
        moved += add_reshard(cost, graph, part->operator_states[label], kept, bytes * runs,
                             parts->is_f32_sum[i], &of);
    }
    for (int32_t u = 0; u < use_count; u++) {
        int32_t reader = graph->nodes[uses[u].reader].instruction;
        ReshardState needed = needed_state(graph, assignment, &uses[u]);
        is_saved |= phase_of(graph, reader) == IR_PHASE_BACKWARD;
        if (needed == RESHARD_ANY || kept == RESHARD_ANY || paid >> needed & 1) continue;
        paid |= (uint64_t)1 << needed;
        const Moved of = {runs, times, purpose_of(graph, i, reader)};
        moved += add_reshard(cost, graph, kept, needed, bytes * uses[u].times, false, &of);
    }
    cost->communication_seconds += times * moved;
    double own_bytes = bytes / ways_of(graph, kept);
    bool is_kept = !assignment->stage->offloads_optimizer || !parts->is_optimizer[i];
    if (is_kept) cost->kept_bytes += times * parts->kept_bytes[i] / ways_of(graph, kept);
    cost->widest_bytes = fmax(cost->widest_bytes, own_bytes);
    if (is_saved && phase_of(graph, i) == IR_PHASE_FORWARD) cost->saved_bytes += times * layers * own_bytes;
}

ShardingGraphCost sharding_graph_cost(const ShardingGraph *graph, const Assignment *assignment) {
    const SplitOptions *split_options = graph->context->split_options;
    ShardingGraphCost cost = {0};
    for (int32_t n = 0; n < split_options->decided_count; n++) {
        int32_t i = split_options->decided[n], first = graph->parts->first_use[i];
        add_instruction(&cost, graph, assignment, i, 1, &graph->parts->uses[first],
                        graph->parts->first_use[i + 1] - first);
    }
    return cost;
}

/* Returns the label of the state in which the assignment keeps the tensor, or any. */
static int32_t find_kept(const ShardingGraph *graph, const Assignment *assignment, int32_t node) {
    int32_t i = graph->nodes[node].instruction, any = 0;
    const ReshardState *states = graph->parts->parts[i].produced_states;
    ReshardState kept = kept_state(graph, assignment, i);
    for (int32_t label = 0; label < graph->nodes[node].label_count; label++) {
        if (states[label] == kept) return label;
        if (states[label] == RESHARD_ANY) any = label;
    }
    return any;
}

AmStatus sharding_graph_labels(int32_t **labels, Arena *arena, const ShardingGraph *graph,
                               const Assignment *assignment, AmError *error) {
    *labels = ARENA_ARRAY(arena, int32_t, graph->node_count + 1);
    if (!*labels) return am_fail_memory(error, graph->node_count);
    for (int32_t n = 0; n < graph->node_count; n++)
        (*labels)[n] = graph->nodes[n].is_tensor ? find_kept(graph, assignment, n)
                                                 : find_label(graph, assignment, graph->nodes[n].instruction);
    return AM_OK;
}

bool sharding_graph_label_factors(const ShardingGraph *graph, int32_t node, int32_t label,
                                  int32_t factors[MESH_MAX_AXES]) {
    const ShardingGraphPart *part = &graph->parts->parts[graph->nodes[node].instruction];
    const int32_t places[RESHARD_AXES] = {label / part->option_count[1], label % part->option_count[1]};
    for (int32_t axis = 0; axis < MESH_MAX_AXES; axis++) factors[axis] = -1;
    for (int32_t axis = 0; axis < graph->reshards->axis_count; axis++) {
        const ShardingGraphOption *option = &part->options[axis][places[axis]];
        if (option->partial) return false;
        factors[graph->reshards->axes[axis]] = option->factor;
    }
    return true;
}

static bool find_sbp_state(const ShardingGraph *graph, ReshardState kept, SbpState *state) {
    *state = (SbpState){.axis = {SBP_B}};
    if (kept == RESHARD_ANY) return false;
    for (int32_t axis = 0; axis < graph->reshards->axis_count; axis++) {
        Sbp sbp = reshard_axis_sbp(kept, axis);
        if (sbp_is_partial(sbp)) return false;
        sbp_set(state, graph->reshards->axes[axis], sbp);
    }
    return true;
}

bool sharding_graph_label_state(const ShardingGraph *graph, int32_t node, int32_t label, SbpState *state) {
    return find_sbp_state(graph, graph->parts->parts[graph->nodes[node].instruction].produced_states[label],
                          state);
}

bool sharding_graph_wanted_state(const ShardingGraph *graph, const Assignment *assignment, int32_t i,
                                 SbpState *state) {
    const ShardingGraphPart *part = &graph->parts->parts[i];
    const ShardingGraphUse *use = &graph->parts->uses[graph->parts->first_use[i]];
    if (part->operator_node < 0 || part->tensor_node >= 0 || part->readers != 1) return false;
    ReshardState produced = part->operator_states[find_label(graph, assignment, i)];
    ReshardState kept = kept_state(graph, assignment, i), needed = needed_state(graph, assignment, use);
    if (kept == produced || kept == needed) return false;
    return find_sbp_state(graph, needed, state);
}

/* ---- samples ---- */

struct ShardingGraphSample {
    const ShardingGraph *graph;
    PlanContext context; /* the graph's, with the decisions of the sample alone */
    SplitOptions split_options;
    int32_t *instructions;  /* [count]: one of each kind */
    double *times;          /* [count] */
    int32_t *first_use;     /* [count + 1]: in `uses` */
    ShardingGraphUse *uses; /* of their results, by one reader of each kind */
    int32_t count;
};

/* Adds instructions one use away from a wanted instruction; for values with many users, only some. */
static void add_neighbours(const SplitOptions *split_options, bool *wanted, bool *before) {
    memcpy(before, wanted, (size_t)split_options->count);
    for (int32_t n = 0; n < split_options->decided_count; n++) {
        int32_t i = split_options->decided[n];
        for (int32_t k = split_options->first_operand[i]; k < split_options->first_operand[i + 1]; k++) {
            int32_t source = split_options->operands[k];
            if (split_options->array_bytes[source] < LEAST_BYTES) continue;
            if (before[i]) wanted[source] = true;
            if (before[source] && split_options->uses[source] <= MOST_USES) wanted[i] = true;
        }
    }
}

static uint64_t choices_signature(const SplitOption *split_options, int32_t count, const Classes *classes) {
    uint64_t signature = 0;
    for (int32_t k = 0; k < count; k++) {
        int32_t tie =
            split_options[k].class_index < 0 ? -1 : classes->classes[split_options[k].class_index].tie;
        signature = hash_combine(signature, (uint64_t)(uint32_t)tie << 8 | (uint8_t)split_options[k].place);
    }
    return signature;
}

/* Hashes the neighbourhood of each instruction with the ties of its dimensions and factors, which
 * determine its decisions. */
static uint64_t *find_signatures(const ShardingGraph *graph, Arena *arena) {
    const SplitOptions *split_options = graph->context->split_options;
    const Classes *classes = graph->context->classes;
    uint64_t *signatures = ARENA_ARRAY(arena, uint64_t, split_options->count + 1);
    for (int32_t i = 0; signatures && i < split_options->count; i++) {
        int32_t dimension = split_options->first_dimension[i], factor = split_options->first_factor[i];
        signatures[i] =
            hash_combine(choices_signature(&split_options->dimensions[dimension],
                                           split_options->first_dimension[i + 1] - dimension, classes),
                         choices_signature(&split_options->factors[factor],
                                           split_options->first_factor[i + 1] - factor, classes));
    }
    return signatures;
}

/* Chooses one instruction for each kind of operators, and of tensors that no operator makes. */
static AmStatus choose_instructions(ShardingGraphSample *self, Arena *arena, bool *wanted, AmError *error) {
    const ShardingGraph *graph = self->graph;
    const SplitOptions *split_options = graph->context->split_options;
    int32_t *kinds, kind_count;
    const uint64_t *signatures = find_signatures(graph, arena);
    if (!signatures) return am_fail_memory(error, split_options->count);
    TRY(sharding_graph_kinds(&kinds, &kind_count, arena, graph, signatures, KIND_ROUNDS, error));
    int32_t *place = ARENA_ARRAY(arena, int32_t, kind_count + 1);
    self->instructions = ARENA_ARRAY(arena, int32_t, kind_count + 1);
    self->times = ARENA_ARRAY(arena, double, kind_count + 1);
    if (arena->failed) return am_fail_memory(error, kind_count);
    for (int32_t k = 0; k < kind_count; k++) place[k] = -1;
    for (int32_t n = 0; n < split_options->decided_count; n++) {
        const ShardingGraphPart *part = &graph->parts->parts[split_options->decided[n]];
        int32_t node = part->operator_node >= 0 ? part->operator_node : part->tensor_node;
        if (node < 0) continue;
        if (place[kinds[node]] < 0) {
            place[kinds[node]] = self->count;
            self->instructions[self->count++] = split_options->decided[n];
        }
        self->times[place[kinds[node]]]++;
    }
    for (int32_t k = 0; k < self->count; k++) wanted[self->instructions[k]] = true;
    /* Their uses: of alike readers of a result the first. */
    const ShardingGraphParts *parts = graph->parts;
    int32_t most = 0, count = 0, *seen = ARENA_ARRAY(arena, int32_t, kind_count + 1);
    for (int32_t k = 0; k < self->count; k++)
        most += parts->first_use[self->instructions[k] + 1] - parts->first_use[self->instructions[k]];
    self->first_use = ARENA_ARRAY(arena, int32_t, self->count + 1);
    self->uses = ARENA_ARRAY(arena, ShardingGraphUse, most + 1);
    if (arena->failed) return am_fail_memory(error, most);
    for (int32_t k = 0; k < self->count; k++) {
        int32_t i = self->instructions[k];
        for (int32_t u = parts->first_use[i]; u < parts->first_use[i + 1]; u++) {
            const ShardingGraphUse *use = &parts->uses[u];
            if (seen[kinds[use->reader]] == k + 1) continue;
            seen[kinds[use->reader]] = k + 1;
            wanted[graph->nodes[use->reader].instruction] = true;
            self->uses[count++] = *use;
        }
        self->first_use[k + 1] = count;
    }
    return AM_OK;
}

AmStatus sharding_graph_sample(ShardingGraphSample **sample, Arena *arena, const ShardingGraph *graph,
                               AmError *error) {
    const SplitOptions *split_options = graph->context->split_options;
    ShardingGraphSample *self = *sample = ARENA_ARRAY(arena, ShardingGraphSample, 1);
    bool *wanted = ARENA_ARRAY(arena, bool, split_options->count + 1);
    bool *before = ARENA_ARRAY(arena, bool, split_options->count + 1);
    int32_t *decided = ARENA_ARRAY(arena, int32_t, split_options->decided_count + 1);
    if (arena->failed) return am_fail_memory(error, split_options->count);
    self->graph = graph;
    self->context = *graph->context;
    self->split_options = *split_options;
    TRY(choose_instructions(self, arena, wanted, error));
    for (int32_t k = 0; k < NEIGHBOURHOOD; k++) add_neighbours(split_options, wanted, before);
    /* Adds all holders of an array that a loop carries, if one of them is wanted: they have one state. */
    for (int32_t k = 0; k < graph->context->rules->loop_count; k++) {
        wanted[graph->context->rules->loops[k].instruction] = true;
        for (int32_t l = 0; l < graph->context->rules->loops[k].leaf_count; l++) {
            const LoopLeaf *leaf = &graph->context->rules->loops[k].leaves[l];
            const int32_t holders[] = {leaf->initial, leaf->next, leaf->in_body, leaf->in_condition,
                                       leaf->afterwards};
            enum { HOLDERS = sizeof holders / sizeof *holders };
            bool is_wanted = false;
            for (int32_t h = 0; h < HOLDERS; h++) is_wanted |= holders[h] >= 0 && wanted[holders[h]];
            for (int32_t h = 0; is_wanted && h < HOLDERS; h++)
                if (holders[h] >= 0) wanted[holders[h]] = true;
        }
    }
    int32_t count = 0;
    for (int32_t n = 0; n < split_options->decided_count; n++)
        if (wanted[split_options->decided[n]]) decided[count++] = split_options->decided[n];
    if (graph->context->rules->loop_count == 0 || count <= MOST_OF_LOOPS * split_options->decided_count) {
        self->split_options.decided = decided;
        self->split_options.decided_count = count;
    }
    self->context.split_options = &self->split_options;
    return AM_OK;
}

const PlanContext *sharding_graph_sample_context(const ShardingGraphSample *sample) {
    return &sample->context;
}

ShardingGraphCost sharding_graph_sample_cost(const ShardingGraphSample *sample,
                                             const Assignment *assignment) {
    ShardingGraphCost cost = {0};
    for (int32_t k = 0; k < sample->count; k++)
        add_instruction(&cost, sample->graph, assignment, sample->instructions[k], sample->times[k],
                        &sample->uses[sample->first_use[k]], sample->first_use[k + 1] - sample->first_use[k]);
    return cost;
}
