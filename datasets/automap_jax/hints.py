"""Marks parts of a step for automap: context managers that decide where and how the part runs.

    with automap_jax.stage(0), automap_jax.replicate(4):
        features = encoder(images)
    with automap_jax.stage(1), automap_jax.split(4):
        logits = features @ weights

A mark is a jax.named_scope whose name begins with "automap-". JAX keeps it in the names of operators, also of
their gradients, of recomputed operators and of those inside of jax.lax.scan, and `automap search` reads it as the
hint `--pin` with the same word. Marks do not change the numbers of a step.

Equal marks are one scope: two blocks under stage(1) are on the same stage. The innermost of nested marks counts
for replicate and split.
"""

import contextlib
import re

import jax

PREFIX = "automap-"


def mark(word):
    return jax.named_scope(PREFIX + word)


def check_count(name, value, least):
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name}({value!r}): expected an integer of at least {least}")


def replicate(devices=None):
    """The weights of the block are replicated, over this number of devices where it is given."""
    if devices is None:
        return mark("replicate")
    check_count("replicate", devices, 1)
    return mark(f"replicate-{devices}")


def split(devices):
    """The weights of the block are split over a number of devices, or over an axis of the mesh by its name."""
    if isinstance(devices, str) and re.fullmatch(r"[A-Za-z][A-Za-z0-9]*", devices):
        return mark(f"split-{devices}")
    if isinstance(devices, str):
        raise ValueError(f"split({devices!r}): expected a number of devices or the name of an axis")
    check_count("split", devices, 1)
    return mark(f"split-{devices}")


def write_sharding(name, dimensions):
    words = []
    for axes in dimensions:
        names = [] if axes is None else list(axes) if isinstance(axes, (tuple, list)) else [axes]
        is_named = all(isinstance(axis, str) and re.fullmatch(r"[A-Za-z][A-Za-z0-9]*", axis) for axis in names)
        if not is_named or (axes is not None and not names) or len(set(names)) < len(names):
            raise ValueError(f"{name}{dimensions!r}: expected None, the name of an axis or names for each dimension")
        words.append("--".join(names) or "-")
    if not words:
        raise ValueError(f"{name}(): expected None, the name of an axis or names for each dimension")
    return f"{name}-" + "_".join(words)


def sharding(*dimensions):
    """The weights of the block with so many dimensions have this sharding: None, the name of an axis or a tuple of
    names per dimension, such as sharding(None, "model") or sharding(("data", "model"), None)."""
    return mark(write_sharding("sharding", dimensions))


def value(*dimensions):
    """The values that the operators of the block compute, and that have so many dimensions, have this sharding, such as
    value("data", None, "model")."""
    return mark(write_sharding("value", dimensions))


def stage(number):
    """The operators of the block are on this stage of a pipeline, from 0 on."""
    check_count("stage", number, 0)
    return mark(f"stage-{number}")


def devices(*items):
    """The operators of the block are on these devices: names of types ("V100") or numbers in the cluster."""
    words = [str(item) for item in items]
    if not words or any(not re.fullmatch(r"[A-Za-z0-9-]+", word) for word in words):
        raise ValueError(f"devices{items!r}: expected types of devices or their numbers")
    return mark("devices-" + "_".join(words))


@contextlib.contextmanager
def pin(stage=None, devices=None, replicate=None, split=None, sharding=None, value=None):
    """Several decisions about one block: pin(stage=1, split=4). `replicate` is True or a number of devices,
    `devices` a type, a number, or a list of these; `sharding` and `value` have None, a name or names of axes per
    dimension."""
    marks = globals()
    with contextlib.ExitStack() as scopes:
        if stage is not None:
            scopes.enter_context(marks["stage"](stage))
        if devices is not None:
            listed = devices if isinstance(devices, (list, tuple)) else [devices]
            scopes.enter_context(marks["devices"](*listed))
        if replicate:
            scopes.enter_context(marks["replicate"](None if replicate is True else replicate))
        if split is not None:
            scopes.enter_context(marks["split"](split))
        if sharding is not None:
            scopes.enter_context(marks["sharding"](*sharding))
        if value is not None:
            scopes.enter_context(marks["value"](*value))
        yield
