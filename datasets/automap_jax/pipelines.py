"""Runs a step under a plan of stages and micro-batches: one jitted function for each part and pass.

    document = json.load(open("jax.json"))               # automap export --format jax
    run = automap_jax.run(document, step, (state, x, y))
    state, loss = run(state, x, y)

The step is traced with its batch. The graph of a micro-batch follows from its graph (resizing.py), so that the step may
have the size of the batch as a number. Its operators then fall into four groups:

    before    independent of the data, or sums of data alone, if a pass needs it: once a step
    forward   needed for the loss, for each micro-batch
    backward  the others that have the batch in a shape, for each micro-batch
    after     from sums over the micro-batches on, and what only that needs: once a step

An operator of a micro-batch that needs a sum over all of them, such as a batch norm or the loss of the second of two
optimizers, belongs to a later sweep: sweep s + 1 of the micro-batches comes after the sums of sweep s and the operators
"after" of it. Sweep 0 has the plan's schedule. Later ones take the micro-batches in order.

A forward operator belongs to the last part that has one of its operands, or to a later one that the plan names. A
backward operator belongs to the first part of its backward operands, or to one before it that has its forward operands
and reads its weights in the forward pass. Parts have the forward values that they compute and those that they use; so
the gradient of a weight is on the part of the weight. A pass for weights has the products for their gradients, and the
operators after these. The backward pass before it has all others, so that few values are kept between both.

Values are sums over the micro-batches where an operator of a micro-batch sums over the batch; the constants are those
of the whole batch, so that sums of the parts are the values of the whole. A step for which that is no sum is refused.
Inside a part XLA's partitioner decides from the shardings of the plan.
"""

import functools
import itertools

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from .batches import DataSlice, batch_dimensions, on_host, rows_of, smallest_factor
from .exporter import traced_step
from .functions import Function
from .groups import Groups
from .layers import Layers
from .operators import CHEAP, HEAVY
from .planning import STAGES as FORMAT
from .planning import specs_of
from .recomputation import fitting, numbered, recomputed_of, warn_of_lost
from .step_graph import Constant, Graph, numbers, params_with_constants, users_of


class Partition(Groups):
    """Which group and part each operator belongs to."""

    def __init__(self, step, arguments, document):
        self.parts, self.count = document["parts"], document["micro_batches"]
        leaves, structure = jax.tree.flatten(tuple(arguments))
        count = 1 + max((row["number"] for row in document["parameters"]), default=-1)
        if len(leaves) != count:
            raise ValueError(f"the step has {len(leaves)} arrays, the plan is for {count}")
        self.output = jax.eval_shape(step, *arguments)
        self.layers = Layers(document["parameters"], leaves, len(jax.tree.leaves(self.output)))
        self.rows = rows = self.layers.rows
        choices, self.batch = batch_dimensions(document, leaves)
        if self.batch % self.count:
            raise ValueError(f"{self.count} micro-batches do not divide a batch of {self.batch}")
        trace_again = self.trace(step, structure, leaves, choices)
        first_error = None
        for cut in [self.resize, *(functools.partial(trace_again, data) for data in choices)]:
            try:
                cut()
                self.find_groups(rows)
                break
            except (TypeError, ValueError) as error:
                first_error = first_error or error
        else:
            raise first_error
        self.merge_equal()
        self.find_sweeps()
        self.find_parts(rows, document.get("placed", ()))

    def trace(self, step, structure, leaves, choices):
        """Traces the step with the whole batch. `choices` are those of batch_dimensions(). Returns a function of one
        that does it once more with a micro-batch, for operators that `Examples` does not know."""
        def graph(data, size):
            cut = [rows_of(leaf, data[number], slice(size)) if number in data else leaf
                   for number, leaf in enumerate(leaves)]
            traced = traced_step(step, structure.unflatten(cut), None)
            found = jax.make_jaxpr(lambda *trees: traced.step.function(*trees)[0])(*traced.step.arguments)
            return Graph(self.layers.split(found))

        def trace_again(data):
            self.data, self.whole = {firsts[number]: axis for number, axis in data.items()}, whole
            self.micro = graph(data, self.batch // self.count)
            smaller = graph(data, self.batch // smallest_factor(self.batch))
            for other in (self.micro, smaller):
                if [node.primitive for node in other.nodes] != [node.primitive for node in self.whole.nodes]:
                    raise ValueError("the step has other operators for other batches")
            self.is_split = [a != b for a, b in zip(self.whole.shapes, smaller.shapes, strict=True)]
            self.in_rows = {value for value, shape in enumerate(self.whole.shapes) if self.batch in shape}
            self.take_constants()

        self.whole = whole = graph({}, 0)
        firsts = self.layers.firsts(self.layers.depths)
        self.named = {firsts[number]: axis for number, axis in choices[0].items()}
        return trace_again

    def take_constants(self):
        """Gives the micro-batch, traced again, the scalars of the whole batch, such as 1 / examples, also in loops."""
        for whole, micro in zip(self.whole.nodes, self.micro.nodes, strict=True):
            micro.params = params_with_constants(whole.params, micro.params)
            for at, (a, b) in enumerate(zip(whole.inputs, micro.inputs, strict=True)):
                if isinstance(a, Constant) and np.shape(a.value) == np.shape(b.value):
                    micro.inputs[at] = a

    def find_parts(self, rows, placed):
        """part[value]: where it is computed; None: wherever it is used. `placed`: rows of the document."""
        owner = {self.whole.inputs[row["number"]]: row["part"] for row in rows if row["number"] not in self.data}
        self.part, places = dict(owner), {}  # places[forward value]: the parts that have it
        weights = dict(owner)  # with what is computed of them before the passes
        sources = {value: {value} for value in weights}  # the state of which it is computed
        readers = {}  # {value of weights: parts whose forward pass reads it}
        planned = self.planned_parts(placed)
        for k, node in enumerate(self.whole.nodes):
            group, inputs = self.group[k], numbers(node)
            known = [self.part[value] for value in inputs if self.part.get(value) is not None]
            if group == "free":
                found = None
            elif group == "backward":
                found = self.backward_part(inputs, weights, places)
                found = self.part_that_reads(found, [value for value in inputs if value in weights], sources, readers)
            elif group == "after":
                largest = max(inputs, key=lambda value: np.prod(self.whole.shapes[value]), default=None)
                owned = [weights[value] for value in inputs if value in weights
                         and np.prod(self.whole.shapes[value]) == np.prod(self.whole.shapes[largest])]
                found = owned[-1] if owned else self.part.get(largest)
                found = 0 if found is None else found
            else:
                found = max([planned.get(k, 0), *known])
                if group == "forward":
                    for value in [*inputs, *node.outputs]:
                        places.setdefault(value, {self.part.get(value, found)}).add(found)
                    for value in set(inputs) & set(weights):
                        readers.setdefault(value, set()).add(found)
            for value in node.outputs:
                self.part[value] = found
                if group == "before" or (group == "after" and all(operand in weights for operand in inputs)):
                    weights[value] = found
                    sources[value] = set().union(*(sources.get(operand, ()) for operand in inputs))
        self.owner = owner
        self.move_needed()

    def planned_parts(self, placed):
        """{forward node: part} of the rows of a document that fit the step."""
        places = numbered(self.whole, self.forward)
        found = {}
        for name, shape, count, number, part in placed:
            nodes = fitting(places.get((name, tuple(shape)), []), count)
            if nodes:
                found[nodes[number * len(nodes) // count]] = part
        return found

    def move_needed(self):
        """Moves a backward operator to the last part whose backward pass needs it, which runs first. A step may
        recompute a value that several parts read, such as the norm of an encoder's result."""
        users = users_of(self.whole.nodes)
        for k in reversed(range(len(self.whole.nodes))):
            outputs = self.whole.nodes[k].outputs
            later = [self.part[self.whole.nodes[user].outputs[0]] for value in outputs for user in users.get(value, ())
                     if self.group[user] == "backward"]
            if self.group[k] == "backward" and max(later, default=0) > self.part[outputs[0]]:
                self.part.update(dict.fromkeys(outputs, max(later)))

    @staticmethod
    def part_that_reads(found, weights, sources, readers):
        """The last part up to `found` whose forward pass reads the weights, or their sources."""
        for value in weights:
            parts = readers.get(value) or set().union(*(readers.get(source, ()) for source in sources[value]))
            found = max((part for part in parts if part <= found), default=found)
        return found

    def backward_part(self, inputs, weights, places):
        """The part of a backward operator, by the parts of its operands; of weights alone it is theirs."""
        moving = [value for value in inputs if value not in weights and self.part.get(value) is not None]
        known = [self.part[value] for value in inputs if self.part.get(value) is not None]
        found = min((self.part[value] for value in moving if value not in places), default=None)
        if found is None:
            return min((self.part[value] for value in moving), default=min(known, default=self.parts - 1))
        for value in moving:
            if value in places:
                found = max((part for part in places[value] if part <= found), default=min(places[value]))
        for value in inputs:  # each part has the data, and what follows from them alone: the forward pass decides
            if self.has_data[value] and self.part.get(value) is None:
                parts = places.get(value, set()) - {None}
                found = max((part for part in parts if part <= found), default=found)
        return found


class Run:
    """A step under a plan. A call returns the results of the step; `live` is the most micro-batches of each stage
    between their forward and backward passes, in the last call."""

    def __init__(self, document, step, arguments, devices=None, donates=False):
        if document.get("format") != FORMAT:
            raise ValueError(f"expected format {FORMAT}, found {document.get('format')}")
        devices = list(jax.devices() if devices is None else devices)
        needed = 1 + max(device for stage in document["stages"] for device in stage["mesh"]["devices"])
        if len(devices) < needed:
            raise ValueError(f"the plan is for {needed} devices, JAX has {len(devices)}")
        self.plan = Partition(step, arguments, document)
        self.count, self.stages = self.plan.count, document["stages"]
        self.meshes = [Mesh(np.array([devices[d] for d in stage["mesh"]["devices"]]).reshape(stage["mesh"]["shape"]),
                            stage["mesh"]["axis_names"]) for stage in self.stages]
        self.specs = {self.plan.whole.inputs[row["number"]]: [tuple(axes) if axes else None for axes in row["spec"]]
                      for row in self.plan.layers.rows}
        self.updates = {row["output"]: self.plan.whole.inputs[row["number"]] for row in self.plan.layers.rows
                        if row["output"] is not None}
        self.constraints = specs_of(document.get("constraints", []), self.plan.whole)
        self.donates = donates
        # Files of earlier versions have the passes of a stage under "turns".
        self.passes = [stage["passes"] if "passes" in stage else stage["turns"] for stage in self.stages]
        self.splits_weights = any(kind == "weights" for passes in self.passes for kind, *_ in passes)
        self.make_functions()

    # ---- functions ----

    def make_functions(self):
        plan, parts = self.plan, range(self.plan.parts)
        nodes = plan.whole.nodes
        self.free = {value: k for k, node in enumerate(nodes) if plan.group[k] == "free" for value in node.outputs}
        members = {(group, part): [k for k in range(len(nodes)) if plan.group[k] == group and plan.sweep[k] == 0
                                   and plan.part[nodes[k].outputs[0]] == part]
                   for group in ("forward", "backward") for part in parts}
        users = {}
        for k, node in enumerate(nodes):
            for value in self.through_free(numbers(node)):
                users.setdefault(value, set()).add(k)
        final = {value for value in self.through_free(
            [value for value in plan.whole.outputs if not isinstance(value, Constant)])}
        passes = {"forward": {}, "backward": {}, "weights": {}}
        for part in parts:
            passes["forward"][part] = set(members["forward", part])
            backward = set(members["backward", part])
            sent = {value for k in backward for value in nodes[k].outputs
                    if any(plan.group[user] == "backward" and user not in backward for user in users.get(value, ()))}
            early = self.urgent(backward, sent, users) if self.splits_weights else backward
            passes["backward"][part], passes["weights"][part] = early, backward - early
        self.again = {part: self.find_again(passes, part, self.planned_again(part, passes["forward"][part]))
                      for part in parts}
        chosen = {(kind, part): self.with_forward(set(self.again[part].values()) if kind != "forward" else (),
                                                  [plan.micro.nodes[k] for k in sorted(own)])
                  for kind, table in passes.items() for part, own in table.items()}
        read = {part: self.reads(chosen["backward", part]) | self.reads(chosen["weights", part]) for part in parts}
        self.functions, self.sums = {}, {}
        for kind, table in passes.items():
            for part, own in table.items():
                made = {value for k in own for value in nodes[k].outputs}
                inside = own
                if kind == "forward":
                    inside = own | passes["backward"][part] | passes["weights"][part]
                wanted = {value for value in made if value in final or (kind == "forward" and value in read[part])
                          or any(user not in inside for user in users.get(value, ()))}
                self.sums[kind, part] = {value for value in wanted if not plan.is_split[value]}
                placed = self.constrained(part, plan.micro)
                placed |= self.shardings_of_gradients(part, self.sums[kind, part], users)
                self.functions[kind, part] = Function(plan.micro, self.free, chosen[kind, part], wanted,
                                                      self.sums[kind, part], plan.invariant, placed)
        self.make_sweeps(users, final)
        self.donate_last_uses(final)
        used = {}
        for use, function in [*self.functions.items(), *((id(function), function) for *_, function in self.later)]:
            for value in function.inputs:
                used.setdefault(value, []).append(use)
        for value in final:
            used.setdefault(value, []).append("results")
        self.last_use = used
        self.part_of = {(kind, part): part for kind, part in self.functions}
        self.part_of |= {id(function): part for *_, part, function in self.later}

    def urgent(self, backward, sent, users):
        """The nodes of a backward pass that the pass for weights leaves to it: those for sent values, and those of
        sums without a product between them and the backward pass."""
        plan, nodes = self.plan, self.plan.whole.nodes
        found, has_changed = plan.ancestors(sent) & backward, True
        while has_changed:
            late = set()  # values after a product that can wait
            for k in sorted(backward - found):
                if nodes[k].primitive.name in HEAVY or not late.isdisjoint(numbers(nodes[k])):
                    late.update(nodes[k].outputs)
            light = {value for k in backward - found for value in nodes[k].outputs
                     if value not in late and not backward.issuperset(users.get(value, ()))}
            more = plan.ancestors(light) & backward - found
            found, has_changed = found | more, bool(more)
        return found

    def make_sweeps(self, users, final):
        """`before`: [(part, function)]; `later`: [(sweep, is_micro, part, function)] after the passes, in order."""
        plan = self.plan

        def segments(graph, groups, sweep):
            chosen = [k for k in range(len(plan.group)) if plan.group[k] in groups and plan.sweep[k] == sweep]
            return self.make_segments(graph, chosen, users, final)

        self.before, self.later = segments(plan.whole, {"before"}, 0), []
        for sweep in range(1 + max(plan.sweep, default=0)):
            self.later += [(sweep, False, *row) for row in segments(plan.whole, {"after"}, sweep)]
            if sweep:
                micro = segments(plan.micro, {"forward", "backward"}, sweep)
                self.later += [(sweep, True, *row) for row in micro]
        of_data = final & set(self.free)
        if of_data:
            self.later.append((sweep + 1, False, 0, Function(plan.whole, self.free, [], of_data)))

    def donate_last_uses(self, final):
        """Lets updates overwrite sums over micro-batches, results of other updates from them, and with `donates` the
        state that they replace. Finds the values that are dropped after them, and after the passes."""
        outputs = {value for _, is_micro, _, function in self.later for value in (
            function.sums if is_micro else function.outputs)}
        free = (outputs | {value for sums in self.sums.values() for value in sums}) - final
        if self.donates:
            free |= {value for output, value in self.updates.items() if value not in final}
        self.needed_later = set(final)
        for _, is_micro, _, function in reversed(self.later):
            if not is_micro:
                function.donated = free & set(function.inputs)
                function.dropped = set(function.inputs) - self.needed_later
            free -= set(function.inputs)
            self.needed_later |= set(function.inputs)

    def planned_again(self, part, own):
        """The forward nodes of a part that the plan recomputes."""
        stage, plan = self.stages[part % len(self.stages)], self.plan
        if not stage.get("recomputes") or "recomputed" not in stage:
            return set(own) if stage.get("recomputes") else set()
        found, lost = recomputed_of(stage["recomputed"], plan.whole, plan.forward)
        warn_of_lost([row for row in lost if own.intersection(row[-1])])
        return found & own

    def find_again(self, passes, part, planned):
        """{value: node} of forward values that the backward pass of the part computes again: those of the plan, and
        cheap ones whose operands it has anyway."""
        plan, nodes = self.plan, self.plan.whole.nodes
        later = passes["backward"][part] | passes["weights"][part]
        found, has = {}, {value for value, owner in plan.owner.items() if owner == part} | set(plan.data_values())
        has |= {value for value, k in plan.producer.items()  # in memory until the last pass
                if plan.group[k] == "before" and plan.part[value] == part and not plan.is_split[value]}
        open_values = [value for k in later for value in numbers(nodes[k])]
        while open_values:
            for value in self.through_free([open_values.pop()]):
                k = plan.producer.get(value)
                if k in planned and value not in found:
                    found.update(dict.fromkeys(nodes[k].outputs, k))
                    open_values += numbers(nodes[k])
                has.add(value)
        for k in sorted(passes["forward"][part] - set(found.values())):
            node = nodes[k]
            has_inputs = all(value in has or value in self.free for value in self.through_free(numbers(node)))
            if node.primitive.name in CHEAP and has_inputs:
                found.update((value, k) for value in node.outputs)
                has |= set(node.outputs)
            elif not set(node.outputs) <= has:
                has -= set(node.outputs)
        return found

    def constrained(self, part, graph):
        """{value: sharding} of the intermediate values that the plan decides, on the mesh of a part."""
        return {value: self.sharding(part, spec, graph.shapes[value]) for value, spec in self.constraints.items()}

    def shardings_of_gradients(self, part, sums, users):
        """{value: sharding} of the sums that are kept in shards until the update, like the state that they update."""
        plan, nodes, found = self.plan, self.plan.whole.nodes, {}
        if not self.stages[part % len(self.stages)].get("sharded_gradients"):
            return found
        specs = {plan.whole.outputs[output]: self.specs[value] for output, value in self.updates.items()
                 if not isinstance(plan.whole.outputs[output], Constant)}
        for value in sums:
            updated = [self.moved(specs[other], axes) for other, axes in self.elementwise(value, users)
                       if other in specs]
            spec = max(updated, key=lambda spec: sum(map(bool, spec)), default=())
            if updated and not any(spec):  # neither weights nor optimizer state are split
                spec = self.split_by_examples(part, plan.whole.shapes[value])
            if any(spec):
                found[value] = self.sharding(part, spec, plan.whole.shapes[value])
        return found

    def split_by_examples(self, part, shape):
        """The spec of a gradient that the devices of the examples share: by its first dimension of enough size."""
        mesh = self.meshes[part % len(self.meshes)]
        found = {axis for number, dimension in self.plan.data.items()
                 for axis in self.specs[self.plan.whole.inputs[number]][dimension] or ()}
        axes = tuple(axis for axis in mesh.axis_names if axis in found)
        ways = int(np.prod([mesh.shape[axis] for axis in axes], dtype=int))
        first = next((d for d, size in enumerate(shape) if ways > 1 and size % ways == 0), None)
        return [axes if d == first else None for d in range(len(shape))]

    def moved(self, spec, axes):
        """The spec of a value whose dimensions `axes` are those of another value with this spec."""
        return [axis for _, axis in sorted(zip(axes, [*spec, *[None] * len(axes)]), key=lambda row: row[0])]

    def elementwise(self, value, users):
        """[(value, axes)]: what updates compute of a sum, element by element or transposed; dimension d of it is
        dimension axes[d] of the sum."""
        plan, nodes = self.plan, self.plan.whole.nodes
        found = {value: tuple(range(len(plan.whole.shapes[value])))}
        open_values = [value]
        while open_values:
            at = open_values.pop()
            for k in users.get(at, ()):
                axes = found[at]
                if nodes[k].primitive.name == "transpose":
                    axes = tuple(axes[d] for d in nodes[k].params["permutation"])
                shape = tuple(plan.whole.shapes[value][d] for d in axes)
                if plan.group[k] != "after":
                    continue
                made = [other for other in nodes[k].outputs if other not in found and plan.whole.shapes[other] == shape]
                found.update(dict.fromkeys(made, axes))
                open_values += made
        return found.items()

    def reads(self, chosen):
        """The values that nodes take from others."""
        made = {value for node in chosen for value in node.outputs}
        return {value for node in chosen for value in self.through_free(numbers(node))} - made

    def with_forward(self, repeated, chosen):
        """The nodes of a backward pass after the forward nodes among `repeated` that it needs."""
        found, open_values = set(), [value for node in chosen for value in numbers(node)]
        while open_values:
            for value in self.through_free([open_values.pop()]):
                k = self.plan.producer.get(value)
                if k in repeated and k not in found:
                    found.add(k)
                    open_values += numbers(self.plan.whole.nodes[k])
        return [self.plan.micro.nodes[k] for k in sorted(found)] + chosen

    def through_free(self, values):
        """Values and, after what functions compute for themselves, its inputs."""
        found, open_values = set(), list(values)
        while open_values:
            value = open_values.pop()
            if value in found:
                continue
            found.add(value)
            k = self.free.get(value)
            if k is not None:
                open_values += numbers(self.plan.whole.nodes[k])
        return found

    def make_segments(self, graph, open_nodes, users, final):
        """[(part, function)] of the nodes: the nodes that a part can compute at once, repeatedly. A part that waits
        computes only what others wait for: further results would be in memory beside the state."""
        plan, nodes = self.plan, self.plan.whole.nodes
        waiting = {value for k in open_nodes for value in nodes[k].outputs}
        segments = []
        while open_nodes:
            for part in range(plan.parts):
                own, made = [], set()
                for k in open_nodes:
                    inputs = self.through_free(numbers(nodes[k]))
                    if plan.part[nodes[k].outputs[0]] == part and not any(
                            value in waiting and value not in made for value in inputs):
                        own.append(k)
                        made.update(nodes[k].outputs)
                of_part = [plan.part[nodes[k].outputs[0]] == part for k in open_nodes]
                if sum(of_part) > len(own):
                    awaited = [value for k, is_own in zip(open_nodes, of_part) if not is_own
                               for value in self.through_free(numbers(nodes[k]))]
                    own = sorted(plan.ancestors(awaited) & set(own))
                    made = {value for k in own for value in nodes[k].outputs}
                if not own:
                    continue
                open_nodes = [k for k in open_nodes if k not in set(own)]
                waiting -= made
                wanted = {value for value in made
                          if value in final or any(user not in set(own) for user in users.get(value, ()))}
                sums = {value for value in wanted if not plan.is_split[value]} if graph is plan.micro else ()
                if wanted:
                    segments.append((part, Function(graph, self.free, [graph.nodes[k] for k in own], wanted, sums,
                                                    plan.invariant, self.constrained(part, graph))))
        return segments

    # ---- placement ----

    def sharding(self, part, spec, shape):
        """On the mesh of a part, over the axes of `spec` that it has and that divide the shape."""
        mesh = self.meshes[part % len(self.meshes)]
        kept = []
        for size, axes in zip(shape, [*spec, *[None] * len(shape)]):
            axes = (axes,) if isinstance(axes, str) else tuple(axes or ())
            axes = tuple(axis for axis in axes if axis in mesh.axis_names)
            ways = int(np.prod([mesh.shape[axis] for axis in axes], dtype=int))
            kept.append(axes if axes and size % ways == 0 else None)
        return NamedSharding(mesh, PartitionSpec(*kept))

    def move(self, array, part):
        """An array on the mesh of a part."""
        here = getattr(array, "sharding", None)
        if isinstance(here, NamedSharding) and here.mesh == self.meshes[part % len(self.meshes)]:
            return array
        spec = here.spec if isinstance(here, NamedSharding) else ()
        return jax.device_put(array, self.sharding(part, spec, np.shape(array)))

    def call(self, function, part, *scopes):
        """Results of a function on values of the scopes, the innermost first, which receives them. Sums over
        micro-batches are in the outermost."""
        arrays = []
        for value in function.inputs:
            scope = next(scope for scope in scopes if value in scope)
            places = scope[value]
            if part not in places:
                source = next(iter(places.values()))
                places[part] = source.on(part) if isinstance(source, DataSlice) else self.move(source, part)
            arrays.append(places[part])
        totals = [scopes[-1][value][part] for value in function.sums if value in scopes[-1]]
        for value, array in zip(function.outputs, function.call(arrays, totals), strict=True):
            scopes[-1 if value in function.sums else 0][value] = {part: array}

    # ---- one step ----

    def __call__(self, *arguments):
        plan = self.plan
        leaves = plan.layers.arrays(jax.tree.leaves(tuple(arguments)), self.donates)
        step, batches = {}, [{} for _ in range(self.count)]
        for number, (value, leaf) in enumerate(zip(plan.whole.inputs, leaves, strict=True)):
            if number in plan.data:
                for at, batch in enumerate(batches):
                    array = rows_of(on_host(leaf), plan.data[number], slice(at, None, self.count))
                    batch[value] = {None: DataSlice(self, array, self.specs[value])}
            else:
                part = plan.owner[value]
                place = self.sharding(part, self.specs[value], np.shape(leaf))
                is_there = getattr(leaf, "sharding", None) == place
                step[value] = {part: leaf if is_there else jax.device_put(leaf, place)}
        data = {value: {None: DataSlice(self, on_host(leaves[number]), self.specs[value])}
                for number, value in enumerate(plan.whole.inputs) if number in plan.data}
        for part, function in self.before:
            self.call(function, part, step, data)
        self.slice_batches(step, batches)
        self.run_passes(step, batches)
        for value in set(step) - self.needed_later:
            del step[value]
        for (_, is_micro), rows in itertools.groupby(self.later, lambda row: row[:2]):
            self.run_later(is_micro, [row[2:] for row in rows], step, batches, data)
        return self.results({**data, **self.joined(batches), **step})

    def run_later(self, is_micro, functions, step, batches, data):
        """Functions after the passes: for each micro-batch all of them, or once in the step."""
        for batch in batches if is_micro else [None]:
            for part, function in functions:
                if batch is None:
                    self.call(function, part, step, data)
                    for value in function.dropped & set(step):
                        del step[value]
                else:
                    self.call(function, part, batch, step)
                    self.finish(id(function), function, batch)

    def slice_batches(self, step, batches):
        """Gives each micro-batch its part of values that are computed before, such as dropout's masks."""
        for value, places in list(step.items()):
            if not self.plan.is_split[value]:
                continue
            axis = self.batch_axis(value)
            part, array = next(iter(places.items()))
            for at, batch in enumerate(batches):
                rows = array if axis is None else rows_of(array, axis, slice(at, None, self.count))
                batch[value] = {part: rows}

    def batch_axis(self, value):
        """The dimension of the examples; None with one micro-batch."""
        whole, micro = self.plan.whole.shapes[value], self.plan.micro.shapes[value]
        axes = [d for d in range(len(whole)) if whole[d] != micro[d]]
        if self.count > 1 and (len(axes) != 1 or value not in self.plan.in_rows):
            raise ValueError(f"a value of shape {whole} is not a row for each example")
        return axes[0] if axes else None

    def run_passes(self, step, batches):
        """Runs the passes of every stage in their order, each as soon as its inputs are there. Stages alternate, and
        so few sent values wait for their receivers."""
        stages, parts = len(self.stages), self.plan.parts
        at, done = [0] * stages, set()
        open_forward, self.live = [0] * stages, [0] * stages
        ends = "weights" if self.splits_weights else "backward"
        while any(k < len(passes) for k, passes in zip(at, self.passes)):
            progress = False
            for s, passes in enumerate(self.passes):
                if at[s] < len(passes):
                    kind, chunk, batch = passes[at[s]]
                    part = chunk * stages + s
                    needs = {"forward": [("forward", part - 1, batch)] if part else [],
                             "backward": [("forward", part, batch)]
                             + ([("backward", part + 1, batch)] if part + 1 < parts else []),
                             "weights": [("backward", part, batch)]}[kind]
                    if not all(need in done for need in needs):
                        continue
                    self.run_pass(kind, part, step, batches[batch])
                    done.add((kind, part, batch))
                    open_forward[s] += (kind == "forward") - (kind == ends)
                    self.live[s] = max(self.live[s], open_forward[s])
                    at[s], progress = at[s] + 1, True
            assert progress, "the schedule waits for itself"

    def run_pass(self, kind, part, step, batch):
        function = self.functions[kind, part]
        if function.outputs:
            self.call(function, part, batch, step)
        self.finish((kind, part), function, batch)

    def finish(self, use, function, batch):
        """Frees what no later function of this micro-batch needs. A part keeps what it sends until that has arrived."""
        done = batch.setdefault("done", set())
        done.add(use)
        for value in function.inputs:
            if value not in batch:
                continue
            later = [other for other in self.last_use[value] if other not in done]
            parts = {None, *(self.part_of.get(other) for other in later)}
            places = {part: array for part, array in batch[value].items() if part in parts}
            if not later:
                del batch[value]
            elif places:
                batch[value] = places

    def joined(self, batches):
        """{output: {part: rows of all micro-batches, in the order of the examples}}."""
        plan, found = self.plan, {}
        for value in set(batches[0]) & {value for value in plan.whole.outputs if not isinstance(value, Constant)}:
            places = [batch[value] for batch in batches]
            part = next(iter(places[0]))
            if part is None:
                continue  # the data itself
            axis = self.batch_axis(value)
            rows = jax.numpy.stack([place[part] for place in places], 0 if axis is None else axis + 1)
            found[value] = {part: rows.reshape(plan.whole.shapes[value])}
        return found

    def results(self, step):
        """The outputs in the form of the step's, new state where the old one was."""
        plan, found = self.plan, []
        for at, value in enumerate(plan.whole.outputs):
            if isinstance(value, Constant):
                found.append(value.value)
                continue
            part, array = next(iter(step[value].items()))
            if isinstance(array, DataSlice):
                array = array.array
            if at in self.updates:
                old = self.updates[at]
                part = plan.owner[old]
                array = jax.device_put(array, self.sharding(part, self.specs[old], np.shape(array)))
            found.append(array)
        return jax.tree.structure(plan.output).unflatten(plan.layers.joined(found))
