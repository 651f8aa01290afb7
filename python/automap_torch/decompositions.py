"""The decompositions of ATen operators into those of operators.py.

PyTorch has most of them. Its own ones of `stack`, `roll` and group normalisation join tensors along the batch, gather
positions and use strides; here they are cuts and sums. Adaptive means and enlarged images are products with a matrix
for each dimension, instead of gathers.
"""

import math

import torch
from torch._decomp import core_aten_decompositions, get_decompositions

ATEN = torch.ops.aten
DECOMPOSED = ("_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data", "_safe_softmax",
              "gelu", "gelu_backward", "silu", "silu_backward", "native_layer_norm", "native_layer_norm_backward",
              "embedding_dense_backward", "native_batch_norm", "native_batch_norm_backward",
              "_native_batch_norm_legit", "_native_batch_norm_legit_functional", "nll_loss_forward",
              "nll_loss_backward", "baddbmm", "slice_backward", "select_backward", "var_mean", "elu",
              "elu_backward", "leaky_relu", "leaky_relu_backward", "hardtanh",
              "hardtanh_backward", "isnan", "repeat", "prelu", "index_select")


def stack(tensors, dim=0):
    """Joins tensors along a new dimension. PyTorch's own decomposition joins them along the first one, the batch."""
    return torch.cat([value.unsqueeze(dim) for value in tensors], dim)


def roll(value, shifts, dims=()):
    """Rotates dimensions by cutting them in two. PyTorch's own decomposition gathers positions."""
    whole = value.flatten() if not dims else value
    for shift, d in zip(shifts, dims or (0,), strict=True):
        at = -shift % whole.shape[d]
        whole = torch.cat([whole.narrow(d, at, whole.shape[d] - at), whole.narrow(d, 0, at)], d)
    return whole.reshape(value.shape)


def by_channel(value, x):
    """A value for each channel in the shape of x."""
    return value.reshape([1, -1, *[1] * (x.ndim - 2)])


def group_norm(x, weight, bias, examples, channels, size, groups, epsilon):
    """PyTorch's own decompositions of both passes use strides."""
    rows = x.reshape(examples, groups, -1)
    mean = rows.mean(2)
    centred = rows - mean[:, :, None]
    scale = torch.rsqrt((centred * centred).mean(2) + epsilon)
    found = (centred * scale[:, :, None]).reshape(x.shape)
    found = found if weight is None else found * by_channel(weight, x)
    return found if bias is None else found + by_channel(bias, x), mean, scale


def group_norm_backward(gradient, x, mean, scale, weight, examples, channels, size, groups, wanted):
    normal = (x.reshape(examples, groups, -1) - mean[:, :, None]) * scale[:, :, None]
    others = [0, *range(2, x.ndim)]
    weighted = gradient if weight is None else gradient * by_channel(weight, x)
    rows = weighted.reshape(examples, groups, -1)
    inner = rows - rows.mean(2)[:, :, None] - normal * (rows * normal).mean(2)[:, :, None]
    return ((inner * scale[:, :, None]).reshape(x.shape) if wanted[0] else None,
            (gradient * normal.reshape(x.shape)).sum(others) if wanted[1] else None,
            gradient.sum(others) if wanted[2] else None)


def averages(size, result):
    """Rows of the matrix that takes means of equal parts of a dimension, which may overlap."""
    rows = [[0.0] * result for _ in range(size)]
    for k in range(result):
        begin, end = k * size // result, -(-(k + 1) * size // result)
        for place in range(begin, end):
            rows[place][k] = 1 / (end - begin)
    return rows


def nearest(size, result, scale):
    """Rows of the matrix that repeats elements."""
    rows = [[0.0] * result for _ in range(size)]
    for k in range(result):
        rows[min(int(k * (1 / scale if scale else size / result)), size - 1)][k] = 1.0
    return rows


def linear(size, result, scale, aligns):
    """Rows of the matrix that interpolates between two neighbours."""
    rows = [[0.0] * result for _ in range(size)]
    for k in range(result):
        if aligns:
            place = k * (size - 1) / (result - 1) if result > 1 else 0.0
        else:
            place = max((k + 0.5) * (1 / scale if scale else size / result) - 0.5, 0.0)
        low = min(math.floor(place), size - 1)
        high = min(low + 1, size - 1)
        rows[low][k] += 1 - (place - low)
        rows[high][k] += place - low
    return rows


def cubic(size, result, scale, aligns):
    """Rows of the matrix that interpolates between four neighbours, those at the ends repeated (Keys 1981, a =
    -0.75)."""
    rows, a = [[0.0] * result for _ in range(size)], -0.75
    for k in range(result):
        if aligns:
            place = k * (size - 1) / (result - 1) if result > 1 else 0.0
        else:
            place = (k + 0.5) * (1 / scale if scale else size / result) - 0.5
        low = math.floor(place)
        for at in range(low - 1, low + 3):
            t = abs(place - at)
            weight = ((a + 2) * t - (a + 3)) * t * t + 1 if t <= 1 else ((t - 5) * t + 8) * t * a - 4 * a
            rows[min(max(at, 0), size - 1)][k] += weight
    return rows


def repeated_ends(size, before, after):
    """Rows of the matrix that repeats the first and the last element."""
    return [[float(min(max(k - before, 0), size - 1) == d) for k in range(size + before + after)] for d in range(size)]


def map_dimensions(x, matrices):
    """x with each of its last dimensions multiplied by a matrix of `matrices`."""
    for d, rows in zip(range(-len(matrices), 0), matrices):
        x = (x.transpose(d, -1) @ torch.tensor(rows, dtype=x.dtype)).transpose(d, -1)
    return x


def turned(rows):
    return [list(row) for row in zip(*rows)]


def adaptive_pool(x, sizes):
    return map_dimensions(x, [averages(n, m) for n, m in zip(x.shape[-len(sizes):], sizes)])


def adaptive_pool_backward(gradient, x):
    return map_dimensions(gradient, [turned(averages(x.shape[d], gradient.shape[d])) for d in (-2, -1)])


def enlarge(x, sizes, *scales):
    return map_dimensions(x, [nearest(n, m, s) for n, m, s in zip(x.shape[2:], sizes, scales or [None] * len(sizes))])


def enlarge_backward(gradient, sizes, shape, *scales):
    rows = zip(shape[2:], sizes, scales or [None] * len(sizes))
    return map_dimensions(gradient, [turned(nearest(*row)) for row in rows])


def interpolate(x, sizes, aligns, *scales):
    rows = zip(x.shape[2:], sizes, scales or [None] * len(sizes))
    return map_dimensions(x, [linear(*row, aligns) for row in rows])


def interpolate_backward(gradient, sizes, shape, aligns, *scales):
    rows = zip(shape[2:], sizes, scales or [None] * len(sizes))
    return map_dimensions(gradient, [turned(linear(*row, aligns)) for row in rows])


def interpolate_cubic(x, sizes, aligns, *scales):
    rows = zip(x.shape[2:], sizes, scales or [None] * len(sizes))
    return map_dimensions(x, [cubic(*row, aligns) for row in rows])


def interpolate_cubic_backward(gradient, sizes, shape, aligns, *scales):
    rows = zip(shape[2:], sizes, scales or [None] * len(sizes))
    return map_dimensions(gradient, [turned(cubic(*row, aligns)) for row in rows])


def end_matrices(shape, padding):
    """`padding` has two numbers for each dimension, those of the last one first."""
    pairs = list(zip(padding[::2], padding[1::2]))[::-1]
    return [repeated_ends(size, *pair) for size, pair in zip(shape[-len(pairs):], pairs)]


def repeat_ends(x, padding):
    return map_dimensions(x, end_matrices(x.shape, padding))


def repeat_ends_backward(gradient, x, padding):
    return map_dimensions(gradient, [turned(rows) for rows in end_matrices(x.shape, padding)])


def on_diagonal(shape, offset, a, b):
    """Which elements of a matrix in dimensions a and b are on a diagonal; its rows, and its number of elements."""
    a, b = a % len(shape), b % len(shape)
    rows, columns = (torch.arange(shape[d]).view([-1 if k == d else 1 for k in range(len(shape))]) for d in (a, b))
    begin, count = max(-offset, 0), max(min(shape[a], shape[b] - offset) - max(-offset, 0), 0)
    return columns - rows == offset, begin, count


def diagonal(x, offset=0, a=0, b=1):
    """PyTorch's own one is a view by strides."""
    chosen, begin, count = on_diagonal(x.shape, offset, a, b)
    rows = torch.where(chosen, x, torch.zeros((), dtype=x.dtype)).sum(b, keepdim=True, dtype=x.dtype)
    return rows.narrow(a, begin, count).movedim(a, -1).squeeze(b % x.ndim - (b % x.ndim > a % x.ndim))


def diagonal_scatter(x, source, offset=0, a=0, b=1):
    """x with other elements on the diagonal."""
    chosen, begin, count = on_diagonal(x.shape, offset, a, b)
    a, b = a % x.ndim, b % x.ndim
    rows = source.unsqueeze(b - (b > a)).movedim(-1, a)
    padding = [0, 0] * (x.ndim - 1 - a) + [begin, x.shape[a] - begin - count]
    return torch.where(chosen, torch.constant_pad_nd(rows, padding), x)


def diagonal_backward(gradient, shape, offset, a, b):
    return diagonal_scatter(gradient.new_zeros(shape), gradient, offset, a, b)


OWN = {"stack": stack, "roll": roll, "native_group_norm": group_norm, "native_group_norm_backward": group_norm_backward,
       "_adaptive_avg_pool2d": adaptive_pool, "_adaptive_avg_pool2d_backward": adaptive_pool_backward,
       "upsample_nearest1d": enlarge, "upsample_nearest1d_backward": enlarge_backward,
       "upsample_nearest2d": enlarge, "upsample_nearest2d_backward": enlarge_backward,
       "upsample_linear1d": interpolate, "upsample_linear1d_backward": interpolate_backward,
       "upsample_bicubic2d": interpolate_cubic, "upsample_bicubic2d_backward": interpolate_cubic_backward,
       **{f"replication_pad{d}d": repeat_ends for d in (1, 2, 3)},
       **{f"replication_pad{d}d_backward": repeat_ends_backward for d in (1, 2, 3)}, "diagonal": diagonal,
       "diagonal_scatter": diagonal_scatter, "diagonal_backward": diagonal_backward,
       "upsample_bilinear2d": interpolate, "upsample_bilinear2d_backward": interpolate_backward}


def decompositions():
    table = dict(core_aten_decompositions())
    table.update(get_decompositions([getattr(ATEN, name) for name in DECOMPOSED if hasattr(ATEN, name)]))
    table.update((getattr(ATEN, name).default, function) for name, function in OWN.items())
    table.pop(ATEN.detach.default, None)  # PyTorch's is an alias, which has a gradient
    return table
