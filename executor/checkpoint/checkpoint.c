/* The state of a run's checkpoints: resuming, images, the worker.
 *
 * One save is active at a time. Its state goes IDLE -> FILES (the worker writes this process's
 * files) -> WRITTEN -> (process 0) COMMIT -> DONE -> IDLE; a single process goes from FILES to
 * DONE. The leader advances it from WRITTEN, when all processes are there, and from DONE, where it
 * takes the outcome.
 */
#define _DEFAULT_SOURCE
#include "executor/checkpoint/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "base/system/parallel.h"
#include "executor/checkpoint/checkpoint_reader.h"
#include "executor/checkpoint/checkpoint_write.h"

enum { DEFAULT_KEEP = 2, ABANDON_SECONDS = 3 };
static const int64_t MOST_SHARE_BYTES = (int64_t)1 << 31;

typedef enum Iteration {
    ITERATION_IDLE,
    ITERATION_FILES,
    ITERATION_WRITTEN,
    ITERATION_COMMIT,
    ITERATION_DONE
} Iteration;

struct Checkpoint {
    CheckpointOwner owner;
    Arena arena;
    CheckpointWriter writer;
    CheckpointReader found; /* what is resumed */
    bool has_found;
    int lock; /* the folder, held open; -1 */
    int64_t first_step;
    CheckpointImage *images;  /* [rank_count] */
    int32_t *tensors;         /* [parameter]: its tensor, or -1 */
    CheckpointManifest form;  /* tensors without parts: the start of every save */
    int64_t saved, failed;    /* steps of the last save in place, and of the last failed one; -1: none */
    AmError failure;          /* of the last save, if it failed */
    atomic_bool is_abandoned; /* see abandon() */
    _Atomic int32_t to_take;  /* ranks that have not copied their parts yet */
    /* shared with the worker, under the mutex */
    pthread_t worker;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool has_worker, quits;
    Iteration iteration;
    AmStatus status; /* of the save in work */
    AmError error;
    AmError not_removed;       /* an old checkpoint that could not be */
    Arena save_arena;          /* of the save in work */
    CheckpointManifest saving; /* this process's share, then all of it in process 0 */
};

/* ---- The worker ---- */

static void set_iteration(Checkpoint *self, Iteration iteration) {
    self->iteration = iteration;
    pthread_cond_broadcast(&self->changed);
}

static void write_save(Checkpoint *self, Iteration iteration) {
    if (iteration == ITERATION_FILES)
        self->status = checkpoint_write_files(&self->writer, self->images, self->owner.rank_count,
                                              &self->saving, &self->save_arena, &self->error);
    bool commits = iteration == ITERATION_COMMIT || !self->owner.processes;
    if (!commits || self->status != AM_OK) return;
    self->status = checkpoint_commit(&self->writer, &self->saving, &self->save_arena, &self->error);
    if (self->status == AM_OK) checkpoint_remove_old(&self->writer, &self->save_arena, &self->not_removed);
}

/* Runs the worker's thread. */
static void *run_worker(void *argument) {
    Checkpoint *self = argument;
    pthread_mutex_lock(&self->mutex);
    for (;;) {
        Iteration iteration = self->iteration;
        if (iteration == ITERATION_FILES || iteration == ITERATION_COMMIT) {
            pthread_mutex_unlock(&self->mutex);
            write_save(self, iteration);
            pthread_mutex_lock(&self->mutex);
            set_iteration(self, iteration == ITERATION_FILES && self->owner.processes ? ITERATION_WRITTEN
                                                                                      : ITERATION_DONE);
        } else if (self->quits) {
            break;
        } else {
            pthread_cond_wait(&self->changed, &self->mutex);
        }
    }
    pthread_mutex_unlock(&self->mutex);
    return NULL;
}

/* Waits until the worker is idle; returns the state of the save. */
static Iteration await_worker(Checkpoint *self) {
    pthread_mutex_lock(&self->mutex);
    while (self->iteration == ITERATION_FILES || self->iteration == ITERATION_COMMIT)
        pthread_cond_wait(&self->changed, &self->mutex);
    Iteration iteration = self->iteration;
    pthread_mutex_unlock(&self->mutex);
    return iteration;
}

static void hand_over(Checkpoint *self, Iteration iteration) {
    pthread_mutex_lock(&self->mutex);
    set_iteration(self, iteration);
    pthread_mutex_unlock(&self->mutex);
}

/* ---- Messages for the user ---- */

static bool leads(const Checkpoint *self) {
    return !self->owner.processes || self->owner.processes->process == 0;
}

static void note_text(const Checkpoint *self, const char *text) {
    const RunOptions *options = self->owner.options;
    if (!leads(self)) return;
    if (options->on_note) options->on_note(options->user, text);
    else if (options->warnings) am_warn(options->warnings, "%s", text);
}

/* Notes "TEXT: FILE: cause". */
static void note_error(Checkpoint *self, const char *text, const AmError *error) {
    char line[sizeof error->text + sizeof error->source + 128];
    snprintf(line, sizeof line, "%s: %s%s%s", text, error->source, error->source[0] ? ": " : "", error->text);
    note_text(self, line);
}

/* Ends a save that is done, or that has failed. */
static void settle_save(Checkpoint *self) {
    char text[96];
    if (self->status == AM_OK) {
        self->saved = self->saving.step;
        self->failed = -1;
    } else {
        self->failed = self->saving.step;
        self->failure = self->error;
        snprintf(text, sizeof text, "warning: the checkpoint of step %lld could not be written",
                 (long long)self->saving.step);
        note_error(self, text, &self->error);
        if (leads(self)) checkpoint_discard(&self->writer, self->saving.step);
    }
    if (self->not_removed.code != AM_OK)
        note_error(self, "warning: an old checkpoint could not be removed", &self->not_removed);
    self->not_removed = (AmError){0};
    hand_over(self, ITERATION_IDLE);
}

/* ---- Opening and resuming ---- */

/* Returns AM_OK if all processes pass AM_OK. If one process fails, all processes fail. */
static AmStatus agree_on(Checkpoint *self, AmStatus status, AmError *own, AmError *error) {
    ProcessGroup *processes = self->owner.processes;
    if (!processes) return am_pass_error(status, own, error);
    ProcessPart *parts = calloc((size_t)processes->count, sizeof *parts);
    if (!parts) return am_fail_memory(error, (int64_t)sizeof *parts * processes->count);
    AmError all = {0};
    AmStatus sent = process_group_gather(processes, own, sizeof *own, sizeof *own, parts, error);
    if (sent == AM_OK && processes->process == 0) {
        for (int32_t p = processes->count - 1; p >= 0; p--)
            if (parts[p].count == sizeof all && ((const AmError *)parts[p].bytes)->code != AM_OK)
                memcpy(&all, parts[p].bytes, sizeof all);
        process_group_release_parts(processes, parts);
    }
    free(parts);
    TRY(sent);
    TRY(process_group_broadcast(processes, &all, sizeof all, error));
    return am_pass_error(all.code, &all, error);
}

/* Opens and verifies the checkpoint of one step; `*damaged`: the failure is the checkpoint's own. */
static AmStatus try_step(Checkpoint *self, int64_t step, bool *damaged, AmError *error) {
    ProcessGroup *processes = self->owner.processes;
    const char *directory = checkpoint_directory(&self->arena, self->writer.folder, step, "");
    if (!directory) return am_fail_memory(error, 64);
    AmError own = {0};
    AmStatus status = checkpoint_reader_open(&self->found, directory, &own);
    if (status == AM_OK) {
        const CheckpointManifest *manifest = &self->found.manifest;
        const char *module = plan_context_primary(self->owner.context)->sha256;
        *damaged = strcmp(manifest->module, module) == 0;
        if (!*damaged)
            status = am_fail(&own, AM_ERROR_INPUT, manifest->source,
                             "this checkpoint is of module %.12s, and the one to be trained is %.12s",
                             manifest->module, module);
    } else {
        *damaged = status == AM_ERROR_INPUT;
    }
    if (status == AM_OK && self->found.manifest.step != step)
        status = am_fail(&own, AM_ERROR_INPUT, self->found.manifest.source,
                         "its step is %lld, which its folder's name does not say",
                         (long long)self->found.manifest.step);
    if (status == AM_OK)
        status = checkpoint_reader_verify(&self->found, processes ? processes->process : 0,
                                          processes ? processes->count : 1, &own);
    status = agree_on(self, status, &own, error);
    self->has_found = status == AM_OK;
    if (status != AM_OK) checkpoint_reader_close(&self->found);
    return status;
}

/* Lists the folder's steps as process 0 sees them, newest first; in the arena. */
static AmStatus list_steps(Checkpoint *self, int64_t **steps, int32_t *count, AmError *error) {
    ProcessGroup *processes = self->owner.processes;
    int64_t *list = NULL, total = 0;
    *count = 0;
    if (leads(self)) TRY(checkpoint_list(self->writer.folder, &list, count, error));
    total = *count;
    AmStatus status = processes ? process_group_broadcast(processes, &total, sizeof total, error) : AM_OK;
    *count = (int32_t)total;
    *steps = ARENA_ARRAY(&self->arena, int64_t, total + 1);
    if (status == AM_OK && !*steps) status = am_fail_memory(error, total * 8);
    if (status == AM_OK && list) memcpy(*steps, list, sizeof *list * (size_t)total);
    free(list);
    if (status == AM_OK && processes && total > 0)
        status = process_group_broadcast(processes, *steps, (int64_t)sizeof **steps * total, error);
    return status;
}

/* Renames an incomplete checkpoint, so that its files are kept under a name that is no
 * checkpoint's. */
static void put_aside(Checkpoint *self, const int64_t *steps, int32_t count) {
    for (int32_t k = 0; k < count && leads(self); k++) {
        AmError own = {0};
        const char *path = checkpoint_directory(&self->arena, self->writer.folder, steps[k], "");
        const char *aside = checkpoint_directory(&self->arena, self->writer.folder, steps[k], ".damaged");
        AmStatus status = path && aside ? disk_remove(self->writer.calls, aside, &own) : AM_OK;
        if (status == AM_OK && path && aside) status = disk_rename(self->writer.calls, path, aside, &own);
        if (status != AM_OK) note_error(self, "warning: a damaged checkpoint stays", &own);
    }
}

/* Finds the newest checkpoint that is undamaged, and resumes from it. */
static AmStatus find_newest(Checkpoint *self, AmError *error) {
    int64_t *steps;
    int32_t count;
    char text[160];
    AmError first = {0};
    TRY(list_steps(self, &steps, &count, error));
    if (count > 0 && !self->owner.options->checkpoints.resumes)
        return am_fail(error, AM_ERROR_USAGE, self->writer.folder,
                       "holds a checkpoint of step %lld: go on from it with --resume, or name another folder",
                       (long long)steps[0]);
    for (int32_t k = 0; k < count; k++) {
        AmError own = {0};
        bool damaged = false;
        AmStatus status = try_step(self, steps[k], &damaged, &own);
        if (status == AM_OK) {
            self->first_step = steps[k];
            snprintf(text, sizeof text, "resumed after step %lld%s", (long long)steps[k],
                     strcmp(self->found.manifest.plan, self->owner.plan) == 0 ? "" : ", under another plan");
            note_text(self, text);
            if (steps[k] >= self->owner.options->steps) note_text(self, "all steps are done already");
            put_aside(self, steps, k);
            return AM_OK;
        }
        if (first.code == AM_OK) first = own;
        if (!damaged || k + 1 == count) return am_pass_error(first.code, &first, error);
        note_error(self, "warning: a checkpoint is skipped", &own);
    }
    if (self->owner.options->checkpoints.resumes)
        note_text(self, "no checkpoint to resume from: starting anew");
    return AM_OK;
}

/* Locks the folder for this run while its process lives, or until it is closed. If it cannot be
 * locked (some network file systems), the user has to prevent concurrent use. */
static AmStatus open_folder(Checkpoint *self, AmError *error) {
    if (!leads(self)) return AM_OK;
    AmError own = {0};
    if (disk_make_directory(self->writer.calls, self->writer.folder, true, &own) != AM_OK)
        return am_fail(error, AM_ERROR_USAGE, own.source, "%s", own.text);
    self->lock = open(self->writer.folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (self->lock >= 0 && flock(self->lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return am_fail(error, AM_ERROR_USAGE, self->writer.folder, "another run writes its checkpoints here");
    checkpoint_clean(&self->writer);
    return AM_OK;
}

AmStatus checkpoint_open(Checkpoint **checkpoint, const CheckpointOwner *owner, AmError *error) {
    const RunOptions *options = owner->options;
    *checkpoint = NULL;
    if (!options->checkpoints.path) {
        if (options->checkpoints.resumes || options->checkpoints.every > 0 || options->checkpoints.keep > 0)
            return am_fail(error, AM_ERROR_USAGE, "", "--every, --keep and --resume need --checkpoint");
        return AM_OK;
    }
    Checkpoint *self = calloc(1, sizeof *self);
    if (!self) return am_fail_memory(error, (int64_t)sizeof *self);
    *checkpoint = self;
    self->owner = *owner;
    self->saved = self->failed = self->lock = -1;
    self->writer =
        (CheckpointWriter){.calls = options->checkpoints.disk ? options->checkpoints.disk : &disk_calls,
                           .folder = options->checkpoints.path,
                           .keep = options->checkpoints.keep > 0 ? options->checkpoints.keep : DEFAULT_KEEP,
                           .is_abandoned = &self->is_abandoned};
    pthread_mutex_init(&self->mutex, NULL);
    pthread_cond_init(&self->changed, NULL);
    TRY(open_folder(self, error));
    TRY(find_newest(self, error));
    self->saved = self->has_found ? self->first_step : -1;
    return AM_OK;
}

/* Abandons a save after a failure of another process: its files never become a checkpoint. This process must
 * end soon regardless of the disk, so after ABANDON_SECONDS the worker is abandoned together with its
 * memory. Returns whether it is. */
static bool abandon(Checkpoint *self) {
    struct timespec until;
    if (!self->owner.processes || process_group_check(self->owner.processes, NULL) == AM_OK) return false;
    atomic_store(&self->is_abandoned, true);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += ABANDON_SECONDS;
    pthread_mutex_lock(&self->mutex);
    int late = 0;
    while (self->iteration == ITERATION_FILES && late == 0)
        late = pthread_cond_timedwait(&self->changed, &self->mutex, &until);
    bool is_busy = self->iteration == ITERATION_FILES;
    pthread_mutex_unlock(&self->mutex);
    if (is_busy) pthread_detach(self->worker);
    return is_busy;
}

void checkpoint_close(Checkpoint *self) {
    if (!self) return;
    if (self->has_worker) {
        pthread_mutex_lock(&self->mutex);
        self->quits = true;
        pthread_cond_broadcast(&self->changed);
        pthread_mutex_unlock(&self->mutex);
        if (abandon(self)) return;
        pthread_join(self->worker, NULL);
    }
    for (int32_t r = 0; self->images && r < self->owner.rank_count; r++)
        checkpoint_image_close(&self->images[r]);
    if (self->has_found) checkpoint_reader_close(&self->found);
    if (self->lock >= 0) close(self->lock);
    pthread_mutex_destroy(&self->mutex);
    pthread_cond_destroy(&self->changed);
    arena_free(&self->save_arena);
    arena_free(&self->arena);
    free(self);
}

int64_t checkpoint_first_step(const Checkpoint *self) {
    return self ? self->first_step : 0;
}

CheckpointPosition checkpoint_position(const Checkpoint *self) {
    return self && self->has_found ? self->found.manifest.position : (CheckpointPosition){0};
}

/* Returns the parameter of the module as read to which parameter k of the programs belongs. */
static const IrParameter *parameter_of(const Checkpoint *self, int32_t k) {
    const PlanContext *context = self->owner.context;
    return &plan_context_source(context)->roles->parameters[plan_source_parameter(context, k).original];
}

static const IrShape *shape_of(const Checkpoint *self, int32_t k) {
    return &plan_context_source(self->owner.context)
                ->canonical->instructions[parameter_of(self, k)->instruction]
                .shape;
}

bool checkpoint_holds(const Checkpoint *self, int32_t k) {
    return self && self->has_found && parameter_of(self, k)->role != IR_ROLE_DATA &&
           checkpoint_manifest_find(&self->found.manifest, parameter_of(self, k)->path);
}

/* Restores the ranks' shards of all tensors in the checkpoint. */
static AmStatus restore_shards(Checkpoint *self, AmError *error) {
    for (int32_t k = 0; k < self->owner.context->roles->parameter_count; k++) {
        if (!checkpoint_holds(self, k)) continue;
        const CheckpointTensor *tensor =
            checkpoint_manifest_find(&self->found.manifest, parameter_of(self, k)->path);
        const IrShape *shape = shape_of(self, k);
        bool is_same = tensor->type == shape->type && tensor->rank == shape->rank;
        for (int32_t d = 0; is_same && d < shape->rank; d++)
            is_same = tensor->dimensions[d] == shape->dimensions[d];
        if (!is_same)
            return am_fail(error, AM_ERROR_INPUT, self->found.manifest.source,
                           "tensor '%.200s' is of another shape", tensor->path);
        for (int32_t r = 0; r < self->owner.rank_count; r++) {
            Rank *rank = &self->owner.ranks[r];
            int64_t start[IR_MAX_RANK], extent[IR_MAX_RANK], blocks[IR_MAX_RANK];
            if (rank->parameters[k].value < 0) continue;
            checkpoint_part_of(self->owner.context, rank, k, start, extent, blocks);
            const CheckpointRequest request = {
                .tensor = tensor, .start = start, .extent = extent, .blocks = blocks, .local = rank->host};
            TRY(checkpoint_reader_get(&self->found, &request, error));
            rank_write_value(rank, rank->parameters[k].value, rank->host);
        }
    }
    return AM_OK;
}

/* Finds the parameters that are saved, and the tensors of the file. */
static AmStatus lay_out(Checkpoint *self, const bool *is_fed, AmError *error) {
    const IrRoles *roles = self->owner.context->roles;
    CheckpointManifest *form = &self->form;
    *form = (CheckpointManifest){.source = self->writer.folder,
                                 .module = plan_context_primary(self->owner.context)->sha256,
                                 .plan = arena_copy_string(&self->arena, self->owner.plan),
                                 .rank_count = self->owner.device_count};
    self->tensors = ARENA_ARRAY(&self->arena, int32_t, roles->parameter_count + 1);
    form->tensors = ARENA_ARRAY(&self->arena, CheckpointTensor, roles->parameter_count + 1);
    self->images = ARENA_ARRAY(&self->arena, CheckpointImage, self->owner.rank_count);
    /* [parameter of the module as read]: the tensor of its first layer */
    int32_t *stacks = ARENA_ARRAY(&self->arena, int32_t, roles->parameter_count + 1);
    if (self->arena.failed) return am_fail_memory(error, roles->parameter_count * 64);
    for (int32_t k = 0; k < roles->parameter_count; k++) {
        const IrShape *shape = shape_of(self, k);
        self->tensors[k] = -1;
        if (roles->parameters[k].role == IR_ROLE_DATA || is_fed[k]) continue;
        IrLayerPart part = plan_source_parameter(self->owner.context, k);
        self->tensors[k] = part.layer > 0 ? stacks[part.original] : form->tensor_count++;
        if (part.layer == 0) stacks[part.original] = self->tensors[k];
        form->tensors[self->tensors[k]] = (CheckpointTensor){.path = parameter_of(self, k)->path,
                                                             .type = shape->type,
                                                             .rank = shape->rank,
                                                             .dimensions = shape->dimensions,
                                                             .bytes = ir_shape_bytes(shape)};
    }
    for (int32_t r = 0; r < self->owner.rank_count; r++)
        TRY(checkpoint_image_open(&self->images[r], &self->arena, self->owner.context, &self->owner.ranks[r],
                                  self->tensors, error));
    return AM_OK;
}

AmStatus checkpoint_start(Checkpoint *self, const bool *is_fed, AmError *error) {
    if (!self) return AM_OK;
    if (self->has_found) TRY(restore_shards(self, error));
    TRY(lay_out(self, is_fed, error));
    TRY(parallel_start_thread(&self->worker, run_worker, self, error));
    self->has_worker = true;
    return AM_OK;
}

/* ---- In the steps ---- */

static bool is_due(const Checkpoint *self, int64_t steps) {
    int64_t every = self->owner.options->checkpoints.every;
    return every > 0 && steps > self->first_step && steps % every == 0;
}

/* Finishes the save in work, if there is one. */
static AmStatus finish_save(Checkpoint *self, AmError *error) {
    if (await_worker(self) == ITERATION_WRITTEN) TRY(checkpoint_collect(self, error));
    if (await_worker(self) == ITERATION_DONE) settle_save(self);
    return AM_OK;
}

/* Prepares the next save; the worker is idle. */
static AmStatus prepare_save(Checkpoint *self, int64_t steps, const CheckpointPosition *position,
                             AmError *error) {
    arena_free(&self->save_arena);
    self->error = (AmError){0};
    self->status = AM_OK;
    self->saving = self->form;
    self->saving.step = steps;
    self->saving.position = *position;
    self->saving.tensors = (CheckpointTensor *)arena_copy_bytes(
        &self->save_arena, self->form.tensors, sizeof *self->form.tensors * (size_t)self->form.tensor_count);
    atomic_store(&self->to_take, self->owner.rank_count);
    return self->saving.tensors ? AM_OK : am_fail_memory(error, self->form.tensor_count * 64);
}

AmStatus checkpoint_before(Checkpoint *self, int64_t steps, const CheckpointPosition *position,
                           AmError *error) {
    if (!self) return AM_OK;
    if (is_due(self, steps)) {
        TRY(finish_save(self, error));
        return prepare_save(self, steps, position, error);
    }
    pthread_mutex_lock(&self->mutex);
    bool is_done = self->iteration == ITERATION_DONE;
    pthread_mutex_unlock(&self->mutex);
    if (is_done) settle_save(self);
    return AM_OK;
}

void checkpoint_take(Checkpoint *self, int32_t r, int64_t steps) {
    if (!self || !is_due(self, steps)) return;
    checkpoint_image_take(&self->images[r]);
    if (atomic_fetch_sub(&self->to_take, 1) == 1) hand_over(self, ITERATION_FILES);
}

AmStatus checkpoint_finish(Checkpoint *self, int64_t steps, const CheckpointPosition *position,
                           AmError *error) {
    if (!self) return AM_OK;
    ProcessGroup *processes = self->owner.processes;
    TRY(finish_save(self, error));
    bool is_missing = self->saved != steps && steps > 0;
    if (processes) TRY(process_group_broadcast(processes, &is_missing, sizeof is_missing, error));
    if (is_missing) {
        TRY(prepare_save(self, steps, position, error));
        for (int32_t r = 0; r < self->owner.rank_count; r++) checkpoint_image_take(&self->images[r]);
        hand_over(self, ITERATION_FILES);
        TRY(finish_save(self, error));
    }
    AmError own = {0};
    if (self->failed >= 0)
        am_fail(&own, self->failure.code == AM_ERROR_INTERNAL ? AM_ERROR_INTERNAL : AM_ERROR_RUNTIME,
                self->failure.source, "the last checkpoint, of step %lld, could not be written: %.600s",
                (long long)self->failed, self->failure.text);
    return agree_on(self, own.code, &own, error);
}

/* ---- Several processes ---- */

int checkpoint_news(Checkpoint *self) {
    if (!self) return 0;
    pthread_mutex_lock(&self->mutex);
    int news = self->iteration == ITERATION_WRITTEN ? CHECKPOINT_WRITTEN : 0;
    pthread_mutex_unlock(&self->mutex);
    return news;
}

/* Combines the files that every process has written, in process 0. */
static AmStatus add_shares(Checkpoint *self, const ProcessPart *parts, AmError *error) {
    for (int32_t p = 1; p < self->owner.processes->count; p++) {
        CheckpointManifest share;
        const char *source = arena_format(&self->save_arena, "process %d", (int)p);
        if (!source) return am_fail_memory(error, 32);
        TRY(checkpoint_manifest_parse_share(&share, &self->save_arena, source, parts[p].bytes, parts[p].count,
                                            error));
        TRY(checkpoint_manifest_add(&self->saving, &self->save_arena, &share, error));
    }
    return AM_OK;
}

/* Collects the result of a save in all processes. A failure to write fails the save in every process; a
 * failure of a process ends the run. */
AmStatus checkpoint_collect(Checkpoint *self, AmError *error) {
    ProcessGroup *processes = self->owner.processes;
    Text text = {0};
    if (self->status == AM_OK) self->status = checkpoint_manifest_print(&text, &self->saving, &self->error);
    AmError own = self->error;
    AmError all = {0};
    self->status = agree_on(self, self->status, &own, &all);
    if (self->status != AM_OK && process_group_check(processes, NULL) != AM_OK) {
        text_free(&text);
        return process_group_check(processes, error);
    }
    self->error = all;
    if (self->status != AM_OK) {
        text_free(&text);
        hand_over(self, ITERATION_DONE);
        return AM_OK;
    }
    ProcessPart *parts = calloc((size_t)processes->count, sizeof *parts);
    AmStatus status = parts ? AM_OK : am_fail_memory(error, (int64_t)sizeof *parts * processes->count);
    if (status == AM_OK)
        status =
            process_group_gather(processes, text.data, (int64_t)text.length, MOST_SHARE_BYTES, parts, error);
    if (status == AM_OK && processes->process == 0) {
        self->status = add_shares(self, parts, &self->error);
        process_group_release_parts(processes, parts);
    }
    free(parts);
    text_free(&text);
    TRY(status);
    hand_over(self, processes->process == 0 && self->status == AM_OK ? ITERATION_COMMIT : ITERATION_DONE);
    return AM_OK;
}
