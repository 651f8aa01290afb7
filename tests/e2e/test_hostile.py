"""Hostile input: one clear line, the documented exit status, and nothing lost.

Modules that lie (ids, shapes, nesting, sizes, dimension numbers) are refused at once, in one line and
in memory that goes with the file. Damaged modules, plans, clusters, roles and arrays go through every command; no
outcome but success or a named refusal is allowed, within a bound on time and memory. Then what happens on a bad day:
outputs that cannot be written, a full disk, an interrupt, odd modules.
"""
# labels: cpu e2e
# timeout: 1200
# cost: 17

import copy
import json
import os
import pathlib
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import zipfile

SOURCE = pathlib.Path(__file__).resolve().parents[2]
TINY = SOURCE / "datasets" / "models" / "mlp_tiny"
MODEL = TINY / "model.hlo.pb"
AUTOMAP = os.environ.get("AUTOMAP")
REFUSALS = {3, 4, 5}
LARGEST_BYTES = 4 << 30  # of address space; sanitizers reserve more, so they run without the limit
WRONG_VALUES = [-1, 0, 3, 2**31, 2**63, 2**64, "@1e308", "@1e400", "@NaN", "", "x", None, True, [], {}, [[]],
                [0] * 3000, "@" + "[" * 100000 + "]" * 100000, '@"\\ud800"']

if not AUTOMAP or not os.path.exists(AUTOMAP):
    print("skipped: this build has no program")
    sys.exit(77)
AUTOMAP = os.path.abspath(AUTOMAP)
SANITIZED = b"__asan_init" in pathlib.Path(AUTOMAP).read_bytes()
cases = 0


def limit_memory():
    if not SANITIZED:
        resource.setrlimit(resource.RLIMIT_AS, (LARGEST_BYTES, LARGEST_BYTES))


def automap(*arguments, allowed=frozenset({0} | REFUSALS), stdout=subprocess.PIPE):
    """Runs the program, which must end with an allowed status: that, stdout and the error line."""
    global cases
    cases += 1
    done = subprocess.run([AUTOMAP, *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=stdout,
                          stderr=subprocess.PIPE, timeout=60, preexec_fn=limit_memory)
    words = " ".join(map(str, arguments))
    lines = [line for line in done.stderr.decode(errors="replace").split("\n") if "warning:" not in line]
    assert done.returncode in allowed, f"automap {words}: {done.returncode} {lines[:3]}"
    error = lines[0] if done.returncode else ""
    assert done.returncode == 0 or error.startswith("automap: "), f"automap {words}: no error line, {lines[:3]}"
    return done.returncode, (done.stdout or b"").decode(errors="replace"), error


def expect(status, pattern, *arguments, **options):
    _, output, error = automap(*arguments, allowed={status}, **options)
    assert pattern in error, f"automap {arguments}: {error}, expected {pattern}"
    return output


def damage(chance, content, is_text):
    """Cut short, or a few bytes changed, removed or doubled; in text also numbers and words."""
    if chance.random() < 0.2:
        return content[: chance.randrange(len(content))]
    content = bytearray(content)
    for _ in range(chance.choice([1, 1, 2, 4])):
        at = chance.randrange(len(content))
        kind = chance.randrange(4)
        if kind == 0:
            content[at] = chance.choice(b"{}[]()=,\"%: \n\0\xff-9") if is_text else chance.randrange(256)
        elif kind == 1:
            del content[at : at + chance.randrange(1, 20)]
        elif kind == 2:
            content[at:at] = content[at : at + chance.randrange(1, 50)]
        else:
            content[at] ^= 1 << chance.randrange(8)
    return bytes(content)


def places(value, path=()):
    if path:
        yield path
    children = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    for key, child in children:
        yield from places(child, path + (key,))


def mistyped(chance, document):
    """The document as JSON with one value removed or replaced."""
    document = copy.deepcopy(document)
    *path, last = chance.choice(list(places(document)))
    parent = document
    for key in path:
        parent = parent[key]
    wrong = chance.choice(WRONG_VALUES + ["remove"])
    raw = isinstance(wrong, str) and wrong.startswith("@")
    if wrong == "remove":
        del parent[last]
    else:
        parent[last] = "@raw@" if raw else wrong
    text = json.dumps(document)
    return text.replace('"@raw@"', wrong[1:]) if raw else text


def test_damaged_modules(work, plan):
    chance = random.Random(1)
    text, object_notation = work / "m.hlo.txt", work / "m.hlo.json"
    expect(0, "", "convert", MODEL, text)
    expect(0, "", "convert", MODEL, object_notation)
    contents = [(MODEL.read_bytes(), False), (text.read_bytes(), True), (object_notation.read_bytes(), True)]
    broken, out = work / "broken", work / "out"
    commands = [["info", broken], ["groups", broken], ["groups", broken, "--strict"],
                ["convert", broken, f"{out}.hlo.txt"], ["convert", broken, f"{out}.hlo.json"],
                ["convert", broken, f"{out}.hlo.pb", "--mixed-precision", "bf16"],
                ["search", broken, "--cluster", "nominal:2", "--evaluations", "5", "-o", f"{out}.plan.json"],
                ["run", broken, "--plan", "none", "--state", "random"], ["simulate", plan, broken]]
    for _ in range(150):
        broken.write_bytes(damage(chance, *chance.choice(contents)))
        automap(*chance.choice(commands))


F32 = {"elementType": "F32", "dimensions": ["4"]}
DEEP = 100_000


def as_json(*instructions, **module):
    """A module of one computation; an instruction is (opcode, operand ids, further fields)."""
    rows = [{"name": f"i{k}", "opcode": opcode, "id": str(k), "operandIds": [str(o) for o in operands], "shape": F32,
             **fields} for k, (opcode, operands, fields) in enumerate(instructions)]
    return json.dumps({"name": "m", "entryComputationId": "1", "computations": [
        {"name": "main", "id": "1", "rootId": str(len(rows) - 1), "instructions": rows}], **module})


def as_text(*lines):
    return "HloModule m\n\nENTRY main {\n  " + "\n  ".join(lines) + "\n}\n"


def wire(number, content):
    """A field of protobuf's wire format that holds bytes."""
    def varint(value):
        digits = bytearray()
        while value >= 0x80:
            digits.append(value & 0x7F | 0x80)
            value >>= 7
        return bytes(digits + bytes([value]))
    return varint(number << 3 | 2) + varint(len(content)) + content


def nested_binary():
    shape = b"\x10\x0d"  # a tuple
    for _ in range(20_000):  # each level costs up to four bytes more than the one inside
        shape = b"\x10\x0d" + wire(4, shape)
    instruction = wire(1, b"x") + wire(2, b"parameter") + wire(3, shape)
    return wire(1, b"m") + wire(3, wire(1, b"main") + wire(2, instruction))


PARAMETER = ("parameter", [], {})
HUGE = {"shape": {"elementType": "F32", "dimensions": ["1000000000"]}}
X = "x = f32[4,8]{1,0} parameter(0)"
ADD = "add {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] add(a, b)\n}\n\n"
HOSTILE = {  # name: content, what the one line says
    "cycle": (as_json(PARAMETER, ("negate", [2], {}), ("negate", [1], {})), "a later one"),
    "own operand": (as_json(PARAMETER, ("negate", [1], {})), "a later one"),
    "later operand": (as_json(("negate", [1], {}), PARAMETER), "a later one"),
    "later operand in text": (as_text("ROOT y = f32[4] negate(x)", "x = f32[4] parameter(0)"),
                              "no instruction 'x' above"),
    "dangling operand": (as_json(PARAMETER, ("negate", [7], {})), "id 7"),
    "dangling predecessor": (as_json(PARAMETER, ("negate", [0], {"controlPredecessorIds": ["9"]})), "id 9"),
    "dangling root": (as_json(PARAMETER).replace('"rootId": "0"', '"rootId": "5"'), "id 5"),
    "dangling entry": (as_json(PARAMETER, entryComputationId="3"), "id 3"),
    "same id twice": (as_json(PARAMETER, ("negate", [0], {"id": "0"})), "already taken"),
    "huge id": (as_json(PARAMETER, ("negate", ["9223372036854775807"], {})), "id 9223372036854775807"),
    "calls itself": (as_json(PARAMETER, ("call", [0], {"calledComputationIds": ["1"]})), "calls itself"),
    "to_apply to nowhere": (as_json(PARAMETER, ("map", [0], {"calledComputationIds": ["9"]})), "id 9"),
    "to_apply to nowhere in text": (as_text(X, "ROOT y = f32[4,8] map(x), dimensions={0,1}, to_apply=%nowhere"),
                                    "nowhere"),
    "reduce without to_apply": (as_json(PARAMETER, ("reduce", [0, 0], {})), "computations"),
    "product of 2^64": (as_text("ROOT x = f32[4294967296,4294967296] parameter(0)"), "2^62"),
    "product of 2^93": (as_json(("parameter", [], {"shape": {"elementType": "F32", "dimensions": [2**31] * 3}})),
                        "2^62"),
    "product with a zero": (as_text("ROOT x = f32[9223372036854775807,9223372036854775807,0] parameter(0)"), "2^62"),
    "a dimension beyond 2^63": (as_text("ROOT x = f32[18446744073709551616] parameter(0)"), "integer"),
    "a negative dimension": (as_json(("parameter", [], {"shape": {"elementType": "F32", "dimensions": [-5]}})),
                             "negative"),
    "a rank of 100,000": (as_text(f"ROOT x = f32[{','.join(['1'] * DEEP)}] parameter(0)"), "dimensions"),
    "nested tuple in text": (as_text("ROOT x = " + "(" * DEEP + "f32[]" + ")" * DEEP + " parameter(0)"), "nested"),
    "nested tuple, open": (as_text("ROOT x = " + "(" * DEEP), "nested"),
    "nested tuple in JSON": ('{"computations":[{"instructions":[{"shape":' + '{"tupleShapes":[' * DEEP + "]}" * DEEP +
                             "}]}]}", "nested"),
    "nested tuple in binary": (nested_binary(), "nested"),
    "nested literal": (as_text("ROOT x = f32[2] constant(" + "{" * DEEP + "1" + "}" * DEEP + ")"), "expected"),
    "nested JSON": ("[" * DEEP + "]" * DEEP, "expected an HLO module"),
    "nested JSON, unknown key": ('{"computations":[],"x":' + "[" * DEEP + "]" * DEEP + "}", "nested"),
    "nested JSON, objects": ('{"a":' * DEEP + "1" + "}" * DEEP, "nested"),
    "nested hlo": ('{"hlo":' * DEEP + "1" + "}" * DEEP, "expected an HLO module"),
    "a key twice": (as_json(PARAMETER).replace('"rootId"', '"name": "again", "rootId"'), "duplicate key"),
    "a key in both spellings": (as_json(PARAMETER).replace('"rootId"', '"root_id": "0", "rootId"'), "duplicate key"),
    "a map's key twice": (as_json(PARAMETER)[:-1] + ',"frontendAttributes":{"map":{"k":"1","k":"2"}}}',
                          "duplicate key"),
    "a name twice": (as_text("x = f32[4] parameter(0)", "x = f32[4] negate(x)"), "a second instruction"),
    "10^9 elements, one given": (as_json(("constant", [], {**HUGE, "literal": {**HUGE, "f32s": [1.0]}})),
                                 "has 1 values"),
    "10^9 elements, one given in text": (as_text("ROOT c = f32[1000000000] constant({1})"), "expected"),
    "10^9 raw elements": (as_json(("constant", [], {"shape": {"elementType": "BF16", "dimensions": [10**9]},
                                                    "literal": {"bf16s": "AAAA"}})), "values"),
    "10^9 elements in binary": (wire(1, b"m") + wire(3, wire(1, b"main")
                                                     + wire(2, wire(2, b"constant")
                                                            + b"\x42\x0c\x42\x80\xd0\xac\xf3\x0e")),
                                "longer than the rest"),
    "dot, wrong dimension": (as_text(X,
                                     "ROOT y = f32[4,4] dot(x, x), lhs_contracting_dims={7}, rhs_contracting_dims={1}"),
                             "7"),
    "dot, dimension twice": (as_text(X, "ROOT y = f32[] dot(x, x), lhs_contracting_dims={0,0}, "
                                        "rhs_contracting_dims={0,1}"), "0"),
    "dot, unpaired": (as_text(X, "ROOT y = f32[4] dot(x, x), lhs_contracting_dims={0,1}, rhs_contracting_dims={0}"),
                      "pair"),
    "broadcast": (as_text(X, "ROOT y = f32[4,8,2] broadcast(x), dimensions={0,9}"), "9"),
    "transpose": (as_text(X, "ROOT y = f32[8,4] transpose(x), dimensions={1,1}"), "1"),
    "reduce": (ADD.join(["HloModule m\n\n", as_text(X, "z = f32[] constant(0)",
                                                    "ROOT y = f32[4] reduce(x, z), dimensions={5}, "
                                                    "to_apply=add")[11:]]), "5"),
    "concatenate": (as_text(X, "ROOT y = f32[8,8] concatenate(x, x), dimensions={3}"), "3"),
    "iota": (as_text("ROOT y = f32[8,8] iota(), iota_dimension=2"), "2"),
    "reverse": (as_text(X, "ROOT y = f32[4,8] reverse(x), dimensions={-1}"), "-1"),
    "sort": (ADD.join(["HloModule m\n\n", as_text(X, "ROOT y = f32[4,8] sort(x), dimensions={2}, to_apply=add")[11:]]),
             ""),
    "slice": (as_text(X, "ROOT y = f32[9,8] slice(x), slice={[0:9], [0:8]}"), ""),
    "gather": (as_text(X, "i = s32[1] parameter(1)",
                       "ROOT y = f32[8] gather(x, i), offset_dims={0}, collapsed_slice_dims={4}, "
                       "start_index_map={0}, index_vector_dim=0, slice_sizes={1,8}"), ""),
    "convolution": (as_text("x = f32[1,8,8,3] parameter(0)", "w = f32[3,3,3,4] parameter(1)",
                            "ROOT y = f32[1,8,8,4] convolution(x, w), window={size=3x3 pad=1_1x1_1}, "
                            "dim_labels=b0zf_01io->b01f"), ""),
    "parameter number": (as_text("ROOT x = f32[4] parameter(1000000000)"), ""),
    "tuple index": (as_text("x = (f32[4]) parameter(0)", "ROOT y = f32[4] get-tuple-element(x), index=2147483647"), ""),
}

def refuse(name, path, command=("info",)):
    """The program must refuse the file: exit code 3, one line and at most the text with its caret, at once, in
    memory that fits the file. Returns the text of the line."""
    global cases
    cases += 1
    program = subprocess.Popen([AUTOMAP, *command, path], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, preexec_fn=limit_memory)
    lines = program.stderr.read().decode(errors="replace").removesuffix("\n").split("\n")
    _, status, usage = os.wait4(program.pid, 0)
    program.returncode = os.waitstatus_to_exitcode(status)
    program.stderr.close()
    assert program.returncode == 3, f"{name}: {program.returncode} {lines[:3]}"
    assert lines[0].startswith("automap: ") and "error" not in lines[0][:20], f"{name}: {lines[:3]}"
    assert len(lines) <= 3 and all(line.startswith("  ") for line in lines[1:]), f"{name}: {lines}"
    if not SANITIZED:
        seconds, most = usage.ru_utime + usage.ru_stime, (64 << 20) + 10 * path.stat().st_size
        assert seconds < 1, f"{name}: {seconds} s"
        assert usage.ru_maxrss * 1024 < most, f"{name}: {usage.ru_maxrss} kB"
    return lines[0]


def test_hostile_modules(work):
    path = work / "hostile"
    for name, (content, pattern) in HOSTILE.items():
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        line = refuse(name, path)
        assert pattern in line, f"{name}: {line}, expected {pattern}"
    # Values that the file leaves out: planning accepts them, commands that need them refuse.
    path.write_text(as_json(("constant", [], {**HUGE, "literal": HUGE}), ("negate", [0], HUGE)))
    expect(0, "", "info", path)
    line = refuse("elided", path, ("run", "--inference", "--plan", "none", "--state", "random"))
    assert "the constant's value is not in the file" in line, line


def test_cut_and_changed_modules(work):
    """A fixed sample, all with AUTOMAP_FULL; tests/ir/test_ir_hostile.c does the same in one process."""
    step = 1 if os.environ.get("AUTOMAP_FULL") else 97
    small = SOURCE / "tests" / "data" / "text" / "half_product.hlo.txt"
    for suffix in ["pb", "json", "txt"]:
        path = work / f"whole.hlo.{suffix}"
        expect(0, "", "convert", small, path)
        content = path.read_bytes()
        broken = work / "cut"
        for length in range(0, len(content), step):
            broken.write_bytes(content[:length])
            automap("info", broken, allowed={0, 3} if suffix == "pb" or length > len(content) - 3 else {3})
            for value in {0, 255, content[length] ^ 255}:
                broken.write_bytes(content[:length] + bytes([value]) + content[length + 1 :])
                automap("info", broken, allowed={0, 3})


def test_mistyped_documents(work, plan):
    chance = random.Random(2)
    cluster, broken = work / "cluster.json", work / "broken.json"
    expect(0, "", "cluster", "nominal:4", "--json", "-o", cluster)
    out = work / "out.plan.json"
    search = ["search", MODEL, "--evaluations", "5", "-o", out]
    for original, commands in [
        (plan, [["simulate", broken, MODEL], ["lower", MODEL, "--plan", broken], ["explain", broken, MODEL],
                ["export", broken, MODEL, "--format", "jax"],
                ["run", MODEL, "--plan", broken, "--state", "random"],
                [*search, "--cluster", "nominal:4", "--init-plan", broken]]),
        (cluster, [[*search, "--cluster", broken], ["cluster", broken],
                   ["simulate", plan, MODEL, "--cluster", broken]]),
        (TINY / "model.roles.json", [["info", MODEL, "--roles", broken],
                                     [*search, "--cluster", "nominal:2", "--roles", broken]]),
    ]:
        document = json.loads(original.read_text())
        for _ in range(80):
            broken.write_text(mistyped(chance, document))
            automap(*chance.choice(commands))
    # A budget that the first plans use up is no error.
    for evaluations in range(1, 9):
        expect(0, "", "search", MODEL, "--cluster", "nominal:4", "--mesh", "data=2,model=2", "--init-plan", plan,
               "--evaluations", evaluations, "-o", out)


def test_damaged_arrays(work, plan):
    chance = random.Random(3)
    saved = work / "state.safetensors"
    run = ["run", MODEL, "--plan", plan, "--steps", "1", "--quiet"]
    expect(0, "", *run, "--state", TINY / "state.npz", "--data", TINY / "data.npz", "--save", saved)
    for suffix, content in [(".npz", (TINY / "state.npz").read_bytes()), (".safetensors", saved.read_bytes())]:
        broken = work / f"broken{suffix}"
        for _ in range(30):
            broken.write_bytes(damage(chance, content, suffix == ".safetensors"))
            automap(*run, "--state", broken, "--data", TINY / "data.npz")
            automap(*run, "--state", TINY / "state.npz", "--data", broken)


def test_array_of_words(work):
    """An array of another kind than numbers: the error has its kind and the expected one."""
    words = work / "words.npz"
    header = b"{'descr': '|S2', 'fortran_order': False, 'shape': (32,), }"
    header += b" " * (117 - len(header)) + b"\n"
    with zipfile.ZipFile(words, "w") as archive:
        archive.writestr("state['params'][0]['bias'].npy", b"\x93NUMPY\x01\x00\x76\x00" + header + b"ab" * 32)
    expect(3, "is not of numbers, expected f32[32]", "run", MODEL, "--plan", "none", "--state", words)


def test_outputs_that_cannot_be_written(work, plan):
    nowhere = work / "no_such_folder"
    search = ["search", MODEL, "--cluster", "nominal:4", "--evaluations", "20"]
    run = ["run", MODEL, "--plan", plan, "--state", "random"]
    # Known before the work begins: a damaged model is not even read.
    damaged = ["search", work / "damaged.hlo.pb", "--cluster", "nominal:4"]
    damaged[1].write_bytes(b"no model")
    expect(2, "no_such_folder/p.json: cannot be written", *damaged, "-o", nowhere / "p.json")
    expect(2, "no_such_folder/log: cannot be written", *damaged, "-o", work / "p.json", "--log", nowhere / "log")
    expect(2, "cannot be written: Is a directory", *damaged, "-o", work)
    expect(2, "-o: the value is empty", *damaged, "-o", "")
    for option in ["--save", "--outputs"]:
        assert expect(2, "cannot be written", *run, option, nowhere / "x.npz") == ""
        assert expect(2, "expected a name ending in", *run, option, work / "x.other") == ""
    # A full disk.
    expect(5, "/dev/full", *search, "-o", "/dev/full")
    expect(5, "/dev/full: writing failed: No space left on device", *run, "-o", "/dev/full")
    for option in ["-o", "--trace", "--log"]:
        saved = work / f"kept{option}.safetensors"
        expect(5, "/dev/full", *run, option, "/dev/full", "--save", saved)
        assert saved.exists(), f"{option}: the state was lost"
    with open("/dev/full", "wb") as full:
        for arguments in [["--help"], ["info", MODEL], run, [*search, "-o", work / "kept.plan.json"]]:
            expect(5, "<stdout>: writing failed", *arguments, stdout=full)
    expect(0, "", "simulate", work / "kept.plan.json", MODEL)  # the plan was not lost
    assert not list(work.glob("*.part-*")), "a partial file was left"


def test_interrupts(work):
    plan = work / "interrupted.plan.json"
    model = SOURCE / "datasets" / "models" / "gpt2_tiny" / "model.hlo.pb"
    for delay in [0.6, 1.0, 1.5]:
        plan.unlink(missing_ok=True)
        search = subprocess.Popen([AUTOMAP, "search", model, "--cluster", "nominal:8", "--evaluations", "100000", "-o",
                                   plan],
                                  stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        time.sleep(delay)
        search.send_signal(signal.SIGINT)
        _, error = search.communicate(timeout=30)
        assert search.returncode in {0, 130, -signal.SIGINT}, f"{search.returncode} {error}"
        if search.returncode == 130:
            expect(0, "", "simulate", plan, model)
        else:
            assert search.returncode == 0 or not plan.exists(), "stopped while reading, yet there is a plan"


def test_options():
    search = ["search", MODEL, "--cluster", "nominal:4", "-o", os.devnull]
    for mesh in ["data=0", "data=-1", "data=999999999", "data=2,data=2", "data=3", "data", "", "data=4,", "=4"]:
        expect(2, "mesh", *search, "--mesh", mesh)
    expect(2, "expected one of", *search, "--searcher", "no_such")
    expect(2, "from 1 to", *search, "--evaluations", "0")
    expect(2, "every plan is priced", *search, "--searcher", "exhaustive", "--evaluations", "5")
    expect(2, "-o: given twice", *search, "-o", os.devnull)
    expect(2, "-o: the value is empty", *search[:4], "-o", "")
    expect(2, "argument 1 is empty", "info", "")
    expect(2, "an integer of at least 1", "run", MODEL, "--plan", "none", "--steps", "0")


MODULES = {  # name: lines of the entry computation, what search and run answer
    "no_elements": (["x = f32[0,4]{1,0} parameter(0)", "w = f32[4,2]{1,0} parameter(1)",
                     "ROOT y = f32[0,2]{1,0} dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}"], 0, 0, ""),
    "scalars": (["x = f32[] parameter(0)", "w = f32[] parameter(1)", "ROOT y = f32[] multiply(x, w)"], 0, 0, ""),
    "root_is_parameter": (["ROOT x = f32[8,4]{1,0} parameter(0)"], 0, 0, ""),
    "no_parameter": (["ROOT x = f32[] constant(3)"], 0, 0, ""),
    "dead": (["p = f32[8]{0} parameter(0)", "unused = f32[16]{0} parameter(1)", "q = f32[16]{0} negate(unused)",
              "ROOT y = f32[8]{0} abs(p)"], 0, 0, ""),
    "no_result": (["p = f32[8]{0} parameter(0)", "ROOT y = () tuple()"], 0, 0, ""),
    "unknown": (["p = f32[8]{0} parameter(0)", "ROOT y = f32[8]{0} frobnicate(p)"], 0, 3,
                "'frobnicate' (instruction y)"),
    "tuple_parameter": (["p = (f32[8]{0}, f32[8]{0}) parameter(0)",
                         "ROOT y = f32[8]{0} get-tuple-element(p), index=0"], 3, 3, "parameter p is a tuple"),
    "nested_result": (["p = f32[8]{0} parameter(0)", "a = (f32[8]{0}, f32[8]{0}) tuple(p, p)",
                       "ROOT y = ((f32[8]{0}, f32[8]{0}), f32[8]{0}) tuple(a, p)"], 3, 3, "output 0 is a tuple"),
    "petabytes": (["p = f32[1000000000,1000000]{1,0} parameter(0)",
                   "ROOT q = f32[1000000000,1000000]{1,0} negate(p)"], 4, 5, "memory"),
    "no_utf8": (["x = f32[8]{0} parameter(0), metadata={op_name=\"a\udcff\"}", "ROOT y = f32[8]{0} negate(x)"], 0, 0,
                ""),
}


def test_odd_modules(work):
    for name, (lines, searched, ran, pattern) in MODULES.items():
        module = work / f"{name}.hlo.txt"
        module.write_text(f"HloModule {name}\n\nENTRY main {{\n  " + "\n  ".join(lines) + "\n}\n",
                          encoding="utf-8", errors="surrogateescape")
        json.loads(expect(0, "", "info", module, "--json"))
        expect(0, "", "groups", module)
        for cluster in ["nominal:1", "nominal:64"]:
            expect(searched, pattern if searched else "", "search", module, "--cluster", cluster,
                   "--inference", "--evaluations", "20", "-o", work / "odd.plan.json")
        expect(ran, pattern if ran else "", "run", module, "--inference", "--plan", "none", "--state", "random")
    expect(3, "no_utf8.hlo.txt: module no_utf8: a name is not valid UTF-8", "convert", work / "no_utf8.hlo.txt",
           work / "out.hlo.json")
    # More threads than any machine should start.
    cluster = json.loads(expect(0, "", "cluster", "nominal:4", "--json"))
    cluster["servers"][0]["devices"] = 4096
    (work / "large.json").write_text(json.dumps(cluster))
    expect(0, "", "search", MODEL, "--cluster", work / "large.json", "--mesh", "data=4096", "--evaluations", "1",
           "-o", work / "odd.plan.json")
    expect(5, "4096 devices", "run", MODEL, "--plan", work / "odd.plan.json", "--state", "random")
    functions = ["f0 {\n  a = f32[] parameter(0)\n  ROOT r = f32[] negate(a)\n}"]
    for k in range(1, 40):
        functions.append(f"f{k} {{\n  a = f32[] parameter(0)\n  b = f32[] call(a), to_apply=f{k - 1}\n"
                         f"  ROOT r = f32[] call(b), to_apply=f{k - 1}\n}}")
    bomb = work / "bomb.hlo.txt"
    bomb.write_text("HloModule bomb\n\n" + "\n\n".join(functions) +
                    "\n\nENTRY main {\n  p = f32[] parameter(0)\n  ROOT y = f32[] call(p), to_apply=f39\n}\n")
    expect(3, "instructions after inlining", "info", bomb)


def main():
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        plan = work / "good.plan.json"
        expect(0, "", "search", MODEL, "--cluster", "nominal:4", "--mesh", "data=2,model=2", "--evaluations", "20",
               "-o", plan)
        test_options()
        test_odd_modules(work)
        test_outputs_that_cannot_be_written(work, plan)
        test_hostile_modules(work)
        test_cut_and_changed_modules(work)
        test_damaged_modules(work, plan)
        test_mistyped_documents(work, plan)
        test_damaged_arrays(work, plan)
        test_array_of_words(work)
        test_interrupts(work)
    print(f"{cases} runs, every refusal named")


if __name__ == "__main__":
    main()
