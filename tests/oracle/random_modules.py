"""Random modules of f32[4,4] values as HLO text, with loops, branches, tuples, moves and conversions.

    random_modules.module(7)    the text of the seventh; equal numbers give equal texts
"""

import random

PRODUCT = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
SUM = "sum { a = f32[] parameter(0)\n b = f32[] parameter(1)\n ROOT s = f32[] add(a, b) }\n"
PAIR = "(f32[4,4], f32[4,4])"
MOST_DEPTH = 3
# The lines of an operator: @ is a value that is there, $0 its result, $1 and $2 further names.
OPERATORS = [
    [f"$0 = f32[4,4] dot(@, @), {PRODUCT}"],
    [f"$0 = f32[4,4] dot(@, @), {PRODUCT}"],
    ["$1 = bf16[4,4] convert(@)", f"$0 = f32[4,4] dot($1, $1), {PRODUCT}"],
    ["$1 = f32[1,4,4] reshape(@)", "$2 = f32[1,4,4] reshape(@)",
     "$3 = f32[1,4,4] convolution($1, $2), window={size=1}, dim_labels=b0f_0io->b0f", "$0 = f32[4,4] reshape($3)"],
    ["$0 = f32[4,4] add(@, @)"],
    ["$0 = f32[4,4] multiply(@, @)"],
    ["$0 = f32[4,4] tanh(@)"],
    ["$0 = f32[4,4] exponential(@)"],
    ["$1 = pred[4,4] compare(@, @), direction=GT", "$0 = f32[4,4] select($1, @, @)"],
    ["$0 = f32[4,4] transpose(@), dimensions={1,0}"],
    ["$1 = f32[16] reshape(@)", "$0 = f32[4,4] reshape($1)"],
    ["$1 = f32[2,4] slice(@), slice={[0:2], [0:4]}", "$2 = f32[2,4] slice(@), slice={[2:4], [0:4]}",
     "$0 = f32[4,4] concatenate($1, $2), dimensions={0}"],
    ["$1 = f32[1,4] slice(@), slice={[0:1], [0:4]}", "$2 = s32[] constant(1)",
     "$0 = f32[4,4] dynamic-update-slice(@, $1, $2, $2)"],
    ["$1 = f32[] constant(0.3)", "$2 = f32[5,4] pad(@, $1), padding=1_0x0_0",
     "$0 = f32[4,4] slice($2), slice={[0:4], [0:4]}"],
    ["$1 = s32[4] iota(), iota_dimension=0", "$0 = f32[4,4] gather(@, $1), offset_dims={1}, "
     "collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,4}"],
    ["$0 = f32[4,4] opt-barrier(@)"],
    [f"$1 = {PAIR} tuple(@, @)", f"$2 = {PAIR} opt-barrier($1)", "$0 = f32[4,4] get-tuple-element($2), index=1"],
    [f"$1 = {PAIR} tuple(@, @)", f"$2 = ({PAIR}, f32[4,4]) tuple($1, @)",
     f"$3 = {PAIR} get-tuple-element($2), index=0", "$0 = f32[4,4] get-tuple-element($3), index=0"],
    ["$1 = f32[] constant(0)", "$2 = f32[4] reduce(@, $1), dimensions={1}, to_apply=sum",
     "$0 = f32[4,4] broadcast($2), dimensions={0}"],
    ["$1 = f32[] constant(0.1)", "$0 = f32[4,4] broadcast($1), dimensions={}"],
    *[[f"$1 = {kind}[4,4] convert(@)", "$0 = f32[4,4] convert($1)"] for kind in ("bf16", "f16", "f64", "s32", "pred")],
    ['$0 = f32[4,4] custom-call(@), custom_call_target="mine"'],
    "loop", "branches"]


class Writer:
    def __init__(self, seed):
        self.random, self.count, self.computations = random.Random(seed), 0, [SUM]

    def name(self):
        self.count += 1
        return f"v{self.count}"

    def value(self, values):
        return self.random.choice(values)

    def computation(self, lines, values, depth, root):
        """Writes a computation that continues with random operators; root(values) is its last line."""
        name = self.name()
        self.fill(lines, values, depth, self.random.randrange(1, 7))
        self.computations.append(f"{name} {{\n " + "\n ".join([*lines, root(values)]) + "\n}\n")
        return name

    def loop(self, lines, values, depth):
        count, c, n, i, one = self.random.randrange(1, 4), *(self.name() for _ in range(4))
        kind = "(" + ", ".join(["s32[]"] + ["f32[4,4]"] * count) + ")"
        carried = [self.name() for _ in range(count)]
        start = [f"{c} = {kind} parameter(0)", f"{i} = s32[] get-tuple-element({c}), index=0"]
        inside = [f"{name} = f32[4,4] get-tuple-element({c}), index={k + 1}" for k, name in enumerate(carried)]
        step = [f"{one} = s32[] constant(1)", f"{n} = s32[] add({i}, {one})"]
        body = self.computation([*start, *inside, *step], list(carried), depth + 1, lambda values:
                                f"ROOT r{c} = {kind} tuple({', '.join([n, *self.random.choices(values, k=count)])})")
        condition = f"c{body}"
        self.computations.append(f"{condition} {{\n " + "\n ".join([
            *start, f"{one} = s32[] constant(2)", f"ROOT lt = pred[] compare({i}, {one}), direction=LT"]) + "\n}\n")
        zero, state, loop, result = (self.name() for _ in range(4))
        lines += [f"{zero} = s32[] constant(0)",
                  f"{state} = {kind} tuple({', '.join([zero, *self.random.choices(values, k=count)])})",
                  f"{loop} = {kind} while({state}), condition={condition}, body={body}",
                  f"{result} = f32[4,4] get-tuple-element({loop}), index={self.random.randrange(1, count + 1)}"]
        return result

    def branches(self, lines, values, depth):
        takes_pair, gives_pair = self.random.random() < 0.5, self.random.random() < 0.5
        kind = PAIR if gives_pair else "f32[4,4]"

        def root(values):
            first, second = self.value(values), self.value(values)
            result = f"tuple({first}, {second})" if gives_pair else f"dot({first}, {second}), {PRODUCT}"
            return f"ROOT r = {kind} {result}"

        names = []
        for _ in range(2):
            c, a, b = (self.name() for _ in range(3))
            start = [f"{c} = {PAIR if takes_pair else 'f32[4,4]'} parameter(0)"]
            parts = [f"{part} = f32[4,4] get-tuple-element({c}), index={k}" for k, part in enumerate((a, b))]
            inside = [a, b] if takes_pair else [c]
            names.append(self.computation(start + parts * takes_pair, inside, depth + 1, root))
        which, pair, chosen, result = (self.name() for _ in range(4))
        lines += [f"{which} = pred[] constant(true)",
                  f"{pair} = {PAIR} tuple({self.value(values)}, {self.value(values)})"]
        operands = [pair, pair] if takes_pair else self.random.choices(values, k=2)
        lines += [f"{chosen} = {kind} conditional({which}, {', '.join(operands)}), true_computation={names[0]}, "
                  f"false_computation={names[1]}",
                  f"{result} = f32[4,4] {'get-tuple-element' if gives_pair else 'copy'}({chosen})"
                  + ", index=0" * gives_pair]
        return result

    def fill(self, lines, values, depth, count):
        for operator in self.random.choices(OPERATORS, k=count):
            if isinstance(operator, str):
                if depth < MOST_DEPTH:
                    values.append(getattr(self, operator)(lines, values, depth))
                continue
            names = [self.name() for _ in range(4)]
            for line in operator:
                for k, name in enumerate(names):
                    line = line.replace(f"${k}", name)
                while "@" in line:
                    line = line.replace("@", self.value(values), 1)
                lines.append(line)
            values.append(names[0])


def module(seed):
    """A training step: parameter 0 is the weight, the last output is the loss."""
    writer = Writer(seed)
    lines, values = [f"p{k} = f32[4,4] parameter({k})" for k in range(3)], ["p0", "p1", "p2"]
    writer.fill(lines, values, 0, writer.random.randrange(4, 30))
    lines += ["zero = f32[] constant(0)",
              f"loss = f32[] reduce({values[-1]}, zero), dimensions={{0,1}}, to_apply=sum",
              f"new = f32[4,4] subtract(p0, {writer.value(values)})",
              f"ROOT out = (f32[4,4], f32[4,4], f32[]) tuple(new, {writer.value(values)}, loss)"]
    return "HloModule random\n" + "".join(writer.computations) + "ENTRY main {\n " + "\n ".join(lines) + "\n}\n"
