/* mpirun: MPI tells each process its number, and carries process 0's address.
 *
 * The only file that includes mpi.h. MPI is started, used for one broadcast and
 * ended again at once: what the processes then say to one another goes over
 * their own connections, whose failures do not end in MPI's abort. A program
 * built without MPI says so where mpirun started it, instead of running the
 * whole plan once per process.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "executor/bootstrap.h"

/* mpirun of Open MPI; mpiexec of MPICH and its kin, which says how many processes
 * are on this host. Under srun PMI_SIZE alone is Slurm's. */
bool bootstrap_mpi_is_present(void) {
    if (getenv("OMPI_COMM_WORLD_SIZE") && getenv("OMPI_COMM_WORLD_RANK")) return true;
    return getenv("PMI_SIZE") && getenv("PMI_RANK") &&
           (getenv("MPI_LOCALNRANKS") || !getenv("SLURM_STEP_ID"));
}

#ifdef AUTOMAP_HAVE_MPI

#include <mpi.h>

/* What process 0 tells the others; port 0: it has failed. */
typedef struct Address {
    char host[BOOTSTRAP_HOST];
    char job[BOOTSTRAP_SECRET];
    int32_t port;
} Address;

/* A name for this run that nobody else has. */
static void draw_job(char job[BOOTSTRAP_SECRET]) {
    unsigned char bytes[32] = {0};
    if (getentropy(bytes, sizeof bytes) != 0) return;
    for (size_t k = 0; k < sizeof bytes; k++) snprintf(job + 2 * k, 3, "%02x", bytes[k]);
}

static AmStatus share(WorldPlace *place, AmError *error) {
    Address address = {.port = place->port};
    if (place->process == 0) {
        snprintf(address.host, sizeof address.host, "%s", place->host);
        if (!place->host[0]) gethostname(address.host, sizeof address.host - 1);
        draw_job(address.job);
    }
    int code = MPI_Bcast(&address, (int)sizeof address, MPI_BYTE, 0, MPI_COMM_WORLD);
    MPI_Finalize();
    if (code != MPI_SUCCESS)
        return am_fail(error, AM_ERROR_RUNTIME, "", "MPI's broadcast of process 0's address failed");
    address.host[sizeof address.host - 1] = address.job[sizeof address.job - 1] = '\0';
    memcpy(place->host, address.host, sizeof place->host);
    place->port = (uint16_t)address.port;
    bootstrap_secret(place, address.job);
    return AM_OK;
}

AmStatus bootstrap_mpi(WorldPlace *place, AmError *error) {
    int process, count, local_process, local_count, started = 0;
    MPI_Comm local;
    MPI_Initialized(&started);
    if (started) return am_fail(error, AM_ERROR_USAGE, "", "MPI is in use already: one run per process");
    if (MPI_Init(NULL, NULL) != MPI_SUCCESS)
        return am_fail(error, AM_ERROR_RUNTIME, "", "MPI cannot be started");
    MPI_Comm_rank(MPI_COMM_WORLD, &process);
    MPI_Comm_size(MPI_COMM_WORLD, &count);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, process, MPI_INFO_NULL, &local);
    MPI_Comm_rank(local, &local_process);
    MPI_Comm_size(local, &local_count);
    MPI_Comm_free(&local);
    place->process = process;
    place->count = count;
    place->local_process = local_process;
    place->local_count = local_count;
    place->share = share;
    if (local_count == count) snprintf(place->host, sizeof place->host, "127.0.0.1");
    if (count <= BOOTSTRAP_MOST_PROCESSES && count > 1) return AM_OK;
    place->share = NULL;
    MPI_Finalize();
    if (count == 1) return AM_OK;
    return am_fail(error, AM_ERROR_USAGE, "", "mpirun started %d processes: at most %d can run together",
                   count, BOOTSTRAP_MOST_PROCESSES);
}

#else

AmStatus bootstrap_mpi(WorldPlace *place, AmError *error) {
    const char *count = getenv("OMPI_COMM_WORLD_SIZE");
    if (!count) count = getenv("PMI_SIZE");
    if (place->count == 1 && count && strcmp(count, "1") == 0) return AM_OK;
    return am_fail(error, AM_ERROR_USAGE, "",
                   "mpirun started this process, but this program was built without MPI: "
                   "use torchrun or srun, or build where CMake finds MPI");
}

#endif
