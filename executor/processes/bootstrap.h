/* The number of a process in a run of several processes, and the address at which they connect.
 *
 * Launchers set environment variables; bootstrap_read() recognises, in this order:
 *   torchrun  RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT
 *   mpirun    OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE (Open MPI), or PMI_RANK,
 *             PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS (MPICH); MPI carries the address
 *   Slurm     SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID, first host of the node list
 * A process without any of them is a run of its own. Processes of one launch share a
 * secret: a digest of the job's name (from MPI a random number) and of AUTOMAP_SECRET, which a user
 * sets if others can reach the port. AUTOMAP_PORT replaces the port of torchrun and Slurm.
 */
#ifndef EXECUTOR_PROCESSES_BOOTSTRAP_H
#define EXECUTOR_PROCESSES_BOOTSTRAP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum { BOOTSTRAP_HOST = 256, BOOTSTRAP_SECRET = 65, BOOTSTRAP_MOST_PROCESSES = 1024 };

typedef struct ProcessPlace ProcessPlace;

struct ProcessPlace {
    const char *launcher;               /* "torchrun", "mpirun", "Slurm"; "none": a run of its own */
    int32_t process, count;             /* 0 <= process < count */
    int32_t local_process, local_count; /* among those of this machine; picks the device */
    char host[BOOTSTRAP_HOST];          /* where process 0 listens */
    uint16_t port;                      /* 0: any; `share` gives it to all */
    char secret[BOOTSTRAP_SECRET];      /* hexadecimal */
    /* Gives process 0's host, port and secret to all, or NULL where all know
     * them. Called once by every process; process 0 listens already, or has
     * failed to: then port is 0, here and after the call everywhere. */
    AmStatus (*share)(ProcessPlace *place, AmError *error);
};

/* Reads the environment. AM_ERROR_USAGE names the variable that is missing or wrong. */
AmStatus bootstrap_read(ProcessPlace *place, AmError *error);

/* Reads an environment variable of a launcher as an integer in [least, most]. */
AmStatus bootstrap_integer(const char *name, int64_t least, int64_t most, int64_t *value, AmError *error);
/* Finds the secret from the launcher's name for this job and AUTOMAP_SECRET. */
void bootstrap_secret(ProcessPlace *place, const char *job);
/* Returns whether others on the network can join: the launcher gives no random name for the job,
 * AUTOMAP_SECRET is not set, and process 0 listens on an address that is not of the machine itself. */
bool bootstrap_is_open(const ProcessPlace *place);
/* Reads AUTOMAP_PORT, where it is set. */
AmStatus bootstrap_port(uint16_t *port, AmError *error);

/* Returns whether Slurm started this process; those of Slurm follow (bootstrap_slurm.c). */
bool bootstrap_slurm_is_present(void);
AmStatus bootstrap_slurm(ProcessPlace *place, AmError *error);
/* Finds the first host of a node list, "gpu[003-007,12],login" -> "gpu003"; AM_ERROR_USAGE where it is not
 * such a list. */
AmStatus bootstrap_first_node(char host[BOOTSTRAP_HOST], const char *list, AmError *error);

/* Returns whether MPI started this process; those of MPI follow (bootstrap_mpi.c). */
bool bootstrap_mpi_is_present(void);
AmStatus bootstrap_mpi(ProcessPlace *place, AmError *error);

#endif
