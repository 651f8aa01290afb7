/* The binary encoding, written: protobuf-c packs the message straight into the
 * output text. Fields that our schema does not declare are written as read.
 */
#include "ir/encodings.h"

typedef struct TextBuffer {
    ProtobufCBuffer base; /* first, so that protobuf-c's pointer is ours */
    Text *text;
} TextBuffer;

static void append(ProtobufCBuffer *buffer, size_t length, const uint8_t *data) {
    text_append_bytes(((TextBuffer *)(void *)buffer)->text, (const char *)data, length);
}

AmStatus ir_print_pb(Text *out, const Hlo__HloModuleProto *message, AmError *error) {
    TextBuffer buffer = {{append}, out};
    hlo__hlo_module_proto__pack_to_buffer(message, &buffer.base);
    return out->failed ? am_fail_memory(error, (int64_t)out->length) : AM_OK;
}
