/* The dynamic program over stages compared with GLPK, run as a process on the same problem as a
 * mixed integer program: a path from (first unit, first device, stages to go) to the end.
 *
 * y[a]: arc a is on the path, a stage of some units on some devices followed by a number of stages,
 * with c[a] seconds for its iteration and transfers and l[a] for a further iteration:
 *
 *   min  sum c[a] y[a] + (M - 1) m
 *   out - in = 0 at every place between, 1 over all beginnings;   l[a] y[a] <= m,   y binary
 *
 * Skipped (77) without glpsol.
 */
#include "tests/support/glpk_case.h"
#include "tests/support/stages_case.h"

#define GRID 1.05 /* of the maximum, within which the dynamic program is exact */

enum { MOST_ARCS = 20000 };

typedef struct Arc {
    int32_t unit, device, left, to_unit, to_device;
    double seconds, iteration;
} Arc;

typedef struct Paths {
    int32_t micro_batches, units, devices, most_stages, count;
    Arc arcs[MOST_ARCS];
} Paths;

/* The stage with the quickest strategy that fits, if there is one. */
static void add_arc(Paths *self, const StagesCase *of, StageLayout *stage, int32_t left) {
    StageCost cost;
    const StageModel *model = of->model;
    int32_t behind = stage->place.first + stage->place.width, m = self->micro_batches;
    if (!best_stage(of, m, stage, left, &cost)) return;
    double iteration = cost.forward + cost.backward;
    double transfer = stage_model_transfer(model, m, stage->end_unit, behind, false) +
                      stage_model_transfer(model, m, stage->end_unit, behind, true);
    if (left == 1) transfer = 0;
    assert_true(self->count < MOST_ARCS);
    self->arcs[self->count++] = (Arc){.unit = stage->first_unit,
                                      .device = stage->place.first,
                                      .left = left,
                                      .to_unit = stage->end_unit,
                                      .to_device = behind,
                                      .seconds = iteration + transfer,
                                      .iteration = fmax(iteration + cost.rest / m, transfer)};
}

static void list_arcs(Paths *self, const StagesCase *of) {
    const StageModel *model = of->model;
    for (int32_t left = 1; left <= self->most_stages; left++)
        for (int32_t p = 0; p < model->place_count; p++) {
            const DeviceRange *place = &model->places[p];
            if ((left == 1) != (place->first + place->width == self->devices)) continue;
            for (int32_t unit = 0; unit < self->units; unit++)
                for (int32_t end = left == 1 ? self->units : unit + 1; end <= self->units; end++) {
                    StageLayout stage = {.first_unit = unit, .end_unit = end, .place = *place};
                    add_arc(self, of, &stage, left);
                }
        }
}

/* Writes the balance of a place; nothing if it has no arc. */
static void write_balance(FILE *file, const Paths *self, int32_t unit, int32_t device, int32_t left) {
    bool is_met = false;
    for (int32_t a = 0; a < self->count; a++) {
        const Arc *arc = &self->arcs[a];
        bool leaves = arc->unit == unit && arc->device == device && arc->left == left;
        bool comes = arc->to_unit == unit && arc->to_device == device && arc->left == left + 1;
        if (leaves || comes) fprintf(file, " %s y%d\n", leaves ? "+" : "-", a);
        is_met |= leaves || comes;
    }
    if (is_met) fprintf(file, " = 0\n");
}

static void write_program(FILE *file, const void *problem) {
    const Paths *self = problem;
    fprintf(file, "Minimize\n total: %d m\n", self->micro_batches - 1);
    for (int32_t a = 0; a < self->count; a++) fprintf(file, " + %.17g y%d\n", 1e3 * self->arcs[a].seconds, a);
    fprintf(file, "Subject To\n");
    for (int32_t a = 0; a < self->count; a++)
        if (self->arcs[a].unit == 0 && self->arcs[a].device == 0) fprintf(file, " + y%d\n", a);
    fprintf(file, " = 1\n");
    for (int32_t unit = 1; unit < self->units; unit++)
        for (int32_t device = 1; device < self->devices; device++)
            for (int32_t left = 1; left < self->most_stages; left++)
                write_balance(file, self, unit, device, left);
    for (int32_t a = 0; a < self->count; a++)
        fprintf(file, " m - %.17g y%d >= 0\n", 1e3 * self->arcs[a].iteration, a);
    fprintf(file, "Binary\n");
    for (int32_t a = 0; a < self->count; a++) fprintf(file, " y%d\n", a);
    fprintf(file, "End\n");
}

static void check(const char *name, const char *cluster, int32_t micro_batches) {
    StagesCase of;
    PipelineLayout found[16];
    AmError error = {0};
    int32_t count;
    double best;
    Paths *paths = calloc(1, sizeof *paths);
    assert_non_null(paths);
    open_stages(&of, name, cluster, micro_batches);
    paths->micro_batches = micro_batches;
    paths->units = of.costs->units.count;
    paths->devices = of.cluster->device_count;
    paths->most_stages = micro_batches < PIPELINE_MOST_STAGES ? micro_batches : PIPELINE_MOST_STAGES;
    list_arcs(paths, &of);
    if (stage_dp_find(of.model, found, 16, &count, &best, &error) != AM_OK) fail_msg("%s", error.text);
    double optimum = 1e-3 * glpk_solve(write_program, paths);
    if (!(best >= optimum * (1 - 1e-5) && best <= GRID * optimum * (1 + 1e-5)))
        fail_msg("%s on %s, %d micro-batches: %.9g found, GLPK %.9g", name, cluster, micro_batches, best,
                 optimum);
    printf("%s on %s, %d micro-batches, %d stages: %.9g, GLPK %.9g\n", name, cluster, micro_batches,
           found[0].stage_count, best, optimum);
    close_stages(&of);
    free(paths);
}

static void stages_are_what_glpk_finds(void **state) {
    (void)state;
    check("mlp_tiny", "nominal:4", 4);
    check("mlp_tiny", "whale-pp", 2);
    check("lstm_tiny", "nominal:2", 8);
    check("lstm_tiny", "nominal:4", 4);
    check("vgg_tiny", "nominal:4", 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(stages_are_what_glpk_finds)};
    if (!glpk_is_there()) return GLPK_SKIPPED;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
