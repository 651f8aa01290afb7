/* Gathers of stored weights, one layer ahead or so.
 *
 * A run of late instructions stands in front of the group that uses it. In order of their users the runs that
 * gather something are a queue. The next one begins when the user of an earlier one begins: the earliest for
 * which all that is gathered from there on, and not used before, fits the limit. So the first waits for
 * nothing, and each of the others has the time that the users in between compute, or a part of it that no
 * other collective needs (find_gaps). Limits are in bytes and not in time, which a program does not know;
 * they are a layer's weights of a large model, and an eighth of a small one's, which is stored in shards
 * because memory is short.
 */
#include "lowering/passes/gather_ahead.h"

#include <math.h>
#include <string.h>

#include "ir/analysis/loops.h"
#include "lowering/passes/latency.h"

typedef struct GatherRun {
    int32_t first, end; /* places of the old order; what stands at `end` uses it */
    int32_t begin;      /* position before which it begins */
    int64_t bytes;      /* that it gathers */
    int64_t all_bytes;  /* the same of all layers that it stands for */
} GatherRun;

typedef struct Mover {
    const Program *program;
    const ProgramGraph *graph;
    const int32_t *leader;
    int32_t *order;
    bool *is_waiting; /* [instruction]: late and not placed */
    int32_t placed;
    GatherRun *runs;
    int32_t run_count;
} Mover;

static int64_t gathered_bytes(const Program *program, int32_t i) {
    const ProgramInstruction *instruction = &program->instructions[i];
    int64_t bytes = 0;
    if (!program_gathers(instruction)) return 0;
    for (int32_t k = 0; k < instruction->result_count; k++)
        bytes += program_even_bytes(program, &program->values[instruction->first_result + k]);
    return bytes;
}

/* Lists the gathers of each group. */
static void list_runs(Mover *self, const int32_t *order, const bool *late) {
    int32_t count = self->graph->count;
    for (int32_t place = 0; place < count; place++) {
        if (!late[order[place]]) continue;
        GatherRun run = {.first = place};
        for (; place < count && late[order[place]]; place++) {
            int64_t bytes = gathered_bytes(self->program, order[place]);
            run.bytes += bytes;
            run.all_bytes +=
                bytes * ir_layers_of(self->program->module, self->program->instructions[order[place]].origin);
        }
        run.end = place;
        if (run.bytes > 0 && place < count) self->runs[self->run_count++] = run;
    }
}

/* An estimated clock along the order, in operations (latency.h). */
typedef struct Clock {
    ProgramLatency latency;
    double *until_awaited; /* [place]: of the computing from there to a collective that products wait for */
    double *before;        /* [place]: of all computing in front of it */
    double now, network;   /* computed until now; until when collectives take place */
} Clock;

static AmStatus open_clock(Clock *clock, Arena *arena, const Mover *self, const bool *late, AmError *error) {
    const int32_t *order = self->order;
    int32_t count = self->graph->count;
    LiveBytes live;
    *clock = (Clock){0};
    TRY(program_latency(&clock->latency, &live, self->program, self->graph, error));
    if (clock->latency.awaited_count == 0) return AM_OK;
    clock->until_awaited = ARENA_ARRAY_RAW(arena, double, count + 1);
    clock->before = ARENA_ARRAY(arena, double, count + 1);
    if (arena->failed) return am_fail_memory(error, count);
    const double *work = clock->latency.work;
    for (int32_t k = 0; k < count; k++) {
        bool computes = !late[order[k]] && self->program->instructions[order[k]].kind != PROGRAM_COLLECTIVE;
        clock->before[k + 1] = clock->before[k] + (computes ? work[order[k]] : 0);
    }
    double next = INFINITY;
    for (int32_t k = count - 1; k >= 0; k--) {
        if (clock->latency.is_awaited[order[k]]) next = clock->before[k];
        clock->until_awaited[k] = next - clock->before[k];
    }
    return AM_OK;
}

/* Returns whether a run begins in front of place k: its gathers, after all that is under way, end before a
 * collective that is waited for; or else they would not be there for its user. */
static bool begins_at(Clock *clock, const Mover *self, const GatherRun *run, int32_t k) {
    double work = 0, begin = fmax(clock->now, clock->network);
    for (int32_t m = run->first; m < run->end; m++)
        if (gathered_bytes(self->program, self->order[m]) > 0) work += clock->latency.work[self->order[m]];
    bool fits = begin - clock->now + work <= clock->until_awaited[k];
    if (!fits && k < run->end && clock->before[run->end] - clock->before[k] > work) return false;
    clock->network = begin + work;
    return true;
}

/* Advances the clock by an instruction: collectives run on the network, others on the device. */
static void advance_clock(Clock *clock, const Program *program, int32_t i) {
    if (program->instructions[i].kind != PROGRAM_COLLECTIVE) {
        clock->now += clock->latency.work[i];
        return;
    }
    clock->network = fmax(clock->now, clock->network) + clock->latency.work[i];
    if (clock->latency.is_awaited[i]) clock->now = clock->network;
}

/* Finds positions for the gathers. If products wait for collectives (tensor and context
 * parallelism), gathers queued before these would delay them. A run therefore begins where the
 * network has time for it, and not before its inputs exist.
 */
static AmStatus find_gaps(Mover *self, Arena *arena, const bool *late, AmError *error) {
    Clock clock;
    TRY(open_clock(&clock, arena, self, late, error));
    if (clock.latency.awaited_count == 0) return AM_OK;
    for (int32_t k = 0, next = 0; k < self->graph->count && next < self->run_count; k++) {
        if (late[self->order[k]]) continue;
        bool may_begin = self->leader[self->order[k]] == self->order[k]; /* not inside a group */
        for (; may_begin && next < self->run_count && self->runs[next].begin <= k; next++) {
            if (!begins_at(&clock, self, &self->runs[next], k)) break;
            self->runs[next].begin = k;
        }
        advance_clock(&clock, self->program, self->order[k]);
    }
    return AM_OK;
}

/* Places i after the late instructions that it needs. */
static void place_after_needed(Mover *self, int32_t i) {
    const ProgramGraph *graph = self->graph;
    for (int32_t e = graph->first[i]; e < graph->first[i + 1]; e++)
        if (self->is_waiting[graph->producers[e]]) place_after_needed(self, graph->producers[e]);
    self->is_waiting[i] = false;
    self->order[self->placed++] = i;
}

static void place_waiting(Mover *self, const int32_t *order, int32_t first, int32_t end) {
    for (int32_t k = first; k < end; k++)
        if (self->is_waiting[order[k]]) place_after_needed(self, order[k]);
}

AmStatus program_gather_ahead(int32_t *order, Arena *arena, const Program *program, const ProgramGraph *graph,
                              const int32_t *leader, const bool *late, AmError *error) {
    int32_t count = graph->count;
    int32_t *old = ARENA_ARRAY_RAW(arena, int32_t, count + 1);
    Mover self = {.program = program,
                  .graph = graph,
                  .leader = leader,
                  .order = order,
                  .is_waiting = ARENA_ARRAY_RAW(arena, bool, count + 1),
                  .runs = ARENA_ARRAY_RAW(arena, GatherRun, count + 1)};
    if (arena->failed) return am_fail_memory(error, count);
    list_runs(&self, order, late);
    if (self.run_count < 2) return AM_OK;
    GatherRun *runs = self.runs;
    int64_t all = 0, ahead = 0;
    for (int32_t r = 0; r < self.run_count; r++) all += runs[r].all_bytes;
    int64_t most =
        all / GATHER_AHEAD_PART < GATHER_AHEAD_BYTES ? GATHER_AHEAD_BYTES : all / GATHER_AHEAD_PART;
    int64_t limit = all / GATHER_AHEAD_MOST_PART < most ? all / GATHER_AHEAD_MOST_PART : most;
    for (int32_t r = 0, first = 0; r < self.run_count; r++) {
        ahead += runs[r].bytes;
        while (first < r && ahead > (first + 1 < r ? limit : most)) ahead -= runs[first++].bytes;
        runs[r].begin = runs[first].end;
    }
    TRY(find_gaps(&self, arena, late, error));
    memcpy(old, order, sizeof *old * (size_t)count);
    memcpy(self.is_waiting, late, (size_t)count);
    /* the old order, with the runs that begin there in front of their user */
    int32_t begun = 0, first = 0;
    for (int32_t k = 0; k < count; k++) {
        if (late[old[k]]) continue;
        place_waiting(&self, old, first, k);
        first = k + 1;
        for (; begun < self.run_count && self.runs[begun].begin <= k; begun++)
            place_waiting(&self, old, self.runs[begun].first, self.runs[begun].end);
        place_after_needed(&self, old[k]);
    }
    place_waiting(&self, old, first, count);
    return AM_OK;
}
