/* Parts of the builder, private to ir/build/: shapes, literals, attributes
 * and source positions of one message. Results live in the builder's arena and
 * may point into the message. */
#ifndef IR_BUILD_BUILD_PARTS_H
#define IR_BUILD_BUILD_PARTS_H

#include "ir/build/id_map.h"
#include "ir/build/schedule.h"
#include "ir/encodings.h"

typedef struct Builder {
    IrModule *module;
    Arena *arena; /* the module's */
    Hlo__HloModuleProto *message;
    AmError *error;
    IdMap computations; /* id -> index */
    IdMap locals;       /* low 32 bits of an id -> index, in one computation */
    IrSchedule schedule;
    const Hlo__OpMetadata **shared_metadata; /* [payloads], read at the first use, or NULL */
} Builder;

/* Fails: "FILE: instruction NAME: ..." with AM_ERROR_INPUT. */
AmStatus build_refuse(const Builder *builder, const Hlo__HloInstructionProto *message, const char *format,
                      ...) __attribute__((format(printf, 3, 4)));

/* Translates the parts of a message into the module's arena; build_refuse() reports what they lack. */
AmStatus build_shape(const Builder *builder, IrShape *shape, const Hlo__ShapeProto *message,
                     const Hlo__HloInstructionProto *owner);
AmStatus build_literal(const Builder *builder, const IrLiteral **literal, const IrShape *shape,
                       const Hlo__HloInstructionProto *owner);
AmStatus build_attributes(const Builder *builder, const IrAttributes **attributes, IrOpcode opcode,
                          const Hlo__HloInstructionProto *message);
/* Reads op_name, source_file and source_line, from the metadata itself, its payload or the table of stack
 * frames. */
void build_source(const Builder *builder, IrInstruction *instruction, const Hlo__OpMetadata *metadata);

#endif
