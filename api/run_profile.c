/* The medians of a run's steps as events of a profile, for `run --profile`. A collective counts with the
 * seconds of the rank that waited least. */
#include "api/run_profile.h"

#include <string.h>

#include "base/system/process.h"
#include "cost/collective/collective.h"
#include "cost/operator/measured_events.h"

enum { MOST_PROFILED_STEPS = 200 };

/* Returns the link between the devices of a group; NULL if they have several, or one that this process
 * lacks. */
static const char *link_of(const RunProfile *self, int32_t stage, const ProgramCollective *collective) {
    const Cluster *cluster = self->cluster;
    const int32_t *devices = self->plan->stages[stage].devices;
    int32_t link = cluster_group_link(cluster, 1);
    for (int32_t k = 0; k < collective->group_count; k++) {
        int32_t first = devices[collective->group[0]], other = devices[collective->group[k]];
        if (other < 0 || other >= cluster->device_count) return NULL;
        if (cluster->server_of[other] != cluster->server_of[first]) return NULL;
    }
    return link >= 0 ? cluster->links[link].name : NULL;
}

/* Adds the seconds of a collective: those of the last rank to arrive, which waits least. If ranks share
 * processors, that rank too waits for the others to be scheduled. */
static AmStatus add_collective(RunProfile *self, int32_t rank, const Program *program, int32_t step,
                               double seconds, AmError *error) {
    const ProgramInstruction *instruction =
        &program->instructions[program->execution.steps[step].instruction];
    const ProgramCollective *collective = instruction->collective;
    const TimedCollective timed = {.kind = collective_priced_kind(instruction),
                                   .stage = self->stage_of[rank],
                                   .first = collective->group[0],
                                   .step = step,
                                   .origin = instruction->origin,
                                   .devices = collective->group_count,
                                   .reported = 1,
                                   .link = link_of(self, self->stage_of[rank], collective),
                                   .bytes = collective_tensor_bytes(program, instruction),
                                   .seconds = seconds};
    if (!timed.link || program_is_host_copy(collective)) return AM_OK;
    for (int32_t k = 0; k < self->collective_count; k++) {
        TimedCollective *known = &self->collectives[k];
        if (known->kind != timed.kind || known->stage != timed.stage || known->first != timed.first ||
            known->step != step || known->origin != timed.origin || known->bytes != timed.bytes)
            continue;
        known->reported++;
        if (seconds < known->seconds) known->seconds = seconds;
        return AM_OK;
    }
    ARENA_RESERVE(self->arena, self->collectives, self->collective_count, self->collective_capacity);
    if (self->arena->failed) return am_fail_memory(error, self->collective_count);
    self->collectives[self->collective_count++] = timed;
    return AM_OK;
}

static AmStatus add_median(void *user, int32_t rank, const Program *program, int32_t step, double seconds,
                           AmError *error) {
    RunProfile *self = user;
    const ProgramStep *of = &program->execution.steps[step];
    if (rank >= self->rank_count || seconds <= 0) return AM_OK;
    if (of->fusion < 0 && program->instructions[of->instruction].kind == PROGRAM_COLLECTIVE)
        return self->has_collectives ? add_collective(self, rank, program, step, seconds, error) : AM_OK;
    return measured_add_step(self->file.added, self->type_of[rank], PROFILE_RUN, program, step, seconds,
                             error);
}

/* Names the device types of a plan's devices, stage by stage. */
static AmStatus name_types(RunProfile *self, Arena *arena, const Plan *plan, AmError *error) {
    int32_t rank = 0;
    self->plan = plan;
    for (int32_t s = 0; s < plan->stage_count; s++) self->rank_count += plan->stages[s].mesh.device_count;
    self->type_of = ARENA_ARRAY(arena, const char *, self->rank_count + 1);
    int32_t *stage_of = ARENA_ARRAY(arena, int32_t, self->rank_count + 1);
    self->stage_of = stage_of;
    if (arena->failed) return am_fail_memory(error, self->rank_count);
    TRY(cluster_from_json(&self->cluster, arena, plan->cluster_description, "the plan", error));
    const Cluster *cluster = self->cluster;
    for (int32_t s = 0; s < plan->stage_count; s++)
        for (int32_t d = 0; d < plan->stages[s].mesh.device_count; d++) {
            int32_t device = plan->stages[s].devices[d];
            bool is_known = device >= 0 && device < cluster->device_count;
            stage_of[rank] = s;
            self->type_of[rank++] = is_known ? cluster_device_type(cluster, device)->name : "host";
        }
    return AM_OK;
}

AmStatus run_profile_open(RunProfile *self, Arena *arena, const char *path, RunOptions *options,
                          AmError *error) {
    bool is_host = !options->device || strcmp(options->device, "cpu") == 0;
    *self = (RunProfile){.arena = arena};
    if (!path) return AM_OK;
    if (options->plan) {
        TRY(name_types(self, arena, options->plan, error));
        self->has_collectives = !is_host || self->rank_count <= process_processors();
    } else {
        self->type_of = ARENA_ARRAY(arena, const char *, 1);
        self->stage_of = ARENA_ARRAY(arena, int32_t, 1);
        if (arena->failed) return am_fail_memory(error, 1);
        self->type_of[self->rank_count++] = is_host ? "host" : options->device;
    }
    TRY(profile_file_open(&self->file, path, error));
    options->medians.on_median = add_median;
    options->medians.user = self;
    options->medians.steps = options->steps < MOST_PROFILED_STEPS ? options->steps : MOST_PROFILED_STEPS;
    return AM_OK;
}

AmStatus run_profile_end(RunProfile *self, AmError *error) {
    if (!self->file.path) return AM_OK;
    /* Only collectives that every rank has reported are added. */
    for (int32_t k = 0; k < self->collective_count; k++) {
        const TimedCollective *timed = &self->collectives[k];
        const MeasuredCollective of = {timed->kind, timed->devices, timed->bytes, timed->link, 1};
        if (timed->reported == timed->devices)
            TRY(measured_add_collective(self->file.added, self->type_of[0], PROFILE_RUN, &of, timed->seconds,
                                        error));
    }
    return profile_file_write(&self->file, error);
}

void run_profile_close(RunProfile *self) {
    profile_file_close(&self->file);
    if (self->cluster) cluster_free(self->cluster);
    *self = (RunProfile){0};
}
