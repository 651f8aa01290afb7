/* mpirun: the environment contains each process's number, and MPI carries process 0's address.
 *
 * The processes then use their own connections, whose failures do not end in MPI's abort; tensors
 * may travel by MPI (comm_mpi.c). A program built without MPI reports an error when mpirun starts
 * it, instead of running the whole plan once per process.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "executor/processes/bootstrap.h"
#include "executor/processes/mpi_wire.h"

/* A launcher's names of its variables. */
typedef struct Names {
    const char *process, *count, *local_process, *local_count;
} Names;

static const Names open_mpi = {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                               "OMPI_COMM_WORLD_LOCAL_SIZE"};
static const Names mpich = {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};

static const double share_seconds = 60;

/* Returns the names of Open MPI's mpirun, or of MPICH's mpiexec and its derivatives, which set the number of
 * processes on this host. Under srun, PMI_SIZE alone is Slurm's. */
static const Names *find_names(void) {
    if (getenv(open_mpi.count) && getenv(open_mpi.process)) return &open_mpi;
    if (!getenv(mpich.count) || !getenv(mpich.process)) return NULL;
    return getenv(mpich.local_count) || !getenv("SLURM_STEP_ID") ? &mpich : NULL;
}

bool bootstrap_mpi_is_present(void) {
    return find_names() != NULL;
}

/* Process 0's message to the others; port 0: it has failed. */
typedef struct Address {
    char host[BOOTSTRAP_HOST];
    char job[BOOTSTRAP_SECRET];
    int32_t port;
} Address;

/* Gives all processes the address and the secret of process 0, by MPI. */
static AmStatus share(ProcessPlace *place, AmError *error) {
    Address address = {.port = place->port};
    if (place->process == 0) {
        snprintf(address.host, sizeof address.host, "%s", place->host);
        if (!place->host[0]) gethostname(address.host, sizeof address.host - 1);
        unsigned char bytes[32]; /* a unique name for this run */
        bool is_drawn = getentropy(bytes, sizeof bytes) == 0;
        for (size_t k = 0; k < sizeof bytes && is_drawn; k++)
            snprintf(address.job + 2 * k, 3, "%02x", bytes[k]);
    }
    TRY(mpi_wire_start(place->process, place->count, error));
    TRY(mpi_wire_broadcast(&address, (int32_t)sizeof address, share_seconds, error));
    address.host[sizeof address.host - 1] = address.job[sizeof address.job - 1] = '\0';
    memcpy(place->host, address.host, sizeof place->host);
    place->port = (uint16_t)address.port;
    bootstrap_secret(place, address.job);
    return AM_OK;
}

AmStatus bootstrap_mpi(ProcessPlace *place, AmError *error) {
    const Names *names = find_names();
    int64_t count, process, local_count = 1, local_process = 0;
    TRY(bootstrap_integer(names->count, 1, BOOTSTRAP_MOST_PROCESSES, &count, error));
    TRY(bootstrap_integer(names->process, 0, count - 1, &process, error));
    if (getenv(names->local_count) && getenv(names->local_process)) {
        TRY(bootstrap_integer(names->local_count, 1, count, &local_count, error));
        TRY(bootstrap_integer(names->local_process, 0, local_count - 1, &local_process, error));
    }
    place->process = (int32_t)process;
    place->count = (int32_t)count;
    place->local_process = (int32_t)local_process;
    place->local_count = (int32_t)local_count;
    if (count == 1) return AM_OK;
    if (!mpi_wire_name())
        return am_fail(error, AM_ERROR_USAGE, "",
                       "mpirun started this process, but this program was built without MPI: "
                       "use torchrun or srun, or build where CMake finds MPI");
    if (local_count == count) snprintf(place->host, sizeof place->host, "127.0.0.1");
    place->share = share;
    return AM_OK;
}
