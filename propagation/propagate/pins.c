/* Reads pins, and finds the parameters that they match and the states that they require.
 *
 * propagation_parse_pin() checks the form of a pin. propagation_parse_sharding() translates "data,-" to a
 * state on a mesh. propagation_resolve_pins() has one pin for each parameter, and refuses two that
 * contradict each other.
 */
#include "propagation/propagate/pins.h"

#include <stdio.h>
#include <string.h>

#include "base/suggest.h"
#include "propagation/propagate/path_pattern.h"
#include "propagation/propagate/scopes.h"

/* ---- pins as text ---- */

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static const struct {
    const char *word;
    PinKind kind;
} words[] = {{"replicate", PIN_REPLICATE}, {"split", PIN_SPLIT}, {"sharding", PIN_SCOPE_SHARDING},
             {"value", PIN_VALUE},         {"stage", PIN_STAGE}, {"devices", PIN_DEVICES}};

PinKind pin_kind(const PropagationPin *pin) {
    size_t length = strcspn(pin->sharding, "(");
    for (size_t k = 0; k < COUNT(words); k++) {
        if (strlen(words[k].word) != length || strncmp(words[k].word, pin->sharding, length) != 0) continue;
        if (pin->sharding[length] == '(' || words[k].kind == PIN_REPLICATE) return words[k].kind;
    }
    return PIN_SHARDING;
}

const char *pin_label(char *buffer, const PropagationPin *pin) {
    if (!pin->file) return pin_place(buffer, pin);
    snprintf(buffer, PIN_LABEL_BYTES, "%.200s: %.100s", pin->file, pin->place);
    return buffer;
}

const char *pin_place(char *buffer, const PropagationPin *pin) {
    if (pin->file) snprintf(buffer, PIN_LABEL_BYTES, "%.100s", pin->place);
    else snprintf(buffer, PIN_LABEL_BYTES, "pin \"%.150s=%.150s\"", pin->pattern, pin->sharding);
    return buffer;
}

const char *pin_file(const PropagationPin *pin) {
    return pin->file ? pin->file : "";
}

AmStatus pin_error(const PropagationPin *pin) {
    return pin->file ? AM_ERROR_INPUT : AM_ERROR_USAGE;
}

const char *pin_argument(char *buffer, const PropagationPin *pin) {
    const char *open = strchr(pin->sharding, '(');
    size_t length = open ? strlen(open + 1) : 0;
    buffer[0] = '\0';
    if (length < 2 || open[length] != ')' || length > PIN_ARGUMENT_BYTES) return buffer;
    memcpy(buffer, open + 1, length - 1);
    buffer[length - 1] = '\0';
    return buffer;
}

int32_t pin_number(const PropagationPin *pin) {
    char text[PIN_ARGUMENT_BYTES];
    int32_t number = 0;
    pin_argument(text, pin);
    if (!text[0]) return -1;
    for (const char *at = text; *at; at++) {
        if (*at < '0' || *at > '9' || number > PIN_MOST_NUMBER) return -1;
        number = 10 * number + (*at - '0');
    }
    return number <= PIN_MOST_NUMBER ? number : -1;
}

int32_t pin_split_number(const PropagationPin *pin) {
    int32_t number = pin_kind(pin) == PIN_SPLIT ? pin_number(pin) : 0;
    return number > 0 ? number : 0;
}

/* Refuses an unknown word before a parenthesis. */
static AmStatus fail_word(const PropagationPin *pin, AmError *error) {
    const char *names[COUNT(words)];
    char label[PIN_LABEL_BYTES], word[PIN_ARGUMENT_BYTES], hint[SUGGEST_HINT_BYTES];
    for (size_t k = 0; k < COUNT(words); k++) names[k] = words[k].word;
    snprintf(word, sizeof word, "%.*s", (int)strcspn(pin->sharding, "("), pin->sharding);
    suggest_hint(hint, word, names, COUNT(words));
    return am_fail(error, AM_ERROR_USAGE, "",
                   "%s: \"%s\" is no hint (expected replicate, split, sharding, value, stage or devices)%s",
                   pin_label(label, pin), word, hint);
}

AmStatus propagation_parse_pin(PropagationPin *pin, Arena *arena, const char *text, AmError *error) {
    const char *equals = strrchr(text, '=');
    if (!equals || equals == text || equals[1] == '\0') {
        return am_fail(error, AM_ERROR_USAGE, "", "pin \"%s\": expected PATTERN=SHARDING", text);
    }
    pin->pattern = arena_copy_bytes(arena, text, (size_t)(equals - text));
    /* Tables show a sharding in brackets: [-,model]. */
    size_t length = strlen(++equals);
    bool is_bracketed = length > 2 && equals[0] == '[' && equals[length - 1] == ']';
    pin->sharding = arena_copy_bytes(arena, equals + is_bracketed, length - 2 * (size_t)is_bracketed);
    pin->file = pin->place = NULL;
    if (arena->failed) return am_fail_memory(error, (int64_t)strlen(text));
    /* Checks the argument of a hint on a scope. */
    char label[PIN_LABEL_BYTES], argument[PIN_ARGUMENT_BYTES];
    PinKind kind = pin_kind(pin);
    const char *expected = NULL;
    if (kind == PIN_SHARDING && strchr(pin->sharding, '(')) return fail_word(pin, error);
    bool has_argument = pin_argument(argument, pin)[0] != '\0', is_positive = pin_number(pin) > 0;
    if (kind == PIN_REPLICATE && strchr(pin->sharding, '(') && !is_positive)
        expected = "replicate or replicate(DEVICES)";
    if (kind == PIN_SPLIT && (!has_argument || pin_number(pin) == 0))
        expected = "split(AXIS) or split(DEVICES)";
    if (kind == PIN_SCOPE_SHARDING && !has_argument) expected = "sharding(-,AXIS), a - or AXIS per dimension";
    if (kind == PIN_VALUE && !has_argument) expected = "value(-,AXIS), a - or AXIS per dimension";
    if (kind == PIN_STAGE && pin_number(pin) < 0) expected = "stage(N), from 0 on";
    if (kind == PIN_DEVICES && !has_argument) expected = "devices(TYPE) or devices(FIRST-LAST)";
    if (!expected) return AM_OK;
    return am_fail(error, AM_ERROR_USAGE, "", "%s: expected %s", pin_label(label, pin), expected);
}

static int32_t find_axis(const Mesh *mesh, const char *name, size_t length) {
    for (int32_t k = 0; k < mesh->axis_count; k++) {
        if (strlen(mesh->axes[k].name) == length && strncmp(mesh->axes[k].name, name, length) == 0) return k;
    }
    return -1;
}

/* Refuses at[0..length) of a sharding; an unknown axis is reported with the nearest name. */
static AmStatus fail_axis(const Mesh *mesh, const char *text, const char *at, size_t length, AmError *error) {
    const char *names[MESH_MAX_AXES];
    char name[64], list[MESH_MAX_AXES * 64] = "", hint[SUGGEST_HINT_BYTES] = "";
    for (int32_t k = 0; k < mesh->axis_count; k++) {
        size_t used = strlen(list);
        names[k] = mesh->axes[k].name;
        snprintf(list + used, sizeof list - used, "%s%.60s", k == 0 ? "" : ", ", names[k]);
    }
    snprintf(name, sizeof name, "%.*s", (int)length, at);
    bool is_known = find_axis(mesh, at, length) >= 0;
    if (!is_known) suggest_hint(hint, name, names, (size_t)mesh->axis_count);
    return am_fail(error, AM_ERROR_USAGE, "", "sharding \"%s\": \"%s\" is %s (expected - or %s%s)%s", text,
                   name, is_known ? "used twice or not in the order of the mesh" : "no axis of the mesh",
                   mesh->axis_count > 1 ? "one of " : "", list, hint);
}

/* Reads the axes of each dimension as a state: at most one dimension per axis, and axes that split one
 * dimension jointly in the order of the mesh. */
AmStatus propagation_parse_sharding(SbpState *state, int32_t *rank, const Mesh *mesh, const char *text,
                                    AmError *error) {
    *state = (SbpState){.axis = {SBP_B}};
    *rank = 1;
    int32_t previous = -1; /* axis of this dimension */
    for (const char *at = text;; at++) {
        size_t length = strcspn(at, ",+");
        bool is_whole = length == 1 && at[0] == '-';
        int32_t axis = is_whole ? -1 : find_axis(mesh, at, length);
        if (!is_whole && (axis <= previous || state->axis[axis] != SBP_B || *rank > IR_MAX_RANK)) {
            return fail_axis(mesh, text, at, length, error);
        }
        if (axis >= 0) state->axis[axis] = sbp_split(*rank - 1);
        at += length;
        previous = *at == '+' ? axis : -1;
        if (*at == '\0') return AM_OK;
        if (*at == ',') (*rank)++;
    }
}

/* ---- pins of a module ---- */

static AmStatus fail_unmatched(const PlanContext *context, const PropagationPin *pin, AmError *error) {
    Text nearest = {0};
    path_append_nearest(&nearest, context->roles, pin->pattern);
    char label[PIN_LABEL_BYTES];
    am_fail(error, pin_error(pin), pin_file(pin), "%s: no parameter's path matches \"%s\"%s",
            pin_place(label, pin), pin->pattern, nearest.data ? nearest.data : "");
    text_free(&nearest);
    return pin_error(pin);
}

/* Applies one pin with a sharding. If the pattern matches weights and optimizer state, state of
 * another rank, such as factored moments, is skipped. */
static AmStatus apply_pin(const PlanContext *context, const Mesh *mesh, const PropagationPin *pin,
                          PropagationPinFunction *apply, void *data, AmError *error) {
    SbpState state;
    int32_t rank, found = 0;
    const IrParameter *mismatch = NULL; /* the first one, weights before others */
    AmError refusal = {0};
    AmStatus status = propagation_parse_sharding(&state, &rank, mesh, pin->sharding, &refusal);
    char label[PIN_LABEL_BYTES];
    if (status != AM_OK)
        return am_fail(error, pin_error(pin), pin_file(pin), "%s: %s", pin_place(label, pin), refusal.text);
    for (int32_t p = 0; p < context->roles->parameter_count; p++) {
        const IrParameter *parameter = &context->roles->parameters[p];
        const IrShape *shape = &plan_context_instruction(context, parameter->instruction)->shape;
        if (!path_matches(pin->pattern, parameter->path)) continue;
        bool is_first = !mismatch || mismatch->role != IR_ROLE_WEIGHT;
        if (shape->type != DTYPE_TUPLE && shape->rank == rank) {
            TRY(apply(data, pin, parameter, state, error));
            found++;
        } else if (is_first && (!mismatch || parameter->role == IR_ROLE_WEIGHT)) {
            mismatch = parameter;
        }
    }
    if (found == 0 && !mismatch) return fail_unmatched(context, pin, error);
    if (!mismatch || (found > 0 && mismatch->role == IR_ROLE_OPTIMIZER)) return AM_OK;
    return am_fail(error, pin_error(pin), pin_file(pin), "%s: \"%s\" is for rank %d, %s has rank %d",
                   pin_place(label, pin), pin->sharding, rank, mismatch->path,
                   plan_context_instruction(context, mismatch->instruction)->shape.rank);
}

AmStatus propagation_for_each_pinned(const PlanContext *context, const Mesh *mesh, const PropagationPin *pins,
                                     int32_t count, PropagationPinFunction *apply, void *data,
                                     AmError *error) {
    char label[PIN_LABEL_BYTES];
    bool has_scopes = false;
    for (int32_t k = 0; k < count; k++) {
        if (scopes_is_scope(&pins[k])) has_scopes = true;
        else if (pin_kind(&pins[k]) == PIN_SHARDING)
            TRY(apply_pin(context, mesh, &pins[k], apply, data, error));
        else
            return am_fail(error, pin_error(&pins[k]), pin_file(&pins[k]),
                           "%s: only a search has this pin (expected a sharding, replicate or split)",
                           pin_place(label, &pins[k]));
    }
    if (!has_scopes) return AM_OK;
    Arena arena = {0};
    PinnedParameter *pinned;
    AmStatus status = scopes_resolve(&pinned, &arena, context, mesh, pins, count, error);
    for (int32_t p = 0; status == AM_OK && p < context->roles->parameter_count; p++) {
        if (pinned[p].refusal) status = am_fail(error, AM_ERROR_INFEASIBLE, "", "%s", pinned[p].refusal);
        else if (pinned[p].pin)
            status = apply(data, pinned[p].pin, &context->roles->parameters[p], pinned[p].state, error);
    }
    arena_free(&arena);
    return status;
}

/* Notes the state of a parameter; AM_ERROR_USAGE: another pin has given it another one. */
static AmStatus note_state(void *data, const PropagationPin *pin, const IrParameter *parameter,
                           SbpState state, AmError *error) {
    PinnedParameter *of = &((PinnedParameter *)data)[parameter->number];
    char first[PIN_LABEL_BYTES], second[PIN_LABEL_BYTES];
    bool is_same = true;
    for (int32_t axis = 0; axis < MESH_MAX_AXES; axis++)
        is_same = is_same && of->state.axis[axis] == state.axis[axis];
    if (of->pin && !is_same)
        return am_fail(error, pin_error(of->pin), pin_file(of->pin),
                       "%s and %s contradict each other: %s has one sharding", pin_place(first, of->pin),
                       pin_label(second, pin), parameter->path);
    *of = (PinnedParameter){.pin = pin, .state = state};
    return AM_OK;
}

AmStatus propagation_resolve_pins(PinnedParameter **pinned, Arena *arena, const PlanContext *context,
                                  const Mesh *mesh, const PropagationPin *pins, int32_t count,
                                  AmError *error) {
    int32_t parameters = context->roles->parameter_count;
    PinnedParameter *found = ARENA_ARRAY(arena, PinnedParameter, parameters + 1), *scopes = NULL;
    bool has_scopes = false;
    if (!found) return am_fail_memory(error, parameters);
    for (int32_t k = 0; k < count; k++) {
        if (scopes_is_scope(&pins[k])) has_scopes = true;
        else if (pin_kind(&pins[k]) == PIN_SHARDING)
            TRY(apply_pin(context, mesh, &pins[k], note_state, found, error));
    }
    if (has_scopes) TRY(scopes_resolve(&scopes, arena, context, mesh, pins, count, error));
    for (int32_t p = 0; scopes && p < parameters; p++)
        if (!found[p].pin) found[p] = scopes[p];
    *pinned = found;
    return AM_OK;
}
