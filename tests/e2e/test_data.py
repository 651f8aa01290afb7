# labels: cpu e2e
# timeout: 300
"""Data as numpy and others write it: the same examples in every format train alike, bit for bit.

Arrays (stored, deflated, column-major, versions 1 to 3 of .npy) and tokens (raw, llm.c, Megatron, .npy) are written
by numpy; gpt2_tiny must give the same losses on all of them, in order and shuffled, whatever the ranks and the
prefetch, in one go and resumed. A wrong file ends the run with one line and its exit code.
"""

import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

try:
    import numpy as np
except ImportError:
    print("skipped: numpy is not installed")
    sys.exit(77)

AUTOMAP = os.path.abspath(os.environ.get("AUTOMAP", "build/automap"))
MODEL = pathlib.Path(__file__).resolve().parents[2] / "datasets" / "models" / "gpt2_tiny"
LENGTH, BATCH, STEPS = 16, 16, 7
FAILURES = []


def check(holds, words):
    if not holds:
        FAILURES.append(words)


def run(folder, *options, plan="none", steps=STEPS):
    command = [AUTOMAP, "run", str(MODEL / "model.hlo.pb"), "--plan", str(plan), "--state", str(MODEL / "state.npz"),
               "--steps", str(steps), "--json", *map(str, options)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


def losses(folder, *options, **more):
    result = run(folder, *options, **more)
    check(result.returncode == 0, f"{options}: exit code {result.returncode}: {result.stderr}")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def write_npy(path, array, version):
    with open(path, "wb") as file:
        np.lib.format.write_array(file, array, version=version)


def write_megatron(stem, tokens, code):
    lengths = np.array([100, 250, 0, 350, 300], np.int32)
    starts = (np.cumsum(lengths) - lengths).astype(np.int64) * tokens.dtype.itemsize
    tokens.tofile(f"{stem}.bin")
    with open(f"{stem}.idx", "wb") as file:
        file.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, 5, 4))
        file.write(lengths.tobytes() + starts.tobytes() + np.array([0, 1, 3, 5], np.int64).tobytes())


def write_llm_c(path, tokens, magic, version):
    header = np.zeros(256, np.int32)
    header[:3] = magic, version, len(tokens)
    path.write_bytes(header.tobytes() + tokens.tobytes())


def write_all(folder):
    """Every file holds the windows of the same 1,000 tokens; returns the --data options."""
    tokens = np.random.default_rng(0).integers(0, 128, 1000).astype(np.uint16)
    count = (len(tokens) - 1) // LENGTH
    inputs = np.stack([tokens[k * LENGTH:(k + 1) * LENGTH] for k in range(count)]).astype(np.int32)
    targets = np.stack([tokens[k * LENGTH + 1:(k + 1) * LENGTH + 1] for k in range(count)]).astype(np.int32)
    np.savez(folder / "stored.npz", tokens=inputs, targets=targets)
    np.savez_compressed(folder / "deflated.npz", tokens=inputs, targets=targets)
    np.savez(folder / "columns.npz", tokens=np.asfortranarray(inputs), targets=np.asfortranarray(targets))
    arrays = [["stored.npz"], ["deflated.npz"], ["columns.npz"]]
    for version in [(1, 0), (2, 0), (3, 0)]:
        write_npy(folder / f"in{version[0]}.npy", inputs, version)
        write_npy(folder / f"out{version[0]}.npy", np.asfortranarray(targets), version)
        arrays.append([f"tokens=in{version[0]}.npy", f"targets=out{version[0]}.npy"])
    tokens.tofile(folder / "raw.bin")
    tokens.astype(np.uint32).tofile(folder / "raw.u32")
    write_llm_c(folder / "llm.bin", tokens, 20240520, 1)
    write_llm_c(folder / "llm3.bin", tokens.astype(np.uint32), 20240801, 7)
    write_megatron(folder / "narrow", tokens, 8)
    write_megatron(folder / "wide", tokens.astype(np.int32), 4)
    np.save(folder / "row.npy", tokens.astype(np.int64))
    files = ["raw.bin", "raw.u32", "llm.bin", "llm3.bin", "narrow.bin", "wide.idx", "row.npy", "tokens,targets=raw.bin"]
    return arrays + [[file] for file in files]


def data(files):
    return [word for file in files for word in ("--data", file)]


def check_formats(folder, forms):
    for order in [[], ["--shuffle", "--seed", "3"]]:
        expected = losses(folder, *data(["raw.bin"]), *order)
        check(len(expected) == STEPS and len(set(expected)) == STEPS, f"losses {expected}")
        for form in forms:
            check(losses(folder, *data(form), *order) == expected, f"{form} {order}: other losses than raw.bin")
        for depth in ["1", "5"]:
            check(losses(folder, *data(["raw.bin"]), *order, "--prefetch", depth) == expected, f"prefetch {depth}")


def check_ranks(folder):
    subprocess.run([AUTOMAP, "search", str(MODEL / "model.hlo.pb"), "--cluster", "nominal:4", "--baseline",
                    "data_parallel", "--quiet", "-o", "plan.json"], cwd=folder, check=True, capture_output=True)
    order = [*data(["wide.bin"]), "--shuffle", "--seed", "8"]
    alone, four = losses(folder, *order), losses(folder, *order, plan="plan.json")
    check(np.allclose(alone, four, rtol=5e-6, atol=0), f"four ranks: {four}, expected {alone}")


def check_resumption(folder):
    order = [*data(["raw.bin"]), "--shuffle", "--seed", "8"]
    whole = losses(folder, *order, steps=9)
    first = losses(folder, *order, "--checkpoint", "saved", steps=4)
    rest = losses(folder, *order, "--checkpoint", "saved", "--resume", steps=9)
    check(first + rest == whole, f"resumed: {first} and {rest}, expected {whole}")
    result = run(folder, *data(["raw.bin"]), "--checkpoint", "saved", "--resume", steps=12)
    check(result.returncode == 3 and "the data is in order, the checkpoint's data was shuffled" in result.stderr,
          f"another order: {result.stderr}")


def check_refusals(folder):
    tokens = np.fromfile(folder / "raw.bin", np.uint16)
    for place, code in [(5, 3), (700, 5)]:
        bad = tokens.copy()
        bad[place] = 50300
        bad.tofile(folder / "bad.bin")
        result = run(folder, *data(["bad.bin"]))
        words = f"token {place} (byte {2 * place}) is 50300, expected 0 to 127"
        check(result.returncode == code and words in result.stderr, f"{place}: {result.returncode} {result.stderr}")
    (folder / "empty.bin").write_bytes(b"")
    (folder / "odd.bin").write_bytes(b"abc")
    (folder / "short.bin").write_bytes(bytes(100))
    (folder / "cut.bin").write_bytes((folder / "llm.bin").read_bytes()[:-1])
    for name, words in [("empty.bin", "is empty"), ("odd.bin", "no whole number of tokens"), ("short.bin", "too few"),
                        ("cut.bin", "the header counts 1000 tokens"), ("none.bin", "cannot be opened")]:
        result = run(folder, *data([name]))
        check(result.returncode == 3 and words in result.stderr, f"{name}: {result.returncode} {result.stderr}")
        check(len(result.stderr.splitlines()) == 1, f"{name}: more than one line: {result.stderr}")


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        check_formats(folder, write_all(folder))
        check_ranks(folder)
        check_resumption(folder)
        check_refusals(folder)
    print("\n".join(FAILURES) or "all formats train alike")
    sys.exit(1 if FAILURES else 0)


if __name__ == "__main__":
    main()
