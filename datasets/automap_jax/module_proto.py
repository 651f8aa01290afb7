"""Reads the few fields of a serialised HloModuleProto that the exporter needs.

jaxlib ships no Python classes for hlo.proto, so this walks the protobuf wire format itself: a
message is a row of (field number, wire type, value). Field numbers of hlo.proto:
HloModuleProto      computations = 3, entry_computation_id = 6
HloComputationProto instructions = 2, id = 5
HloInstructionProto name = 1, opcode = 2, metadata = 7, parameter_number = 9
OpMetadata          op_name = 2
"""

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


def varint(buffer, at):
    """The base-128 number at `at` and the position after it."""
    value = shift = 0
    while True:
        byte = buffer[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def fields(buffer):
    """Yields (field number, value) of one message; nested messages and strings are memoryviews."""
    at = 0
    while at < len(buffer):
        tag, at = varint(buffer, at)
        wire_type = tag & 7
        if wire_type == VARINT:
            value, at = varint(buffer, at)
        else:
            if wire_type == BYTES:
                size, at = varint(buffer, at)
            else:
                size = {FIXED64: 8, FIXED32: 4}[wire_type]
            value, at = buffer[at : at + size], at + size
        yield tag >> 3, value


def field(buffer, number, default=None):
    """The last value of field `number`, which is the one that counts, or `default`."""
    for found, value in fields(buffer):
        if found == number:
            default = value
    return default


def entry_instructions(module):
    """The serialised instructions of the entry computation of a serialised module."""
    view = memoryview(module)
    entry = field(view, 6, 0)
    for number, computation in fields(view):
        if number == 3 and field(computation, 5, 0) == entry:
            return [value for found, value in fields(computation) if found == 2]
    return []


def count_instructions(module):
    """Number of instructions in all computations of a serialised module."""
    return sum(
        sum(found == 2 for found, _ in fields(computation))
        for number, computation in fields(memoryview(module))
        if number == 3
    )


def parameter_paths(module):
    """Paths of the entry parameters by number: op_name, else the name, made unique as `name#2`."""
    names = {}
    for instruction in entry_instructions(module):
        if bytes(field(instruction, 2, b"")) == b"parameter":
            path = field(field(instruction, 7, b""), 2) or field(instruction, 1)
            names[field(instruction, 9, 0)] = bytes(path).decode()
    paths, seen = [], {}
    for _, name in sorted(names.items()):
        seen[name] = seen.get(name, 0) + 1
        paths.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return paths
