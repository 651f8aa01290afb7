/* Stand-in for libnccl.so.2: communicators between threads and between processes,
 * on the memory of the stand-in driver.
 *
 * A unique id names a file. Its members map it: a line for each member with two
 * counters, and two areas for each member's data. A batch (the calls of one group,
 * or one call) is queued on its stream. First a member copies its operands into
 * its area. Collectives: it counts `arrived` up; when all have
 * arrived it computes its own results from the areas and counts `read` up; no
 * member writes its area again before all have read. Reductions go in the order of
 * the ranks. Sends and receives have areas apart, and only their two members rendezvous.
 *
 * A communicator that does not block returns ncclInProgress for a few polls after
 * its start. A new thread launches each of its groups, as in version 2.23 and
 * later; the group is in progress until then. With STAND_IN_NCCL_LAUNCH=caller the
 * calling thread does, as in older versions, and only the first group is in
 * progress for a few polls. Calls during progress are refused. The last abort of a
 * group in a process waits for the end of the graphs that hold its work, as in the
 * library. Refused are host memory, sends and receives of 0 bytes, and two ranks of
 * a process on one device unless CUDA_MODULE_LOADING was EAGER at cuInit().
 * STAND_IN_FAIL works on every function; on ncclCommGetAsyncError it sets the state.
 * STAND_IN_NCCL_VERSION (23200) is what ncclGetVersion says. Rank
 * STAND_IN_NCCL_ABSENT of a group never becomes present to the others; rank
 * STAND_IN_NCCL_SILENT never takes part in a batch; from batch STAND_IN_NCCL_LOST
 * (1: the first) on a communicator has lost another process.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#pragma GCC visibility push(default)
#include <nccl.h>
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);
#pragma GCC visibility pop

#include "executor/array/scalar64.h"
#include "tests/cuda/stand_in/stand_in.h"

enum { MOST_MEMBERS = 64, MOST_CALLS = 1024, AREA_BYTES = 32 << 20, POLLS = 3, PATH_BYTES = 100 };

typedef struct Line {
    _Atomic uint64_t present, arrived, read;
    char unused[104]; /* a cache line of its own */
} Line;

/* posted, taken [from][to]: batches with sends, and of these the ones whose receiver has read them. */
typedef struct Board {
    Line lines[MOST_MEMBERS];
    _Atomic uint64_t posted[MOST_MEMBERS][MOST_MEMBERS], taken[MOST_MEMBERS][MOST_MEMBERS];
} Board;

typedef enum Kind { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, REDUCE, SEND, RECEIVE } Kind;

typedef struct Call {
    Kind kind;
    const void *send; /* NULL: gives nothing */
    void *receive;    /* NULL: gets nothing */
    uint64_t send_bytes, receive_bytes, count;
    ncclDataType_t type;
    ncclRedOp_t reduction;
    int32_t peer;    /* or the root */
    uint64_t offset; /* of its operand, in the area */
} Call;

/* Begins an area. */
typedef struct Notice {
    int32_t call_count;
    Call calls[MOST_CALLS];
} Notice;

struct ncclComm {
    char path[PATH_BYTES];
    int32_t rank, count;
    bool blocking, aborted, used;
    bool launching; /* a thread launches a group */
    CUcontext context;
    int32_t polls; /* that still say "in progress" */
    pthread_mutex_t mutex;
    char *memory; /* the board, then an area for each member */
    uint64_t round, batches_done;
    ncclResult_t error;
    struct ncclComm *next;
};

typedef struct Batch {
    struct ncclComm *communicator;
    bool here, met;                    /* for this run: has arrived, has finished the collectives */
    bool posted, awaits[MOST_MEMBERS]; /* the sends are posted; to these, and not taken yet */
    bool receives[MOST_MEMBERS];       /* from these, and not received yet */
    struct Batch *next;
    int32_t call_count, pair_count; /* pairs: sends and receives */
    Call calls[];
} Batch;

/* The calls of this thread since ncclGroupStart(). */
typedef struct Pending {
    struct ncclComm *communicator;
    cudaStream_t stream;
    Call call;
} Pending;

static _Thread_local Pending pending[MOST_CALLS];
static _Thread_local int32_t pending_count, depth;
static pthread_mutex_t list_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct ncclComm *communicators; /* all that ever were: queued work may name them */
static Batch *batches;                 /* likewise */
static int64_t ids;

static int enter(const char *call) {
    const StandIn *stand = stand_in();
    return stand ? stand->enter(call) : 0;
}

#define ENTER(call)                                       \
    do {                                                  \
        int failure_ = enter(call);                       \
        if (failure_ != 0) return (ncclResult_t)failure_; \
    } while (0)

/* Returns whether the environment makes this rank fail. */
static bool is_chosen(const char *variable, int32_t rank) {
    const char *text = getenv(variable);
    return text && atoi(text) == rank;
}

/* A member has two areas: for collectives, and then for sends. */
static size_t area_offset(int32_t member) {
    size_t board = (sizeof(Board) + 4095) / 4096 * 4096;
    return board + (size_t)member * 2 * AREA_BYTES;
}

static Board *board_of(const struct ncclComm *self) {
    return (Board *)(void *)self->memory;
}

static Line *line_of(const struct ncclComm *self, int32_t member) {
    return &board_of(self)->lines[member];
}

static bool is_pair(Kind kind) {
    return kind == SEND || kind == RECEIVE;
}

static char *area_of(const struct ncclComm *self, int32_t member, Kind kind) {
    return self->memory + area_offset(member) + (is_pair(kind) ? AREA_BYTES : 0);
}

static const struct {
    ncclDataType_t type;
    Dtype element;
} types[] = {
    {ncclInt8, DTYPE_S8},     {ncclUint8, DTYPE_U8},    {ncclInt32, DTYPE_S32},   {ncclUint32, DTYPE_U32},
    {ncclInt64, DTYPE_S64},   {ncclUint64, DTYPE_U64},  {ncclFloat16, DTYPE_F16}, {ncclBfloat16, DTYPE_BF16},
    {ncclFloat32, DTYPE_F32}, {ncclFloat64, DTYPE_F64},
};

static Dtype element_of(ncclDataType_t type) {
    for (size_t k = 0; k < sizeof types / sizeof *types; k++)
        if (types[k].type == type) return types[k].element;
    return DTYPE_INVALID;
}

/* The n-th call of a member that `is_like` the model: same kind, and for sends the same peer. */
static const Call *find_call(const Notice *notice, Kind kind, int32_t peer, int32_t n) {
    for (int32_t k = 0; k < notice->call_count; k++) {
        const Call *call = &notice->calls[k];
        if (call->kind == kind && (kind != SEND || call->peer == peer) && n-- == 0) return call;
    }
    return NULL;
}

static const Notice *notice_of(const struct ncclComm *self, int32_t member, Kind kind) {
    return (const Notice *)(const void *)area_of(self, member, kind);
}

/* Call `at` of this batch is the how-many-th of its kind (of receives: from its peer)? */
static int32_t number_of(const Batch *batch, int32_t at) {
    int32_t n = 0;
    for (int32_t k = 0; k < at; k++)
        n += batch->calls[k].kind == batch->calls[at].kind &&
             (batch->calls[at].kind != RECEIVE || batch->calls[k].peer == batch->calls[at].peer);
    return n;
}

/* The arguments of a member for the same call; NULL, and an error of the communicator, where it made none. */
static const Call *given_by(const Batch *batch, int32_t at, int32_t member) {
    struct ncclComm *self = batch->communicator;
    const Call *own = &batch->calls[at];
    bool receives = own->kind == RECEIVE;
    const Call *given = find_call(notice_of(self, member, own->kind), receives ? SEND : own->kind, self->rank,
                                  number_of(batch, at));
    if (given && given->count == own->count && given->type == own->type &&
        (receives || (given->reduction == own->reduction && given->peer == own->peer)))
        return given;
    self->error = ncclInvalidUsage;
    return NULL;
}

static void reduce(const Batch *batch, int32_t at, uint64_t first, uint64_t count) {
    static const SbpReduction reductions[] = {
        [ncclSum] = SBP_ADD, [ncclProd] = SBP_MULTIPLY, [ncclMax] = SBP_MAX, [ncclMin] = SBP_MIN};
    const Call *own = &batch->calls[at];
    Dtype type = element_of(own->type);
    uint64_t bytes = (uint64_t)dtype_bytes(type);
    Scalar64 sum[SCALAR64_RUN], run[SCALAR64_RUN];
    for (uint64_t done = 0; done < count; done += SCALAR64_RUN) {
        int64_t n = (int64_t)(count - done < SCALAR64_RUN ? count - done : SCALAR64_RUN);
        for (int32_t m = 0; m < batch->communicator->count; m++) {
            const Call *given = given_by(batch, at, m);
            if (!given) return;
            scalar64_load(m == 0 ? sum : run,
                          area_of(batch->communicator, m, own->kind) + given->offset + (first + done) * bytes,
                          type, n, 1);
            if (m > 0) scalar64_fold(sum, run, scalar64_kind(type), reductions[own->reduction], n);
        }
        scalar64_store((char *)own->receive + done * bytes, type, sum, scalar64_kind(type), n, 1);
    }
}

static void copy_from(const Batch *batch, int32_t at, int32_t member, void *to) {
    const Call *given = given_by(batch, at, member);
    if (!given) return;
    memcpy(to, area_of(batch->communicator, member, given->kind) + given->offset, given->send_bytes);
}

static void finish_call(const Batch *batch, int32_t at) {
    const Call *own = &batch->calls[at];
    int32_t rank = batch->communicator->rank;
    if (!own->receive) return;
    switch (own->kind) {
    case ALL_REDUCE: reduce(batch, at, 0, own->count); break;
    case REDUCE_SCATTER: reduce(batch, at, (uint64_t)rank * own->count, own->count); break;
    case REDUCE: reduce(batch, at, 0, own->count); break;
    case ALL_GATHER:
        for (int32_t m = 0; m < batch->communicator->count; m++)
            copy_from(batch, at, m, (char *)own->receive + (uint64_t)m * own->send_bytes);
        break;
    case RECEIVE: copy_from(batch, at, own->peer, own->receive); break;
    case SEND: break;
    }
}

/* Returns whether the counters of all members have reached `round`. */
static bool all_have(const struct ncclComm *self, size_t counter, uint64_t round) {
    for (int32_t m = 0; m < self->count; m++) {
        const char *line = (const char *)line_of(self, m);
        if (atomic_load((const _Atomic uint64_t *)(const void *)(line + counter)) < round) return false;
    }
    return true;
}

/* Copies what this member gives in collectives, or in sends, into the area for it. */
static void give(const Batch *batch, Kind kind) {
    char *area = area_of(batch->communicator, batch->communicator->rank, kind);
    Notice *notice = (Notice *)(void *)area;
    notice->call_count = 0;
    for (int32_t k = 0; k < batch->call_count; k++) {
        const Call *call = &batch->calls[k];
        if (is_pair(call->kind) != is_pair(kind)) continue;
        if (call->send) memcpy(area + call->offset, call->send, call->send_bytes);
        notice->calls[notice->call_count++] = *call;
    }
}

/* The collectives of a batch: true when they are done. */
static bool rendezvous(Batch *batch) {
    struct ncclComm *self = batch->communicator;
    if (batch->met || batch->pair_count == batch->call_count) return true;
    if (!batch->here) {
        if (!all_have(self, offsetof(Line, read), self->round)) return false;
        give(batch, ALL_REDUCE);
        atomic_store(&line_of(self, self->rank)->arrived, ++self->round);
        batch->here = true;
    }
    if (!all_have(self, offsetof(Line, arrived), self->round)) return false;
    for (int32_t k = 0; k < batch->call_count; k++)
        if (!is_pair(batch->calls[k].kind)) finish_call(batch, k);
    atomic_store(&line_of(self, self->rank)->read, self->round);
    return batch->met = true;
}

static void post(Batch *batch) {
    struct ncclComm *self = batch->communicator;
    Board *board = board_of(self);
    give(batch, SEND);
    for (int32_t k = 0; k < batch->call_count; k++) {
        const Call *call = &batch->calls[k];
        if (call->kind == SEND && !batch->awaits[call->peer]) {
            batch->awaits[call->peer] = true;
            atomic_fetch_add(&board->posted[self->rank][call->peer], 1);
        }
        if (call->kind == RECEIVE) batch->receives[call->peer] = true;
    }
    batch->posted = true;
}

/* The sends and receives of a batch: true when all have been taken and received. */
static bool exchange(Batch *batch) {
    struct ncclComm *self = batch->communicator;
    Board *board = board_of(self);
    bool done = true;
    if (batch->pair_count == 0) return true;
    if (!batch->posted) post(batch);
    for (int32_t m = 0; m < self->count; m++) {
        uint64_t taken = atomic_load(&board->taken[m][self->rank]);
        if (batch->receives[m] && atomic_load(&board->posted[m][self->rank]) > taken) {
            for (int32_t k = 0; k < batch->call_count; k++)
                if (batch->calls[k].kind == RECEIVE && batch->calls[k].peer == m) finish_call(batch, k);
            atomic_store(&board->taken[m][self->rank], taken + 1);
            batch->receives[m] = false;
        }
        if (batch->awaits[m] &&
            atomic_load(&board->taken[self->rank][m]) == atomic_load(&board->posted[self->rank][m]))
            batch->awaits[m] = false;
        done = done && !batch->receives[m] && !batch->awaits[m];
    }
    return done;
}

/* One step of a batch: true when it is done. */
static bool advance(Batch *batch) {
    struct ncclComm *self = batch->communicator;
    bool done = self->aborted || (rendezvous(batch) & exchange(batch));
    if (!done) return false;
    batch->here = batch->met = batch->posted = false;
    memset(batch->awaits, 0, sizeof batch->awaits);
    memset(batch->receives, 0, sizeof batch->receives);
    self->batches_done++;
    return true;
}

static bool run_batch(void *argument) {
    Batch *batch = *(Batch **)argument;
    pthread_mutex_lock(&batch->communicator->mutex);
    struct ncclComm *self = batch->communicator;
    const char *lost = getenv("STAND_IN_NCCL_LOST");
    bool silent = is_chosen("STAND_IN_NCCL_SILENT", self->rank);
    if (lost && self->batches_done + 1 >= (uint64_t)atoi(lost)) {
        self->error = ncclRemoteError;
        silent = true;
    }
    bool done = (!silent || self->aborted) && advance(batch);
    pthread_mutex_unlock(&batch->communicator->mutex);
    return done;
}

/* The same address for all communicators of one group in this process. */
static const void *rendezvous_of(const struct ncclComm *self) {
    const void *rendezvous = NULL;
    pthread_mutex_lock(&list_mutex);
    for (const struct ncclComm *other = communicators; other; other = other->next)
        if (strcmp(other->path, self->path) == 0) rendezvous = other;
    pthread_mutex_unlock(&list_mutex);
    return rendezvous;
}

/* Calls on their way to the streams. */
typedef struct Group {
    CUcontext context; /* of the thread that made them */
    int32_t count;
    Pending calls[];
} Group;

/* Queues a group's calls of one communicator. A batch is never released: a graph may hold it. */
static ncclResult_t queue_batch(struct ncclComm *self, const Group *group, cudaStream_t stream) {
    const StandIn *stand = stand_in();
    uint64_t offsets[2] = {(sizeof(Notice) + 63) / 64 * 64, (sizeof(Notice) + 63) / 64 * 64};
    Batch *batch = calloc(1, sizeof *batch + sizeof(Call) * (size_t)group->count);
    if (!batch || !stand) {
        free(batch);
        return ncclSystemError;
    }
    batch->communicator = self;
    for (int32_t k = 0; k < group->count; k++) {
        if (group->calls[k].communicator != self) continue;
        Call *call = &batch->calls[batch->call_count++];
        *call = group->calls[k].call;
        uint64_t *offset = &offsets[is_pair(call->kind)];
        call->offset = *offset;
        if (call->send) *offset += (call->send_bytes + 63) / 64 * 64;
        batch->pair_count += is_pair(call->kind);
    }
    if (offsets[0] > AREA_BYTES || offsets[1] > AREA_BYTES) {
        free(batch);
        return ncclInvalidUsage;
    }
    pthread_mutex_lock(&list_mutex);
    batch->next = batches;
    batches = batch;
    pthread_mutex_unlock(&list_mutex);
    CUresult result =
        stand->enqueue((CUstream)stream, "nccl", run_batch, &batch, sizeof batch, rendezvous_of(self));
    return result == CUDA_SUCCESS ? ncclSuccess : ncclUnhandledCudaError;
}

/* Calls number k is the first one of its communicator. */
static bool is_first(const Group *group, int32_t k) {
    for (int32_t j = 0; j < k; j++)
        if (group->calls[j].communicator == group->calls[k].communicator) return false;
    return true;
}

static ncclResult_t launch(const Group *group) {
    ncclResult_t result = ncclSuccess;
    for (int32_t k = 0; k < group->count && result == ncclSuccess; k++)
        if (is_first(group, k))
            result = queue_batch(group->calls[k].communicator, group, group->calls[k].stream);
    return result;
}

/* A function of the driver that is loaded. */
static void *driver_function(const char *name) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    return driver ? dlsym(driver, name) : NULL;
}

static CUcontext current_context(void) {
    CUresult (*get)(CUcontext *);
    CUcontext context = NULL;
    void *symbol = driver_function("cuCtxGetCurrent");
    memcpy(&get, &symbol, sizeof get);
    return symbol && get(&context) == CUDA_SUCCESS ? context : NULL;
}

/* The caller has gone on long since. */
static void *launch_in_thread(void *argument) {
    Group *group = argument;
    CUresult (*set)(CUcontext);
    void *symbol = driver_function("cuCtxSetCurrent");
    memcpy(&set, &symbol, sizeof set);
    nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    ncclResult_t result = set(group->context) == CUDA_SUCCESS ? launch(group) : ncclUnhandledCudaError;
    for (int32_t k = 0; k < group->count; k++) {
        struct ncclComm *self = group->calls[k].communicator;
        if (!is_first(group, k)) continue;
        pthread_mutex_lock(&self->mutex);
        if (result != ncclSuccess) self->error = result;
        self->launching = false;
        pthread_mutex_unlock(&self->mutex);
    }
    free(group);
    return NULL;
}

static ncclResult_t start_thread(Group *group) {
    pthread_t thread;
    for (int32_t k = 0; k < group->count; k++) {
        struct ncclComm *self = group->calls[k].communicator;
        pthread_mutex_lock(&self->mutex);
        self->launching = true;
        pthread_mutex_unlock(&self->mutex);
    }
    if (pthread_create(&thread, NULL, launch_in_thread, group) != 0) abort();
    pthread_detach(thread);
    return ncclInProgress;
}

/* Launches what this thread has begun. */
static ncclResult_t flush(void) {
    const char *place = getenv("STAND_IN_NCCL_LAUNCH");
    if (pending_count == 0) return ncclSuccess;
    Group *group = malloc(sizeof *group + sizeof *pending * (size_t)pending_count);
    if (!group) return ncclSystemError;
    *group = (Group){.context = current_context(), .count = pending_count};
    memcpy(group->calls, pending, sizeof *pending * (size_t)pending_count);
    struct ncclComm *self = pending[0].communicator;
    pending_count = 0;
    if (!self->blocking && (!place || strcmp(place, "caller") != 0)) return start_thread(group);
    ncclResult_t result = launch(group);
    if (result == ncclSuccess && !self->blocking && !self->used) self->polls = POLLS;
    self->used = true;
    free(group);
    return result == ncclSuccess && self->polls > 0 ? ncclInProgress : result;
}

static ncclResult_t add(struct ncclComm *self, cudaStream_t stream, Call call) {
    const StandIn *stand = stand_in();
    if (!self || self->aborted || pending_count == MOST_CALLS) return ncclInvalidArgument;
    pthread_mutex_lock(&self->mutex);
    bool busy = self->polls > 0 || self->launching;
    pthread_mutex_unlock(&self->mutex);
    if (busy) return ncclInvalidArgument;
    bool reduces = call.kind == ALL_REDUCE || call.kind == REDUCE_SCATTER || call.kind == REDUCE;
    if (element_of(call.type) == DTYPE_INVALID || (reduces && (unsigned)call.reduction > ncclMin) ||
        call.peer < 0 || call.peer >= self->count || (is_pair(call.kind) && call.count == 0))
        return ncclInvalidArgument;
    if ((call.send && !stand->is_device(call.send, call.send_bytes)) ||
        (call.receive && !stand->is_device(call.receive, call.receive_bytes)))
        return ncclInvalidArgument;
    pending[pending_count++] = (Pending){self, stream, call};
    return depth == 0 ? flush() : ncclSuccess;
}

ncclResult_t ncclGetVersion(int *version) {
    ENTER("ncclGetVersion");
    const char *text = getenv("STAND_IN_NCCL_VERSION");
    *version = text ? atoi(text) : 23200;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result) {
    static const char *const words[] = {
        "no error",         "unhandled CUDA error", "system error",          "internal error",
        "invalid argument", "invalid usage",        "remote process exited", "in progress"};
    return (unsigned)result < ncclNumResults ? words[result] : "unknown result code";
}

static void path_of(char *path, int64_t id) {
    const char *folder = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    snprintf(path, PATH_BYTES, "%s/automap-nccl-%ld-%lld", folder, (long)getpid(), (long long)id);
}

/* Files of groups that never came together. */
__attribute__((destructor)) static void remove_files(void) {
    char path[PATH_BYTES];
    for (int64_t id = 0; id < ids; id++) {
        path_of(path, id);
        unlink(path);
    }
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    ENTER("ncclGetUniqueId");
    memset(id, 0, sizeof *id);
    pthread_mutex_lock(&list_mutex);
    path_of(id->internal, ids++);
    pthread_mutex_unlock(&list_mutex);
    int file = open(id->internal, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file < 0) return ncclSystemError;
    bool sized = ftruncate(file, (off_t)area_offset(MOST_MEMBERS)) == 0;
    close(file);
    return sized ? ncclSuccess : ncclSystemError;
}

static char *map_board(const char *path, int32_t count) {
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) return NULL;
    void *memory = mmap(NULL, area_offset(count), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return memory == MAP_FAILED ? NULL : memory;
}

static bool all_are_present(const struct ncclComm *self) {
    if (!all_have(self, offsetof(Line, present), 1)) return false;
    if (self->rank == 0) unlink(self->path);
    return true;
}

/* Returns whether another rank of the group in this process is on the same device. */
static bool shares_device(const struct ncclComm *self) {
    bool shares = false;
    pthread_mutex_lock(&list_mutex);
    for (const struct ncclComm *other = communicators; other; other = other->next)
        shares = shares ||
                 (!other->aborted && other->context == self->context && strcmp(other->path, self->path) == 0);
    pthread_mutex_unlock(&list_mutex);
    return shares;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *result, int count, ncclUniqueId id, int rank,
                                    ncclConfig_t *config) {
    ENTER("ncclCommInitRankConfig");
    if (count < 1 || count > MOST_MEMBERS || rank < 0 || rank >= count) return ncclInvalidArgument;
    struct ncclComm *self = calloc(1, sizeof *self);
    if (!self) return ncclSystemError;
    memcpy(self->path, id.internal, PATH_BYTES - 1);
    self->memory = map_board(self->path, count);
    if (!self->memory) {
        free(self);
        return ncclSystemError;
    }
    self->rank = rank;
    self->count = count;
    self->context = current_context();
    if (shares_device(self) && strcmp(stand_in()->loading(), "EAGER") != 0) {
        munmap(self->memory, area_offset(count));
        free(self);
        return ncclInvalidUsage;
    }
    self->blocking = !config || config->blocking != 0;
    self->polls = self->blocking ? 0 : POLLS;
    pthread_mutex_init(&self->mutex, NULL);
    pthread_mutex_lock(&list_mutex);
    self->next = communicators;
    communicators = self;
    pthread_mutex_unlock(&list_mutex);
    if (!is_chosen("STAND_IN_NCCL_ABSENT", rank)) atomic_store(&line_of(self, rank)->present, 1);
    while (self->blocking && !all_are_present(self)) nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    *result = self;
    return self->blocking ? ncclSuccess : ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t self, ncclResult_t *state) {
    int failure = enter("ncclCommGetAsyncError");
    *state = failure != 0 ? (ncclResult_t)failure : ncclSuccess;
    if (failure != 0) return ncclSuccess;
    pthread_mutex_lock(&self->mutex);
    if (self->aborted) *state = ncclInvalidUsage;
    else if (self->error != ncclSuccess) *state = self->error;
    else if (self->launching) *state = ncclInProgress;
    else if (self->polls > 0) {
        *state = ncclInProgress;
        if (self->polls > 1 || all_are_present(self)) self->polls--;
    }
    pthread_mutex_unlock(&self->mutex);
    return ncclSuccess;
}

/* Returns whether all communicators of the group in this process are aborted. */
static bool is_last(const struct ncclComm *self) {
    bool last = true;
    pthread_mutex_lock(&list_mutex);
    for (struct ncclComm *other = communicators; other; other = other->next) {
        pthread_mutex_lock(&other->mutex);
        last = last && (other->aborted || strcmp(other->path, self->path) != 0);
        pthread_mutex_unlock(&other->mutex);
    }
    pthread_mutex_unlock(&list_mutex);
    return last;
}

ncclResult_t ncclCommAbort(ncclComm_t self) {
    ENTER("ncclCommAbort");
    pthread_mutex_lock(&self->mutex);
    while (self->launching) {
        pthread_mutex_unlock(&self->mutex);
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
        pthread_mutex_lock(&self->mutex);
    }
    bool twice = self->aborted;
    if (!twice) {
        self->aborted = true;
        munmap(self->memory, area_offset(self->count));
        self->memory = NULL;
        unlink(self->path);
    }
    pthread_mutex_unlock(&self->mutex);
    while (!twice && is_last(self) && stand_in()->is_held(rendezvous_of(self)))
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    return twice ? ncclInvalidUsage : ncclSuccess;
}

ncclResult_t ncclGroupStart(void) {
    ENTER("ncclGroupStart");
    depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void) {
    if (depth == 0) return ncclInvalidUsage;
    depth--;
    int failure = enter("ncclGroupEnd");
    if (failure != 0) {
        pending_count = 0;
        return (ncclResult_t)failure;
    }
    return depth == 0 ? flush() : ncclSuccess;
}

static uint64_t bytes_of(uint64_t count, ncclDataType_t type) {
    return count * (uint64_t)dtype_bytes(element_of(type));
}

ncclResult_t ncclAllReduce(const void *send, void *receive, size_t count, ncclDataType_t type,
                           ncclRedOp_t reduction, ncclComm_t self, cudaStream_t stream) {
    ENTER("ncclAllReduce");
    uint64_t bytes = bytes_of(count, type);
    return add(self, stream, (Call){ALL_REDUCE, send, receive, bytes, bytes, count, type, reduction, 0, 0});
}

ncclResult_t ncclAllGather(const void *send, void *receive, size_t count, ncclDataType_t type,
                           ncclComm_t self, cudaStream_t stream) {
    ENTER("ncclAllGather");
    uint64_t bytes = bytes_of(count, type);
    return add(self, stream,
               (Call){ALL_GATHER, send, receive, bytes, bytes * (uint64_t)self->count, count, type, 0, 0, 0});
}

ncclResult_t ncclReduceScatter(const void *send, void *receive, size_t count, ncclDataType_t type,
                               ncclRedOp_t reduction, ncclComm_t self, cudaStream_t stream) {
    ENTER("ncclReduceScatter");
    uint64_t bytes = bytes_of(count, type);
    return add(self, stream,
               (Call){REDUCE_SCATTER, send, receive, bytes * (uint64_t)self->count, bytes, count, type,
                      reduction, 0, 0});
}

ncclResult_t ncclReduce(const void *send, void *receive, size_t count, ncclDataType_t type,
                        ncclRedOp_t reduction, int root, ncclComm_t self, cudaStream_t stream) {
    ENTER("ncclReduce");
    uint64_t bytes = bytes_of(count, type);
    void *own = self->rank == root ? receive : NULL;
    return add(self, stream, (Call){REDUCE, send, own, bytes, bytes, count, type, reduction, root, 0});
}

ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer, ncclComm_t self,
                      cudaStream_t stream) {
    ENTER("ncclSend");
    return add(self, stream, (Call){SEND, send, NULL, bytes_of(count, type), 0, count, type, 0, peer, 0});
}

ncclResult_t ncclRecv(void *receive, size_t count, ncclDataType_t type, int peer, ncclComm_t self,
                      cudaStream_t stream) {
    ENTER("ncclRecv");
    return add(self, stream,
               (Call){RECEIVE, NULL, receive, 0, bytes_of(count, type), count, type, 0, peer, 0});
}
