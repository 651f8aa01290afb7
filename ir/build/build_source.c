/* Reads the origin of an instruction: op_name, source file and line.
 *
 * The metadata contains the position itself, or a stack_frame_id: the innermost frame, which refers
 * to a file location, which refers to a file (all ids count from 1). Metadata that many
 * instructions share may be in the module's payloads, as one serialized OpMetadata; the
 * instruction's own fields override it.
 */
#include "ir/build/build_parts.h"

static void position_of_frame(const Builder *builder, IrInstruction *instruction, int32_t frame_id) {
    const Hlo__StackFrameIndexProto *index = builder->message->stack_frame_index;
    if (index == NULL || frame_id < 1 || (size_t)frame_id > index->n_stack_frames) return;
    int32_t location_id = index->stack_frames[frame_id - 1]->file_location_id;
    if (location_id < 1 || (size_t)location_id > index->n_file_locations) return;
    const Hlo__StackFrameIndexProto__FileLocation *location = index->file_locations[location_id - 1];
    if (location->file_name_id < 1 || (size_t)location->file_name_id > index->n_file_names) return;
    instruction->source_file = index->file_names[location->file_name_id - 1];
    instruction->source_line = location->line;
}

static void read_metadata(const Builder *builder, IrInstruction *instruction,
                          const Hlo__OpMetadata *metadata) {
    if (instruction->op_name[0] == '\0') instruction->op_name = metadata->op_name;
    if (instruction->source_file[0] == '\0' && metadata->source_file[0] != '\0') {
        instruction->source_file = metadata->source_file;
        instruction->source_line = metadata->source_line;
    }
    if (instruction->source_file[0] == '\0')
        position_of_frame(builder, instruction, metadata->stack_frame_id);
}

static const Hlo__OpMetadata *unpack(const Builder *builder, const ProtobufCBinaryData *bytes) {
    static const Hlo__OpMetadata nothing = HLO__OP_METADATA__INIT;
    ProtobufCAllocator allocator = ir_arena_allocator(builder->arena);
    const Hlo__OpMetadata *metadata = hlo__op_metadata__unpack(&allocator, bytes->len, bytes->data);
    return metadata ? metadata : &nothing;
}

const ProtobufCBinaryData *ir_payload(const Hlo__HloModuleProto *module, const Hlo__Payload *payload) {
    if (payload == NULL) return NULL;
    if (payload->payload_source_case == HLO__PAYLOAD__PAYLOAD_SOURCE_VALUE) return &payload->value;
    bool is_in_table = module != NULL && payload->payload_source_case == HLO__PAYLOAD__PAYLOAD_SOURCE_ID &&
                       payload->id >= 0 && (size_t)payload->id < module->n_payloads;
    return is_in_table ? &module->payloads[payload->id] : NULL;
}

/* Returns the metadata of a row of the table, which is unpacked once. */
static const Hlo__OpMetadata *from_payload(const Builder *builder, const Hlo__Payload *payload) {
    const ProtobufCBinaryData *bytes = ir_payload(builder->message, payload);
    if (bytes == NULL) return NULL;
    if (bytes == &payload->value) return unpack(builder, bytes);
    const Hlo__OpMetadata **shared = &builder->shared_metadata[payload->id];
    if (*shared == NULL) *shared = unpack(builder, bytes);
    return *shared;
}

void build_source(const Builder *builder, IrInstruction *instruction, const Hlo__OpMetadata *metadata) {
    instruction->op_name = "";
    instruction->source_file = "";
    if (metadata == NULL) return;
    read_metadata(builder, instruction, metadata);
    if (metadata->metadata_payload == NULL) return;
    const Hlo__OpMetadata *shared = from_payload(builder, metadata->metadata_payload);
    if (shared != NULL) read_metadata(builder, instruction, shared);
}
