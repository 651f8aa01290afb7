"""`propagate --keep-shardings` against XLA's own propagation.

jaxlib compiles random modules for eight partitions and prints each before and after its pass
"sharding-propagation". automap gets the first text; every instruction must have the sharding of the
second. Parameters and results of the module are left out: XLA replicates those of uneven sizes. XLA
ends the process on some modules; its earlier output counts, and a new process continues.

Without AUTOMAP_FULL=1 a part of the modules is compared.
"""
# labels: jax e2e
# timeout: 600
# cost: 20

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "tests" / "oracle"))

import hlo_shardings as hlo  # noqa: E402
import random_shardings  # noqa: E402

AUTOMAP = os.environ.get("AUTOMAP", str(SOURCE / "build" / "automap"))
MODULES = 150 if os.environ.get("AUTOMAP_FULL") == "1" else 24


def compile_all(dump, folder, numbers):
    """Compiles modules in this process and moves what XLA prints into `folder`."""
    os.environ["XLA_FLAGS"] = (
        f"--xla_force_host_platform_device_count={random_shardings.DEVICES} --xla_dump_to={dump} "
        "--xla_dump_hlo_pass_re=sharding-propagation --xla_dump_hlo_as_text"
    )
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import jax
    import numpy as np
    from jaxlib import _hlo
    from jax._src.lib import xla_client

    client = jax.devices()[0].client
    for number in numbers:
        print(number, flush=True)
        text = random_shardings.RandomModule(number, 14).text()
        module = xla_client.XlaComputation(_hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto())
        options = xla_client.CompileOptions()
        build = options.executable_build_options
        build.num_replicas, build.num_partitions = 1, random_shardings.DEVICES
        build.use_spmd_partitioning, build.use_shardy_partitioner = True, False
        build.allow_spmd_sharding_propagation_to_output = [True]
        build.device_assignment = xla_client.DeviceAssignment.create(
            np.arange(random_shardings.DEVICES).reshape(1, random_shardings.DEVICES)
        )
        try:
            client.compile_and_load(
                xla_client._xla.mlir.xla_computation_to_mlir_module(module),
                xla_client.DeviceList(tuple(client.local_devices())),
                options,
            )
        except Exception:  # the pass has run; a later one refuses the module
            pass
        collect(dump, folder, number)


def collect(dump, folder, number):
    """Moves the texts of one module out of the dump."""
    before = sorted(dump.glob("*before_sharding-propagation.txt"))
    after = sorted(dump.glob("*after_sharding-propagation*.txt"))
    if before and after:
        shutil.copy(before[0], folder / f"{number}.before")
        shutil.copy(after[0], folder / f"{number}.after")
    shutil.rmtree(dump)
    dump.mkdir()


def compare(folder, number):
    """Returns the differences of one module as lines."""
    before, after = folder / f"{number}.before", folder / f"{number}.after"
    done = subprocess.run(
        [AUTOMAP, "propagate", str(before), "--keep-shardings"], capture_output=True, text=True, timeout=60
    )
    if done.returncode != 0:
        return [f"{number}: exit code {done.returncode}: {done.stderr.strip()}"]
    mine, theirs, lines = hlo.Module(done.stdout), hlo.Module(after.read_text()), []
    for each in mine.all():
        if each.computation == mine.entry and (each.opcode == "parameter" or each.is_root):
            continue
        other = next((e for e in theirs.computations.get(each.computation, []) if e.name == each.name), None)
        if other and not hlo.same(hlo.canonical(each.sharding), hlo.canonical(other.sharding)):
            lines.append(f"{number}: {each.name} ({each.opcode}): XLA {other.sharding}, automap {each.sharding}")
    return lines


def main():
    with tempfile.TemporaryDirectory() as temporary:
        folder, dump, left = pathlib.Path(temporary), pathlib.Path(temporary, "dump"), list(range(MODULES))
        while left:
            shutil.rmtree(dump, ignore_errors=True)
            dump.mkdir()
            worker = [sys.executable, __file__, "--worker", str(dump), temporary, *map(str, left)]
            done = subprocess.run(worker, capture_output=True, text=True)
            started = done.stdout.split()
            if not started:
                print(f"skipped: {done.stderr.strip().splitlines()[-1:]}")
                return 77 if "ModuleNotFoundError" in done.stderr or "ImportError" in done.stderr else 1
            if dump.exists():
                collect(dump, folder, int(started[-1]))
            left = left[len(started) :]
        compared = [number for number in range(MODULES) if (folder / f"{number}.after").exists()]
        different = [line for number in compared for line in compare(folder, number)]
        for line in different:
            print(line)
        print(f"{len(compared)} of {MODULES} modules compared, {len(different)} values differ")
        return 1 if different or 2 * len(compared) < MODULES else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        compile_all(pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]), [int(number) for number in sys.argv[4:]])
    else:
        sys.exit(main())
