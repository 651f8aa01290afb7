"""Random modules with random shardings over eight devices, by seed.

Every parameter has a sharding, and some other values. Shardings are over the axes of a mesh of
2 x 2 x 2 in any order, some with copies.
"""

import random

DEVICES = 8
SHAPES = [[16, 8], [8, 24], [4, 8, 16], [8, 8], [16, 8, 4], [6, 8, 8], [12, 10], [8], [6, 14]]


def shape_text(sizes):
    return f"f32[{','.join(map(str, sizes))}]"


class RandomModule:
    def __init__(self, seed, steps):
        self.random = random.Random(seed)
        self.lines = ["  zero = f32[] constant(0)", "  origin = s32[] constant(0)"]
        self.values, self.count = [], 0
        for number in range(self.random.randint(2, 4)):
            self.emit(self.random.choice(SHAPES), f"parameter({number})", annotated=True)
        makers = [getattr(self, name) for name in sorted(dir(self)) if name.startswith("make_")]
        for _ in range(steps):
            name, sizes = self.random.choice(self.values[-6:])
            self.random.choice(makers)(name, list(sizes))

    def sharding(self, sizes):
        axes, owned, tiles = self.random.sample(range(3), 3), [], [1] * len(sizes)
        for axis in axes:
            if sizes and self.random.random() < 0.6:
                d = self.random.randrange(len(sizes))
                if sizes[d] >= 2 * tiles[d]:
                    owned.append((d, axis))
                    tiles[d] *= 2
        if not owned:
            return "{replicated}"
        order = [axis for d in range(len(sizes)) for owner, axis in owned if owner == d]
        rest = [axis for axis in range(3) if axis not in order]
        copies = f",{2 ** len(rest)}" if rest else ""
        order = ",".join(map(str, order + rest))
        kind = " last_tile_dim_replicate" if rest else ""
        return f"{{devices=[{','.join(map(str, tiles))}{copies}]<=[2,2,2]T({order}){kind}}}"

    def emit(self, sizes, text, annotated=None):
        if max(sizes + [1]) > 256 or len(sizes) > 4:
            return
        self.count += 1
        annotated = self.random.random() < 0.12 if annotated is None else annotated
        sharding = f", sharding={self.sharding(sizes)}" if annotated else ""
        self.lines.append(f"  v{self.count} = {shape_text(sizes)} {text}{sharding}")
        self.values.append((f"v{self.count}", list(sizes)))

    def other(self, fits):
        found = [name for name, sizes in self.values if fits(sizes)]
        return self.random.choice(found) if found else None

    def make_unary(self, name, sizes):
        self.emit(sizes, f"{self.random.choice(['tanh', 'copy', 'negate'])}({name})")

    def make_binary(self, name, sizes):
        other = self.other(lambda found: found == sizes)
        self.emit(sizes, f"{self.random.choice(['add', 'multiply', 'power'])}({name}, {other})")

    def make_broadcast(self, name, sizes):
        d = self.random.randrange(len(sizes) + 1)
        kept = ",".join(str(k if k < d else k + 1) for k in range(len(sizes)))
        self.emit(sizes[:d] + [self.random.choice([2, 4, 8])] + sizes[d:], f"broadcast({name}), dimensions={{{kept}}}")

    def make_join(self, name, sizes):
        if len(sizes) > 1:
            d = self.random.randrange(len(sizes) - 1)
            self.emit(sizes[:d] + [sizes[d] * sizes[d + 1]] + sizes[d + 2 :], f"reshape({name})")

    def make_split(self, name, sizes):
        if sizes:
            d = self.random.randrange(len(sizes))
            part = self.random.choice([size for size in (2, 3, 4, 6, 8, 1) if sizes[d] % size == 0])
            self.emit(sizes[:d] + [part, sizes[d] // part] + sizes[d + 1 :], f"reshape({name})")

    def make_transpose(self, name, sizes):
        order = self.random.sample(range(len(sizes)), len(sizes))
        if len(sizes) > 1:
            self.emit([sizes[k] for k in order], f"transpose({name}), dimensions={{{','.join(map(str, order))}}}")

    def make_reverse(self, name, sizes):
        if sizes:
            self.emit(sizes, f"reverse({name}), dimensions={{{self.random.randrange(len(sizes))}}}")

    def make_pad(self, name, sizes):
        if sizes:
            d = self.random.randrange(len(sizes))
            amounts = "x".join("1_1" if k == d else "0_0" for k in range(len(sizes)))
            self.emit(sizes[:d] + [sizes[d] + 2] + sizes[d + 1 :], f"pad({name}, zero), padding={amounts}")

    def make_slice(self, name, sizes):
        if sizes:
            d = self.random.randrange(len(sizes))
            smaller = sizes[:d] + [max(1, sizes[d] // 2)] + sizes[d + 1 :]
            ranges = ", ".join(f"[0:{size}]" for size in smaller)
            starts = ", ".join(["origin"] * len(sizes))
            self.emit(smaller, f"slice({name}), slice={{{ranges}}}")
            self.emit(
                smaller, f"dynamic-slice({name}, {starts}), dynamic_slice_sizes={{{','.join(map(str, smaller))}}}"
            )

    def make_concatenate(self, name, sizes):
        if sizes:
            d = self.random.randrange(len(sizes))
            other = self.other(lambda found: found == sizes)
            self.emit(sizes[:d] + [2 * sizes[d]] + sizes[d + 1 :], f"concatenate({name}, {other}), dimensions={{{d}}}")

    def make_dot(self, name, sizes):
        pairs = [
            (other, found, i, j)
            for other, found in self.values
            for i in range(len(sizes))
            for j in range(len(found))
            if found[j] == sizes[i]
        ]
        if not pairs:
            return
        other, found, i, j = self.random.choice(pairs)
        batch = next(((a, b) for a in range(len(sizes)) for b in range(len(found)) if a != i and b != j and sizes[a]
                      == found[b]), None)
        batch = batch if self.random.random() < 0.5 else None
        left = [k for k in range(len(sizes)) if k != i and (not batch or k != batch[0])]
        right = [k for k in range(len(found)) if k != j and (not batch or k != batch[1])]
        result = ([sizes[batch[0]]] if batch else []) + [sizes[k] for k in left] + [found[k] for k in right]
        batch_text = f", lhs_batch_dims={{{batch[0]}}}, rhs_batch_dims={{{batch[1]}}}" if batch else ""
        self.emit(
            result, f"dot({name}, {other}){batch_text}, lhs_contracting_dims={{{i}}}, rhs_contracting_dims={{{j}}}"
        )

    def make_reduce(self, name, sizes):
        if sizes:
            d = self.random.randrange(len(sizes))
            self.emit(sizes[:d] + sizes[d + 1 :], f"reduce({name}, zero), dimensions={{{d}}}, to_apply=sum")

    def make_sort(self, name, sizes):
        if sizes:
            self.emit(sizes, f"sort({name}), dimensions={{{self.random.randrange(len(sizes))}}}, to_apply=less")

    def make_lookup(self, name, sizes):
        if len(sizes) < 2:
            return
        self.count += 1
        index, rows = f"i{self.count}", self.random.choice([4, 8, 16])
        self.lines.append(f"  {index} = s32[{rows}] constant({{{','.join(['1'] * rows)}}})")
        self.lines.append(f"  n{index} = s32[{rows}] negate({index}), sharding={self.sharding([rows])}")
        offsets = ",".join(map(str, range(1, len(sizes))))
        window = ",".join(["1"] + [str(size) for size in sizes[1:]])
        self.emit(
            [rows] + sizes[1:],
            f"gather({name}, n{index}), offset_dims={{{offsets}}}, collapsed_slice_dims={{0}}, "
            f"start_index_map={{0}}, index_vector_dim=1, slice_sizes={{{window}}}",
        )
        updates = self.other(lambda found: found == [rows] + sizes[1:])
        if updates:
            self.emit(
                sizes,
                f"scatter({name}, n{index}, {updates}), update_window_dims={{{offsets}}}, inserted_window_dims={{0}}, "
                f"scatter_dims_to_operand_dims={{0}}, index_vector_dim=1, to_apply=sum",
            )

    def make_tuple(self, name, sizes):
        self.count += 1
        pair = f"({shape_text(sizes)}, {shape_text(sizes)})"
        self.lines.append(f"  t{self.count} = {pair} tuple({name}, {self.other(lambda found: found == sizes)})")
        self.emit(sizes, f"get-tuple-element(t{self.count}), index=0", annotated=False)

    def text(self):
        outputs = self.values[-3:]
        shapes = ", ".join(shape_text(sizes) for _, sizes in outputs)
        root = f"  ROOT out = ({shapes}) tuple({', '.join(name for name, _ in outputs)})"
        return "\n".join(
            ["HloModule random", "sum {", "  p = f32[] parameter(0)", "  q = f32[] parameter(1)"]
            + ["  ROOT s = f32[] add(p, q)", "}", "less {", "  g = f32[] parameter(0)", "  h = f32[] parameter(1)"]
            + ["  ROOT l = pred[] compare(g, h), direction=LT", "}", "ENTRY main {", *self.lines, root, "}", ""]
        )
