/* Short runs with checkpoints in a folder of their own: shared by the tests of checkpoints. */
#ifndef TESTS_SUPPORT_CHECKPOINT_CASE_H
#define TESTS_SUPPORT_CHECKPOINT_CASE_H

#include <dirent.h>
#include <sys/stat.h>

#include "executor/checkpoint/checkpoint_export.h"
#include "executor/checkpoint/checkpoint_reader.h"
#include "runner_case.h"

enum { CHECKPOINT_STEPS = 8 };

typedef struct CheckpointCase {
    const char *model;
    PlanContext *context;
    Arena arena;
    AmWarnings warnings;
    json_t *cluster; /* of plans */
    char state[512], data[512], folder[128];
    double losses[CHECKPOINT_STEPS]; /* by step, of the last run; NAN where it did none */
    double expected[CHECKPOINT_STEPS];
    char notes[4096]; /* of the last run, a line each */
    RunReport report;
    AmError error;
    volatile sig_atomic_t interrupted;
    int64_t interrupt_after; /* step; -1: none */
} CheckpointCase;

/* Everything in the folder, and the folder. */
static inline void remove_folder(const char *folder) {
    DIR *directory = opendir(folder);
    if (!directory) return;
    for (struct dirent *entry; (entry = readdir(directory));) {
        char path[1024];
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        snprintf(path, sizeof path, "%.500s/%.255s", folder, entry->d_name);
        if (unlink(path) != 0) remove_folder(path);
    }
    closedir(directory);
    rmdir(folder);
}

/* The name of a folder of this process, which is not there. */
static inline void temporary_folder(char *folder, size_t room) {
    const char *place = getenv("TMPDIR");
    snprintf(folder, room, "%.90s/test_checkpoint_%d", place && *place ? place : "/tmp", (int)getpid());
    remove_folder(folder);
}

static inline void checkpoint_case_step(void *user, const RunStep *step) {
    CheckpointCase *self = user;
    if (step->step < CHECKPOINT_STEPS) self->losses[step->step] = step->loss;
    if (step->step == self->interrupt_after) self->interrupted = 1;
}

static inline void checkpoint_case_note(void *user, const char *text) {
    CheckpointCase *self = user;
    size_t length = strlen(self->notes);
    snprintf(self->notes + length, sizeof self->notes - length, "%s\n", text);
}

/* Runs up to `steps`; what `options` leaves open is the case's. */
static inline AmStatus checkpoint_case_run(CheckpointCase *self, RunOptions options, int64_t steps) {
    for (int k = 0; k < CHECKPOINT_STEPS; k++) self->losses[k] = NAN;
    self->notes[0] = '\0';
    self->error = (AmError){0};
    self->interrupted = 0;
    options.steps = steps;
    options.threads = 1;
    if (!options.state_path) options.state_path = self->state;
    options.data_path = self->data;
    options.on_step = checkpoint_case_step;
    options.on_note = checkpoint_case_note;
    options.user = self;
    options.interrupted = &self->interrupted;
    options.warnings = &self->warnings;
    return run_module(self->context, &options, &self->arena, &self->report, &self->error);
}

static inline void checkpoint_case_open(CheckpointCase *self, const char *model) {
    char path[512];
    *self = (CheckpointCase){.model = model, .interrupt_after = -1};
    join(path, sizeof path, model, "model.hlo.pb");
    join(self->state, sizeof self->state, model, "state.npz");
    join(self->data, sizeof self->data, model, "data.npz");
    assert_int_equal(plan_context_read(&self->context, path, NULL, &self->error), AM_OK);
    self->warnings.arena = &self->arena;
    self->cluster = json_object();
    temporary_folder(self->folder, sizeof self->folder);
}

static inline void checkpoint_case_close(CheckpointCase *self) {
    remove_folder(self->folder);
    json_decref(self->cluster);
    plan_context_free(self->context);
    arena_free(&self->arena);
}

static inline bool choose_any(const Classes *classes, int32_t c, int32_t axis, uint64_t seed) {
    (void)classes;
    return (c + axis + (int32_t)seed) % 2 == 0;
}

/* A plan that splits every second class, or the others; with all that its hash is of. */
static inline const Plan *checkpoint_case_plan(CheckpointCase *self, const char *mesh, uint64_t seed) {
    Plan *plan = make_plan(&self->arena, self->context, mesh, choose_any, seed);
    PlanStage *stage = &plan->stages[0];
    stage->devices = ARENA_ARRAY(&self->arena, int32_t, stage->mesh.device_count);
    for (int32_t d = 0; d < stage->mesh.device_count; d++) stage->devices[d] = d;
    plan->module_name = plan->cluster_name = plan->searcher = plan->space = "test";
    plan->module_sha256 = plan->cluster_sha256 = self->context->sha256;
    plan->cluster_description = self->cluster;
    plan->bound_seconds = NAN;
    return plan;
}

/* The losses of an uninterrupted run under a plan. */
static inline void checkpoint_case_expect(CheckpointCase *self, const Plan *plan) {
    RunOptions options = {.plan = plan};
    if (checkpoint_case_run(self, options, CHECKPOINT_STEPS) != AM_OK) fail_msg("%s", self->error.text);
    memcpy(self->expected, self->losses, sizeof self->expected);
}

/* The last run did steps first .. CHECKPOINT_STEPS - 1, with the very losses that were expected. */
static inline void check_losses(const CheckpointCase *self, int64_t first, const char *what) {
    for (int64_t k = 0; k < CHECKPOINT_STEPS; k++) {
        if (k < first && isnan(self->losses[k])) continue;
        if (k >= first && self->losses[k] == self->expected[k]) continue;
        fail_msg("%s: step %d has loss %.17g, expected %.17g from step %d on", what, (int)k, self->losses[k],
                 self->expected[k], (int)first);
    }
}

/* Returns whether the folder holds that name. */
static inline bool holds(const CheckpointCase *self, const char *name) {
    char path[512];
    struct stat facts;
    snprintf(path, sizeof path, "%s/%s", self->folder, name);
    return stat(path, &facts) == 0;
}

#endif
