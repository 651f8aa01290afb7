"""Shardings and instructions of HLO text, for comparisons.

canonical() makes values of shardings that are equal if and only if the same devices hold the same
parts; None stands for a replicated array. Module holds the instructions of a text by computation.
"""

import itertools
import re


def closing(text, start):
    """Returns the position after the bracket that closes the one at `start`."""
    depth, quoted = 0, False
    for at in range(start, len(text)):
        character = text[at]
        if character == '"' and text[at - 1] != "\\":
            quoted = not quoted
        elif not quoted and character in "{([":
            depth += 1
        elif not quoted and character in "})]":
            depth -= 1
            if depth == 0:
                return at + 1
    return len(text)


def split_list(text):
    """Splits at the commas outside of brackets."""
    parts, start = [], 0
    at = 0
    while at < len(text):
        if text[at] in "{([":
            at = closing(text, at)
            continue
        if text[at] == ",":
            parts.append(text[start:at].strip())
            start = at + 1
        at += 1
    if text[start:].strip():
        parts.append(text[start:].strip())
    return parts


def device_list(text):
    """Returns sizes and devices of "[2,2]0,1,2,3" or "[2,2]<=[4]T(0)"."""
    head, rest = re.match(r"\[([\d,]*)\]\s*(.*)", text).groups()
    sizes = [int(size) for size in head.split(",")]
    iota = re.match(r"<=\[([\d,]+)\](?:T\(([\d,]+)\))?", rest)
    if not iota:
        return sizes, [int(device) for device in re.match(r"[\d,]+", rest).group(0).rstrip(",").split(",")]
    shape = [int(size) for size in iota.group(1).split(",")]
    order = [int(k) for k in iota.group(2).split(",")] if iota.group(2) else list(range(len(shape)))
    stride = [1] * len(shape)
    for k in reversed(range(len(shape) - 1)):
        stride[k] = stride[k + 1] * shape[k + 1]
    places = itertools.product(*[range(shape[k]) for k in order])
    return sizes, [sum(at * stride[k] for at, k in zip(place, order)) for place in places]


def canonical(text):
    """Returns a comparable value of a sharding; None for a replicated array or for no sharding."""
    if text is None:
        return None
    text = re.sub(r"/\*.*?\*/", "", text.strip())
    text = re.sub(r"metadata=\{(\{[^{}]*\},?\s*)+\}", "", text)
    text = re.sub(r"metadata=\{[^{}]*\}", "", text)
    inner = re.sub(r"shard_(as|like) \d+", "", text[1:-1]).strip()
    if inner.startswith("{"):
        return ("tuple",) + tuple(canonical(part) for part in split_list(inner))
    if inner in ("replicated", "unknown", ""):
        return None if inner or text != "{}" else ("tuple",)
    if inner in ("manual", "unreduced"):
        return (inner,)
    maximal = re.match(r"maximal device=(\d+)", inner)
    if maximal:
        return ("maximal", int(maximal.group(1)))
    tiled = re.match(r"devices=(.*?)(\s+last_tile_dim_replicate)?(\s+last_tile_dims=\{([^}]*)\})?$", inner)
    sizes, devices = device_list(tiled.group(1))
    kinds = [kind.strip() for kind in tiled.group(4).split(",")] if tiled.group(4) else []
    kinds = ["replicated"] if tiled.group(2) else kinds
    rank, holders = len(sizes) - len(kinds), {}
    for device, place in zip(devices, itertools.product(*[range(size) for size in sizes])):
        groups = tuple(at for at, kind in zip(place[rank:], kinds) if kind != "replicated")
        holders.setdefault(place[:rank] + groups, set()).add(device)
    groups = tuple((kind, size) for kind, size in zip(kinds, sizes[rank:]) if kind != "replicated" and size > 1)
    if all(size == 1 for size in sizes[:rank]) and not groups:
        return None
    return ("tiled", tuple(sizes[:rank]), groups,
            tuple(sorted((tile, tuple(sorted(held))) for tile, held in holders.items())))


def is_replicated(value):
    return value is None or (value[:1] == ("tuple",) and all(is_replicated(part) for part in value[1:]))


def same(left, right):
    """Returns whether two canonical shardings are equal; a tuple of replicated arrays equals None."""
    return left == right or (is_replicated(left) and is_replicated(right))


class Instruction:
    def __init__(self, name, opcode, shape, arguments, attributes, is_root, computation):
        self.name, self.opcode, self.shape, self.computation = name, opcode, shape, computation
        self.arguments, self.attributes, self.is_root = arguments, attributes, is_root
        names = re.findall(r"%([\w.\-]+)", arguments)
        self.operands = names or [part.split()[-1] for part in split_list(arguments)]
        found = re.search(r"(?<!\w)sharding=", attributes)
        self.sharding = attributes[found.end() : closing(attributes, found.end())] if found else None


class Module:
    """The instructions of a printed module: computations[name] is a list in the order of the text."""

    def __init__(self, text):
        self.computations, self.entry = {}, None
        computation = None
        for line in text.split("\n"):
            line = re.sub(r"/\*.*?\*/", "", line)
            head = re.match(r"^(ENTRY\s+)?%?([\w.\-]+)\s*(\(.*)?\{\s*$", line)
            if head and "=" not in line.split("(")[0]:
                computation = head.group(2)
                self.computations[computation] = []
                self.entry = computation if head.group(1) else self.entry
                continue
            found = re.match(r"^\s*(ROOT\s+)?%?([\w.\-]+)\s*=\s*(.*)$", line)
            if found and computation:
                self._add(computation, *found.groups())

    def _add(self, computation, is_root, name, rest):
        end = closing(rest, 0) if rest.startswith("(") else rest.find(" ")
        opcode = re.match(r"\s*([\w\-]+)\(", rest[end:]) if end > 0 else None
        if not opcode:
            return
        start = end + opcode.end() - 1
        behind = closing(rest, start)
        self.computations[computation].append(
            Instruction(name, opcode.group(1), rest[:end], rest[start + 1 : behind - 1], rest[behind:], bool(is_root),
                        computation)
        )

    def find(self, name):
        """Returns the first instruction of that name, or None."""
        return next((each for each in self.all() if each.name == name), None)

    def all(self):
        return [each for instructions in self.computations.values() for each in instructions]

    def root(self, computation):
        instructions = self.computations[computation]
        return next((each for each in instructions if each.is_root), instructions[-1])

    def parameter(self, computation, number):
        return next(e for e in self.computations[computation] if e.opcode == "parameter" and e.arguments == str(number))

    def operand(self, instruction, number):
        return next(e for e in self.computations[instruction.computation] if e.name == instruction.operands[number])
