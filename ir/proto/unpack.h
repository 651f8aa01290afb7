/* Protobuf's wire format into protobuf-c's structures, in one pass. */
#ifndef IR_PROTO_UNPACK_H
#define IR_PROTO_UNPACK_H

#include "ir/encodings.h"

/* Unpacks data[start..end) as a message of `type` into `*message`. `arena` owns the message and all
 * that it refers to. AM_ERROR_INPUT reports the byte of `data` and the field; it is also returned
 * if the structures would need memory out of proportion to the bytes. Messages and strings with
 * equal bytes may share one structure, so that the result must not be modified. */
AmStatus ir_unpack(void **message, Arena *arena, const ProtobufCMessageDescriptor *type, const char *source,
                   const uint8_t *data, int64_t start, int64_t end, AmError *error);

enum { IR_WIRE_VARINT = 0, IR_WIRE_FIXED64 = 1, IR_WIRE_BYTES = 2, IR_WIRE_FIXED32 = 5 };

/* One field of a message; [start, end) is its value, without tag and length. */
typedef struct IrWireField {
    uint32_t number;
    int32_t wire;
    int64_t start, end;
    uint64_t value; /* of an IR_WIRE_VARINT */
    bool cut;       /* the file or the message around it ends first */
} IrWireField;

/* Reads the field at `*at` and moves past it. Returns NULL, or the problem; if a value is
 * truncated, `field` holds the available part. */
const char *ir_wire_next(const uint8_t *data, int64_t end, int64_t *at, IrWireField *field);

#endif
