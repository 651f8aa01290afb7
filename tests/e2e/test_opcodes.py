"""Every opcode with every attribute it can have, through all encodings, against jaxlib.

jaxlib makes a binary and texts of each case (tests/oracle/opcode_modules.py). All of them must give one
hash and the same module as the binary, through binary, JSON, text and back; jaxlib must read our binary and
our text and print the same text as before. jaxlib itself lists the attributes it accepts, in its complaint
about an unknown one: each of them must occur in a case, and be known to automap.
"""
# labels: jax e2e
# timeout: 300
# cost: 20

import concurrent.futures
import os
import pathlib
import re
import shutil
import sys
import tempfile

os.environ["JAX_PLATFORMS"] = "cpu"
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "oracle"))

try:
    import jax
    from jaxlib import _hlo
    import hlo_messages
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)
import opcode_modules
from hlo_messages import AUTOMAP, SOURCE, check_same, convert
if not AUTOMAP or not os.path.exists(AUTOMAP) or not shutil.which("protoc"):
    print("skipped: no automap program or no protoc")
    sys.exit(77)
LIBRARY = hlo_messages.library_or_skip()


def print_options(short=False):
    options = _hlo.HloPrintOptions.short_parsable() if short else _hlo.HloPrintOptions()
    options.print_large_constants = True
    return options


def same_print(what, module, long):
    printed = module.to_string(print_options())
    for ours, theirs in zip(printed.splitlines() + [""], long.splitlines() + [""]):
        assert ours == theirs, f"{what}: jaxlib prints\n{ours}\nand not\n{theirs}"


def round_trip(text, folder, module_class):
    """A module through all encodings. Parts that jaxlib's texts leave out are not compared: the predecessors in its
    short text, attributes of the module in its binary, the operators that asynchronous instructions wrap; neither are
    the payloads of NaNs in JSON."""
    module = _hlo.hlo_module_from_text(text)
    binary, long = module.as_serialized_hlo_module_proto(), module.to_string(print_options())
    short = module.to_string(print_options(short=True))
    paths = {name: folder / name for name in ("theirs.hlo.pb", "long.hlo.txt", "short.hlo.txt", "ours.hlo.json",
                                              "ours.hlo.txt",
                                              "ours.hlo.pb", "json.hlo.pb", "long.hlo.pb", "short.hlo.json")}
    paths["theirs.hlo.pb"].write_bytes(binary)
    paths["long.hlo.txt"].write_text(long)
    paths["short.hlo.txt"].write_text(short)
    warnings = []
    for source, target in (("theirs.hlo.pb", "ours.hlo.txt"), ("ours.hlo.txt", "ours.hlo.pb"),
                           ("ours.hlo.pb", "ours.hlo.json"),
                           ("ours.hlo.json", "json.hlo.pb"), ("long.hlo.txt", "long.hlo.pb"),
                           ("short.hlo.txt", "short.hlo.json")):
        convert(paths[source], paths[target], warnings)
    assert not warnings, warnings
    is_whole = not re.search("replica_count|allow_spmd|alias_passthrough", text)
    for name in ("ours.hlo.pb", "json.hlo.pb", "long.hlo.pb"):
        ours = paths[name].read_bytes()
        if name != "long.hlo.pb" or "-start(" not in text:
            check_same(name, module_class.FromString(ours), module_class.FromString(binary), metadata=True,
                       ordered="is_scheduled" not in text)
        if is_whole and (name != "json.hlo.pb" or "nan" not in text):
            same_print(name, _hlo.HloModule.from_serialized_hlo_module_proto(ours), long)
    if is_whole:
        same_print("our text", _hlo.hlo_module_from_text(paths["ours.hlo.txt"].read_text()), long)
    hashes = {name: LIBRARY.sha256(path) for name, path in paths.items()
              if "control-predecessors" not in text or not name.startswith("short")}
    assert len(set(hashes.values())) == 1, hashes


def attempt(number, what, bodies, header, folder, module_class):
    """The errors of the cases of an opcode: all in one module first, and each alone where that fails.
    All-reduces of one module constrain their layouts, or none does."""
    constrained = [body for body in bodies if "constrain_layout=true" in body]
    if constrained and len(constrained) < len(bodies):
        others = [body for body in bodies if body not in constrained]
        return (attempt(f"{number}.constrained", what, constrained, header, folder, module_class)
                + attempt(number, what, others, header, folder, module_class))
    text = opcode_modules.module(bodies[0], header) if len(bodies) == 1 else opcode_modules.merged(bodies)
    own = folder / str(number)
    own.mkdir()
    try:
        round_trip(text, own, module_class)
        return []
    except Exception as error:
        if len(bodies) == 1:
            return [f"{what}:\n{header}\n{bodies[0]}\n{error}"]
        alone = [attempt(f"{number}.{k}", what, [body], header, folder, module_class) for k, body in enumerate(bodies)]
        return [line for lines in alone for line in lines] or [f"{what}, all cases together:\n{error}"]
    finally:
        shutil.rmtree(own)


def allowed_attributes(what, body):
    """Returns the attributes that jaxlib accepts for an opcode, from its error about an unknown one."""
    lines = body.splitlines()
    at = [k for k, line in enumerate(lines) if re.search(rf"[ \])}}] {re.escape(what)}\(", line)]
    if not at:
        return set()
    lines[at[-1]] += ", no_such_attribute=1"
    try:
        _hlo.hlo_module_from_text(opcode_modules.module("\n".join(lines)))
    except Exception as error:
        found = re.search(r'unexpected attribute "no_such_attribute". Allowed attributes: ([^\n]*)', str(error))
        return set(found.group(1).replace(",", " ").split()) if found else set()
    return set()


def check_coverage(groups):
    """Every attribute that jaxlib allows stands in a case of the opcode, or in one of any opcode.
    (It also allows parameter_replication everywhere, and breaks off where that is no parameter; slice_sizes
    belongs to collective-permutes within a buffer, which only a backend makes.)"""
    common = " ".join(body for (what, _), bodies in groups.items() if what in opcode_modules.NOT_OPCODES
                      for body in bodies)
    for (what, _), bodies in groups.items():
        if what in opcode_modules.NOT_OPCODES:
            continue
        allowed = allowed_attributes(what, bodies[0])
        exempt = {"parameter_replication"} | ({"slice_sizes"} if what.startswith("collective-permute") else set())
        text = " ".join(bodies)
        lacking = sorted(name for name in allowed - exempt if f" {name}=" not in text and f" {name}=" not in common)
        assert not lacking, f"{what}: no case has the attributes {lacking}"


def main():
    groups = {}
    for what, body, header in opcode_modules.cases():
        groups.setdefault((what, header), []).append(body)
    if sys.argv[1:]:
        groups = {key: bodies for key, bodies in groups.items() if key[0] in sys.argv[1:]}
    else:
        check_coverage(groups)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        module_class, = hlo_messages.load_messages(folder, "HloModuleProto")
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            jobs = [pool.submit(attempt, k, what, bodies, header, folder, module_class)
                    for k, ((what, header), bodies) in enumerate(groups.items())]
            failures = [line for job in jobs for line in job.result()]
    for failure in failures:
        print(failure)
    count = sum(map(len, groups.values()))
    opcodes = set(re.findall(r'^OPCODE\(\w+, "([^"]+)"', (SOURCE / "ir" / "opcodes.def").read_text(), re.MULTILINE))
    missing = opcodes - {what for what, _ in groups} - opcode_modules.NOT_IN_JAXLIB
    print(f"{count - len(failures)} of {count} cases of {len(opcodes) - len(missing)} opcodes come back the same")
    assert not failures and (sys.argv[1:] or not missing), f"without a case: {missing}"


main()
