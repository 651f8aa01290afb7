"""How tests start processes by mpirun: with each MPI for which CMake built the program.

A build has tests/openmpi/automap and tests/mpich/automap (cmake/AutomapMpiTests.cmake). mpirun starts the requested
number of processes, also as root, and lets them survive the loss of one where a test needs it.
"""

import os
import pathlib
import shutil

BUILD = pathlib.Path(os.environ.get("AUTOMAP_BUILD", "build"))

# Options with which processes survive the death of one of them.
SURVIVAL = {"openmpi": ["--enable-recovery"], "mpich": ["-disable-auto-cleanup"]}


class Mpi:
    """One MPI: `name`, `program` and how to start it."""

    def __init__(self, name):
        self.name = name
        self.program = BUILD.resolve() / "tests" / name / "automap"
        self.mpirun = shutil.which(f"mpirun.{name}")

    def command(self, count, *words, survive=False):
        return [self.mpirun, *(SURVIVAL[self.name] if survive else []), "-n", str(count), *map(str, words)]


def found():
    """The MPIs that are here."""
    every = [Mpi(name) for name in SURVIVAL]
    return [mpi for mpi in every if mpi.mpirun and mpi.program.exists()]


def environment():
    """For mpirun: nothing of another launcher; Open MPI's words for more processes than processors, and root."""
    left_out = ("RANK", "WORLD_SIZE", "SLURM_STEP_ID", "SLURM_PROCID", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    return kept | {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "OMPI_MCA_plm_rsh_agent": "false",
        "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
    }
