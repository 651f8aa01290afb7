/* Windows of modules as decision problems.
 *
 * A strategy is a factor (or none) per mesh axis that divides evenly; the most_bytes ones are kept. Its
 * seconds are the roofline's for the shard of one device (cost/operator/operator.h), its bytes those of the
 * result and of the parameters that it reads, these four times (gradient and Adam's moments). Between two
 * operators of the window the array is resharded from the state of the producer to the state that the reader
 * needs. This takes the corresponding collective of each axis (OneFlow, table 2), whose seconds are the
 * cluster's; values from outside the window are in any needed state. */
#include "bench/quality/decisions_cut.h"

#include <math.h>
#include <stdlib.h>

#include "base/compare.h"
#include "base/random.h"
#include "cost/collective/collective.h"
#include "cost/operator/operator.h"
#include "ir/analysis/flops.h"

#define AXES             2
#define WHOLE            (-1) /* no factor on this axis */
#define MOST_PAIRS       256
#define MOST_OPERANDS    8
#define PARAMETER_COPIES 4 /* weight, gradient and two moments */
/* Memory: so far on the way from the least to the most that the strategies need. */
#define TIGHT     0.3
#define LOOSE     0.8
#define MOST_NEAR 80

typedef struct Strategy {
    int8_t factor[AXES];
    double seconds, bytes;
} Strategy;

typedef struct Cut {
    const PlanContext *context;
    const Cluster *cluster;
    const ClusterDeviceType *type;
    Mesh mesh;
    CollectiveTopology topologies[AXES];
    int32_t count, window[CUT_MOST]; /* canonical instructions */
    Strategy strategies[CUT_MOST][DECISIONS_MOST_STRATEGIES];
} Cut;

/* The state of an operator's slot if an axis splits this factor. */
static Sbp slot_state(const FactorRule *rule, int8_t factor, int32_t slot) {
    if (factor == WHOLE) return SBP_B;
    int8_t dimension = rule->factors[factor].dimension[slot];
    if (dimension >= 0) return sbp_split(dimension);
    bool is_partial = slot >= rule->operand_count && factor_leaves_partial(&rule->factors[factor], slot);
    return is_partial ? sbp_partial(rule->factors[factor].reduction) : SBP_B;
}

/* Parts that a strategy cuts a slot in. */
static int32_t slot_ways(const Cut *cut, const FactorRule *rule, const Strategy *strategy, int32_t slot) {
    int32_t ways = 1;
    for (int32_t axis = 0; axis < AXES; axis++)
        if (sbp_is_split(slot_state(rule, strategy->factor[axis], slot))) ways *= cut->mesh.axes[axis].size;
    return ways;
}

static double shape_bytes(const IrShape *shape) {
    return (double)ir_shape_elements(shape) * (double)dtype_bytes(shape->type);
}

static bool divides(const Cut *cut, const FactorRule *rule, const Strategy *strategy) {
    for (int32_t axis = 0; axis < AXES; axis++) {
        int8_t f = strategy->factor[axis];
        if (f == WHOLE) continue;
        int64_t ways = cut->mesh.axes[axis].size;
        if (axis > 0 && strategy->factor[0] == f) ways *= cut->mesh.axes[0].size;
        const Factor *factor = &rule->factors[f];
        if (factor->kind == FACTOR_BLOCKED || factor->kind == FACTOR_PERMUTATION || factor->halo ||
            factor->blocks || factor->size % ways != 0)
            return false;
    }
    return true;
}

/* Seconds and bytes of a strategy of instruction i, on one device. */
static void price_strategy(const Cut *cut, int32_t i, Strategy *strategy) {
    const Rules *rules = cut->context->rules;
    const FactorRule *rule = &rules->rules[i];
    const IrInstruction *instruction = &rules->module->instructions[i];
    IrShape operands[MOST_OPERANDS];
    double parts = 1, moved = 0;
    for (int32_t axis = 0; axis < AXES; axis++)
        if (strategy->factor[axis] != WHOLE) parts *= cut->mesh.axes[axis].size;
    strategy->bytes = 0;
    for (int32_t slot = 0; slot <= rule->operand_count; slot++) {
        const IrShape *shape = rules_slot_shape(rules, i, slot);
        double bytes = shape_bytes(shape) / slot_ways(cut, rule, strategy, slot);
        moved += bytes;
        if (slot == rule->operand_count) strategy->bytes += bytes;
        else {
            operands[slot] = *shape;
            int32_t source = rules->alias[instruction->operands[slot]];
            if (rules->module->instructions[source].opcode == IR_PARAMETER)
                strategy->bytes += PARAMETER_COPIES * bytes;
        }
    }
    OperatorUnit unit = operator_unit(instruction->opcode);
    OperatorWork work = {.flops = ir_flops(rules->module, instruction, operands, &instruction->shape) / parts,
                         .bytes = moved,
                         .unit = unit,
                         .type = rules_slot_shape(rules, i, 0)->type,
                         .is_run = true};
    strategy->seconds = operator_seconds(&work, cut->type);
}

static int compare_strategies(const void *left, const void *right) {
    const Strategy *a = left, *b = right;
    if (a->seconds != b->seconds) return a->seconds < b->seconds ? -1 : 1;
    for (int32_t axis = 0; axis < AXES; axis++)
        if (a->factor[axis] != b->factor[axis]) return a->factor[axis] - b->factor[axis];
    return 0;
}

/* The most_bytes strategies of instruction i; returns how many. */
static int32_t list_strategies(const Cut *cut, int32_t i, Strategy kept[DECISIONS_MOST_STRATEGIES]) {
    const FactorRule *rule = &cut->context->rules->rules[i];
    Strategy all[MOST_PAIRS];
    int32_t count = 0;
    for (int8_t first = WHOLE; first < rule->factor_count; first++)
        for (int8_t second = WHOLE; second < rule->factor_count && count < MOST_PAIRS; second++) {
            Strategy strategy = {.factor = {first, second}};
            if (!divides(cut, rule, &strategy)) continue;
            price_strategy(cut, i, &strategy);
            all[count++] = strategy;
        }
    qsort(all, (size_t)count, sizeof *all, compare_strategies);
    if (count > DECISIONS_MOST_STRATEGIES) count = DECISIONS_MOST_STRATEGIES;
    for (int32_t k = 0; k < count; k++) kept[k] = all[k];
    return count;
}

/* Returns whether instruction i is an operator whose split is a decision. */
static bool is_operator(const PlanContext *context, int32_t i) {
    const FactorRule *rule = &context->rules->rules[i];
    const IrInstruction *instruction = &context->canonical->instructions[i];
    return i < context->rules->entry_count && context->split_options->live[i] &&
           !context->rules->on_demand[i] && instruction->opcode != IR_PARAMETER && rule->factor_count > 0 &&
           rule->factor_count < 16 && rule->result_count == 1 && instruction->shape.type != DTYPE_TUPLE &&
           rule->operand_count > 0 && rule->operand_count <= MOST_OPERANDS &&
           rule->operand_count == instruction->operand_count && ir_shape_elements(&instruction->shape) > 1;
}

/* Seconds of bringing `bytes` from one state into another on one axis; the bytes that a device sends are
 * added to *moved. */
static double reshard_seconds(const Cut *cut, int32_t axis, Sbp have, Sbp want, double bytes, double *moved) {
    if (have == want || have == SBP_B) return 0;
    ProgramCollectiveKind kind = sbp_is_partial(have)
                                     ? (want == SBP_B ? PROGRAM_ALL_REDUCE : PROGRAM_REDUCE_SCATTER)
                                     : (want == SBP_B ? PROGRAM_ALL_GATHER : PROGRAM_ALL_TO_ALL);
    *moved += collective_sent_bytes(kind, bytes, cut->mesh.axes[axis].size);
    return collective_seconds(kind, bytes, &cut->topologies[axis], cut->cluster);
}

/* The array that operator `from` makes and `to` reads in operand slot `slot`, each by one strategy. */
static void price_reshard(const Cut *cut, int32_t from, int32_t to, int32_t slot, DecisionEdge *edge,
                          int32_t a, int32_t b) {
    const Rules *rules = cut->context->rules;
    const FactorRule *sender = &rules->rules[cut->window[from]], *receiver = &rules->rules[cut->window[to]];
    Sbp have[AXES], want[AXES];
    double bytes = shape_bytes(rules_slot_shape(rules, cut->window[from], sender->operand_count));
    for (int32_t axis = 0; axis < AXES; axis++) {
        have[axis] = slot_state(sender, cut->strategies[from][a].factor[axis], sender->operand_count);
        want[axis] = slot_state(receiver, cut->strategies[to][b].factor[axis], slot);
    }
    for (int32_t axis = AXES - 1; axis >= 0; axis--) {
        double ways = 1;
        for (int32_t other = 0; other < AXES; other++)
            if (other != axis && sbp_is_split(have[other])) ways *= cut->mesh.axes[other].size;
        double before = edge->moved[axis][a][b];
        edge->seconds[a][b] +=
            reshard_seconds(cut, axis, have[axis], want[axis], bytes / ways, &edge->moved[axis][a][b]);
        have[axis] = want[axis];
        edge->moved[AXES + axis][a][b] += edge->moved[axis][a][b] > before;
    }
}

static int32_t find_in_window(const Cut *cut, int32_t instruction) {
    for (int32_t i = 0; i < cut->count; i++)
        if (cut->window[i] == instruction) return i;
    return -1;
}

static DecisionEdge *edge_between(Decisions *decisions, int32_t from, int32_t to) {
    for (int32_t e = 0; e < decisions->edge_count; e++)
        if (decisions->edges[e].from == from && decisions->edges[e].to == to) return &decisions->edges[e];
    if (decisions->edge_count == DECISIONS_MOST_EDGES) return NULL;
    DecisionEdge *edge = &decisions->edges[decisions->edge_count++];
    *edge = (DecisionEdge){.from = from, .to = to};
    return edge;
}

static void add_edges(const Cut *cut, Decisions *decisions, int32_t to) {
    const Rules *rules = cut->context->rules;
    const IrInstruction *instruction = &rules->module->instructions[cut->window[to]];
    for (int32_t slot = 0; slot < instruction->operand_count; slot++) {
        int32_t from = find_in_window(cut, rules->alias[instruction->operands[slot]]);
        DecisionEdge *edge = from >= 0 && from < to ? edge_between(decisions, from, to) : NULL;
        for (int32_t a = 0; edge && a < decisions->strategies[from]; a++)
            for (int32_t b = 0; b < decisions->strategies[to]; b++)
                price_reshard(cut, from, to, slot, edge, a, b);
    }
}

/* Arrays that operators x and y exchange. */
static int32_t links_between(const Cut *cut, int32_t x, int32_t y) {
    const Rules *rules = cut->context->rules;
    const IrInstruction *later = &rules->module->instructions[x > y ? x : y];
    int32_t count = 0;
    for (int32_t slot = 0; slot < later->operand_count; slot++)
        count += rules->alias[later->operands[slot]] == (x > y ? y : x);
    return count;
}

/* Operators from a drawn one on, MOST_NEAR at most, that have a choice; returns how many. */
static int32_t list_near(const Cut *cut, Random *random, int32_t near[MOST_NEAR]) {
    int32_t entry = cut->context->rules->entry_count, count = 0;
    for (int32_t i = (int32_t)random_below(random, entry); i < entry && count < MOST_NEAR; i++) {
        Strategy strategies[DECISIONS_MOST_STRATEGIES];
        if (is_operator(cut->context, i) && list_strategies(cut, i, strategies) > 1) near[count++] = i;
    }
    return count;
}

/* Grows a window from its centre by the neighbouring operator with the largest exchange, the
 * nearest among equals. Returns false when no operator exchanges data with the window. */
static bool find_window(Cut *cut, Decisions *decisions, Random *random) {
    int32_t near[MOST_NEAR], links[MOST_NEAR] = {0}, count = list_near(cut, random, near), size = 0;
    int32_t next = count / 2;
    while (size < cut->count && count > 0) {
        int32_t taken = cut->window[size++] = near[next];
        links[next] = INT32_MIN;
        for (int32_t n = 0; n < count; n++) links[n] += links_between(cut, near[n], taken);
        for (int32_t n = 0; n < count; n++)
            if (links[n] > links[next] ||
                (links[n] == links[next] && abs(n - count / 2) < abs(next - count / 2)))
                next = n;
        if (links[next] <= 0) break;
    }
    if (size < cut->count) return false;
    qsort(cut->window, (size_t)cut->count, sizeof *cut->window, compare_integers);
    for (int32_t i = 0; i < cut->count; i++)
        decisions->strategies[i] = list_strategies(cut, cut->window[i], cut->strategies[i]);
    return true;
}

static void take_strategies(const Cut *cut, Decisions *decisions, double tightness) {
    double most_bytes = 0;
    for (int32_t i = 0; i < decisions->count; i++)
        for (int32_t k = 0; k < decisions->strategies[i]; k++) {
            decisions->seconds[i][k] = cut->strategies[i][k].seconds;
            decisions->bytes[i][k] = cut->strategies[i][k].bytes;
        }
    for (int32_t i = 0; i < decisions->count; i++) add_edges(cut, decisions, i);
    decisions_complete(decisions);
    for (int32_t i = 0; i < decisions->count; i++) {
        double most = 0;
        for (int32_t k = 0; k < decisions->strategies[i]; k++) most = fmax(most, decisions->bytes[i][k]);
        most_bytes += most;
    }
    decisions->memory = decisions->least_after[0] + tightness * (most_bytes - decisions->least_after[0]);
}

/* Servers x devices of a server, and what collectives along either cost. */
static AmStatus lay_mesh(Cut *cut, Arena *arena, AmError *error) {
    int32_t servers = cut->cluster->server_count, count = cut->cluster->device_count;
    int32_t *devices = ARENA_ARRAY(arena, int32_t, count);
    if (!devices) return am_fail_memory(error, count * (int64_t)sizeof *devices);
    for (int32_t d = 0; d < count; d++) devices[d] = d;
    if (count % servers != 0)
        return am_fail(error, AM_ERROR_USAGE, "", "cluster %s has unequal servers", cut->cluster->name);
    cut->mesh =
        (Mesh){.axis_count = AXES,
               .device_count = count,
               .axes = {{.name = "servers", .size = servers}, {.name = "devices", .size = count / servers}}};
    for (uint32_t axis = 0; axis < AXES; axis++) {
        CollectivePartition partition;
        TRY(collective_partition(&partition, arena, cut->cluster, &cut->mesh, devices, 1u << axis, error));
        cut->topologies[axis] = partition.topologies[0];
    }
    cut->type = cluster_device_type(cut->cluster, 0);
    return AM_OK;
}

AmStatus decisions_cut(Decisions *decisions, Arena *arena, const PlanContext *context, const Cluster *cluster,
                       uint64_t seed, AmError *error) {
    Cut *cut = ARENA_ARRAY(arena, Cut, 1);
    *decisions = (Decisions){0};
    decisions->edges = ARENA_ARRAY(arena, DecisionEdge, DECISIONS_MOST_EDGES);
    if (!cut || !decisions->edges)
        return am_fail_memory(error, DECISIONS_MOST_EDGES * (int64_t)sizeof(DecisionEdge));
    *cut = (Cut){.context = context, .cluster = cluster};
    TRY(lay_mesh(cut, arena, error));
    Random random;
    random_seed(&random, seed);
    cut->count = CUT_LEAST + (int32_t)random_below(&random, CUT_MOST - CUT_LEAST + 1);
    decisions->count = cut->count;
    if (!find_window(cut, decisions, &random))
        return am_fail(error, AM_ERROR_INFEASIBLE, "", "fewer than %d operators hang together", cut->count);
    take_strategies(cut, decisions, TIGHT + (LOOSE - TIGHT) * random_uniform(&random));
    if (decisions->edge_count < cut->count - 1 || decisions->edge_count == DECISIONS_MOST_EDGES)
        return am_fail(error, AM_ERROR_INFEASIBLE, "", "%d pairs exchange data", decisions->edge_count);
    return AM_OK;
}
