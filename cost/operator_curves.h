/* Measured seconds of classes of operators over their sizes: the key "operators" of a device type.
 *
 *   "operators": {"dot": {"sizes": [[1, 32], [2, 8, 32], [2, 8, 32], [2, 8, 32]], "seconds": [...]}, ...}
 *
 * A class has one list of ascending sizes per dimension, and a time for every combination, the last
 * dimension fastest. In between, times are linear in every size (so all sums of products of sizes are
 * exact); below the first size they stay, beyond the last they grow in proportion, or stay
 * (OPERATOR_CLASSES). The classes and their dimensions are rows of OPERATOR_CLASSES; those of elements are
 * costs per operator inside a fusion.
 */
#ifndef COST_OPERATOR_CURVES_H
#define COST_OPERATOR_CURVES_H

#include <jansson.h>
#include <stdbool.h>

#include "base/arena.h"
#include "base/status.h"

enum { OPERATOR_MOST_DIMENSIONS = 4, OPERATOR_MOST_POINTS = 16, OPERATOR_MOST_SECONDS = 4096 };

/* name, text, dimensions, how many of the first ones a time grows with beyond the last size, what they are */
#define OPERATOR_CLASSES(row)                                                                                \
    row(FUSION, "fusion", 1, 1, "elements; one operator, one packed input, one output") row(                 \
        READ, "read", 1, 1, "elements; a further packed input of a fusion")                                  \
        row(READ_ROWS, "read_rows", 2, 1, "elements, row; an input whose rows are dense or one value") row(  \
            READ_STRIDED, "read_strided", 1, 1,                                                              \
            "elements; an input that lies otherwise") row(WRITE, "write", 1, 1,                              \
                                                          "elements; a further output")                      \
            row(CHEAP, "cheap", 1, 1, "elements; add, multiply, maximum, compare, select and the like") row( \
                DIVIDE, "divide", 1, 1,                                                                      \
                "elements") row(SQUARE_ROOT, "square_root", 1, 1,                                            \
                                "elements; and its inverse") row(EXPONENTIAL, "exponential", 1, 1,           \
                                                                 "elements") row(LOGARITHM, "logarithm", 1,  \
                                                                                 1, "elements")              \
                row(TANH, "tanh", 1, 1, "elements") row(LOGISTIC, "logistic", 1, 1, "elements") row(         \
                    ERF, "erf",                                                                              \
                    1, 1, "elements") row(POWER, "power", 1,                                                 \
                                          1, "elements") row(SINE, "sine", 1, 1, "elements; and cosine")     \
                    row(CHEAP_BF16, "cheap_bf16", 1, 1, "elements; with the rounding of a narrow type") row( \
                        CONVERT, "convert",                                                                  \
                        1, 1, "elements") row(DOT_NN, "dot_nn", 4,                                           \
                                              4, "products, rows, columns, depth; both row-major")           \
                        row(DOT_NT, "dot_nt", 4, 4, "the same; the right operand lies transposed") row(      \
                            DOT_TN,                                                                          \
                            "dot_tn", 4, 4,                                                                  \
                            "the same; the left one does") row(DOT_TT, "dot_tt", 4, 4, "the same; both do")  \
                            row(DOT_BF16, "dot_bf16", 4, 4, "products, rows, columns, depth") row(           \
                                CONVOLUTION, "convolution",                                                  \
                                4, 4, "positions, cells of the window, features in, out")                    \
                                row(CONVOLUTION_WEIGHTS, "convolution_weights", 4, 4,                        \
                                    "the same for the gradient of its weights")                              \
                                    row(REDUCE_ROWS, "reduce_rows", 2, 2,                                    \
                                        "results, elements of each; sums") row(REDUCE_COLUMNS,               \
                                                                               "reduce_columns", 3, 3,       \
                                                                               "groups, elements of each, "  \
                                                                               "results side by side; sums") \
                                        row(REDUCE_ROWS_MOST, "reduce_rows_maximum", 2, 2,                   \
                                            "results, elements of each; greatest, and all others")           \
                                            row(TRANSPOSE, "transpose", 2, 1,                                \
                                                "elements, those that stay together")                        \
                                                row(MOVE, "move", 2, 1,                                      \
                                                    "elements, those that stay together; slices, pads, "     \
                                                    "broadcasts, and the like")                              \
                                                    row(GATHER, "gather", 2, 2, "windows, elements of each") \
                                                        row(SCATTER, "scatter", 2, 2,                        \
                                                            "windows, elements of each; the operand's "      \
                                                            "copy is a move")                                \
                                                            row(WINDOW, "reduce_window", 2, 2,               \
                                                                "results, elements of each")                 \
                                                                row(SELECT_SCATTER, "select_and_scatter", 2, \
                                                                    2, "results, elements of each window")   \
                                                                    row(ALL_REDUCE, "all_reduce", 2, 2,      \
                                                                        "ranks, bytes of the whole tensor; " \
                                                                        "of a link, as those that follow")   \
                                                                        row(ALL_GATHER, "all_gather", 2, 2,  \
                                                                            "ranks, bytes of the whole "     \
                                                                            "tensor")                        \
                                                                            row(REDUCE_SCATTER,              \
                                                                                "reduce_scatter", 2, 2,      \
                                                                                "ranks, bytes of the whole " \
                                                                                "tensor")                    \
                                                                                row(ALL_TO_ALL,              \
                                                                                    "all_to_all", 2, 2,      \
                                                                                    "ranks, bytes of the "   \
                                                                                    "whole tensor")

typedef enum OperatorClass {
#define OPERATOR_CLASS_NAME(name, text, dimensions, grows, help) OPERATOR_CLASS_##name,
    OPERATOR_CLASSES(OPERATOR_CLASS_NAME)
#undef OPERATOR_CLASS_NAME
        OPERATOR_CLASS_COUNT
} OperatorClass;

typedef struct OperatorCurve {
    int32_t counts[OPERATOR_MOST_DIMENSIONS];
    const double *sizes[OPERATOR_MOST_DIMENSIONS];
    const double *seconds; /* NULL: not measured */
} OperatorCurve;

typedef struct OperatorCurves {
    OperatorCurve of[OPERATOR_CLASS_COUNT];
} OperatorCurves;

/* Classes from this one on are of links ("collectives"), those before of device types ("operators"). */
enum { OPERATOR_FIRST_OF_LINKS = OPERATOR_CLASS_ALL_REDUCE };

/* Reads `object`, which is the value at the JSON path `where`; arrays live in the arena. */
AmStatus operator_curves_read(const OperatorCurves **curves, Arena *arena, json_t *object, bool of_link,
                              const char *source, const char *where, AmError *error);

/* Seconds at those sizes; 0 where the class was not measured. */
double operator_curve_seconds(const OperatorCurves *curves, OperatorClass class, const double *sizes);

#endif
