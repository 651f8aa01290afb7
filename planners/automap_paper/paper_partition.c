/* Operator partitioning and auto data parallelism as Auto-MAP decides them.
 *
 * The observation holds one number per decision, not per dimension. A network over all dimensions would
 * compute the same: the dimensions of one decision always have the same status, so that their weights add.
 * Dimensions that nothing can split are always 0. The last number is the position, as a fraction of the
 * decisions.
 */
#include "planners/automap_paper/paper_partition.h"

#include <stdlib.h>
#include <string.h>

#include "base/compare.h"
#include "base/hash.h"

enum { STATUS_UNDECIDED = -1, STATUS_REPLICATED, STATUS_PARTITIONED };

typedef struct Decision {
    int32_t *members; /* dimensions that are decided as one, ascending */
    int32_t member_count;
    int32_t size; /* of the linkage group: dimensions that partitioning it partitions; 0: it conflicts */
    int32_t *closure;
    int32_t closure_count;
} Decision;

typedef struct PartitionState {
    PaperPartition shared;
    Arena *arena;
    const PlanContext *context;
    StrictProblem *problem;
    bool has_linkage;
    int8_t *status, *initial;        /* [dimension] */
    int32_t *first_of, *on_variable; /* dimensions on each variable: on_variable[first_of[v]] on */
    int32_t *first_holder, *holders; /* decisions whose closure holds dimension d, likewise */
    Decision *decisions;             /* largest first */
    int32_t position, partitioned, replicated;
} PartitionState;

static LinkageMember member_of(const PartitionState *self, int32_t d) {
    return self->shared.dimensions[d];
}

static bool may_split(const PartitionState *self, int32_t d) {
    return strict_may_split(self->problem, member_of(self, d).parameter, member_of(self, d).dimension);
}

static bool must_split(const PartitionState *self, int32_t d) {
    return strict_must_split(self->problem, member_of(self, d).parameter, member_of(self, d).dimension);
}

/* Returns the rank of a weight or data input; 0 for other values. */
static int32_t rank_of(const PartitionState *self, int32_t parameter, IrRole role) {
    const IrParameter *entry = plan_context_parameter(self->context, parameter);
    const IrShape *shape = &plan_context_instruction(self->context, entry->instruction)->shape;
    return entry->role == role && shape->type != DTYPE_TUPLE ? shape->rank : 0;
}

static AmStatus list_dimensions(PartitionState *self, StrictRoots roots, AmError *error) {
    IrRole role = roots == STRICT_DATA ? IR_ROLE_DATA : IR_ROLE_WEIGHT;
    int32_t parameters = self->context->roles->parameter_count, count = 0;
    for (int32_t p = 0; p < parameters; p++) count += rank_of(self, p, role);
    self->shared.dimensions = ARENA_ARRAY(self->arena, LinkageMember, count + 1);
    self->status = ARENA_ARRAY(self->arena, int8_t, count + 1);
    self->initial = ARENA_ARRAY(self->arena, int8_t, count + 1);
    self->shared.best.status = ARENA_ARRAY(self->arena, int8_t, count + 1);
    self->decisions = ARENA_ARRAY(self->arena, Decision, count + 1);
    if (self->arena->failed) return am_fail_memory(error, (int64_t)sizeof(LinkageMember) * count);
    for (int32_t p = 0; p < parameters; p++)
        for (int32_t d = 0; d < rank_of(self, p, role); d++)
            self->shared.dimensions[self->shared.dimension_count++] = (LinkageMember){p, d};
    return AM_OK;
}

/* Finds the dimensions that partitioning d partitions, ascending, in `closure`. Returns their number, or -1
 * if it conflicts. */
static int32_t try_dimension(PartitionState *self, int32_t d, int32_t *closure) {
    LinkageMember member = member_of(self, d);
    int32_t count = 0;
    if (strict_partition(self->problem, member.parameter, member.dimension) >= 0) count = -1;
    for (int32_t n = 0; count >= 0 && n < strict_narrowed_count(self->problem); n++) {
        int32_t variable = strict_narrowed(self->problem, n);
        for (int32_t k = self->first_of[variable]; k < self->first_of[variable + 1]; k++) {
            int32_t other = self->on_variable[k];
            if (self->status[other] == STATUS_PARTITIONED || !must_split(self, other)) continue;
            self->status[other] = STATUS_PARTITIONED; /* as a mark: it is listed */
            closure[count++] = other;
        }
    }
    for (int32_t k = 0; k < count; k++) self->status[closure[k]] = STATUS_UNDECIDED;
    strict_undo(self->problem);
    if (count > 1) qsort(closure, (size_t)count, sizeof *closure, compare_integers);
    return count;
}

static AmStatus new_decision(PartitionState *self, int32_t d, const int32_t *closure, int32_t count,
                             AmError *error) {
    Decision *decision = &self->decisions[self->shared.decision_count++];
    int32_t kept = count > 0 ? count : 0;
    *decision = (Decision){.size = kept, .closure_count = kept, .member_count = 1};
    decision->closure = ARENA_ARRAY(self->arena, int32_t, kept + 1);
    decision->members = ARENA_ARRAY(self->arena, int32_t, kept + 1);
    if (self->arena->failed) return am_fail_memory(error, kept);
    if (kept > 0) memcpy(decision->closure, closure, sizeof *closure * (size_t)kept);
    decision->members[0] = d;
    return AM_OK;
}

/* Makes one decision for each closure. A dimension that conflicts alone is a decision of its own, as is
 * every dimension where there are no linkage groups. */
static AmStatus find_decisions(PartitionState *self, AmError *error) {
    int32_t count = self->shared.dimension_count, slots = 64;
    while (slots < 2 * count) slots *= 2;
    int32_t *closure = ARENA_ARRAY(self->arena, int32_t, count + 1);
    int32_t *table = ARENA_ARRAY(self->arena, int32_t, slots); /* hash of a closure -> 1 + decision */
    if (self->arena->failed) return am_fail_memory(error, slots);
    for (int32_t d = 0; d < count; d++) self->status[d] = STATUS_UNDECIDED;
    for (int32_t d = 0; d < count; d++) {
        if (!self->has_linkage) {
            TRY(new_decision(self, d, NULL, 0, error));
            continue;
        }
        if (!may_split(self, d)) continue;
        int32_t size = try_dimension(self, d, closure);
        if (size < 0) {
            TRY(new_decision(self, d, NULL, 0, error));
            continue;
        }
        uint64_t hash = hash_bytes(closure, sizeof *closure * (size_t)size, 1);
        int32_t slot = (int32_t)(hash & (uint64_t)(slots - 1));
        for (; table[slot]; slot = (slot + 1) & (slots - 1)) {
            const Decision *other = &self->decisions[table[slot] - 1];
            if (other->closure_count == size &&
                memcmp(other->closure, closure, sizeof *closure * (size_t)size) == 0)
                break;
        }
        if (table[slot]) {
            Decision *found = &self->decisions[table[slot] - 1];
            found->members[found->member_count++] = d;
            continue;
        }
        TRY(new_decision(self, d, closure, size, error));
        table[slot] = self->shared.decision_count;
    }
    return AM_OK;
}

/* Orders decisions by size, largest first, and equal ones by their first dimension. */
static int compare_decisions(const void *left, const void *right) {
    const Decision *a = left, *b = right;
    if (a->size != b->size) return a->size > b->size ? -1 : 1;
    return (a->members[0] > b->members[0]) - (a->members[0] < b->members[0]);
}

static AmStatus index_holders(PartitionState *self, AmError *error) {
    int32_t count = self->shared.dimension_count, total = 0;
    for (int32_t k = 0; k < self->shared.decision_count; k++) total += self->decisions[k].closure_count;
    self->first_holder = ARENA_ARRAY(self->arena, int32_t, count + 2);
    self->holders = ARENA_ARRAY(self->arena, int32_t, total + 1);
    if (self->arena->failed) return am_fail_memory(error, total);
    for (int32_t pass = 0; pass < 2; pass++) {
        for (int32_t k = 0; k < self->shared.decision_count; k++)
            for (int32_t c = 0; c < self->decisions[k].closure_count; c++) {
                int32_t d = self->decisions[k].closure[c];
                if (pass == 0) self->first_holder[d + 2]++;
                else self->holders[self->first_holder[d + 1]++] = k;
            }
        for (int32_t d = 0; pass == 0 && d < count; d++)
            self->first_holder[d + 2] += self->first_holder[d + 1];
    }
    return AM_OK;
}

/* ---- the environment ---- */

static void set_status(PartitionState *self, int32_t d, int8_t status) {
    self->status[d] = status;
    if (status == STATUS_PARTITIONED) self->partitioned++;
    else self->replicated++;
}

static void find_position(PartitionState *self) {
    if (!self->has_linkage) return;
    while (self->position < self->shared.decision_count &&
           self->status[self->decisions[self->position].members[0]] != STATUS_UNDECIDED)
        self->position++;
}

static AmStatus reset_partition(Environment *environment, AmError *error) {
    (void)error;
    PartitionState *self = (PartitionState *)environment;
    strict_undo(self->problem);
    memcpy(self->status, self->initial, (size_t)self->shared.dimension_count);
    self->position = self->partitioned = self->replicated = 0;
    for (int32_t d = 0; d < self->shared.dimension_count; d++)
        self->replicated += self->status[d] == STATUS_REPLICATED;
    find_position(self);
    return AM_OK;
}

static void observe_partition(const Environment *environment, float *observation) {
    const PartitionState *self = (const PartitionState *)environment;
    int32_t count = self->shared.decision_count;
    for (int32_t k = 0; k < count; k++) observation[k] = self->status[self->decisions[k].members[0]];
    observation[count] = (float)self->position / (float)count;
}

static void mask(const Environment *environment, uint8_t *legal) {
    (void)environment;
    legal[0] = legal[1] = 1;
}

static int32_t decide_dimension(PartitionState *self, int32_t d, bool partition) {
    LinkageMember member = member_of(self, d);
    return partition ? strict_partition(self->problem, member.parameter, member.dimension)
                     : strict_replicate(self->problem, member.parameter, member.dimension);
}

/* Replicates what cannot be partitioned any more, as that would partition d. */
static int32_t rule_out_holders(PartitionState *self, int32_t d) {
    for (int32_t k = self->first_holder[d]; k < self->first_holder[d + 1]; k++) {
        const Decision *decision = &self->decisions[self->holders[k]];
        for (int32_t m = 0; m < decision->member_count; m++) {
            if (!may_split(self, decision->members[m])) continue;
            int32_t conflict = decide_dimension(self, decision->members[m], false);
            if (conflict >= 0) return conflict;
        }
    }
    return -1;
}

/* Decides by linkage group: -1 or the instruction that conflicts. Statuses follow the engine's trail. */
static int32_t decide_group(PartitionState *self, const Decision *decision, bool partition) {
    int32_t conflict = -1, narrowed = strict_narrowed_count(self->problem);
    for (int32_t m = 0; m < decision->member_count && conflict < 0; m++)
        conflict = decide_dimension(self, decision->members[m], partition);
    for (; conflict < 0 && narrowed < strict_narrowed_count(self->problem); narrowed++) {
        int32_t variable = strict_narrowed(self->problem, narrowed);
        for (int32_t k = self->first_of[variable]; k < self->first_of[variable + 1] && conflict < 0; k++) {
            int32_t d = self->on_variable[k];
            if (self->status[d] != STATUS_UNDECIDED) continue;
            if (must_split(self, d)) {
                set_status(self, d, STATUS_PARTITIONED);
            } else if (!may_split(self, d)) {
                set_status(self, d, STATUS_REPLICATED);
                conflict = rule_out_holders(self, d);
            }
        }
    }
    return conflict;
}

/* Completes a strategy that splits more than the best, tensor by tensor, and keeps it. Returns a conflict,
 * or -1. */
static int32_t keep_best(PartitionState *self) {
    PaperStrategy *best = &self->shared.best;
    if (self->shared.has_best && best->partitioned >= self->partitioned) return -1;
    int32_t conflict = strict_complete(self->problem);
    if (conflict >= 0) return conflict;
    self->shared.has_best = true;
    best->partitioned = self->partitioned;
    best->replicated = self->replicated;
    memcpy(best->status, self->status, (size_t)self->shared.dimension_count);
    return -1;
}

static AmStatus step_partition(Environment *environment, int32_t action, double *reward, bool *done,
                               AmError *error) {
    (void)error;
    PartitionState *self = (PartitionState *)environment;
    const Decision *decision = &self->decisions[self->position];
    int32_t partitioned = self->partitioned, replicated = self->replicated, conflict;
    if (self->has_linkage) {
        conflict = decide_group(self, decision, action == 1);
    } else {
        conflict = decide_dimension(self, decision->members[0], action == 1);
        set_status(self, decision->members[0], action == 1 ? STATUS_PARTITIONED : STATUS_REPLICATED);
        self->position++;
    }
    find_position(self);
    *done = conflict >= 0 || self->position == self->shared.decision_count;
    if (conflict < 0 && *done) conflict = keep_best(self);
    self->shared.conflicts += conflict >= 0;
    *reward = conflict >= 0 ? PAPER_REWARD_CONFLICT
                            : PAPER_REWARD_PARTITIONED * (self->partitioned - partitioned) +
                                  PAPER_REWARD_REPLICATED * (self->replicated - replicated);
    return AM_OK;
}

double paper_strategy_reward(const PaperStrategy *strategy) {
    return PAPER_REWARD_PARTITIONED * strategy->partitioned + PAPER_REWARD_REPLICATED * strategy->replicated;
}

AmStatus paper_partition_create(PaperPartition **partition, Arena *arena, const PlanContext *context,
                                int32_t axis_size, StrictRoots roots, AmError *error) {
    static const EnvironmentMethods methods = {reset_partition, observe_partition, mask, step_partition};
    PartitionState *self = ARENA_ARRAY(arena, PartitionState, 1);
    if (!self) return am_fail_memory(error, (int64_t)sizeof *self);
    *self = (PartitionState){.shared = {.base = {.methods = &methods, .action_count = 2}},
                             .arena = arena,
                             .context = context,
                             .has_linkage = roots != STRICT_DATA};
    TRY(strict_build(&self->problem, arena, context, axis_size, roots, error));
    TRY(list_dimensions(self, roots, error));
    int32_t variables = strict_variables(self->problem), count = self->shared.dimension_count;
    self->first_of = ARENA_ARRAY(self->arena, int32_t, variables + 2);
    self->on_variable = ARENA_ARRAY(self->arena, int32_t, count + 1);
    if (self->arena->failed) return am_fail_memory(error, variables);
    for (int32_t d = 0; d < count; d++)
        self->first_of[strict_variable(self->problem, member_of(self, d).parameter) + 2]++;
    for (int32_t v = 0; v < variables; v++) self->first_of[v + 2] += self->first_of[v + 1];
    for (int32_t d = 0; d < count; d++)
        self->on_variable[self->first_of[strict_variable(self->problem, member_of(self, d).parameter) +
                                         1]++] = d;
    TRY(find_decisions(self, error));
    qsort(self->decisions, (size_t)self->shared.decision_count, sizeof *self->decisions, compare_decisions);
    TRY(index_holders(self, error));
    for (int32_t d = 0; d < self->shared.dimension_count; d++)
        self->initial[d] = self->has_linkage && !may_split(self, d) ? STATUS_REPLICATED : STATUS_UNDECIDED;
    self->shared.base.observation_size = self->shared.decision_count + 1;
    *partition = &self->shared;
    if (self->shared.decision_count > 0) return AM_OK;
    return am_fail(error, AM_ERROR_INFEASIBLE, context->module->source,
                   "%s has no dimension that an axis of %d devices can split by the strict rules",
                   roots == STRICT_DATA ? "its data" : "the module", axis_size);
}
