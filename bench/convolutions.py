"""Convolutions beside JAX: the shapes of VGG-19 and ResNet-50, each in three directions.

For every layer the forward pass, the gradient to the input and the gradient to the weights are lowered by
JAX to HLO; the same module is run by automap (bench_modules) and by jax.jit, in turn, and the least of
the rounds is taken. Printed are automap's GFLOP/s (two operations for each product of the forward pass) and
the ratio of the times automap / JAX (below 1: automap is faster), with one thread on both sides or, with
--threads 0, with all processors on both.

Run as `AUTOMAP_BUILD=build python bench/convolutions.py [--batch N] [--threads 1|0] [--quick]`.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import time

SOURCE = pathlib.Path(__file__).resolve().parents[1]
BENCH = pathlib.Path(os.environ.get("AUTOMAP_BUILD", SOURCE / "build")) / "bench_modules"
DIRECTIONS = ["forward", "to input", "to weights"]

# name, image size, input features, output features, window, stride
LAYERS = [
    ("vgg 1.1", 224, 3, 64, 3, 1), ("vgg 1.2", 224, 64, 64, 3, 1), ("vgg 2.1", 112, 64, 128, 3, 1),
    ("vgg 2.2", 112, 128, 128, 3, 1), ("vgg 3.1", 56, 128, 256, 3, 1), ("vgg 3.2", 56, 256, 256, 3, 1),
    ("vgg 4.1", 28, 256, 512, 3, 1), ("vgg 4.2", 28, 512, 512, 3, 1), ("vgg 5.1", 14, 512, 512, 3, 1),
    ("resnet stem", 224, 3, 64, 7, 2), ("resnet 1 reduce", 56, 256, 64, 1, 1), ("resnet 1", 56, 64, 64, 3, 1),
    ("resnet 1 expand", 56, 64, 256, 1, 1), ("resnet 2 stride", 56, 128, 128, 3, 2),
    ("resnet 2 shortcut", 56, 256, 512, 1, 2), ("resnet 2", 28, 128, 128, 3, 1),
    ("resnet 2 expand", 28, 128, 512, 1, 1), ("resnet 3 stride", 28, 256, 256, 3, 2),
    ("resnet 3", 14, 256, 256, 3, 1), ("resnet 3 expand", 14, 256, 1024, 1, 1),
    ("resnet 4 stride", 14, 512, 512, 3, 2), ("resnet 4", 7, 512, 512, 3, 1),
    ("resnet 4 expand", 7, 512, 2048, 1, 1),
]
QUICK = ["resnet 4 expand"]


def functions(layer, batch):
    """The three directions as (function, arguments), and the operations of each."""
    import jax
    import jax.numpy as jnp

    _, size, inputs, outputs, window, stride = layer
    image = jnp.ones((batch, size, size, inputs), jnp.float32)
    weights = jnp.ones((window, window, inputs, outputs), jnp.float32)

    def forward(x, w):
        return jax.lax.conv_general_dilated(x, w, (stride, stride), "SAME",
                                            dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def to_input(w, y):
        return jax.linear_transpose(lambda x: forward(x, w), image)(y)[0]

    def to_weights(x, y):
        return jax.linear_transpose(lambda w: forward(x, w), weights)(y)[0]

    result = jax.eval_shape(forward, image, weights)
    gradient = jnp.ones(result.shape, jnp.float32)
    operations = 2.0 * result.size * window * window * inputs
    return [(forward, (image, weights)), (to_input, (weights, gradient)), (to_weights, (image, gradient))], operations


def least(run, rounds=3, seconds=0.03):
    best = float("inf")
    for _ in range(rounds):
        count, begin = 0, time.perf_counter()
        while True:
            run()
            count += 1
            spent = time.perf_counter() - begin
            if spent >= seconds:
                break
        best = min(best, spent / count)
    return best


def run_automap(path, threads):
    done = subprocess.run([BENCH, "--threads", str(threads), str(path)], capture_output=True, text=True, check=True)
    return float(done.stdout)


def measure(function, arguments, threads, rounds):
    """Seconds of automap and of JAX."""
    import jax

    compiled = jax.jit(function)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "module.hlo.txt"
        path.write_text(compiled.lower(*arguments).compiler_ir("hlo").as_hlo_text())
        compiled(*arguments).block_until_ready()
        pairs = [(run_automap(path, threads), least(lambda: compiled(*arguments).block_until_ready()))
                 for _ in range(rounds)]
    return [min(column) for column in zip(*pairs)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layers", nargs="*", help="parts of the names of layers; default all")
    parser.add_argument("--batch", type=int, default=4, help="images; default 4")
    parser.add_argument("--rounds", type=int, default=2, help="default 2")
    parser.add_argument("--threads", type=int, choices=[0, 1], default=1, help="1, or 0: all processors")
    parser.add_argument("--quick", action="store_true", help="one small layer, to see that it works")
    options = parser.parse_args()
    os.environ["JAX_PLATFORMS"] = "cpu"
    threads = options.threads or len(os.sched_getaffinity(0))
    if options.threads == 1:
        os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    if options.quick:
        options.layers, options.rounds, options.batch = QUICK, 1, 1
    print(f"{'layer, ' + str(options.batch) + ' images':20}" + "".join(f"{d:>12}{'ratio':>7}" for d in DIRECTIONS))
    for layer in LAYERS:
        if options.layers and not any(part in layer[0] for part in options.layers):
            continue
        pairs, operations = functions(layer, options.batch)
        row = f"{layer[0]:20}"
        for function, arguments in pairs:
            ours, theirs = measure(function, arguments, threads, options.rounds)
            row += f"{operations / ours / 1e9:12.1f}{ours / theirs:7.2f}"
        print(row, flush=True)


if __name__ == "__main__":
    sys.exit(main())
