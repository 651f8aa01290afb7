"""HLO text against jaxlib's own parser and printer.

For steps that use most of what JAX lowers to, for the committed tiny models and for the samples in
tests/data/text: what automap reads from jaxlib's text equals jaxlib's binary, instruction by instruction
(opcode, shape, operands, attributes, literals), and jaxlib reads automap's text back to the same.

The compiled forms of the steps (scheduled, with fusions, layouts and the backend's own calls), and with
AUTOMAP_FULL those of every tiny model, have one hash as jaxlib's binary, jaxlib's texts, and our text, JSON
and binary, one made of the other; jaxlib prints what it reads of ours as it printed its own.
"""
# labels: jax e2e
# timeout: 300

import os
import pathlib
import re
import shutil
import sys
import tempfile

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "oracle"))
MODELS = ["mlp_tiny", "two_swapped", "vgg_tiny", "exact_gather", "bert_tiny", "t5_tiny"]

try:
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jaxlib import _hlo
    from hlo_messages import AUTOMAP, SOURCE, check_same, convert, library_or_skip, load_messages
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)
if not AUTOMAP or not os.path.exists(AUTOMAP) or not shutil.which("protoc"):
    print("skipped: no automap program or no protoc")
    sys.exit(77)


# ------------------------------------------------------------------- Modules

def perceptron(weights, x, labels):
    def loss(weights):
        logits = jax.nn.log_softmax(jnp.tanh(x @ weights["a"] + weights["b"]) @ weights["c"])
        return -jnp.mean(logits[jnp.arange(labels.shape[0]), labels])
    value, gradients = jax.value_and_grad(loss)(weights)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), value


def convolutions(kernel, grouped, image):
    layout = ("NHWC", "HWIO", "NHWC")

    def loss(kernels):
        y = jax.lax.conv_general_dilated(image, kernels[0], (2, 2), "SAME", dimension_numbers=layout)
        y = jax.lax.conv_general_dilated(y, kernels[1], (1, 1), [(1, 1), (1, 1)], lhs_dilation=(1, 2),
                                         dimension_numbers=layout, feature_group_count=8)
        y = jax.lax.reduce_window(y, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return jnp.sum(jnp.sort(y, axis=0) ** 2)
    return jax.value_and_grad(loss)((kernel, grouped))


def control_flow(x, index):
    double, less, same = lambda t: t * 2, lambda t: t - 1, lambda t: t
    scanned = jax.lax.scan(lambda s, t: (s + t, s * t), x[0], x)
    chosen = jax.lax.cond(index[0] > 0, double, less, x)
    switched = jax.lax.switch(index[1], [double, less, same], x)
    return scanned, chosen, switched, jax.lax.optimization_barrier((x, chosen))


def indexing(x, index):
    window = jax.lax.dynamic_slice(x, (index[0], index[1]), (2, 2))
    return (jax.lax.top_k(x, 3), jnp.take(x, index, axis=0), x.at[index].add(1.0), window,
            jax.lax.dynamic_update_slice(x, window, (index[1], index[2])), jnp.cumsum(x, axis=1),
            jnp.pad(x, ((1, 2), (0, 0)))[::-1, ::2], jax.lax.pad(x, 0.0, ((1, -1, 2), (0, 0, 0))),
            jax.lax.batch_matmul(x[None], x.T[None]))


def numbers(x, key):
    square = x[:5, :5] @ x[:5, :5].T
    first = x[0, 0]
    constants = [
        jnp.array([float("nan"), float("inf"), -float("inf"), 1e-40, 3.0000002, -0.0]) * first,
        jnp.array([1e-3, 65504, 5e-8], jnp.float16) * first.astype(jnp.float16),
        jnp.array([[0.1] * 5] * 6, jnp.bfloat16) + x.astype(jnp.bfloat16),
        jnp.array(0.3, jnp.float8_e4m3fn) * x.astype(jnp.float8_e4m3fn),
        jnp.array([1, -2], jnp.int4) + first.astype(jnp.int4),
        jnp.array([1, 2, 250], jnp.uint8) + first.astype(jnp.uint8),
        jnp.array([True, False]) & (first > 1),
        jnp.fft.fft(x.astype(jnp.complex64)) + jnp.complex64(1 + 2j),
        jnp.sin(jnp.arange(600.0)).reshape(20, 30) * first,
    ]
    bits = jax.lax.rng_bit_generator(jnp.concatenate([key, key]).astype(jnp.uint32), (3,))
    return (constants, bits, jax.random.normal(key, (4,)), jnp.linalg.cholesky(square),
            jax.scipy.linalg.solve_triangular(square, x[:5, :5], lower=True),
            jax.lax.reduce_precision(x, 8, 3))


def libraries(x, scale):
    return (jax.nn.standardize(x) * scale, jax.lax.approx_max_k(x, 3), jax.lax.erf(x),
            jax.lax.ragged_dot(x, jnp.ones((2, 5, 4)), jnp.array([1, 5], jnp.int32)),
            jax.lax.while_loop(lambda t: t[0] < 10, lambda t: (t[0] + 1, t[1] * 2), (0, x)),
            jnp.linalg.svd(x[:4, :4])[1], jnp.clip(x, 0, 1), jnp.round(x),
            jax.lax.population_count(x.astype(jnp.int32)), jax.lax.clz(x.astype(jnp.uint8)))


def sharded(weights, x):
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(2, 4), ("data", "model"))
    both, rows = jax.sharding.PartitionSpec("data", "model"), jax.sharding.PartitionSpec("data")
    y = jax.lax.with_sharding_constraint(x @ weights, jax.sharding.NamedSharding(mesh, both))
    total = jax.shard_map(lambda part: jax.lax.psum(part, "model"), mesh=mesh, in_specs=both, out_specs=rows)
    return total(y)


def lowered():
    """Name and lowering of each step."""
    shape = jax.ShapeDtypeStruct
    f32 = lambda *dimensions: shape(dimensions, jnp.float32)
    s32 = lambda *dimensions: shape(dimensions, jnp.int32)
    weights = {"a": f32(8, 16), "b": f32(16), "c": f32(16, 10)}
    key = shape((2,), jnp.uint32)
    steps = [(perceptron, (weights, f32(4, 8), s32(4)), (0,)),
             (convolutions, (f32(3, 3, 3, 8), f32(3, 3, 1, 8), f32(2, 16, 16, 3)), ()),
             (control_flow, (f32(6, 5), s32(6)), ()), (indexing, (f32(6, 5), s32(6)), ()),
             (numbers, (f32(6, 5), key), ()), (libraries, (f32(6, 5), f32(5)), ()),
             (sharded, (f32(16, 32), f32(8, 16)), ())]
    for step, arguments, donated in steps:
        yield step.__name__, jax.jit(step, donate_argnums=donated).lower(*arguments)


def lowered_steps():
    """Name, binary and the texts that jaxlib prints of each step."""
    for name, lowered_step in lowered():
        module = lowered_step.compiler_ir("hlo")
        yield name, module.as_serialized_hlo_module_proto(), {
            "short": lowered_step.as_text("hlo"),
            "debug": lowered_step.as_text("hlo", debug_info=True),
            "large": module.as_hlo_text(print_large_constants=True),
        }


def committed_models():
    for name in MODELS:
        binary = (SOURCE / "datasets" / "models" / name / "model.hlo.pb").read_bytes()
        module = _hlo.XlaComputation(binary)
        yield name, binary, {"large": module.as_hlo_text(print_large_constants=True)}


def compiled_models():
    """Name and compiled module of every tiny model."""
    import jaxlib._jax as xla
    client = jax.devices()[0].client
    for path in sorted((SOURCE / "datasets" / "models").glob("*_tiny/model.hlo.pb")):
        stable = xla.mlir.xla_computation_to_mlir_module(_hlo.XlaComputation(path.read_bytes()))
        executable = client.compile_and_load(stable, xla.DeviceList(tuple(client.devices()[:1])), xla.CompileOptions())
        yield path.parent.name, executable.hlo_modules()[0]


def samples():
    """Our own samples, with jaxlib's reading of them; values left out are filled in differently."""
    for path in sorted((SOURCE / "tests" / "data" / "text").glob("*.hlo.txt")):
        text = "".join(line for line in path.read_text().splitlines(True) if "{...}" not in line)
        text = "".join(line for line in text.splitlines(True) if "grouped_kernel" not in line)
        binary = _hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()
        yield path.name, binary, {"sample": text}


# -------------------------------------------------------------------- Checks

def check(name, binary, texts, module_class, folder):
    read = module_class.FromString
    for kind, text in texts.items():
        (folder / "theirs.hlo.txt").write_text(text)
        ours = read(convert(folder / "theirs.hlo.txt", folder / "ours.hlo.pb"))
        theirs = read(binary)
        assert ours.entry_computation_name == theirs.entry_computation_name
        assert ours.input_output_alias == theirs.input_output_alias
        if kind == "debug":
            assert ours.stack_frame_index == theirs.stack_frame_index, f"{name}: other stack frames"
        check_same(f"{name}, {kind} text", ours, theirs, metadata=kind in ("debug", "sample"),
                   ordered=kind != "sample")
        # XLA must accept our binary of each text that it accepts.
        _hlo.HloModule.from_serialized_hlo_module_proto((folder / "ours.hlo.pb").read_bytes())
    (folder / "theirs.hlo.pb").write_bytes(binary)
    text = convert(folder / "theirs.hlo.pb", folder / "ours.hlo.txt").decode()
    again = _hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()
    check_same(f"{name}, our text", read(again), read(binary), metadata=True, ordered="sample" not in texts)


def without_positions(text):
    """jaxlib numbers its tables of source positions anew whenever it reads a module, and orders the
    computations; how many partitions there are is not in its binary."""
    text = re.sub(r"\n(FileNames|FunctionNames|FileLocations|StackFrames)\n(\d+ .*\n)*", "", text)
    return re.sub(r",? ?(metadata=\{)?stack_frame_id=\d+", "",
                  re.sub(r", num_partitions=\d+|, allow_spmd\w+=\{[a-z,]*\}", "", text))


def check_compiled(name, module, library, folder):
    options = _hlo.HloPrintOptions()
    options.print_large_constants = True
    short = _hlo.HloPrintOptions.short_parsable()
    short.print_large_constants = True
    long = module.to_string(options)
    (folder / "theirs.hlo.pb").write_bytes(module.as_serialized_hlo_module_proto())
    (folder / "long.hlo.txt").write_text(long)
    (folder / "short.hlo.txt").write_text(module.to_string(short))
    chain = ["theirs.hlo.pb", "ours.hlo.txt", "ours.hlo.json", "ours.hlo.pb"]
    warnings = []
    for source, target in zip(chain, chain[1:]):
        convert(folder / source, folder / target, warnings)
    convert(folder / "long.hlo.txt", folder / "long.hlo.pb", warnings)
    assert not warnings, warnings
    files = chain + ["long.hlo.txt", "long.hlo.pb"]
    if "control-predecessors" not in long:  # which the short text leaves out
        files.append("short.hlo.txt")
    hashes = {file: library.sha256(folder / file) for file in files}
    assert len(set(hashes.values())) == 1, f"{name}, compiled: {hashes}"
    again = {file: _hlo.HloModule.from_serialized_hlo_module_proto((folder / file).read_bytes())
             for file in ("ours.hlo.pb", "long.hlo.pb")}
    again["ours.hlo.txt"] = _hlo.hlo_module_from_text((folder / "ours.hlo.txt").read_text())
    for file, read_again in again.items():
        blocks = [sorted(filter(None, map(str.strip, without_positions(text).split("\n\n"))))
                  for text in (read_again.to_string(options), long)]
        for ours, theirs in zip(*blocks):
            assert ours == theirs, f"{name}, compiled, {file}: jaxlib prints\n{ours}\nand not\n{theirs}"


with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    module_class, = load_messages(folder, "HloModuleProto")
    count = 0
    for modules in (lowered_steps(), committed_models(), samples()):
        for name, binary, texts in modules:
            check(name, binary, texts, module_class, folder)
            count += 1
    library = library_or_skip()
    compiled = [(name, step.compile().runtime_executable().hlo_modules()[0]) for name, step in lowered()]
    if os.environ.get("AUTOMAP_FULL"):
        compiled += compiled_models()
    for name, module in compiled:
        check_compiled(name, module, library, folder)
    print(f"{count} modules and {len(compiled)} compiled ones agree with jaxlib")
