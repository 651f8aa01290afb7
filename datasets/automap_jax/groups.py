"""The groups and sweeps of the operators of a step in micro-batches, as pipelines.py describes them.

    reason = whole_batch(graph, rows)                    # why a step cannot run in micro-batches
"""

import jax
import numpy as np

from .batches import smallest_factor
from .mixing import local_rows, mixing_operator
from .operators import FOLDS, SUMS, key_of
from .resizing import Examples, with_rows
from .step_graph import Constant, depending_results, numbers, users_of


class Groups:
    """The group and the sweep of each operator.

    whole, micro  the graphs of the step for the batch and for a micro-batch
    rows          of the parameters in a document
    named         {number of data: dimension} that micro-batches cut; `data` are these and others that follow
    batch, count  the number of examples and of micro-batches
    is_split      [value]: has examples in a dimension; in_rows: values with one element for each
    """

    def resize(self):
        """Finds the data that micro-batches cut, the dimensions with examples, and the graph of a micro-batch."""
        parts = self.count if self.count > 1 else smallest_factor(self.batch)
        if self.count > 1:
            self.whole = with_rows(self.whole, self.named, parts)
        found = Examples(self.whole, self.named, parts)
        self.is_split = found.is_split()
        self.in_rows = {value for value, units in enumerate(found.units[:len(self.is_split)])
                        if list(units.values()) == [1]}
        roles = {row["number"]: row for row in self.rows}
        reached = {number: found.units[value] for number, value in enumerate(self.whole.inputs)
                   if found.units[value] and (number in self.named or number in roles)}
        self.data = {number: next(iter(units)) for number, units in reached.items()
                     if roles[number]["role"] == "data"}
        if self.count == 1:
            self.micro = self.whole.copy()
            return
        for number, units in reached.items():
            if number not in self.data or list(units.values()) != [1]:
                raise ValueError(f"{roles[number]['path']} has rows for the examples "
                                 "(expected data with a dimension of the batch)")
        self.micro = found.resized()

    def find_groups(self, rows):
        """group[k] of node k: "free" for values that every function computes itself."""
        total, nodes = len(self.whole.shapes), self.whole.nodes
        has_data, has_state = np.zeros(total, bool), np.zeros(total, bool)
        has_data[self.data_values()] = True
        for number, value in enumerate(self.whole.inputs):
            has_state[value] = number not in self.data
        producer = {}
        self.group, self.producer = [], {value: k for k, node in enumerate(nodes) for value in node.outputs}
        early = self.before_batch() if self.count == 1 else set()
        local = local_rows(self.whole, self.micro) if self.count > 1 else {}
        for k, node in enumerate(nodes):
            inputs = numbers(node)
            has_batch = any(self.is_split[value] for value in [*inputs, *node.outputs])
            has_data[node.outputs] = any(has_data[inputs])
            has_state[node.outputs] = any(has_state[inputs])
            begins = has_batch and not any(self.is_split[value] for value in inputs)
            # Values of examples that no data give, such as numbers of examples and random bits of a constant key.
            counts = begins and not self.repeats(node) and node.outputs[0] not in local
            is_whole = not any(self.is_split[value] for value in node.outputs)
            if has_data[node.outputs[0]] and is_whole and not has_state[node.outputs[0]]:
                self.group.append("before")  # a sum of data alone, such as the number of words of a masked mean
            elif node.outputs[0] in local and not has_data[node.outputs[0]]:
                self.group.append("free")
            elif not has_data[node.outputs[0]]:
                self.group.append("before" if counts or has_state[node.outputs[0]] or any(
                    self.group[producer[value]] == "before" for value in inputs if value in producer) else "free")
            elif not has_batch and k not in early:
                self.group.append("after")
            else:
                self.group.append("micro" if has_state[node.outputs[0]] else "free")
            producer.update((value, k) for value in node.outputs)
        self.has_data = has_data
        self.find_invariant()
        is_update = {row["output"] for row in rows if row["output"] is not None}
        losses = [value for at, value in enumerate(self.whole.outputs)
                  if at not in is_update and not isinstance(value, Constant)]
        needed = self.ancestors(losses)
        for k, node in enumerate(nodes):
            if self.group[k] == "micro":
                self.group[k] = "forward" if k in needed else "backward"
                if self.count > 1:
                    self.check_sum(node)
        self.check_mixing(local)
        self.delay_updates()

    def repeats(self, node):
        """Whether an operator that reads no examples gives the same for each of them."""
        if node.primitive.name != "iota" or self.count == 1:
            return node.primitive.name == "broadcast_in_dim"
        counted = node.params["dimension"]
        return self.whole.shapes[node.outputs[0]][counted] == self.micro.shapes[node.outputs[0]][counted]

    def merge_equal(self):
        """Leaves one of equal forward operators, such as x - mean of a norm and of its variance: a backward pass that
        needs both would keep the value twice. Recomputation of the step itself is no forward operator, and stays.
        `forward` lists the forward operators in their order, the one that is left in the place of each."""
        found, replaced, dropped, kept = {}, {}, set(), {}

        def merged(node):
            return [value if isinstance(value, Constant) else replaced.get(value, value) for value in node.inputs]

        for k, pair in enumerate(zip(self.whole.nodes, self.micro.nodes, strict=True)):
            for node in pair:
                node.inputs = merged(node)
            if self.group[k] != "forward":
                continue
            kept[k] = k
            try:
                same = kept[k] = found.setdefault(tuple(map(key_of, pair)), k)
            except TypeError:  # parameters without a hash
                continue
            if same != k:
                dropped.add(k)
                replaced.update(zip(pair[0].outputs, self.whole.nodes[same].outputs, strict=True))
        left = [k for k in range(len(self.group)) if k not in dropped]
        places = {k: at for at, k in enumerate(left)}
        self.forward = [places[same] for same in kept.values()]
        for graph in (self.whole, self.micro):
            graph.nodes = [node for k, node in enumerate(graph.nodes) if k not in dropped]
            graph.outputs = [value if isinstance(value, Constant) else replaced.get(value, value)
                             for value in graph.outputs]
        self.group = [self.group[k] for k in left]
        self.producer = {value: k for k, node in enumerate(self.whole.nodes) for value in node.outputs}

    def find_invariant(self):
        """Values that an operator on the batch gives without using the data, such as the weights that a scan keeps for
        its backward pass. Every micro-batch gives the same ones."""
        uses_data, self.invariant = set(self.data_values()), set()
        for k, node in enumerate(self.whole.nodes):
            depends = [not isinstance(value, Constant) and value in uses_data for value in node.inputs]
            found = depending_results(node.primitive.name, node.params, depends, len(node.outputs))
            uses_data.update(value for value, is_so in zip(node.outputs, found, strict=True) if is_so)
            if any(found):
                self.invariant |= {value for value, is_so in zip(node.outputs, found, strict=True)
                                   if not is_so and not self.is_split[value]}

    def delay_updates(self):
        """Moves what only updates use after the passes, such as the decay of an optimizer's state. Random keys stay, so
        that no array of keys passes from one function to another."""
        users = users_of(self.whole.nodes)
        keys = {value for value, dtype in enumerate(self.whole.dtypes)
                if dtype is not None and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)}
        for k in reversed(range(len(self.whole.nodes))):
            later = [self.group[user] for value in self.whole.nodes[k].outputs for user in users.get(value, ())]
            if self.group[k] == "before" and all(group == "after" for group in later) and (
                    not keys & set(numbers(self.whole.nodes[k]))):
                self.group[k] = "after"

    def check_sum(self, node):
        """Refuses a value that is no sum over micro-batches, or another fold."""
        is_sum = all(self.is_split[value] for value in node.outputs) or node.primitive.name in SUMS
        if not is_sum and node.primitive.name not in FOLDS:
            raise ValueError(f"{node.label} needs the whole batch: the step cannot run in micro-batches here")

    def check_mixing(self, local):
        """Refuses operators on micro-batches that need examples of others."""
        nodes = [node for node, group in zip(self.whole.nodes, self.group, strict=True)
                 if group in ("forward", "backward", "free")]
        name = mixing_operator(self.whole, self.micro, nodes, local, self.data_values()) if self.count > 1 else None
        if name:
            raise ValueError(f"{name} needs the whole batch: the step cannot run in micro-batches here")

    def find_sweeps(self):
        """sweep[k] of node k: the sweep over the micro-batches in which it runs, or after whose sums."""
        nodes, known = self.whole.nodes, {}  # known[value]: the first sweep that can use it
        self.sweep = [0] * len(nodes)
        for k, node in enumerate(nodes):
            is_micro = self.group[k] in ("forward", "backward")
            self.sweep[k] = max((known.get(value, 0) for value in numbers(node)), default=0)
            for value in node.outputs:
                is_sum = is_micro and self.count > 1 and not self.is_split[value] and value not in self.invariant
                known[value] = self.sweep[k] + is_sum
        users = users_of(self.whole.nodes)
        self.check_scans(users)
        for k in reversed(range(len(nodes))):  # what delay_updates() moved runs together with its users
            later = [self.sweep[user] for value in nodes[k].outputs for user in users.get(value, ())]
            if self.group[k] == "after" and self.sweep[k] == 0:
                self.sweep[k] = min(later, default=0)

    def check_scans(self, users):
        """Refuses a scan whose sum over the batch another operator on the batch takes: a later trip may do so."""
        for k, node in enumerate(self.whole.nodes):
            if node.primitive.name == "scan" and any(
                    self.sweep[user] > self.sweep[k] and self.group[user] in ("forward", "backward")
                    for value in node.outputs for user in users.get(value, ())):
                raise ValueError(f"{node.label} needs the whole batch: the step cannot run in micro-batches here")

    def data_values(self):
        return [self.whole.inputs[number] for number in self.data]

    def ancestors(self, values):
        found, open_values = set(), list(values)
        while open_values:
            k = self.producer.get(open_values.pop())
            if k is None or k in found:
                continue
            found.add(k)
            open_values += numbers(self.whole.nodes[k])
        return found

    def before_batch(self):
        """Nodes that a node with a row for each example needs, such as the mean of a batch norm. They belong to the
        passes of the only micro-batch, which is the whole batch."""
        split = [value for node in self.whole.nodes for value in numbers(node)
                 if any(self.is_split[made] for made in node.outputs)]
        return self.ancestors(split)


def whole_batch(graph, rows):
    """Why `run` cannot cut the data of a step into micro-batches, along none of their dimensions; None: it can. `graph`
    is that of the whole step, rows are those of its parameters in a document. Data of as many rows are cut, too, if
    one alone cannot be."""
    used, reasons = {value for node in graph.nodes for value in numbers(node)}, []
    shapes = {row["number"]: graph.shapes[graph.inputs[row["number"]]] for row in rows
              if row["role"] == "data" and graph.inputs[row["number"]] in used}
    for number, shape in shapes.items():
        for d in (d for d, size in enumerate(shape) if size > 1):
            alike = [other for other in shapes if shapes[other][d:d + 1] == shape[d:d + 1]]
            for cut in ([number], alike):
                reasons.append(refusal(graph, rows, dict.fromkeys(cut, d), shape[d]))
                if reasons[-1] is None:
                    return None
    return next(iter(reasons), None)


def refusal(graph, rows, data, batch):
    """Why micro-batches cannot cut `data` {number: dimension} of a batch; None: they can, or that is unknown."""
    groups = Groups()
    groups.whole, groups.rows, groups.named, groups.batch = graph, rows, data, batch
    groups.count = smallest_factor(batch)
    try:
        groups.resize()
        groups.find_groups(rows)
        groups.find_sweeps()
    except ValueError as error:
        return str(error).partition(": ")[0]
    except Exception:  # an operator in a form that is not known: `run` tells
        return None
    return None
