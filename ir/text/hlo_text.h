/* Private interface of the HLO text format: declarations that the reader and the printer share.
 *
 * The reader is a recursive descent over the characters (ir/text/text_scanner.c). Each construct has its
 * read and its write function in one file: shapes and layouts, literals, shardings, and the
 * attributes of instructions. The attributes form one table (ir/text/text_attributes.c): a row holds the
 * field of the message and the syntax of the value, so that reading and writing agree.
 */
#ifndef IR_TEXT_HLO_TEXT_H
#define IR_TEXT_HLO_TEXT_H

#include "ir/encodings.h"

/* Shapes that were read, by their text; those that are written alike share one
 * message, which must not be changed. One entry per hash. */
typedef struct IrSeenShape {
    const char *text;
    int64_t length;
    Hlo__ShapeProto *shape; /* NULL: free */
} IrSeenShape;

#define IR_SEEN_SHAPES 256

/* A position in the text. Reading functions first skip white space and comments. They fail with
 * line, column and expectation. */
typedef struct IrScanner {
    const char *source, *text;
    int64_t length, at;
    Arena *arena;
    AmError *error;
    IrSeenShape *seen; /* [IR_SEEN_SHAPES], or NULL */
    int64_t filled;    /* bytes of the arrays whose text is one number */
} IrScanner;

/* A stretch of the text, not NUL-terminated. */
typedef struct IrWord {
    const char *text;
    int64_t length;
} IrWord;

bool ir_word_is(IrWord word, const char *text);
AmStatus ir_scan_fail(const IrScanner *scanner, int64_t at, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
AmStatus ir_scan_memory(const IrScanner *scanner);
void ir_scan_space(IrScanner *scanner);
char ir_scan_peek(IrScanner *scanner);                     /* 0 at the end */
bool ir_scan_accept(IrScanner *scanner, const char *mark); /* takes `mark` if it is next */
/* Returns the letter, if it comes without space before it: the x of 2x3, which may also begin the next
 * word. */
bool ir_scan_accept_here(IrScanner *scanner, char letter);
AmStatus ir_scan_expect(IrScanner *scanner, const char *mark); /* must be next */
bool ir_scan_take_word(IrScanner *scanner, IrWord *word);      /* letters, digits, '_', '.', '-', '$' */
AmStatus ir_scan_word(IrScanner *scanner, const char *what, IrWord *word);
/* Returns whether ir_scan_word() accepts the whole text, whatever follows it; otherwise it needs quotes. */
bool ir_is_word(const char *text);
/* Reads a name without its '%' and without a ':' that ends it. */
AmStatus ir_scan_name(IrScanner *scanner, const char *what, IrWord *name);
AmStatus ir_scan_integer(IrScanner *scanner, int64_t *value);
AmStatus ir_scan_real(IrScanner *scanner, double *value, uint64_t *payload);
AmStatus ir_scan_boolean(IrScanner *scanner, bool *value);
AmStatus ir_scan_string(IrScanner *scanner, ProtobufCBinaryData *bytes); /* "..." or '...', C escapes */
AmStatus ir_scan_braced(IrScanner *scanner, IrWord *word);               /* {...} with its contents */
AmStatus ir_scan_skip_value(IrScanner *scanner); /* up to the ',' that ends an attribute */
AmStatus ir_scan_integers(IrScanner *scanner, const char *open, const char *close, size_t *count,
                          int64_t **values);
/* Returns the word as a NUL-terminated copy; NULL without memory. */
char *ir_word_copy(IrScanner *scanner, IrWord word);

/* Appends one zeroed element to an arena array of `size`-byte elements whose
 * pointer is at `array`; NULL without memory. Room doubles at powers of two. */
void *ir_push(Arena *arena, void *array, size_t *count, size_t size);
void *ir_new_message(Arena *arena, const ProtobufCMessageDescriptor *type);

/* Names to numbers: open addressing; the names stay the caller's. */
typedef struct IrNames {
    struct IrNameEntry *entries;
    int32_t count, capacity;
} IrNames;

int32_t ir_names_find(const IrNames *names, IrWord name);                    /* -1: not there */
bool ir_names_add(IrNames *names, Arena *arena, IrWord name, int32_t value); /* false: no memory */
void ir_names_clear(IrNames *names);

AmStatus ir_read_shape(IrScanner *scanner, Hlo__ShapeProto **shape);
/* Returns a shape without its layout, row-major; NULL without memory. `dimensions` and the flags are
 * copied. */
Hlo__ShapeProto *ir_new_array_shape(Arena *arena, Dtype type, size_t rank, const int64_t *dimensions,
                                    const bool *is_dynamic);
/* Returns whether types and dimensions are equal; layouts and dynamic flags are ignored. */
bool ir_shapes_match(const Hlo__ShapeProto *a, const Hlo__ShapeProto *b);
bool ir_at_shape(IrScanner *scanner); /* a shape follows, rather than a name */
void ir_write_shape(Text *out, const Hlo__ShapeProto *shape, bool with_layout);
/* Returns the shape with a layout that has the order of dimensions alone. */
Hlo__ShapeProto *ir_plain_layout(Arena *arena, const Hlo__ShapeProto *shape);
int64_t ir_text_elements(const Hlo__ShapeProto *shape); /* of an array; -1: more than fit */

/* Appends the shortest text that reads back as these bits of a floating type. */
void ir_float_write(Text *out, Dtype type, uint64_t bits);

/* Reads a constant's value between its parentheses. */
AmStatus ir_read_literal(IrScanner *scanner, const Hlo__ShapeProto *shape, Hlo__LiteralProto **literal);
AmStatus ir_write_literal(Text *out, const Hlo__ShapeProto *shape, const Hlo__LiteralProto *literal,
                          AmError *error);

AmStatus ir_read_sharding(IrScanner *scanner, Hlo__OpSharding **sharding);
void ir_write_sharding(Text *out, const Hlo__OpSharding *sharding);
bool ir_at_named_sharding(const IrScanner *scanner); /* one over a mesh follows */
AmStatus ir_read_named_sharding(IrScanner *scanner, Hlo__NamedShardingProto **sharding);
void ir_write_named_sharding(Text *out, const Hlo__NamedShardingProto *sharding);
AmStatus ir_read_mesh(IrScanner *scanner, Hlo__MeshProto **mesh);
void ir_write_mesh(Text *out, const Hlo__MeshProto *mesh);
/* Reads {'a', 'b':(2)2, ?}: axes of `mesh` are added to (*axes)[*count]; '?' makes the list open. */
AmStatus ir_read_axes(IrScanner *scanner, const Hlo__MeshProto *mesh, size_t *count,
                      Hlo__AxisRefProto ***axes, bool *is_open);
void ir_write_axes(Text *out, const Hlo__MeshProto *mesh, size_t count, Hlo__AxisRefProto *const *axes,
                   bool is_open);
AmStatus ir_read_metadata(IrScanner *scanner, Hlo__OpMetadata **metadata);
/* Writes metadata without the braces. `module` has the table of payloads; it may be NULL. */
void ir_write_metadata(Text *out, const Hlo__OpMetadata *metadata, const Hlo__HloModuleProto *module);
bool ir_metadata_is_empty(const Hlo__OpMetadata *metadata);
/* Reads {..}, or {{..}, {..}} for several. */
AmStatus ir_read_metadata_list(IrScanner *scanner, size_t *count, Hlo__OpMetadata ***list);
void ir_write_metadata_list(Text *out, size_t count, Hlo__OpMetadata *const *list);
AmStatus ir_read_frontend(IrScanner *scanner, Hlo__FrontendAttributes **attributes);
void ir_write_frontend(Text *out, const Hlo__FrontendAttributes *attributes);
void ir_write_string(Text *out, const void *bytes, size_t count); /* quoted, with C escapes */
void ir_write_integers(Text *out, size_t count, const int64_t *values);

/* State of reading one module. */
typedef struct IrTextReader {
    IrScanner scanner;
    AmWarnings *warnings;
    Hlo__HloModuleProto *module;
    Hlo__HloComputationProto *computation; /* being read */
    IrNames computations, instructions;    /* values: positions in the module, in the computation */
    IrNames attributes;                    /* values: first row of that name */
    IrNames unknown;                       /* attributes that have been warned about */
    Arena tables;                          /* of those names */
    int64_t next_id;                       /* of instructions: 1, 2, ... through the module */
    int64_t wrapped_count;                 /* computations made for asynchronous operators */
    int32_t depth;                         /* nesting of instructions and computations */
    int64_t inner_count, nested_count;     /* names given to inline computations, to nested instructions */
    int64_t parameter_count;               /* made for operands without an instruction */
    bool makes_parameters;                 /* the text is one instruction, whose operands are parameters */
    bool is_scheduled;                     /* the order of the text is a schedule */
    int64_t find_id, found_at;             /* where the instruction `find_id` begins; 0: none is sought */
} IrTextReader;

/* State of printing one module. */
typedef struct IrTextWriter {
    Text *out;
    Arena arena;
    const Hlo__HloModuleProto *module;
    const char **computation_names;
    const Hlo__HloComputationProto *computation; /* being printed */
    const char **instruction_names;
    struct IrIdEntry *computation_ids, *instruction_ids; /* sorted by id */
    struct IrSchedule *schedule;
    bool is_scheduled;
    AmError *error;
} IrTextWriter;

/* Returns the position of an id; -1 if missing. Instruction ids are compared by their low 32 bits, since
 * newer versions of XLA keep the computation in the upper half. */
int32_t ir_writer_instruction(const IrTextWriter *writer, int64_t id);
int32_t ir_writer_computation(const IrTextWriter *writer, int64_t id);

/* Finds the order in which to print: the schedule's where there is one, operands before their users,
 * computations before their callers. `order` is the writer's. */
AmStatus ir_order_instructions(IrTextWriter *writer, const int32_t **order);
AmStatus ir_order_computations(IrTextWriter *writer, const int32_t **order);

/* Reads "ROOT name = ..." or, if `has_name` is false, only the part after the '='. */
AmStatus ir_read_instruction(IrTextReader *reader, bool has_name);
/* Reads "{ instructions }" as the computation `name`, which is added to the module. */
AmStatus ir_read_inline_computation(IrTextReader *reader, Hlo__HloComputationProto **computation);
/* Deepest nesting of operands and computations in each other. */
#define IR_MAX_NESTING 100
/* Sets the instruction's shape from its operands and attributes, as XLA infers it. Fails at `start` where the
 * opcode needs a written shape or the operands do not fit. */
AmStatus ir_infer_shape(IrTextReader *reader, Hlo__HloInstructionProto *instruction, int64_t start);

/* Sends, receives and their dones: the shape follows from the data, whatever is written of the rest. */
AmStatus ir_set_transfer_shape(IrTextReader *reader, Hlo__HloInstructionProto *instruction);

AmStatus ir_attributes_index(IrTextReader *reader);
/* Reads ", name=value" as often as it follows, unless `has_any` is false, then fills in
 * the defaults that XLA leaves out. `wrapped`, if there is one, is the operator that the
 * asynchronous `instruction` runs: it takes the attributes of operators. */
AmStatus ir_read_attributes(IrTextReader *reader, Hlo__HloInstructionProto *instruction,
                            Hlo__HloInstructionProto *wrapped, bool has_any);

/* Returns whether the opcode has the form add-start, add-update or add-done and is not itself an opcode;
 * `outer` is then async-start, async-update or async-done, and `wrapped_opcode` is add.
 */
bool ir_async_form(IrWord opcode, const char **outer, IrWord *wrapped_opcode);
/* Makes the computation that an async-start runs, of `wrapped_opcode` alone;
 * `instruction` has its shape and operands. */
AmStatus ir_async_wrap(IrTextReader *reader, Hlo__HloInstructionProto *instruction, IrWord wrapped_opcode,
                       Hlo__HloInstructionProto **wrapped);
/* Finishes after the attributes are read: some are the operator's as well. An update or done must have the
 * `wrapped_opcode` of its start; errors are at `start`. */
AmStatus ir_async_finish(IrTextReader *reader, Hlo__HloInstructionProto *instruction,
                         Hlo__HloInstructionProto *wrapped, IrWord wrapped_opcode, int64_t start);
/* Returns the instruction with that id in a computation under construction; NULL if missing. */
Hlo__HloInstructionProto *ir_reader_instruction(const Hlo__HloComputationProto *computation, int64_t id);
AmStatus ir_reader_add_computation(IrTextReader *reader, Hlo__HloComputationProto *computation, IrWord name);
AmStatus ir_reader_program_shape(IrTextReader *reader, Hlo__HloComputationProto *computation, int64_t start);
AmStatus ir_write_attributes(IrTextWriter *writer, const Hlo__HloInstructionProto *instruction);

/* Returns the module's first line and the tables of source positions. */
bool ir_at_instruction(IrScanner *scanner); /* the text goes on with an instruction, not with a computation */
AmStatus ir_read_header(IrTextReader *reader);
AmStatus ir_read_tables(IrTextReader *reader);
void ir_write_header(IrTextWriter *writer, const char *name);
void ir_write_tables(Text *out, const Hlo__StackFrameIndexProto *index);

#endif
