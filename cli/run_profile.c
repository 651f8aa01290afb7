/* From the medians of a run to a profile; see run_profile.h. */
#include "cli/run_profile.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "cost/operator.h"

enum { MOST_PROFILED_STEPS = 200 };

static AmStatus add_median(void *user, int32_t rank, const Program *program, int32_t step, double seconds,
                           AmError *error) {
    RunProfile *self = user;
    OperatorWork work;
    StepEvent event = {0};
    AmStatus status = AM_OK;
    operator_work(&work, program, &program->steps[step]);
    if (rank < self->rank_count && seconds > 0 && step_event(&event, program, &program->steps[step]))
        status =
            profile_add(self->profile, self->type_of[rank], &event, work.flops + work.bytes, seconds, error);
    text_free(&event.key);
    return status;
}

/* The types of a plan's devices, stage by stage. */
static AmStatus name_types(RunProfile *self, Arena *arena, const Plan *plan, AmError *error) {
    Cluster *cluster;
    int32_t rank = 0;
    for (int32_t s = 0; s < plan->stage_count; s++) self->rank_count += plan->stages[s].mesh.device_count;
    self->type_of = ARENA_ARRAY(arena, const char *, self->rank_count + 1);
    if (!self->type_of) return am_fail_memory(error, self->rank_count);
    TRY(cluster_from_json(&cluster, arena, plan->cluster_description, "the plan", error));
    for (int32_t s = 0; s < plan->stage_count; s++)
        for (int32_t d = 0; d < plan->stages[s].mesh.device_count; d++) {
            int32_t device = plan->stages[s].devices[d];
            bool is_known = device >= 0 && device < cluster->device_count;
            self->type_of[rank++] = is_known ? cluster_device_type(cluster, device)->name : "host";
        }
    cluster_free(cluster);
    return AM_OK;
}

static bool exists(const char *path) {
    FILE *file = fopen(path, "rb");
    if (file) fclose(file);
    return file != NULL;
}

AmStatus run_profile_open(RunProfile *self, Arena *arena, const char *path, AmRunOptions *options,
                          AmError *error) {
    *self = (RunProfile){.path = path};
    if (!path) return AM_OK;
    if (options->plan) {
        TRY(name_types(self, arena, options->plan, error));
    } else {
        bool is_host = !options->device || strcmp(options->device, "cpu") == 0;
        self->type_of = ARENA_ARRAY(arena, const char *, 1);
        if (!self->type_of) return am_fail_memory(error, 1);
        self->type_of[self->rank_count++] = is_host ? "host" : options->device;
    }
    TRY(profile_open(&self->profile, error));
    TRY(profile_open(&self->known, error));
    if (exists(path)) TRY(profile_read(self->known, path, error));
    TRY(file_check_writable(path, error));
    options->on_median = add_median;
    options->median_user = self;
    options->median_steps = options->steps < MOST_PROFILED_STEPS ? options->steps : MOST_PROFILED_STEPS;
    return AM_OK;
}

AmStatus run_profile_end(RunProfile *self, AmError *error) {
    if (!self->path) return AM_OK;
    TRY(profile_merge(self->known, self->profile, error));
    return profile_write(self->known, self->path, error);
}

void run_profile_close(RunProfile *self) {
    profile_close(self->profile);
    profile_close(self->known);
    *self = (RunProfile){0};
}
