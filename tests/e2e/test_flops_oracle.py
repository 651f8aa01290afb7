"""FLOPs, transcendentals and bytes equal XLA's own cost analysis; trip counts are those of JAX's loops.

1. Every module of the zoo, not canonical: `automap info --json`'s cost_analysis against jaxlib's
   HloCostAnalysis of the same file, within 0.1 %. (XLA adds up in single precision, which loses
   up to 1e-4 on the largest; the small ones agree to the last digit.)
2. Modules of one instruction, each opcode with several shapes and attributes: exactly.
3. Loops that JAX makes: the trip counts that `info` lists, or unknown where the data decides.

Run as `AUTOMAP=build/automap python3 tests/e2e/test_flops_oracle.py`.
"""
# labels: jax e2e
# timeout: 300

import json
import pathlib
import re
import subprocess
import sys
import tempfile

try:
    import jax
    import jax.numpy as jnp
    from jaxlib import _hlo, _jax
except ImportError:
    print("skipped: jax is not installed")
    sys.exit(77)

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / folder) for folder in ("launch", "oracle")]
import opcode_modules
from program import AUTOMAP, MODELS

CLIENT = jax.devices("cpu")[0].client
KEYS = {"flops": "flops", "transcendentals": "transcendentals", "bytes_accessed": "bytes accessed"}

# Computations that the modules below call.
COMPUTATIONS = {
    "add": "a = f32[] parameter(0); b = f32[] parameter(1); ROOT r = f32[] add(a, b)",
    "greatest": "a = f32[] parameter(0); b = f32[] parameter(1); c = pred[] compare(a, b), direction=GE; "
    "x = f32[] exponential(a); ROOT r = f32[] select(c, x, b)",
    "ge": "a = f32[] parameter(0); b = f32[] parameter(1); ROOT r = pred[] compare(a, b), direction=GE",
    "lt2": "a = f32[] parameter(0); b = f32[] parameter(1); c = s32[] parameter(2); d = s32[] parameter(3); "
    "ROOT r = pred[] compare(a, b), direction=LT",
    "both": "a = f32[] parameter(0); b = s32[] parameter(1); c = f32[] parameter(2); d = s32[] parameter(3); "
    "s = f32[] add(a, c); t = s32[] add(b, d); ROOT r = (f32[], s32[]) tuple(s, t)",
    "add2": "a = f32[] parameter(0); b = f32[] parameter(1); c = f32[] parameter(2); d = f32[] parameter(3); "
    "s = f32[] add(a, c); t = f32[] add(b, d); ROOT r = (f32[], f32[]) tuple(s, t)",
    "exp8": "x = f32[8] parameter(0); ROOT y = f32[8] exponential(x)",
    "triple8": "x = f32[8] parameter(0); y = f32[8] add(x, x); ROOT z = f32[8] add(x, y)",
    "pair8": "x = f32[8] parameter(0); ROOT z = (f32[8], f32[8]) tuple(x, x)",
    "body": "t = (s32[], f32[8]) parameter(0); i = s32[] get-tuple-element(t), index=0; "
    "x = f32[8] get-tuple-element(t), index=1; o = s32[] constant(1); n = s32[] add(i, o); "
    "y = f32[8] exponential(x); ROOT r = (s32[], f32[8]) tuple(n, y)",
    "below": "t = (s32[], f32[8]) parameter(0); i = s32[] get-tuple-element(t), index=0; o = s32[] constant(10); "
    "ROOT c = pred[] compare(i, o), direction=LT",
    "slices": "x = f32[8,6] parameter(0); y = f32[6] parameter(1); s = f32[2,6] slice(x), slice={[0:2], [0:6]}; "
    "t = f32[2,6] slice(x), slice={[2:4], [0:6]}; b = f32[2,6] broadcast(y), dimensions={1}; "
    "u = f32[2,6] add(s, t); ROOT v = f32[2,6] add(u, b)",
    "updates": "x = f32[8,6] parameter(0); u = f32[1,6] parameter(1); i = s32[] parameter(2); z = s32[] constant(0); "
    "ROOT v = f32[8,6] dynamic-update-slice(x, u, i, z)",
    "updates_two": "x = f32[8,6] parameter(0); u = f32[1,6] parameter(1); i = s32[] parameter(2); "
    "z = s32[] constant(0); v = f32[8,6] dynamic-update-slice(x, u, i, z); w = f32[1,6] negate(u); "
    "ROOT t = (f32[8,6], f32[1,6]) tuple(v, w)",
    "slices_at": "x = f32[8,6] parameter(0); i = s32[] parameter(1); z = s32[] constant(0); "
    "ROOT v = f32[1,6] dynamic-slice(x, i, z), dynamic_slice_sizes={1,6}",
    "constants": "x = f32[8,6] parameter(0); c = f32[3] constant({1, 2, 3}); d = f32[] constant(1); "
    "y = f32[8,6] add(x, x); z = f32[8,6] exponential(x); q = f32[3] negate(c); "
    "ROOT t = (f32[8,6], f32[8,6], f32[3]) tuple(y, z, q)",
    "element": "x = (f32[8,6], f32[4]) parameter(0); y = f32[8,6] get-tuple-element(x), index=0; "
    "w = f32[4] get-tuple-element(x), index=1; v = f32[4] negate(w); z = f32[8,6] negate(y); "
    "ROOT t = (f32[8,6], f32[4]) tuple(z, v)",
    "inner": "x = f32[8,6] parameter(0); ROOT y = f32[2,6] slice(x), slice={[0:2], [0:6]}",
    "outer": "x = f32[8,6] parameter(0); t = f32[2,6] fusion(x), kind=kLoop, calls=inner; "
    "ROOT z = f32[2,6] negate(t)",
    "reshapes": "x = f32[48] parameter(0); y = f32[8,6] reshape(x); z = f32[48] negate(x); w = f32[8,6] reshape(z); "
    "ROOT t = f32[8,6] add(y, w)",
    "gathers": "x = f32[8,6] parameter(0); i = s32[4,1] parameter(1); ROOT r = f32[4,6] gather(x, i), "
    "offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,6}",
}

GATHER = "offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,6}"
SCATTER = ("update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, "
           "unique_indices=false")
CONTRACT_LAST = "lhs_contracting_dims={1}, rhs_contracting_dims={1}"
UNARY = [*opcode_modules.REAL, "bitcast", "opt-barrier", "real", "imag"]
BINARY = opcode_modules.REAL_PAIRS
BITWISE = "and or xor add divide multiply shift-left shift-right-logical shift-right-arithmetic power".split()

# "operand shapes | result shape | opcode | attributes"; operands in order, or numbered in brackets.
CASES = [
    *(f"{t}[{s}] | {t}[{s}] | {o} |" for o in UNARY for t, s in (("f32", "8,6"), ("f64", "3"))),
    *(f"{t}[8,6]; {t}[8,6] | {t}[8,6] | {o} |" for o in BINARY for t in ("f32", "bf16", "c64")
      if t != "c64" or o in ("add", "divide", "multiply", "power", "subtract")),
    *(f"s32[8,6]; s32[8,6] | s32[8,6] | {o} |" for o in BITWISE),
    *(f"s32[8,6] | s32[8,6] | {o} |" for o in ("not", "popcnt", "count-leading-zeros", "negate")),
    "f32[8,6] | pred[8,6] | is-finite |",
    "c64[8,6] | c64[8,6] | exponential |",
    "c64[8,6] | f32[8,6] | real |",
    "c64[8,6] | f32[8,6] | abs |",
    "f32[8,6]; f32[8,6] | c64[8,6] | complex |",
    "f32[8,6] | bf16[8,6] | convert |",
    "f32[0,6] | f32[0,6] | negate |",
    "f32[] | f32[] | tanh |",
    "s4[8,7]; s4[8,7] | s4[8,7] | add |",
    "pred[8,7]; pred[8,7] | pred[8,7] | and |",
    "f32[8,6] | s32[8,6] | bitcast-convert |",
    "f32[8,6] | u8[8,6,4] | bitcast-convert |",
    "f32[8,6] | f32[8,6] | reduce-precision | exponent_bits=5, mantissa_bits=3",
    "f32[8,6]; u32[8,6] | bf16[8,6] | stochastic-convert |",
    "f32[8,6]; f32[8,6] | pred[8,6] | compare | direction=LT",
    "pred[8,6]; f32[8,6]; f32[8,6] | f32[8,6] | select |",
    "f32[8,6]; f32[8,6]; f32[8,6] | f32[8,6] | clamp |",
    "f32[]; f32[8,6]; f32[] | f32[8,6] | clamp |",
    " | f32[8,6] | iota | iota_dimension=0",
    "f32[8] | f32[8,6] | broadcast | dimensions={0}",
    "f32[] | f32[8,6] | broadcast | dimensions={}",
    "f32[8,6] | f32[6,8] | transpose | dimensions={1,0}",
    "f32[8,6] | f32[8,6] | transpose | dimensions={0,1}",
    "f32[8,6]{1,0} | f32[6,8]{0,1} | transpose | dimensions={1,0}",
    "f32[1,8,6] | f32[8,1,6] | transpose | dimensions={1,0,2}",
    "f32[5,8,6]{1,0,2} | f32[6,5,8]{2,1,0} | transpose | dimensions={2,0,1}",
    "f32[8,6] | f32[48] | reshape |",
    "f32[8,6] | f32[8,6] | reverse | dimensions={0}",
    "f32[8,6] | f32[4,2] | slice | slice={[0:4], [1:6:3]}",
    "f32[8,6]; f32[3,6] | f32[11,6] | concatenate | dimensions={0}",
    "f32[8,6]; f32[] | f32[10,6] | pad | padding=1_1x0_0",
    "f32[8,6]; f32[] | f32[6,11] | pad | padding=-1_-1x0_0_1",
    "f32[8,6]; s32[]; s32[] | f32[4,2] | dynamic-slice | dynamic_slice_sizes={4,2}",
    "f32[8,6,4]; s64[]; s64[]; s64[] | f32[4,2,1] | dynamic-slice | dynamic_slice_sizes={4,2,1}",
    "f32[8,6]; f32[4,2]; s32[]; s32[] | f32[8,6] | dynamic-update-slice |",
    "f32[8,6]; f32[4,2]; s64[]; s64[] | f32[8,6] | dynamic-update-slice |",
    "f32[8,6]; f32[4] | (f32[8,6], f32[4]) | tuple |",
    "(f32[8], f32[2]); f32[4] | ((f32[8], f32[2]), f32[4]) | tuple |",
    "(f32[8,6], f32[4]) | f32[8,6] | get-tuple-element | index=0",
    "((f32[8,6], f32[4]), f32[4]) | (f32[8,6], f32[4]) | get-tuple-element | index=0",
    "(f32[8,6], f32[4]) | (f32[8,6], f32[4]) | opt-barrier |",
    "((f32[8], f32[2]), f32[4]) | ((f32[8], f32[2]), f32[4]) | opt-barrier |",
    "(f32[8,6], f32[4]) | (f32[8,6], f32[4]) | copy |",
    f"f32[8,6]; f32[5,6] | f32[8,5] | dot | {CONTRACT_LAST}",
    "f32[8,6]; f32[8,6] | f32[8] | dot | lhs_batch_dims={0}, rhs_batch_dims={0}, " + CONTRACT_LAST,
    "f32[3,4,5]; f32[4,5,7] | f32[3,7] | dot | lhs_contracting_dims={1,2}, rhs_contracting_dims={0,1}",
    "f32[5]; f32[7] | f32[5,7] | dot | lhs_contracting_dims={}, rhs_contracting_dims={}",
    f"c64[8,6]; c64[8,6] | c64[8,8] | dot | {CONTRACT_LAST}",
    f"bf16[8,6]; bf16[8,6] | f32[8,8] | dot | {CONTRACT_LAST}, operand_precision={{highest,highest}}",
    "f32[2,8,8,3]; f32[3,3,3,5] | f32[2,8,8,5] | convolution | window={size=3x3 pad=1_1x1_1}, "
    "dim_labels=b01f_01io->b01f",
    "f32[2,9,9,3]; f32[3,3,3,5] | f32[2,4,4,5] | convolution | window={size=3x3 stride=2x2}, "
    "dim_labels=b01f_01io->b01f",
    "f32[2,4,4,3]; f32[3,3,3,5] | f32[2,7,7,5] | convolution | window={size=3x3 pad=1_1x1_1 lhs_dilate=2x2}, "
    "dim_labels=b01f_01io->b01f",
    "f32[2,9,9,3]; f32[3,3,3,5] | f32[2,5,5,5] | convolution | window={size=3x3 rhs_dilate=2x2}, "
    "dim_labels=b01f_01io->b01f",
    "f32[2,8,8,3]; f32[3,3,3,5] | f32[2,4,4,5] | convolution | window={size=3x3 pad=-1_-1x-1_-1}, "
    "dim_labels=b01f_01io->b01f",
    "f32[2,4,4,3]; f32[3,3,3,5] | f32[2,7,7,5] | convolution | window={size=3x3 pad=2_0x0_2 lhs_dilate=2x2 "
    "rhs_reversal=1x1}, dim_labels=b01f_01io->b01f",
    "f32[2,8,8,6]; f32[3,3,2,6] | f32[2,6,6,6] | convolution | window={size=3x3}, dim_labels=b01f_01io->b01f, "
    "feature_group_count=3",
    "f32[2,8,8,6]; f32[3,3,1,6] | f32[2,6,6,6] | convolution | window={size=3x3}, dim_labels=b01f_01io->b01f, "
    "feature_group_count=6",
    "f32[4,8,8,6]; f32[3,3,6,4] | f32[2,6,6,4] | convolution | window={size=3x3}, dim_labels=b01f_01io->b01f, "
    "batch_group_count=2",
    "f32[2,9,9,9,3]; f32[3,2,3,3,5] | f32[2,4,8,5,5] | convolution | window={size=3x2x3 stride=2x1x1 "
    "rhs_dilate=1x1x2}, dim_labels=b012f_012io->b012f",
    "f32[3,8,2]; f32[3,3,5] | f32[8,2,5] | convolution | window={size=3 pad=1_1}, dim_labels=f0b_0io->0bf",
    "f32[2,3]; f32[3,5] | f32[2,5] | convolution | dim_labels=bf_io->bf",
    "f32[8,6]; f32[] | f32[8] | reduce | dimensions={1}, to_apply=add",
    "f32[8,6]; f32[] | f32[] | reduce | dimensions={0,1}, to_apply=add",
    "f32[8,6]; f32[] | f32[8,6] | reduce | dimensions={}, to_apply=add",
    "f32[8,6]; f32[] | f32[6] | reduce | dimensions={0}, to_apply=greatest",
    "f32[8,6]; s32[8,6]; f32[]; s32[] | (f32[8], s32[8]) | reduce | dimensions={1}, to_apply=both",
    "f32[8,6]; f32[] | f32[7,3] | reduce-window | window={size=2x2 stride=1x2}, to_apply=add",
    "f32[8,6]; f32[] | f32[8,6] | reduce-window | window={size=3x3 pad=1_1x1_1}, to_apply=add",
    "f32[8,6]; f32[] | f32[8,6] | reduce-window | window={size=1x6 pad=0_0x5_0}, to_apply=add",
    "f32[8,6]; f32[] | f32[8,6] | reduce-window | window={size=1x11 pad=0_0x5_5}, to_apply=add",
    "f32[8,6]; f32[] | f32[8,8] | reduce-window | window={size=1x11 pad=0_0x6_6}, to_apply=add",
    "f32[8,6]; f32[] | f32[15,4] | reduce-window | window={size=1x2 lhs_dilate=2x1 rhs_dilate=1x2}, to_apply=greatest",
    "f32[8,6]; s32[8,6]; f32[]; s32[] | (f32[7,3], s32[7,3]) | reduce-window | window={size=2x2 stride=1x2}, "
    "to_apply=both",
    "f32[8,6]; f32[4,3]; f32[] | f32[8,6] | select-and-scatter | window={size=2x2 stride=2x2}, select=ge, scatter=add",
    "f32[8,6]; f32[6,4]; f32[] | f32[8,6] | select-and-scatter | window={size=3x3}, select=ge, scatter=add",
    f"f32[8,6]; s32[4,1]; f32[4,6] | f32[8,6] | scatter | {SCATTER}, to_apply=add",
    f"f32[8,6]; s32[4,1]; f32[4,6] | f32[8,6] | scatter | {SCATTER}, to_apply=greatest",
    f"f32[8,6]; f32[8,6]; s32[4,1]; f32[4,6]; f32[4,6] | (f32[8,6], f32[8,6]) | scatter | {SCATTER}, to_apply=add2",
    f"f32[8,6]; s32[4,1] | f32[4,6] | gather | {GATHER}",
    f"f32[8,6]; s64[40,1] | f32[40,6] | gather | {GATHER}",
    "f32[8,6] | f32[8,6] | sort | dimensions={1}, to_apply=ge",
    "f32[8,6] | f32[8,6] | sort | dimensions={0}, to_apply=ge",
    "f32[1000] | f32[1000] | sort | dimensions={0}, to_apply=ge",
    "f32[1] | f32[1] | sort | dimensions={0}, to_apply=ge",
    "f32[8,6]; s32[8,6] | (f32[8,6], s32[8,6]) | sort | dimensions={1}, is_stable=true, to_apply=lt2",
    "f32[8,64] | (f32[8,4], s32[8,4]) | topk | k=4, largest=true",
    "f32[]; f32[] | f32[8,6] | rng | distribution=rng_uniform",
    "u64[2] | (u64[2], u32[8,6]) | rng-bit-generator | algorithm=rng_three_fry",
    "u64[2] | u32[8,6] | rng-bit-generator | algorithm=rng_default",
    "f32[3,6,6] | f32[3,6,6] | cholesky | lower=true",
    "f32[5,5] | f32[5,5] | cholesky | lower=false",
    "f32[3,6,6]; f32[3,6,4] | f32[3,6,4] | triangular-solve | left_side=true, lower=true, transpose_a=NO_TRANSPOSE",
    "f32[3,6,6]; f32[3,4,6] | f32[3,4,6] | triangular-solve | left_side=false, lower=true, transpose_a=NO_TRANSPOSE",
    "c64[3,16] | c64[3,16] | fft | fft_type=FFT, fft_length={16}",
    "c64[3,15] | c64[3,15] | fft | fft_type=IFFT, fft_length={15}",
    "c64[3,8,16] | c64[3,8,16] | fft | fft_type=FFT, fft_length={8,16}",
    "f32[3,16] | c64[3,9] | fft | fft_type=RFFT, fft_length={16}",
    "c64[3,9] | f32[3,16] | fft | fft_type=IRFFT, fft_length={16}",
    "f32[8,6]; f32[8,6] | f32[8,6] | map | dimensions={0,1}, to_apply=greatest",
    "(s32[], f32[8]) | (s32[], f32[8]) | while | condition=below, body=body",
    "pred[]; f32[8]; f32[8] | f32[8] | conditional | true_computation=exp8, false_computation=triple8",
    "s32[]; f32[8]; f32[8]; f32[8] | f32[8] | conditional | branch_computations={exp8, triple8, exp8}",
    "f32[8] | f32[8] | call | to_apply=triple8",
    "f32[8] | (f32[8], f32[8]) | call | to_apply=pair8",
    "f32[8] | f32[8] | fusion | kind=kLoop, calls=triple8",
    "f32[8,6]; f32[6] | f32[2,6] | fusion | kind=kLoop, calls=slices",
    "f32[8,6]; f32[1,6]; s32[] | f32[8,6] | fusion | kind=kLoop, calls=updates",
    "f32[8,6]; f32[1,6]; s32[] | (f32[8,6], f32[1,6]) | fusion | kind=kLoop, calls=updates_two",
    "f32[8,6]; s32[] | f32[1,6] | fusion | kind=kLoop, calls=slices_at",
    "f32[8,6] | (f32[8,6], f32[8,6], f32[3]) | fusion | kind=kLoop, calls=constants",
    "(f32[8,6], f32[4]) | (f32[8,6], f32[4]) | fusion | kind=kLoop, calls=element",
    "f32[8,6] | f32[2,6] | fusion | kind=kLoop, calls=outer",
    "f32[48] | f32[8,6] | fusion | kind=kLoop, calls=reshapes",
    "f32[8,6]; s32[4,1] | f32[4,6] | fusion | kind=kLoop, calls=gathers",
    "f32[4,3,5]; f32[3]; f32[3] | (f32[4,3,5], f32[3], f32[3]) | batch-norm-training | epsilon=0.1, feature_index=1",
    "f32[4,3,5]; f32[3]; f32[3]; f32[3]; f32[3] | f32[4,3,5] | batch-norm-inference | epsilon=0.1, feature_index=1",
    "f32[4,3,5]; f32[3]; f32[3]; f32[3]; f32[4,3,5] | (f32[4,3,5], f32[3], f32[3]) | batch-norm-grad | epsilon=0.1, "
    "feature_index=1",
    "f32[8,6] | f32[8,6] | all-reduce | replica_groups={}, to_apply=add",
    "f32[8]; f32[6] | (f32[8], f32[6]) | all-reduce | replica_groups={}, to_apply=add",
    "f32[8,6] | f32[16,6] | all-gather | replica_groups={{0,1}}, dimensions={0}",
    "f32[8,6] | f32[8,6] | all-to-all | replica_groups={{0,1}}, dimensions={0}",
    "f32[8,6] | f32[4,6] | reduce-scatter | replica_groups={{0,1}}, dimensions={0}, to_apply=add",
    "f32[8,6] | f32[8,6] | collective-permute | source_target_pairs={{0,1}}",
    " | u32[] | partition-id |",
    " | u32[] | replica-id |",
    "f32[8,6] | s32[] | get-dimension-size | dimensions={0}",
]


def module_text(case):
    """The HLO text of a module whose entry is one instruction on its parameters."""
    operands, result, opcode, attributes = (part.strip() for part in case.split("|", 3))
    shapes = [shape for shape in operands.split("; ") if shape]
    lines = [f"p{k} = {shape} parameter({k})" for k, shape in enumerate(shapes)]
    names = ", ".join(f"p{k}" for k in range(len(shapes)))
    lines.append(f"ROOT r = {result} {opcode}({names})" + (f", {attributes}" if attributes else ""))
    entry = "ENTRY entry {\n  " + "\n  ".join(lines) + "\n}\n"
    needed, text = [name for name in COMPUTATIONS if re.search(rf"\b{name}\b", attributes)], ""
    if "outer" in needed:
        needed.insert(0, "inner")
    for name in needed:
        text += f"{name} {{\n  " + COMPUTATIONS[name].replace("; ", "\n  ") + "\n}\n\n"
    return f"HloModule one\n\n{text}{entry}"


def info(path):
    run = subprocess.run([AUTOMAP, "info", str(path), "--json"], capture_output=True, text=True)
    assert run.returncode == 0, f"automap info: {run.returncode}: {run.stderr.strip()}"
    return json.loads(run.stdout)


def differences(ours, theirs, tolerance):
    """Names and numbers that differ by more than that, relatively."""
    pairs = [(name, ours[name], theirs.get(key, 0.0)) for name, key in KEYS.items()]
    return [f"{name} {a:g}, XLA has {b:g}" for name, a, b in pairs if abs(a - b) > tolerance * max(abs(b), 1e-30)]


def module_bytes(path):
    if path.suffix != ".zst":
        return path.read_bytes()
    return subprocess.run(["zstd", "-dcq", str(path)], capture_output=True, check=True).stdout


def check_zoo():
    for directory in sorted(MODELS.iterdir()):
        path = next(iter(directory.glob("model.hlo.pb*")), None)
        if path is None:
            continue
        module = _hlo.HloModule.from_serialized_hlo_module_proto(module_bytes(path))
        found = differences(info(path)["cost_analysis"], _jax.hlo_module_cost_analysis(CLIENT, module), 1e-3)
        yield directory.name, found


def check_operators(directory):
    path = pathlib.Path(directory) / "one.hlo.txt"
    for case in CASES:
        text = module_text(case)
        path.write_text(text)
        theirs = _jax.hlo_module_cost_analysis(CLIENT, _hlo.hlo_module_from_text(text))
        try:
            found = differences(info(path)["cost_analysis"], theirs, 0)
        except AssertionError as failure:
            found = [str(failure)]
        yield case, found


def loops():
    """(name, function, arguments, trip counts in the order of `info`; None is unknown)."""
    x, many, n = jnp.zeros(4), jnp.zeros((12, 4)), jnp.int32(5)

    def until(start, stop, step, compare=jnp.less, kind=jnp.int32):
        def run(y):
            return jax.lax.while_loop(lambda c: compare(c[0], kind(stop)), lambda c: (c[0] + kind(step), c[1] * 2),
                                      (kind(start), y))[1]
        return run

    def nested(y):
        return jax.lax.fori_loop(0, 3, lambda i, a: jax.lax.fori_loop(0, 7, lambda j, b: jnp.sin(b), a), y)

    def scan(y, **options):
        return jax.lax.scan(lambda c, r: (c * r, c), x, y, **options)

    return [
        ("fori_loop", lambda y: jax.lax.fori_loop(0, 10, lambda i, a: a * 2, y), [x], [10]),
        ("fori_loop from 3", lambda y: jax.lax.fori_loop(3, 10, lambda i, a: a * i, y), [x], [7]),
        ("fori_loop of none", lambda y: jax.lax.fori_loop(5, 5, lambda i, a: a * i, y), [x], []),  # JAX drops it
        ("fori_loop unrolled", lambda y: jax.lax.fori_loop(0, 12, lambda i, a: a * i, y, unroll=4), [x], [3]),
        ("fori_loop with a bound of data", lambda y, k: jax.lax.fori_loop(0, k, lambda i, a: a * 2, y), [x, n], [None]),
        ("scan", scan, [many], [12]),
        ("scan in reverse", lambda y: scan(y, reverse=True), [many], [12]),
        ("scan unrolled", lambda y: scan(y, unroll=3), [many], [4]),
        ("scan unrolled with a rest", lambda y: scan(y, unroll=5), [many], [2]),
        ("scan by length", lambda y: jax.lax.scan(lambda c, _: (c * 2, None), y, None, length=9), [x], [9]),
        ("gradient of scan", lambda y: jax.grad(lambda z: jnp.sum(scan(z)[0]))(y), [many], [12, 12]),
        ("gradient of scan with remat",
         lambda y: jax.grad(lambda z: jnp.sum(jax.lax.scan(jax.checkpoint(lambda c, r: (jnp.sin(c * r), None)), x,
                                                           z)[0]))(y),
         [many], [12, 12]),
        ("map", lambda y: jax.lax.map(jnp.sum, y), [many], [12]),
        ("map by batches", lambda y: jax.lax.map(jnp.sum, y, batch_size=4), [many], [3]),
        ("counting down", until(10, 0, -1, jnp.greater), [x], [10]),
        ("by threes", until(0, 10, 3), [x], [4]),
        ("down by twos to one", until(9, 1, -2, jnp.greater_equal), [x], [5]),
        ("until equal", until(0, 6, 2, jnp.not_equal), [x], [3]),
        ("unsigned", until(0, 10, 1, kind=jnp.uint32), [x], [10]),
        ("unsigned bytes", until(0, 200, 1, kind=jnp.uint8), [x], [200]),
        ("at most", until(0, 10, 1, jnp.less_equal), [x], [11]),
        ("nested", nested, [x], [3, 7]),
        ("until the data says so",
         lambda y: jax.lax.while_loop(lambda a: jnp.sum(a) < 1.0, lambda a: a + 0.1, y), [x], [None]),
        ("either of two conditions",
         lambda y: jax.lax.while_loop(lambda c: (c[0] < 10) & (jnp.sum(c[1]) < 1.0), lambda c: (c[0] + 1, c[1] + 0.1),
                                      (0, y)), [x], [None]),
        ("associative_scan", lambda y: jax.lax.associative_scan(jnp.add, y), [many], []),
        ("cumsum", lambda y: jnp.cumsum(y, axis=0), [many], []),
        ("cumulative logsumexp", lambda y: jax.lax.cumlogsumexp(y, axis=0), [many], []),
        ("vmap of fori_loop", jax.vmap(lambda y: jax.lax.fori_loop(0, 6, lambda i, a: a + i, y)), [many], [6]),
        ("conditional in a scan",
         lambda y: jax.lax.scan(lambda c, r: (jax.lax.cond(c[0] > 0, jnp.sin, jnp.cos, c), None), x, y)[0], [many],
         [12]),
    ]


def check_loops(directory):
    path = pathlib.Path(directory) / "loop.hlo.pb"
    for name, function, arguments, trips in loops():
        module = jax.jit(function).lower(*arguments).compiler_ir("hlo").as_serialized_hlo_module_proto()
        path.write_bytes(module)
        found = [loop["trips"] for loop in info(path)["loops"]]
        yield name, [] if found == trips else [f"trips {found}, not {trips}"]


def main():
    failures = checked = 0
    with tempfile.TemporaryDirectory() as directory:
        for check in (check_zoo(), check_operators(directory), check_loops(directory)):
            for name, found in check:
                checked += 1
                failures += bool(found)
                for text in found:
                    print(f"FAILED {name}: {text}")
    print(f"{checked} modules, {failures} differ")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
