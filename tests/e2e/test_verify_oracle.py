"""The verifier against XLA's own.

Every instruction of tests/data/verify/instructions.txt, each element-wise operator with each kind of
element type, and mutations of valid instructions (one number, one type, one operand changed) are given
to automap and to XLA: both accept or both refuse, but for the differences that are stated below. `convert` also
accepts what no plan can be made of.
The valid instructions have every opcode of jaxlib.

Without AUTOMAP_FULL=1 a part of the mutations is judged.
"""
# labels: jax e2e
# timeout: 600
# cost: 25

import concurrent.futures
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "tests" / "oracle"))

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
from program import AUTOMAP, FULL, skip_where_missing

with skip_where_missing():
    from opcode_modules import NOT_IN_JAXLIB
    from xla_verdicts import ask_xla

MUTATIONS = None if FULL else 80
BEFORE = (SOURCE / "tests" / "data" / "verify" / "module.hlo.txt").read_text().split("\n", 1)[1]

# --------------------------------------------------------------- Differences

# The entry computation that is put in place of another may have none.
WITHOUT_CASE = {"parameter"}

# Why, who accepts, and an instruction that shows it.
DIFFERENCES = [
    ("XLA does not compare the sizes of a gather's batching dimensions", "XLA",
     "f32[2] gather(n, sa), offset_dims={}, collapsed_slice_dims={1}, operand_batching_dims={0}, "
     "start_indices_batching_dims={0}, start_index_map={1}, index_vector_dim=1, slice_sizes={1,1}"),
    ("XLA does not look at the type of random bits", "XLA",
     "(u64[2], token[]) rng-bit-generator(v), algorithm=rng_three_fry"),
    ("XLA takes the operand of ragged-all-to-all as it is", "XLA",
     "f32[2,3] ragged-all-to-all(t, m, r4, r4, r4, r4), replica_groups={{0,1}}"),
    ("XLA takes a negative number of groups for one", "XLA",
     "f32[8,8,8,16] convolution(x, w), window={size=3x3}, dim_labels=b01f_01io->b01f, feature_group_count=-1"),
    ("a stride of 0 counts as 1, since JSON leaves out zeros", "automap",
     "f32[1,2] slice(m), slice={[1:2], [0:2:0]}"),
    ("how many replicas there are is not in the module", "automap",
     "(f32[2,3], f32[2,3]) all-to-all(m, m), replica_groups={}"),
    ("nor how many partitions", "automap",
     "f32[8,3] all-gather(m), replica_groups={{0,1}}, dimensions={0}, channel_id=1"),
    ("XLA's process ends where branches are one computation", "automap",
     "f32[2,3] conditional(q, m, m), true_computation=one, false_computation=one"),
    ("XLA's process ends on shards without elements", "automap",
     "f32[0,3] all-gather(e), replica_groups={{0,1}}, dimensions={0}"),
    ("automap lets the indices of topk be any integers", "automap",
     "(f32[2,2], s64[2,2]) topk(m), k=2, largest=true"),
    ("automap lets start indices differ in type", "automap",
     "f32[1,3] dynamic-slice(m, k, dim), dynamic_slice_sizes={1,3}"),
    ("automap takes the bits of complex numbers for others", "automap", "s64[2,3] bitcast-convert(c)"),
    ("automap does not look at a fusion's kind", "automap", "f32[2,3] fusion(m), kind=kFoo, calls=one"),
]


# ------------------------------------------------------------------ Verdicts

def module_of(case):
    """The text of a module: each part of the case is one instruction, the last is named r."""
    parts = case.split(" ;; ")
    named = parts[:-1] + ["r = " + parts[-1]]
    return BEFORE + "".join(f"  {part}\n" for part in named) + "  ROOT result = f32[] constant(0)\n}\n"


def ask_automap(texts):
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(2) as pool:
        def verdict(numbered):
            index, text = numbered
            source, target = f"{folder}/{index}.hlo.txt", f"{folder}/{index}.hlo.pb"
            pathlib.Path(source).write_text(text)
            done = subprocess.run([AUTOMAP, "convert", source, target], capture_output=True, text=True)
            assert done.returncode in (0, 3), f"exit code {done.returncode}: {done.stderr}\n{text}"
            for path in (source, target):
                pathlib.Path(path).unlink(missing_ok=True)
            return done.returncode == 0, done.stderr.strip()
        return list(pool.map(verdict, enumerate(texts)))


def ask(cases):
    texts = [module_of(case) for case in cases]
    theirs = [(verdict.accepted, verdict.message) for verdict in ask_xla(texts)]
    return list(zip(cases, theirs, ask_automap(texts)))


# --------------------------------------------------------------------- Cases

def table():
    lines = (SOURCE / "tests" / "data" / "verify" / "instructions.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def opcodes():
    """Name and number of operands of the element-wise ones, and all names."""
    rows = re.findall(r'^OPCODE\(\w+, "([^"]+)", (-?\d+), (\w+),', (SOURCE / "ir" / "opcodes.def").read_text(),
                      re.M)
    assert rows, "ir/opcodes.def: no row was read"
    special = {"bitcast-convert", "clamp", "compare", "convert", "reduce-precision", "select", "stochastic-convert"}
    plain = [(name, int(arity)) for name, arity, rule in rows
             if rule == "ELEMENTWISE" and name not in special | NOT_IN_JAXLIB]
    return plain, [name for name, _, _ in rows]


def element_types(operators):
    """Each operator on each kind of type, with the result that it would have."""
    for name, arity in operators:
        for kind in ["pred", "s8", "u32", "bf16", "f32", "c64"]:
            result = kind
            if name == "is-finite":
                result = "pred"
            elif name in ("abs", "imag", "real") and kind == "c64":
                result = "f32"
            elif name == "complex" and kind == "f32":
                result = "c64"
            operands = ", ".join(["typed"] * arity)
            yield f'typed = {kind}[2,3] custom-call(), custom_call_target="x" ;; {result}[2,3] {name}({operands})'


OTHER_TYPE = {"f32": "s32", "bf16": "s32", "f64": "s32", "s32": "f32", "s8": "f32", "u32": "s32", "u64": "u32",
              "pred": "s32", "c64": "f32", "token": "f32"}
OTHER_OPERANDS = {"m": "nitz", "n": "mhj", "i": "mj", "z": "km", "k": "zj", "p": "mq", "x": "yn", "w": "nx",
                  "j": "ui", "u": "nj", "f3": ["f2", "s3"], "h": "ms", "s": "hm", "c": "mi", "g": "ym", "y": "gx",
                  "r4": ["s3", "f2"], "v": ["uq", "v3"], "gs": ["s3", "z"], "o": "mz", "q": "kp", "t": "mo"}
NUMBER = re.compile(r"(?<=[\[{,=x:_(<|-])\d+(?![\w.]*[a-wyz])")


def mutations(case):
    """Each with one number, type or operand changed, or one operand more or fewer."""
    head, _, last = case.rpartition(" ;; ")
    head += " ;; " if head else ""
    for match in NUMBER.finditer(last):
        number = int(match[0])
        for other in {number + 1, max(number - 1, 0)} - {number}:
            yield f"{head}{last[:match.start()]}{other}{last[match.end():]}"
    for match in re.finditer(r"\b(" + "|".join(OTHER_TYPE) + r")(?=\[)", last):
        yield f"{head}{last[:match.start()]}{OTHER_TYPE[match[0]]}{last[match.end():]}"
    arguments = re.search(r"[a-z](?:-?[a-z0-9])*\(([a-z0-9, ]+)\)", last)
    if arguments is None:
        return
    operands = [name.strip() for name in arguments[1].split(",")]
    others = [operands[:-1], operands + operands[-1:]]
    for place, name in enumerate(operands):
        others += [operands[:place] + [other] + operands[place + 1:] for other in OTHER_OPERANDS.get(name, [])]
    for names in others:
        yield f"{head}{last[:arguments.start(1)]}{', '.join(names)}{last[arguments.end(1):]}"


# ---------------------------------------------------------------------- Test

# The differences as mutations have them: who accepts, the opcode, what else the instruction has.
STATED_FORMS = [
    ("XLA", "rng-bit-generator|ragged-all-to-all", ""),
    ("XLA", "gather", "batching"),
    ("XLA", "convolution", "group"),
    ("XLA", "custom-call", "operand_layout_constraints"),  # layouts that are no permutations
    ("XLA", "dot", r"\(\w+, \w+, \w+\)"),  # sparse ones, without the text for it
    ("automap", "convolution", r"\(\w+, \w+, \w+\)"),  # scaled ones, as binaries have them
    ("automap", "slice|reduce-window|select-and-scatter|convolution", r":0\]|stride=0|stride=\S*x0"),
    ("automap", "bitcast-convert", r"c64|c128|\(c\)"),
    ("automap", "conditional", r"true_computation=(\w+), false_computation=\1\b|\{(\w+), \2\}"),
    ("XLA", "all-.*|reduce-scatter|collective-.*", r"T\((\d),\1\)"),  # orders that are no permutations
    ("automap", "all-.*|reduce-scatter|collective-.*", r"replica_groups=\{\}|channel_id|\[0,"),
]


def is_stated(case, xla):
    last = case.split(" ;; ")[-1]
    opcode = re.search(r"([a-z][a-z0-9-]*)\([a-z0-9, ]*\)", last)[1]
    return any((who == "XLA") == xla and re.fullmatch(name, opcode) and re.search(form, last)
               for who, name, form in STATED_FORMS)


def check(judged, stated):
    """Returns the cases that both accept."""
    failures, right = [], []
    for case, (xla, theirs), (automap, ours) in judged:
        if xla and automap:
            right.append(case)
        elif xla != automap and not stated(case, xla):
            reason = ours if xla else theirs
            failures.append(f"{'XLA' if xla else 'automap'} accepts: {case}\n  the other says: {reason[:400]}")
    assert not failures, "\n".join([f"{len(failures)} of {len(judged)} are judged differently"] + failures)
    return right


operators, names = opcodes()
cases = table()
right = check(ask(cases), lambda *_: False)
typed = check(ask(list(element_types(operators))), lambda *_: False)
for name in set(names) - NOT_IN_JAXLIB - WITHOUT_CASE:
    assert any(f" {name}(" in case for case in right + typed), f"no right instruction has the opcode {name}"
for (reason, who, _), (case, (xla, _), (automap, _)) in zip(DIFFERENCES, ask([row[2] for row in DIFFERENCES])):
    assert (xla, automap) == (who == "XLA", who == "automap"), f"no longer true: {reason}: {case}"

mutated = sorted({mutation for case in right for mutation in mutations(case)} - set(cases))
if MUTATIONS is not None:
    mutated = random.Random(1).sample(mutated, min(MUTATIONS, len(mutated)))
accepted = check(ask(mutated), is_stated)
count = len(cases) + len(operators) * 6
print(f"{count} instructions and {len(mutated)} mutations, of which {len(accepted)} are right, are judged alike")
