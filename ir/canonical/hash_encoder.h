/* The input of a module's hash (module_hash.c): each value has one unambiguous encoding.
 *
 * A list is encoded with its length before it, and integers in 64 bits, so that different modules have
 * different inputs. ir_encode_message() adds the fields of protobuf messages that are not at their defaults.
 */
#ifndef IR_CANONICAL_HASH_ENCODER_H
#define IR_CANONICAL_HASH_ENCODER_H

#include "base/hash.h"
#include "ir/hlo.pb-c.h"

#define IR_ENCODED_FIELDS 27

/* Starts zeroed. The digest takes larger pieces, because most values are eight bytes. */
typedef struct IrHashEncoder {
    Sha256 sha;
    size_t used;
    unsigned char buffer[4096];
    /* the fields of ir_encode_message(), looked up on first use */
    const ProtobufCFieldDescriptor *fields[IR_ENCODED_FIELDS];
} IrHashEncoder;

/* Begins an input; ends it, and writes its hash in hexadecimal digits. */
void ir_encode_begin(IrHashEncoder *encoder);
void ir_encode_end(IrHashEncoder *encoder, char hex[65]);
void ir_encode_integer(IrHashEncoder *encoder, int64_t value); /* 64 bits, little-endian */
void ir_encode_integers(IrHashEncoder *encoder, const int64_t *values,
                        int64_t count);                                        /* count first; NULL: none */
void ir_encode_bytes(IrHashEncoder *encoder, const void *bytes, size_t count); /* count first */
void ir_encode_string(IrHashEncoder *encoder, const char *text);               /* NULL: "" */

/* Adds the fields of an instruction's message that affect its result and that IrAttributes does not
 * contain; fields with default values are omitted. */
void ir_encode_message(IrHashEncoder *encoder, const Hlo__HloInstructionProto *message);

#endif
