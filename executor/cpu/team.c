/* Teams: parts are claimed by one atomic word per member.
 *
 * The word of a member holds the number of the work (generation) and the next part of the member's
 * stretch. A thread claims a part by exchanging it for its successor, so that a thread that wakes
 * too late, with the description of finished work, claims nothing. The caller waits for parts that
 * were begun, never for a thread: a descheduled member costs only its help.
 *
 * Members poll for work for some 50 us, as kernels follow each other closely, and then sleep; the
 * caller does so for the last parts. With more threads than processors no thread polls.
 */
#define _GNU_SOURCE
#include "executor/cpu/team.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_THREADS = 256, SPINS = 1000, CACHE_LINE = 64 };

/* Below this a part is not worth the messages that it takes. */
static const double part_nanoseconds = 10e3;

typedef void Work(void *user, int32_t part, int32_t parts);

typedef struct Member {
    _Atomic uint64_t next; /* generation << 32 | next part of its stretch */
    _Atomic int32_t end;   /* of its stretch */
    struct Team *team;
    int32_t index;
    pthread_t thread;
    char padding[CACHE_LINE]; /* words of neighbours are in other cache lines */
} Member;

typedef struct Team {
    KernelDevice device;
    int32_t index, size, started, processors;
    int32_t spins;
    bool pins, is_pinned;
    cpu_set_t allowed; /* of the rank's own thread, before */
    pthread_t own;
    bool busy; /* of the rank's own thread: a work is in progress */
    _Atomic uint32_t generation;
    _Atomic int32_t done, sleeping;
    _Atomic bool closing, caller_sleeps;
    _Atomic(Work *) work;
    _Atomic(void *) user;
    _Atomic int32_t parts;
    pthread_mutex_t mutex;
    pthread_cond_t begun, finished;
    Member members[];
} Team;

static Team *team_of(const KernelDevice *device) {
    bool has_team = device->back_end == &kernels_cpu && device != &kernel_device_cpu;
    return has_team ? (Team *)device : NULL;
}

int32_t team_size(const KernelDevice *device) {
    const Team *team = team_of(device);
    return team ? team->size : 1;
}

int32_t team_parts(const KernelDevice *device, double nanoseconds) {
    int32_t size = team_size(device);
    double parts = nanoseconds / part_nanoseconds;
    return parts >= size ? size : parts < 2 ? 1 : (int32_t)parts;
}

/* Hints to the processor that the loop waits. */
static void relax(void) {
#if defined __x86_64__ || defined __i386__
    __builtin_ia32_pause();
#elif defined __aarch64__
    __asm__ volatile("yield");
#endif
}

static int32_t allowed_processors(cpu_set_t *set) {
    CPU_ZERO(set);
    int32_t count = sched_getaffinity(0, sizeof *set, set) == 0 ? CPU_COUNT(set) : 0;
    if (count > 0) return count;
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int32_t)online : 1;
}

AmStatus team_open(KernelDevice **device, const KernelOptions *options, AmError *error) {
    cpu_set_t allowed;
    int32_t processors = allowed_processors(&allowed);
    int32_t ranks = options->ranks_here > 0 ? options->ranks_here : 1;
    int32_t size = options->threads > 0 ? options->threads : processors / ranks;
    if (size < 1) size = 1;
    if (size > MAX_THREADS) size = MAX_THREADS;
    size_t bytes = sizeof(Team) + sizeof(Member) * (size_t)size;
    Team *team = calloc(1, bytes);
    if (!team) return am_fail_memory(error, (int64_t)bytes);
    int64_t all = (int64_t)size * ranks;
    team->device.back_end = &kernels_cpu;
    team->index = options->index;
    team->size = size;
    team->processors = processors;
    team->pins = all % processors == 0; /* each gets as many: none has more to do than another */
    team->spins = all <= processors ? SPINS : 0;
    pthread_mutex_init(&team->mutex, NULL);
    pthread_cond_init(&team->begun, NULL);
    pthread_cond_init(&team->finished, NULL);
    *device = &team->device;
    return AM_OK;
}

/* Keeps the calling thread on the processor of member `index`, counted over all ranks here. */
static void pin(const Team *team, int32_t index) {
    int32_t wanted = (int32_t)(((int64_t)team->index * team->size + index) % team->processors);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &team->allowed) || wanted-- > 0) continue;
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        pthread_setaffinity_np(pthread_self(), sizeof one, &one);
        return;
    }
}

/* Returns a part of the stretch of `owner` in work number `generation`, or -1. */
static int32_t claim(Member *owner, uint32_t generation) {
    uint64_t word = atomic_load_explicit(&owner->next, memory_order_acquire);
    while (word >> 32 == generation) {
        int32_t part = (int32_t)(uint32_t)word;
        if (part >= atomic_load_explicit(&owner->end, memory_order_acquire)) return -1;
        if (atomic_compare_exchange_weak_explicit(&owner->next, &word, word + 1, memory_order_acq_rel,
                                                  memory_order_acquire))
            return part;
    }
    return -1;
}

/* Runs parts until none of this work is left to begin: one's own stretch, then the others'. */
static void take_parts(Team *team, int32_t self, uint32_t generation) {
    Work *work = atomic_load_explicit(&team->work, memory_order_relaxed);
    void *user = atomic_load_explicit(&team->user, memory_order_relaxed);
    int32_t parts = atomic_load_explicit(&team->parts, memory_order_relaxed), part;
    for (int32_t k = 0; k < team->size; k++) {
        Member *owner = &team->members[(self + k) % team->size];
        while ((part = claim(owner, generation)) >= 0) {
            work(user, part, parts);
            if (atomic_fetch_add(&team->done, 1) + 1 < parts || !atomic_load(&team->caller_sleeps)) continue;
            pthread_mutex_lock(&team->mutex);
            pthread_cond_signal(&team->finished);
            pthread_mutex_unlock(&team->mutex);
        }
    }
}

/* Returns the number of a work after `seen`; `seen` when the team is closed. */
static uint32_t await_work(Team *team, uint32_t seen) {
    uint32_t generation = seen;
    for (int32_t k = 0; k < team->spins; k++) {
        generation = atomic_load_explicit(&team->generation, memory_order_acquire);
        if (generation != seen || atomic_load_explicit(&team->closing, memory_order_relaxed))
            return generation;
        relax();
    }
    pthread_mutex_lock(&team->mutex);
    atomic_fetch_add(&team->sleeping, 1);
    while ((generation = atomic_load(&team->generation)) == seen && !atomic_load(&team->closing))
        pthread_cond_wait(&team->begun, &team->mutex);
    atomic_fetch_sub(&team->sleeping, 1);
    pthread_mutex_unlock(&team->mutex);
    return generation;
}

/* Runs the loop of a helper thread: it waits for work and takes parts of it. */
static void *serve(void *argument) {
    Member *self = argument;
    Team *team = self->team;
    uint32_t seen = 0;
    if (team->pins) pin(team, self->index);
    for (;;) {
        uint32_t generation = await_work(team, seen);
        if (generation == seen) return NULL;
        seen = generation;
        take_parts(team, self->index, generation);
    }
}

AmStatus team_start(KernelDevice *device, AmError *error) {
    Team *team = team_of(device);
    (void)error;
    if (!team) return AM_OK;
    if (team->started > 0) { /* perhaps another thread, which takes over */
        if (team->pins) pin(team, 0);
        return AM_OK;
    }
    team->own = pthread_self();
    allowed_processors(&team->allowed);
    team->started = 1;
    for (; team->started < team->size; team->started++) {
        Member *member = &team->members[team->started];
        member->team = team;
        member->index = team->started;
        if (pthread_create(&member->thread, NULL, serve, member) != 0) break;
    }
    if (team->pins) pin(team, 0);
    team->is_pinned = team->pins;
    return AM_OK;
}

void team_close(KernelDevice *device) {
    Team *team = team_of(device);
    if (!team) return;
    pthread_mutex_lock(&team->mutex);
    atomic_store(&team->closing, true);
    pthread_cond_broadcast(&team->begun);
    pthread_mutex_unlock(&team->mutex);
    for (int32_t k = 1; k < team->started; k++) pthread_join(team->members[k].thread, NULL);
    if (team->is_pinned && pthread_equal(team->own, pthread_self()))
        pthread_setaffinity_np(pthread_self(), sizeof team->allowed, &team->allowed);
    pthread_cond_destroy(&team->finished);
    pthread_cond_destroy(&team->begun);
    pthread_mutex_destroy(&team->mutex);
    free(team);
}

static void await_parts(Team *team, int32_t parts) {
    for (int32_t k = 0; k < team->spins; k++) {
        if (atomic_load_explicit(&team->done, memory_order_acquire) == parts) return;
        relax();
    }
    pthread_mutex_lock(&team->mutex);
    atomic_store(&team->caller_sleeps, true);
    while (atomic_load(&team->done) < parts) pthread_cond_wait(&team->finished, &team->mutex);
    atomic_store(&team->caller_sleeps, false);
    pthread_mutex_unlock(&team->mutex);
}

void team_run(KernelDevice *device, Work *work, void *user, int32_t parts) {
    Team *team = team_of(device);
    if (!team || team->started < 2 || parts < 2 || team->busy) {
        for (int32_t part = 0; part < parts; part++) work(user, part, parts);
        return;
    }
    team->busy = true;
    uint32_t generation = atomic_load_explicit(&team->generation, memory_order_relaxed) + 1;
    atomic_store_explicit(&team->work, work, memory_order_relaxed);
    atomic_store_explicit(&team->user, user, memory_order_relaxed);
    atomic_store_explicit(&team->parts, parts, memory_order_relaxed);
    atomic_store_explicit(&team->done, 0, memory_order_relaxed);
    for (int32_t k = 0; k < team->size; k++) {
        Member *member = &team->members[k];
        uint64_t tag = (uint64_t)generation << 32, first = (uint64_t)((int64_t)parts * k / team->size);
        /* A thread with an older description finds its stretch closed before it can see another
         * end. */
        atomic_store_explicit(&member->next, tag | INT32_MAX, memory_order_relaxed);
        atomic_store_explicit(&member->end, (int32_t)((int64_t)parts * (k + 1) / team->size),
                              memory_order_release);
        atomic_store_explicit(&member->next, tag | first, memory_order_release);
    }
    atomic_store(&team->generation, generation);
    if (atomic_load(&team->sleeping) > 0) {
        pthread_mutex_lock(&team->mutex);
        pthread_cond_broadcast(&team->begun);
        pthread_mutex_unlock(&team->mutex);
    }
    take_parts(team, 0, generation);
    await_parts(team, parts);
    team->busy = false;
}
