"""Common parts of the tests against jaxlib and protobuf: our schema as Python messages, automap as a
converter, and the comparison of two modules instruction by instruction."""

import ctypes
import os
import pathlib
import subprocess
import sys

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

SOURCE = pathlib.Path(__file__).resolve().parents[2]
AUTOMAP = os.environ.get("AUTOMAP")


def load_messages(folder, *names):
    """Python's classes of the messages of our schema."""
    compiled = folder / "schema.bin"
    subprocess.run(["protoc", f"--proto_path={SOURCE}", f"--descriptor_set_out={compiled}",
                    str(SOURCE / "ir" / "hlo.proto")], check=True)
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(compiled.read_bytes()).file:
        pool.Add(file)
    return [message_factory.GetMessageClass(pool.FindMessageTypeByName("hlo." + name)) for name in names]


def convert(source, target, warnings=None):
    """`automap convert`, which must succeed; the bytes written. Its warnings go to the list."""
    done = subprocess.run([AUTOMAP, "convert", source, target], capture_output=True, text=True)
    assert done.returncode == 0, f"convert {source} {target}: {done.stdout}{done.stderr}"
    if warnings is not None:
        warnings += done.stderr.splitlines()
    return target.read_bytes()


def library_or_skip():
    """The shared library that $AUTOMAP_LIBRARY names; ends the test as skipped (77) where it is not built."""
    path = os.environ.get("AUTOMAP_LIBRARY", "")
    if not os.path.exists(path):
        print("skipped: no libautomap.so")
        sys.exit(77)
    return Library(path)


class Library:
    """The hash of a module, by the shared library: a process for each would take longer."""

    def __init__(self, path):
        self.library = ctypes.CDLL(str(path))
        self.library.am_module_sha256.restype = ctypes.c_char_p
        self.library.am_module_sha256.argtypes = [ctypes.c_void_p]
        self.library.am_module_free.argtypes = [ctypes.c_void_p]
        self.library.am_module_free.restype = None

    def sha256(self, path):
        module = ctypes.c_void_p()
        status = self.library.am_module_read(ctypes.byref(module), str(path).encode(), None, None)
        assert status == 0, f"{path}: status {status}"
        found = self.library.am_module_sha256(module).decode()
        self.library.am_module_free(module)
        return found


def without_empty_parts(message):
    """Drops messages in which nothing is set: their presence means nothing."""
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for part in value if hasattr(value, "__len__") else [value]:
            without_empty_parts(part)
        if not hasattr(value, "__len__") and not value.ListFields():
            message.ClearField(field.name)


def plain_shape(shape):
    shape.layout.tail_padding_alignment_in_elements = 0
    if not any(shape.is_dynamic_dimension):
        del shape.is_dynamic_dimension[:]
    for element in shape.tuple_shapes:
        plain_shape(element)


def plain_literal(literal):
    plain_shape(literal.shape)
    for element in literal.tuple_literals:
        plain_literal(element)


def comparable(module, metadata):
    """Computations by name: root, kind, thread, schedule and instructions, ids replaced by names, implied values
    dropped."""
    computations = {computation.id: computation.name for computation in module.computations}
    result = {}
    for computation in module.computations:
        names = {instruction.id: instruction.name for instruction in computation.instructions}
        rows = []
        for instruction in computation.instructions:
            operands = [names[operand] for operand in instruction.operand_ids]
            control = sorted(names[operand] for operand in instruction.control_predecessor_ids)
            called = [computations[called] for called in instruction.called_computation_ids]
            for field in ["id", "operand_ids", "control_predecessor_ids", "called_computation_ids"
                          ] + ([] if metadata else ["metadata"]):
                instruction.ClearField(field)
            instruction.metadata.stack_frame_id = 0
            instruction.feature_group_count = max(instruction.feature_group_count, 1)
            instruction.batch_group_count = max(instruction.batch_group_count, 1)
            if not any(instruction.precision_config.operand_precision):
                del instruction.precision_config.operand_precision[:]
            payload = instruction.metadata.metadata_payload
            if payload.WhichOneof("payload_source") == "id":
                payload.value = module.payloads[payload.id]
            plain_literal(instruction.literal)
            for shape in [instruction.shape, instruction.outfeed_shape, *instruction.operand_shapes_with_layout]:
                plain_shape(shape)
            without_empty_parts(instruction)
            rows.append((instruction.name, operands, control, called,
                         text_format.MessageToString(instruction)))
        sequence = module.schedule.sequences.get(computation.id)
        order = [names[instruction] for instruction in sequence.instruction_ids] if sequence else []
        result[computation.name] = (names[computation.root_id], computation.is_fusion_computation,
                                    computation.execution_thread.replace("main", ""), order, rows)
    return result


def check_same(what, left, right, metadata, ordered=True):
    """Computations in any order, since jaxlib's text may have comparators of sorts last where its binary
    has them first; instructions in the order of the file, except where jaxlib has another order in its text: of
    hand-written text and of scheduled modules."""
    order = list if ordered else sorted
    left, right = comparable(left, metadata), comparable(right, metadata)
    assert sorted(left) == sorted(right), f"{what}: the computations are {list(left)} and {list(right)}"
    for name in left:
        for a, b in zip(order(left[name][-1]), order(right[name][-1])):
            assert a == b, f"{what}: {name}:\n{a[1:4]}\n{a[4]}\nis not\n{b[1:4]}\n{b[4]}"
        assert left[name][:-1] == right[name][:-1], f"{what}: {name}: {left[name][:-1]} is not {right[name][:-1]}"
        assert len(left[name][-1]) == len(right[name][-1]), f"{what}: {name}: other instructions"
