/* Pins: decisions of a user about parameters and scopes (`--pin PATTERN=SHARDING`, a file of hints, the marks
 * of automap_jax in a module).
 *
 *   layers/1/kernel=-,model   a sharding: per dimension '-' or axis names joined by '+', major first
 *   layer_3/.*=replicate      a scope (scopes.h): its weights are replicated
 *   layer_3/.*=split(model)   its weights are split over an axis, or with split(4) over one of 4 devices
 *   layer_3/.*=sharding(-,model)  its weights with so many dimensions have this sharding
 *   layer_3/mlp/dot_general=value(-,model)  its values with so many dimensions are stored so
 *   layer_3/.*=stage(1)       its operators are on stage 1; devices(V100) or devices(0-3): on these devices
 *
 * Pins of parameters give states on a mesh (here); pins of stages and devices concern a plan's cuts.
 */
#ifndef PROPAGATION_PROPAGATE_PINS_H
#define PROPAGATION_PROPAGATE_PINS_H

#include "propagation/plan/plan.h"

typedef enum PinKind {
    PIN_SHARDING,
    PIN_REPLICATE,
    PIN_SPLIT,
    PIN_SCOPE_SHARDING, /* sharding(...) of a scope */
    PIN_VALUE,
    PIN_STAGE,
    PIN_DEVICES
} PinKind;

typedef struct PropagationPin {
    const char *pattern,
        *sharding;            /* a path pattern (path_pattern.h) or scope (scopes.h); without brackets */
    const char *file, *place; /* where it is written, for errors; NULL: the command line */
} PropagationPin;

/* Splits "PATTERN=SHARDING" at its last '='. AM_ERROR_USAGE. */
AmStatus propagation_parse_pin(PropagationPin *pin, Arena *arena, const char *text, AmError *error);

PinKind pin_kind(const PropagationPin *pin);
enum { PIN_LABEL_BYTES = 320, PIN_ARGUMENT_BYTES = 128, PIN_MOST_NUMBER = 1 << 20 };
/* Writes the pin's place into a buffer: "FILE: PLACE", or `pin "PATTERN=SHARDING"`. */
const char *pin_label(char *buffer, const PropagationPin *pin);
/* Writes the pin's place without its file, which is the source of the error (pin_file()): "PLACE", or `pin
 * "PATTERN=SHARDING"`. */
const char *pin_place(char *buffer, const PropagationPin *pin);
const char *pin_file(const PropagationPin *pin);
/* Returns the code of an error in a pin: AM_ERROR_INPUT for one of a file, AM_ERROR_USAGE for an option. */
AmStatus pin_error(const PropagationPin *pin);
/* Writes the text in parentheses into a buffer; empty where there is none. */
const char *pin_argument(char *buffer, const PropagationPin *pin);
/* Returns the number in parentheses, or -1. */
int32_t pin_number(const PropagationPin *pin);
/* Returns K of split(K); 0 for split(AXIS) and other pins. */
int32_t pin_split_number(const PropagationPin *pin);

/* Reads "-,model" as a state on a mesh, and its rank. AM_ERROR_USAGE. */
AmStatus propagation_parse_sharding(SbpState *state, int32_t *rank, const Mesh *mesh, const char *text,
                                    AmError *error);

/* Calls `apply` for every parameter that a pin matches, with the state that it
 * asks for. AM_ERROR_USAGE names a pin that matches nothing, has another rank or
 * names no axis; AM_ERROR_INFEASIBLE a scope that cannot be split. */
typedef AmStatus PropagationPinFunction(void *data, const PropagationPin *pin, const IrParameter *parameter,
                                        SbpState state, AmError *error);
AmStatus propagation_for_each_pinned(const PlanContext *context, const Mesh *mesh, const PropagationPin *pins,
                                     int32_t count, PropagationPinFunction *apply, void *data,
                                     AmError *error);

/* The pin of a parameter on a mesh. */
typedef struct PinnedParameter {
    const PropagationPin *pin; /* NULL: none */
    SbpState state;
    const char *refusal; /* why it cannot have the state; or NULL */
} PinnedParameter;
/* Finds the pins of all parameters [roles->parameter_count], in the arena. AM_ERROR_USAGE and
 * AM_ERROR_INFEASIBLE as propagation_for_each_pinned(); AM_ERROR_USAGE also names two pins that contradict
 * each other. */
AmStatus propagation_resolve_pins(PinnedParameter **pinned, Arena *arena, const PlanContext *context,
                                  const Mesh *mesh, const PropagationPin *pins, int32_t count,
                                  AmError *error);

#endif
