# labels: jax e2e
# timeout: 1800
# cost: 25
"""Every operator on every element type gives what JAX gives.

Where test_operators.py draws shapes and attributes, this goes through types: floats down to f4,
integers down to two bits, complex numbers of both widths; operators that JAX on CPU passes to LAPACK; functions
that JAX makes of many operators; and modules written as text, for what JAX does not make, which
XLA's own compiler runs beside ours. It also compares docs/running.md with the tool.

Run as `AUTOMAP=build/automap python3 tests/e2e/test_operator_types.py [FAMILY ...]`.
"""

import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "oracle"))
import opcode_modules
import test_operators as base  # exits with 77 where there is no JAX
from test_operators import floats, integers, jax, jnp, lax, np, special
from jaxlib import _hlo, _jax, xla_client

FAMILIES = {}
PLATFORMS = {"complex_matrices": "tpu", "ragged": "tpu"}

FLOATS = [np.float32, np.float64, jnp.bfloat16, np.float16] + [
    getattr(jnp, name) for name in (
        "float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz", "float8_e5m2fnuz", "float8_e4m3fnuz", "float8_e4m3",
        "float8_e3m4", "float8_e8m0fnu", "float4_e2m1fn")
]
INTEGERS = [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64]
NARROW_INTEGERS = [jnp.int4, jnp.uint4, jnp.int2, jnp.uint2]
COMPLEX = [np.complex64, np.complex128]


def family(function):
    FAMILIES[function.__name__] = function
    return function


def numbers(rng, type, *shape):
    """Small numbers of any type."""
    type = np.dtype(type)
    if jnp.issubdtype(type, jnp.complexfloating):
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(type)
    if jnp.issubdtype(type, jnp.floating):
        values = rng.standard_normal(shape)
        return (np.abs(values) + 0.1 if type.name == "float8_e8m0fnu" else values).astype(type)
    if type == np.bool_:
        return rng.random(shape) < 0.5
    info = jnp.iinfo(type)
    return rng.integers(max(info.min, -9), min(info.max, 9), shape, endpoint=True).astype(type)


def shared(rng, type):
    """Operators of every type: moving, choosing, gathering, scattering, products and reductions."""
    v = lambda *shape: numbers(rng, type, *shape)
    name = np.dtype(type).name
    place = np.int32(rng.integers(-3, 6))
    yield f"moved_{name}", lambda x, y, i: (
        x.T, x.reshape(10, 2), lax.rev(x, (1,)), lax.pad(x, y[0], [(1, -1, 1), (-1, 2, 0)]),
        lax.slice(x, (1, 0), (4, 5), (2, 3)), lax.concatenate([x, x[:1]], 0), lax.broadcast_in_dim(y, (3, 4, 2), (1,)),
        lax.dynamic_slice(x, (i, i), (2, 2)), lax.dynamic_update_slice(x, x[:2, :3], (i, i)), x[:0],
        lax.optimization_barrier(x), jnp.where(x == x[0, 0], x, x[1, 1])
    ), [v(4, 5), v(4), place]
    yield f"gather_{name}", lambda x, i: (x[i], jnp.take_along_axis(x, i[:1, None] % 5, 1)), [
        v(6, 5), integers(rng, 4, low=0, high=6)
    ]
    places = np.array([0, 2, 5], np.int32)
    yield f"scatter_{name}", lambda x, i, u: x.at[i].set(u), [v(6, 5), places, v(3, 5)]
    if type == np.bool_ or type in (jnp.int2, jnp.uint2):
        return
    twice = np.array([0, 2, 2], np.int32)
    yield f"scatter_add_{name}", lambda x, i, u: x.at[i].add(u), [v(6, 5), twice, v(3, 5)]
    yield f"scatter_multiply_{name}", lambda x, i, u: x.at[i].mul(u), [v(6, 5), twice, v(3, 5)]
    yield f"dot_{name}", lambda x, y: lax.dot_general(x, y, (((2,), (1,)), ((0,), (0,)))), [v(2, 3, 4), v(2, 4, 3)]
    yield f"convolution_{name}", lambda x, w: lax.conv_general_dilated(
        x, w, (2, 1), [(1, -1), (0, 2)], (1, 2), (2, 1)
    ), [v(2, 3, 7, 6), v(4, 3, 2, 3)]
    yield f"convolution_groups_{name}", lambda x, w: lax.conv_general_dilated(
        x, w, (1,), "SAME", feature_group_count=2
    ), [v(2, 4, 7), v(6, 2, 3)]
    yield f"sum_{name}", lambda x: (lax.reduce_sum(x, (0,)), lax.reduce_sum(x, (1,))), [v(6, 5)]
    yield f"product_{name}", lambda x: lax.reduce_prod(x, (1,)), [v(6, 3)]
    yield f"window_{name}", lambda x: lax.reduce_window(
        x, np.zeros((), type), lax.add, (2, 3), (1, 2), [(1, 0), (1, 1)], (2, 1), (1, 2)
    ), [v(6, 7)]
    yield f"loop_{name}", lambda x: lax.fori_loop(0, 3, lambda i, s: lax.cond(i == 1, lambda s: -s, lambda s: s, s),
                                                  x), [
        v(4) if jnp.issubdtype(type, jnp.inexact) else v(4)
    ]


def ordered(rng, type):
    """Operators of types with an order."""
    v = lambda *shape: numbers(rng, type, *shape)
    name = np.dtype(type).name
    yield f"largest_{name}", lambda x, y: (
        lax.max(x, y), lax.min(x, y), lax.reduce_max(x, (1,)), lax.reduce_min(x, (0, 1)), x < y, x >= y,
        lax.argmax(x, 1, np.int32), lax.argmin(x, 0, np.int32), lax.cummax(x), lax.clamp(x[0, 0], x, y[0, 0])
    ), [v(6, 5), v(6, 5)]
    yield f"sort_{name}", lambda x, y: (lax.sort(x, dimension=0), lax.sort((x, y), num_keys=1)), [v(9, 3), v(9, 3)]
    if type not in NARROW_INTEGERS and name != "float4_e2m1fn":  # XLA does not take these apart
        yield f"top_k_{name}", lambda x: lax.top_k(x, 3), [v(4, 9)]
    yield f"scatter_largest_{name}", lambda x, i, u: x.at[i].max(u), [v(6, 5), np.array([0, 2, 2], np.int32), v(3, 5)]


@family
def floating(rng):
    for type in FLOATS:
        name, v = np.dtype(type).name, lambda *shape: numbers(rng, type, *shape)
        yield from shared(rng, type)
        yield from ordered(rng, type)
        yield f"exact_{name}", lambda x, y: (
            lax.abs(x), lax.neg(x), lax.sign(x), lax.floor(x), lax.ceil(x), lax.round(x, 0), lax.round(x, 1),
            lax.is_finite(x), x + y, x - y, x * y, lax.reduce_precision(x, 4, 2)
        ), [v(7, 5), v(7, 5)]
        yield f"divide_{name}", lambda x, y: (x / y, lax.rem(x, y)), [v(7, 5), v(7, 5)]
        if name != "float8_e8m0fnu":
            for function in (lax.exp, lax.log1p, lax.tanh, lax.logistic, lax.sin, lax.cbrt):
                yield f"{function.__name__}_{name}", function, [v(31)]
        if name in ("float32", "float64", "bfloat16", "float16", "float8_e5m2", "float8_e4m3", "float8_e3m4"):
            yield f"pool_gradient_{name}", lambda x, y: jax.vjp(lambda x: lax.reduce_window(
                x, np.asarray(-np.inf, type), lax.max, (2, 2), (2, 2), "VALID"
            ), x)[1](y), [v(6, 6), v(3, 3)]


@family
def whole(rng):
    for type in INTEGERS + NARROW_INTEGERS + [np.bool_]:
        name, v = np.dtype(type).name, lambda *shape: numbers(rng, type, *shape)
        if type in (jnp.int2, jnp.uint2, np.bool_):
            yield from (case for case in shared(rng, type))
        else:
            yield from shared(rng, type)
            yield from ordered(rng, type)
        if type == np.bool_:
            yield "logic_bool", lambda x, y: (x & y, x | y, x ^ y, ~x, x == y, x != y, lax.reduce_or(x, (0,)),
                                              lax.reduce_and(x, (1,)), lax.reduce_xor(x, (0,))), [v(7, 5), v(7, 5)]
            continue
        yield f"arithmetic_{name}", lambda x, y: (
            x + y, x - y, x * y, lax.neg(x), lax.sign(x), x & y, x | y, x ^ y, ~x, lax.integer_pow(x, 3)
        ), [v(40), v(40)]
        if jnp.iinfo(type).bits >= 8:
            yield f"quotient_{name}", lambda x, y: (lax.div(x, y), lax.rem(x, y)), [v(40), v(40)]
        # XLA counts the sign more than once
        counted = np.maximum(v(40).astype(np.int64), 0).astype(type) if type is jnp.int4 else v(40)
        yield f"bits_{name}", lambda x: (lax.clz(x), lax.population_count(x)), [counted]
        shift = rng.integers(0, 2 if jnp.iinfo(type).bits < 8 else 8, 40).astype(type)
        yield f"shift_{name}", lambda x, s: (
            lax.shift_left(x, s), lax.shift_right_logical(x, s), lax.shift_right_arithmetic(x, s)
        ), [v(40), shift]


@family
def converted(rng):
    """From every type to every other: rounding, saturation, overflow."""
    targets = FLOATS + COMPLEX + INTEGERS + [np.bool_]
    for source in FLOATS + INTEGERS + NARROW_INTEGERS[:2] + [np.bool_]:
        values = numbers(rng, source, 40)
        if source in (np.float32, np.float64):
            scale = 10.0 ** rng.integers(-3, 7, 80)
            values = np.concatenate([special(rng, 80, type=source),
                                     floats(rng, 80, type=source) * scale]).astype(source)
        yield f"from_{np.dtype(source).name}", lambda x: [lax.convert_element_type(x, t) for t in targets], [values]
    for source in COMPLEX:
        yield f"from_{np.dtype(source).name}", lambda x: [
            lax.convert_element_type(x, t) for t in COMPLEX
        ] + [lax.real(x), lax.imag(x)], [numbers(rng, source, 40)]
    for source, target in ((np.float32, jnp.int4), (np.uint8, jnp.uint4), (np.int64, np.float32), (np.uint16, jnp.int4),
                           (jnp.bfloat16, np.float16), (jnp.int4, jnp.uint4), (np.float64, np.uint16)):
        yield f"bits_{np.dtype(source).name}_{np.dtype(target).name}", lambda x: lax.bitcast_convert_type(x, target), [
            numbers(rng, source, 4, 8)
        ]


@family
def complex_numbers(rng):
    for type in COMPLEX:
        name, v = np.dtype(type).name, lambda *shape: numbers(rng, type, *shape)
        yield from shared(rng, type)
        yield f"plain_{name}", lambda x, y: (x + y, x - y, lax.neg(x), lax.conj(x), x == y, x != y,
                                             lax.max(x, y), lax.min(x, y)), [v(7, 5), v(7, 5)]
        for function in (lax.mul, lax.div, lax.pow, lax.atan2):
            yield f"{function.__name__}_{name}", function, [v(7, 5), v(7, 5)]
        for function in (lax.abs, lax.sign, lax.exp, lax.expm1, lax.log, lax.log1p, lax.sqrt, lax.rsqrt, lax.sin,
                         lax.cos, lax.tan, lax.tanh, lax.logistic, lax.asin, lax.acos, lax.atan, lax.sinh, lax.cosh,
                         lax.asinh, lax.acosh, lax.atanh):
            yield f"{function.__name__}_{name}", function, [v(7, 5)], 64, "largest"
        yield f"sort_{name}", lambda x: lax.sort(x), [v(12)]
        yield f"fft_{name}", lambda x: lax.fft(x, "FFT", (12,)), [v(2, 12)]
        yield f"cumulative_{name}", lambda x: (lax.cumsum(x), lax.cumprod(x)), [v(9, 2)]


@family
def complex_matrices(rng):
    for type in COMPLEX:
        name, v = np.dtype(type).name, lambda *shape: numbers(rng, type, *shape)
        yield f"cholesky_{name}", lambda x: lax.linalg.cholesky(x @ x.conj().T
                                                                + np.eye(4, dtype=type)), [v(4, 4)], 64, "largest"
        for lower in (True, False):
            yield f"triangular_solve_{lower}_{name}", lambda a, b: lax.linalg.triangular_solve(
                a, b, left_side=lower, lower=lower, transpose_a=True, conjugate_a=not lower
            ), [v(4, 4) + 4 * np.eye(4, dtype=type), v(4, 2) if lower else v(2, 4)]


@family
def libraries(rng):
    """Operators that JAX passes to LAPACK: the routine's own signs where they are equal, else reconstructions."""
    linalg = lax.linalg
    for type in (np.float32, np.float64, np.complex64, np.complex128):
        name, v = np.dtype(type).name, lambda *shape: numbers(rng, type, *shape)
        near = 256, "largest"
        adjoint = lambda x: jnp.swapaxes(x, -1, -2).conj()
        square = v(2, 5, 5)
        yield f"cholesky_{name}", lambda x: linalg.cholesky(x @ adjoint(x) + np.eye(5, dtype=type)), [square], *near
        yield f"lu_{name}", lambda x: linalg.lu(x), [v(2, 4, 5)], *near
        yield f"qr_{name}", lambda x: linalg.qr(x, full_matrices=False), [v(3, 5, 3)], *near
        yield f"qr_full_{name}", lambda x: linalg.qr(x), [v(5, 3)], *near
        yield f"qr_pivots_{name}", lambda x: linalg.qr(x, pivoting=True), [v(5, 4)], *near

        def rebuilt(x, **options):
            u, s, w = linalg.svd(x, full_matrices=False, **options)
            return s, (u * s[..., None, :].astype(type)) @ w

        yield f"svd_{name}", lambda x: rebuilt(x), [v(2, 5, 3)], *near
        yield f"svd_qr_{name}", lambda x: rebuilt(x, algorithm=linalg.SvdAlgorithm.QR), [v(3, 5)], *near
        yield f"svd_values_{name}", lambda x: linalg.svd(x, compute_uv=False), [v(4, 4)], *near
        yield f"svd_full_{name}", lambda x: jnp.abs(linalg.svd(x)[0] @ adjoint(linalg.svd(x)[0])), [v(5, 3)], *near

        def hermitian(x, lower=True):
            x = x + adjoint(x)
            vectors, values = linalg.eigh(x, lower=lower)
            return values, (vectors * values[..., None, :].astype(type)) @ adjoint(vectors)

        yield f"eigh_{name}", lambda x: hermitian(x), [square], *near
        yield f"eigh_upper_{name}", lambda x: hermitian(x, lower=False), [square], *near

        def eigen(x):
            values, vectors = linalg.eig(x, compute_left_eigenvectors=False)
            return x.astype(vectors.dtype) @ vectors - vectors * values[..., None, :] + 1

        yield f"eig_{name}", eigen, [square], *near
        yield f"eig_fails_{name}", lambda x: linalg.eig(x)[0], [np.full((3, 3), np.nan, type)]

        def schur(x):
            triangle, vectors = linalg.schur(x)
            return vectors @ triangle @ adjoint(vectors)

        yield f"schur_{name}", schur, [v(5, 5)], *near
        yield f"hessenberg_{name}", lambda x: linalg.hessenberg(x), [square], *near
        yield f"tridiagonal_{name}", lambda x: linalg.tridiagonal(x + adjoint(x)), [square], *near
        yield f"tridiagonal_solve_{name}", lambda a, b, c, d: linalg.tridiagonal_solve(a, b + 4, c, d), [
            v(5), v(5), v(5), v(5, 2)
        ], *near
        for left in (True, False):
            yield f"triangular_solve_{left}_{name}", lambda a, b: linalg.triangular_solve(
                a + 4 * np.eye(4, dtype=type), b, left_side=left, lower=not left, transpose_a=left, conjugate_a=True
            ), [v(3, 4, 4), v(3, 4, 2) if left else v(3, 2, 4)], *near
        yield f"determinant_{name}", lambda x: (jnp.linalg.det(x), jnp.linalg.solve(x, x[..., :2])), [square], *near
        yield f"empty_{name}", lambda x: linalg.qr(x), [v(0, 3, 2)]


@family
def composed(rng):
    """Functions that JAX makes of many operators; their errors add up."""
    for type in (np.float32, np.float64):
        name, x = np.dtype(type).name, np.abs(floats(rng, 30, type=type)) + np.asarray(0.1, type)
        y = np.abs(floats(rng, 30, type=type)) + np.asarray(0.1, type)
        for function in (lax.erfc, lax.erf_inv, lax.lgamma, lax.digamma, lax.bessel_i0e, lax.bessel_i1e, lax.asin,
                         lax.acos, lax.acosh, lax.atanh):
            argument = np.clip(x, 0,
                               np.asarray(0.99,
                                          type)) if function in (lax.erf_inv, lax.asin, lax.acos, lax.atanh) else x
            argument = argument + 1 if function is lax.acosh else argument
            yield f"{function.__name__}_{name}", function, [argument], 256, "largest"
        for function in (lax.igamma, lax.igammac, lax.zeta, lax.polygamma, lax.nextafter, lax.random_gamma_grad):
            first = np.floor(x) + 1 if function is lax.polygamma else x + 1
            yield f"{function.__name__}_{name}", function, [first, y], 4096, "largest"
        yield f"betainc_{name}", lambda a, x: lax.betainc(a, a, x / (1 + x)), [x, y], 4096, "largest"
    yield "approx_max_k", lambda x: lax.approx_max_k(x, 4), [floats(rng, 3, 50)]
    yield "approx_min_k", lambda x: lax.approx_min_k(x, 4), [floats(rng, 3, 50)]
    for sizes in ([2, 4, 1], [0, 7, 0], [2, 1, 1]):
        yield f"ragged_dot_{sizes}", lambda x, y, g: lax.ragged_dot(x, y, g), [
            floats(rng, 7, 4), floats(rng, 3, 4, 5), np.array(sizes, np.int32)
        ]


@family
def ragged(rng):
    """Lowered for another platform, where JAX does not take ragged products apart."""
    for sizes in ([2, 4, 1], [0, 7, 0], [2, 1, 1]):
        for type in (np.float32, jnp.bfloat16, np.float64):
            name = f"{sizes}_{np.dtype(type).name}"
            group = np.array(sizes, np.int32)
            yield f"rows_{name}", lambda x, y, g: lax.ragged_dot(x, y, g), [
                floats(rng, 7, 4, type=type), floats(rng, 3, 4, 5, type=type), group
            ]
            contracted = lax.RaggedDotDimensionNumbers((((1,), (0,)), ((), ())), [1], [])
            yield f"sums_{name}", lambda x, y, g: lax.ragged_dot_general(x, y, g, contracted), [
                floats(rng, 4, 7, type=type), floats(rng, 7, 5, type=type), group
            ]


@family
def specials(rng):
    """Infinities, NaN, zeros of both signs, the least and the largest numbers, in all pairs."""
    few = np.array([0.0, -0.0, 1, -2.5, np.inf, -np.inf, np.nan])
    grid = np.array([complex(a, b) for a in few for b in few])
    for type in COMPLEX:
        name, x, y = np.dtype(type).name, np.repeat(grid, len(grid)).astype(type), np.tile(grid, len(grid)).astype(type)
        for function in (lax.add, lax.mul, lax.div):
            yield f"{function.__name__}_{name}", function, [x, y], 4
        for function in (lax.abs, lax.sign, lax.exp, lax.expm1, lax.log, lax.log1p, lax.sqrt, lax.rsqrt, lax.sin,
                         lax.cos,
                         lax.tan, lax.tanh, lax.logistic, lax.asin, lax.acos, lax.atan, lax.sinh, lax.cosh, lax.asinh,
                         lax.acosh, lax.atanh):
            yield f"{function.__name__}_{name}", function, [grid.astype(type)], 64
    for type in (np.float32, np.float64, jnp.bfloat16, np.float16):
        name, info = np.dtype(type).name, jnp.finfo(type)
        least, most = float(info.tiny), float(info.max)
        values = [0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, most, -most, least, -least, 0.5, -0.5, 1 + float(info.eps)]
        if np.dtype(type).itemsize >= 4:
            values += [88.7, -87.3, 89, -104, 709.7, -745, 1e5, 1e10, 1e22]
        values = np.array(values).astype(type)
        for function in (lax.exp, lax.exp2, lax.expm1, lax.log, lax.log1p, lax.sqrt, lax.rsqrt, lax.cbrt, lax.sin,
                         lax.cos,
                         lax.tan, lax.tanh, lax.logistic, lax.erf, lax.atan, lax.sinh, lax.cosh, lax.asinh):
            yield f"{function.__name__}_{name}", function, [values]
        x, y = np.repeat(values, len(values)), np.tile(values, len(values))
        yield f"pairs_{name}", lambda x, y: (x + y, x - y, x * y, lax.max(x, y), lax.min(x, y), x < y, x == y), [x, y]
        yield f"quotients_{name}", lambda x, y: (x / y, lax.rem(x, y), lax.pow(x, y), lax.atan2(x, y)), [x, y]


@family
def indices(rng):
    """Gather and scatter with batching dimensions, implicit index vectors, huge indices and every index type."""
    for type in (np.int8, np.int32, np.int64, np.uint8, np.uint32, np.uint64):
        info = np.iinfo(type)
        places = np.array([0, 3, 5, info.max, info.max // 2, info.min], type)
        for mode in ("clip", "fill", "drop"):
            yield f"take_{np.dtype(type).name}_{mode}", lambda x, i: x.at[i].get(
                mode="fill" if mode == "drop" else mode), [floats(rng, 6, 2), places]
            yield f"add_{np.dtype(type).name}_{mode}", lambda x, i, u: x.at[i].add(u, mode=mode), [
                integers(rng, 6, 2), places, integers(rng, 6, 2)
            ]
        yield f"slice_{np.dtype(type).name}", lambda x, i: (
            lax.dynamic_slice(x, (i[3], i[5]), (2, 1)), lax.dynamic_update_slice(x, x[:2], (i[4], i[0]))
        ), [floats(rng, 6, 2), places]
    numbers_of = lax.GatherDimensionNumbers(offset_dims=(2,), collapsed_slice_dims=(1,), start_index_map=(1,),
                                            operand_batching_dims=(0,), start_indices_batching_dims=(0,))
    yield "gather_batching", lambda x, i: lax.gather(x, i, numbers_of, (1, 1, 4), mode="clip"), [
        floats(rng, 3, 6, 4), integers(rng, 3, 5, 1, low=-2, high=9)
    ]
    target = lax.ScatterDimensionNumbers(update_window_dims=(2,), inserted_window_dims=(1,),
                                         scatter_dims_to_operand_dims=(1,),
                                         operand_batching_dims=(0,), scatter_indices_batching_dims=(0,))
    yield "scatter_batching", lambda x, i, u: lax.scatter_add(x, i, u, target, mode="drop"), [
        integers(rng, 3, 6, 4), integers(rng, 3, 5, 1, low=-2, high=9), integers(rng, 3, 5, 4)
    ]
    yield "scatter_apply", lambda x, i: x.at[i].apply(jnp.square), [integers(rng, 6), np.array([1, 4], np.int32)]


@family
def windows(rng):
    """Convolutions of one to three dimensions, depthwise, grouped, transposed, reversed; empty ones."""
    for rank in (1, 2, 3):
        for k in range(4):
            groups, batches = ((1, 1), (3, 1), (1, 2), (4, 1))[k]
            sizes = tuple(int(n) for n in rng.integers(4, 7, rank))
            window = tuple(int(n) for n in rng.integers(1, 4, rank))
            options = dict(
                window_strides=tuple(int(n) for n in rng.integers(1, 3, rank)),
                padding=[tuple(int(n) for n in rng.integers(-1, 3, 2)) for _ in range(rank)],
                lhs_dilation=tuple(int(n) for n in rng.integers(1, 3, rank)),
                rhs_dilation=tuple(int(n) for n in rng.integers(1, 3, rank)),
                feature_group_count=groups, batch_group_count=batches,
            )
            inputs = groups * (1 if k == 3 else 2)
            convolve = lambda x, w: lax.conv_general_dilated(x, w, **options)
            yield f"convolution_{rank}_{k}", convolve, [
                floats(rng, 2 * batches, inputs, *sizes), floats(rng, 4 * groups * batches, inputs // groups, *window)
            ]
        yield f"transposed_{rank}", lambda x, w: lax.conv_transpose(x, w, (2,) * rank, "SAME", transpose_kernel=True), [
            floats(rng, 2, *sizes, 3), floats(rng, *window, 3, 3)
        ]
    yield "no_output", lambda x, w: lax.conv_general_dilated(x, w, (1,), "VALID"), [
        floats(rng, 2, 3, 2), floats(rng, 4, 3, 3)
    ]
    yield "no_features", lambda x, w: lax.conv_general_dilated(x, w, (1,), "VALID"), [
        floats(rng, 2, 0, 5), floats(rng, 4, 0, 3)
    ]
    middle = lambda a, b: (jnp.maximum(a[0], b[0]), a[1] ^ b[1])
    yield "reduce_two", lambda x, y: lax.reduce((x, y), (np.float32(-np.inf), np.int32(0)), middle, (1,)), [
        floats(rng, 5, 1), integers(rng, 5, 1)
    ]
    largest = lambda a, b: tuple(jnp.where((a[0] > b[0]) | ((a[0] == b[0]) & (a[1] < b[1])), x, y)
                                 for x, y in zip(a, b))
    yield "reduce_arg", lambda x, y: lax.reduce((x, y), (np.int32(-99), np.int32(99)), largest, (0,)), [
        integers(rng, 9, 4, low=0, high=4), np.broadcast_to(np.arange(9, dtype=np.int32)[:, None], (9, 4))
    ]


# Modules written as text: what JAX does not make. XLA's compiler gives the expected results.


def pair(type, operator, name="f"):
    return f"{name} {{ a = {type}[] parameter(0) b = {type}[] parameter(1) ROOT s = {type}[] {operator}(a, b) }}\n"


def compare_pair(type, direction, name="g"):
    return (f"{name} {{ a = {type}[] parameter(0) b = {type}[] parameter(1) ROOT s = pred[] compare(a, b), "
            f"direction={direction} }}\n")


def elementwise_modules(rng):
    """One module for each element-wise opcode of ir/opcodes.def whose operands and result have one type."""
    for operands in (1, 2):
        parameters = [f"x{k} = <T>[60] parameter({k})" for k in range(operands)]
        arguments = ", ".join(f"x{k}" for k in range(operands))
        text = "\n".join(["ENTRY e {", *parameters, f"ROOT r = <T>[60] <OP>({arguments})", "}"])
        floating, exact = opcode_modules.ELEMENTWISE[operands]
        for name in sorted({*floating, *exact} - {"mulhi"}):  # StableHLO has no mulhi
            for hlo, type in (("s32", np.int32),) if name in exact else (("f32", np.float32), ("bf16", jnp.bfloat16)):
                draw = (lambda: integers(rng, 60, type=type)) if name in exact else lambda: special(rng, 60, type=type)
                yield (f"{name}_{hlo}", text.replace("<T>", hlo).replace("<OP>", name),
                       [draw() for _ in range(operands)])


def modules(rng):
    """(name, text, arguments[, units, of])"""
    yield from elementwise_modules(rng)
    x = floats(rng, 6, 7)
    yield "map", pair("f32", "multiply") + "ENTRY e { x = f32[6,7] parameter(0) y = f32[6,7] parameter(1)\n" \
        "  ROOT r = f32[6,7] map(x, y), dimensions={0,1}, to_apply=f }", [x, x * 2]
    for direction in ("GE", "LE", "GT", "LT"):
        yield f"select_and_scatter_{direction}", compare_pair("f32", direction) + pair("f32", "add") + \
            "ENTRY e { x = f32[6,7] parameter(0) u = f32[3,3] parameter(1) z = f32[] constant(1)\n" \
            "  ROOT r = f32[6,7] select-and-scatter(x, u, z), window={size=2x3 stride=2x2}, select=g, scatter=f }", \
            [np.round(x), np.round(floats(rng, 3, 3) * 4)]
    yield "select_and_scatter_maximum", compare_pair("s32", "GE") + pair("s32", "maximum") + \
        "ENTRY e { x = s32[6,7] parameter(0) u = s32[6,7] parameter(1) z = s32[] constant(-3)\n" \
        "  ROOT r = s32[6,7] select-and-scatter(x, u, z), window={size=3x3 pad=1_1x1_1}, select=g, scatter=f }", \
        [integers(rng, 6, 7, low=0, high=5), integers(rng, 6, 7)]
    yield "gather_implicit", "ENTRY e { x = f32[6,7] parameter(0) i = s32[5] parameter(1)\n" \
        "  ROOT r = f32[5,7] gather(x, i), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, " \
        "index_vector_dim=1, slice_sizes={1,7} }", [x, integers(rng, 5, low=-3, high=9)]
    yield "gather_first", "ENTRY e { x = f32[6,7] parameter(0) i = s32[2,5] parameter(1)\n" \
        "  ROOT r = f32[5,2,3] gather(x, i), offset_dims={1,2}, collapsed_slice_dims={}, start_index_map={1,0}, " \
        "index_vector_dim=0, slice_sizes={2,3} }", [x, integers(rng, 2, 5, low=-3, high=9)]
    yield "scatter_implicit", pair("s32", "add") + "ENTRY e { x = s32[6,7] parameter(0) i = s32[5] parameter(1)\n" \
        "  u = s32[5,7] parameter(2)\n  ROOT r = s32[6,7] scatter(x, i, u), update_window_dims={1}, " \
        "inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=f }", \
        [integers(rng, 6, 7), integers(rng, 5, low=-1, high=8), integers(rng, 5, 7)]
    for labels in ("b01f_01io->b01f", "f01b_i01o->01bf", "b01f_01oi->b01f"):
        shape = dict(b=2, f=3, **{"0": 6, "1": 5})
        lhs = [shape[c] for c in labels.split("_")[0]]
        rhs = [{"i": 3, "o": 4, "0": 2, "1": 3}[c] for c in labels.split("_")[1].split("->")[0]]
        out = [{"b": 2, "f": 4, "0": 5, "1": 3}[c] for c in labels.split("->")[1]]
        dims = lambda d: ",".join(map(str, d))
        yield f"convolution_reversed_{labels}", \
            f"ENTRY e {{ x = f32[{dims(lhs)}] parameter(0) w = f32[{dims(rhs)}] parameter(1)\n" \
            f"  ROOT r = f32[{dims(out)}] convolution(x, w), window={{size=2x3 rhs_reversal=1x1}}, " \
            f"dim_labels={labels} }}", \
            [floats(rng, *lhs), floats(rng, *rhs)]
    yield "sort_by_remainder", \
        "g { a = s32[] parameter(0) b = s32[] parameter(1) p = f32[] parameter(2) q = f32[] parameter(3)\n" \
        "  t = s32[] constant(3) c = s32[] remainder(a, t) d = s32[] remainder(b, t)\n" \
        "  ROOT r = pred[] compare(c, d), direction=LT }\n" \
        "ENTRY e { x = s32[3,20] parameter(0) y = f32[3,20] parameter(1)\n" \
        "  s = (s32[3,20], f32[3,20]) sort(x, y), dimensions={1}, is_stable=true, to_apply=g\n" \
        "  ROOT r = f32[3,20] get-tuple-element(s), index=1 }", \
        [integers(rng, 3, 20, low=0), floats(rng, 3, 20)]
    yield "reverse_window", pair("f32", "maximum") + "ENTRY e { x = f32[6,7] parameter(0) z = f32[] constant(-inf)\n" \
        "  ROOT r = f32[5,6] reduce-window(x, z), window={size=3x2 pad=1_0x0_0}, to_apply=f }", [x]
    yield "batch_norm_training", \
        "ENTRY e { x = f32[4,3,5] parameter(0) s = f32[3] parameter(1) o = f32[3] parameter(2)\n" \
        "  t = (f32[4,3,5], f32[3], f32[3]) batch-norm-training(x, s, o), epsilon=0.001, feature_index=1\n" \
        "  y = f32[4,3,5] get-tuple-element(t), index=0 v = f32[3] get-tuple-element(t), index=2\n" \
        "  ROOT r = (f32[4,3,5], f32[3]) tuple(y, v) }", \
        [floats(rng, 4, 3, 5), floats(rng, 3), floats(rng, 3)]
    yield "batch_norm_inference", \
        "ENTRY e { x = f32[4,3,5] parameter(0) s = f32[3] parameter(1) o = f32[3] parameter(2)\n" \
        "  m = f32[3] parameter(3) v = f32[3] parameter(4)\n" \
        "  ROOT r = f32[4,3,5] batch-norm-inference(x, s, o, m, v), epsilon=0.001, feature_index=1 }", \
        [floats(rng, 4, 3, 5), floats(rng, 3), floats(rng, 3), floats(rng, 3), np.abs(floats(rng, 3)) + 1]
    yield "batch_norm_grad", "ENTRY e { x = f32[4,3,5] parameter(0) s = f32[3] parameter(1) m = f32[3] parameter(2)\n" \
        "  v = f32[3] parameter(3) g = f32[4,3,5] parameter(4)\n" \
        "  t = (f32[4,3,5], f32[3], f32[3]) batch-norm-grad(x, s, m, v, g), epsilon=0.001, feature_index=1\n" \
        "  y = f32[4,3,5] get-tuple-element(t), index=0 d = f32[3] get-tuple-element(t), index=1\n" \
        "  ROOT r = (f32[4,3,5], f32[3]) tuple(y, d) }", \
        [floats(rng, 4, 3, 5), floats(rng, 3), floats(rng, 3), np.abs(floats(rng, 3)) + 1,
         floats(rng, 4, 3, 5)], 64, "largest"
    for type, numpy in (("f32", np.float32), ("f64", np.float64), ("bf16", jnp.bfloat16), ("s32", np.int32)):
        values = special(rng, 9, type=numpy) if numpy != np.int32 else integers(rng, 9)
        yield f"total_order_{type}", f"ENTRY e {{ x = {type}[9] parameter(0) y = {type}[9] parameter(1)\n" \
            f"  ROOT r = pred[9] compare(x, y), direction=LE{', type=TOTALORDER' if numpy != np.int32 else ''} }}", \
            [values, np.roll(values, 1)]
    yield "stochastic_convert", "ENTRY e { x = f32[40] parameter(0) b = u32[40] parameter(1)\n" \
        "  ROOT r = s8[40] stochastic-convert(x, b) }", \
        [floats(rng, 40) * 60, integers(rng, 40, type=np.uint32, low=0, high=2**32)]
    yield "rounding", \
        "ENTRY e { x = f32[8] parameter(0) a = f32[8] round-nearest-afz(x) b = f32[8] round-nearest-even(x)\n" \
        "  ROOT r = (f32[8], f32[8]) tuple(a, b) }", [np.array([0.5, 1.5, -0.5, -2.5, 2.4, -0.0, np.inf, 3.5],
                                                               np.float32)]
    yield "power_of_integers", ("ENTRY e { x = s32[8] parameter(0) y = s32[8] parameter(1) ROOT r = s32[8] power(x, y) "
                                "}"), [
        np.array([2, -3, 0, 5, 1, -1, 7, 2], np.int32), np.array([10, 3, 0, 1, 9, 5, 2, 31], np.int32)
    ]
    yield "dimension_size", "ENTRY e { x = f32[6,7] parameter(0) s = s32[] get-dimension-size(x), dimensions={1}\n" \
        "  ROOT r = (f32[6,7], s32[]) tuple(x, s) }", [x]


def run_module(text, arguments, units=None, of="element", folder="."):
    """Compares a module given as text with XLA's own result. Returns the difference, or None."""
    module = _hlo.hlo_module_from_text("HloModule m\n" + text)
    serialized = module.as_serialized_hlo_module_proto()
    devices = _jax.DeviceList((jax.devices()[0],))
    arguments = [np.asarray(argument) for argument in arguments]
    operators = base.operators_of(text)
    try:
        program = jax.devices()[0].client.compile_and_load(
            _jax.mlir.hlo_to_stablehlo(serialized), devices, xla_client.CompileOptions()).execute
    except jax.errors.JaxRuntimeError as error:
        if "UNIMPLEMENTED" not in str(error):
            raise
        function = getattr(lax, *operators - {"parameter"})  # JAX makes it of others
        program = lambda values: [jax.jit(function)(*values)]
    expected = [np.asarray(leaf) for leaf in program([jax.device_put(argument) for argument in arguments])]
    names = base.re.findall(r"(\w+) = \S+ parameter\(", text[text.index("ENTRY"):])
    return base.compare(serialized, dict(zip(names, arguments)), expected, operators, units, of,
                        folder)


def check_modules():
    rng, count, failures = np.random.default_rng(7), 0, 0
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(base.ROUNDS):
            for name, *case in modules(rng):
                wrong = run_module(*case, folder=folder)
                count += 1
                failures += wrong is not None
                if wrong:
                    print(f"modules/{name}: {wrong}", flush=True)
    print(f"{count} modules as text, {failures} wrong")
    return failures


# docs/running.md

REFUSED_MODULES = {
    "partition-id": "ENTRY e { ROOT r = u32[] partition-id() }",
    "replica-id": "ENTRY e { ROOT r = u32[] replica-id() }",
    "all-reduce": pair("f32", "add") + "ENTRY e { x = f32[4] parameter(0) ROOT r = f32[4] all-reduce(x), to_apply=f }",
    "copy-start": "ENTRY e { x = f32[4] parameter(0) s = (f32[4], f32[4], u32[]) copy-start(x)\n"
                  "  ROOT d = f32[4] copy-done(s) }",
    "infeed": "ENTRY e { x = f32[4] parameter(0) t = token[] after-all() i = (f32[4], token[]) infeed(t)\n"
              "  g = f32[4] get-tuple-element(i), index=0 ROOT r = f32[4] add(x, g) }",
    "rng-get-and-update-state": "ENTRY e { ROOT r = u64[2] rng-get-and-update-state(), delta=1 }",
}


def check_document():
    """Checks that every operator has a row, and that the tool refuses the refused rows with their words."""
    definitions = (base.DOCUMENT.parents[1] / "ir" / "opcodes.def").read_text()
    operators = set(base.re.findall(r'^OPCODE\(\w+, "([^"]+)"', definitions, base.re.M))
    wrong = [f"{name} has no row" for name in operators - set(base.BOUNDS)]
    wrong += [f"{name} is no operator" for name in set(base.BOUNDS) - operators]
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "refused.hlo.txt"
        for name, text in REFUSED_MODULES.items():
            path.write_text("HloModule m\n" + text)
            process = subprocess.run([base.AUTOMAP, "run", path, "--inference", "--plan", "none", "--steps", "1",
                                      "--state", "random"],
                                     capture_output=True, text=True, timeout=60)
            if process.returncode != 3 or base.REFUSED.get(name, "?") not in process.stderr:
                wrong.append(f"{name}: {process.returncode} {process.stderr.strip()}")
    for line in wrong:
        print(f"docs/running.md: {line}", flush=True)
    return len(wrong)


if __name__ == "__main__":
    wrong = base.main(FAMILIES, PLATFORMS)
    if not sys.argv[1:]:
        wrong += check_modules() + check_document()
    sys.exit(1 if wrong else 0)
