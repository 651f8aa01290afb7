/* Transfers: the route, then the pieces between ranks.
 *
 * Routes. With T the bytes of the whole value, p1 sending devices and p2 receiving devices, all of
 * OneFlow's table 2 for disjoint sets follows from three parts:
 *   a partial source is reduced by a reduce_scatter among the p1:      (p1-1) T
 *   every part is sent to every device that will hold it:              T, or p2 T
 *   a replicated target receives shards and gathers them in the p2:    T + (p2-1) T
 * P->S is p1 T, P->B (p1+p2-1) T, S->B and B->B p2 T, S->S and B->S T. If direct sends cost as many
 * bytes as shards and a gather, the shards win: they cross only once between the meshes, which is
 * the slower link. Sums are reduced among their own devices, in group order, and so depend on
 * nothing else. A scalar has no dimension to split: it is reduced by all_reduce and sent to all. A
 * value that becomes partial arrives in shards, which are padded (reshard_partial.c): S->P and B->P are
 * T, P->P is p1 T. Overlapping sets may need less: a device does not receive data that it has.
 * Every combination of splits is tried, and counted exactly if the sets overlap.
 *
 * Pieces. Devices that hold the same part of the source form a class. The k-th device that needs a
 * part of a class receives it from member k mod (number of members), so that copies share the load.
 */
#include "lowering/spmd/transfer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/compare.h"
#include "base/lower_bound.h"

/* Elements of one dimension that two shards have in common, in the coordinates of both. */
typedef struct Overlap {
    int64_t in_source, in_target, extent;
} Overlap;

/* The shard of a dimension: `blocks` pieces of `extent` elements, `step` apart in the whole. */
typedef struct Pieces {
    int64_t blocks, start, extent, step;
} Pieces;

/* A device of the target and the start of its shard in one dimension. */
typedef struct TargetStart {
    int64_t start;
    int32_t device;
} TargetStart;

typedef struct Matcher {
    Arena *arena;
    const IrShape *shape;
    const TransferRoute *route;
    Overlap *found; /* of dimension d: first[d] .. first[d + 1] - 1; several where a shard is in blocks */
    int32_t first[IR_MAX_RANK + 1], capacity;
    Pieces source[IR_MAX_RANK];    /* of the source device that is being visited, by dimension */
    const Pieces *targets;         /* [target device * rank + dimension] */
    int32_t sorted;                /* the dimension of `starts`; -1: none */
    TargetStart *starts;           /* [target device] ascending */
    int64_t longest;               /* shard of the target in that dimension */
    int32_t *near;                 /* [target device] scratch: those that may need a shard of the source */
    Overlap overlaps[IR_MAX_RANK]; /* one of every dimension: the box that is being visited */
} Matcher;

static Pieces pieces_of(const TransferEnd *end, int32_t device, int32_t d, int64_t size) {
    Pieces pieces = {.blocks = sbp_blocks(end->state, d)};
    sbp_shard(end->mesh, end->state, device, d, size, &pieces.start, &pieces.extent);
    pieces.extent /= pieces.blocks;
    pieces.step = size / pieces.blocks;
    return pieces;
}

/* Finds what target device t needs of the source device; false: nothing. */
static bool match_device(Matcher *self, int32_t t) {
    int32_t rank = self->shape->rank;
    self->first[0] = 0;
    for (int32_t d = 0; d < rank; d++) {
        self->first[d + 1] = self->first[d];
        const Pieces *source = &self->source[d], *target = &self->targets[t * rank + d];
        /* Both lists of pieces are ascending. */
        for (int64_t a = 0, b = 0; a < source->blocks && b < target->blocks;) {
            int64_t from = a * source->step + source->start, to = b * target->step + target->start;
            int64_t from_end = from + source->extent, to_end = to + target->extent;
            int64_t start = from > to ? from : to, end = from_end < to_end ? from_end : to_end;
            if (start < end) {
                ARENA_RESERVE(self->arena, self->found, self->first[d + 1], self->capacity);
                if (!self->arena->failed)
                    self->found[self->first[d + 1]++] = (Overlap){
                        a * source->extent + start - from, b * target->extent + start - to, end - start};
            }
            if (from_end <= to_end) a++;
            else b++;
        }
        if (self->first[d + 1] == self->first[d]) return false;
    }
    return true;
}

/* Called for every box that one rank sends another; a rank that has its data sends it to itself. */
typedef void Visit(void *user, Matcher *matcher, int32_t sender, int32_t receiver);

/* Visits the boxes of the last match, in row-major order. */
static void visit_boxes(Matcher *self, Visit *visit, void *user, int32_t sender, int32_t receiver) {
    int32_t index[IR_MAX_RANK] = {0}, rank = self->shape->rank, d;
    for (int32_t k = 0; k < rank; k++) self->overlaps[k] = self->found[self->first[k]];
    do {
        visit(user, self, sender, receiver);
        for (d = rank - 1; d >= 0; d--) {
            bool wraps = ++index[d] == self->first[d + 1] - self->first[d];
            if (wraps) index[d] = 0;
            self->overlaps[d] = self->found[self->first[d] + index[d]];
            if (!wraps) break;
        }
    } while (d >= 0);
}

static int compare_starts(const void *left, const void *right) {
    const TargetStart *a = left, *b = right;
    if (a->start != b->start) return a->start < b->start ? -1 : 1;
    return compare_integers(&a->device, &b->device);
}

/* Sorts the devices of the target by the dimension in which its first shard is the smallest part. */
static void sort_targets(Matcher *self, Arena *scratch, int32_t count) {
    int32_t rank = self->shape->rank;
    double least = 1;
    self->sorted = -1;
    self->near = ARENA_ARRAY(scratch, int32_t, count + 1);
    self->starts = ARENA_ARRAY(scratch, TargetStart, count + 1);
    for (int32_t d = 0; d < rank && !scratch->failed; d++) {
        double part = (double)self->targets[d].extent / (double)self->shape->dimensions[d];
        if (self->targets[d].blocks > 1 || !(part < least)) continue;
        least = part;
        self->sorted = d;
    }
    if (self->sorted < 0) return;
    self->longest = 0;
    for (int32_t t = 0; t < count; t++) {
        const Pieces *pieces = &self->targets[t * rank + self->sorted];
        self->starts[t] = (TargetStart){pieces->start, t};
        if (pieces->extent > self->longest) self->longest = pieces->extent;
    }
    qsort(self->starts, (size_t)count, sizeof *self->starts, compare_starts);
}

/* Lists the devices of the target that may need something of the source device, ascending; returns how
 * many. */
static int32_t list_near(Matcher *self, int32_t count) {
    const Pieces *source = self->sorted < 0 ? NULL : &self->source[self->sorted];
    if (!source || source->blocks > 1) {
        for (int32_t t = 0; t < count; t++) self->near[t] = t;
        return count;
    }
    const TargetStart least = {source->start - self->longest, INT32_MAX};
    int32_t found = 0;
    for (int32_t k = lower_bound(&least, self->starts, count, sizeof least, compare_starts);
         k < count && self->starts[k].start < source->start + source->extent; k++)
        self->near[found++] = self->starts[k].device;
    qsort(self->near, (size_t)found, sizeof *self->near, compare_integers);
    return found;
}

static void visit_source(Matcher *self, int32_t s, const int32_t *members, int32_t count, Visit *visit,
                         void *user) {
    const TransferEnd *source = &self->route->source, *target = &self->route->target;
    int32_t iteration = 0;
    for (int32_t d = 0; d < self->shape->rank; d++)
        self->source[d] = pieces_of(source, s, d, self->shape->dimensions[d]);
    int32_t near = list_near(self, target->mesh->device_count);
    for (int32_t k = 0; k < near; k++) {
        int32_t t = self->near[k], receiver = target->first_rank + t, sender = -1;
        if (!match_device(self, t)) continue;
        if (self->arena->failed) return;
        for (int32_t m = 0; m < count; m++)
            if (source->first_rank + members[m] == receiver) sender = receiver;
        if (sender < 0) sender = source->first_rank + members[iteration++ % count];
        visit_boxes(self, visit, user, sender, receiver);
    }
}

static AmStatus visit_pairs(Matcher *self, Visit *visit, void *user, AmError *error) {
    const TransferEnd *source = &self->route->source, *target = &self->route->target;
    int32_t senders = source->mesh->device_count, receivers = target->mesh->device_count;
    int32_t rank = self->shape->rank;
    /* The axes (bits) along which devices hold copies. */
    uint32_t copied = 0;
    for (int32_t axis = 0; axis < source->mesh->axis_count; axis++)
        if (!sbp_is_split(source->state.axis[axis])) copied |= 1u << axis;
    Arena scratch = {0};
    int32_t *members = ARENA_ARRAY(&scratch, int32_t, senders);
    Pieces *targets = ARENA_ARRAY(&scratch, Pieces, receivers * rank + 1);
    for (int32_t t = 0; t < receivers && targets; t++)
        for (int32_t d = 0; d < rank; d++)
            targets[t * rank + d] = pieces_of(target, t, d, self->shape->dimensions[d]);
    self->targets = targets;
    if (targets) sort_targets(self, &scratch, receivers);
    for (int32_t s = 0; s < senders && !scratch.failed && !self->arena->failed; s++) {
        bool is_first = true; /* of its class, which is visited there */
        for (int32_t axis = 0; axis < source->mesh->axis_count; axis++)
            is_first &= !(copied >> axis & 1) || mesh_coordinate(source->mesh, s, axis) == 0;
        if (!is_first) continue;
        int32_t count = mesh_group(source->mesh, s, copied, members);
        visit_source(self, s, members, count, visit, user);
    }
    bool has_failed = scratch.failed || self->arena->failed;
    arena_free(&scratch);
    return has_failed ? am_fail_memory(error, self->capacity) : AM_OK;
}

static void count_crossing(void *user, Matcher *matcher, int32_t sender, int32_t receiver) {
    double elements = 1;
    if (sender == receiver) return;
    for (int32_t d = 0; d < matcher->shape->rank; d++) elements *= (double)matcher->overlaps[d].extent;
    *(double *)user += elements;
}

/* Elements that go from one device to another. */
static AmStatus crossing_elements(double *elements, Arena *arena, const IrShape *shape,
                                  const TransferRoute *route, AmError *error) {
    const TransferEnd *target = &route->target;
    *elements = (double)ir_shape_elements(shape);
    if (route->source.first_rank + route->source.mesh->device_count <= target->first_rank ||
        target->first_rank + target->mesh->device_count <= route->source.first_rank) {
        for (int32_t axis = 0; axis < target->mesh->axis_count; axis++)
            if (!sbp_is_split(target->state.axis[axis])) *elements *= target->mesh->axes[axis].size;
        return AM_OK;
    }
    Matcher matcher = {.arena = arena, .shape = shape, .route = route};
    *elements = 0;
    return visit_pairs(&matcher, count_crossing, elements, error);
}

/* The states that one end may have while pieces go across. */
typedef struct Candidates {
    int32_t count;
    SbpState states[IR_MAX_RANK + 1];
} Candidates;

/* Lists `end` with its partial axes (of a target the replicated ones too) replicated or split along one
 * dimension. */
static void list_candidates(Candidates *candidates, const TransferEnd *end, const IrShape *shape,
                            bool is_source) {
    uint32_t free_axes = 0;
    int32_t ways = 1, order[IR_MAX_RANK];
    SbpState whole = end->state;
    for (int32_t axis = 0; axis < end->mesh->axis_count; axis++) {
        bool is_free = is_source ? sbp_is_partial(whole.axis[axis]) : !sbp_is_split(whole.axis[axis]);
        if (!is_free || end->mesh->axes[axis].size == 1) continue;
        free_axes |= 1u << axis;
        ways *= end->mesh->axes[axis].size;
    }
    for (int32_t axis = 0; axis < MESH_MAX_AXES; axis++)
        if (sbp_is_partial(whole.axis[axis])) sbp_set(&whole, axis, SBP_B);
    candidates->states[0] = whole;
    candidates->count = 1;
    if (!free_axes) return;
    /* Dimensions in the order in which they are tried for a cut over `ways` devices: those that divide first,
     * the larger first. */
    for (int32_t d = 0; d < shape->rank; d++) {
        int32_t place = d;
        bool divides = shape->dimensions[d] % ways == 0;
        for (; place > 0; place--) {
            int64_t size = shape->dimensions[order[place - 1]];
            bool before = size % ways == 0;
            if (before > divides || (before == divides && size >= shape->dimensions[d])) break;
            order[place] = order[place - 1];
        }
        order[place] = d;
    }
    for (int32_t k = 0; k < shape->rank; k++) {
        SbpState state = whole;
        bool is_plain = true; /* a further axis may cut the dimension anywhere */
        for (int32_t axis = 0; axis < MESH_MAX_AXES; axis++)
            is_plain &= whole.axis[axis] != sbp_split(order[k]) || whole.cut[axis].count == 0;
        if (!is_plain) continue;
        for (int32_t axis = 0; axis < end->mesh->axis_count; axis++)
            if (free_axes >> axis & 1) sbp_set(&state, axis, sbp_split(order[k]));
        candidates->states[candidates->count++] = state;
    }
}

/* Weights are sums of fractions: differences beyond this are real. */
static bool is_less(double a, double b) {
    return a < b - 1e-9 * (fabs(a) + fabs(b));
}

AmStatus transfer_route(TransferRoute *route, const IrShape *shape, const TransferEnd *source,
                        const TransferEnd *target, AmError *error) {
    Arena arena = {0};
    Candidates sources, targets;
    double least_crossing = 0, whole = (double)ir_shape_bytes(shape);
    bool found = false;
    AmStatus status = AM_OK;
    list_candidates(&sources, source, shape, true);
    list_candidates(&targets, target, shape, false);
    for (int32_t s = 0; s < sources.count && status == AM_OK; s++)
        for (int32_t t = 0; t < targets.count && status == AM_OK; t++) {
            TransferRoute way = {.source = *source, .target = *target};
            double crossing;
            way.source.state = sources.states[s];
            way.target.state = targets.states[t];
            double before = reshard_weight(source->mesh, shape, source->state, way.source.state);
            double after = reshard_weight(target->mesh, shape, way.target.state,
                                          reshard_before_partial(way.target.state, target->state));
            if (before < 0 || after < 0) continue;
            status = crossing_elements(&crossing, &arena, shape, &way, error);
            crossing *= (double)dtype_bytes(shape->type);
            way.bytes = before * whole * source->mesh->device_count + crossing +
                        after * whole * target->mesh->device_count;
            if (found && !is_less(way.bytes, route->bytes) &&
                (is_less(route->bytes, way.bytes) || !is_less(crossing, least_crossing)))
                continue;
            *route = way;
            least_crossing = crossing;
            found = true;
        }
    arena_free(&arena);
    TRY(status);
    return found ? AM_OK : am_fail(error, AM_ERROR_INTERNAL, "", "no route for a value between two meshes");
}

/* The pieces of one rank, being listed. */
typedef struct PieceLists {
    int32_t rank, first; /* `first`: the lowest rank of both ends */
    bool *takes_part;    /* [rank - first] */
    ProgramPiece *sends, *receives;
    int32_t send_count, send_capacity, receive_count, receive_capacity;
} PieceLists;

static ProgramPiece make_piece(Matcher *matcher, int32_t peer, bool is_send) {
    int32_t rank = matcher->shape->rank;
    int64_t *numbers = ARENA_ARRAY(matcher->arena, int64_t, 2 * rank + 1);
    for (int32_t d = 0; numbers && d < rank; d++) {
        numbers[d] = is_send ? matcher->overlaps[d].in_source : matcher->overlaps[d].in_target;
        numbers[rank + d] = matcher->overlaps[d].extent;
    }
    return (ProgramPiece){.peer = peer, .start = numbers, .extent = numbers ? numbers + rank : NULL};
}

static void list_piece(void *user, Matcher *matcher, int32_t sender, int32_t receiver) {
    PieceLists *listing = user;
    Arena *arena = matcher->arena;
    if (sender != receiver)
        listing->takes_part[sender - listing->first] = listing->takes_part[receiver - listing->first] = true;
    if (sender == listing->rank) {
        ARENA_RESERVE(arena, listing->sends, listing->send_count, listing->send_capacity);
        if (arena->failed) return;
        listing->sends[listing->send_count++] = make_piece(matcher, receiver, true);
    }
    if (receiver == listing->rank) {
        ARENA_RESERVE(arena, listing->receives, listing->receive_count, listing->receive_capacity);
        if (arena->failed) return;
        listing->receives[listing->receive_count++] = make_piece(matcher, sender, false);
    }
}

AmStatus transfer_pieces(const ProgramTransfer **transfer, Arena *arena, const IrShape *shape,
                         const TransferRoute *route, int32_t rank, AmError *error) {
    const TransferEnd *a = &route->source, *b = &route->target;
    int32_t first = a->first_rank < b->first_rank ? a->first_rank : b->first_rank;
    int32_t end_a = a->first_rank + a->mesh->device_count, end_b = b->first_rank + b->mesh->device_count;
    int32_t span = (end_a > end_b ? end_a : end_b) - first, count = 0;
    PieceLists listing = {.rank = rank, .first = first, .takes_part = ARENA_ARRAY(arena, bool, span)};
    Matcher matcher = {.arena = arena, .shape = shape, .route = route};
    ProgramTransfer *result = ARENA_ARRAY(arena, ProgramTransfer, 1);
    TransferRoute *kept = ARENA_ARRAY(arena, TransferRoute, 1);
    if (arena->failed) return am_fail_memory(error, span);
    *kept = *route;
    TRY(visit_pairs(&matcher, list_piece, &listing, error));
    for (int32_t r = 0; r < span; r++) count += listing.takes_part[r];
    int32_t *ranks = ARENA_ARRAY(arena, int32_t, count + 1);
    if (arena->failed) return am_fail_memory(error, count * 4);
    *result = (ProgramTransfer){.send_count = listing.send_count,
                                .receive_count = listing.receive_count,
                                .sends = listing.sends,
                                .receives = listing.receives,
                                .ranks = ranks,
                                .shape = shape,
                                .route = kept};
    for (int32_t r = 0; r < span; r++)
        if (listing.takes_part[r]) ranks[result->rank_count++] = first + r;
    *transfer = result;
    return AM_OK;
}

bool program_instruction_communicates(const ProgramInstruction *instruction, bool all) {
    if (instruction->kind == PROGRAM_TRANSFER || (all && instruction->kind == PROGRAM_COLLECTIVE))
        return true;
    for (int32_t k = 0; k < instruction->regions.count; k++)
        if (program_communicates(instruction->regions.programs[k], all)) return true;
    return false;
}

bool program_communicates(const Program *program, bool all) {
    for (int32_t i = 0; i < program->instruction_count; i++)
        if (program_instruction_communicates(&program->instructions[i], all)) return true;
    return false;
}

typedef struct PairList {
    TransferPair *pairs;
    int32_t count, capacity;
} PairList;

static void list_pair(void *user, Matcher *matcher, int32_t sender, int32_t receiver) {
    PairList *list = user;
    TransferPair *last = list->count > 0 ? &list->pairs[list->count - 1] : NULL;
    double elements = 1;
    if (sender == receiver) return;
    for (int32_t d = 0; d < matcher->shape->rank; d++) elements *= (double)matcher->overlaps[d].extent;
    if (last && last->sender == sender && last->receiver == receiver) {
        last->elements += elements;
        return;
    }
    ARENA_RESERVE(matcher->arena, list->pairs, list->count, list->capacity);
    if (!matcher->arena->failed) list->pairs[list->count++] = (TransferPair){sender, receiver, elements};
}

AmStatus transfer_pairs(TransferPair **pairs, int32_t *count, Arena *arena, const IrShape *shape,
                        const TransferRoute *route, AmError *error) {
    Matcher matcher = {.arena = arena, .shape = shape, .route = route};
    PairList list = {0};
    TRY(visit_pairs(&matcher, list_pair, &list, error));
    if (arena->failed) return am_fail_memory(error, list.count * (int64_t)sizeof *list.pairs);
    *pairs = list.pairs;
    *count = list.count;
    return AM_OK;
}

static TransferEnd own_end(const Lowering *self, SbpState state) {
    return (TransferEnd){.mesh = self->mesh, .first_rank = self->program->first_rank, .state = state};
}

/* Adds the transfer; a value that it makes is to be added before. */
static AmStatus add_transfer(Lowering *self, int32_t i, const ProgramTransfer *pieces, AmError *error) {
    static const IrAttributes none;
    ProgramInstruction *instruction = lower_add_instruction(self);
    ProgramTransfer *transfer = ARENA_ARRAY(self->arena, ProgramTransfer, 1);
    if (self->arena->failed) return am_fail_memory(error, (int64_t)sizeof *instruction);
    *transfer = *pieces;
    transfer->number = self->transfers;
    transfer->sender = self->sender;
    transfer->receiver = self->receiver;
    instruction->kind = PROGRAM_TRANSFER;
    instruction->opcode = IR_COPY;
    instruction->origin = i;
    instruction->first_result = self->program->value_count;
    instruction->attributes = &none;
    instruction->transfer = transfer;
    return AM_OK;
}

AmStatus lower_send(Lowering *self, int32_t i, int32_t leaf, SbpState source, const TransferEnd *target,
                    AmError *error) {
    int32_t *operand = ARENA_ARRAY(self->arena, int32_t, 1);
    TransferEnd own = own_end(self, source);
    if (self->module->instructions[i].shape.type == DTYPE_TUPLE) rules_find_value(self->rules, &i, &leaf);
    const IrShape *shape = rules_leaf(&self->module->instructions[i].shape, leaf);
    const ProgramTransfer *transfer;
    TransferRoute route;
    if (!operand) return am_fail_memory(error, (int64_t)sizeof *operand);
    TRY(transfer_route(&route, shape, &own, target, error));
    TRY(transfer_pieces(&transfer, self->arena, shape, &route, own.first_rank + self->device, error));
    TRY(lower_operand_in_state(self, i, leaf, route.source.state, operand, error));
    TRY(add_transfer(self, i, transfer, error));
    ProgramInstruction *instruction = &self->program->instructions[self->program->instruction_count - 1];
    instruction->operand_count = 1;
    instruction->operands = operand;
    return AM_OK;
}

AmStatus lower_receive(Lowering *self, int32_t i, int32_t leaf, const TransferEnd *source, SbpState target,
                       AmError *error) {
    TransferEnd own = own_end(self, target);
    const ProgramTransfer *transfer;
    TransferRoute route;
    if (self->module->instructions[i].shape.type == DTYPE_TUPLE) rules_find_value(self->rules, &i, &leaf);
    const IrShape *shape = rules_leaf(&self->module->instructions[i].shape, leaf);
    TRY(transfer_route(&route, shape, source, &own, error));
    TRY(transfer_pieces(&transfer, self->arena, shape, &route, own.first_rank + self->device, error));
    int32_t value = lower_add_value(self, i, leaf, shape, route.target.state);
    TRY(add_transfer(self, i, transfer, error));
    ProgramInstruction *instruction = &self->program->instructions[self->program->instruction_count - 1];
    instruction->result_count = 1;
    instruction->first_result = value;
    return reshard_value(self, (LoweredResult){i, leaf, shape}, value, target, &value, error);
}
