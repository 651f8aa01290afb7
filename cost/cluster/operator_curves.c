/* Curves of operator classes: a strict reader, and interpolation on their grids.
 *
 * A curve has seconds at the points of a grid of up to four sizes. Between points it is linear in each size.
 * Below the grid the least size counts; above it seconds grow in proportion, if the class grows with that
 * size.
 */
#include "cost/cluster/operator_curves.h"

#include <math.h>
#include <string.h>

#include "base/files/json.h"

static const struct {
    const char *name;
    int32_t dimensions, grows;
} classes[OPERATOR_CLASS_COUNT] = {
#define OPERATOR_CLASS(name, text, dimensions, grows) {text, dimensions, grows},
#include "cost/cluster/operator_classes.def"
#undef OPERATOR_CLASS
};

/* Valid lists: 1 to `most` numbers of at least `least`. */
typedef struct NumberList {
    int32_t most;
    double least;
    bool ascends;
} NumberList;

static AmStatus read_numbers(double **numbers, int32_t *count, Arena *arena, json_t *list,
                             const NumberList *valid, const char *source, const char *where, AmError *error) {
    size_t length = json_array_size(list);
    if (!json_is_array(list) || length < 1 || length > (size_t)valid->most)
        return am_fail(error, AM_ERROR_INPUT, source, "%s: expected 1 to %d numbers", where, valid->most);
    *numbers = ARENA_ARRAY(arena, double, length);
    if (!*numbers) return am_fail_memory(error, (int64_t)length);
    for (size_t k = 0; k < length; k++) {
        json_t *value = json_array_get(list, k);
        double number = json_is_number(value) ? json_number_value(value) : NAN;
        if (!(number >= valid->least && number <= 1e30))
            return am_fail(error, AM_ERROR_INPUT, source, "%s[%zu]: expected a number of at least %g", where,
                           k, valid->least);
        if (valid->ascends && k > 0 && number <= (*numbers)[k - 1])
            return am_fail(error, AM_ERROR_INPUT, source, "%s[%zu]: expected a size above that before", where,
                           k);
        (*numbers)[k] = number;
    }
    *count = (int32_t)length;
    return AM_OK;
}

static AmStatus read_curve(OperatorCurve *curve, int32_t dimensions, Arena *arena, json_t *object,
                           const char *source, const char *where, AmError *error) {
    static const char *const keys[] = {"sizes", "seconds", NULL};
    json_t *sizes, *seconds;
    double *numbers;
    int32_t wanted = 1, given;
    if (!json_is_object(object))
        return am_fail(error, AM_ERROR_INPUT, source, "%s: expected an object", where);
    TRY(json_only_keys(object, keys, source, where, error));
    TRY(json_get_array(&sizes, object, "sizes", source, where, error));
    TRY(json_get_array(&seconds, object, "seconds", source, where, error));
    if (json_array_size(sizes) != (size_t)dimensions)
        return am_fail(error, AM_ERROR_INPUT, source, "%s.sizes: expected %d lists of sizes", where,
                       dimensions);
    for (int32_t d = 0; d < dimensions; d++) {
        const char *inside = arena_format(arena, "%s.sizes[%d]", where, d);
        const NumberList valid = {.most = OPERATOR_MOST_POINTS, .least = 1, .ascends = true};
        TRY(read_numbers(&numbers, &curve->counts[d], arena, json_array_get(sizes, (size_t)d), &valid, source,
                         inside ? inside : where, error));
        curve->sizes[d] = numbers;
        wanted *= curve->counts[d];
    }
    const char *inside = arena_format(arena, "%s.seconds", where);
    if (wanted > OPERATOR_MOST_SECONDS || json_array_size(seconds) != (size_t)wanted)
        return am_fail(error, AM_ERROR_INPUT, source, "%s.seconds: expected %d numbers, at most %d", where,
                       wanted, OPERATOR_MOST_SECONDS);
    const NumberList valid = {.most = wanted};
    TRY(read_numbers(&numbers, &given, arena, seconds, &valid, source, inside ? inside : where, error));
    curve->seconds = numbers;
    return AM_OK;
}

AmStatus operator_curves_read(const OperatorCurves **curves, Arena *arena, json_t *object, bool of_link,
                              const char *source, const char *where, AmError *error) {
    OperatorCurves *self = ARENA_ARRAY(arena, OperatorCurves, 1);
    const char *name;
    json_t *value;
    if (!self) return am_fail_memory(error, (int64_t)sizeof *self);
    json_object_foreach(object, name, value) {
        int32_t class = 0;
        while (class < OPERATOR_CLASS_COUNT && strcmp(classes[class].name, name) != 0) class ++;
        if (class == OPERATOR_CLASS_COUNT || of_link != (class >= OPERATOR_FIRST_OF_LINKS))
            return am_fail(error, AM_ERROR_INPUT, source, "%s.%s: unknown class of operators", where, name);
        const char *inside = arena_format(arena, "%s.%s", where, name);
        TRY(read_curve(&self->of[class], classes[class].dimensions, arena, value, source,
                       inside ? inside : where, error));
    }
    *curves = self;
    return AM_OK;
}

double operator_curve_seconds(const OperatorCurves *curves, OperatorClass class, const double *wanted) {
    const OperatorCurve *curve = &curves->of[class];
    int32_t dimensions = classes[class].dimensions, first = 0;
    double corner[1 << OPERATOR_MOST_DIMENSIONS], along[OPERATOR_MOST_DIMENSIONS], beyond = 1;
    int32_t step[OPERATOR_MOST_DIMENSIONS], stride = 1;
    if (!curve->seconds) return 0;
    for (int32_t d = dimensions - 1; d >= 0; d--) {
        const double *sizes = curve->sizes[d];
        int32_t count = curve->counts[d], below = 0;
        double size = wanted[d] > sizes[0] ? wanted[d] : sizes[0];
        if (size > sizes[count - 1]) {
            if (d < classes[class].grows) beyond *= size / sizes[count - 1];
            size = sizes[count - 1];
        }
        while (below < count - 2 && size >= sizes[below + 1]) below++;
        along[d] = count > 1 ? (size - sizes[below]) / (sizes[below + 1] - sizes[below]) : 0;
        step[d] = count > 1 ? stride : 0;
        first += below * stride;
        stride *= count;
    }
    for (int32_t k = 0; k < 1 << dimensions; k++) {
        int32_t at = first;
        for (int32_t d = 0; d < dimensions; d++)
            if (k >> d & 1) at += step[d];
        corner[k] = curve->seconds[at];
    }
    for (int32_t d = dimensions - 1; d >= 0; d--)
        for (int32_t k = 0; k < 1 << d; k++) corner[k] += along[d] * (corner[k + (1 << d)] - corner[k]);
    return corner[0] * beyond;
}

void operator_curve_around(const OperatorCurves *curves, OperatorClass class, int32_t dimension, double size,
                           double *below, double *above) {
    const OperatorCurve *curve = &curves->of[class];
    const double *sizes = curve->sizes[dimension];
    int32_t count = curve->counts[dimension], first = 0, last = count - 1;
    while (first + 1 < count && sizes[first + 1] <= size) first++;
    while (last > 0 && sizes[last - 1] >= size) last--;
    *below = sizes[first];
    *above = sizes[last];
}
