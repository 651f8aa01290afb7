/* Conversion between files and the IR: parsers and printers of the three encodings, and the builder
 * that they share.
 *
 * A parser converts bytes to one Hlo__HloModuleProto in the caller's arena. A printer appends a
 * message to a Text. The builder makes an IrModule from a message. Parsers check only the form
 * (syntax, lengths, types of fields); the builder checks the contents of the fields; ir_verify
 * checks that shapes agree.
 */
#ifndef IR_ENCODINGS_H
#define IR_ENCODINGS_H

#include "base/text.h"
#include "ir/hlo.pb-c.h"
#include "ir/module.h"

/* Messages nested deeper than this are refused by every parser. */
#define IR_MAX_MESSAGE_DEPTH 100
/* Tuples nested deeper than this are refused by the builder and the text parser. */
#define IR_MAX_TUPLE_DEPTH 32

/* Returns protobuf-c's allocator over an arena: it never frees. */
ProtobufCAllocator ir_arena_allocator(Arena *arena);

/* Read data[0..length) of file `source` into `*message`, which is owned by `arena`. AM_ERROR_INPUT names the
 * byte, the JSON path or the line and column. The binary and JSON parsers also accept a HloProto or
 * HloSnapshot around it. */
AmStatus ir_parse_pb(Hlo__HloModuleProto **message, Arena *arena, AmWarnings *warnings, const char *source,
                     const char *data, int64_t length, AmError *error);
AmStatus ir_parse_json(Hlo__HloModuleProto **message, Arena *arena, AmWarnings *warnings, const char *source,
                       const char *data, int64_t length, AmError *error);
AmStatus ir_parse_text(Hlo__HloModuleProto **message, Arena *arena, AmWarnings *warnings, const char *source,
                       const char *data, int64_t length, AmError *error);

/* Append the message to `out`; the caller frees `out`. */
AmStatus ir_print_pb(Text *out, const Hlo__HloModuleProto *message, AmError *error);
AmStatus ir_print_json(Text *out, const Hlo__HloModuleProto *message, AmError *error);
AmStatus ir_print_text(Text *out, const Hlo__HloModuleProto *message, AmError *error);

/* Fills a module made by ir_module_new from `message`, which must be owned by
 * the module's arena (shapes and attributes point into it). */
AmStatus ir_build(IrModule *module, Hlo__HloModuleProto *message, AmError *error);

/* Returns the bytes of a payload, either its own or those in the module's table; NULL if it is empty. */
const ProtobufCBinaryData *ir_payload(const Hlo__HloModuleProto *module, const Hlo__Payload *payload);

/* Checks arity and the shapes that the operators imply; names the instruction. */
AmStatus ir_verify(IrModule *module, AmError *error);

/* Returns the byte at which ir_parse_text() found the instruction with that id in a text that it
 * has parsed without error; -1 if there is no such instruction. */
int64_t ir_find_in_text(const char *data, int64_t length, int64_t id);

/* Returns the value of a frontend attribute, or NULL if `attributes`, which may be NULL, lack the key. */
const char *ir_frontend_attribute(const Hlo__FrontendAttributes *attributes, const char *key);

#endif
