"""From operators of a traced PyTorch graph to HLO text.

Every function of the table writes one ATen operator with HLO instructions and returns its result. Shapes and types
are those of PyTorch's own trace. Gathers and scatters along one dimension with one index each are comparisons with an
iota, which automap can split like any elementwise operator.
"""

import math

import torch

DTYPES = {torch.float32: "f32", torch.float64: "f64", torch.bfloat16: "bf16", torch.float16: "f16", torch.int64: "s64",
          torch.int32: "s32", torch.int16: "s16", torch.int8: "s8", torch.uint8: "u8", torch.uint32: "u32",
          torch.uint64: "u64", torch.bool: "pred", torch.complex64: "c64", torch.complex128: "c128"}
TABLE = {}


def operator(*names):
    def enter(function):
        TABLE.update(dict.fromkeys(names, function))
        return function
    return enter


class Value:
    """An instruction's result."""

    def __init__(self, name, shape, dtype):
        self.name, self.shape, self.dtype = name, tuple(shape), dtype


def numbers(values):
    return "{" + ",".join(map(str, values)) + "}"


def element(number, dtype):
    """The text of a constant's element."""
    if dtype == torch.bool:
        return "true" if number else "false"
    if dtype.is_complex:
        number = complex(number)
        return f"({element(number.real, dtype.to_real())}, {element(number.imag, dtype.to_real())})"
    if dtype.is_floating_point:
        return "nan" if math.isnan(number) else repr(float(number))
    return str(int(number))


class Writer:
    """The instructions of the entry computation, and the computations of reductions."""

    def __init__(self):
        self.lines, self.reductions, self.count = [], {}, 0
        self.key = None  # of random numbers, after the last draw
        self.metadata = ""

    def shape(self, shape, dtype):
        if dtype not in DTYPES:
            raise NotImplementedError(f"a tensor of {dtype} (expected one of {', '.join(map(str, DTYPES))})")
        return f"{DTYPES[dtype]}[{','.join(map(str, shape))}]"

    def write(self, opcode, shape, dtype, operands, attributes=""):
        self.count += 1
        value = Value(f"v{self.count}", shape, dtype)
        listed = operands if isinstance(operands, str) else ", ".join(operand.name for operand in operands)
        extra = f", {attributes}" if attributes else ""
        self.lines.append(f"  {value.name} = {self.shape(shape, dtype)} {opcode}({listed}){extra}{self.metadata}")
        return value

    def constant(self, number, dtype, shape=()):
        return self.broadcast(self.write("constant", (), dtype, element(number, dtype)), shape)

    def convert(self, value, dtype):
        return value if value.dtype == dtype else self.write("convert", value.shape, dtype, [value])

    def reshape(self, value, shape):
        return value if value.shape == tuple(shape) else self.write("reshape", shape, value.dtype, [value])

    def broadcast_in(self, value, shape, dimensions):
        return self.write("broadcast", shape, value.dtype, [value], f"dimensions={numbers(dimensions)}")

    def broadcast(self, value, shape):
        """As PyTorch broadcasts: trailing dimensions match, or are 1."""
        shape = tuple(shape)
        if value.shape == shape:
            return value
        offset = len(shape) - len(value.shape)
        kept = [d for d, size in enumerate(value.shape) if size == shape[d + offset]]
        value = self.reshape(value, [value.shape[d] for d in kept])
        return self.broadcast_in(value, shape, [d + offset for d in kept])

    def transpose(self, value, order):
        shape = [value.shape[d] for d in order]
        return self.write("transpose", shape, value.dtype, [value], f"dimensions={numbers(order)}")

    def tensor(self, operand, dtype, shape):
        """A value or a Python number, converted and broadcast."""
        if not isinstance(operand, Value):
            return self.constant(operand, dtype, shape)
        return self.broadcast(self.convert(operand, dtype), shape)

    def elementwise(self, opcode, dtype, shape, *operands, attributes="", result=None):
        values = [self.tensor(operand, dtype, shape) for operand in operands]
        return self.write(opcode, shape, result or dtype, values, attributes)

    def select(self, condition, a, b, dtype, shape):
        values = [self.tensor(condition, torch.bool, shape), self.tensor(a, dtype, shape), self.tensor(b, dtype, shape)]
        return self.write("select", shape, dtype, values)

    def reduction(self, opcode, dtype):
        name = f"{opcode}_{DTYPES[dtype]}"
        if name not in self.reductions:
            scalar = f"{DTYPES[dtype]}[]"
            self.reductions[name] = (f"{name} {{\n  a = {scalar} parameter(0)\n  b = {scalar} parameter(1)\n"
                                     f"  ROOT c = {scalar} {opcode}(a, b)\n}}\n")
        return name

    def reduce(self, value, dimensions, opcode="add", keep=False):
        dimensions = sorted(d % max(len(value.shape), 1) for d in dimensions) or list(range(len(value.shape)))
        initial = self.neutral(opcode, value.dtype)
        shape = [size for d, size in enumerate(value.shape) if d not in dimensions]
        found = self.write("reduce", shape, value.dtype, [value, self.constant(initial, value.dtype)],
                           f"dimensions={numbers(dimensions)}, to_apply={self.reduction(opcode, value.dtype)}")
        if not keep:
            return found
        return self.reshape(found, [1 if d in dimensions else size for d, size in enumerate(value.shape)])

    def neutral(self, opcode, dtype):
        """The element that a reduction begins with."""
        if opcode in ("maximum", "minimum"):
            limits = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
            least, most = (-math.inf, math.inf) if dtype.is_floating_point else (limits.min, limits.max)
            return least if opcode == "maximum" else most
        return {"add": 0, "multiply": 1, "or": False, "and": True}[opcode]

    def computation(self, name, dtypes, root):
        """Adds a computation of scalars a, b, ... with the instruction `root`; returns its name."""
        rows = [f"  {'abcd'[k]} = {DTYPES[dtype]}[] parameter({k})\n" for k, dtype in enumerate(dtypes)]
        self.reductions[name] = f"{name} {{\n{''.join(rows)}  ROOT {root}\n}}\n"
        return name

    def array(self, elements, dtype):
        """A constant vector, equal elements as a broadcast of one."""
        if len(set(elements)) == 1:
            return self.constant(elements[0], dtype, (len(elements),))
        text = ", ".join(element(x, dtype) for x in elements)
        return self.write("constant", (len(elements),), dtype, f"{{{text}}}")

    def draw(self, shape):
        """Random bits u32[shape]. The key is a parameter of the module, whose next value is a result."""
        if self.key is None:
            self.key = Value("key", (2,), torch.uint64)
        bits = Value(f"v{self.count + 1}.bits", shape, torch.uint32)
        self.count += 1
        listed = ",".join(map(str, shape))
        pair = f"v{self.count}"
        self.lines.append(f"  {pair} = (u64[2], u32[{listed}]) rng-bit-generator({self.key.name}), "
                          f"algorithm=rng_three_fry{self.metadata}")
        self.key = Value(f"{pair}.key", (2,), torch.uint64)
        for index, (value, kind) in enumerate(((self.key, "u64[2]"), (bits, f"u32[{listed}]"))):
            self.lines.append(f"  {value.name} = {kind} get-tuple-element({pair}), index={index}")
        return bits

    def iota(self, shape, dimension, dtype):
        return self.write("iota", shape, dtype, "", f"iota_dimension={dimension}")

    def dot(self, a, b, batch, contract):
        """batch and contract: pairs of dimensions of a and of b."""
        used = [{pair[k] for pair in [*batch, *contract]} for k in (0, 1)]
        shape = [a.shape[x] for x, _ in batch]
        for k, value in enumerate((a, b)):
            shape += [size for d, size in enumerate(value.shape) if d not in used[k]]
        rows = [("lhs_batch_dims", 0, batch), ("rhs_batch_dims", 1, batch), ("lhs_contracting_dims", 0, contract),
                ("rhs_contracting_dims", 1, contract)]
        attributes = ", ".join(f"{name}={numbers(pair[k] for pair in pairs)}" for name, k, pairs in rows if pairs)
        return self.write("dot", shape, a.dtype, [a, b], attributes)

    def slice(self, value, begins, ends, steps=None):
        steps = steps or [1] * len(begins)
        shape = [-(-(end - begin) // step) for begin, end, step in zip(begins, ends, steps)]
        listed = ", ".join(f"[{begin}:{end}:{step}]" for begin, end, step in zip(begins, ends, steps))
        return self.write("slice", shape, value.dtype, [value], f"slice={{{listed}}}")


# ---- elementwise ----

UNARY = {"neg": "negate", "_neg_view": "negate", "exp": "exponential", "log": "log", "rsqrt": "rsqrt",
         "sqrt": "sqrt", "tanh": "tanh", "erf": "erf", "sin": "sine", "cos": "cosine", "abs": "abs",
         "sigmoid": "logistic", "sign": "sign", "floor": "floor", "log1p": "log-plus-one",
         "expm1": "exponential-minus-one"}
BINARY = {"add": "add", "sub": "subtract", "mul": "multiply", "div": "divide", "maximum": "maximum",
          "minimum": "minimum", "pow": "power", "atan2": "atan2", "bitwise_and": "and",
          "logical_and": "and", "bitwise_or": "or", "logical_or": "or"}
COMPARE = {"eq": "EQ", "ne": "NE", "lt": "LT", "le": "LE", "gt": "GT", "ge": "GE"}


@operator(*UNARY)
def unary(w, name, out, x, **_):
    if name == "abs" and x.dtype.is_complex:
        return w.write("abs", out.shape, out.dtype, [x])
    return w.elementwise(UNARY[name], out.dtype, out.shape, x)


@operator("reciprocal")
def reciprocal(w, name, out, x):
    return w.elementwise("divide", out.dtype, out.shape, 1, x)


@operator("relu")
def relu(w, name, out, x):
    return w.elementwise("maximum", out.dtype, out.shape, x, 0)


@operator("bitwise_not", "logical_not")
def negation(w, name, out, x):
    return w.elementwise("not", torch.bool, out.shape, x)


@operator(*BINARY)
def binary(w, name, out, x, y, alpha=1, rounding_mode=None, **_):
    if rounding_mode:
        raise NotImplementedError(f"{name} with rounding")
    if name == "pow" and y == 2:
        return w.elementwise("multiply", out.dtype, out.shape, x, x)
    if alpha != 1:
        y = y * alpha if not isinstance(y, Value) else w.elementwise("multiply", out.dtype, out.shape, y, alpha)
    return w.elementwise(BINARY[name], out.dtype, out.shape, x, y)


@operator("rsub")
def reverse_subtract(w, name, out, x, y, alpha=1):
    return binary(w, "sub", out, y, x, alpha)


@operator(*COMPARE)
def compare(w, name, out, x, y):
    dtypes = [value.dtype for value in (x, y) if isinstance(value, Value)]
    dtype = torch.promote_types(*dtypes) if len(dtypes) == 2 else dtypes[0]
    if isinstance(y, float) and not (dtype.is_floating_point or dtype.is_complex):
        dtype = torch.float32
    return w.elementwise("compare", dtype, out.shape, x, y, attributes=f"direction={COMPARE[name]}", result=torch.bool)


@operator("clamp")
def clamp(w, name, out, x, least=None, most=None):
    if least is not None:
        x = w.elementwise("maximum", out.dtype, out.shape, x, least)
    return x if most is None else w.elementwise("minimum", out.dtype, out.shape, x, most)


@operator("where")
def where(w, name, out, condition, x, y):
    return w.select(condition, x, y, out.dtype, out.shape)


@operator("masked_fill")
def masked_fill(w, name, out, x, mask, value):
    return w.select(mask, value, x, out.dtype, out.shape)


@operator("_to_copy", "convert_element_type")
def to_copy(w, name, out, x, *_, **__):
    if x.dtype.is_complex and not out.dtype.is_complex:
        x = w.write("real", x.shape, x.dtype.to_real(), [x])
    return w.convert(x, out.dtype)


@operator("copy", "copy_")
def copy(w, name, out, x, source, *_):
    return w.tensor(source, out.dtype, out.shape)


@operator("clone", "detach", "detach_", "alias", "lift_fresh_copy", "contiguous", "resolve_conj", "resolve_neg")
def same(w, name, out, x, **_):
    return x


# ---- constants ----

@operator("scalar_tensor", "full_like", "full")
def full(w, name, out, *arguments, **_):
    return w.constant(arguments[0] if name == "scalar_tensor" else arguments[1], out.dtype, out.shape)


@operator("zeros", "zeros_like", "empty_permuted", "new_zeros", "empty", "empty_like")
def zeros(w, name, out, *_, **__):
    return w.constant(0, out.dtype, out.shape)


@operator("ones", "ones_like")
def ones(w, name, out, *_, **__):
    return w.constant(1, out.dtype, out.shape)


@operator("arange")
def arange(w, name, out, *arguments, **_):
    begin, step = (arguments[0], arguments[2] if len(arguments) > 2 else 1) if len(arguments) > 1 else (0, 1)
    found = w.iota(out.shape, 0, out.dtype)
    if step != 1:
        found = w.elementwise("multiply", out.dtype, out.shape, found, step)
    return found if begin == 0 else w.elementwise("add", out.dtype, out.shape, found, begin)


# ---- shapes ----

@operator("view", "reshape", "_unsafe_view", "unsqueeze", "squeeze")
def reshape(w, name, out, x, *_):
    return w.reshape(x, out.shape)


@operator("flip")
def flip(w, name, out, x, dimensions):
    dimensions = [d % len(x.shape) for d in dimensions]
    return w.write("reverse", out.shape, out.dtype, [x], f"dimensions={numbers(dimensions)}")


@operator("expand")
def expand(w, name, out, x, *_, **__):
    return w.broadcast(x, out.shape)


@operator("broadcast_in_dim")
def broadcast_in_dim(w, name, out, x, shape, dimensions):
    kept = [k for k, d in enumerate(dimensions) if x.shape[k] == shape[d]]
    x = w.reshape(x, [x.shape[k] for k in kept])
    return w.broadcast_in(x, out.shape, [dimensions[k] for k in kept])


@operator("permute")
def permute(w, name, out, x, order):
    return w.transpose(x, [d % len(order) for d in order])


@operator("t")
def matrix_transpose(w, name, out, x):
    return w.transpose(x, list(range(len(x.shape)))[::-1])


@operator("transpose")
def transpose(w, name, out, x, a, b):
    order = list(range(len(x.shape)))
    order[a], order[b] = order[b], order[a]
    return w.transpose(x, order)


@operator("slice")
def cut(w, name, out, x, dimension=0, begin=None, end=None, step=1):
    size = x.shape[dimension]
    begin, end, _ = slice(begin, end, step).indices(size)
    begins, ends, steps = [0] * len(x.shape), list(x.shape), [1] * len(x.shape)
    begins[dimension], ends[dimension], steps[dimension] = begin, max(begin, end), step
    return w.slice(x, begins, ends, steps)


@operator("select")
def select(w, name, out, x, dimension, index):
    index %= x.shape[dimension]
    return w.reshape(cut(w, name, out, x, dimension, index, index + 1), out.shape)


@operator("split_with_sizes", "split")
def split(w, name, out, x, sizes, dimension=0):
    if isinstance(sizes, int):
        sizes = [min(sizes, x.shape[dimension] - at) for at in range(0, x.shape[dimension], sizes)]
    found, at = [], 0
    for size in sizes:
        found.append(cut(w, name, None, x, dimension, at, at + size))
        at += size
    return found


@operator("cat")
def concatenate(w, name, out, values, dimension=0):
    values = [w.convert(value, out.dtype) for value in values if value.shape != (0,) or len(out.shape) == 1]
    if len(values) == 1:
        return values[0]
    return w.write("concatenate", out.shape, out.dtype, values, f"dimensions={{{dimension % len(out.shape)}}}")


@operator("constant_pad_nd")
def pad(w, name, out, x, amounts, value=0):
    rows = ["0_0"] * len(x.shape)
    for k in range(len(amounts) // 2):
        rows[len(rows) - 1 - k] = f"{amounts[2 * k]}_{amounts[2 * k + 1]}"
    return w.write("pad", out.shape, out.dtype, [x, w.constant(value, x.dtype)], f"padding={'x'.join(rows)}")


@operator("slice_scatter")
def slice_scatter(w, name, out, x, y, dimension=0, begin=None, end=None, step=1):
    dimension %= len(x.shape)
    begin, end, _ = slice(begin, end, step).indices(x.shape[dimension])
    if step != 1:  # y between gaps, chosen where y has an element
        count = y.shape[dimension]
        rest = x.shape[dimension] - begin - (count - 1) * step - 1
        rows = "x".join(f"{begin}_{rest}_{step - 1}" if d == dimension else "0_0_0" for d in range(len(x.shape)))
        spread = w.write("pad", x.shape, y.dtype, [y, w.constant(0, y.dtype)], f"padding={rows}")
        places = w.iota(x.shape, dimension, torch.int64)
        offset = w.elementwise("subtract", torch.int64, x.shape, places, begin)
        is_hit = w.elementwise("compare", torch.int64, x.shape,
                               w.elementwise("remainder", torch.int64, x.shape, offset, step), 0,
                               attributes="direction=EQ", result=torch.bool)
        is_inside = [w.elementwise("compare", torch.int64, x.shape, places, limit,
                                   attributes=f"direction={direction}", result=torch.bool)
                     for direction, limit in (("GE", begin), ("LT", end))]
        for condition in is_inside:
            is_hit = w.elementwise("and", torch.bool, x.shape, is_hit, condition)
        return w.select(is_hit, spread, x, out.dtype, out.shape)
    starts = [w.constant(begin if d == dimension else 0, torch.int32) for d in range(len(x.shape))]
    return w.write("dynamic-update-slice", out.shape, out.dtype, [x, y, *starts])


# ---- reductions and products ----

@operator("sum")
def total(w, name, out, x, dimensions=(), keep=False, **_):
    return w.reduce(w.convert(x, out.dtype), dimensions or (), keep=keep)


@operator("mean")
def mean(w, name, out, x, dimensions=(), keep=False, **_):
    found = w.reduce(w.convert(x, out.dtype), dimensions or (), keep=keep)
    return w.elementwise("divide", out.dtype, out.shape, found, math.prod(x.shape) / max(math.prod(out.shape), 1))


@operator("amax", "amin")
def extreme(w, name, out, x, dimensions=(), keep=False):
    return w.reduce(x, dimensions, {"amax": "maximum", "amin": "minimum"}[name], keep)


@operator("prod")
def product(w, name, out, x, dimension=None, keep=False, **_):
    return w.reduce(w.convert(x, out.dtype), () if dimension is None else (dimension,), "multiply", keep)


@operator("any", "all")
def any_of(w, name, out, x, dimension=None, keep=False):
    opcode = {"any": "or", "all": "and"}[name]
    return w.reduce(w.convert(x, torch.bool), () if dimension is None else (dimension,), opcode, keep)


@operator("var")
def variance(w, name, out, x, dimensions=None, correction=1, keepdim=False, **_):
    rank = len(x.shape)
    dimensions = sorted(d % rank for d in dimensions or range(rank))
    count = math.prod(x.shape[d] for d in dimensions)
    average = w.elementwise("divide", x.dtype, tuple(1 if d in dimensions else n for d, n in enumerate(x.shape)),
                            w.reduce(x, dimensions, keep=True), count)
    centred = w.elementwise("subtract", x.dtype, x.shape, x, average)
    squares = w.reduce(w.elementwise("multiply", x.dtype, x.shape, centred, centred), dimensions, keep=keepdim)
    return w.elementwise("divide", out.dtype, out.shape, squares, count - correction)


@operator("mm")
def matrix_product(w, name, out, a, b):
    return w.dot(a, b, [], [(1, 0)])


@operator("bmm")
def batched_product(w, name, out, a, b):
    return w.dot(a, b, [(0, 0)], [(2, 1)])


@operator("addmm")
def add_product(w, name, out, c, a, b, **_):
    return w.elementwise("add", out.dtype, out.shape, c, w.dot(a, b, [], [(1, 0)]))


# ---- indices ----

@operator("embedding")
def embedding(w, name, out, table, indices, *_, **__):
    at = len(indices.shape)
    return w.write("gather", out.shape, out.dtype, [table, indices],
                   f"offset_dims={{{at}}}, collapsed_slice_dims={{0}}, start_index_map={{0}}, index_vector_dim={at}, "
                   f"slice_sizes={{1,{table.shape[1]}}}")


# ---- convolutions of one to three dimensions ----

def each(value, count):
    """One number for each of the dimensions of a window."""
    return list(value) * (count // len(value)) if isinstance(value, (list, tuple)) else [value] * count


def window(sizes, strides, padding, input_dilation=(1,), kernel_dilation=(1,)):
    text = f"size={'x'.join(map(str, sizes))}"
    rows = (("stride", strides), ("lhs_dilate", input_dilation), ("rhs_dilate", kernel_dilation))
    text += "".join(f" {name}={'x'.join(map(str, values))}" for name, values in rows if any(v != 1 for v in values))
    if any(low or high for low, high in padding):
        text += f" pad={'x'.join(f'{low}_{high}' for low, high in padding)}"
    return f"window={{{text}}}"


def labels(count, x, kernel, result):
    """The names of all dimensions: `bf`, for example, then those of the window."""
    places = "012"[:count]
    return f"dim_labels={x}{places}_{kernel}{places}->{result}{places}"


def groups_of(count, kind="feature"):
    return f", {kind}_group_count={count}" if count > 1 else ""


def swap_channels(w, kernel, groups):
    """The kernel of each group with its input and output channels exchanged: [O, I / groups, ...] as [I, O / groups,
    ...]."""
    outputs, inputs, *sizes = kernel.shape
    rest = range(3, 3 + len(sizes))
    split = w.reshape(kernel, [groups, outputs // groups, inputs, *sizes])
    return w.reshape(w.transpose(split, [0, 2, 1, *rest]), [groups * inputs, outputs // groups, *sizes])


class Geometry:
    """The window of a convolution from x to its result, of `sizes` of the kernel."""

    def __init__(self, sizes, stride, padding, dilation, groups):
        self.sizes, self.count, self.groups = sizes, len(sizes), groups
        self.stride, self.padding = each(stride, self.count), each(padding, self.count)
        self.dilation, self.ones = each(dilation, self.count), [1] * self.count
        self.reach = [(k - 1) * d for k, d in zip(sizes, self.dilation)]  # from the first to the last place of a window

    def rest(self, x, result):
        """Returns the number of elements of x after the last window in each dimension."""
        return [x[2 + d] + 2 * self.padding[d] - 1 - self.reach[d] - self.stride[d] * (result[2 + d] - 1)
                for d in range(self.count)]

    def apply(self, w, x, kernel, shape):
        shaped = window(self.sizes, self.stride, [(p, p) for p in self.padding], self.ones, self.dilation)
        return w.write("convolution", shape, x.dtype, [x, kernel],
                       f"{shaped}, {labels(self.count, 'bf', 'oi', 'bf')}{groups_of(self.groups)}")

    def gradient_of_input(self, w, gradient, kernel, shape):
        swapped = swap_channels(w, kernel, self.groups)
        turned = w.write("reverse", swapped.shape, kernel.dtype, [swapped],
                         f"dimensions={numbers(2 + d for d in range(self.count))}")
        edges = [(reach - p, reach - p + rest) for reach, p, rest in
                 zip(self.reach, self.padding, self.rest(shape, gradient.shape))]
        shaped = window(self.sizes, self.ones, edges, self.stride, self.dilation)
        return w.write("convolution", shape, gradient.dtype, [gradient, turned],
                       f"{shaped}, {labels(self.count, 'bf', 'oi', 'bf')}{groups_of(self.groups)}")

    def gradient_of_kernel(self, w, x, gradient, kernel):
        edges = [(p, p - rest) for p, rest in zip(self.padding, self.rest(x.shape, gradient.shape))]
        shaped = window(gradient.shape[2:], self.dilation, edges, self.ones, self.stride)
        return w.write("convolution", kernel.shape, kernel.dtype, [x, gradient],
                       f"{shaped}, {labels(self.count, 'fb', 'io', 'fb')}{groups_of(self.groups, 'batch')}")


@operator("convolution")
def convolution(w, name, out, x, kernel, bias, stride, padding, dilation, transposed, _, groups):
    """A transposed one is the gradient of a convolution by its input."""
    shape = Geometry(kernel.shape[2:], stride, padding, dilation, groups)
    found = (shape.gradient_of_input if transposed else shape.apply)(w, x, kernel, out.shape)
    if bias is None:
        return found
    return w.elementwise("add", out.dtype, out.shape, found, w.broadcast_in(bias, out.shape, [1]))


@operator("convolution_backward")
def convolution_backward(w, name, out, grad, x, kernel, bias_sizes, stride, padding, dilation, transposed, _, groups,
                         wanted):
    shape = Geometry(kernel.shape[2:], stride, padding, dilation, groups)
    found = [None, None, None]
    if wanted[0]:
        found[0] = (shape.apply(w, grad, kernel, x.shape) if transposed
                    else shape.gradient_of_input(w, grad, kernel, x.shape))
    if wanted[1]:
        pair = (grad, x) if transposed else (x, grad)
        found[1] = shape.gradient_of_kernel(w, *pair, kernel)
    if wanted[2]:
        found[2] = w.reduce(grad, [0, *(2 + d for d in range(shape.count))])
    return found
