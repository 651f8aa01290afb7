"""XLA's verdict on HLO texts: its parser, then its verifier.

HloVerifier runs when a module takes the place of another after scheduling. A module that passes is
refused later, since it has no schedule. The entry computation of the other module has no parameters, so
that an entry with the right signature is added, which calls the entry of the text. XLA ends the process on
some wrong modules and does not end on others: a fork gives the verdicts, and a new fork goes on behind the
text that stopped it.
"""

import os
import pathlib
import pickle
import select
import signal
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


def answer(texts, module_class, write):
    """In a fork: pickles (index, verdict) of each text until XLA ends the process."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    current = [b""]
    register_hlo_module_transformation(lambda _: current[0], name="replace", platforms="cpu",
                                       stage=PipelineStage.POST_SCHEDULER)
    lowered = jax.jit(lambda: np.float32(0)).lower()
    with os.fdopen(write, "wb") as out:
        for index, text in texts:
            pickle.dump((index, verdict_of(text, module_class, current, lowered)), out)
            out.flush()


def ask_xla(texts):
    """The verdict on each text. The caller sets JAX_PLATFORMS=cpu before the import of this file."""
    with tempfile.TemporaryDirectory() as folder:
        module_class, = load_messages(pathlib.Path(folder), "HloModuleProto")
    verdicts, waiting = [None] * len(texts), list(enumerate(texts))
    while waiting:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read)
            try:
                answer(waiting, module_class, write)
            finally:
                os._exit(0)
        os.close(write)
        done = 0
        with os.fdopen(read, "rb", 0) as source:
            while select.select([source], [], [], LONGEST)[0]:
                try:
                    index, verdict = pickle.load(source)
                except EOFError:
                    break
                verdicts[index] = verdict
                done += 1
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        if done < len(waiting):
            verdicts[waiting[done][0]] = Verdict("ended", "XLA ended the process or did not answer")
            done += 1
        waiting = waiting[done:]
    return verdicts
