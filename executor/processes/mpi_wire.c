/* The one file that includes mpi.h.
 *
 * MPI is started as for one thread at a time (MPI_THREAD_SERIALIZED), which every
 * implementation has, and a mutex keeps to it: no call in here waits for another
 * process but those that start and end MPI. Errors are returned, not fatal.
 */
#include "executor/processes/mpi_wire.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/system/clock.h"

#ifdef AUTOMAP_HAVE_MPI

#include <assert.h>
#include <mpi.h>

#define TEXT_OF(macro)       TEXT_OF_VALUE(macro)
#define TEXT_OF_VALUE(value) #value

#if defined(OMPI_MAJOR_VERSION)
#define NAME \
    "Open MPI " TEXT_OF(OMPI_MAJOR_VERSION) "." TEXT_OF(OMPI_MINOR_VERSION) "." TEXT_OF(OMPI_RELEASE_VERSION)
#elif defined(MPICH_VERSION)
#define NAME "MPICH " MPICH_VERSION
#else
#define NAME "MPI " TEXT_OF(MPI_VERSION) "." TEXT_OF(MPI_SUBVERSION)
#endif

static_assert(sizeof(MPI_Request) <= sizeof(uintptr_t), "a request fits into MpiRequest");

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static bool started;

const char *mpi_wire_name(void) {
    return NAME;
}

bool mpi_wire_is_started(void) {
    return started;
}

static AmStatus check_code(int code, const char *what, AmError *error) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    if (code == MPI_SUCCESS) return AM_OK;
    MPI_Error_string(code, text, &length);
    return am_fail(error, AM_ERROR_RUNTIME, "", "MPI: %s: %.300s", what, text);
}

AmStatus mpi_wire_start(int32_t process, int32_t count, AmError *error) {
    int level, is_started = 0, own_process = 0, own_count = 1;
    MPI_Initialized(&is_started);
    if (is_started && !started)
        return am_fail(error, AM_ERROR_USAGE, "", "MPI is in use already: one run per process");
    if (!is_started && MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level) != MPI_SUCCESS)
        return am_fail(error, AM_ERROR_RUNTIME, "", "MPI cannot be started");
    started = true;
    if (!is_started) {
        /* MPICH's launcher reports a lost process by SIGUSR1; MPICH then queries the launcher and ends with
         * it. The processes detect failures themselves. */
        struct sigaction action;
        if (sigaction(SIGUSR1, NULL, &action) == 0 && action.sa_handler != SIG_DFL) signal(SIGUSR1, SIG_IGN);
    }
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &own_process);
    MPI_Comm_size(MPI_COMM_WORLD, &own_count);
    if (own_process == process && own_count == count) return AM_OK;
    return am_fail(error, AM_ERROR_USAGE, "",
                   "this is process %d of %d to its launcher, and process %d of %d to %s, which this program "
                   "was built with: start it by the mpirun of this MPI",
                   (int)process, (int)count, own_process, own_count, NAME);
}

static void sleep_briefly(void) {
    nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
}

AmStatus mpi_wire_broadcast(void *bytes, int32_t count, double seconds, AmError *error) {
    static const char what[] = "broadcast of process 0's address";
    MPI_Request request;
    double deadline = clock_seconds() + seconds;
    int done = 0;
    TRY(check_code(MPI_Ibcast(bytes, count, MPI_BYTE, 0, MPI_COMM_WORLD, &request), what, error));
    while (!done) {
        TRY(check_code(MPI_Test(&request, &done, MPI_STATUS_IGNORE), what, error));
        if (done) break;
        if (clock_seconds() > deadline)
            return am_fail(error, AM_ERROR_RUNTIME, "", "MPI: %s has not ended after %g s", what, seconds);
        sleep_briefly();
    }
    return AM_OK;
}

int32_t mpi_wire_most_tag(void) {
    int *most, found = 0;
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &most, &found);
    return found ? *most : 32767;
}

static void keep_request(MpiRequest *request, MPI_Request own) {
    request->handle = 0;
    memcpy(&request->handle, &own, sizeof own);
    request->active = true;
}

AmStatus mpi_wire_send(MpiRequest *request, const void *bytes, int64_t count, int32_t process, int32_t tag,
                       AmError *error) {
    MPI_Request own = MPI_REQUEST_NULL;
    pthread_mutex_lock(&mutex);
    int code = MPI_Isend(bytes, (int)count, MPI_BYTE, process, tag, MPI_COMM_WORLD, &own);
    pthread_mutex_unlock(&mutex);
    TRY(check_code(code, "sending", error));
    keep_request(request, own);
    return AM_OK;
}

AmStatus mpi_wire_receive(MpiRequest *request, void *bytes, int64_t count, int32_t process, int32_t tag,
                          AmError *error) {
    MPI_Request own = MPI_REQUEST_NULL;
    pthread_mutex_lock(&mutex);
    int code = MPI_Irecv(bytes, (int)count, MPI_BYTE, process, tag, MPI_COMM_WORLD, &own);
    pthread_mutex_unlock(&mutex);
    TRY(check_code(code, "receiving", error));
    keep_request(request, own);
    return AM_OK;
}

AmStatus mpi_wire_test(MpiRequest *request, bool *done, AmError *error) {
    MPI_Request own;
    int is_done = 1;
    *done = true;
    if (!request->active) return AM_OK;
    memcpy(&own, &request->handle, sizeof own);
    pthread_mutex_lock(&mutex);
    int code = MPI_Test(&own, &is_done, MPI_STATUS_IGNORE);
    pthread_mutex_unlock(&mutex);
    keep_request(request, own);
    *done = is_done;
    request->active = !is_done && code == MPI_SUCCESS;
    return check_code(code, "a message", error);
}

void mpi_wire_cancel(MpiRequest *request) {
    MPI_Request own;
    if (!request->active) return;
    memcpy(&own, &request->handle, sizeof own);
    pthread_mutex_lock(&mutex);
    MPI_Cancel(&own);
    pthread_mutex_unlock(&mutex);
}

void mpi_wire_progress(void) {
    int found;
    pthread_mutex_lock(&mutex);
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_SELF, &found, MPI_STATUS_IGNORE);
    pthread_mutex_unlock(&mutex);
}

/* Watches over MPI's end, from a thread of its own. */
typedef struct Watch {
    atomic_bool ended;
    double deadline;
    void (*give_up)(void);
} Watch;

static void *watch_end(void *argument) {
    Watch *watch = argument;
    while (!atomic_load(&watch->ended)) {
        if (clock_seconds() > watch->deadline) watch->give_up();
        sleep_briefly();
    }
    return NULL;
}

bool mpi_wire_end(bool orderly, double seconds, void (*give_up)(void)) {
    Watch watch = {.deadline = clock_seconds() + seconds, .give_up = give_up};
    pthread_t thread;
    if (!started) return true;
    atomic_init(&watch.ended, false);
    if (!orderly || pthread_create(&thread, NULL, watch_end, &watch) != 0) return false;
    MPI_Finalize();
    atomic_store(&watch.ended, true);
    pthread_join(thread, NULL);
    started = false;
    return true;
}

#else

static AmStatus refuse_mpi(AmError *error) {
    return am_fail(error, AM_ERROR_USAGE, "", "this program was built without MPI");
}

const char *mpi_wire_name(void) {
    return NULL;
}

AmStatus mpi_wire_start(int32_t process, int32_t count, AmError *error) {
    (void)process, (void)count;
    return refuse_mpi(error);
}

bool mpi_wire_is_started(void) {
    return false;
}

AmStatus mpi_wire_broadcast(void *bytes, int32_t count, double seconds, AmError *error) {
    (void)bytes, (void)count, (void)seconds;
    return refuse_mpi(error);
}

int32_t mpi_wire_most_tag(void) {
    return 0;
}

AmStatus mpi_wire_send(MpiRequest *request, const void *bytes, int64_t count, int32_t process, int32_t tag,
                       AmError *error) {
    (void)request, (void)bytes, (void)count, (void)process, (void)tag;
    return refuse_mpi(error);
}

AmStatus mpi_wire_receive(MpiRequest *request, void *bytes, int64_t count, int32_t process, int32_t tag,
                          AmError *error) {
    (void)request, (void)bytes, (void)count, (void)process, (void)tag;
    return refuse_mpi(error);
}

AmStatus mpi_wire_test(MpiRequest *request, bool *done, AmError *error) {
    (void)request, (void)done;
    return refuse_mpi(error);
}

void mpi_wire_cancel(MpiRequest *request) {
    (void)request;
}

void mpi_wire_progress(void) {}

bool mpi_wire_end(bool orderly, double seconds, void (*give_up)(void)) {
    (void)orderly, (void)seconds, (void)give_up;
    return true;
}

#endif
