# labels: jax e2e
# timeout: 900
# cost: 20
"""Every operator gives what JAX gives.

Small programs of one operator each are made by jax.lax over shapes, attributes and types drawn
with a fixed seed, beside hand-picked edges, exported to HLO and run by automap on one device.
Integers and moved data must agree bit for bit, floating results within so many units in the last
place: of each element, or of the largest one where sums cancel. For programs of one operator the
bounds are those of docs/running.md, which is read here; programs of several state their own.
Denormals are left out, as XLA takes them for zeros on CPU. Without AUTOMAP_FULL=1 a sample is run,
with it every family is drawn several times.

Run as `AUTOMAP=build/automap python3 tests/e2e/test_operators.py [FAMILY ...]`.
"""

import itertools
import os
import pathlib
import re
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
DOCUMENT = pathlib.Path(__file__).resolve().parents[2] / "docs" / "running.md"
FULL = os.environ.get("AUTOMAP_FULL") == "1"
ROUNDS = 3 if FULL else 1
SAMPLE = 100  # programs without AUTOMAP_FULL=1

FAMILIES = {}
# Families whose programs are lowered for another platform, where JAX uses the operators themselves
# instead of library calls, and unrolls its random generator.
PLATFORMS = {"matrices": "tpu", "unrolled_random": "tpu"}


def family(function):
    """A generator of (name, program, arguments[, units[, of]]); called with a random generator.

    Without units the program is held to what docs/running.md says of the operators in it.
    """
    FAMILIES[function.__name__] = function
    return function


# The bounds of docs/running.md.


def read_bound(text):
    """"8", "16 largest" or "-" as (units, of)."""
    words = text.split()
    return (0, "element") if text == "-" else (float(words[0]), words[1] if words[1:] else "element")


def read_document():
    """{operator: (bound, bound of complex numbers, bound of floats below 32 bits)}, {operator: why it is refused}."""
    bounds, refused = {}, {}
    for line in DOCUMENT.read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) != 6 or not cells[0].startswith("`"):
            continue
        name, types, wide, narrow, _, remark = cells[0].strip("`"), *cells[1:]
        wide, _, complex_numbers = wide.partition(", complex ")
        bounds[name] = read_bound(wide), read_bound(complex_numbers or wide), read_bound(narrow)
        if types == "none":
            refused[name] = remark.removeprefix("refused: ")
    return bounds, refused


BOUNDS, REFUSED = read_document()


def operators_of(text):
    """The names of the operators in a module's text."""
    found = set()
    for line in text.splitlines():
        _, equals, value = line.partition(" = ")
        name = re.search(r"(?:^|\s)([a-z][a-z0-9-]*)\(", value)
        if equals and name:
            found.add(name[1])
    return found


def bound(operators, type):
    """The loosest bound of the operators for results of a type, as (units, of)."""
    column = 1 if jnp.issubdtype(type, jnp.complexfloating) else 0 if type in (np.float32, np.float64) else 2
    found = [BOUNDS[name][column] for name in operators]
    # Operators on wider numbers on the way to a narrow result count in full units of that result.
    units = max([units for units, _ in found], default=0)
    return units, "largest" if any(of == "largest" for units, of in found if units) else "element"


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

    yield "cholesky", lambda a: lax.linalg.cholesky(a), [positive(6)]
    yield "cholesky_batch", lambda a: lax.linalg.cholesky(a), [positive(2, 3, 4, type=np.float64)]
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
                yield f"triangular_solve_{left}_{lower}_{transpose}_{unit}", solve, [a, b]


# Element by element.

FLOATS = (np.float32, np.float64, jnp.bfloat16, np.float16)
INTEGERS = (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64)


def edges(rng, type, *shape):
    """Integers with the least and the largest of their type and zeros among them."""
    info = np.iinfo(type)
    values = rng.integers(info.min, info.max, shape, dtype=type, endpoint=True)
    chosen = rng.choice(np.array([info.min, info.max, 0, 1], type), shape)
    return np.where(rng.random(shape) < 0.4, chosen, values)


@family
def functions(rng):
    exact = (lax.abs, lax.neg, lax.sign, lax.floor, lax.ceil, lax.is_finite, lambda x: lax.round(x, 0),
             lambda x: lax.round(x, 1))
    for type in FLOATS:
        name = np.dtype(type).name
        yield f"exact_{name}", lambda x: [f(x) for f in exact], [special(rng, 6, 7, type=type)]
        yield f"exact_binary_{name}", lambda x, y: (x + y, x - y, x * y, lax.max(x, y), lax.min(x, y)), [
            special(rng, 8, 9, type=type), special(rng, 8, 9, type=type)
        ]
        yield f"divide_{name}", lambda x, y: (x / y, lax.rem(x, y)), [
            special(rng, 30, type=type), special(rng, 30, type=type)
        ]
        yield f"clamp_{name}", lambda x: lax.clamp(np.asarray(-0.5, type), x, np.asarray(1, type)), [
            special(rng, 30, type=type)
        ]
    for function in (lax.exp, lax.exp2, lax.expm1, lax.log, lax.log1p, lax.sqrt, lax.rsqrt, lax.cbrt, lax.sin, lax.cos,
                     lax.tan, lax.tanh, lax.logistic, lax.erf, lax.atan, lax.sinh, lax.cosh, lax.asinh):
        for type in (np.float32, np.float64):
            x = special(rng, 6, 17, type=type)
            yield f"{function.__name__}_{np.dtype(type).name}", function, [x]
        for type in (jnp.bfloat16, np.float16):
            yield f"{function.__name__}_{np.dtype(type).name}", function, [special(rng, 20, type=type)]
    x, y = np.abs(floats(rng, 50)) * 2, floats(rng, 50) * 2
    yield "pow", lambda x, y: (lax.pow(x, y), lax.atan2(y, x), lax.integer_pow(y, 3)), [x, y]


@family
def integer_functions(rng):
    for type in INTEGERS:
        name = np.dtype(type).name
        x, y = edges(rng, type, 40), edges(rng, type, 40)
        yield f"binary_{name}", lambda x, y: (
            x + y, x - y, x * y, lax.max(x, y), lax.min(x, y), x & y, x | y, x ^ y, ~x, lax.sign(x), jnp.abs(x)
        ), [x, y]
        yield f"divide_{name}", lambda x, y: (lax.div(x, y), lax.rem(x, y)), [x, y]
        shift = rng.integers(0, np.iinfo(type).bits + 3, 40).astype(type)
        yield f"shift_{name}", lambda x, s: (
            lax.shift_left(x, s), lax.shift_right_logical(x, s), lax.shift_right_arithmetic(x, s)
        ), [x, shift]
        yield f"bits_{name}", lambda x: (lax.clz(x), lax.population_count(x)), [x]
        yield f"compare_{name}", lambda x, y: (x < y, x <= y, x == y, x != y, x > y, x >= y), [x, y]
    yield "pred", lambda x, y: (x & y, x | y, x ^ y, ~x, x == y), [rng.random(9) < 0.5, rng.random(9) < 0.5]


@family
def conversions(rng):
    types = (np.bool_, np.int8, np.int32, np.int64, np.uint8, np.uint32) + FLOATS
    for source in FLOATS:
        large = np.array([3e9, -3e9, 1e20, -1e20]) if source != np.float16 else np.array([6e4, -6e4])
        values = np.concatenate([special(rng, 20), floats(rng, 20) * 300, large]).astype(source)
        yield f"from_{np.dtype(source).name}", lambda x: [lax.convert_element_type(x, t) for t in types], [values]
        yield f"compare_{np.dtype(source).name}", lambda x, y: (x < y, x <= y, x == y, x != y, x > y, x >= y), [
            special(rng, 60, type=source), special(rng, 60, type=source)
        ]
    for source in INTEGERS:
        yield f"from_{np.dtype(source).name}", lambda x: [lax.convert_element_type(x, t) for t in types], [
            edges(rng, source, 30)
        ]
    yield "bitcast", lambda x: [lax.bitcast_convert_type(x, t) for t in (np.int32, np.uint16, np.uint8)], [
        special(rng, 3, 4)
    ]
    yield "bitcast_half", lambda x: lax.bitcast_convert_type(x, np.uint16), [special(rng, 9, type=jnp.bfloat16)]
    yield "reduce_precision", lambda x: [lax.reduce_precision(x, e, m) for e, m in ((8, 7), (5, 10), (4, 3), (5, 2))], [
        special(rng, 40) * 100
    ]
    yield "select", lambda p, x, y: (jnp.where(p, x, y), lax.select(p[0], x, y)), [
        rng.random(12) < 0.5, special(rng, 12), special(rng, 12)
    ]


@family
def complex_numbers(rng):
    def parts(z):
        return lax.real(z), lax.imag(z)

    x, y, u, v = (floats(rng, 4, 6) for _ in range(4))
    for function in (lax.add, lax.sub, lax.mul, lax.div):
        yield function.__name__, lambda x, y, u, v: parts(function(lax.complex(x, y), lax.complex(u, v))), [
            x, y, u, v
        ], 8, "largest"
    for function in (lax.neg, lax.conj, lax.exp, lax.log, lax.sqrt, lax.sin, lax.cos, lax.tanh):
        yield function.__name__, lambda x, y: parts(function(lax.complex(x, y))), [x, y], 32, "largest"
    yield "abs", lambda x, y: jnp.abs(lax.complex(x, y)), [x, y], 4
    yield "sum", lambda x, y: parts(lax.complex(x, y).sum(1)), [x, y], 8, "largest"
    yield "equal", lambda x, y, u: (lax.complex(x, y) == lax.complex(u, y), lax.complex(x, y) != 1), [x, y, x]
    yield "moved", lambda x, y: parts(lax.rev(lax.complex(x, y).T, (1,))[1:4]), [x, y]

    def rotary(x, angles):
        pairs = x.reshape(4, 3, 2)
        turned = lax.complex(pairs[..., 0], pairs[..., 1]) * jnp.exp(1j * angles).astype(np.complex64)
        return jnp.stack(parts(turned), -1).reshape(4, 6)

    yield "rotary", lambda x, a: rotary(x, a), [x, floats(rng, 4, 3)], 16, "largest"
    yield "rotary_gradient", jax.grad(lambda x, a: (rotary(x, a) ** 3).sum()), [x, floats(rng, 4, 3)], 32, "largest"


# Moving data.


@family
def movement(rng):
    for type in (np.float32, np.int8, np.float64, np.bool_, jnp.bfloat16):
        name, x = np.dtype(type).name, integers(rng, 4, 5, 6).astype(type)
        yield f"shape_{name}", lambda x: (
            lax.transpose(x, (2, 0, 1)), lax.rev(x, (0, 2)), lax.reshape(x, (6, 20), (1, 0, 2)),
            lax.broadcast_in_dim(x, (4, 2, 5, 6), (0, 2, 3)), lax.squeeze(x[:1], (0,)),
            lax.slice(x, (1, 0, 2), (4, 5, 6), (2, 3, 1)), lax.concatenate([x, x[:, :2], x[:, 1:2]], 1),
        ), [x]
    low, high, interior = rng.integers(-2, 3, 3), rng.integers(-2, 3, 3), rng.integers(0, 3, 3)
    padding = [tuple(int(v) for v in p) for p in zip(low, high, interior)]
    yield f"pad_{padding}", lambda x: lax.pad(x, np.float32(7), padding), [floats(rng, 4, 5, 3)]
    yield "pad_nothing", lambda x: lax.pad(x, np.int32(7), [(2, 1, 2)]), [integers(rng, 0)]
    yield "iota", lambda x: [x + lax.broadcasted_iota(np.int32, (3, 4, 5), d) for d in range(3)], [np.int32(2)]
    for at in (-9, 0, 2, 99):
        index = np.array([at, rng.integers(-3, 9)], np.int32)
        yield f"dynamic_slice_{at}", lambda x, i: lax.dynamic_slice(x, i, (2, 3)), [floats(rng, 5, 6), index]
        yield f"dynamic_update_{at}", lambda x, y, i: lax.dynamic_update_slice(x, y, i), [
            floats(rng, 5, 6), floats(rng, 2, 3), index
        ]
    yield "empty", lambda x: (lax.transpose(x, (1, 0)), x.sum(0), x @ x.T), [floats(rng, 0, 3)]


@family
def indexing(rng):
    x = floats(rng, 7, 6)
    index = integers(rng, 9, low=-9, high=12)
    for mode in ("clip", "fill", "promise_in_bounds"):
        if mode == "promise_in_bounds":
            index = index % 7
        yield f"take_{mode}", lambda x, i: x.at[i].get(mode=mode), [x, index]
    yield "take_columns", lambda x, i: x[:, i], [x, integers(rng, 2, 4, low=0, high=6)]
    yield "take_along", lambda x, i: jnp.take_along_axis(x, i, axis=1), [x, integers(rng, 7, 3, low=0, high=6)]
    yield "points", lambda x, i, j: x[i, j], [x, integers(rng, 5, low=0, high=7), integers(rng, 5, low=0, high=6)]
    yield "windows", lambda x, i: jax.vmap(lambda i: lax.dynamic_slice(x, (i, np.int32(0)), (2, 6)))(i), [x, index[:4]]
    for mode in ("drop", "clip", "fill"):
        for name in ("set", "add", "mul", "max", "min"):
            if name == "set":
                target = rng.permutation(7)[:4].astype(np.int32)
            else:
                target = integers(rng, 9, low=-9, high=12)
            yield f"scatter_{name}_{mode}", lambda x, i, u: getattr(x.at[i], name)(u, mode=mode), [
                integers(rng, 7, 6), target, integers(rng, target.size, 6)
            ]
    yield "scatter_points", lambda x, i, u: x.at[i, i].add(u), [x, integers(rng, 6, low=0, high=6), floats(rng, 6)], 4
    yield "scatter_batch", jax.vmap(lambda x, i, u: x.at[i].add(u)), [
        integers(rng, 3, 7), integers(rng, 3, 5, low=0, high=7), integers(rng, 3, 5)
    ]
    yield "one_hot", lambda i: jax.nn.one_hot(i, 6), [integers(rng, 8, low=-1, high=8)]


# Contractions and reductions.


@family
def contractions(rng):
    for type in (np.float32, np.float64, jnp.bfloat16, np.float16, np.int32, np.int8, np.uint16):
        a, b = integers(rng, 3, 5, 4, 6).astype(type), integers(rng, 4, 3, 7, 5).astype(type)
        numbers = (((1, 2), (3, 0)), ((0,), (1,)))
        yield f"dot_{np.dtype(type).name}", lambda a, b: lax.dot_general(a, b, numbers), [a, b]
        yield f"matmul_{np.dtype(type).name}", lambda a, b: a @ b, [a[0, 0], b[:, 0].reshape(4, 35).T[:6]]
    yield "dot_wide", lambda a, b: lax.dot(a, b, preferred_element_type=np.float32), [
        floats(rng, 5, 9, type=jnp.bfloat16), floats(rng, 9, 4, type=jnp.bfloat16)
    ]
    yield "outer", lambda a, b: jnp.outer(a, b), [floats(rng, 5), floats(rng, 3)]
    for k in range(6):
        groups = int(rng.choice([1, 1, 2, 3]))
        strides, dilation, spread = (tuple(int(v) for v in rng.integers(1, 3, 2)) for _ in range(3))
        padding = [tuple(int(v) for v in rng.integers(-1, 3, 2)) for _ in range(2)]
        x, w = floats(rng, 2, 9, 8, 2 * groups), floats(rng, 3, 2, 2, 4 * groups)
        convolve = lambda x, w: lax.conv_general_dilated(
            x, w, strides, padding, lhs_dilation=spread, rhs_dilation=dilation,
            dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=groups
        )
        yield f"convolution_{k}", convolve, [x, w]
        both = lambda x, w: jax.grad(lambda x, w: (convolve(x, w) ** 2).sum(), (0, 1))(x, w)
        yield f"convolution_gradient_{k}", both, [x, w], 32, "largest"
    yield "convolution_1d", lambda x, w: lax.conv_general_dilated(x, w, (2,), "SAME"), [
        floats(rng, 2, 3, 11), floats(rng, 4, 3, 3)
    ]
    yield "convolution_batch_groups", lambda x, w: lax.conv_general_dilated(
        x, w, (1, 1), "VALID", batch_group_count=2
    ), [floats(rng, 4, 3, 5, 5), floats(rng, 6, 3, 2, 2)]
    yield "convolution_transpose", lambda x, w: lax.conv_transpose(x, w, (2, 2), "SAME"), [
        floats(rng, 2, 4, 5, 3), floats(rng, 3, 3, 3, 4)
    ]


@family
def reductions(rng):
    x = floats(rng, 4, 5, 6)
    for axes in ((0,), (1,), (2,), (0, 2), (0, 1, 2)):
        yield f"sum_{axes}", lambda x: (x.sum(axes), x.mean(axes)), [x]
        yield f"exact_{axes}", lambda x, i: (x.max(axes), x.min(axes), i.sum(axes), i.prod(axes), (i > 0).any(axes),
                                             (i > 0).all(axes)), [special(rng, 4, 5, 6), integers(rng, 4, 5, 6)]
    yield "logsumexp", lambda x: jax.nn.logsumexp(x, 1), [x], 8
    yield "variance", lambda x: (x.var(0), jnp.linalg.norm(x)), [x], 16
    yield "xor", lambda x: lax.reduce(x, np.int32(0), lax.bitwise_xor, (1,)), [integers(rng, 5, 7)]
    places = lambda x: lax.broadcasted_iota(np.int32, x.shape, 0)
    larger = lambda a, b: tuple(jnp.where(a[0] >= b[0], x, y) for x, y in zip(a, b))
    yield "argmax_pool", lambda x: lax.reduce_window(
        (x, places(x)), (np.float32(-np.inf), np.int32(-1)), larger, (3, 2), (2, 1), "SAME"
    ), [floats(rng, 9, 5)]
    for k in range(4):
        size, stride = (tuple(int(v) for v in rng.integers(1, 4, 2)) for _ in range(2))
        padding = [tuple(int(v) for v in rng.integers(0, size[d], 2)) for d in range(2)]
        dilation = tuple(int(v) for v in rng.integers(1, 3, 2))
        pool = lambda x: lax.reduce_window(x, np.float32(-np.inf), lax.max, size, stride, padding,
                                           window_dilation=dilation)
        yield f"max_pool_{k}", pool, [floats(rng, 11, 12)]
        total = lambda x: lax.reduce_window(x, np.int32(0), lax.add, size, stride, padding, base_dilation=dilation)
        yield f"sum_pool_{k}", total, [integers(rng, 9, 8)]
        flat = lambda x: lax.reduce_window(x, np.float32(-np.inf), lax.max, size, stride, padding)
        yield f"max_pool_gradient_{k}", jax.grad(lambda x: (flat(x) ** 2).sum()), [floats(rng, 9, 8)], 4
        mean = lambda x: lax.reduce_window(x, np.float32(0), lax.add, size, stride, padding)
        yield f"sum_pool_gradient_{k}", jax.grad(lambda x: (mean(x) ** 2).sum()), [floats(rng, 9, 8)], 16, "largest"


# Narrow types.


@family
def narrow(rng):
    for type in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz", "float8_e5m2fnuz", "float8_e4m3fnuz",
                 "float8_e4m3",
                 "float8_e3m4"):
        type = getattr(jnp, type)
        name = np.dtype(type).name
        yield f"to_{name}", lambda x: x.astype(type).astype(np.float32), [special(rng, 300) * 100]
        yield f"add_{name}", lambda x, y: (x.astype(type) + y.astype(type)).astype(np.float32), [
            floats(rng, 90), floats(rng, 90)
        ]
        yield f"dot_{name}", lambda x, y: lax.dot_general(
            x.astype(type), y.astype(type), (((1,), (0,)), ((), ())), preferred_element_type=np.float32
        ), [floats(rng, 4, 8), floats(rng, 8, 3)], 8, "largest"
        yield f"sort_{name}", lambda x: jnp.sort(x.astype(type)).astype(np.float32), [floats(rng, 40)]
        yield f"bits_{name}", lambda x: lax.bitcast_convert_type(x.astype(type), np.uint8), [floats(rng, 40)]
    for type in (jnp.int4, jnp.uint4):
        name = np.dtype(type).name
        yield f"arithmetic_{name}", lambda x, y: (
            (x.astype(type) * y.astype(type) - x.astype(type)).astype(np.int8), x.astype(type) < y.astype(type)
        ), [integers(rng, 50, low=0, high=3), integers(rng, 50, low=1, high=3)]  # XLA wraps some results only
        yield f"from_float_{name}", lambda x: x.astype(type).astype(np.int32), [floats(rng, 50) * 3]


# Fourier transforms.


@family
def fourier(rng):
    for shape, axes in [((16,), 1), ((3, 12), 1), ((2, 7), 1), ((2, 67), 1), ((134,), 1), ((4, 6, 10), 2),
                        ((3, 4, 5, 9), 3),
                        ((2, 1), 1), ((0, 4), 1)]:
        x, y = floats(rng, *shape), floats(rng, *shape)
        z, last = (x + 1j * y).astype(np.complex64), shape[-1]
        lengths = shape[len(shape) - axes:]
        half = z[..., : last // 2 + 1]
        for kind, operand in [("FFT", z), ("IFFT", z), ("RFFT", x), ("IRFFT", half)]:
            yield f"{kind}_{shape}_{axes}", lambda v: lax.fft(v, kind, lengths), [operand]
    wide = (rng.standard_normal((2, 15)) + 1j * rng.standard_normal((2, 15))).astype(np.complex128)
    yield "FFT_c128", lambda v: lax.fft(v, "FFT", (15,)), [wide]
    yield "RFFT_f64", lambda v: lax.fft(v, "RFFT", (15,)), [wide.real]
    yield "gradient", jax.grad(lambda v: (jnp.abs(jnp.fft.rfft(v)) ** 2).sum()), [floats(rng, 3, 10)], 16, "largest"


# Running and comparing.


def number(array):
    """As numpy computes with it."""
    array = np.asarray(array)
    return array.astype(np.float64) if array.dtype.kind in "fV" or "float" in array.dtype.name else array


def bits_below_byte(type):
    """Returns whether it is an integer type that files hold a byte for each element of."""
    return type.name in ("int2", "int4", "uint2", "uint4")


def bytes_of_narrow(array):
    """Returns integers of less than a byte as int8 or uint8, other types unchanged."""
    if not bits_below_byte(array.dtype):
        return array
    return array.astype(np.uint8 if array.dtype.name.startswith("u") else np.int8)


def difference(got, expected, units, of):
    """Returns the difference of `got`, or None."""
    if got.dtype.kind == "V":
        got = got.view(expected.dtype)
    elif bits_below_byte(expected.dtype):
        got = got.astype(expected.dtype)
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
        same &= np.isnan(a) | (np.signbit(a.real) == np.signbit(b.real))
    if expected.dtype in (np.float32, np.float64, jnp.bfloat16):
        same |= (b == 0) & (np.abs(a) < float(info.tiny))  # XLA takes denormals for zeros
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


def compare(hlo, arguments, expected, operators, units, of, folder):
    """Returns the difference of automap's results of a module (bytes) on named arguments, or None."""
    at = pathlib.Path(folder)
    (at / "operator.hlo.pb").write_bytes(hlo)
    np.savez(at / "state.npz", **{name: bytes_of_narrow(argument) for name, argument in arguments.items()})
    command = [AUTOMAP, "run", at / "operator.hlo.pb", "--inference", "--plan", "none", "--state", at / "state.npz"]
    command += ["--steps", "1", "--on-nan", "warn", "--outputs", at / "outputs.npz"]
    process = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if process.returncode != 0:
        return f"exit code {process.returncode}: {process.stderr.strip()}"
    outputs = np.load(at / "outputs.npz")
    for k, leaf in enumerate(expected):
        allowed = (units, of) if units is not None else bound(operators, leaf.dtype)
        wrong = difference(outputs[f"output[{k}]"], leaf, *allowed)
        if wrong:
            return f"output {k}: {wrong} (bound {allowed[0]:g} of {allowed[1]})"
    return None


def run(name, program, arguments, units=None, of="element", folder=".", platform="cpu"):
    """Compares JAX's results of a program with automap's. Returns the difference, or None."""
    function = jax.jit(lambda *a: program(*a), keep_unused=True)
    arguments = [np.asarray(argument) for argument in arguments]
    lowered = function.trace(*arguments).lower(lowering_platforms=(platform,))
    expected = [np.asarray(leaf) for leaf in jax.tree.leaves(function(*arguments))]
    hlo = lowered.compiler_ir("hlo")
    operators = operators_of(hlo.as_hlo_text())
    named = {f"a[{k}]": argument for k, argument in enumerate(arguments)}
    return compare(hlo.as_serialized_hlo_module_proto(), named, expected, operators, units, of, folder)


def main(families, platforms):
    """Runs the families named on the command line, or all; without AUTOMAP_FULL=1 a sample of them."""
    chosen = sys.argv[1:] or list(families)
    draw = lambda name, round: families[name](np.random.default_rng([zlib.crc32(name.encode()), round]))
    total = sum(1 for name in chosen for _ in draw(name, 0))
    step = 1 if FULL or sys.argv[1:] else -(-total // SAMPLE)
    count, failures = 0, []
    with tempfile.TemporaryDirectory() as folder:
        for round in range(ROUNDS):
            programs = ((name, case) for name in chosen for case in draw(name, round))
            for name, case in itertools.islice(programs, 0, None, step):
                wrong = run(*case, folder=folder, platform=platforms.get(name, "cpu"))
                count += 1
                if wrong:
                    failures.append(f"{name}/{case[0]} (round {round}): {wrong}")
                    print(failures[-1], flush=True)
    print(f"{count} programs of {total} in the list, {len(failures)} wrong")
    return 1 if failures or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main(FAMILIES, PLATFORMS))
