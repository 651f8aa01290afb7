"""Functions of PyTorch that look at the elements of tensors, which a trace does not have, without that look."""

import contextlib
import itertools
import math
import pathlib
import re
import sys

import torch
from torch._functorch.autograd_function import custom_function_call
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.nn._reduction import legacy_get_string
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint
from torch.utils._pytree import tree_map

FUNCTIONAL = torch.nn.functional
# Folders whose source lines are not the user's.
OWN = tuple(str(pathlib.Path(file).parent) for file in (torch.__file__, __file__, contextlib.__file__))


def place(node):
    """Returns the place of an operator in the step, where PyTorch has it: ` (module layers.0, model.py:57)`."""
    path = node.meta.get("module")
    places = [f"module {path}"] if path else []
    frames = re.findall(r'File "(.*)", line (\d+)', node.stack_trace or "")  # forward passes of modules alone
    lines = [f"{pathlib.Path(file).name}:{line}" for file, line in frames if not file.startswith(OWN)]
    lines += [node.meta["line"]] if "line" in node.meta else []
    return f" ({', '.join(places + lines[-1:])})" if places or lines else ""


def one_hot(tensor, num_classes=-1):
    """Comparisons."""
    if num_classes < 0:
        raise NotImplementedError("one_hot without a number of classes")
    return (tensor[..., None] == torch.arange(num_classes, device=tensor.device)).to(torch.int64)


def embedding_bag(tensor, weight, offsets=None, max_norm=None, norm_type=2.0, scale_grad_by_freq=False, mode="mean",
                  sparse=False, per_sample_weights=None, include_last_offset=False, padding_idx=None):
    """Bags of one size by sums over an embedding."""
    if tensor.ndim != 2 or max_norm is not None or scale_grad_by_freq or mode not in ("sum", "mean"):
        raise NotImplementedError("embedding_bag: expected [bags, indices], mode sum or mean, and no further options")
    rows = FUNCTIONAL.embedding(tensor, weight, padding_idx)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights[..., None]
    if padding_idx is None:
        return rows.sum(1) if mode == "sum" else rows.mean(1)
    counts = (tensor != padding_idx % weight.shape[0]).to(rows.dtype)[..., None]
    total = (rows * counts).sum(1)
    return total if mode == "sum" else total / counts.sum(1).clamp(min=1)


def adaptive_avg_pool2d(input, output_size):
    """One mean as an operator of all dimensions; PyTorch's own one sets strides after it."""
    if output_size in (1, (1, 1), [1, 1]):
        return input.mean((-2, -1), keepdim=True)
    return FUNCTIONAL.adaptive_avg_pool2d(input, output_size)


def bilinear(input1, input2, weight, bias=None):
    """Products of matrices; PyTorch's own one has a tensor of all products of elements."""
    found = torch.einsum("...i,oij,...j->...o", input1, weight, input2)
    return found if bias is None else found + bias


def pad(input, pad, mode="constant", value=None):
    """Circular padding by joins; PyTorch's own one writes into an empty tensor, which traces lose."""
    if mode != "circular":
        return FUNCTIONAL.pad(input, pad, mode, value)
    for k in range(len(pad) // 2):
        d, (before, after) = input.ndim - 1 - k, pad[2 * k:2 * k + 2]
        size = input.shape[d]
        input = torch.cat([input.narrow(d, size - before, before), input, input.narrow(d, 0, after)], d)
    return input


def scaled_dot_product_attention(query, key, value, attn_mask=None, *rest, **options):
    """Under autocast, operands of its type, as PyTorch's kernel has them. The operators of a trace would be cast one by
    one."""
    kind, attention = query.device.type, FUNCTIONAL.scaled_dot_product_attention
    if not torch.is_autocast_enabled(kind):
        return attention(query, key, value, attn_mask, *rest, **options)
    dtype = torch.get_autocast_dtype(kind)
    query, key, value = (operand.to(dtype) for operand in (query, key, value))
    if attn_mask is not None and attn_mask.is_floating_point():
        attn_mask = attn_mask.to(dtype)
    with torch.autocast(kind, enabled=False):
        return attention(query, key, value, attn_mask, *rest, **options)


def fill_diagonal_(self, fill_value, wrap=False):
    """A trace does not have PyTorch's own one."""
    if self.ndim != 2 or wrap:
        raise NotImplementedError("fill_diagonal_: expected a matrix, and no wrap")
    rows, columns = (torch.arange(size, device=self.device) for size in self.shape)
    return self.masked_fill_(rows[:, None] == columns, fill_value)


def stft(input, n_fft, hop_length=None, win_length=None, window=None, center=True, pad_mode="reflect", normalized=False,
         onesided=None, return_complex=None, align_to_window=None):
    """Frames as slices that are joined; PyTorch's own one is a view by strides."""
    if not return_complex or input.is_complex() or align_to_window:
        raise NotImplementedError("stft: expected a real input, return_complex=True and no align_to_window")
    hop, width = hop_length or n_fft // 4, win_length or n_fft
    x = input if input.ndim == 2 else input[None]
    if center:
        x = FUNCTIONAL.pad(x[:, None], (n_fft // 2, n_fft // 2), pad_mode)[:, 0]
    window = torch.ones(width, dtype=x.dtype, device=x.device) if window is None else window
    before = (n_fft - width) // 2
    window = FUNCTIONAL.pad(window, (before, n_fft - width - before))
    frames = torch.stack([x[:, at:at + n_fft] for at in range(0, x.shape[1] - n_fft + 1, hop)], 1)
    transform = torch.fft.fft if onesided is False else torch.fft.rfft
    found = transform(frames * window, norm="ortho" if normalized else "backward").transpose(1, 2)
    return found if input.ndim == 2 else found[0]


IMPOSSIBLE = -1e30  # the logarithm of the probability of no path; infinities would have NaN as gradients


def ctc_loss(log_probs, targets, input_lengths, target_lengths, blank=0, reduction="mean", zero_infinity=False):
    """The sum over alignments (Graves et al. 2006, section 4.1), one operator after the other for each frame. PyTorch's
    own one reads the lengths."""
    if log_probs.ndim != 3 or targets.ndim != 2:
        raise NotImplementedError("ctc_loss: expected scores [frames, examples, labels] and targets [examples, labels]")
    frames, examples, _ = log_probs.shape
    lengths, counts = (torch.as_tensor(value, device=log_probs.device) for value in (input_lengths, target_lengths))
    blanks = torch.full_like(targets, blank)
    states = FUNCTIONAL.pad(torch.stack([blanks, targets], 2).flatten(1), (0, 1), value=blank)
    place = torch.arange(states.shape[1], device=states.device)
    differs = FUNCTIONAL.pad(states[:, 2:] != states[:, :-2], (2, 0), value=False)
    may_skip = differs & (place & 1 == 1)
    scores = log_probs.gather(2, states[None].expand(frames, -1, -1))
    found = torch.where(place < 2, scores[0], IMPOSSIBLE)
    for frame in range(1, frames):
        ways = [found, FUNCTIONAL.pad(found[:, :-1], (1, 0), value=IMPOSSIBLE),
                torch.where(may_skip, FUNCTIONAL.pad(found[:, :-2], (2, 0), value=IMPOSSIBLE), IMPOSSIBLE)]
        largest = torch.maximum(torch.maximum(*ways[:2]), ways[2]).detach()
        total = largest + torch.log(sum(torch.exp(way - largest) for way in ways))
        found = torch.where((frame < lengths)[:, None], total + scores[frame], found)
    is_end = (place == 2 * counts[:, None]) | (place == 2 * counts[:, None] - 1)
    ends = torch.where(is_end, found, IMPOSSIBLE)
    largest = ends.amax(1, keepdim=True).detach()
    loss = -(largest + torch.log(torch.exp(ends - largest).sum(1, keepdim=True)))[:, 0]
    is_impossible = loss > -IMPOSSIBLE / 2
    loss = torch.where(is_impossible, 0.0 if zero_infinity else math.inf, loss)
    return reduced(loss / counts.clamp(min=1) if reduction == "mean" else loss, reduction)


def reduced(loss, reduction):
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{reduction} is not a valid value for reduction")
    return loss if reduction == "none" else loss.mean() if reduction == "mean" else loss.sum()


def gaussian_nll_loss(input, target, var, full=False, eps=1e-6, reduction="mean"):  # names of PyTorch
    """PyTorch's own one refuses negative variances first."""
    if isinstance(var, float):
        var = var * torch.ones_like(input)
    elif var.shape != input.shape and var.shape == input.shape[:-1]:
        var = var[..., None]
    var = var + (var.clamp(min=eps) - var).detach()
    loss = 0.5 * (torch.log(var) + (input - target) ** 2 / var)
    return reduced(loss + 0.5 * math.log(2 * math.pi) if full else loss, reduction)


def multi_margin_loss(input, target, p=1, margin=1.0, weight=None, size_average=None, reduce=None, reduction="mean"):
    """PyTorch's kernel by operators that have gradients."""
    if size_average is not None or reduce is not None:
        reduction = legacy_get_string(size_average, reduce, emit_warning=False)
    scores, labels = (input, target) if input.ndim == 2 else (input[None], target.reshape(1))
    is_label = labels[:, None] == torch.arange(scores.shape[1], device=scores.device)
    own = torch.where(is_label, scores, 0).sum(1, keepdim=True)
    excess = (margin - own + scores).clamp(min=0)
    excess = excess if p == 1 else excess * excess
    if weight is not None:
        excess = excess * torch.where(is_label, weight, 0).sum(1, keepdim=True)
    loss = torch.where(is_label, 0, excess).sum(1) / scores.shape[1]
    return reduced(loss if input.ndim == 2 else loss[0], reduction)


KEEPING = {"__index__", "__int__", "__invert__", "__iter__", "requires_grad_"}  # functions that change no tensor


def detached(value):
    is_float = isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())
    return value.detach() if is_float else value


def without_gradient(function, arguments, options):
    """A function under torch.no_grad(), on detached operands: operators of a trace do not have that mode. A tensor that
    the function changes in place stays the one that is changed."""
    name = getattr(function, "__name__", "")
    if name == "__get__":
        return tree_map(detached, function(*arguments, **options))
    is_changing = name in ("__setitem__", "__set__") or name not in KEEPING and (
        name.startswith("__i") if name.startswith("__") else name.endswith("_"))
    if is_changing and arguments[0].requires_grad:
        raise NotImplementedError(f"{name} under no_grad: it changes a tensor that needs a gradient")
    kept = arguments[:1] if is_changing else ()
    return function(*kept, *tree_map(detached, arguments[len(kept):]), **tree_map(detached, options))


def line_of_user():
    """The innermost line of the user's code, as `train.py:57`, or None."""
    frame = sys._getframe(1)
    while frame and frame.f_code.co_filename.startswith(OWN):
        frame = frame.f_back
    return frame and f"{pathlib.Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def with_line(call):
    """The result of a call, whose nodes in the trace get the user's line."""
    mode = get_proxy_mode()
    last = next(iter(reversed(mode.tracer.graph.nodes)), None) if mode else None
    found = call()
    for node in itertools.takewhile(lambda node: node is not last, reversed(mode.tracer.graph.nodes if mode else ())):
        node.meta.setdefault("line", line_of_user())
    return found


NO_HOOKS = "hooks can change gradients, and the graph of the loss does not have them"
HOOKS = {torch.Tensor.register_hook, torch.Tensor.register_post_accumulate_grad_hook}


CALL = type(custom_function_call).__call__
MOD_INDEX = "torch._dynamo._trace_wrapped_higher_order_op", "ModIndex"  # importing it takes a second


def call_known(operator, function, *arguments, **options):
    """The call of a torch.autograd.Function in a trace, which is one of PyTorch's or of this package. Gradients of an
    index by tensors under vmap(), as in masks, are those of its operator, which traces can have."""
    if (function.__module__, function.__name__) == MOD_INDEX:
        return function.forward(*arguments, **options)
    if function.__module__.split(".")[0] not in ("torch", __package__):
        raise NotImplementedError(f"{function.__name__}: a torch.autograd.Function of the model, whose gradient the "
                                  "graph of the loss does not have")
    return CALL(operator, function, *arguments, **options)


class Unchecked:
    """In place of the Function of reentrant checkpoints: computes without recomputation."""

    @staticmethod
    def apply(function, preserves_generator, *arguments):
        return function(*arguments)


def unchecked(*_, **__):
    """In place of the generator of other checkpoints, which compute after its only value."""
    yield


@contextlib.contextmanager
def patched(replaced):
    """Inside, attributes of objects have other values: {(object, name): value}."""
    before = {(owner, name): getattr(owner, name) for owner, name in replaced}
    for (owner, name), value in replaced.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for (owner, name), value in before.items():
            setattr(owner, name, value)


ITEM = torch.nn.ParameterList.__getitem__


def item(parameters, at):
    """An item of a ParameterList. PyTorch's slices are copies, which the gradient does not reach."""
    return [ITEM(parameters, k) for k in range(len(parameters))[at]] if isinstance(at, slice) else ITEM(parameters, at)


PARTS = {(torch.nn.ParameterList, "__getitem__"): item,
         # It reads elements.
         (torch.distributions.Distribution, "_validate_args"): False,
         # PyTorch's own one reads the mask.
         (torch.nn.modules.transformer, "_detect_is_causal_mask"): lambda mask, is_causal=None, *_: bool(is_causal)}
# The plan has its own recomputation, so that traces have no checkpoints of the model.
COMPILING = {(torch.compiler, "is_compiling"): lambda: True}  # models look at no element then
TRACED = {**COMPILING, (type(custom_function_call), "__call__"): call_known,
          (checkpoint, "CheckpointFunction"): Unchecked, **{(checkpoint, name): unchecked for name in vars(checkpoint)
             if name.startswith("_checkpoint_without_reentrant_generator")}}


class PlainFunctions(TorchFunctionMode):
    """Replaces functions of PyTorch by those of this file, and detaches operands where gradients are off."""

    REPLACED = {FUNCTIONAL.one_hot: one_hot, FUNCTIONAL.embedding_bag: embedding_bag,
                FUNCTIONAL.adaptive_avg_pool2d: adaptive_avg_pool2d, torch.Tensor.fill_diagonal_: fill_diagonal_,
                FUNCTIONAL.scaled_dot_product_attention: scaled_dot_product_attention,
                FUNCTIONAL.bilinear: bilinear, FUNCTIONAL.pad: pad, FUNCTIONAL.ctc_loss: ctc_loss,
                torch.stft: stft, torch.Tensor.stft: stft,
                FUNCTIONAL.gaussian_nll_loss: gaussian_nll_loss, FUNCTIONAL.multi_margin_loss: multi_margin_loss}

    def __init__(self, is_trace):
        super().__init__()
        self.is_trace = is_trace

    def __torch_function__(self, function, types, arguments=(), options=None):
        options = options or {}
        function = self.REPLACED.get(function, function)
        if not self.is_trace:
            return function(*arguments, **options)
        if function in HOOKS:
            raise NotImplementedError(f"{function.__name__}: {NO_HOOKS}")
        if function == torch.Tensor.data.__get__:  # a new object at each access
            return arguments[0].detach()
        if not torch.is_grad_enabled() and function is not torch.Tensor.detach:
            return with_line(lambda: without_gradient(function, arguments, options))
        return with_line(lambda: function(*arguments, **options))
