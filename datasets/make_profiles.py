"""Profile graphs in the text form of PipeDream and DAPPLE (planners/cut_agent/profile_graph.h), with generated figures.

    python datasets/make_profiles.py        writes datasets/profiles/*.txt

Layers are those of VGG-16, ResNet-50, GNMT (8 + 8) and BERT-48; a time is FLOPs at a nominal rate plus a part for
bytes, both with 5 % noise of a fixed seed. Nothing is measured.
"""

import pathlib
import random

BATCH = {"vgg16_like": 32, "resnet50_like": 32, "gnmt_like": 64, "bert48_like": 2}
FLOPS_PER_SECOND = 10e12
BYTES_PER_SECOND = 600e9
FLOAT = 4


class Graph:
    """Nodes with figures, and edges, in the order in which they are made."""

    def __init__(self, name):
        self.batch = BATCH[name]
        self.random = random.Random(name)
        self.nodes, self.edges = [], []

    def add(self, description, flops, elements, parameters, inputs):
        """A node that gives `elements` per example and computes `flops` for each; returns its name."""
        size = FLOAT * elements * self.batch
        noise = self.random.uniform(0.95, 1.05)
        forward = 1e3 * noise * (flops * self.batch / FLOPS_PER_SECOND + 2 * size / BYTES_PER_SECOND) if inputs else 0
        name = f"node{len(self.nodes) + 1}"
        self.nodes.append(
            f"{name} -- {description} -- forward_compute_time={forward:.3f}, backward_compute_time={2 * forward:.3f}, "
            f"activation_size={size:.1f}, parameter_size={FLOAT * parameters:.3f}"
        )
        self.edges += [(producer, name) for producer in inputs]
        return name

    def text(self):
        return "".join(f"{node}\n" for node in self.nodes) + "".join(f"\t{a} -- {b}\n" for a, b in self.edges)


def convolution(graph, source, side, inputs, outputs, width):
    parameters = width * width * inputs * outputs
    return graph.add(f"Conv2d({inputs}, {outputs}, kernel_size=({width}, {width}))", 2 * parameters * side * side,
                     outputs * side * side, parameters + outputs, [source])


def relu(graph, source, elements):
    return graph.add("ReLU(inplace)", elements, elements, 0, [source])


def linear(graph, source, inputs, outputs):
    return graph.add(f"Linear(in_features={inputs}, out_features={outputs})", 2 * inputs * outputs, outputs,
                     inputs * outputs + outputs, [source])


def vgg16(graph):
    node, side, channels = graph.add("Input0", 0, 3 * 224 * 224, 0, []), 224, 3
    for outputs, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            node = relu(graph, convolution(graph, node, side, channels, outputs, 3), outputs * side * side)
            channels = outputs
        side //= 2
        node = graph.add("MaxPool2d(kernel_size=2)", channels * side * side, channels * side * side, 0, [node])
    for inputs, outputs in ((25088, 4096), (4096, 4096)):
        node = relu(graph, linear(graph, node, inputs, outputs), outputs)
    linear(graph, node, 4096, 1000)


def resnet50(graph):
    node = graph.add("Input0", 0, 3 * 224 * 224, 0, [])
    node = relu(graph, convolution(graph, node, 112, 3, 64, 7), 64 * 112 * 112)
    node = graph.add("MaxPool2d(kernel_size=3)", 64 * 56 * 56, 64 * 56 * 56, 0, [node])
    channels, side = 64, 56
    for width, count in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(count):
            if block == 0 and width > 64:
                side //= 2
            inner = relu(graph, convolution(graph, node, side, channels, width, 1), width * side * side)
            inner = relu(graph, convolution(graph, inner, side, width, width, 3), width * side * side)
            inner = convolution(graph, inner, side, width, 4 * width, 1)
            shortcut = convolution(graph, node, side, channels, 4 * width, 1) if block == 0 else node
            channels = 4 * width
            node = graph.add("Add", channels * side * side, channels * side * side, 0, [inner, shortcut])
    linear(graph, graph.add("AvgPool2d(kernel_size=7)", channels * 49, channels, 0, [node]), channels, 1000)


def gnmt(graph, length=50, width=1024, vocabulary=32320):
    def lstm(source, inputs, more):
        parameters = 4 * width * (inputs + width)
        return graph.add(f"LSTM({inputs}, {width})", 2 * parameters * length, length * width, parameters,
                         [source, *more])

    source = graph.add("Input0", 0, length, 0, [])
    node = graph.add(f"Embedding({vocabulary}, {width})", 0, length * width, vocabulary * width, [source])
    for layer in range(8):
        out = lstm(node, width, [])
        node = graph.add("Add", length * width, length * width, 0, [out, node]) if layer >= 2 else out
    memory = node
    target = graph.add("Input1", 0, length, 0, [])
    node = graph.add(f"Embedding({vocabulary}, {width})", 0, length * width, vocabulary * width, [target])
    node = lstm(node, width, [])
    context = graph.add("Attention", 4 * length * length * width, length * width, 2 * width * width, [node, memory])
    for layer in range(7):
        out = lstm(node, 2 * width, [context])
        node = graph.add("Add", length * width, length * width, 0, [out, node]) if layer >= 1 else out
    graph.add(f"Linear(in_features={width}, out_features={vocabulary})", 2 * length * width * vocabulary,
              length * vocabulary, width * vocabulary, [node])


def bert48(graph, length=512, width=1024, vocabulary=30522):
    source = graph.add("Input0", 0, length, 0, [])
    node = graph.add(f"Embedding({vocabulary}, {width})", 0, length * width, vocabulary * width, [source])
    tokens = length * width
    for _ in range(48):
        attention = graph.add("SelfAttention", 8 * tokens * width + 4 * length * tokens, tokens, 4 * width * width,
                              [node])
        node = graph.add("AddNorm", 8 * tokens, tokens, 2 * width, [attention, node])
        inner = graph.add("Gelu(Linear)", 8 * tokens * width, 4 * tokens, 4 * width * width, [node])
        inner = graph.add("Linear", 8 * tokens * width, tokens, 4 * width * width, [inner])
        node = graph.add("AddNorm", 8 * tokens, tokens, 2 * width, [inner, node])
    graph.add("Linear", 2 * tokens * vocabulary, length * vocabulary, width * vocabulary, [node])


if __name__ == "__main__":
    folder = pathlib.Path(__file__).parent / "profiles"
    folder.mkdir(exist_ok=True)
    for name, make in (("vgg16_like", vgg16), ("resnet50_like", resnet50), ("gnmt_like", gnmt),
                       ("bert48_like", bert48)):
        graph = Graph(name)
        make(graph)
        (folder / f"{name}.txt").write_text(graph.text())
