/* Linkage groups in Auto-MAP's own mode: what one decision about a weight
 * decides with it, what it rules out, and the most that fits together.
 *
 * Each dimension that the root fixed point left is tried once. Its closure is
 * the dimensions that must then be split too, its exclusions those that no
 * longer may. Equal closures are one group; two groups exclude one another iff
 * the exclusions of one meet the closure of the other. The largest choice is a
 * maximum independent set, and is confirmed by fixing all of it jointly.
 */
#include "propagation/strict.h"

#include <string.h>

/* Closures take a bit per pair of dimensions. */
#define MEMBER_LIMIT 16384

typedef struct GroupBuilder {
    Arena *arena;
    const PlanContext *context;
    StrictProblem *problem;
    LinkageGroups *groups;
    LinkageMember *members; /* dimensions that may be split */
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
                &builder->context->canonical->instructions[all->parameters[p].instruction].shape;
            if (all->parameters[p].role != role || shape->type == DTYPE_TUPLE) continue;
            for (int32_t d = 0; d < shape->rank; d++) {
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
        LinkageMember seed = builder->members[k];
        int32_t conflict = strict_partition(builder->problem, seed.parameter, seed.dimension);
        uint64_t *closure = &builder->closure[(int64_t)k * builder->words];
        uint64_t *excluded = &builder->excluded[(int64_t)k * builder->words];
        for (int32_t other = 0; conflict < 0 && other < builder->member_count; other++) {
            LinkageMember member = builder->members[other];
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
    LinkageGroups *groups = builder->groups;
    groups->groups = ARENA_ARRAY(builder->arena, LinkageGroup, builder->member_count);
    if (!groups->groups) return am_fail_memory(error, (int64_t)sizeof(LinkageGroup) * builder->member_count);
    for (int32_t k = 0; k < builder->member_count; k++) {
        if (!is_possible(builder, k)) continue;
        const uint64_t *closure = &builder->closure[(int64_t)k * builder->words];
        for (int32_t other = 0; other < k && builder->group_of[k] < 0; other++) {
            if (bit(closure, other) && is_possible(builder, other) && same_closure(builder, k, other))
                builder->group_of[k] = builder->group_of[other];
        }
        if (builder->group_of[k] >= 0) continue;
        LinkageGroup *group = &groups->groups[groups->group_count];
        for (int32_t other = 0; other < builder->member_count; other++)
            group->member_count += bit(closure, other);
        group->members = ARENA_ARRAY(builder->arena, LinkageMember, group->member_count);
        if (!group->members)
            return am_fail_memory(error, (int64_t)sizeof(LinkageMember) * group->member_count);
        for (int32_t other = 0, at = 0; other < builder->member_count; other++) {
            if (bit(closure, other)) group->members[at++] = builder->members[other];
        }
        group->class_index = -1;
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
    LinkageGroups *groups = builder->groups;
    int32_t count = groups->group_count;
    builder->is_excluding = ARENA_ARRAY(builder->arena, bool, (size_t)count *(size_t)count);
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
    return groups_exclude(groups, builder->arena, builder->is_excluding, error);
}

/* Fixes the best groups jointly; one that does not fit beside those before it is left out. */
static void confirm_best(GroupBuilder *builder) {
    LinkageGroups *groups = builder->groups;
    int32_t kept = 0;
    for (int32_t k = 0; k < groups->best_count; k++) {
        LinkageMember seed = builder->members[seed_of(builder, groups->best[k])];
        if (strict_partition(builder->problem, seed.parameter, seed.dimension) < 0) {
            groups->best[kept++] = groups->best[k];
            continue;
        }
        groups->best_is_exact = false;
        strict_undo(builder->problem);
        for (int32_t again = 0; again < kept; again++) {
            LinkageMember earlier = builder->members[seed_of(builder, groups->best[again])];
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
    TRY(try_members(&builder, error));
    TRY(make_groups(&builder, error));
    TRY(find_exclusions(&builder, error));
    confirm_best(&builder);
    *groups = builder.groups;
    return AM_OK;
}
