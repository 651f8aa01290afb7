"""One small module for every opcode and every form of its attributes, as HLO text that XLA accepts.

A case is the instructions of an entry computation; COMPUTATIONS has the computations that they call. `x`, `y`
(f32[4,8]), `i` (s32[4,8]) and `p` (pred[4,8]) are parameters of each. Attributes that every
instruction may have are a second table, tried on one instruction each.
"""

import pathlib
import re

OPCODES = pathlib.Path(__file__).resolve().parents[2] / "ir" / "opcodes.def"

COMPUTATIONS = """
add {
  add.a = f32[] parameter(0)
  add.b = f32[] parameter(1)
  ROOT add.r = f32[] add(add.a, add.b)
}

larger {
  larger.a = f32[] parameter(0)
  larger.b = f32[] parameter(1)
  ROOT larger.r = pred[] compare(larger.a, larger.b), direction=GE
}

arg_max {
  arg_max.a = f32[] parameter(0)
  arg_max.b = s32[] parameter(1)
  arg_max.c = f32[] parameter(2)
  arg_max.d = s32[] parameter(3)
  arg_max.p = pred[] compare(arg_max.a, arg_max.c), direction=GT
  arg_max.v = f32[] select(arg_max.p, arg_max.a, arg_max.c)
  arg_max.i = s32[] select(arg_max.p, arg_max.b, arg_max.d)
  ROOT arg_max.r = (f32[], s32[]) tuple(arg_max.v, arg_max.i)
}

order {
  order.a = f32[] parameter(0)
  order.b = f32[] parameter(1)
  order.c = s32[] parameter(2)
  order.d = s32[] parameter(3)
  ROOT order.r = pred[] compare(order.a, order.b), direction=LT, type=TOTALORDER
}

negative {
  negative.a = f32[4,8] parameter(0)
  ROOT negative.r = f32[4,8] negate(negative.a)
}

same {
  ROOT same.a = f32[4,8] parameter(0)
}

below {
  below.a = (s32[], f32[4,8]) parameter(0)
  below.i = s32[] get-tuple-element(below.a), index=0
  below.n = s32[] constant(3)
  ROOT below.r = pred[] compare(below.i, below.n), direction=LT
}

next {
  next.a = (s32[], f32[4,8]) parameter(0)
  next.i = s32[] get-tuple-element(next.a), index=0
  next.x = f32[4,8] get-tuple-element(next.a), index=1
  next.1 = s32[] constant(1)
  next.j = s32[] add(next.i, next.1)
  next.y = f32[4,8] negate(next.x)
  ROOT next.r = (s32[], f32[4,8]) tuple(next.j, next.y)
}

carried {
  carried.c = f32[8] parameter(0)
  carried.x = f32[8] parameter(1)
  carried.r = f32[8] add(carried.c, carried.x)
  ROOT carried.t = (f32[8], f32[8]) tuple(carried.r, carried.x)
}

twice {
  twice.a = f32[4,8] parameter(0)
  twice.b = f32[4,8] negate(twice.a)
  ROOT twice.r = f32[4,8] negate(twice.b)
}

elsewhere {
  elsewhere.a = f32[4,8] parameter(0)
  ROOT elsewhere.r = f32[4,8] negate(elsewhere.a)
}, execution_thread="host"
"""

PARAMETERS = """
  x = f32[4,8] parameter(0)
  y = f32[4,8] parameter(1)
  i = s32[4,8] parameter(2)
  p = pred[4,8] parameter(3)
"""


def module(body, attributes=""):
    """The text of a module around the instructions of its entry."""
    return f"HloModule case{attributes}\n{COMPUTATIONS}\nENTRY main {{{PARAMETERS}  {body.strip()}\n}}\n"


def merged(bodies):
    """The text of a module with each of the bodies as a computation, all of them called."""
    computations = "".join(f"\ncase.{k} {{{PARAMETERS}  {body.strip()}\n}}\n" for k, body in enumerate(bodies))
    names = ", ".join(f"case.{k}" for k in range(len(bodies)))
    call = f'ROOT r = f32[4,8] custom-call(x), custom_call_target="cases", called_computations={{{names}}}'
    return module(call).replace("\nENTRY", computations + "\nENTRY")


ACCURACY = ["", ", result_accuracy={mode=highest}", ", result_accuracy={tolerance={atol=0.5,rtol=0.25,ulps=2}}"]
NOT_OPCODES = {"sharding", "metadata", "attribute", "module"}
NOT_IN_JAXLIB = {"atan", "collective-reduce", "shuffle"}


def element_wise(operands, floating):
    """Names of element-wise opcodes whose shapes and types are all equal, from ir/opcodes.def.

    With `floating` those that take floating numbers, else those of integers and pred alone.
    """
    rows = re.findall(r'^OPCODE\(\w+, "([^"]+)", (\d+), ELEMENTWISE, \w+, \w+, \w+,\s+alike, (\w+),',
                      OPCODES.read_text(), re.MULTILINE)
    names = [name for name, count, types in rows if int(count) == operands and name not in NOT_IN_JAXLIB
             and (types not in ("INTEGER", "BITS")) == floating]
    assert names, "ir/opcodes.def: no row was read"
    return names


ON_BITS = ["mulhi", "shift-left", "shift-right-arithmetic", "shift-right-logical"]  # XLA's verifier takes floats too
REAL = ["abs", *element_wise(1, True)]
ACCURATE = set(REAL) - {"abs", "ceil", "floor", "negate", "round-nearest-afz", "round-nearest-even", "sign", "copy"}
INTEGER = element_wise(1, False)
REAL_PAIRS = [name for name in element_wise(2, True) if name not in ON_BITS]
INTEGER_PAIRS = element_wise(2, False) + ON_BITS
ELEMENTWISE = {1: (element_wise(1, True), INTEGER), 2: (REAL_PAIRS, INTEGER_PAIRS)}  # by operands: on floats, on bits
COMPARISONS = ["EQ", "NE", "GE", "GT", "LE", "LT"]
GROUPS = ["{}", "{{0,1},{2,3}}", "{{0},{1},{2},{3}}", "[2,2]<=[4]", "[2,2]<=[2,2]T(1,0)", "[1,4]<=[4]",
          "mesh['a'=2,'b'=4] {'b'}", "mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b':(2)2,'a'}"]


def elementwise():
    for opcode in REAL:
        for accuracy in ACCURACY if opcode in ACCURATE else [""]:
            yield opcode, f"ROOT r = f32[4,8] {opcode}(x){accuracy}"
    for opcode in INTEGER:
        yield opcode, f"ROOT r = s32[4,8] {opcode}(i)"
    for opcode in REAL_PAIRS:
        yield opcode, f"ROOT r = f32[4,8] {opcode}(x, y)"
    for opcode in INTEGER_PAIRS:
        yield opcode, f"ROOT r = s32[4,8] {opcode}(i, i)"
    for direction in COMPARISONS:
        yield "compare", f"ROOT r = pred[4,8] compare(x, y), direction={direction}"
    for kind, operand in [("FLOAT", "x"), ("TOTALORDER", "x"), ("SIGNED", "i"), ("UNSIGNED", "p")]:
        yield "compare", f"ROOT r = pred[4,8] compare({operand}, {operand}), direction=LT, type={kind}"
    yield "clamp", "ROOT r = f32[4,8] clamp(x, y, x)"
    yield "select", "ROOT r = f32[4,8] select(p, x, y)"
    yield "is-finite", "ROOT r = pred[4,8] is-finite(x)"
    yield "convert", "ROOT r = bf16[4,8] convert(x)"
    yield "stochastic-convert", "u = u32[4,8] convert(i)\n  ROOT r = s8[4,8] stochastic-convert(x, u)"
    yield "bitcast-convert", "ROOT r = s32[4,8] bitcast-convert(x)"
    yield "bitcast-convert", "ROOT r = u8[4,8,4] bitcast-convert(x)"
    yield "bitcast", "ROOT r = f32[8,4]{0,1} bitcast(x)"
    yield "reduce-precision", "ROOT r = f32[4,8] reduce-precision(x), exponent_bits=5, mantissa_bits=0"
    yield "complex", "ROOT r = c64[4,8] complex(x, y)"
    yield "real", "c = c64[4,8] complex(x, y)\n  ROOT r = f32[4,8] real(c)"
    yield "imag", "c = c64[4,8] complex(x, y)\n  ROOT r = f32[4,8] imag(c)"


def movement():
    for dimension in (0, 1):
        yield "iota", f"ROOT r = s32[4,8] iota(), iota_dimension={dimension}"
        yield "concatenate", (f"ROOT r = f32[{[8, 4][dimension]},{[8, 16][dimension]}] concatenate(x, y), "
                              f"dimensions={{{dimension}}}")
    for dimensions in ("{}", "{0}", "{1}", "{0,1}"):
        yield "reverse", f"ROOT r = f32[4,8] reverse(x), dimensions={dimensions}"
    yield "broadcast", "c = f32[] constant(1)\n  ROOT r = f32[2,3] broadcast(c), dimensions={}"
    yield "broadcast", "ROOT r = f32[4,2,8] broadcast(x), dimensions={0,2}"
    yield "reshape", "ROOT r = f32[2,16] reshape(x)"
    yield "reshape", "ROOT r = f32[2,16] reshape(x), inferred_dimension=1"
    yield "reshape", "d = f32[<=4,8] parameter(4)\n  ROOT r = f32[<=32] reshape(d)"
    yield "transpose", "ROOT r = f32[8,4]{0,1} transpose(x), dimensions={1,0}"
    yield "slice", "ROOT r = f32[2,5] slice(x), slice={[0:4:2], [3:8]}"
    yield "slice", "c = f32[] constant(1)\n  ROOT r = f32[] slice(c), slice={}"
    yield "dynamic-slice", ("s = s32[] constant(1)\n  ROOT r = f32[2,8] dynamic-slice(x, s, s), "
                            "dynamic_slice_sizes={2,8}")
    yield "dynamic-update-slice", ("s = s32[] constant(1)\n  u = f32[2,8] slice(y), slice={[0:2], [0:8]}\n  ROOT r = "
                                   "f32[4,8] dynamic-update-slice(x, u, s, s)")
    yield "pad", "z = f32[] constant(0)\n  ROOT r = f32[6,21] pad(x, z), padding=1_1x0_-1_2"
    for sorted_, unique in [("", ""), (", indices_are_sorted=true", ""), ("", ", unique_indices=true")]:
        if not unique:
            yield "gather", ("n = s32[5,1] iota(), iota_dimension=0\n  ROOT r = f32[5,8] gather(x, n), "
                             "offset_dims={1}, collapsed_slice_dims={0}, "
                             f"start_index_map={{0}}, index_vector_dim=1, slice_sizes={{1,8}}{sorted_}")
        yield "scatter", ("n = s32[4,1] iota(), iota_dimension=0\n  ROOT r = f32[4,8] scatter(x, n, y), "
                          "update_window_dims={1}, inserted_window_dims={0}, "
                          f"scatter_dims_to_operand_dims={{0}}, index_vector_dim=1{sorted_}{unique}, to_apply=add")
    yield "gather", ("n = s32[4,2,1] iota(), iota_dimension=0\n  ROOT r = f32[4,2] gather(x, n), offset_dims={}, "
                     "collapsed_slice_dims={1}, start_index_map={1}, "
                     "operand_batching_dims={0}, start_indices_batching_dims={0}, index_vector_dim=2, "
                     "slice_sizes={1,1}")
    yield "scatter", ("n = s32[4,2,1] iota(), iota_dimension=0\n  u = f32[4,2] slice(y), slice={[0:4], [0:2]}\n  ROOT "
                      "r = f32[4,8] scatter(x, n, u), update_window_dims={}, "
                      "inserted_window_dims={1}, scatter_dims_to_operand_dims={1}, input_batching_dims={0}, "
                      "scatter_indices_batching_dims={0}, index_vector_dim=2, to_apply=add")
    yield "scatter", ("n = s32[4,1] iota(), iota_dimension=0\n  ROOT r = (f32[4,8], s32[4,8]) scatter(x, i, n, y, i), "
                      "update_window_dims={1}, inserted_window_dims={0}, "
                      "scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=arg_max")
    yield "dynamic-reshape", ("a = s32[] constant(2)\n  b = s32[] constant(16)\n  ROOT r = f32[<=2,<=16] "
                              "dynamic-reshape(x, a, b)")
    yield "get-dimension-size", "ROOT r = s32[] get-dimension-size(x), dimensions={1}"
    yield "set-dimension-size", "n = s32[] constant(3)\n  ROOT r = f32[<=4,8] set-dimension-size(x, n), dimensions={0}"
    yield "tuple", "ROOT r = () tuple()"
    yield "tuple", "t = (f32[4,8], s32[4,8]) tuple(x, i)\n  ROOT r = ((f32[4,8], s32[4,8]), pred[4,8]) tuple(t, p)"
    yield "tuple", ("ROOT r = (f32[4,8], f32[4,8], f32[4,8], f32[4,8], f32[4,8], f32[4,8], f32[4,8]) "
                    "tuple(x, y, x, y, x, y, x)")
    yield "get-tuple-element", "t = (f32[4,8], s32[4,8]) tuple(x, i)\n  ROOT r = s32[4,8] get-tuple-element(t), index=1"
    yield "opt-barrier", "t = (f32[4,8], s32[4,8]) tuple(x, i)\n  ROOT r = (f32[4,8], s32[4,8]) opt-barrier(t)"
    yield "copy-start", "s = (f32[4,8], f32[4,8], u32[]) copy-start(x)\n  ROOT r = f32[4,8] copy-done(s)"
    yield "copy-start", ("s = (f32[4,8], f32[4,8], u32[]) copy-start(x), cross_program_prefetch_index=0\n"
                         "  ROOT r = f32[4,8] copy-done(s)")
    yield "copy-done", ("s = (f32[4,8]{1,0:S(1)}, f32[4,8], u32[]) copy-start(x)\n"
                        "  ROOT r = f32[4,8]{1,0:S(1)} copy-done(s)")
    yield "parameter", "q = f32[3] parameter(4), parameter_replication={true}\n  ROOT r = (f32[3]) tuple(q)"
    yield "parameter", ("q = (f32[3], (s32[], u8[2])) parameter(4), parameter_replication={true,false,true}\n"
                        "  ROOT r = f32[3] get-tuple-element(q), index=0")


def contractions():
    for precision in ("", ", operand_precision={highest,high}", ", algorithm=dot_bf16_bf16_f32_x3",
                      ", operand_precision={default,highest}"):
        yield "dot", f"ROOT r = f32[4,4] dot(x, y), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}{precision}"
    for algorithm in ("any_f8_any_f8_f32", "any_f8_any_f8_f32_fast_accum", "f16_f16_f16", "f16_f16_f32",
                      "bf16_bf16_bf16", "bf16_bf16_f32",
                      "bf16_bf16_f32_x6", "bf16_bf16_f32_x9", "tf32_tf32_f32", "tf32_tf32_f32_x3", "f32_f32_f32",
                      "f64_f64_f64"):
        yield "dot", (f"ROOT r = f32[4,4] dot(x, y), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}, "
                      f"algorithm=dot_{algorithm}")
    yield "dot", ("ROOT r = f32[4,8,8] dot(x, y), lhs_batch_dims={0}, lhs_contracting_dims={}, rhs_batch_dims={0}, "
                  "rhs_contracting_dims={}")
    yield "dot", "ROOT r = f32[4,8,4,8] dot(x, y)"
    yield "dot", "ROOT r = f32[] dot(x, y), lhs_contracting_dims={0,1}, rhs_contracting_dims={0,1}"
    groups = "w = f32[2,8,5] constant({...})\n  g = s32[2] constant({1, 3})\n"
    yield ("ragged-dot", groups
           + "  ROOT r = f32[4,5] ragged-dot(x, w, g), lhs_contracting_dims={1}, rhs_contracting_dims={1}, "
             "lhs_ragged_dims={0}, rhs_group_dims={0}")
    yield "ragged-dot", ("g = s32[2] constant({1, 3})\n  ROOT r = f32[2,8,8] ragged-dot(x, y, g), "
                         "lhs_contracting_dims={0}, rhs_contracting_dims={0}, "
                         "lhs_ragged_dims={0}, operand_precision={highest,default}")
    yield "ragged-dot", ("a = f32[2,3,4] constant({...})\n  w = f32[2,5,4,6] constant({...})\n  g = s32[2,5] "
                         "constant({...})\n  ROOT r = f32[2,3,6] ragged-dot(a, w, g), "
                         "lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}, rhs_contracting_dims={2}, "
                         "lhs_ragged_dims={1}, rhs_group_dims={1}")
    yield "scaled-dot", ("o = f8e8m0fnu[] constant(2)\n  a = f8e4m3fn[3,4,64] constant({...})\n  b = f8e4m3fn[3,8,64] "
                         "constant({...})\n  c = f8e8m0fnu[3,4,2] broadcast(o), dimensions={}\n"
                         "  d = f8e8m0fnu[3,8,2] broadcast(o), dimensions={}\n  ROOT r = f32[3,4,8] scaled-dot(a, b, "
                         "c, d), lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}, "
                         "rhs_contracting_dims={2}, operand_precision={highest,default}, "
                         "algorithm=dot_any_f8_any_f8_f32")
    yield "scaled-dot", ("o = f8e8m0fnu[] constant(2)\n  a = f8e4m3fn[4,64] constant({...})\n  b = f8e4m3fn[8,64] "
                         "constant({...})\n  c = f8e8m0fnu[4,2] broadcast(o), dimensions={}\n  d = f8e8m0fnu[8,2] "
                         "broadcast(o), dimensions={}\n"
                         "  ROOT r = f32[4,8] scaled-dot(a, b, c, d), lhs_contracting_dims={1}, "
                         "rhs_contracting_dims={1}")
    image = "a = f32[2,9,9,4] constant({...})\n  k = f32[3,3,4,8] constant({...})\n"
    labels = "dim_labels=b01f_01io->b01f"
    for size, window, more in [
            ("2,7,7,8", "size=3x3", ""), ("2,5,5,8", "size=3x3 stride=2x2 pad=1_1x1_1", ""),
        ("2,17,9,8", "size=3x3 pad=1_1x1_1 lhs_dilate=2x1", ""),
            ("2,5,5,8", "size=3x3 rhs_dilate=2x2", ""), ("2,5,7,8", "size=3x3 pad=-1_-1x0_0", ""),
        ("2,7,7,8", "size=3x3 rhs_reversal=1x1", ""),
            ("2,7,7,8", "size=3x3", ", operand_precision={highest,highest}"),
        ("2,7,7,8", "size=3x3", ", convolution_kind=fprop"),
            ("2,7,7,8", "size=3x3", ", convolution_kind=wgrad"),
        ("2,7,7,8", "size=3x3", ", sparsity_config={lhs={sparsity=2x4 dimension=1 stride=1}}")]:
        yield "convolution", f"{image}  ROOT r = f32[{size}] convolution(a, k), window={{{window}}}, {labels}{more}"
    yield "convolution", ("a = f32[2,9,9,4] constant({...})\n  k = f32[3,3,1,8] constant({...})\n"
                          f"  ROOT r = f32[2,7,7,8] convolution(a, k), window={{size=3x3}}, {labels}, "
                          f"feature_group_count=4")
    yield "convolution", ("a = f32[4,9,9,4] constant({...})\n  k = f32[3,3,4,8] constant({...})\n"
                          f"  ROOT r = f32[2,7,7,8] convolution(a, k), window={{size=3x3}}, {labels}, "
                          f"batch_group_count=2")
    yield "convolution", ("a = f32[4,9] constant({...})\n  k = f32[9,8] constant({...})\n  ROOT r = f32[4,8] "
                          "convolution(a, k), dim_labels=bf_io->bf")
    yield "convolution", ("a = f32[4,2,9] constant({...})\n  k = f32[2,2,8] constant({...})\n  ROOT r = f32[8,4,8] "
                          "convolution(a, k), window={size=2}, dim_labels=bf0_oi0->0bf") \
        .replace("k = f32[2,2,8]", "k = f32[8,2,2]")


def reductions():
    zero = "z = f32[] constant(0)\n"
    for shape, dimensions in [("4", "{1}"), ("8", "{0}"), ("", "{0,1}"), ("4,8", "{}")]:
        yield "reduce", f"{zero}  ROOT r = f32[{shape}] reduce(x, z), dimensions={dimensions}, to_apply=add"
    yield ("reduce", zero
           + "  n = s32[] constant(0)\n  ROOT r = (f32[4], s32[4]) reduce(x, i, z, n), dimensions={1}, "
             "to_apply=arg_max")
    for shape, window in [("3,7", "size=2x2"), ("2,4", "size=2x2 stride=2x2"), ("4,8", "size=3x3 pad=1_1x1_1"),
                          ("7,14", "size=1x2 lhs_dilate=2x2"),
                          ("4,6", "size=1x2 rhs_dilate=1x2"), ("3,7", "size=2x2 rhs_reversal=1x1")]:
        yield "reduce-window", f"{zero}  ROOT r = f32[{shape}] reduce-window(x, z), window={{{window}}}, to_apply=add"
    yield ("reduce-window", zero
           + "  n = s32[] constant(0)\n  ROOT r = (f32[3,7], s32[3,7]) reduce-window(x, i, z, n), window={size=2x2}, "
             "to_apply=arg_max")
    yield "select-and-scatter", zero + ("  s = f32[2,4] slice(y), slice={[0:2], [0:4]}\n  ROOT r = f32[4,8] "
                                        "select-and-scatter(x, s, z), "
                                        "window={size=2x2 stride=2x2}, select=larger, scatter=add")
    yield "map", "ROOT r = f32[4,8] map(x, y), dimensions={0,1}, to_apply=add"
    for stable in ("", ", is_stable=true"):
        yield "sort", f"ROOT r = (f32[4,8], s32[4,8]) sort(x, i), dimensions={{1}}{stable}, to_apply=order"
    yield "sort", "ROOT r = f32[4,8] sort(x), dimensions={0}, to_apply=larger"
    for largest in ("true", "false"):
        yield "topk", f"ROOT r = (f32[4,2], s32[4,2]) topk(x), k=2, largest={largest}"
    start = "c = f32[8] constant({...})\n"
    for more in ("", ", is_reverse=true", ", is_associative=true", ", is_associative=false"):
        yield "scan", (f"{start}  ROOT r = (f32[4,8], f32[8]) scan(x, c), dimensions={{0}}, num_carries=1{more}, "
                       f"to_apply=carried")
    yield "batch-norm-training", ("s = f32[8] constant({...})\n  ROOT r = (f32[4,8], f32[8], f32[8]) "
                                  "batch-norm-training(x, s, s), epsilon=0.001, feature_index=1")
    yield "batch-norm-training", ("s = f32[4] constant({...})\n  ROOT r = (f32[4,8], f32[4], f32[4]) "
                                  "batch-norm-training(x, s, s), epsilon=0, feature_index=0")
    yield "batch-norm-inference", ("s = f32[8] constant({...})\n  ROOT r = f32[4,8] batch-norm-inference(x, s, s, s, "
                                   "s), epsilon=1e-05, feature_index=1")
    yield "batch-norm-grad", ("s = f32[8] constant({...})\n  ROOT r = (f32[4,8], f32[8], f32[8]) batch-norm-grad(x, s, "
                              "s, s, y), epsilon=0.1, feature_index=1")


def linear_algebra():
    square = "a = f32[4,4] constant({...})\n"
    for lower in ("", ", lower=true"):
        yield "cholesky", f"{square}  ROOT r = f32[4,4] cholesky(a){lower}"
    for transpose in ("NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"):
        yield "triangular-solve", (f"{square}  ROOT r = f32[4,8] triangular-solve(a, x), left_side=true, lower=true, "
                                   f"transpose_a={transpose}")
    yield "triangular-solve", ("a = f32[8,8] constant({...})\n  ROOT r = f32[4,8] triangular-solve(a, x), "
                               "unit_diagonal=true, transpose_a=NO_TRANSPOSE")
    yield "fft", "c = c64[4,8] complex(x, y)\n  ROOT r = c64[4,8] fft(c), fft_type=FFT, fft_length={8}"
    yield "fft", "c = c64[4,8] complex(x, y)\n  ROOT r = c64[4,8] fft(c), fft_type=IFFT, fft_length={4,8}"
    yield "fft", "ROOT r = c64[4,5] fft(x), fft_type=RFFT, fft_length={8}"
    yield "fft", "c = c64[4,8] complex(x, y)\n  ROOT r = f32[4,14] fft(c), fft_type=IRFFT, fft_length={14}"
    for distribution in ("rng_uniform", "rng_normal"):
        yield "rng", (f"a = f32[] constant(0)\n  b = f32[] constant(1)\n  ROOT r = f32[3] rng(a, b), "
                      f"distribution={distribution}")
    for algorithm in ("rng_default", "rng_three_fry", "rng_philox"):
        yield "rng-bit-generator", (f"k = u64[2] constant({{1, 18446744073709551615}})\n  ROOT r = (u64[2], u32[3]) "
                                    f"rng-bit-generator(k), algorithm={algorithm}")
    yield "rng-get-and-update-state", "ROOT r = u64[2] rng-get-and-update-state(), delta=4"


def calls():
    yield "call", "ROOT r = f32[4,8] call(x), to_apply=negative"
    yield "call", ("ROOT r = f32[4,8] call(x), to_apply=negative, is_composite=true, "
                   "frontend_attributes={composite.attributes={n = 1 : "
                   "i64},composite.name=\"my.op\",composite.version=\"1\"}")
    yield "while", ("n = s32[] constant(0)\n  t = (s32[], f32[4,8]) tuple(n, x)\n  ROOT r = (s32[], f32[4,8]) "
                    "while(t), "
                    "condition=below, body=next")
    yield "while", ("n = s32[] constant(0)\n  t = (s32[], f32[4,8]) tuple(n, x)\n  ROOT r = (s32[], f32[4,8]) "
                    "while(t), condition=below, body=next, "
                    "backend_config={\"known_trip_count\":{\"n\":\"3\"}}")
    yield "conditional", ("b = pred[] constant(true)\n  ROOT r = f32[4,8] conditional(b, x, y), "
                          "true_computation=negative, false_computation=same")
    yield "conditional", ("b = s32[] constant(1)\n  ROOT r = f32[4,8] conditional(b, x, y, x), "
                          "branch_computations={negative, same, negative}")
    yield "conditional", "b = s32[] constant(1)\n  ROOT r = f32[4,8] conditional(b, x), branch_computations={negative}"
    for kind in ("kLoop", "kInput", "kOutput", "kCustom"):
        yield "fusion", f"ROOT r = f32[4,8] fusion(x), kind={kind}, calls=negative"
    yield "fusion", "ROOT r = f32[4,8] fusion(x), kind=kLoop, output_to_operand_aliasing={{}: (0, {})}, calls=negative"
    yield "custom-call", "ROOT r = f32[4,8] custom-call(x), custom_call_target=\"plain\""
    for more in (", custom_call_has_side_effect=true", ", schedule=SCHEDULE_LATEST", ", schedule=SCHEDULE_EARLIEST",
                 ", api_version=API_VERSION_STATUS_RETURNING",
                 ", api_version=API_VERSION_TYPED_FFI, backend_config={a = 1 : i64, b = \"}\"}",
                 ", backend_config=\"a\\tb\\n\\\"c\\\"\\001\"", ", called_computations={add, same}",
                 ", to_apply=add", ", output_to_operand_aliasing={{}: (0, {})}",
                 ", operand_layout_constraints={f32[4,8]{0,1}}", ", window={size=3x3}",
                 ", dim_labels=b01f_01io->b01f, feature_group_count=2, batch_group_count=3",
                 ", padding_type=PADDING_SAME", ", operand_precision={high}",
                 ", literal=s32[2]{0} {1, 2}", ", literal=s32[] 3", ", literal=( f32[2]{0} {1, 2}, s32[] 3 )"):
        yield "custom-call", f"ROOT r = f32[4,8]{{1,0}} custom-call(x), custom_call_target=\"t\"{more}"
    yield "custom-call", ("ROOT r = ((f32[4,8]{1,0}, token[]), f32[4,8]) custom-call(x), custom_call_target=\"t\", "
                          "output_to_operand_aliasing={{0,0}: (0, {}), {1}: (0, {})}")
    yield "domain", ("ROOT r = f32[4,8] domain(x), domain={kind=\"sharding\", entry={maximal device=0}, "
                     "exit={replicated}}")
    yield "after-all", "ROOT r = token[] after-all()"
    yield "after-all", "a = token[] after-all()\n  b = token[] after-all()\n  ROOT r = token[] after-all(a, b)"
    yield "add-dependency", "a = token[] after-all()\n  ROOT r = f32[4,8] add-dependency(x, a)"
    yield "partition-id", "ROOT r = u32[] partition-id()"
    yield "replica-id", "ROOT r = u32[] replica-id()"
    started = "((f32[4,8]), f32[4,8], s32[])"
    yield "async-start", (f"s = {started} async-start(x), async_execution_thread=\"host\", "
                          f"output_to_operand_aliasing={{{{1}}: (0, {{}})}}, calls=elsewhere\n  u = {started} "
                          f"async-update(s)\n"
                          "  ROOT r = f32[4,8] async-done(u)")
    yield "async-update", (f"s = {started} custom-call-start(x), custom_call_target=\"slow\"\n  u = {started} "
                           f"custom-call-update(s)\n  ROOT r = f32[4,8] custom-call-done(u)")
    yield "async-done", f"s = {started} negate-start(x)\n  ROOT r = f32[4,8] negate-done(s)"
    yield "async-start", ("s = ((f32[4,8], f32[4,8]), f32[4,8], s32[]) add-start(y, x), async_execution_thread=\"t\", "
                          "backend_config=\"b\", metadata={op_name=\"m\"}\n"
                          "  ROOT r = f32[4,8] add-done(s), metadata={op_name=\"m\"}")
    yield "async-start", ("s = ((f32[4,8]), f32[4,8], s32[]) call-start(x), to_apply=negative\n  ROOT r = f32[4,8] "
                          "call-done(s)")


def communication():
    for groups in GROUPS:
        yield "all-reduce", f"ROOT r = f32[4,8] all-reduce(x), replica_groups={groups}, to_apply=add"
    for more in (", channel_id=7", ", channel_id=7, use_global_device_ids=true", ", constrain_layout=true",
                 ", mode=cross_replica", ", channel_id=7, mode=flattened_id, use_global_device_ids=true"):
        yield "all-reduce", f"ROOT r = f32[4,8] all-reduce(x), replica_groups={{{{0,1}}}}{more}, to_apply=add"
    yield "all-reduce", "ROOT r = (f32[4,8], f32[4,8]) all-reduce(x, y), replica_groups={{0,1}}, to_apply=add"
    yield "all-reduce-start", ("s = f32[4,8] all-reduce-start(x), channel_id=1, replica_groups={{0,1}}, "
                               "use_global_device_ids=true, to_apply=add\n  ROOT r = f32[4,8] all-reduce-done(s)")
    yield "all-reduce-done", ("s = f32[4,8] all-reduce-start(x), replica_groups={}, to_apply=add\n  ROOT r = f32[4,8] "
                              "all-reduce-done(s)")
    yield "all-gather", ("ROOT r = f32[8,8] all-gather(x), channel_id=1, replica_groups={{0,1}}, dimensions={0}, "
                         "use_global_device_ids=true")
    yield "all-gather", "ROOT r = f32[4,16] all-gather(x), replica_groups=[2,2]<=[4], dimensions={1}"
    yield "all-gather-start", ("s = (f32[4,8], f32[8,8]) all-gather-start(x), replica_groups={{0,1}}, dimensions={0}\n "
                               " "
                               "ROOT r = f32[8,8] all-gather-done(s)")
    yield "all-gather-done", ("s = (f32[4,8], f32[8,8]) all-gather-start(x), channel_id=2, replica_groups={{0,1}}, "
                              "dimensions={0}, constrain_layout=true\n  ROOT r = f32[8,8] all-gather-done(s)")
    yield "reduce-scatter", ("ROOT r = f32[2,8] reduce-scatter(x), channel_id=1, replica_groups={{0,1}}, "
                             "use_global_device_ids=true, dimensions={0}, to_apply=add")
    yield "all-to-all", "ROOT r = f32[4,8] all-to-all(x), replica_groups={{0,1}}, dimensions={0}"
    yield "all-to-all", "ROOT r = (f32[4,8], f32[4,8]) all-to-all(x, y), channel_id=1, replica_groups={{0,1}}"
    yield "ragged-all-to-all", ("o = f32[6,8] constant({...})\n  a = s64[2] constant({...})\n"
                                "  ROOT r = f32[6,8] ragged-all-to-all(x, o, a, a, a, a), replica_groups={{0,1}}, "
                                "dimensions={0}")
    yield "ragged-all-to-all", ("o = f32[6,8] constant({...})\n  a = s64[2] constant({...})\n"
                                "  ROOT r = f32[6,8] ragged-all-to-all(x, o, a, a, a, a), channel_id=1, "
                                "replica_groups={{0,1}}")
    yield "collective-broadcast", ("ROOT r = f32[4,8] collective-broadcast(x), channel_id=1, "
                                   "replica_groups={{0,1},{2,3}}")
    yield "collective-permute", ("ROOT r = f32[4,8] collective-permute(x), channel_id=1, "
                                 "source_target_pairs={{0,1},{1,0}}")
    yield "collective-permute-start", ("s = (f32[4,8], f32[4,8]) collective-permute-start(x), "
                                       "source_target_pairs={{0,1}}\n  ROOT r = f32[4,8] collective-permute-done(s)")
    yield "collective-permute-done", ("s = (f32[4,8], f32[4,8], u32[], u32[]) collective-permute-start(x), "
                                      "source_target_pairs={}\n  ROOT r = f32[4,8] collective-permute-done(s)")
    yield "collective-permute-start", ("s = (f32[4,8], f32[4,8], u32[], u32[]) collective-permute-start(x), "
                                       "channel_id=3, source_target_pairs={{0,1}}\n"
                                       "  ROOT r = f32[4,8] collective-permute-done(s)")
    yield "all-reduce-start", ("s = f32[4,8] all-reduce-start(x), channel_id=1, replica_groups={{0,1}}, "
                               "constrain_layout=true, mode=cross_replica_and_partition, to_apply=add\n"
                               "  ROOT r = f32[4,8] all-reduce-done(s)")
    yield "all-gather", "ROOT r = f32[8,8] all-gather(x), replica_groups={{0,1}}, dimensions={0}, constrain_layout=true"
    yield "all-gather-start", ("s = (f32[4,8], f32[8,8]) all-gather-start(x), channel_id=2, replica_groups={{0,1}}, "
                               "dimensions={0}, constrain_layout=true, "
                               "use_global_device_ids=true\n  ROOT r = f32[8,8] all-gather-done(s)")
    yield "reduce-scatter", ("ROOT r = f32[2,8] reduce-scatter(x), replica_groups={{0,1}}, constrain_layout=true, "
                             "dimensions={0}, mode=cross_replica, to_apply=add")
    yield "all-to-all", "ROOT r = f32[4,8] all-to-all(x), replica_groups={{0,1}}, constrain_layout=true, dimensions={0}"
    for more in ("", ", is_host_transfer=true"):
        yield "send", (f"t = token[] after-all()\n  s = (f32[4,8], u32[], token[]) send(x, t), channel_id=3{more}\n  "
                       f"ROOT r = token[] send-done(s), channel_id=3{more}")
        yield "recv", (f"t = token[] after-all()\n  s = (f32[4,8], u32[], token[]) recv(t), channel_id=3{more}\n  ROOT "
                       f"r = (f32[4,8], token[]) recv-done(s), channel_id=3{more}")
    yield "send-done", ("t = token[] after-all()\n  s = (f32[4,8], u32[], token[]) send(x, t), channel_id=4, "
                        "is_host_transfer=true\n  ROOT r = token[] send-done(s), channel_id=4, is_host_transfer=true")
    yield "recv-done", ("t = token[] after-all()\n  s = (f32[4,8], u32[], token[]) recv(t), channel_id=4, "
                        "is_host_transfer=true\n  ROOT r = (f32[4,8], token[]) recv-done(s), channel_id=4, "
                        "is_host_transfer=true")
    yield "send-done", ("t = token[] after-all()\n  s = (f32[4,8], u32[], token[]) send(x, t)\n  ROOT r = token[] "
                        "send-done(s)")
    yield "recv-done", ("t = token[] after-all()\n  s = (f32[4,8], u32[], token[]) recv(t), "
                        "frontend_attributes={_xla_host_transfer_rendezvous=\"r\"}\n  ROOT r = (f32[4,8], token[]) "
                        "recv-done(s)")
    yield "infeed", ("t = token[] after-all()\n  ROOT r = ((f32[3]{0}, pred[]), token[]) infeed(t), "
                     "infeed_config=\"a\\\"b\"")
    yield "outfeed", ("t = token[] after-all()\n  ROOT r = token[] outfeed(x, t), outfeed_shape=f32[4,8]{1,0}, "
                      "outfeed_config=\"c\"")


LITERALS = [
    ("pred[2]", "{true, false}"), ("pred[3]", "{1, 0, 1}"), ("s2[4]", "{-2, -1, 0, 1}"), ("u2[4]", "{0, 1, 2, 3}"),
    ("s4[3]", "{-8, 7, 0}"),
    ("u4[3]", "{0, 15, 8}"), ("s4[]", "-3"), ("s8[2]", "{-128, 127}"), ("u8[2]", "{0, 255}"),
    ("s16[2]", "{-32768, 32767}"), ("u16[2]", "{0, 65535}"),
    ("s32[2]", "{-2147483648, 2147483647}"), ("u32[2]", "{0, 4294967295}"),
    ("s64[2]", "{-9223372036854775808, 9223372036854775807}"),
    ("u64[2]", "{0, 18446744073709551615}"), ("f16[5]", "{6.1e-05, 65504, -inf, nan, 5.96e-08}"),
    ("bf16[4]", "{0.1, -1e+30, inf, nan}"),
    ("f32[8]", "{0.1, 1e-45, 3.40282347e+38, -inf, inf, nan, -nan, 16777217}"),
    ("f32[2]", "{nan(0x400123), -nan(0x7)}"),
    ("f64[4]", "{0.1, 5e-324, 1.7976931348623157e+308, nan}"), ("f64[1]", "{nan(0x8000000000123)}"),
    ("c64[2]", "{(1, -2.5), (nan, inf)}"),
    ("c128[1]", "{(0.1, -0.2)}"), ("f8e5m2[4]", "{0.5, -57344, inf, nan}"), ("f8e4m3[3]", "{0.5, 240, -inf}"),
    ("f8e3m4[2]", "{0.5, 15.5}"),
    ("f8e4m3fn[3]", "{0.5, 448, nan}"), ("f8e4m3b11fnuz[2]", "{0.5, 30}"), ("f8e5m2fnuz[2]", "{0.5, 57344}"),
    ("f8e4m3fnuz[2]", "{0.5, 240}"),
    ("f8e8m0fnu[3]", "{1, 0.5, 2}"), ("f4e2m1fn[3]", "{0.5, -6, 1.5}"), ("f32[]", "1"), ("f32[0]", "{}"),
    ("f32[2,0]", "{ {}, {} }"), ("f32[0,3]", "{}"),
    ("s32[2,3]", "{ {1, 2, 3}, {4, 5, 6} }"), ("s32[2,3]{0,1}", "{ {1, 2, 3}, {4, 5, 6} }"),
    ("s32[2,1,2]{0,2,1}", "{ { {1, 2} }, { {3, 4} } }"),
    ("bf16[2,2]{0,1}", "{ {1, 2}, {3, 4} }"), ("s4[2,2]{0,1}", "{ {1, 2}, {3, 4} }"),
    ("c64[2,2]{0,1}", "{ {(1, 0), (2, 0)}, {(3, 0), (4, 0)} }"),
    ("(f32[], s32[2])", "(1.5, {1, 2})"), ("((f32[2], pred[]), (), s8[1])", "(({1, 2}, true), (), {3})"), ("()", "()"),
    ("s4[3]{0:E(4)}", "{-8, 7, 0}"), ("u4[2,3]{1,0:E(4)}", "{ {1, 2, 3}, {4, 5, 6} }"), ("f32[100]", "{...}"),
    ("(f32[100], s32[])", "({...}, 1)"),
]
LITERALS += [(f"f32[{n}]", "{" + ", ".join(str(k) for k in range(n)) + "}") for n in (11, 64)]
LITERALS += [("(" + ", ".join(["s32[]"] * 40) + ")", "(" + ", ".join(str(k) for k in range(40)) + ")")]


def constants():
    for shape, value in LITERALS:
        yield "constant", f"ROOT r = {shape} constant({value})"


SHAPES = ["f32[8,128]{1,0:T(8,128)}", "bf16[8,128]{1,0:T(8,128)(2,1)}", "bf16[8,128]{0,1:T(8,128)(2,1)S(1)}",
          "f32[4,8]{1,0:S(5)}", "s4[4,8]{1,0:E(4)}",
          "f32[4,8]{1,0:L(2)}", "f32[<=4,8]", "f32[<=4,<=8]{0,1}", "f32[4,8]{1,0:D(D,C)}", "f32[4,8]{1,0:D(D,S)}",
          "f32[4,8]{1,0:SC(0:2)}",
          "f32[4,8]{1,0:T(2,128)S(3)SC(1:4)}", "f32[4,8]{1,0:M(4)}", "f32[4,8]{1,0:T(8,128)L(8)E(32)S(1)}",
          "opaque[]", "token[]", "f32[]{:T(128)}", "f32[]{:T(128)S(1)}", "(f32[2]{0:S(1)}, (s32[]{:S(2)}, token[]))",
          "s1[4]", "u1[4]", "s2[4]", "u2[4]", "f8e8m0fnu[2]", "f4e2m1fn[2]", "c128[2]"]
BUFFERS = ["b(f32[4])", "b(f32[4,8]{0,1})", "(b(f32[2]), s32[])"]  # a custom call hands on those that it takes


def shapes():
    for shape in SHAPES:
        yield "custom-call", f"ROOT r = {shape} custom-call(x), custom_call_target=\"shape\""
        yield "parameter", f"q = {shape} parameter(4)\n  ROOT r = ({shape}) tuple(q)"
    for shape in BUFFERS:
        yield "parameter", f"q = {shape} parameter(4)\n  ROOT r = ({shape}) tuple(q)"
    yield "custom-call", ('pinned = b(f32[4,8]) custom-call(x), custom_call_target="Pin", '
                          'output_to_operand_aliasing={{}: (0, {})}\n'
                          '  ROOT r = f32[4,8] custom-call(pinned), custom_call_target="Unpin", '
                          'output_to_operand_aliasing={{}: (0, {})}')


SHARDINGS = ["{replicated}", "{manual}", "{unknown}", "{unreduced}", "{maximal device=3}", "{devices=[2,1]0,1}",
             "{devices=[2,2]0,1,2,3}", "{devices=[2,1]<=[2]}",
             "{devices=[2,2]<=[2,2]T(1,0)}", "{devices=[1,2,2]<=[4] last_tile_dim_replicate}",
             "{devices=[2,1,2]3,2,1,0 last_tile_dim_replicate}",
             "{devices=[1,2,2]<=[4] last_tile_dims={manual}}",
             "{devices=[1,1,2,2]<=[2,2]T(1,0) last_tile_dims={manual, replicated}}",
             "{devices=[1,1,2,2,2]<=[2,2,2]T(2,0,1) last_tile_dims={unreduced, manual, replicated}}",
             "{devices=[2,4]<=[2,2,2]T(2,1,0)}",
             "{devices=[1,2,2]<=[4] last_tile_dims={unreduced}}",
             "{replicated shard_as 3}", "{devices=[2,1]<=[2] shard_like 5}", "{unknown shard_as 0}",
             "{replicated metadata={op_name=\"a\"}}",
             "{devices=[2,1]0,1 metadata={{op_name=\"a\" source_line=3}, {op_name=\"b\"}}}",
             "{maximal device=1 metadata={op_name=\"a\"}}"]
NAMED = ["{mesh['a'=2,'b'=4], [{'a'}, {'b'}]}", "{mesh['a'=2,'b'=4], [{}, {'b'}], replicated={'a'}}",
         "{mesh['a'=2,'b'=4], [{'a','b'}, {}]}", "{mesh['a'=8], [{'a':(1)2}, {}]}",
         "{mesh['a'=2,'b'=4], [{'a', ?}, {?}]}", "{mesh['a'=2,'b'=4], [{}, {}], unreduced={'a'}}",
         "{mesh['a'=2,'b'=4], [{}, {'b'}], manual={'a'}}",
         "{mesh['a'=2,'b'=4], device_ids=(7,6,5,4,3,2,1,0), [{'a'}, {'b'}]}",
         "{mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)), [{'a'}, {'b'}]}",
         "{mesh['a'=2], replicated}", "{maximal_mesh[device_id=3]}",
         "{mesh['a'=2,'b'=4], [{'a'}, {'b':(2)2}], metadata={{op_name=\"n\" source_line=3}, {op_name=\"o\"}}}"]
TUPLE_SHARDINGS = ["{{replicated}, {devices=[2,1]<=[2]}}", "{{manual}, {maximal device=0}}",
                   "{{replicated shard_as 1}, {replicated shard_like 1}}",
                   "{{mesh['a'=2], [{'a'}, {}]}, {mesh['a'=2], replicated}}"]

METADATA = ["op_name=\"a/b\"", "op_type=\"t\" op_name=\"a\\\"b\\\\c\\n\" source_file=\"f.py\" source_line=7",
            "op_name=\"a\" source_file=\"f\" source_line=1 source_end_line=2 source_column=3 source_end_column=4",
            "op_name=\"a\" profile_type={1}", "op_name=\"a\" deduplicated_name=\"d\"",
            "op_name=\"a\" scheduling_name=\"s\"",
            "op_name=\"\\303\\244\"", "op_name=\"\""]
COMMON = ["backend_config=\"abc\"", "backend_config={\"a\":[\"b\",{\"c\":\"}\"}],\"n\":\"3\"}",
          "frontend_attributes={a=\"b\"}", "frontend_attributes={a=\"b\",c.d=\"\\\"x\\\"\",e={f = 1}}",
          "frontend_attributes={}", "origin={{\"x\"}}", "origin={{\"x\" {1}}}", "control-predecessors={x}",
          "control-predecessors={x, y}", "statistics={visualizing_index=0,a=1.5,b=2}",
          "sharding={replicated}, metadata={op_name=\"a\"}, backend_config=\"b\"", "origin={[synthetic_call]}"]


def common():
    for sharding in SHARDINGS + NAMED:
        yield "sharding", f"ROOT r = f32[4,8] negate(x), sharding={sharding}"
    for sharding in TUPLE_SHARDINGS:
        yield "sharding", f"ROOT r = (f32[4,8], f32[4,8]) tuple(x, y), sharding={sharding}"
    for metadata in METADATA:
        yield "metadata", f"ROOT r = f32[4,8] negate(x), metadata={{{metadata}}}"
    for attribute in COMMON:
        yield "attribute", f"ROOT r = f32[4,8] negate(x), {attribute}"
    yield "attribute", "a = f32[4,8] negate(x)\n  ROOT r = f32[4,8] negate(y), control-predecessors={a}"
    yield "attribute", ("t = (f32[4,8], s32[4,8]) tuple(x, i), origin={({\"x\"}, {\"i\" {0}})}\n  ROOT r = f32[4,8] "
                        "get-tuple-element(t), index=0, origin={{\"x\"}}")


HEADERS = ["", ", is_scheduled=true", ", replica_count=2, num_partitions=4",
           ", allow_spmd_sharding_propagation_to_parameters={true}, "
           "allow_spmd_sharding_propagation_to_output={true,false}",
           ", input_output_alias={ {}: (0, {}, may-alias) }", ", input_output_alias={ {}: (1, {}, must-alias) }",
           ", buffer_donor={ (0, {}), (2, {}) }", ", alias_passthrough_params=true",
           ", frontend_attributes={a=\"b\",c=\"d\"}",
           ", entry_computation_layout={(f32[4,8]{0,1}, f32[4,8]{1,0}, s32[4,8]{1,0}, pred[4,8]{1,0})->f32[4,8]{0,1}}"]


def headers():
    for header in HEADERS:
        yield "module", header


def cases():
    """(what, instructions of the entry, attributes of the module) of every case."""
    for group in (elementwise, movement, contractions, reductions, linear_algebra, calls, communication, constants,
                  shapes, common):
        for what, body in group():
            yield what, body, ""
    for what, header in headers():
        yield what, "ROOT r = f32[4,8] add(x, y)", header
