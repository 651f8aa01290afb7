/* Plans of dots: every choice of the packed operands, of the operand whose order the contracted
 * dimensions follow, of exchanged sides, and of the dimensions of a product, priced by an estimate
 * of its time.
 */
#include "executor/cpu/matmul/dot_plan.h"

#include <limits.h>
#include <string.h>

#include "base/int_list.h"
#include "executor/array/strided.h"

/* Nanoseconds: of starting one product, of copying one element before or after, of a multiplication
 * with an addition, of packing an element and of transposing one while packing. */
static const double product_cost = 150, copy_cost = 0.7, multiply_cost = 0.016, pack_cost = 0.15,
                    turn_cost = 0.4, few_rows = 40;

enum { BATCH, ROWS, COLUMNS, DEPTH, KINDS };

/* The dimensions of a dot by their kind. */
typedef struct Axes {
    int32_t rank[KINDS];
    DotAxis list[KINDS][IR_MAX_RANK];
} Axes;

static void add_axis(Axes *axes, int32_t kind, DotAxis axis) {
    axes->list[kind][axes->rank[kind]++] = axis;
}

/* Sorts the dimensions of the operands and the result into batch, rows, depth and columns, with their
 * strides. */
static void collect_axes(Axes *axes, const IrDot *dot, const IrShape *left, const IrShape *right,
                         const int64_t *dimensions) {
    int64_t x[IR_MAX_RANK], y[IR_MAX_RANK], sizes[IR_MAX_RANK], z[IR_MAX_RANK], natural[IR_MAX_RANK];
    memset(axes, 0, sizeof *axes);
    strided_row_major(x, left->dimensions, left->rank);
    strided_row_major(y, right->dimensions, right->rank);
    for (int32_t k = 0; k < dot->batch_count; k++)
        add_axis(
            axes, BATCH,
            (DotAxis){left->dimensions[dot->lhs_batch[k]], {x[dot->lhs_batch[k]], y[dot->rhs_batch[k]], 0}});
    for (int32_t k = 0; k < dot->contracting_count; k++)
        add_axis(axes, DEPTH,
                 (DotAxis){left->dimensions[dot->lhs_contracting[k]],
                           {x[dot->lhs_contracting[k]], y[dot->rhs_contracting[k]], 0}});
    for (int32_t d = 0; d < left->rank; d++)
        if (!int_list_contains(dot->lhs_batch, dot->batch_count, d) &&
            !int_list_contains(dot->lhs_contracting, dot->contracting_count, d))
            add_axis(axes, ROWS, (DotAxis){left->dimensions[d], {x[d], 0, 0}});
    for (int32_t d = 0; d < right->rank; d++)
        if (!int_list_contains(dot->rhs_batch, dot->batch_count, d) &&
            !int_list_contains(dot->rhs_contracting, dot->contracting_count, d))
            add_axis(axes, COLUMNS, (DotAxis){right->dimensions[d], {0, y[d], 0}});
    int32_t rank = 0;
    for (int32_t kind = BATCH; kind <= COLUMNS; kind++)
        for (int32_t k = 0; k < axes->rank[kind]; k++) natural[rank++] = axes->list[kind][k].size;
    for (int32_t d = 0; d < rank; d++) sizes[d] = natural[dimensions ? dimensions[d] : d];
    strided_row_major(z, sizes, rank);
    for (int32_t d = 0; d < rank; d++) {
        int32_t at = dimensions ? (int32_t)dimensions[d] : d, kind = BATCH;
        while (at >= axes->rank[kind]) at -= axes->rank[kind++];
        axes->list[kind][at].strides[DOT_RESULT] = z[d];
    }
}

/* Orders contracted dimensions by the memory order of one operand. */
static void order_depth(Axes *axes, int32_t by) {
    DotAxis *list = axes->list[DEPTH];
    for (int32_t k = 1; k < axes->rank[DEPTH]; k++)
        for (int32_t n = k; n > 0 && list[n].strides[by] > list[n - 1].strides[by]; n--) {
            DotAxis other = list[n];
            list[n] = list[n - 1];
            list[n - 1] = other;
        }
}

/* Lays an array out densely, its kinds of dimensions in this order, and notes the copy. */
static void pack(Axes *axes, int32_t array, DotCopy *copy, const int32_t kinds[3]) {
    copy->rank = 0;
    for (int32_t k = 0; k < 3; k++)
        for (int32_t n = 0; n < axes->rank[kinds[k]]; n++) {
            copy->sizes[copy->rank] = axes->list[kinds[k]][n].size;
            copy->far[copy->rank++] = axes->list[kinds[k]][n].strides[array];
        }
    strided_row_major(copy->near, copy->sizes, copy->rank);
    int32_t d = 0;
    for (int32_t k = 0; k < 3; k++)
        for (int32_t n = 0; n < axes->rank[kinds[k]]; n++)
            axes->list[kinds[k]][n].strides[array] = copy->near[d++];
}

/* Computes the transposed product: the operands change places. */
static void swap_sides(Axes *axes) {
    Axes old = *axes;
    for (int32_t kind = 0; kind < KINDS; kind++) {
        int32_t from = kind == ROWS ? COLUMNS : kind == COLUMNS ? ROWS : kind;
        axes->rank[kind] = old.rank[from];
        for (int32_t k = 0; k < axes->rank[kind]; k++) {
            DotAxis *axis = &axes->list[kind][k];
            *axis = old.list[from][k];
            int64_t left = axis->strides[DOT_LEFT];
            axis->strides[DOT_LEFT] = axis->strides[DOT_RIGHT];
            axis->strides[DOT_RIGHT] = left;
        }
    }
}

/* Joins neighbours that step as one everywhere and drops sizes of 1. */
static void join_axes(Axes *axes) {
    for (int32_t kind = 0; kind < KINDS; kind++) {
        DotAxis *list = axes->list[kind];
        int32_t last = -1;
        for (int32_t k = 0; k < axes->rank[kind]; k++) {
            bool joins = last >= 0;
            if (list[k].size == 1) continue;
            for (int32_t a = 0; a < DOT_ARRAYS && joins; a++)
                joins = list[last].strides[a] == list[k].strides[a] * list[k].size;
            int64_t outer = joins ? list[last].size : 1;
            if (!joins) last++;
            list[last] = list[k];
            list[last].size *= outer;
        }
        axes->rank[kind] = last + 1;
    }
}

/* Gives a missing or single dimension the stride that makes the pair a matrix; false if that is
 * impossible. */
static bool is_matrix(DotAxis *major, DotAxis *minor, int32_t array) {
    if (major->size == 1) major->strides[array] = minor->strides[array] == 1 ? minor->size : 1;
    if (minor->size == 1) minor->strides[array] = major->strides[array] == 1 ? major->size : 1;
    int64_t steps[2] = {major->strides[array], minor->strides[array]};
    return (steps[0] == 1 || steps[1] == 1) && steps[0] <= INT_MAX && steps[1] <= INT_MAX;
}

/* Returns whether the result's columns are contiguous. */
static bool is_result(DotAxis *row, DotAxis *column) {
    if (column->size == 1) column->strides[DOT_RESULT] = 1;
    if (row->size == 1) row->strides[DOT_RESULT] = column->size;
    return column->strides[DOT_RESULT] == 1 && row->strides[DOT_RESULT] <= INT_MAX;
}

/* Describes a product of row dimension `r` and column dimension `c` (-1: none); the others are loops. */
static bool describe_product(DotPlan *plan, const Axes *axes, int32_t r, int32_t c) {
    static const DotAxis one = {.size = 1};
    if (axes->rank[DEPTH] > 1) return false;
    plan->row = r < 0 ? one : axes->list[ROWS][r];
    plan->column = c < 0 ? one : axes->list[COLUMNS][c];
    plan->depth = axes->rank[DEPTH] == 0 ? one : axes->list[DEPTH][0];
    if (!is_matrix(&plan->row, &plan->depth, DOT_LEFT) ||
        !is_matrix(&plan->column, &plan->depth, DOT_RIGHT) || !is_result(&plan->row, &plan->column))
        return false;
    plan->loop_rank = 0;
    plan->products = 1;
    for (int32_t kind = BATCH; kind <= COLUMNS; kind++)
        for (int32_t k = 0; k < axes->rank[kind]; k++) {
            if ((kind == ROWS && k == r) || (kind == COLUMNS && k == c)) continue;
            plan->loops[plan->loop_rank++] = axes->list[kind][k];
            plan->products *= axes->list[kind][k].size;
        }
    return true;
}

/* Products of few rows or columns leave much of a register unused. Columns along the depth are
 * transposed while packing, others are packed if many rows use them. */
static double estimate(const DotPlan *plan) {
    double cost = 0;
    double rows = (double)plan->row.size, columns = (double)plan->column.size;
    double depth = (double)plan->depth.size;
    double padded = (rows < 4 ? 4 : rows) * (columns < 16 ? 16 : columns);
    double column_cost = plan->column.strides[DOT_RIGHT] != 1 ? turn_cost : rows > few_rows ? pack_cost : 0;
    double each = product_cost + padded * depth * multiply_cost + columns * depth * column_cost;
    for (int32_t a = 0; a < DOT_ARRAYS; a++)
        if (plan->packed[a])
            cost += copy_cost * (double)strided_elements(plan->copies[a].sizes, plan->copies[a].rank);
    return cost + (double)plan->products * each;
}

/* Keeps the best product of these dimensions, if it is better than `best`. */
static void keep_best_product(DotPlan *best, double *least, DotPlan *plan, const Axes *axes) {
    for (int32_t r = axes->rank[ROWS] > 0 ? 0 : -1; r < axes->rank[ROWS]; r++)
        for (int32_t c = axes->rank[COLUMNS] > 0 ? 0 : -1; c < axes->rank[COLUMNS]; c++) {
            if (!describe_product(plan, axes, r, c)) continue;
            double cost = estimate(plan);
            if (*least >= 0 && cost >= *least) continue;
            *best = *plan;
            *least = cost;
        }
}

bool dot_plan(DotPlan *best, const IrDot *dot, const IrShape *left, const IrShape *right,
              const int64_t *dimensions) {
    static const int32_t orders[DOT_ARRAYS][3] = {
        {BATCH, ROWS, DEPTH}, {BATCH, DEPTH, COLUMNS}, {BATCH, ROWS, COLUMNS}};
    Axes given;
    double least = -1;
    collect_axes(&given, dot, left, right, dimensions);
    for (int32_t way = 0; way < 32; way++) {
        Axes axes = given;
        DotPlan plan = {.swapped = way & 8};
        if (plan.swapped) swap_sides(&axes);
        order_depth(&axes, way & 16 ? DOT_RIGHT : DOT_LEFT);
        for (int32_t a = 0; a < DOT_ARRAYS; a++) {
            plan.packed[a] = way >> a & 1;
            if (plan.packed[a]) pack(&axes, a, &plan.copies[a], orders[a]);
        }
        join_axes(&axes);
        keep_best_product(best, &least, &plan, &axes);
    }
    return least >= 0 && best->row.size <= INT_MAX && best->column.size <= INT_MAX &&
           best->depth.size <= INT_MAX;
}
