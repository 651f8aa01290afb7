/* The syntaxes of attribute values, and the form of a row of the attribute table.
 *
 * A syntax is how a kind of value is read, printed and seen to be the default; a
 * row (ir/text/text_attributes.c) applies one to a field of the message. Plain ones
 * are in ir/text/text_values.c, those of a single attribute in ir/text/text_structures.c and
 * ir/text/text_annotations.c.
 */
#ifndef IR_TEXT_TEXT_VALUES_H
#define IR_TEXT_TEXT_VALUES_H

#include "ir/text/hlo_text.h"

struct IrAttributeRow;

/* `field` is where the row's field lives in this instruction; `part` the message
 * that holds it (the instruction itself or a message in it). `is_default` says
 * that there is nothing to print; a NULL function that nothing ever is. */
typedef struct IrSyntax {
    AmStatus (*read)(IrTextReader *reader, const struct IrAttributeRow *row, void *part, void *field);
    void (*write)(IrTextWriter *writer, const struct IrAttributeRow *row, const void *part,
                  const void *field);
    bool (*is_default)(const struct IrAttributeRow *row, const void *part, const void *field);
} IrSyntax;

/* One attribute. Rows of one name stand for different opcodes. */
typedef struct IrAttributeRow {
    const char *name;
    const IrSyntax *syntax;
    size_t field, count; /* offsets in the part; count: of the n_ of a repeated field */
    size_t part;         /* offset of the pointer to the part in the instruction; 0: the instruction */
    const ProtobufCMessageDescriptor *part_type;
    size_t inner; /* offset of the pointer to the real part in that one; 0: none */
    const ProtobufCMessageDescriptor *inner_type;
    const ProtobufCEnumDescriptor *names; /* enumerations: the names of their values; else NULL */
    const char *prefix;                   /* start of these names that the text leaves out; NULL: none */
    bool is_lower_case;                   /* the text has the names in lower case; read in any case */
    const char *opcodes;                  /* separated by blanks; NULL: any */
    bool is_of_functions;                 /* only of opcodes of one operand with FACT_TRANSCENDENTAL */
    bool is_always_written;
    bool has_no_zero;  /* enumerations: the value 0 stands for no value and cannot be written */
    int64_t unwritten; /* the integer that need not be printed; for computations the slot */
} IrAttributeRow;

extern const IrSyntax IR_SYNTAX_INTEGER, IR_SYNTAX_INTEGER32, IR_SYNTAX_BOOLEAN, IR_SYNTAX_FLOAT;
extern const IrSyntax IR_SYNTAX_STRING, IR_SYNTAX_BYTES, IR_SYNTAX_WORD, IR_SYNTAX_ENUMERATION;
extern const IrSyntax IR_SYNTAX_INTEGERS, IR_SYNTAX_SINGLE, IR_SYNTAX_SHAPE, IR_SYNTAX_SHAPES;
extern const IrSyntax IR_SYNTAX_COMPUTATION, IR_SYNTAX_COMPUTATIONS, IR_SYNTAX_PREDECESSORS;
extern const IrSyntax IR_SYNTAX_WINDOW, IR_SYNTAX_DIMENSION_LABELS, IR_SYNTAX_SLICES, IR_SYNTAX_PADDING;
extern const IrSyntax IR_SYNTAX_SHARDING, IR_SYNTAX_METADATA, IR_SYNTAX_FRONTEND, IR_SYNTAX_IGNORED;
extern const IrSyntax IR_SYNTAX_PRECISIONS, IR_SYNTAX_GROUPS, IR_SYNTAX_PAIRS, IR_SYNTAX_OPERAND_ALIASES;
extern const IrSyntax IR_SYNTAX_REPLICATION, IR_SYNTAX_DOMAIN, IR_SYNTAX_PREFETCH;
extern const IrSyntax IR_SYNTAX_ACCURACY, IR_SYNTAX_SPARSITY, IR_SYNTAX_STATISTICS, IR_SYNTAX_ORIGIN;
extern const IrSyntax IR_SYNTAX_LITERAL, IR_SYNTAX_SLICE_SIZES;

#endif
