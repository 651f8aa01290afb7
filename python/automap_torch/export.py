"""Writes the training step of a PyTorch model as an HLO module.

    def loss(model, x, y):
        return cross_entropy(model(x), y)

    export(model, loss, torch.optim.AdamW(model.parameters()), (x, y), "mymodel")

The step, with gradients and the optimizer's update, is traced into ATen operators without running it, and each of them
becomes HLO instructions (operators.py). Parameters of the module have the names that PyTorch gives them.
"""

import contextlib
import itertools
import json
import logging
import operator as python_operator
import pathlib
import sys
import traceback

import numpy as np
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensor
from torch.func import functional_call, functionalize, grad_and_value
from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

from .decompositions import decompositions
from .examples import name_of
from . import complex_numbers, examples, indices, pools  # noqa: F401 (operators of the table)
from .functions import NO_HOOKS, OWN, PARTS, TRACED, PlainFunctions, patched, place
from .kinds import LossKind
from .operators import TABLE, Value, Writer
from .optimizers import initial_state, settings_of, update


KEY = "random.key"  # the state of dropout's random numbers

@contextlib.contextmanager
def without_compiler():
    """Inside, functions and modules of torch.compile() are those that it was given."""
    if "torch._dynamo" not in sys.modules:
        yield
        return
    with torch.compiler.set_stance("force_eager"), torch._dynamo.config.patch(error_on_nested_fx_trace=False):
        yield


@contextlib.contextmanager
def plain_kernels(is_trace=True):
    """Inside, attention and LSTMs are their operators, not one kernel. Traces refuse gradients of the user's own."""
    is_enabled = torch._C._get_mkldnn_enabled()  # torch.backends.mkldnn.flags warns
    torch._C._set_mkldnn_enabled(False)
    try:
        replaced = {**PARTS, **(TRACED if is_trace else {})}
        with sdpa_kernel(SDPBackend.MATH), PlainFunctions(is_trace), patched(replaced), without_compiler():
            yield
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        lines = [f"{pathlib.Path(frame.filename).name}:{frame.lineno}"
                 for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(OWN)]
        raise NotImplementedError(f"{error.func}{f' ({lines[-1]})' if lines else ''}: its result depends on elements "
                                  "of a tensor, which a trace does not have (expected shapes that are the same for all "
                                  "batches, such as torch.where(mask, a, b) instead of a[mask])") from None
    except RuntimeError as error:
        if "must override the setup_context" not in str(error):
            raise
        raise NotImplementedError("the model has a torch.autograd.Function or a hook of gradients of its own, and the "
                                  "graph of the loss does not have their gradients") from error
    finally:
        torch._C._set_mkldnn_enabled(is_enabled)


def check_hooks(model):
    """Refuses hooks of gradients."""
    for path, module in model.named_modules():
        if module._backward_hooks or module._backward_pre_hooks:
            raise NotImplementedError(f"module {path or type(model).__name__}: {NO_HOOKS}")
    for name, value in model.named_parameters():
        if value._backward_hooks or value._post_accumulate_grad_hooks:
            raise NotImplementedError(f"parameter {name}: {NO_HOOKS}")


def check_batch(batch):
    for k, value in enumerate(batch):
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"entry {k} of the batch is of type {type(value).__name__} (expected a tensor; the loss "
                            "can make dictionaries and other arguments of the model from tensors)")


class LossOf(torch.nn.Module):
    """The loss as a module, so that its parameters can be given from outside."""

    def __init__(self, model, loss):
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, *batch):
        return self.loss(self.model, *batch)


def examples_first(batch, dimensions):
    """The tensors of a batch with the dimension of their examples as their first one; None: without examples."""
    return [value.movedim(d, 0) if d else value for value, d in zip(batch, dimensions, strict=True)]


def loss_of_examples(loss, dimensions):
    """The loss as a function of a batch as examples_first() returns it; the model gets the batch in its own order."""
    if all(d == 0 for d in dimensions):
        return loss

    def moved(model, *batch):
        return loss(model, *[value.movedim(0, d).contiguous() if d else value
                             for value, d in zip(batch, dimensions, strict=True)])

    moved.dimensions = dimensions
    return moved


def detached(values):
    return {name: value.detach() for name, value in values}


def call_with(module, values, arguments, options=None):
    """module(*arguments, **options) with parameters and buffers by name, also where modules share them. PyTorch's
    functional_call leaves the values in a module of two paths."""
    names, given = {}, {}
    for path, part in module.named_modules():
        for name, tensor in [*part._parameters.items(), *part._buffers.items()]:
            own = f"{path}.{name}" if path else name
            if names.setdefault(id(tensor), own) in values:
                given[own] = values[names[id(tensor)]]
    return functional_call(module, given, arguments, options, tie_weights=False)


def loss_function(model, loss):
    """The loss and the new values of the buffers by name, as a function of parameters, buffers and batch."""
    module = LossOf(model, loss)

    def loss_of(parameters, buffers, batch):
        own = {name: value.clone() for name, value in buffers.items()}
        given = {f"model.{name}": value for name, value in {**parameters, **own}.items()}
        return call_with(module, given, batch), own

    return loss_of


def values_of(model):
    """Parameters and buffers by name."""
    return detached(model.named_parameters()), detached(model.named_buffers())


def find_batch(model, loss, batch):
    """The dimension of the examples in each tensor of a batch, None for tensors without examples."""
    with plain_kernels():
        return examples.find_dimensions(examples.trace(loss_function(model, loss), *values_of(model), batch), batch)


def find_kind(model, loss, batch, dimensions):
    """Returns whether the loss is a sum over the examples, and why part of a batch cannot run alone, a clause or None.
    `dimensions` are those of the examples. The loss is traced, and traced once more with every example twice, which
    constants of the batch's size do not allow."""
    batch, loss = examples_first(batch, dimensions), loss_of_examples(loss, dimensions)
    leading = [None if d is None or not value.ndim else 0 for value, d in zip(batch, dimensions, strict=True)]
    count = next((len(value) for value, d in zip(batch, leading, strict=True) if d is not None), 1)
    if count == 1:
        return False, None
    loss_of, values = loss_function(model, loss), values_of(model)
    with plain_kernels():
        graph = examples.trace(loss_of, *values, batch)
        places = examples.Places(graph, leading, count)
        if places.differing:
            differing = places.differing[0]
            return False, f"{name_of(differing)}{place(differing)} has values that differ by example"
        twice = [value if d is None else torch.cat([value, value]) for value, d in zip(batch, leading, strict=True)]
        logger = logging.getLogger("torch._subclasses.fake_tensor")  # it logs the error below
        is_silent, logger.disabled = logger.disabled, True
        try:
            doubled = examples.trace(loss_of, *values, twice)
            kind = LossKind(graph, doubled, len(batch), places.mixing)
        except (AssertionError, IndexError, RuntimeError, TypeError, ValueError) as error:
            why = (str(error) or type(error).__name__).splitlines()[0]
            return False, f"the step has a constant of the batch's size: {why}"
        finally:
            logger.disabled = is_silent
    return kind.is_sum, kind.why_whole


def splittable(model, loss, batch):
    """loss_function() with rows of examples that devices can split (examples.py). `loss` is one of loss_of_examples().
    Losses whose examples are the first dimension of all tensors are unchanged."""
    loss_of, dimensions = loss_function(model, loss), getattr(loss, "dimensions", None)
    if dimensions is None:
        return loss_of
    leading = [None if d is None else 0 for d in dimensions]
    count = next(len(value) for value, d in zip(batch, leading, strict=True) if d is not None)
    with plain_kernels():
        graph = counted = examples.trace(loss_of, *values_of(model), batch)
        if count == 1:  # places are found with two examples
            twice = [value if d is None else torch.cat([value, value]) for value, d in zip(batch, leading)]
            counted = examples.trace(loss_of, *values_of(model), twice)
    places = examples.Places(counted, leading, max(count, 2))
    places.take(graph, counted, count)
    return graph if examples.put_rows_by_example(graph, places) else loss_of


def copied(value, source, non_blocking=False):
    """The new elements of `value`, a write in place. PyTorch has no gradient of this operator."""
    return source.to(value.dtype).expand(value.shape).clone()


def differentiate(model, loss_of, parameters, buffers, batch):
    """Gradients of the model's parameters that need one, by name, and the loss with the new values of the buffers.
    `loss_of` is a loss_function()."""
    needing = {name: parameters[name] for name, own in model.named_parameters() if own.requires_grad}
    if not needing:
        raise ValueError("no parameter of the model needs a gradient")

    def value_of(needing):
        return loss_of({**parameters, **needing}, buffers, batch)

    # Below gradients, writes in place are operators without views: PyTorch's gradients of such views use strides.
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("copy", copied, "Autograd")
        return grad_and_value(functionalize(value_of), has_aux=True)(needing)


@contextlib.contextmanager
def modules_named(model):
    """Inside, every node that is traced in a module of the model has the path of that module in its metadata."""
    entered, hooks = [], []

    def newest_first():
        return reversed(get_proxy_mode().tracer.graph.nodes)

    def enter(*_):
        entered.append(next(iter(newest_first()), None))

    def leaver(path):
        def leave(*_):
            first = entered.pop()
            for node in itertools.takewhile(lambda node: node is not first, newest_first()):
                node.meta.setdefault("module", path)
        return leave

    for path, module in model.named_modules():
        hooks += [module.register_forward_pre_hook(enter), module.register_forward_hook(leaver(path))]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def traced(model, loss, optimizer, batch):
    """The graph of a step, and its arguments: parameters, buffers, optimizer state, batch."""
    settings, arguments = settings_of(optimizer, model), values_of(model)
    arguments += (initial_state(settings, arguments[0]), tuple(batch))
    arguments = pytree.tree_map(torch.Tensor.contiguous, arguments)  # operators on channels last use strides
    loss_of = splittable(model, loss, batch)

    def step(parameters, buffers, state, batch):
        gradients, (value, own) = differentiate(model, loss_of, parameters, buffers, batch)
        new, new_state = update(settings, parameters, gradients, state)
        return new, own, new_state, value

    with plain_kernels(), modules_named(model):
        graph = make_fx(functionalize(step), decomposition_table=decompositions(), tracing_mode="fake",
                        _allow_non_fake_inputs=True, **examples.LINES)(*arguments)
    return without_repeats(without_writes(graph)), arguments


def facts(value):
    """Shapes and types of a node's result."""
    if isinstance(value, torch.Tensor):
        return value
    return [facts(part) for part in value] if isinstance(value, (list, tuple)) else value


def is_constant(node):
    """Returns whether a node is a tensor of its arguments alone, such as torch.tril_indices(4, 4)."""
    return (not node.all_input_nodes and isinstance(node.meta["val"], torch.Tensor)
            and torch.Tag.nondeterministic_seeded not in node.target.tags)


def views(node):
    """A node, and the nodes that it is a view of, one after the other. The last one is no view, or one of a number."""
    found = [node]
    while found[-1].op == "call_function" and getattr(found[-1].target, "is_view", False) and \
            found[-1].all_input_nodes:
        found.append(found[-1].args[0])
    return found


def is_lost(node, order):
    """Returns whether operators after a write in place read its tensor, or a view, and not the result of the write.
    `order` has the places of all nodes."""
    targets = views(node.args[0])
    readers = {reader for target in targets for reader in target.users}
    return targets[-1].op != "placeholder" and any(order[reader] > order[node] for reader in readers)


def without_writes(graph):
    """Gives functions of single elements in place, such as `add_`, their forms that write a new tensor. PyTorch's
    kernels have them where no gradient is needed, as in the norms of a frozen model."""
    order = {node: k for k, node in enumerate(graph.graph.nodes)}
    for node in order:
        name = node.target._schema.name.split("::")[1] if isinstance(node.target, torch._ops.OpOverload) else ""
        plain = getattr(getattr(torch.ops.aten, name[:-1], None), getattr(node.target, "_overloadname", ""), None)
        if name.endswith("_") and plain and torch.Tag.pointwise in plain.tags and not is_lost(node, order):
            node.target = plain
    graph.recompile()
    return graph


def without_repeats(graph):
    """Lets the backward pass read the functions of single elements that the forward pass has, such as the sigmoid of
    `silu`. PyTorch's gradients compute them once more, which would count as recomputation by the user."""
    known, is_backward = {}, False
    *nodes, output = graph.graph.nodes
    loss = pytree.tree_leaves(output.args)[-1]
    calls = [node for node in nodes if isinstance(node.target, torch._ops.OpOverload)]
    written = {views(node.args[0])[-1] for node in calls if node.target._schema.is_mutable}
    for node in calls:
        tags, tensors = node.target.tags, {node, *(views(operand)[-1] for operand in node.all_input_nodes)}
        if torch.Tag.pointwise in tags and torch.Tag.nondeterministic_seeded not in tags and not tensors & written:
            first = known.setdefault((node.target, repr((node.args, node.kwargs))), node)
            if is_backward and first is not node:
                node.replace_all_uses_with(first)
        is_backward |= node is loss
    graph.recompile()
    return graph


def convert(writer, graph, paths):
    """Writes the nodes of a graph, whose inputs are named. Returns its inputs and results as values."""
    values, inputs, results = {}, [], []

    def read(argument):
        return values[argument] if isinstance(argument, torch.fx.Node) else argument

    graph.graph.eliminate_dead_code()
    order = {node: k for k, node in enumerate(graph.graph.nodes)}
    for node in graph.graph.nodes:
        if node.op == "placeholder":
            out = node.meta["val"]
            writer.metadata = f', metadata={{op_name="{paths[len(inputs)]}"}}'
            values[node] = writer.write("parameter", out.shape, out.dtype, str(len(inputs)))
            inputs.append(values[node])
            writer.metadata = ""
        elif node.op == "get_attr":
            tensor = getattr(graph, node.target)
            if isinstance(tensor, FakeTensor):
                raise NotImplementedError(f"a tensor of shape {list(tensor.shape)} in the step: the model makes a "
                                          "parameter in its forward pass")
            values[node] = constant_tensor(writer, tensor)
        elif node.op == "call_function" and node.target is python_operator.getitem:
            values[node] = values[node.args[0]][node.args[1]]
        elif node.op == "call_function":
            name = node.target._schema.name.split("::")[1]
            if node.target._schema.is_mutable and name != "detach_" and is_lost(node, order):
                raise NotImplementedError(f"{node.target}{place(node)}: a write in place that the trace loses")
            if name not in TABLE and is_constant(node):
                values[node] = constant_tensor(writer, node.target(*node.args, **node.kwargs))
                continue
            if name not in TABLE:
                raise NotImplementedError(f"{node.target}{place(node)}: automap_torch does not know this operator")
            arguments = torch.fx.map_arg(node.args, read), torch.fx.map_arg(node.kwargs, read)
            plain = {key: value for key, value in arguments[1].items()
                     if key not in ("dtype", "layout", "device", "pin_memory", "memory_format", "implicit")}
            writer.metadata = f', metadata={{op_name="{node.name}"}}'
            try:
                values[node] = TABLE[name](writer, name, facts(node.meta["val"]), *arguments[0], **plain)
            except NotImplementedError as error:
                raise NotImplementedError(f"{node.target}{place(node)}: {error}") from None
            writer.metadata = ""
        elif node.op == "output":
            results = pytree.tree_leaves(torch.fx.map_arg(node.args[0], read))
    return inputs, results


MOST_ELEMENTS = 1 << 16


def constant_tensor(writer, tensor):
    """A constant array."""
    flat = tensor.flatten()
    if flat.numel() and bool((flat == flat[0]).all()):
        return writer.constant(flat[0].item(), tensor.dtype, tensor.shape)
    if flat.numel() > MOST_ELEMENTS:
        raise NotImplementedError(f"a constant array of {flat.numel()} elements in the step (expected at most "
                                  f"{MOST_ELEMENTS}); register it as a buffer of the model")
    if not flat.numel():
        return writer.constant(0, tensor.dtype, tensor.shape)
    return writer.reshape(writer.array(flat.tolist(), tensor.dtype), tensor.shape)


def paths_of(arguments, batch_names):
    """Name and role of every parameter of the module."""
    parameters, buffers, state, batch = arguments
    rows = [(name, "weight") for name in parameters] + [(name, "state") for name in buffers]
    for kind, values in state.items():
        paths = [f"{kind}.{name}" for name in values] if isinstance(values, dict) else [kind]
        rows += [(path, "optimizer") for path in paths]
    return rows + [(name, "data") for name, _ in zip(batch_names, batch, strict=True)]


def names_of(batch):
    return [f"batch_{chr(ord('a') + k)}" for k in range(len(batch))]


def to_numpy(tensor):
    tensor = tensor.detach().cpu().contiguous().resolve_conj()
    return tensor.float().numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy()


def dimensions_of(model, loss, batch, batch_dim):
    """The dimension of the examples in each tensor of a batch: `batch_dim`, or where that is None the one found."""
    if batch_dim is None:
        return find_batch(model, loss, batch)
    return [batch_dim if value.ndim > batch_dim else 0 for value in batch]


def export(model, loss, optimizer, batch, directory, names=None, batch_dim=None):
    """Writes model.hlo, model.roles.json, state.npz and data.npz, and returns the folder.

    model      a torch.nn.Module on the CPU
    loss       loss(model, *batch) gives a scalar, the mean over the batch
    optimizer  one of optimizers.RULES, or a list of them, with parameters of the model, before the first step
    batch      the tensors of one global batch
    names      of the tensors of the batch; default batch_a, batch_b, ...
    batch_dim  the dimension of the examples in these tensors, such as 1 of sequences first; those that lack the
               dimension have the examples first. None: found from the operators of the loss, for each tensor. In the
               module and in data.npz the examples come first.
    """
    check_batch(batch)
    check_hooks(model)
    directory, dimensions = pathlib.Path(directory), dimensions_of(model, loss, batch, batch_dim)
    _, whole_batch = find_kind(model, loss, batch, dimensions)
    batch, loss = examples_first(batch, dimensions), loss_of_examples(loss, dimensions)
    graph, arguments = traced(model, loss, optimizer, batch)
    writer = Writer()
    rows = paths_of(arguments, names or names_of(batch))
    inputs, results = convert(writer, graph, [path for path, _ in rows])
    state = len(rows) - len(batch)
    if len(inputs) != len(rows) or len(results) != state + 1:
        raise NotImplementedError("a step whose state changes its form")
    parameters = [{"number": k, "path": path, "role": role, "output": k if role != "data" else None}
                  for k, (path, role) in enumerate(rows)]
    for row, d in zip(parameters[state:], dimensions, strict=True):
        row.update({} if d == 0 else {"batch_dimension": d})
    if writer.key:
        writer.lines.insert(0, f"  key = u64[2] parameter({len(rows)}), metadata={{op_name=\"{KEY}\"}}")
        parameters.append({"number": len(rows), "path": KEY, "role": "state", "output": state + 1})
        results.append(writer.key)
    listed = ", ".join(f"{writer.shape(value.shape, value.dtype)}" for value in results)
    writer.lines.append(f"  ROOT result = ({listed}) tuple({', '.join(value.name for value in results)})")
    text = "HloModule torch_step\n\n" + "\n".join(writer.reductions.values())
    text += "\nENTRY main {\n" + "\n".join(writer.lines) + "\n}\n"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "model.hlo").write_text(text)
    (directory / "model.roles.json").write_text(
        json.dumps({"format": "automap-roles-1", "loss": state, "parameters": parameters,
                    **({"whole_batch": whole_batch} if whole_batch else {})}, indent=1) + "\n")
    leaves = pytree.tree_leaves(arguments)
    arrays = {path: to_numpy(leaf) for (path, _), leaf in zip(rows, leaves, strict=True)}
    keys = {KEY: np.zeros(2, np.uint64)} if writer.key else {}
    np.savez(directory / "state.npz", **{path: arrays[path] for path, role in rows if role != "data"}, **keys)
    np.savez(directory / "data.npz", **{path: arrays[path][None] for path, role in rows if role == "data"})
    return directory
