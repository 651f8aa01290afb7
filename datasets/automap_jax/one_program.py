"""Runs a step under a plan of one stage and one micro-batch without recomputation: one jitted function."""

import jax

from .layers import Layers
from .operators import compiler_options
from .planning import FORMAT, constrain, mesh_of, offloaded, sharding_of, shardings
from .step_graph import Graph, evaluate, operand_arrays


def is_one_program(document):
    """Returns whether the step runs as one program: a plan of stages with one stage may be in the form of several,
    because of its layers in stacked parameters or of the order of its devices."""
    if document.get("format") == FORMAT:
        return True
    stages = document.get("stages", [])
    is_whole = len(stages) == document.get("parts") == document.get("micro_batches") == 1
    return is_whole and not stages[0].get("recomputes")


class OneProgram:
    """A step as one program. A call returns the results of the step.

    jitted    the program, a function of `shapes`: the step's arrays, where layers of stacks are one by one
    """

    def __init__(self, document, step, arguments, devices, donates):
        leaves, self.structure = jax.tree.flatten(tuple(arguments))
        count = 1 + max((row["number"] for row in document["parameters"]), default=-1)
        if len(leaves) != count:
            raise ValueError(f"the step has {len(leaves)} arrays, the plan is for {count}")
        output = jax.eval_shape(step, *arguments)
        self.output, self.donates = jax.tree.structure(output), donates
        self.layers = Layers(document["parameters"], leaves, self.output.num_leaves)
        replaced = [row["number"] for row in self.layers.rows if donates and row["output"] is not None]
        step = constrain(document, step, devices)
        if document["format"] == FORMAT:
            inputs, outputs = map(jax.tree.leaves, shardings(document, arguments, output, devices))
            self.shapes = leaves
            function = self.flat(step)
        else:
            function = self.of_layers(step, leaves)
            mesh = mesh_of(document["stages"][0]["mesh"], devices)
            inputs, outputs = [None] * len(self.shapes), [None] * self.layers.firsts(self.layers.output_depths)[-1]
            for row in self.layers.rows:
                inputs[row["number"]] = sharding_of(mesh, self.shapes[row["number"]], row)
                if row["output"] is not None:
                    outputs[row["output"]] = inputs[row["number"]]
        self.places = inputs
        self.jitted = jax.jit(offloaded(function, inputs, outputs), in_shardings=inputs, out_shardings=outputs,
                              donate_argnums=replaced, compiler_options=compiler_options())

    def flat(self, step):
        """The step as a function of leaves that gives leaves."""
        return lambda *leaves: jax.tree.leaves(step(*self.structure.unflatten(leaves)))

    def of_layers(self, step, leaves):
        """The step as a function of leaves where stacks are layers."""
        closed = self.layers.split(jax.make_jaxpr(self.flat(step))(*leaves))
        graph = Graph(closed)
        self.shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in closed.in_avals]

        def function(*leaves):
            values = dict(zip(graph.inputs, leaves, strict=True))
            evaluate(graph.nodes, values)
            return operand_arrays(graph.outputs, values)

        return function

    def __call__(self, *arguments):
        leaves = self.layers.arrays(self.structure.flatten_up_to(arguments), self.donates)
        results = self.jitted(*jax.device_put(leaves, self.places))
        return self.output.unflatten(self.layers.joined(results))
