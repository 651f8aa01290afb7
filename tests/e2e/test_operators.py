# labels: jax e2e
# timeout: 900
"""Every operator gives what JAX gives.

Small programs of one operator each are made by jax.lax over shapes, attributes and types drawn
with a fixed seed, beside hand-picked edges, exported to HLO and run by automap on one device.
Integers and moved data must agree bit for bit, floating results within the stated number of units
in the last place: of each element, or of the largest one where sums cancel. With AUTOMAP_FULL=1
every family is drawn several times.

Run as `AUTOMAP=build/automap python3 tests/e2e/test_operators.py [FAMILY ...]`.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import zlib

os.environ.setdefault("JAX_PLATFORMS", "cpu")
try:
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax import lax
except ImportError:
    print("skipped: jax is not installed")
    sys.exit(77)

jax.config.update("jax_enable_x64", True)

AUTOMAP = os.environ.get("AUTOMAP", "build/automap")
ROUNDS = 6 if os.environ.get("AUTOMAP_FULL") == "1" else 1

FAMILIES = {}
# Families whose programs are lowered for another platform, where JAX uses the operators themselves
# instead of library calls, and unrolls its random generator.
PLATFORMS = {"matrices": "tpu", "unrolled_random": "tpu"}


def family(function):
    """A generator of (name, program, arguments[, units[, of]]); called with a random generator."""
    FAMILIES[function.__name__] = function
    return function


def floats(rng, *shape, type=np.float32):
    return rng.standard_normal(shape).astype(type)


def integers(rng, *shape, type=np.int32, low=-50, high=50):
    return rng.integers(low, high, shape).astype(type)


# Control flow.


@family
def loops(rng):
    x, w = floats(rng, 4, 8), floats(rng, 5, 8, 8) / 4

    def count(n):
        return lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, s[1] * 3 + s[0]), (0, 1))

    yield "while", count, [np.int64(rng.integers(0, 12))]
    yield "while_never", count, [np.int64(0)]
    yield "fori", lambda x: lax.fori_loop(0, 7, lambda i, s: s + i * x, x), [integers(rng, 3, 4)]
    # The carried values trade places, so that each is read after the other has been written.
    yield "swap", lambda a, b: lax.fori_loop(0, 3, lambda i, s: (s[1], s[0] - s[1]), (a, b)), [
        integers(rng, 5),
        integers(rng, 5),
    ]
    yield "rotate", lambda a, b, c: lax.fori_loop(0, 4, lambda i, s: (s[1], s[2], s[0]), (a, b, c)), [
        integers(rng, 5),
        integers(rng, 5),
        integers(rng, 5),
    ]
    yield "scan", lambda x, w: lax.scan(lambda h, w: (jnp.tanh(h @ w), h.sum(1)), x, w), [x, w], 16, "largest"
    yield "scan_back", lambda x, w: lax.scan(lambda h, w: (h + w, h * 2), x, w, reverse=True), [
        integers(rng, 3),
        integers(rng, 6, 3),
    ]
    yield "scan_gradient", jax.grad(
        lambda w, x: (lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, w)[0] ** 2).sum()
    ), [w, x], 64, "largest"
    yield "nested", lambda x: lax.fori_loop(
        0, 3, lambda i, s: lax.fori_loop(0, i + 1, lambda j, t: t * 2 + j + x, s), x
    ), [integers(rng, 4)]
    yield "associative_scan", lambda x: lax.associative_scan(jnp.add, x), [integers(rng, 13)]
    yield "cumulative", lambda x: (lax.cumsum(x, 1), lax.cummax(x, 0), lax.cumprod(x, 1, reverse=True)), [
        integers(rng, 4, 6, low=-3, high=4)
    ]


@family
def branches(rng):
    x = integers(rng, 6)
    choose = lambda p, x: lax.cond(p, lambda x: (x * 2, x.max()), lambda x: (x - 1, x[0]), x)
    yield "cond_true", choose, [np.bool_(True), x]
    yield "cond_false", choose, [np.bool_(False), x]
    three = lambda i, x, y: lax.switch(i, [lambda x, y: x, lambda x, y: y * x, lambda x, y: x - y], x, y)
    for index in (-1, 0, 1, 2, 9):
        yield f"switch_{index}", three, [np.int32(index), x, integers(rng, 6)]
    yield "cond_in_loop", lambda x: lax.fori_loop(
        0, 6, lambda i, s: lax.cond(i % 2 == 0, lambda s: s + i, lambda s: s * 3, s), x
    ), [x]


# Order.


def special(rng, *shape, type=np.float32):
    """Floats with NaN, infinities, zeros of both signs and many that are equal."""
    values = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1.5, -1.5], np.float64).astype(type)
    return np.where(rng.random(shape) < 0.5, rng.choice(values, shape), floats(rng, *shape, type=type))


@family
def order(rng):
    for type in (np.float32, np.float64, jnp.bfloat16):
        yield f"sort_{np.dtype(type).name}", lambda x: lax.sort(x, dimension=0), [special(rng, 17, 5, type=type)]
    for type in (np.int8, np.uint8, np.int64, np.uint32, np.bool_):
        yield f"sort_{np.dtype(type).name}", lambda x: lax.sort(x), [integers(rng, 4, 33, type=type, low=0)]
    yield "sort_pairs", lambda k, v, w: lax.sort((k, v, w), dimension=1, num_keys=2), [
        integers(rng, 3, 40, low=0, high=5),
        special(rng, 3, 40),
        integers(rng, 3, 40, type=np.int16),
    ]
    yield "argsort", lambda x: jnp.argsort(x, axis=1, descending=True), [integers(rng, 3, 70, low=0, high=9)]
    yield "sort_one", lambda x: lax.sort(x), [floats(rng, 1)]
    yield "sort_none", lambda x: lax.sort(x, dimension=0), [floats(rng, 0, 3)]
    for type in (np.float32, np.int32, np.uint8, jnp.bfloat16):
        x = special(rng, 5, 37, type=type) if jnp.issubdtype(type, jnp.floating) else integers(
            rng, 5, 37, type=type, low=0, high=12
        )
        yield f"top_k_{np.dtype(type).name}", lambda x: lax.top_k(x, 6), [x]
    yield "top_k_all", lambda x: lax.top_k(x, 9), [floats(rng, 9)]
    yield "top_k_gradient", jax.grad(lambda x: (lax.top_k(x, 3)[0] ** 2).sum()), [floats(rng, 4, 8)], 4
    yield "median", lambda x: jnp.median(x, axis=0), [floats(rng, 11, 3)], 2
    yield "unique", lambda x: jnp.unique(x, size=8, fill_value=-1), [integers(rng, 20, low=0, high=6)]
    yield "argmax", lambda x: (jnp.argmax(x, 1), jnp.argmin(x, 0)), [special(rng, 6, 9)]


# Random numbers.


@family
def random(rng):
    key = integers(rng, 4, type=np.uint32, low=0, high=2**32)
    full = np.array([7, 9, 0xFFFFFFFE, 0xFFFFFFFF], np.uint32)
    algorithms = lax.RandomAlgorithm
    shapes = [(), (1,), (7,), (6, 3), (3, 5), (3, 4, 5), (5, 3, 7), (0, 3)]
    for shape in shapes:
        for algorithm in (algorithms.RNG_THREE_FRY, algorithms.RNG_PHILOX):
            make = lambda k: lax.rng_bit_generator(k, shape, algorithm=algorithm)
            yield f"bits_{algorithm.name}_{shape}", make, [key]
    for type in (np.uint8, np.uint16, np.uint64):
        for algorithm in (algorithms.RNG_THREE_FRY, algorithms.RNG_DEFAULT):
            make = lambda k: lax.rng_bit_generator(k, (3, 5), dtype=type, algorithm=algorithm)
            yield f"bits_{algorithm.name}_{type.__name__}", make, [full]
    seed = np.uint32(rng.integers(2**31))
    for kind in ("threefry2x32", "rbg", "unsafe_rbg"):
        def draw(seed):
            first, second = jax.random.split(jax.random.key(seed, impl=kind))
            return jax.random.bits(first, (5, 7)), jax.random.bernoulli(second, 0.3, (11,))

        yield f"draw_{kind}", draw, [seed]
    yield "fold_in", lambda s: jax.random.key_data(jax.random.fold_in(jax.random.key(s), 17)), [seed]
    yield "uniform", lambda s: jax.random.uniform(jax.random.key(s), (9, 3)), [seed]
    yield "randint", lambda s: jax.random.randint(jax.random.key(s), (12,), -4, 100), [seed]
    yield "permutation", lambda s: jax.random.permutation(jax.random.key(s), 12), [seed]
    yield "normal", lambda s: jax.random.normal(jax.random.key(s), (50,)), [seed], 8
    yield "categorical", lambda s, x: jax.random.categorical(jax.random.key(s), x), [seed, floats(rng, 5, 9)]


@family
def unrolled_random(rng):
    seed = np.uint32(rng.integers(2**31))
    yield "bits", lambda s: jax.random.bits(jax.random.key(s), (3, 7)), [seed]
    yield "split", lambda s: jax.random.key_data(jax.random.split(jax.random.key(s), 3)), [seed]
    yield "uniform", lambda s: jax.random.uniform(jax.random.key(s), (5,), np.float64), [seed]


# Matrices.


@family
def matrices(rng):
    def positive(*shape, type=np.float32):
        a = floats(rng, *shape, shape[-1], type=np.float64)
        return (a @ a.swapaxes(-1, -2) + shape[-1] * np.eye(shape[-1])).astype(type)

    yield "cholesky", lambda a: lax.linalg.cholesky(a), [positive(6)], 8, "largest"
    yield "cholesky_batch", lambda a: lax.linalg.cholesky(a), [positive(2, 3, 4, type=np.float64)], 8, "largest"
    yield "cholesky_fails", lambda a: lax.linalg.cholesky(a), [-positive(3)]
    yield "cholesky_one_triangle", lambda a: lax.linalg.cholesky(a, symmetrize_input=False), [
        np.tril(positive(5)) + np.triu(floats(rng, 5, 5), 1)
    ], 8, "largest"
    yield "cholesky_gradient", jax.grad(lambda a: lax.linalg.cholesky(a).sum()), [positive(5)], 64, "largest"
    for left in (True, False):
        for lower in (True, False):
            for transpose in (True, False):
                unit = bool(rng.integers(2))
                a = (floats(rng, 2, 5, 5) + 4 * np.eye(5)).astype(np.float32)
                b = floats(rng, 2, *((5, 3) if left else (3, 5)))
                solve = lambda a, b: lax.linalg.triangular_solve(
                    a, b, left_side=left, lower=lower, transpose_a=transpose, unit_diagonal=unit
                )
                yield f"triangular_solve_{left}_{lower}_{transpose}_{unit}", solve, [a, b], 256, "largest"


# Running and comparing.


def number(array):
    """As numpy computes with it."""
    array = np.asarray(array)
    return array.astype(np.float64) if array.dtype.kind in "fV" or "float" in array.dtype.name else array


def difference(got, expected, units, of):
    """What is wrong with `got`, or None."""
    if got.dtype.kind == "V":
        got = got.view(expected.dtype)
    if got.dtype != expected.dtype or got.shape != expected.shape:
        return f"{got.dtype}{list(got.shape)} instead of {expected.dtype}{list(expected.shape)}"
    floating = jnp.issubdtype(expected.dtype, jnp.inexact)
    if not floating:
        wrong = np.flatnonzero(got.ravel() != expected.ravel())
        return f"{wrong.size} differ, e.g. {got.flat[wrong[0]]}, not {expected.flat[wrong[0]]}" if wrong.size else None
    info = jnp.finfo(expected.dtype)
    wide = np.complex128 if jnp.issubdtype(expected.dtype, jnp.complexfloating) else np.float64
    a, b = got.astype(wide), expected.astype(wide)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if units == 0:
        same &= np.signbit(a.real) == np.signbit(b.real)
    scale = np.abs(b)
    if of == "largest" and b.size:
        finite = scale[np.isfinite(scale)]
        scale = np.full(b.shape, finite.max() if finite.size else 0)
    with np.errstate(invalid="ignore", over="ignore"):
        near = np.abs(a - b) <= units * float(info.eps) * scale + (float(info.tiny) if units else 0)
    wrong = np.flatnonzero(~(same | near).ravel())
    if wrong.size == 0:
        return None
    at = wrong[0]
    return f"{wrong.size} of {b.size} differ, e.g. {a.flat[at]!r}, not {b.flat[at]!r}"


def run(name, program, arguments, units=0, of="element", folder=".", platform="cpu"):
    """One program: JAX's results against ours; what is wrong, or None."""
    function = jax.jit(lambda *a: program(*a), keep_unused=True)
    arguments = [np.asarray(argument) for argument in arguments]
    lowered = function.trace(*arguments).lower(lowering_platforms=(platform,))
    expected = [np.asarray(leaf) for leaf in jax.tree.leaves(function(*arguments))]
    at = pathlib.Path(folder)
    (at / "operator.hlo.pb").write_bytes(lowered.compiler_ir("hlo").as_serialized_hlo_module_proto())
    np.savez(at / "state.npz", **{f"a[{k}]": argument for k, argument in enumerate(arguments)})
    command = [AUTOMAP, "run", at / "operator.hlo.pb", "--plan", "none", "--state", at / "state.npz"]
    command += ["--steps", "1", "--outputs", at / "outputs.npz"]
    process = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if process.returncode != 0:
        return f"exit code {process.returncode}: {process.stderr.strip()}"
    outputs = np.load(at / "outputs.npz")
    for k, leaf in enumerate(expected):
        wrong = difference(outputs[f"output[{k}]"], leaf, units, of)
        if wrong:
            return f"output {k}: {wrong}"
    return None


def main():
    chosen = sys.argv[1:] or list(FAMILIES)
    count, failures = 0, []
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen:
            for round in range(ROUNDS):
                rng = np.random.default_rng([zlib.crc32(name.encode()), round])
                for case in FAMILIES[name](rng):
                    wrong = run(*case, folder=folder, platform=PLATFORMS.get(name, "cpu"))
                    count += 1
                    if wrong:
                        failures.append(f"{name}/{case[0]} (round {round}): {wrong}")
                        print(failures[-1], flush=True)
    print(f"{count} programs, {len(failures)} wrong")
    sys.exit(1 if failures or count == 0 else 0)


if __name__ == "__main__":
    main()
