"""JAX devices on the processor."""

import os

from program import FULL


def make_devices(count):
    """Gives JAX so many devices, if called before its import. Without AUTOMAP_FULL, XLA leaves out most of LLVM's
    optimisations: compiling takes about a quarter less time. Graphs are partitioned in the same way."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={count}"
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"  # the partitioner complains of some plans at length
    if not FULL:
        os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
