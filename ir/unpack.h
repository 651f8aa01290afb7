/* Protobuf's wire format into protobuf-c's structures, in one pass. */
#ifndef IR_UNPACK_H
#define IR_UNPACK_H

#include "ir/encodings.h"

/* Unpacks data[start..end) as a message of `type` into `*message`, which is
 * owned by `arena` together with all that it points to. AM_ERROR_INPUT names
 * the byte of `data` and the field; also where structures would take memory out
 * of proportion to the bytes. Messages and strings that are written alike may
 * share one structure, so what was unpacked must not be changed. */
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

/* Reads the field at `*at` and moves past it. Returns NULL, or what is wrong;
 * where a value is cut off, the field is what there is of it. */
const char *ir_wire_next(const uint8_t *data, int64_t end, int64_t *at, IrWireField *field);

#endif
