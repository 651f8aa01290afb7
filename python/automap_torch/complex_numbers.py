"""Complex numbers and Fourier transforms as HLO.

PyTorch's views of [..., 2] floats as complex numbers are slices and joins: automap has no views. A transform of several
dimensions is one for each of them, moved to the end. `normalization` is PyTorch's number: 0 keeps the sums, 1 divides
them by the root of their number of addends, 2 by that number.
"""

import math

import torch

from .operators import cut, operator


def real_of(dtype):
    """The type of the parts of a complex type."""
    return dtype.to_real() if dtype.is_complex else dtype


def part(w, x, name):
    """`real` or `imag` of a value; a real one is its own real part."""
    if not x.dtype.is_complex:
        return x if name == "real" else w.constant(0, x.dtype, x.shape)
    return w.write(name, x.shape, real_of(x.dtype), [x])


def joined(w, real, imaginary, dtype):
    pair = [w.convert(value, real_of(dtype)) for value in (real, imaginary)]
    return w.write("complex", real.shape, dtype, pair)


@operator("complex")
def complex_number(w, name, out, real, imaginary):
    return joined(w, *(w.broadcast(value, out.shape) for value in (real, imaginary)), out.dtype)


@operator("polar")
def polar(w, name, out, radius, angle):
    parts = [w.elementwise("multiply", radius.dtype, out.shape, radius,
                           w.write(opcode, angle.shape, angle.dtype, [angle])) for opcode in ("cosine", "sine")]
    return joined(w, *parts, out.dtype)


@operator("view_as_complex", "_view_as_complex")
def view_as_complex(w, name, out, x):
    last = len(x.shape) - 1
    parts = [w.reshape(cut(w, name, None, x, last, k, k + 1), out.shape) for k in range(2)]
    return joined(w, *parts, out.dtype)


@operator("view_as_real", "_view_as_real")
def view_as_real(w, name, out, x):
    parts = [w.reshape(part(w, x, name), (*x.shape, 1)) for name in ("real", "imag")]
    return w.write("concatenate", out.shape, out.dtype, parts, f"dimensions={{{len(x.shape)}}}")


@operator("real", "imag")
def part_of(w, name, out, x):
    return part(w, x, name)


@operator("_conj", "_conj_physical", "conj_physical")
def conjugate(w, name, out, x):
    if isinstance(x, (float, complex)):  # a number as the operand of a product
        return x.conjugate()
    if not x.dtype.is_complex:
        return x
    imaginary = part(w, x, "imag")
    return joined(w, part(w, x, "real"), w.write("negate", x.shape, imaginary.dtype, [imaginary]), x.dtype)


@operator("angle")
def angle(w, name, out, x):
    """Of a negative real number it is pi, and of NaN it is NaN."""
    imaginary = part(w, x, "imag")
    found = w.elementwise("atan2", out.dtype, out.shape, imaginary, part(w, x, "real"))
    return found if x.dtype.is_complex else w.elementwise("add", out.dtype, out.shape, found,
                                                          w.elementwise("multiply", out.dtype, out.shape, x, 0))


@operator("sgn")
def direction(w, name, out, x):
    """x / |x|, and 0 for 0."""
    return w.write("sign", out.shape, out.dtype, [x])


def transform(w, x, dimension, kind, length, normalization):
    """One dimension of x in another one's place; RFFT and IRFFT change its size. `length` is that of the real or
    complex side with all elements."""
    last = len(x.shape) - 1
    order = [d for d in range(last + 1) if d != dimension] + [dimension]
    back = [order.index(d) for d in range(last + 1)]
    x = w.transpose(x, order) if dimension != last else x
    dtype = real_of(x.dtype) if kind == "IRFFT" else x.dtype.to_complex()
    shape = (*x.shape[:-1], length // 2 + 1 if kind == "RFFT" else length)
    found = w.write("fft", shape, dtype, [x], f"fft_type={kind}, fft_length={{{length}}}")
    scale = {0: 1, 1: length ** -0.5, 2: 1 / length}[normalization]
    scale *= length if kind in ("IFFT", "IRFFT") else 1  # which divide by it
    if not math.isclose(scale, 1, rel_tol=1e-12):
        found = w.elementwise("multiply", dtype, shape, found, scale)
    return found if dimension == last else w.transpose(found, back)


@operator("_fft_c2c")
def of_complex(w, name, out, x, dimensions, normalization, forward):
    for d in dimensions:
        x = transform(w, x, d % len(x.shape), "FFT" if forward else "IFFT", x.shape[d], normalization)
    return x


@operator("_fft_r2c")
def of_real(w, name, out, x, dimensions, normalization, onesided):
    if not onesided:
        return of_complex(w, name, out, w.convert(x, out.dtype), dimensions, normalization, True)
    last = dimensions[-1] % len(x.shape)
    x = transform(w, x, last, "RFFT", x.shape[last], normalization)
    return of_complex(w, name, out, x, dimensions[:-1], normalization, True)


@operator("_fft_c2r")
def to_real(w, name, out, x, dimensions, normalization, last_size):
    x = of_complex(w, name, out, x, dimensions[:-1], normalization, False)
    last = dimensions[-1] % len(x.shape)
    x = cut(w, name, None, x, last, 0, last_size // 2 + 1)
    return transform(w, x, last, "IRFFT", last_size, normalization)
