/* Linkage groups in Auto-MAP's own mode: the decisions that one decision about a weight implies,
 * those that it excludes, and the largest compatible set.
 *
 * Each dimension that the root fixed point left is tried once. Its closure is the set of dimensions
 * that must then be split too, its exclusions those that no longer may. Equal closures are one
 * group; two groups exclude each other iff the exclusions of one intersect the closure of the
 * other. The largest choice is a maximum independent set, and is confirmed by fixing all of it
 * jointly.
 */
#include "propagation/groups/strict.h"

#include <stdlib.h>
#include <string.h>

#include "base/compare.h"
#include "base/hash.h"

/* Each dimension is tried once, and a trial may go through the whole module. */
#define MEMBER_LIMIT 65536

typedef struct IndexList {
    int32_t *values, count, capacity;
} IndexList;

typedef struct GroupBuilder {
    Arena *arena;
    const PlanContext *context;
    StrictProblem *problem;
    LinkageGroups *groups;
    LinkageMember *members; /* dimensions that may be split */
    int32_t member_count;
    int32_t *first_of, *on_variable; /* members on each variable: on_variable[first_of[v]] on */
    int32_t *seen;                   /* [variable]: 1 + the last seed that narrowed it */
    int32_t *seeds;                  /* [group]: the first member of that closure */
    IndexList *closures, *excluded;  /* [group]: members that its seed splits, and rules out */
    int32_t *table;                  /* hash of a closure -> 1 + group */
    int32_t table_size;
    IndexList closure, ruled_out; /* of the seed that is tried */
} GroupBuilder;

static AmStatus push(IndexList *list, Arena *arena, int32_t value, AmError *error) {
    ARENA_RESERVE(arena, list->values, list->count, list->capacity);
    if (arena->failed) return am_fail_memory(error, list->count);
    list->values[list->count++] = value;
    return AM_OK;
}

static void reject(GroupBuilder *builder, LinkageMember member, int32_t instruction, const char *reason) {
    builder->groups->rejected[builder->groups->rejected_count++] =
        (LinkageRejection){member, instruction, reason};
}

/* Sorts the dimensions of the decidable parameters into candidates and rejected ones. */
static AmStatus list_members(GroupBuilder *builder, StrictRoots roots, AmError *error) {
    const IrRoles *all = builder->context->roles;
    IrRole role = roots == STRICT_DATA ? IR_ROLE_DATA : IR_ROLE_WEIGHT;
    for (int32_t pass = 0; pass < 2; pass++) {
        for (int32_t p = 0; p < all->parameter_count; p++) {
            const IrShape *shape =
                &plan_context_instruction(builder->context, all->parameters[p].instruction)->shape;
            if (all->parameters[p].role != role || shape->type == DTYPE_TUPLE) continue;
            int32_t ways = roots == STRICT_STATE_ANY_CUT ? 2 : 1; /* plainly, and in blocks */
            for (int32_t way = 0; way < ways * shape->rank; way++) {
                int32_t d = way < shape->rank ? way : way - shape->rank + STRICT_IN_BLOCKS;
                LinkageMember member = {p, d};
                if (pass == 0) {
                    builder->groups->dimension_count++;
                } else if (strict_may_split(builder->problem, p, d)) {
                    builder->members[builder->member_count++] = member;
                } else {
                    int32_t by = strict_ruled_out_by(builder->problem, p, d);
                    reject(builder, member, by,
                           by < 0 ? "its size is no multiple of the axis size"
                                  : "no split of this operator fits its other operands and results");
                }
            }
        }
        if (pass == 1) break;
        builder->members = ARENA_ARRAY(builder->arena, LinkageMember, builder->groups->dimension_count);
        builder->groups->rejected =
            ARENA_ARRAY(builder->arena, LinkageRejection, builder->groups->dimension_count);
        if (builder->arena->failed)
            return am_fail_memory(error,
                                  (int64_t)sizeof(LinkageRejection) * builder->groups->dimension_count);
    }
    return AM_OK;
}

static AmStatus index_variables(GroupBuilder *builder, AmError *error) {
    int32_t variables = strict_variables(builder->problem);
    builder->first_of = ARENA_ARRAY(builder->arena, int32_t, variables + 2);
    builder->seen = ARENA_ARRAY(builder->arena, int32_t, variables + 1);
    builder->on_variable = ARENA_ARRAY(builder->arena, int32_t, builder->member_count + 1);
    builder->seeds = ARENA_ARRAY(builder->arena, int32_t, builder->member_count + 1);
    builder->closures = ARENA_ARRAY(builder->arena, IndexList, builder->member_count + 1);
    builder->excluded = ARENA_ARRAY(builder->arena, IndexList, builder->member_count + 1);
    builder->groups->groups = ARENA_ARRAY(builder->arena, LinkageGroup, builder->member_count + 1);
    for (builder->table_size = 64; builder->table_size < 2 * builder->member_count;) builder->table_size *= 2;
    builder->table = ARENA_ARRAY(builder->arena, int32_t, builder->table_size);
    if (builder->arena->failed) return am_fail_memory(error, variables);
    for (int32_t k = 0; k < builder->member_count; k++)
        builder->first_of[strict_variable(builder->problem, builder->members[k].parameter) + 2]++;
    for (int32_t v = 0; v < variables; v++) builder->first_of[v + 2] += builder->first_of[v + 1];
    for (int32_t k = 0; k < builder->member_count; k++)
        builder->on_variable
            [builder->first_of[strict_variable(builder->problem, builder->members[k].parameter) + 1]++] = k;
    return AM_OK;
}

/* Gathers closure and exclusions of seed k, which has been decided: members of the variables that were
 * narrowed. */
static AmStatus gather_closure(GroupBuilder *builder, int32_t k, AmError *error) {
    builder->closure.count = builder->ruled_out.count = 0;
    for (int32_t n = 0; n < strict_narrowed_count(builder->problem); n++) {
        int32_t variable = strict_narrowed(builder->problem, n);
        if (builder->seen[variable] == k + 1) continue;
        builder->seen[variable] = k + 1;
        for (int32_t m = builder->first_of[variable]; m < builder->first_of[variable + 1]; m++) {
            int32_t other = builder->on_variable[m];
            LinkageMember member = builder->members[other];
            if (strict_must_split(builder->problem, member.parameter, member.dimension))
                TRY(push(&builder->closure, builder->arena, other, error));
            else if (!strict_may_split(builder->problem, member.parameter, member.dimension))
                TRY(push(&builder->ruled_out, builder->arena, other, error));
        }
    }
    if (builder->closure.count > 0)
        qsort(builder->closure.values, (size_t)builder->closure.count, sizeof(int32_t), compare_integers);
    return AM_OK;
}

static AmStatus copy_list(IndexList *to, Arena *arena, const IndexList *from, AmError *error) {
    for (int32_t k = 0; k < from->count; k++) TRY(push(to, arena, from->values[k], error));
    return AM_OK;
}

/* Adds a group of seed k's closure, unless there is one. */
static AmStatus add_group(GroupBuilder *builder, int32_t k, AmError *error) {
    LinkageGroups *groups = builder->groups;
    const IndexList *closure = &builder->closure;
    uint64_t hash = hash_bytes(closure->values, sizeof(int32_t) * (size_t)closure->count, 1);
    int32_t slot = (int32_t)(hash & (uint64_t)(builder->table_size - 1));
    for (; builder->table[slot]; slot = (slot + 1) & (builder->table_size - 1)) {
        const IndexList *known = &builder->closures[builder->table[slot] - 1];
        if (known->count == closure->count &&
            (known->count == 0 ||
             memcmp(known->values, closure->values, sizeof(int32_t) * (size_t)known->count) == 0))
            return AM_OK;
    }
    LinkageGroup *group = &groups->groups[groups->group_count];
    *group = (LinkageGroup){.class_index = -1, .member_count = closure->count};
    group->members = ARENA_ARRAY(builder->arena, LinkageMember, closure->count);
    if (!group->members) return am_fail_memory(error, (int64_t)sizeof(LinkageMember) * closure->count);
    for (int32_t m = 0; m < closure->count; m++) group->members[m] = builder->members[closure->values[m]];
    TRY(copy_list(&builder->closures[groups->group_count], builder->arena, closure, error));
    TRY(copy_list(&builder->excluded[groups->group_count], builder->arena, &builder->ruled_out, error));
    builder->seeds[groups->group_count] = k;
    builder->table[slot] = ++groups->group_count;
    return AM_OK;
}

/* Groups whose closures hold what another's seed rules out. */
static AmStatus find_exclusions(GroupBuilder *builder, AmError *error) {
    LinkageGroups *groups = builder->groups;
    Exclusions exclusions = {0};
    int32_t *number = ARENA_ARRAY(builder->arena, int32_t, builder->member_count + 2);
    int32_t total = 0; /* groups that hold a member k: holders[number[k]] on */
    for (int32_t g = 0; g < groups->group_count; g++) total += groups->groups[g].member_count;
    int32_t *holders = ARENA_ARRAY(builder->arena, int32_t, total + 1);
    if (builder->arena->failed) return am_fail_memory(error, total);
    for (int32_t pass = 0; pass < 2; pass++) {
        for (int32_t g = 0; g < groups->group_count; g++) {
            for (int32_t m = 0; m < builder->closures[g].count; m++) {
                int32_t k = builder->closures[g].values[m];
                if (pass == 0) number[k + 2]++;
                else holders[number[k + 1]++] = g;
            }
        }
        for (int32_t k = 0; pass == 0 && k < builder->member_count; k++) number[k + 2] += number[k + 1];
    }
    for (int32_t g = 0; g < groups->group_count; g++) {
        for (int32_t e = 0; e < builder->excluded[g].count; e++) {
            int32_t member = builder->excluded[g].values[e];
            for (int32_t h = number[member]; h < number[member + 1]; h++)
                groups_add_exclusion(&exclusions, builder->arena, g, holders[h]);
        }
    }
    if (builder->arena->failed) return am_fail_memory(error, exclusions.count);
    return groups_exclude(groups, builder->arena, &exclusions, error);
}

/* Fixes the best groups jointly; one that does not fit beside those before it is left out. */
static void confirm_best(GroupBuilder *builder) {
    LinkageGroups *groups = builder->groups;
    int32_t kept = 0;
    for (int32_t k = 0; k < groups->best_count; k++) {
        LinkageMember seed = builder->members[builder->seeds[groups->best[k]]];
        if (strict_partition(builder->problem, seed.parameter, seed.dimension) < 0) {
            groups->best[kept++] = groups->best[k];
            continue;
        }
        groups->best_is_exact = false;
        strict_undo(builder->problem);
        for (int32_t again = 0; again < kept; again++) {
            LinkageMember earlier = builder->members[builder->seeds[groups->best[again]]];
            strict_partition(builder->problem, earlier.parameter, earlier.dimension);
        }
    }
    groups->best_count = kept;
    groups->best_partitioned = 0;
    for (int32_t k = 0; k < builder->member_count; k++)
        groups->best_partitioned +=
            strict_must_split(builder->problem, builder->members[k].parameter, builder->members[k].dimension);
    strict_undo(builder->problem);
}

AmStatus strict_groups(LinkageGroups **groups, Arena *arena, const PlanContext *context, int32_t axis_size,
                       StrictRoots roots, AmError *error) {
    GroupBuilder builder = {.arena = arena, .context = context};
    builder.groups = ARENA_ARRAY(arena, LinkageGroups, 1);
    if (!builder.groups) return am_fail_memory(error, (int64_t)sizeof(LinkageGroups));
    builder.groups->is_strict = true;
    builder.groups->axis_size = axis_size;
    TRY(strict_build(&builder.problem, arena, context, axis_size, roots, error));
    TRY(list_members(&builder, roots, error));
    /* Tries every candidate; those that meet a conflict are rejected. */
    if (builder.member_count > MEMBER_LIMIT) {
        return am_fail(error, AM_ERROR_INPUT, "", "strict groups: more than %d dimensions could be split",
                       MEMBER_LIMIT);
    }
    TRY(index_variables(&builder, error));
    for (int32_t k = 0; k < builder.member_count; k++) {
        LinkageMember seed = builder.members[k];
        int32_t conflict = strict_partition(builder.problem, seed.parameter, seed.dimension);
        if (conflict < 0) TRY(gather_closure(&builder, k, error));
        strict_undo(builder.problem);
        if (conflict < 0) TRY(add_group(&builder, k, error));
        else reject(&builder, seed, conflict, "splitting it leaves this operator without a possible split");
    }
    TRY(find_exclusions(&builder, error));
    confirm_best(&builder);
    *groups = builder.groups;
    return AM_OK;
}
