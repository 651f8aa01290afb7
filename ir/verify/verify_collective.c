/* Rules of collectives, which occur in modules after partitioning or from shard_map.
 *
 *   all-gather:      result = operand, times the group's size in one dimension
 *   reduce-scatter:  operand = result, times the group's size in one dimension
 *   all-to-all:      one operand per member of the group, or one operand with a
 *                    dimension that the group's size divides
 *   all others:      results have the shapes of the operands
 *
 * Listed groups determine the group's size. Without a list it is the number of replicas; with a
 * channel and without global ids it is a multiple of the listed size. Neither number is in the
 * module, so that any consistent size is accepted.
 */
#include "ir/build/id_map.h"
#include "ir/verify/verify_parts.h"

typedef struct Groups {
    int64_t size;    /* of each group; 0: not known, or not all alike */
    bool is_partial; /* the real size is a multiple of it */
} Groups;

/* Members are 0, 1, ..., each once. */
static AmStatus verify_members(const Verifier *verifier, const IrInstruction *instruction,
                               Hlo__ReplicaGroup *const *groups, size_t count) {
    Arena *arena = &verifier->module->arena;
    ArenaMark mark = arena_mark(arena);
    size_t total = 0;
    for (size_t g = 0; g < count; g++) total += groups[g]->n_replica_ids;
    bool *seen = ARENA_ARRAY(arena, bool, total + 1);
    if (seen == NULL) return am_fail_memory(verifier->error, (int64_t)total);
    AmStatus status = AM_OK;
    for (size_t g = 0; g < count && status == AM_OK; g++) {
        if (groups[g]->n_replica_ids == 0)
            status = verify_refuse(verifier, instruction, "replica group %zu is empty", g);
        for (size_t i = 0; i < groups[g]->n_replica_ids && status == AM_OK; i++) {
            int64_t id = groups[g]->replica_ids[i];
            bool is_new = id >= 0 && (uint64_t)id < total && !seen[id];
            if (is_new) seen[id] = true;
            else
                status = verify_refuse(verifier, instruction,
                                       "its replica groups name %lld twice or outside of the %zu they have",
                                       (long long)id, total);
        }
    }
    arena_release(arena, mark);
    return status;
}

/* Reads [groups, size]<=[dimensions]T(permutation): the devices are as many as the members. */
static AmStatus read_iota(const Verifier *verifier, const IrInstruction *instruction, Groups *groups,
                          const Hlo__IotaReplicaGroupListProto *list) {
    int64_t members, devices = 1;
    bool overflow = __builtin_mul_overflow(list->num_replica_groups, list->num_devices_per_group, &members);
    for (size_t d = 0; d < list->n_iota_reshape_dims; d++) {
        overflow = overflow || __builtin_mul_overflow(devices, list->iota_reshape_dims[d], &devices);
    }
    uint64_t permuted = 0;
    for (size_t i = 0; i < list->n_iota_transpose_perm; i++) {
        int64_t dimension = list->iota_transpose_perm[i];
        if (dimension >= 0 && dimension < 64) permuted |= (uint64_t)1 << dimension;
    }
    size_t rank = list->n_iota_transpose_perm;
    bool is_permutation = rank == 0 || (rank == list->n_iota_reshape_dims && rank < 64 &&
                                        permuted == ((uint64_t)1 << rank) - 1);
    if (overflow || !is_permutation || list->num_devices_per_group < 1 || members != devices) {
        return verify_refuse(verifier, instruction, "its %lld groups of %lld do not make up its devices",
                             (long long)list->num_replica_groups, (long long)list->num_devices_per_group);
    }
    groups->size = list->num_devices_per_group;
    return AM_OK;
}

static AmStatus read_groups(const Verifier *verifier, const IrInstruction *instruction, Groups *groups,
                            bool must_be_alike) {
    const Hlo__HloInstructionProto *message = instruction->message;
    Hlo__ReplicaGroup *const *listed = message->replica_groups;
    size_t count = message->n_replica_groups;
    const Hlo__IotaReplicaGroupListProto *iota = NULL;
    if (message->replica_group_list_case ==
        HLO__HLO_INSTRUCTION_PROTO__REPLICA_GROUP_LIST_IOTA_COLLECTIVE_DEVICE_LIST) {
        iota = message->iota_collective_device_list;
    } else if (message->replica_group_list_case ==
               HLO__HLO_INSTRUCTION_PROTO__REPLICA_GROUP_LIST_COLLECTIVE_DEVICE_LIST) {
        iota = message->collective_device_list->iota_replica_group_list;
        listed = message->collective_device_list->replica_groups;
        count = message->collective_device_list->n_replica_groups;
    }
    *groups = (Groups){.is_partial = message->channel_id > 0 && !message->use_global_device_ids};
    bool is_mesh = message->replica_group_list_case ==
                   HLO__HLO_INSTRUCTION_PROTO__REPLICA_GROUP_LIST_MESH_AXES_REPLICA_GROUP_LIST;
    if (message->use_global_device_ids &&
        ((count == 0 && iota == NULL && !is_mesh) || message->channel_id <= 0)) {
        return verify_refuse(verifier, instruction,
                             "it uses global device ids, which takes groups of them and a channel");
    }
    if (iota != NULL) return read_iota(verifier, instruction, groups, iota);
    if (count == 0) return AM_OK;
    TRY(verify_members(verifier, instruction, listed, count));
    groups->size = (int64_t)listed[0]->n_replica_ids;
    for (size_t g = 1; g < count; g++) {
        if (listed[g]->n_replica_ids == listed[0]->n_replica_ids) continue;
        groups->size = 0;
        if (!must_be_alike) continue;
        return verify_refuse(verifier, instruction, "its replica groups have %zu and %zu members",
                             listed[0]->n_replica_ids, listed[g]->n_replica_ids);
    }
    return AM_OK;
}

AmStatus verify_all_reduce(const Verifier *verifier, const IrInstruction *instruction) {
    Groups groups;
    TRY(read_groups(verifier, instruction, &groups, false));
    return verify_each_operand(verifier, instruction, &instruction->shape, 0);
}

static AmStatus verify_start(const Verifier *verifier, const IrInstruction *instruction, IrOpcode expected) {
    IrOpcode opcode = verify_operand_opcode(verifier, instruction, 0);
    if (opcode == expected) return AM_OK;
    return verify_refuse(verifier, instruction, "its operand is %s, expected %s", ir_opcode_name(opcode),
                         ir_opcode_name(expected));
}

AmStatus verify_all_reduce_done(const Verifier *verifier, const IrInstruction *instruction) {
    TRY(verify_start(verifier, instruction, IR_ALL_REDUCE_START));
    return verify_shape(verifier, instruction, &instruction->shape, verify_operand(verifier, instruction, 0));
}

/* Checks that `large` is `small`, but larger by the group's size along one dimension. */
static AmStatus verify_shards(const Verifier *verifier, const IrInstruction *instruction,
                              const Groups *groups, const IrShape *large, const IrShape *small,
                              int64_t *shards) {
    int64_t along, sizes[IR_MAX_RANK];
    TRY(verify_one_dimension(verifier, instruction, small->rank, &along));
    if (large->rank != small->rank || large->type != small->type)
        return verify_shape(verifier, instruction, large, small);
    int64_t whole = large->dimensions[along], shard = small->dimensions[along];
    bool divides = shard == 0 ? whole == 0 : whole % shard == 0;
    int64_t count = shard == 0 ? 0 : whole / shard;
    if (divides && count > 0 && *shards == 0) *shards = count;
    bool fits = count == 0 || groups->size <= 1 ||
                (groups->is_partial ? count % groups->size == 0 : count == groups->size);
    if (!divides || !fits || (count > 0 && count != *shards)) {
        return verify_refuse(verifier, instruction,
                             "dimension %lld has size %lld in the whole and %lld in one of %lld shards",
                             (long long)along, (long long)whole, (long long)shard,
                             (long long)(*shards > 0 && fits ? *shards : groups->size));
    }
    for (int32_t d = 0; d < small->rank; d++) sizes[d] = d == along ? whole : small->dimensions[d];
    IrShape expected = {.type = small->type, .rank = small->rank, .dimensions = sizes};
    return verify_shape(verifier, instruction, large, &expected);
}

/* Checks that `results` are one array, or a tuple of one per operand; they are larger than the operands
 * where `gathers`, else smaller. */
static AmStatus verify_sharded(const Verifier *verifier, const IrInstruction *instruction,
                               const IrShape *results, bool gathers) {
    int32_t count = instruction->operand_count;
    int64_t shards = 0;
    Groups groups;
    TRY(read_groups(verifier, instruction, &groups, true));
    bool is_tuple = results->type == DTYPE_TUPLE;
    if (count == 1 ? is_tuple : !is_tuple || results->rank != count) {
        return verify_refuse(verifier, instruction, "its result is not one array for each of %d operands",
                             count);
    }
    for (int32_t k = 0; k < count; k++) {
        const IrShape *operand = verify_operand(verifier, instruction, k),
                      *result = is_tuple ? &results->elements[k] : results;
        TRY(verify_shards(verifier, instruction, &groups, gathers ? result : operand,
                          gathers ? operand : result, &shards));
    }
    return AM_OK;
}

AmStatus verify_all_gather(const Verifier *verifier, const IrInstruction *instruction) {
    return verify_sharded(verifier, instruction, &instruction->shape, true);
}

AmStatus verify_reduce_scatter(const Verifier *verifier, const IrInstruction *instruction) {
    return verify_sharded(verifier, instruction, &instruction->shape, false);
}

/* Checks that the result begins with the operands (a tuple where there are several), then the results. */
static AmStatus verify_started(const Verifier *verifier, const IrInstruction *instruction) {
    if (instruction->shape.type != DTYPE_TUPLE || instruction->shape.rank < 2)
        return verify_refuse(verifier, instruction, "its shape is no tuple of operands and results");
    return verify_each_operand(verifier, instruction, &instruction->shape.elements[0], 0);
}

AmStatus verify_all_gather_start(const Verifier *verifier, const IrInstruction *instruction) {
    TRY(verify_started(verifier, instruction));
    return verify_sharded(verifier, instruction, &instruction->shape.elements[1], true);
}

static AmStatus verify_done(const Verifier *verifier, const IrInstruction *instruction, IrOpcode start) {
    TRY(verify_start(verifier, instruction, start));
    const IrShape *operand = verify_operand(verifier, instruction, 0);
    if (operand->type != DTYPE_TUPLE || operand->rank < 2)
        return verify_refuse(verifier, instruction, "its operand is no tuple of operands and results");
    return verify_shape(verifier, instruction, &instruction->shape, &operand->elements[1]);
}

AmStatus verify_all_gather_done(const Verifier *verifier, const IrInstruction *instruction) {
    return verify_done(verifier, instruction, IR_ALL_GATHER_START);
}

AmStatus verify_all_to_all(const Verifier *verifier, const IrInstruction *instruction) {
    Groups groups;
    TRY(read_groups(verifier, instruction, &groups, true));
    const IrShape *first = verify_operand(verifier, instruction, 0), *result = &instruction->shape;
    if (instruction->attributes->dimension_count > 0) {
        int64_t along;
        if (instruction->operand_count != 1) {
            return verify_refuse(verifier, instruction, "it splits one of %d operands, expected 1",
                                 instruction->operand_count);
        }
        TRY(verify_one_dimension(verifier, instruction, first->rank, &along));
        if (groups.size > 0 && first->dimensions[along] % groups.size != 0) {
            return verify_refuse(verifier, instruction, "it splits size %lld into %lld",
                                 (long long)first->dimensions[along], (long long)groups.size);
        }
        return verify_shape(verifier, instruction, result, first);
    }
    int64_t count = instruction->operand_count;
    bool fits = groups.size == 0 || (groups.is_partial ? count % groups.size == 0 : count == groups.size);
    if (!fits || result->type != DTYPE_TUPLE || result->rank != count) {
        return verify_refuse(verifier, instruction, "its %lld operands are not one per member of a group",
                             (long long)count);
    }
    for (int32_t k = 0; k < count; k++) {
        const IrShape *operand = verify_operand(verifier, instruction, k);
        TRY(verify_shape(verifier, instruction, operand, first));
        if (!verify_same_layout(operand, first))
            return verify_refuse(verifier, instruction, "operands 0 and %d differ in layout", k);
        TRY(verify_shape(verifier, instruction, &result->elements[k], first));
    }
    return AM_OK;
}

/* Checks the operands: the data to send, the buffer for the result, then offsets and sizes on either side,
 * all four of one shape and type. */
AmStatus verify_ragged_all_to_all(const Verifier *verifier, const IrInstruction *instruction) {
    Groups groups;
    TRY(read_groups(verifier, instruction, &groups, true));
    const IrShape *offsets = verify_operand(verifier, instruction, 2);
    if (offsets->rank < 1 || offsets->rank > 2)
        return verify_refuse(verifier, instruction, "operand 2 has not one or two dimensions");
    for (int32_t k = 3; k < instruction->operand_count; k++) {
        TRY(verify_shape(verifier, instruction, verify_operand(verifier, instruction, k), offsets));
    }
    return verify_shape(verifier, instruction, &instruction->shape, verify_operand(verifier, instruction, 1));
}

AmStatus verify_collective_broadcast(const Verifier *verifier, const IrInstruction *instruction) {
    return verify_shape(verifier, instruction, &instruction->shape, verify_operand(verifier, instruction, 0));
}

static bool is_in_place(const IrInstruction *instruction) {
    return instruction->message->n_dynamic_slice_sizes > 0;
}

/* Times that one device may send and receive: once, or once for each slice of a permutation in place. */
static int64_t most_uses(const Verifier *verifier, const IrInstruction *instruction) {
    enum { MOST_SLICES = 64 };
    if (!is_in_place(instruction) || instruction->operand_count != 4) return 1;
    const IrShape *slices = verify_operand(verifier, instruction, 2);
    bool has_buffers = verify_operand(verifier, instruction, 0)->type == DTYPE_TUPLE;
    if (has_buffers && slices->type == DTYPE_TUPLE && slices->rank > 0) slices = &slices->elements[0];
    int64_t count = slices->type == DTYPE_TUPLE ? slices->rank : 1;
    return count < 1 ? 1 : count > MOST_SLICES ? MOST_SLICES : count;
}

/* Counts one use of a device; false: there are `most` already. */
static bool add_use(IdMap *uses, int64_t device, int64_t most) {
    for (int64_t k = 0; k < most; k++)
        if (id_map_add(uses, device * most + k, 0)) return true;
    return false;
}

static AmStatus verify_source_target_pairs(const Verifier *verifier, const IrInstruction *instruction) {
    const Hlo__HloInstructionProto *message = instruction->message;
    Arena *arena = &verifier->module->arena;
    ArenaMark mark = arena_mark(arena);
    size_t count = message->n_source_target_pairs;
    int64_t most = most_uses(verifier, instruction);
    IdMap sources, targets;
    if (count == 0) return AM_OK;
    if (!id_map_create(&sources, arena, (int64_t)count) || !id_map_create(&targets, arena, (int64_t)count))
        return am_fail_memory(verifier->error, (int64_t)count * 24);
    id_map_clear(&sources, (int64_t)count);
    id_map_clear(&targets, (int64_t)count);
    AmStatus status = AM_OK;
    for (size_t i = 0; i < count && status == AM_OK; i++) {
        int64_t source = message->source_target_pairs[i]->source;
        int64_t target = message->source_target_pairs[i]->target;
        bool is_pair = source >= 0 && target >= 0 && source < INT64_MAX / most && target < INT64_MAX / most;
        if (is_pair && add_use(&sources, source, most) && add_use(&targets, target, most)) continue;
        status = verify_refuse(
            verifier, instruction,
            "its pair of source %lld and target %lld has one of them more than %lld times or below 0",
            (long long)source, (long long)target, (long long)most);
    }
    arena_release(arena, mark);
    return status;
}

/* Returns whether `offset` has one index per dimension of `buffer`, or one tuple of such indices per
 * slice. */
static bool is_offset(const IrShape *buffer, const IrShape *offset) {
    if (dtype_bits(buffer->type) == 0 || offset->type != DTYPE_TUPLE) return false;
    bool are_tuples = offset->rank > 0 && offset->elements[0].type == DTYPE_TUPLE;
    if (!are_tuples && offset->rank != buffer->rank) return false;
    for (int32_t i = 0; i < offset->rank; i++) {
        const IrShape *index = &offset->elements[i];
        bool fits = are_tuples ? index->type == DTYPE_TUPLE && index->rank == buffer->rank
                               : dtype_bits(index->type) > 0;
        if (!fits) return false;
    }
    return true;
}

/* Returns whether the buffer, or each buffer of a tuple, has its offset. */
static bool are_offsets(const IrShape *buffers, const IrShape *offsets) {
    if (buffers->type != DTYPE_TUPLE) return is_offset(buffers, offsets);
    if (offsets->type != DTYPE_TUPLE || offsets->rank != buffers->rank) return false;
    for (int32_t i = 0; i < buffers->rank; i++)
        if (!is_offset(&buffers->elements[i], &offsets->elements[i])) return false;
    return true;
}

/* Checks a transfer in place: slices of operand 0 at the offsets of operand 2 go into operand 1 at those of
 * operand 3. */
static AmStatus verify_in_place(const Verifier *verifier, const IrInstruction *instruction) {
    if (instruction->operand_count != 4) {
        return verify_refuse(verifier, instruction,
                             "it has %d operands, expected 4 of a permutation in place",
                             instruction->operand_count);
    }
    const IrShape *input = verify_operand(verifier, instruction, 0),
                  *output = verify_operand(verifier, instruction, 1);
    bool are_alike = (input->type == DTYPE_TUPLE) == (output->type == DTYPE_TUPLE) &&
                     (input->type != DTYPE_TUPLE || input->rank == output->rank);
    if (are_alike && are_offsets(input, verify_operand(verifier, instruction, 2)) &&
        are_offsets(output, verify_operand(verifier, instruction, 3)))
        return AM_OK;
    return verify_refuse(verifier, instruction,
                         "its operands are not two buffers and an offset for each dimension of them");
}

static AmStatus verify_arrays(const Verifier *verifier, const IrInstruction *instruction) {
    for (int32_t k = 0; k < instruction->operand_count; k++) {
        if (dtype_bits(verify_operand(verifier, instruction, k)->type) > 0) continue;
        return verify_refuse(verifier, instruction, "operand %d is not an array", k);
    }
    return AM_OK;
}

AmStatus verify_collective_permute(const Verifier *verifier, const IrInstruction *instruction) {
    TRY(verify_source_target_pairs(verifier, instruction));
    if (is_in_place(instruction)) {
        TRY(verify_in_place(verifier, instruction));
        return verify_shape(verifier, instruction, &instruction->shape,
                            verify_operand(verifier, instruction, 1));
    }
    if (!verifier->is_lax) TRY(verify_arrays(verifier, instruction));
    return verify_each_operand(verifier, instruction, &instruction->shape, 0);
}

AmStatus verify_collective_permute_start(const Verifier *verifier, const IrInstruction *instruction) {
    const IrShape *result = &instruction->shape;
    TRY(verify_source_target_pairs(verifier, instruction));
    if (is_in_place(instruction)) {
        TRY(verify_in_place(verifier, instruction));
        if (result->type != DTYPE_TUPLE || result->rank < 2)
            return verify_refuse(verifier, instruction, "its shape is no tuple of its two buffers");
        TRY(verify_shape(verifier, instruction, &result->elements[0],
                         verify_operand(verifier, instruction, 0)));
        return verify_shape(verifier, instruction, &result->elements[1],
                            verify_operand(verifier, instruction, 1));
    }
    if (!verifier->is_lax) TRY(verify_arrays(verifier, instruction));
    TRY(verify_started(verifier, instruction));
    return verify_each_operand(verifier, instruction, &result->elements[1], 0);
}

AmStatus verify_collective_permute_done(const Verifier *verifier, const IrInstruction *instruction) {
    return verify_done(verifier, instruction, IR_COLLECTIVE_PERMUTE_START);
}

/* Checks partition-id and replica-id. */
AmStatus verify_device_id(const Verifier *verifier, const IrInstruction *instruction) {
    IrShape expected = {.type = DTYPE_U32};
    return verify_shape(verifier, instruction, &instruction->shape, &expected);
}
