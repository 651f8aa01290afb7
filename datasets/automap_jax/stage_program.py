"""Runs a step under a plan of stages as one jitted program: `jax.shard_map` over an axis `stage`, with ppermute.

    run = automap_jax.run(document, step, (state, x, y), form="one_program")

The functions of the parts are those of pipelines.py. A scan over the ticks of the schedule (ticks.py) runs one function
on each stage, by `lax.switch`. Then each stage sends to both neighbours. The axes of the stages' own meshes stay with
XLA's partitioner, so that data parallel, tensor parallel and ZeRO shardings hold inside of a stage.

All devices run one program, and so they have the same arrays. Values of different stages share an array, a slot, if
their shapes, types and shardings are equal:

    slot of weights    dimension 0 is split over the stages: one weight of each stage, or padding
    slot of a frame    for each frame (ticks.py) one value of a micro-batch
    slot of sums       a sum over the micro-batches
    slot of a channel  a value that a stage sends to a neighbour, or zeros
"""

import collections
import functools
import itertools
import re

import jax
import numpy as np
from jax import lax, numpy
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from .pipelines import Run
from .step_graph import Constant
from .ticks import KINDS, Ticks

# The form of a refusal, and the order of events of a frame.
REFUSED = 'form="one_program": '
ARRIVES = {"next": 0, "forward": 1, "previous": 2, "backward": 3, "weights": 4}


def other_permutes(text):
    """The permutes of a compiled module's text that are not of `ppermute`: the partitioner's. All devices have to take
    part in them, but only those of one stage run its function."""
    rows = re.findall(r"%?([\w.-]+) = [^=]* collective-permute(?:-start)?\((.*)", text)
    return [name for name, row in rows if not re.search(r'op_name="[^"]*ppermute"', row)]


def put_all(frames, frame, values):
    """The slots of frames with the values {slot: array} in one of the frames."""
    return [lax.dynamic_update_index_in_dim(array, values[slot], frame, 0) if slot in values else array
            for slot, array in enumerate(frames)]


def slots_of(rows):
    """([key of a slot], {(value, stage): slot}) of rows (value, stage, key): a slot has a value of each stage."""
    keys, found, counts, of_key = [], {}, collections.Counter(), collections.defaultdict(list)
    for value, stage, key in rows:
        if counts[key, stage] == len(of_key[key]):
            of_key[key].append(len(keys))
            keys.append(key)
        found[value, stage] = of_key[key][counts[key, stage]]
        counts[key, stage] += 1
    return keys, found


class StageProgram(Run):
    """A step as one program on stages of equal meshes. A call returns the results of the step.

    Refused with a ValueError are stages of unequal meshes, with common devices or with more than one axis of several
    devices, steps that need all micro-batches more than once, results with a row for each example, and arrays of
    `jax.random.key` in the state or between functions.

    live        the most micro-batches of each stage between their forward and backward passes
    compiled    the program, after the first call
    jitted      the same before: (numbers of the stages, slots of weights, data) -> (slots of weights, other results)
    peak_bytes  after the first call the bytes of a device, as XLA reports them: arguments, results beside donated
                ones and temporary buffers. The plan predicts the memory of functions alone. Programs need more, for
                slots are padded and each tick copies the results of a branch. bench/README.md has measured ratios.
    """

    def __init__(self, document, step, arguments, devices=None, donates=False):
        super().__init__(document, step, arguments, devices, donates)
        self.check()
        grid = np.stack([mesh.devices for mesh in self.meshes])
        self.mesh = Mesh(grid, ("stage", *self.meshes[0].axis_names))
        self.ticks = Ticks(self.passes, self.plan.parts)
        self.dtypes = self.plan.whole.dtypes
        self.find_weights()
        self.find_frames()
        self.find_sums()
        self.find_results()
        self.live = [self.most_live(passes) for passes in self.passes]
        self.padding = {}  # {(slot, device): the part of a slot on a stage without a weight in it}
        by_stage, whole = PartitionSpec("stage"), PartitionSpec()
        self.program = jax.shard_map(
            self.run_stage, mesh=self.mesh, in_specs=(by_stage, by_stage, whole), out_specs=(by_stage, whole),
            axis_names={"stage"}, check_vma=False)  # fmt: skip
        self.data_places = [NamedSharding(self.mesh, self.sharding(0, self.specs[value], self.plan.whole.shapes[value]))
                            for value in self.plan.data_values()]
        self.weight_places = [NamedSharding(self.mesh, self.stacked(key[2], key[0])) for key in self.weight_keys]
        places, everywhere = NamedSharding(self.mesh, by_stage), NamedSharding(self.mesh, whole)
        self.stage_numbers = jax.device_put(np.arange(len(self.stages), dtype=np.int32), places)
        # Without the options of compiler_options(): with them a donated pipeline of jaxlib 0.10.2 ended the process.
        self.jitted = jax.jit(
            self.program, in_shardings=(places, self.weight_places, self.data_places),
            out_shardings=(self.weight_places, [everywhere] * len(self.extra)),
            donate_argnums=[1] if donates else [])  # fmt: skip
        self.compiled = self.peak_bytes = None

    def check(self):
        """Refuses plans and steps that one program cannot hold."""
        first = self.meshes[0]
        for number, mesh in enumerate(self.meshes):
            if mesh.axis_names != first.axis_names or mesh.devices.shape != first.devices.shape:
                raise ValueError(f"{REFUSED}stage {number} has the mesh {dict(mesh.shape)} (expected that of stage 0, "
                                 f"{dict(first.shape)})")
        if len({device for mesh in self.meshes for device in mesh.devices.flat}) < first.size * len(self.meshes):
            raise ValueError(f"{REFUSED}stages share devices")
        if sum(size > 1 for size in first.devices.shape) > 1:
            raise ValueError(f"{REFUSED}stages have the mesh {dict(first.shape)} "
                             "(expected one axis of several devices, as XLA splits no branch over two)")
        if "stage" in first.axis_names:
            raise ValueError(f"{REFUSED}a mesh has an axis named stage")
        if any(is_micro for _, is_micro, *_ in self.later):
            raise ValueError(f"{REFUSED}the step needs all micro-batches more than once")
        split = [value for value in self.plan.whole.outputs if not isinstance(value, Constant)
                 and self.plan.is_split[value]]
        if split:
            raise ValueError(f"{REFUSED}a result of the step has a row for each example")
        functions = [*self.functions.values(), *(row[-1] for row in [*self.before, *self.later])]
        held = itertools.chain(self.plan.owner, *((*function.inputs, *function.outputs) for function in functions))
        for dtype in {self.plan.whole.dtypes[value] for value in held} - {None}:
            if jax.dtypes.issubdtype(dtype, jax.dtypes.extended):
                raise ValueError(f"{REFUSED}stages hold or pass an array of type {dtype} (expected "
                                 "jax.random.key_data of it in the state)")

    def most_live(self, passes):
        last = "weights" if self.splits_weights else "backward"
        return max(itertools.accumulate((kind == "forward") - (kind == last) for kind, *_ in passes))

    def sharding(self, part, spec, shape):
        """The PartitionSpec of a value inside of the program."""
        return super().sharding(part, spec, shape).spec

    @staticmethod
    def axes_of(entry):
        """The mesh axes of an entry of a PartitionSpec."""
        return (entry,) if isinstance(entry, str) else tuple(entry or ())

    # ---- slots ----

    def key(self, value, spec=()):
        """Values of equal keys share slots."""
        return self.plan.micro.shapes[value], self.dtypes[value], spec

    def stacked(self, spec, shape):
        """The spec of the slots of all stages: dimension 0 is also split over the stages. A scalar has one element."""
        first, *others = [*spec, *[None] * (max(len(shape), 1) - len(spec))]
        return PartitionSpec(("stage", *self.axes_of(first)), *others)

    def stage_of(self, part):
        return part % len(self.stages)

    def find_weights(self):
        """weights[value, stage] = slot. State that several stages use is moved to them at the beginning."""
        shapes, owner = self.plan.whole.shapes, self.plan.owner
        rows = [(value, self.stage_of(part), self.key(value, self.sharding(part, self.specs[value], shapes[value])))
                for value, part in sorted(owner.items())]
        self.weight_keys, self.weights = slots_of(rows)
        self.home = {value: stage for value, stage, _ in rows}

    def find_frames(self):
        """Which values parts send, `sent[kind, part]`, and the slots of frames: `places[part][value] = slot`."""
        parts = range(self.plan.parts)
        made = {value: use for use, function in self.functions.items() for value in function.outputs}
        read = collections.defaultdict(set)
        for use, function in self.functions.items():
            for value in function.inputs:
                if value in made:
                    read[value].add(use)
        self.sent = {(kind, part): set() for kind in KINDS for part in parts}
        for value, uses in read.items():
            kind, source = made[value]
            first, last = min(part for _, part in uses), max(part for _, part in uses)
            assert kind == "forward" or last <= source, "a backward pass needs a value of an earlier part"
            for part in range(source, last):
                self.sent["forward", part].add(value)
            for part in range(source, first, -1):
                self.sent["backward", part].add(value)
        self.frame_keys, self.places, self.reads = [], [], read
        for part in parts:
            self.places.append(self.slots_of_part(part, made))
        self.sent = {use: sorted(values) for use, values in self.sent.items()}
        self.channels = {}
        for kind in ("forward", "backward"):
            needed = collections.Counter()
            for part in parts:
                needed |= collections.Counter(map(self.frame_key, self.sent[kind, part]))
            self.channels[kind] = list(needed.elements())

    def frame_key(self, value):
        """Rows of examples are split over the axes of the data."""
        whole, micro = self.plan.whole.shapes[value], self.plan.micro.shapes[value]
        axis = next((d for d in range(len(whole)) if whole[d] != micro[d]), None)
        return self.key(value, axis)

    def slots_of_part(self, part, made):
        """{value: slot} of a frame of a part; a value takes the slot of another one that is no longer needed."""
        spans = {}
        for value, uses in self.reads.items():
            kind, source = made[value]
            begin = ARRIVES[kind] if source == part else ARRIVES["next" if source < part else "previous"]
            ends = [ARRIVES[reader] for reader, other in uses if other == part]
            ends += [ARRIVES[sender] for sender in ("forward", "backward") if value in self.sent[sender, part]]
            has = source == part or value in self.sent["forward", part - 1 if part else part] or (
                part + 1 < self.plan.parts and value in self.sent["backward", part + 1])
            if has and max(ends, default=-1) > begin:
                spans[value] = begin, max(ends)
        found, ends = {}, {}
        for value, (begin, end) in sorted(spans.items(), key=lambda row: (row[1], row[0])):
            key = self.frame_key(value)
            same = [slot for slot, other in enumerate(self.frame_keys) if other == key]
            slot = next((slot for slot in same if ends.get(slot, -1) <= begin), len(self.frame_keys))
            if slot == len(self.frame_keys):
                self.frame_keys.append(key)
            found[value], ends[slot] = slot, end
        return found

    def find_sums(self):
        """sum_slots[value, stage] = slot. The last entry of a key says that the values are folded in another way."""
        self.sum_keys, self.sum_slots = slots_of(
            (value, self.stage_of(part), (*self.key(value, function.placed.get(value, ())), value in function.folds))
            for (_, part), function in self.functions.items() for value in function.sums)

    def find_results(self):
        """Results that are no new state."""
        self.extra = [value for at, value in enumerate(self.plan.whole.outputs)
                      if at not in self.updates and not isinstance(value, Constant)]

    # ---- the program of a stage ----

    def run_stage(self, number, weights, data):
        """One step on one stage: the program of shard_map. `number` has one element, the stage."""
        self.stage = number[0]
        known = {key: weights[slot].reshape(self.plan.whole.shapes[key[0]]) for key, slot in self.weights.items()}
        whole = dict(zip(self.plan.data_values(), data, strict=True))
        self.run_functions(self.before, known, whole)
        needed = {(value, self.stage_of(part)) for (_, part), function in self.functions.items()
                  for value in function.inputs}
        self.move(needed, known)
        self.run_ticks(known, whole)
        self.run_functions([row[2:] for row in self.later], known, whole)
        return self.new_weights(known, weights), self.results_of(known)

    def move(self, needed, known):
        """Adds the (value, stage) of `needed` that other stages have."""
        for value, stage in sorted(needed - set(known)):
            sources = [other for other in range(len(self.stages)) if (value, other) in known]
            if sources:
                known[value, stage] = lax.ppermute(known[value, sources[0]], "stage", [(sources[0], stage)])

    def run_functions(self, functions, known, whole):
        """Functions of parts outside of the passes: those that need no value of one another run at once."""
        rounds, made = collections.defaultdict(list), {}
        for part, function in functions:
            stage = self.stage_of(part)
            at = max((made[value][0] + (made[value][1] != stage) for value in function.inputs if value in made),
                     default=0)
            rounds[at].append((stage, function))
            made.update((value, (at, stage)) for value in function.outputs)
        for at in sorted(rounds):
            self.move({(value, stage) for stage, function in rounds[at] for value in function.inputs
                       if value not in whole and value not in made or value in made and made[value][0] < at}, known)
            self.run_round(rounds[at], known, whole)

    def run_round(self, functions, known, whole):
        """Functions [(stage, function)] at once, one stage after the other's."""
        shapes = self.plan.whole.shapes
        keys, slots = slots_of((value, stage, (shapes[value], self.dtypes[value], self.successor(value, stage)))
                               for stage, function in functions for value in function.outputs)

        def branch(stage):
            def run():
                found = [None] * len(keys)
                values = dict(whole)
                for other, function in functions:
                    if other == stage:
                        arrays = [values[value] if value in values else known[value, stage]
                                  for value in function.inputs]
                        values.update(zip(function.outputs, function.function([], *arrays), strict=True))
                for (value, other), slot in slots.items():
                    if other == stage:
                        found[slot] = values[value]
                return [numpy.zeros(key[0], key[1]) if array is None else array
                        for key, array in zip(keys, found, strict=True)]

            return run

        arrays = lax.switch(self.stage, [branch(stage) for stage in range(len(self.stages))])
        known.update((key, arrays[slot]) for key, slot in slots.items())

    def successor(self, value, stage):
        """The slot of the weight that a value replaces, or None."""
        for output, old in self.updates.items():
            result = self.plan.whole.outputs[output]
            if result == value and self.home[old] == stage:
                return self.weights[old, stage]
        return None

    def run_ticks(self, known, whole):
        """The passes of all micro-batches. Adds the sums to `known`."""
        tables = {name: numpy.asarray(table) for name, table in self.ticks.rows.items()}
        frames = [numpy.zeros((self.ticks.frames, *shape), dtype) for shape, dtype, _ in self.frame_keys]
        frames = [self.rows_split(array, key[2], 1) for array, key in zip(frames, self.frame_keys, strict=True)]
        sums = [numpy.zeros(shape, dtype) for shape, dtype, *_ in self.sum_keys]
        sums = [lax.with_sharding_constraint(array, key[2]) if key[2] else array
                for array, key in zip(sums, self.sum_keys, strict=True)]
        uses = [(None, 0), *self.ticks.branches]
        self.written = sorted({self.places[part][value] for (_, part), function in self.functions.items()
                               for value in function.outputs if value in self.places[part]})
        branches = [self.branch_of(kind, part, known, whole) for kind, part in uses]
        count, stages = len(self.stages), range(len(self.stages))

        def tick(state, row):
            frames, sums = state
            now = {name: values[self.stage] for name, values in row.items()}
            passes = [functools.partial(branch, now, frames, sums) for branch in branches]
            written, changed, *sent = lax.switch(now["branch"], passes)
            frames = put_all(frames, now["frame"], written)
            sums = [array if key[-1] else total + array
                    for key, total, array in zip(self.sum_keys, sums, changed, strict=True)]
            for name, kind, step, arrays in zip(("next", "previous"), ("forward", "backward"), (1, -1), sent,
                                                strict=True):
                arrays = [lax.ppermute(array, "stage", [(s, (s + step) % count) for s in stages]) for array in arrays]
                frame = now[f"{name}_frame"]
                if arrays:
                    frames = put_all(frames, frame, lax.switch(now[name], self.arrivals(kind, step, frames, frame,
                                                                                       arrays)))
            return (frames, sums), None

        (_, sums), _ = lax.scan(tick, (frames, sums), tables)
        known.update((key, sums[slot]) for key, slot in self.sum_slots.items())

    def rows_split(self, array, axis, before=0):
        """The array with its examples split over the axes of the data."""
        if axis is None:
            return array
        spec = [PartitionSpec.UNCONSTRAINED] * array.ndim
        spec[axis + before] = self.data_axes(array.shape[axis + before])
        return lax.with_sharding_constraint(array, PartitionSpec(*spec))

    def data_axes(self, size):
        """The mesh axes over which the plan splits the examples, if they divide them."""
        for number, axis in self.plan.data.items():
            spec = self.sharding(0, self.specs[self.plan.whole.inputs[number]],
                                 self.plan.micro.shapes[self.plan.whole.inputs[number]])
            if axis < len(spec) and spec[axis]:
                ways = int(np.prod([self.mesh.shape[name] for name in self.axes_of(spec[axis])]))
                return spec[axis] if size % ways == 0 else None
        return None

    def empty(self, kind):
        return [numpy.zeros(shape, dtype) for shape, dtype, _ in self.channels[kind]]

    def channel_slots(self, kind, part):
        """[(value, slot)] of what a part sends."""
        free, found = list(enumerate(self.channels.get(kind, ()))), []
        for value in self.sent.get((kind, part), ()):
            entry = next(row for row in free if row[1] == self.frame_key(value))
            free.remove(entry)
            found.append((value, entry[0]))
        return found

    def branch_of(self, kind, part, known, whole):
        """The function of a pass, or of none: (row of the table, frames, sums) -> (values for slots `written` of the
        frame, addends of sums or their values after a fold, arrays sent forward, and backward). XLA copies what a
        branch gives, so that whole frames are only read."""
        function, places, stage = self.functions.get((kind, part)), self.places[part], self.stage_of(part)
        inputs, outputs, made_sums = (function.inputs, function.outputs, function.sums) if function else ((), (), ())

        def run(now, frames, sums):
            made = {}

            def read(value):
                if value in made:
                    return made[value]
                if value in places:
                    return lax.dynamic_index_in_dim(frames[places[value]], now["frame"], 0, False)
                array = whole[value] if value in whole else known[value, stage]
                return self.micro_batch(value, array, now["batch"])

            arrays = [read(value) for value in inputs]
            made.update(zip(outputs, function.function([], *arrays) if outputs else (), strict=True))
            sent = {other: self.empty(other) for other in self.channels}
            for value, slot in self.channel_slots(kind, part):
                sent[kind][slot] = read(value)
            changed = [array if key[-1] else numpy.zeros_like(array)
                       for key, array in zip(self.sum_keys, sums, strict=True)]
            for value in made_sums:
                slot, fold = self.sum_slots[value, stage], function.folds.get(value)
                changed[slot] = numpy.where(now["first"], made[value], fold(sums[slot], made[value])) if fold else (
                    made[value])
            own = {places[value]: made[value] for value in outputs if value in places}
            kept = [slot for slot in self.written if slot not in own]
            written = own | {slot: lax.dynamic_index_in_dim(frames[slot], now["frame"], 0, False) for slot in kept}
            return written, changed, sent["forward"], sent["backward"]

        return run

    def micro_batch(self, value, array, number):
        """The rows of a micro-batch of a value of the whole batch."""
        if self.count == 1 or not self.plan.is_split[value]:
            return array
        axis, shape = self.batch_axis(value), np.shape(array)
        rows = array.reshape(*shape[:axis], shape[axis] // self.count, self.count, *shape[axis + 1:])
        return self.rows_split(lax.dynamic_index_in_dim(rows, number, axis + 1, False), axis)

    def arrivals(self, kind, step, frames, frame, arrays):
        """Functions that give the values of a frame, {slot: array}, after an arrival: the first of none, then for each
        part what it receives from part - step."""
        rows = [[(self.places[part][value], slot) for value, slot in self.channel_slots(kind, part - step)
                 if value in self.places[part]] for part in range(self.plan.parts)]
        slots = sorted({place for row in rows for place, _ in row})

        def received(row):
            return {place: arrays[row[place]] if place in row else
                    lax.dynamic_index_in_dim(frames[place], frame, 0, False) for place in slots}

        return [functools.partial(received, dict(row)) for row in [[], *rows]]

    def merged(self, arrays):
        """One array of {stage: array}."""
        (_, found), *others = arrays.items()
        for stage, array in others:
            found = found if array is found else numpy.where(self.stage == stage, array, found)
        return found

    def new_weights(self, known, weights):
        """The slots of weights after the step."""
        plan, found = self.plan, [{} for _ in weights]
        replaced = {old: plan.whole.outputs[output] for output, old in self.updates.items()}
        self.move({(value, self.home[old]) for old, value in replaced.items() if not isinstance(value, Constant)},
                  known)
        for (old, stage), slot in self.weights.items():
            value = replaced.get(old, old)
            found[slot][stage] = numpy.asarray(value.value) if isinstance(value, Constant) else known[value, stage]
        return [self.merged(arrays).reshape(np.shape(old)) for arrays, old in zip(found, weights, strict=True)]

    def results_of(self, known):
        """Other results on all stages, each from one that has it."""
        found = []
        for value in self.extra:
            stage = min(stage for other, stage in known if other == value)
            array = known[value, stage]
            number = array.astype(numpy.int8) if array.dtype == bool else array
            found.append(lax.psum(numpy.where(self.stage == stage, number, 0), "stage").astype(array.dtype))
        return found

    # ---- one step ----

    def __call__(self, *arguments):
        plan = self.plan
        leaves = plan.layers.arrays(jax.tree.leaves(tuple(arguments)), self.donates)
        by_value = dict(zip(plan.whole.inputs, leaves, strict=True))
        data = jax.device_put([np.asarray(by_value[value]) for value in plan.data_values()], self.data_places)
        inputs = self.stage_numbers, self.slots_from(by_value), data
        if self.compiled is None:
            self.compile(inputs)
        return self.outputs_from(*self.compiled(*inputs))

    def compile(self, inputs):
        """Compiles the program, and refuses it where it would wait for other stages inside of a branch."""
        compiled = self.jitted.lower(*inputs).compile()
        permutes = other_permutes(compiled.as_text())
        if permutes:
            raise ValueError(f"{REFUSED}XLA permutes values of one stage over all devices ({permutes[0]})")
        self.compiled, found = compiled, compiled.memory_analysis()
        self.peak_bytes = (found.argument_size_in_bytes + found.output_size_in_bytes - found.alias_size_in_bytes
                           + found.temp_size_in_bytes)

    def slots_from(self, by_value):
        """The slots of weights of the leaves, without copies where they are on their devices."""
        shards = [{} for _ in self.weight_keys]
        for (value, stage), slot in self.weights.items():
            leaf, place = by_value[value], NamedSharding(self.meshes[stage], self.weight_keys[slot][2])
            array = leaf if getattr(leaf, "sharding", None) == place else jax.device_put(leaf, place)
            shards[slot].update((shard.device, shard.data if array.ndim else shard.data.reshape(1))
                                for shard in array.addressable_shards)
        found = []
        for slot, ((shape, dtype, _), place) in enumerate(zip(self.weight_keys, self.weight_places, strict=True)):
            shape = (len(self.stages) * (shape or (1,))[0], *shape[1:])
            own = place.shard_shape(shape)
            arrays = []
            for device in place.addressable_devices:
                if device not in shards[slot]:
                    shards[slot][device] = self.padding.pop((slot, device), None)
                    if shards[slot][device] is None:
                        shards[slot][device] = jax.device_put(np.zeros(own, dtype), device)
                    if not self.donates:
                        self.padding[slot, device] = shards[slot][device]
                arrays.append(shards[slot][device])
            found.append(jax.make_array_from_single_device_arrays(shape, place, arrays))
        return found

    def outputs_from(self, weights, results):
        """The outputs in the form of the step's, new state where the old one was."""
        plan = self.plan
        by_device = [{shard.device: shard.data for shard in array.addressable_shards} for array in weights]
        used = [set() for _ in weights]

        def leaf(value):
            stage = self.home[value]
            slot, mesh = self.weights[value, stage], self.meshes[stage]
            shape, dtype, spec = self.weight_keys[slot]
            used[slot] |= set(mesh.devices.flat)
            arrays = [by_device[slot][device] for device in mesh.devices.flat if device in by_device[slot]]
            arrays = [array if shape else array.reshape(()) for array in arrays]
            return jax.make_array_from_single_device_arrays(shape, NamedSharding(mesh, spec), arrays, dtype=dtype)

        found, extra = [], iter(results)
        for at, value in enumerate(plan.whole.outputs):
            if at in self.updates:
                found.append(leaf(self.updates[at]))
            elif isinstance(value, Constant):
                found.append(value.value)
            else:
                found.append(next(extra))
        if self.donates:
            for slot, arrays in enumerate(by_device):
                self.padding.update(((slot, device), array) for device, array in arrays.items()
                                    if device not in used[slot])
        return jax.tree.structure(plan.output).unflatten(plan.layers.joined(found))
