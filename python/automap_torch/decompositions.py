"""The decompositions of ATen operators into those of operators.py.

PyTorch has most of them. Its own ones of `stack`, `roll` and group normalisation join tensors along the batch, gather
positions and use strides; here they are cuts and sums.
"""

import torch
from torch._decomp import core_aten_decompositions, get_decompositions

ATEN = torch.ops.aten
DECOMPOSED = ("_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data", "_safe_softmax",
              "gelu", "gelu_backward", "silu", "silu_backward", "native_layer_norm", "native_layer_norm_backward",
              "embedding_dense_backward", "native_batch_norm", "native_batch_norm_backward",
              "_native_batch_norm_legit", "_native_batch_norm_legit_functional", "nll_loss_forward",
              "nll_loss_backward", "baddbmm", "slice_backward", "select_backward", "var_mean", "elu",
              "elu_backward", "leaky_relu", "leaky_relu_backward", "hardtanh",
              "hardtanh_backward", "isnan", "repeat", "prelu")


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


def decompositions():
    table = dict(core_aten_decompositions())
    table[ATEN.stack.default] = stack
    table[ATEN.roll.default] = roll
    table[ATEN.native_group_norm.default] = group_norm
    table[ATEN.native_group_norm_backward.default] = group_norm_backward
    table.update(get_decompositions([getattr(ATEN, name) for name in DECOMPOSED if hasattr(ATEN, name)]))
    return table
