"""Functions of PyTorch that look at the elements of tensors, which a trace does not have, without that look."""

import math

import torch
from torch.nn._reduction import legacy_get_string
from torch.overrides import TorchFunctionMode

FUNCTIONAL = torch.nn.functional


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


class PlainFunctions(TorchFunctionMode):
    """Replaces functions of PyTorch by those of this file."""

    REPLACED = {FUNCTIONAL.one_hot: one_hot, FUNCTIONAL.embedding_bag: embedding_bag,
                FUNCTIONAL.gaussian_nll_loss: gaussian_nll_loss, FUNCTIONAL.multi_margin_loss: multi_margin_loss}

    def __torch_function__(self, function, types, arguments=(), options=None):
        return self.REPLACED.get(function, function)(*arguments, **(options or {}))
