"""Pools of one to three dimensions as HLO. The last dimensions of a tensor are those of the windows."""

import math

from .operators import DTYPES, each, operator, window


class Windows:
    """The windows of a pool in the last dimensions of an input. Windows at the end may reach beyond the padding
    (`ceil_mode`)."""

    def __init__(self, sizes, stride, padding, shape, result, dilation=1):
        self.count = len(sizes)
        self.sizes = list(sizes)
        self.strides = list(sizes) if stride in ((), [], None) else each(stride, self.count)
        self.padding = each(padding, self.count)
        self.shape, self.result = shape[-self.count:], result[-self.count:]
        if any(d != 1 for d in each(dilation, self.count)):
            raise NotImplementedError("expected no dilation")
        self.others = len(shape) - self.count

    def text(self):
        lone = [1] * self.others
        ends = [max(0, (o - 1) * s + k - n - p) for o, s, k, n, p in
                zip(self.result, self.strides, self.sizes, self.shape, self.padding)]
        edges = [(0, 0)] * self.others + list(zip(self.padding, ends))
        return window(lone + self.sizes, lone + self.strides, edges)

    def divisor(self, w, dtype, shape, counts_padding, override):
        """The number of elements of each window, in the shape of the result."""
        if override:
            return w.constant(override, dtype, shape)
        found = None
        for d, (k, s, p, n, o) in enumerate(zip(self.sizes, self.strides, self.padding, self.shape, self.result)):
            begins = [at * s - p for at in range(o)]
            ends = [min(begin + k, n + p) for begin in begins]
            sizes = [end - begin if counts_padding else min(end, n) - max(begin, 0) for begin, end in zip(begins, ends)]
            own = w.broadcast_in(w.array(sizes, dtype), shape, [self.others + d])
            found = own if found is None else w.elementwise("multiply", dtype, shape, found, own)
        return found


@operator("avg_pool1d", "avg_pool2d", "avg_pool3d")
def average_pool(w, name, out, x, sizes, stride=(), padding=0, ceil=False, counts_padding=True, override=None):
    windows = Windows(each(sizes, int(name[8])), stride, padding, x.shape, out.shape)
    found = w.write("reduce-window", out.shape, out.dtype, [x, w.constant(0, x.dtype)],
                    f"{windows.text()}, to_apply={w.reduction('add', x.dtype)}")
    divisor = windows.divisor(w, out.dtype, out.shape, counts_padding, override)
    return w.elementwise("divide", out.dtype, out.shape, found, divisor)


@operator("avg_pool2d_backward", "avg_pool3d_backward")
def average_pool_backward(w, name, out, grad, x, sizes, stride, padding, ceil, counts_padding, override):
    """Every element gets the gradients of its windows: sums over windows of the gradient with gaps of the stride."""
    windows = Windows(each(sizes, int(name[8])), stride, padding, x.shape, grad.shape)
    grad = w.elementwise("divide", grad.dtype, grad.shape, grad,
                         windows.divisor(w, grad.dtype, grad.shape, counts_padding, override))
    rows, shape = ["0_0_0"] * windows.others, list(grad.shape[:windows.others])
    for k, s, p, n, o in zip(windows.sizes, windows.strides, windows.padding, windows.shape, windows.result):
        rows.append(f"{k - 1 - p}_{n + p - (o - 1) * s - 1}_{s - 1}")
        shape.append(n + k - 1)
    spread = w.write("pad", shape, grad.dtype, [grad, w.constant(0, grad.dtype)], f"padding={'x'.join(rows)}")
    lone = [1] * windows.others
    text = window(lone + windows.sizes, [1] * len(shape), [(0, 0)] * len(shape))
    return w.write("reduce-window", out.shape, out.dtype, [spread, w.constant(0, grad.dtype)],
                   f"{text}, to_apply={w.reduction('add', grad.dtype)}")


@operator("max_pool2d_with_indices", "max_pool3d_with_indices")
def max_pool(w, name, out, x, sizes, stride=(), padding=0, dilation=1, ceil=False):
    """The indices are not needed: the gradient takes the input."""
    value = out[0]
    windows = Windows(each(sizes, int(name[8])), stride, padding, x.shape, value.shape, dilation)
    found = w.write("reduce-window", value.shape, value.dtype, [x, w.constant(-math.inf, x.dtype)],
                    f"{windows.text()}, to_apply={w.reduction('maximum', x.dtype)}")
    return [found, None]


@operator("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward")
def max_pool_backward(w, name, out, grad, x, sizes, stride, padding, dilation, ceil, _):
    windows = Windows(each(sizes, int(name[8])), stride, padding, x.shape, grad.shape, dilation)
    chooses = w.computation(f"ge_{DTYPES[x.dtype]}", [x.dtype] * 2, "c = pred[] compare(a, b), direction=GE")
    return w.write("select-and-scatter", out.shape, out.dtype, [x, grad, w.constant(0, x.dtype)],
                   f"{windows.text()}, select={chooses}, scatter={w.reduction('add', x.dtype)}")
