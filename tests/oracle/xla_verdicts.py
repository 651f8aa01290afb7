"""XLA's verdict on HLO texts: its parser, then its verifier.

HloVerifier runs when a module takes the place of another after scheduling. A module that passes is
refused later, since it has no schedule. The entry computation of the other module has no parameters, so
that an entry with the right signature is added, which calls the entry of the text. XLA ends the process on
some wrong modules and does not end on others: a fork gives the verdicts, and a new fork goes on after the
text that stopped it.
"""

import concurrent.futures
import os
import pathlib
import pickle
import re
import select
import signal
import subprocess
import tempfile
import typing

import jax
import numpy as np
from jax.extend.xla import PipelineStage, register_hlo_module_transformation
from hlo_messages import load_messages
from jaxlib import _hlo


LONGEST = 20  # seconds without a verdict


class Verdict(typing.NamedTuple):
    """`stage` is "parser" or "verifier" where that one refuses, "ended" where XLA ended the process or did
    not answer in time, else ""."""
    stage: str
    message: str

    @property
    def accepted(self):
        return not self.stage


def with_plain_entry(module):
    """Adds an entry computation without parameters, which calls the present one and returns f32[]."""
    called = next(computation for computation in module.computations if computation.id == module.entry_computation_id)
    entry = module.computations.add()
    entry.id = max(computation.id for computation in module.computations) + 1
    entry.name = "entry_of_the_verdict"
    parameters = sorted((instruction for instruction in called.instructions if instruction.opcode == "parameter"),
                        key=lambda instruction: instruction.parameter_number)
    root, = (instruction for instruction in called.instructions if instruction.id == called.root_id)

    def add(opcode, shape, **fields):
        count = len(entry.instructions)
        instruction = entry.instructions.add(id=entry.id << 32 | count, name=f"{opcode}.verdict.{count}",
                                             opcode=opcode, **fields)
        if shape is None:
            instruction.shape.element_type = 11  # f32[]
            instruction.shape.layout.SetInParent()
        else:
            instruction.shape.CopyFrom(shape)
        return instruction

    arguments = [add("custom-call", parameter.shape, custom_call_target="argument") for parameter in parameters]
    add("call", root.shape, operand_ids=[argument.id for argument in arguments], called_computation_ids=[called.id])
    result = add("constant", None)
    result.literal.shape.CopyFrom(result.shape)
    result.literal.f32s.append(0)
    entry.root_id = result.id
    entry.program_shape.result.CopyFrom(result.shape)
    module.entry_computation_id, module.entry_computation_name = entry.id, entry.name
    module.host_program_shape.CopyFrom(entry.program_shape)
    for field in ("input_output_alias", "buffer_donor", "schedule"):
        module.ClearField(field)


def verdict_of(text, module_class, current, lowered):
    try:
        module = module_class.FromString(_hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto())
        with_plain_entry(module)
        current[0] = module.SerializeToString()
    except Exception as refused:  # whatever jaxlib raises
        return Verdict("parser", str(refused))
    try:
        lowered.compile()
    except Exception as refused:
        message = str(refused)
        return Verdict("" if "must be scheduled" in message else "verifier", message)
    return Verdict("", "")


def read_bytes(pipe, count):
    """So many bytes of a pipe; None at its end, or where nothing comes in time."""
    data = b""
    while len(data) < count:
        part = os.read(pipe, count - len(data)) if select.select([pipe], [], [], LONGEST)[0] else b""
        if not part:
            return None
        data += part
    return data


def in_forks(items, answer):
    """answer(item) of each item, in forks; None where XLA ends the process or does not answer in time."""
    results, at = [None] * len(items), 0
    while at < len(items):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read)
            try:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
                with os.fdopen(write, "wb") as out:
                    for item in items[at:]:
                        answered = pickle.dumps(answer(item))
                        out.write(len(answered).to_bytes(8, "little") + answered)
                        out.flush()
            finally:
                os._exit(0)
        os.close(write)
        while at < len(items) and (length := read_bytes(read, 8)):
            answered = read_bytes(read, int.from_bytes(length, "little"))
            if not answered:
                break
            results[at] = pickle.loads(answered)
            at += 1
        os.close(read)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        at += at < len(items)
    return results


def ask_xla(texts):
    """The verdict on each text. The caller sets JAX_PLATFORMS=cpu before the import of this file."""
    with tempfile.TemporaryDirectory() as folder:
        module_class, = load_messages(pathlib.Path(folder), "HloModuleProto")
    current, lowered = [b""], []

    def answer(text):
        if not lowered:
            register_hlo_module_transformation(lambda _: current[0], name="replace", platforms="cpu",
                                               stage=PipelineStage.POST_SCHEDULER)
            lowered.append(jax.jit(lambda: np.float32(0)).lower())
        return verdict_of(text, module_class, current, lowered[0])

    stopped = Verdict("ended", "XLA ended the process or did not answer")
    return [verdict or stopped for verdict in in_forks(texts, answer)]


# Attributes of the module that its binary form does not have.
UNSAVED = re.compile(r", (replica_count|num_partitions|alias_passthrough_params)=\w+"
                     r"|, (allow_spmd_sharding_propagation_to_\w+|debug_attributes)=\{[^}]*\}")


def canonical_texts(texts):
    """For each text (True, XLA's print of it with names by number) or (False, the reason of the refusal)."""
    options = _hlo.HloPrintOptions.canonical()
    options.print_large_constants = True

    def answer(text):
        try:
            printed = _hlo.hlo_module_from_text(text).to_string(options)
        except Exception as refused:  # whatever jaxlib raises
            return False, str(refused)
        if "constant({...})" in text:  # XLA fills elided values by a count that goes on from text to text
            printed = re.sub(r" constant\([^\n]*?\)(?=,|\n)", " constant({...})", printed)
        return True, UNSAVED.sub("", re.sub(r"HloModule [^,\n]*", "HloModule m", printed))

    return [result or (False, "XLA ended the process") for result in in_forks(texts, answer)]


def run_automap(automap, texts, folder):
    """Exit code, messages and automap's own text of each module, by `automap convert`."""
    def run(numbered):
        index, text = numbered
        source, target = folder / f"{index}.hlo.txt", folder / f"{index}.out.hlo.txt"
        source.write_bytes(text.encode())
        try:
            done = subprocess.run([automap, "convert", source, target], capture_output=True, timeout=60)
            code, message = done.returncode, done.stderr.decode(errors="replace").strip()
        except subprocess.TimeoutExpired:
            code, message = -1, "no end within 60 s"
        return code, message, target.read_text(errors="replace") if code == 0 else ""

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return list(pool.map(run, enumerate(texts)))
