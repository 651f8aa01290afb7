/* Linkage groups in Auto-MAP's own mode: what one decision about a weight
 * decides with it, what it rules out, and the most that fits together.
 *
 * Each dimension that the root fixed point left is tried once. Its closure is
 * the dimensions that must then be split too, its exclusions those that no
 * longer may. Equal closures are one group; two groups exclude one another iff
 * the exclusions of one meet the closure of the other. The largest choice is a
 * maximum independent set in each connected component, by branch and bound;
 * components beyond 64 groups are filled greedily, larger groups first.
 */
#include "propagation/strict.h"

#include <stdlib.h>
#include <string.h>

/* A component with more groups, or a search with more steps, is not solved exactly. */
#define EXACT_GROUPS 64
#define EXACT_STEPS  2000000
/* Closures take a bit per pair of dimensions. */
#define MEMBER_LIMIT 32768

typedef struct GroupBuilder {
    Arena *arena;
    const PlanContext *context;
    StrictProblem *problem;
    StrictGroups *groups;
    StrictMember *members; /* dimensions that may be split */
    int32_t member_count;
    int32_t *group_of; /* [member] */
    uint64_t *closure; /* [member][words]: bits over members */
    uint64_t *excluded;
    int32_t words;
    bool *is_excluding; /* [group][group] */
} GroupBuilder;

static bool bit(const uint64_t *bits, int32_t index) {
    return bits[index / 64] >> (index % 64) & 1;
}

static void set_bit(uint64_t *bits, int32_t index) {
    bits[index / 64] |= (uint64_t)1 << (index % 64);
}

static void reject(GroupBuilder *builder, StrictMember member, int32_t instruction, const char *reason) {
    builder->groups->rejected[builder->groups->rejected_count++] =
        (StrictRejection){member, instruction, reason};
}

/* Sorts the dimensions of the decidable parameters into candidates and rejected ones. */
static AmStatus list_members(GroupBuilder *builder, StrictRoots roots, AmError *error) {
    const IrRoles *all = builder->context->roles;
    IrRole role = roots == STRICT_STATE ? IR_ROLE_WEIGHT : IR_ROLE_DATA;
    for (int32_t pass = 0; pass < 2; pass++) {
        for (int32_t p = 0; p < all->parameter_count; p++) {
            const IrShape *shape =
                &builder->context->canonical->instructions[all->parameters[p].instruction].shape;
            if (all->parameters[p].role != role || shape->type == DTYPE_TUPLE) continue;
            for (int32_t d = 0; d < shape->rank; d++) {
                StrictMember member = {p, d};
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
        builder->members = ARENA_ARRAY(builder->arena, StrictMember, builder->groups->dimension_count);
        builder->groups->rejected =
            ARENA_ARRAY(builder->arena, StrictRejection, builder->groups->dimension_count);
        if (builder->arena->failed)
            return am_fail_memory(error, (int64_t)sizeof(StrictRejection) * builder->groups->dimension_count);
    }
    return AM_OK;
}

/* Tries every candidate; those that meet a conflict are rejected and leave the list. */
static AmStatus try_members(GroupBuilder *builder, AmError *error) {
    if (builder->member_count > MEMBER_LIMIT) {
        return am_fail(error, AM_ERROR_INPUT, "", "strict groups: more than %d dimensions could be split",
                       MEMBER_LIMIT);
    }
    builder->words = (builder->member_count + 63) / 64;
    int64_t words = (int64_t)builder->words * builder->member_count;
    builder->closure = ARENA_ARRAY(builder->arena, uint64_t, words);
    builder->excluded = ARENA_ARRAY(builder->arena, uint64_t, words);
    builder->group_of = ARENA_ARRAY(builder->arena, int32_t, builder->member_count);
    if (builder->arena->failed) return am_fail_memory(error, words * 16);
    for (int32_t k = 0; k < builder->member_count; k++) {
        StrictMember seed = builder->members[k];
        int32_t conflict = strict_partition(builder->problem, seed.parameter, seed.dimension);
        uint64_t *closure = &builder->closure[(int64_t)k * builder->words];
        uint64_t *excluded = &builder->excluded[(int64_t)k * builder->words];
        for (int32_t other = 0; conflict < 0 && other < builder->member_count; other++) {
            StrictMember member = builder->members[other];
            if (strict_must_split(builder->problem, member.parameter, member.dimension))
                set_bit(closure, other);
            else if (!strict_may_split(builder->problem, member.parameter, member.dimension))
                set_bit(excluded, other);
        }
        strict_undo(builder->problem);
        builder->group_of[k] = -1;
        if (conflict >= 0) {
            reject(builder, seed, conflict, "splitting it leaves this operator without a possible split");
        }
    }
    return AM_OK;
}

static bool same_closure(const GroupBuilder *builder, int32_t a, int32_t b) {
    return memcmp(&builder->closure[(int64_t)a * builder->words],
                  &builder->closure[(int64_t)b * builder->words],
                  sizeof(uint64_t) * (size_t)builder->words) == 0;
}

/* A candidate without a conflict is in its own closure. */
static bool is_possible(const GroupBuilder *builder, int32_t member) {
    return bit(&builder->closure[(int64_t)member * builder->words], member);
}

/* Groups are equal closures; a group's members are its whole closure. */
static AmStatus make_groups(GroupBuilder *builder, AmError *error) {
    StrictGroups *groups = builder->groups;
    groups->groups = ARENA_ARRAY(builder->arena, StrictGroup, builder->member_count);
    if (!groups->groups) return am_fail_memory(error, (int64_t)sizeof(StrictGroup) * builder->member_count);
    for (int32_t k = 0; k < builder->member_count; k++) {
        if (!is_possible(builder, k)) continue;
        const uint64_t *closure = &builder->closure[(int64_t)k * builder->words];
        for (int32_t other = 0; other < k && builder->group_of[k] < 0; other++) {
            if (bit(closure, other) && is_possible(builder, other) && same_closure(builder, k, other))
                builder->group_of[k] = builder->group_of[other];
        }
        if (builder->group_of[k] >= 0) continue;
        StrictGroup *group = &groups->groups[groups->group_count];
        for (int32_t other = 0; other < builder->member_count; other++)
            group->member_count += bit(closure, other);
        group->members = ARENA_ARRAY(builder->arena, StrictMember, group->member_count);
        if (!group->members)
            return am_fail_memory(error, (int64_t)sizeof(StrictMember) * group->member_count);
        for (int32_t other = 0, at = 0; other < builder->member_count; other++) {
            if (bit(closure, other)) group->members[at++] = builder->members[other];
        }
        builder->group_of[k] = groups->group_count++;
    }
    return AM_OK;
}

/* The first seed of a group: any member of equal closure speaks for it. */
static int32_t seed_of(const GroupBuilder *builder, int32_t group) {
    int32_t member = 0;
    while (builder->group_of[member] != group) member++;
    return member;
}

static AmStatus find_exclusions(GroupBuilder *builder, AmError *error) {
    StrictGroups *groups = builder->groups;
    int32_t count = groups->group_count;
    builder->is_excluding = ARENA_ARRAY(builder->arena, bool, (size_t)count * (size_t)count);
    int32_t *seeds = ARENA_ARRAY(builder->arena, int32_t, count);
    if (builder->arena->failed) return am_fail_memory(error, (int64_t)count * count);
    for (int32_t g = 0; g < count; g++) seeds[g] = seed_of(builder, g);
    for (int32_t g = 0; g < count; g++) {
        const uint64_t *excluded = &builder->excluded[(int64_t)seeds[g] * builder->words];
        for (int32_t other = 0; other < count; other++) {
            const uint64_t *closure = &builder->closure[(int64_t)seeds[other] * builder->words];
            for (int32_t w = 0; w < builder->words; w++) {
                if (!(excluded[w] & closure[w])) continue;
                builder->is_excluding[(int64_t)g * count + other] = true;
                builder->is_excluding[(int64_t)other * count + g] = true;
            }
        }
    }
    for (int32_t g = 0; g < count; g++) {
        StrictGroup *group = &groups->groups[g];
        for (int32_t other = 0; other < count; other++)
            group->exclude_count += builder->is_excluding[(int64_t)g * count + other];
        group->excludes = ARENA_ARRAY(builder->arena, int32_t, group->exclude_count);
        if (!group->excludes) return am_fail_memory(error, (int64_t)sizeof(int32_t) * group->exclude_count);
        group->exclude_count = 0;
        for (int32_t other = 0; other < count; other++) {
            if (builder->is_excluding[(int64_t)g * count + other])
                group->excludes[group->exclude_count++] = other;
        }
    }
    return AM_OK;
}

/* ---- the largest choice ---- */

/* Branch and bound in one component of at most EXACT_GROUPS groups. */
typedef struct Choice {
    int32_t count;
    int32_t sizes[EXACT_GROUPS];
    uint64_t conflicts[EXACT_GROUPS];
    uint64_t best;
    int32_t best_size, steps;
} Choice;

static void branch(Choice *choice, int32_t next, uint64_t taken, uint64_t allowed, int32_t size) {
    if (size > choice->best_size) {
        choice->best_size = size;
        choice->best = taken;
    }
    int32_t rest = 0;
    for (int32_t k = next; k < choice->count; k++) rest += allowed >> k & 1 ? choice->sizes[k] : 0;
    while (next < choice->count && !(allowed >> next & 1)) next++;
    if (next == choice->count || size + rest <= choice->best_size || ++choice->steps > EXACT_STEPS) return;
    branch(choice, next + 1, taken | (uint64_t)1 << next, allowed & ~choice->conflicts[next],
           size + choice->sizes[next]);
    branch(choice, next + 1, taken, allowed & ~((uint64_t)1 << next), size);
}

/* Groups by size, larger first; the order of equal ones is that of their first member. */
static void sort_by_size(const StrictGroups *groups, int32_t *order, int32_t count) {
    for (int32_t k = 1; k < count; k++) {
        int32_t group = order[k], at = k;
        for (; at > 0 && groups->groups[order[at - 1]].member_count < groups->groups[group].member_count;
             at--)
            order[at] = order[at - 1];
        order[at] = group;
    }
}

/* Groups that are connected to `first` by exclusions, in `component`. */
static int32_t gather_component(const StrictGroups *groups, int32_t first, bool *is_seen,
                                int32_t *component) {
    int32_t count = 0;
    component[count++] = first;
    is_seen[first] = true;
    for (int32_t k = 0; k < count; k++) {
        const StrictGroup *group = &groups->groups[component[k]];
        for (int32_t e = 0; e < group->exclude_count; e++) {
            if (is_seen[group->excludes[e]]) continue;
            is_seen[group->excludes[e]] = true;
            component[count++] = group->excludes[e];
        }
    }
    return count;
}

static void choose_exactly(const GroupBuilder *builder, const int32_t *component, int32_t count,
                           bool *is_chosen) {
    Choice choice = {.count = count};
    for (int32_t k = 0; k < count; k++) {
        choice.sizes[k] = builder->groups->groups[component[k]].member_count;
        for (int32_t other = 0; other < count; other++) {
            if (builder
                    ->is_excluding[(int64_t)component[k] * builder->groups->group_count + component[other]])
                choice.conflicts[k] |= (uint64_t)1 << other;
        }
    }
    branch(&choice, 0, 0, count == 64 ? UINT64_MAX : ((uint64_t)1 << count) - 1, 0);
    if (choice.steps > EXACT_STEPS) builder->groups->best_is_exact = false;
    for (int32_t k = 0; k < count; k++) is_chosen[component[k]] = choice.best >> k & 1;
}

static void choose_greedily(const GroupBuilder *builder, const int32_t *component, int32_t count,
                            bool *is_chosen) {
    builder->groups->best_is_exact = false;
    for (int32_t k = 0; k < count; k++) {
        const StrictGroup *group = &builder->groups->groups[component[k]];
        bool fits = true;
        for (int32_t e = 0; e < group->exclude_count; e++) fits &= !is_chosen[group->excludes[e]];
        is_chosen[component[k]] = fits;
    }
}

/* Fixes the chosen groups jointly; one that does not fit beside those before it is left out. */
static void confirm(GroupBuilder *builder, const bool *is_chosen) {
    StrictGroups *groups = builder->groups;
    for (int32_t g = 0; g < groups->group_count; g++) {
        if (!is_chosen[g]) continue;
        StrictMember seed = builder->members[seed_of(builder, g)];
        if (strict_partition(builder->problem, seed.parameter, seed.dimension) < 0) {
            groups->best[groups->best_count++] = g;
            continue;
        }
        groups->best_is_exact = false;
        strict_undo(builder->problem);
        for (int32_t k = 0; k < groups->best_count; k++) {
            StrictMember kept = builder->members[seed_of(builder, groups->best[k])];
            strict_partition(builder->problem, kept.parameter, kept.dimension);
        }
    }
    for (int32_t k = 0; k < builder->member_count; k++)
        groups->best_partitioned +=
            strict_must_split(builder->problem, builder->members[k].parameter, builder->members[k].dimension);
    strict_undo(builder->problem);
}

static AmStatus choose_best(GroupBuilder *builder, AmError *error) {
    StrictGroups *groups = builder->groups;
    int32_t count = groups->group_count;
    bool *is_seen = ARENA_ARRAY(builder->arena, bool, count);
    bool *is_chosen = ARENA_ARRAY(builder->arena, bool, count);
    int32_t *component = ARENA_ARRAY(builder->arena, int32_t, count);
    groups->best = ARENA_ARRAY(builder->arena, int32_t, count);
    if (builder->arena->failed) return am_fail_memory(error, (int64_t)count * 10);
    groups->best_is_exact = true;
    for (int32_t g = 0; g < count; g++) {
        if (is_seen[g]) continue;
        int32_t size = gather_component(groups, g, is_seen, component);
        sort_by_size(groups, component, size);
        if (size <= EXACT_GROUPS) choose_exactly(builder, component, size, is_chosen);
        else choose_greedily(builder, component, size, is_chosen);
    }
    confirm(builder, is_chosen);
    return AM_OK;
}

AmStatus strict_groups(StrictGroups **groups, Arena *arena, const PlanContext *context, int32_t axis_size,
                       StrictRoots roots, AmError *error) {
    GroupBuilder builder = {.arena = arena, .context = context};
    builder.groups = ARENA_ARRAY(arena, StrictGroups, 1);
    if (!builder.groups) return am_fail_memory(error, (int64_t)sizeof(StrictGroups));
    builder.groups->axis_size = axis_size;
    TRY(strict_build(&builder.problem, arena, context, axis_size, roots, error));
    TRY(list_members(&builder, roots, error));
    TRY(try_members(&builder, error));
    TRY(make_groups(&builder, error));
    TRY(find_exclusions(&builder, error));
    TRY(choose_best(&builder, error));
    *groups = builder.groups;
    return AM_OK;
}
