/* The input of a module's hash: each value has one unambiguous encoding. */
#ifndef IR_CANONICAL_HASH_ENCODER_H
#define IR_CANONICAL_HASH_ENCODER_H

#include "base/hash.h"
#include "ir/hlo.pb-c.h"

#define IR_FEED_FIELDS 27

/* Starts zeroed. The digest is fed in larger pieces, because most values are eight bytes. */
typedef struct IrFeed {
    Sha256 sha;
    size_t used;
    unsigned char buffer[4096];
    /* the fields of ir_feed_message(), looked up on first use */
    const ProtobufCFieldDescriptor *fields[IR_FEED_FIELDS];
} IrFeed;

void ir_feed_begin(IrFeed *feed);
void ir_feed_end(IrFeed *feed, char hex[65]);
void ir_feed_integer(IrFeed *feed, int64_t value);                         /* 64 bits, little-endian */
void ir_feed_integers(IrFeed *feed, const int64_t *values, int64_t count); /* count first; NULL: none */
void ir_feed_bytes(IrFeed *feed, const void *bytes, size_t count);         /* count first */
void ir_feed_string(IrFeed *feed, const char *text);                       /* NULL: "" */

/* Adds the fields of an instruction's message that affect its result and that IrAttributes does not
 * contain; fields with default values are omitted. */
void ir_feed_message(IrFeed *feed, const Hlo__HloInstructionProto *message);

#endif
