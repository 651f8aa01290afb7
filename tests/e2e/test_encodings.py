"""One module in every encoding: one hash, the same linkage groups, byte for byte the same plan.

The encodings are the binary, JSON by Google's json_format (camelCase or snake_case keys, defaults
printed or not, bare or inside HloProto), automap's own JSON and automap's text. jaxlib's text
without metadata has other parameter paths; all the rest is the same. Two states of equal shape that
a step hands back in swapped order are paired rightly by the roles file and by data flow. Every model
(the largest with AUTOMAP_FULL alone) keeps its hash through text, JSON and binary, one made of the other.
"""
# labels: cpu e2e
# timeout: 300
# cost: 35

import itertools
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[2]
MODELS = SOURCE / "datasets" / "models"
AUTOMAP = os.environ.get("AUTOMAP")
FULL = os.environ.get("AUTOMAP_FULL") == "1"
SEARCHES = dict.fromkeys(["mlp_tiny", "two_swapped", "t5_tiny"], ["--evaluations", "12"])
SEARCHES |= dict.fromkeys(SEARCHES | {"vgg_tiny": []}, ["--evaluations", "60"]) if FULL else {}
WITH_TEXT = ["mlp_tiny", "t5_tiny"]
LARGE = {"bert48", "gpt2", "gpt2_bf16", "llama3_8b"} | {f"t5_{table}_{size}" for table in ("paper", "pipeline")
                                                        for size in ("6", "24_3b", "24_11b")}
NAMES_ONLY = {"path", "op_name", "source", "names"}  # what metadata alone tells

sys.path.insert(0, str(SOURCE / "tests" / "oracle"))
try:
    from hlo_messages import library_or_skip
    from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
except ImportError:
    print("skipped: Python has no protobuf")
    sys.exit(77)
if not AUTOMAP or not os.path.exists(AUTOMAP) or not shutil.which("protoc"):
    print("skipped: no automap program or no protoc")
    sys.exit(77)


def automap(*arguments):
    """Runs the program, which must succeed; its stdout."""
    done = subprocess.run([AUTOMAP, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, f"automap {' '.join(map(str, arguments))}: {done.returncode} {done.stderr}"
    return done.stdout


def message_classes(folder):
    """Python's classes of our schema."""
    compiled = folder / "schema.bin"
    subprocess.run(["protoc", f"--proto_path={SOURCE}", f"--descriptor_set_out={compiled}",
                    str(SOURCE / "ir" / "hlo.proto")], check=True)
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(compiled.read_bytes()).file:
        pool.Add(file)
    return [message_factory.GetMessageClass(pool.FindMessageTypeByName(f"hlo.{name}"))
            for name in ("HloModuleProto", "HloProto")]


def encodings(binary, folder, classes):
    """Yields (encoding, path) of the module in every encoding."""
    module_class, proto_class = classes
    module = module_class.FromString(binary.read_bytes())
    yield "binary", binary
    for snake, defaults, wrapped in itertools.product([False, True], repeat=3):
        text = json_format.MessageToJson(proto_class(hlo_module=module) if wrapped else module,
                                         preserving_proto_field_name=snake,
                                         always_print_fields_with_no_presence=defaults)
        path = folder / "google.json"
        path.write_text(text)
        yield f"JSON, snake_case {snake}, defaults {defaults}, in HloProto {wrapped}", path
    for suffix in ("hlo.json", "hlo.txt", "hlo.txt.zst"):
        path = folder / f"ours.{suffix}"
        automap("convert", binary, path)
        yield suffix, path


def described(path, roles, search, folder):
    """Hash, groups and plan of a module file."""
    plan = folder / "plan.json"
    roles = ["--roles", roles] if roles else []
    info = json.loads(automap("info", path, *roles, "--json"))
    groups = json.loads(automap("groups", path, *roles, "--json"))
    automap("search", path, *roles, "--cluster", "nominal:4", "--seed", "3", *search, "-o", plan, "--quiet")
    return info["sha256"], groups, plan.read_bytes()


def without_names(value):
    """Returns the JSON value without metadata."""
    if isinstance(value, dict):
        return {key: without_names(inner) for key, inner in value.items() if key not in NAMES_ONLY}
    return [without_names(inner) for inner in value] if isinstance(value, list) else value


def check_encodings(model, folder, classes):
    """All encodings of a model against its binary; returns how many."""
    at, count = MODELS / model, 0
    expected = None
    for what, path in encodings(at / "model.hlo.pb", folder, classes):
        found = described(path, at / "model.roles.json", SEARCHES[model], folder)
        expected = expected or found
        for name, ours, theirs in zip(("hash", "groups", "plan"), expected, found):
            assert ours == theirs, f"{model}, {what}: another {name}"
        count += 1
    return count


def check_text_without_metadata(model, folder):
    """jaxlib's text without metadata against the binary, both without a roles file."""
    alone = []
    for source in ("model.hlo.pb", "model.hlo.txt.zst"):
        path = folder / source  # away from model.roles.json
        shutil.copyfile(MODELS / model / source, path)
        alone.append(described(path, None, SEARCHES[model], folder))
    (hash_a, groups_a, plan_a), (hash_b, groups_b, plan_b) = alone
    assert hash_a == hash_b, f"{model}: jaxlib's text has another hash"
    assert without_names(groups_a) == without_names(groups_b), f"{model}: jaxlib's text has other groups"
    plan_a, plan_b = without_names(json.loads(plan_a)), without_names(json.loads(plan_b))
    assert plan_a == plan_b, f"{model}: jaxlib's text has another plan"


def check_swapped(folder):
    """two_swapped(a, b) returns (new b, new a): by the roles file and by data flow alike."""
    def pairs(path, *roles):
        rows = json.loads(automap("info", path, *roles, "--json"))["parameters"]
        return {row["path"]: row["output"] for row in rows if row["output"] is not None}

    at = MODELS / "two_swapped"
    named = {row["path"]: row["output"] for row in json.loads((at / "model.roles.json").read_text())["parameters"]
             if row["output"] is not None}
    outputs = [named[path] for path in named]
    assert outputs == sorted(outputs, reverse=True), "the model does not swap its states"
    alone = folder / "alone.hlo.pb"
    shutil.copyfile(at / "model.hlo.pb", alone)
    assert pairs(alone, "--roles", at / "model.roles.json") == named, "paired otherwise by the roles file"
    assert pairs(alone) == named, "paired otherwise by data flow"


def check_chain(binary, folder, library):
    """From binary to text to JSON and on, until each has been made of each other."""
    expected, at = library.sha256(binary), binary
    for number, suffix in enumerate(["hlo.txt", "hlo.json", "hlo.pb", "hlo.json", "hlo.txt", "hlo.pb"]):
        made = folder / f"chain{number}.{suffix}"
        automap("convert", at, made)
        assert library.sha256(made) == expected, f"{binary}: another hash as {suffix} made of {at.name}"
        at = made


def check_chains(folder):
    library, count = library_or_skip(), 0
    for binary in sorted(MODELS.glob("*/model.hlo.pb")):
        if binary.parent.name in LARGE and not FULL:
            continue
        check_chain(binary, folder, library)
        count += 1
    return count


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        classes = message_classes(folder)
        for model in SEARCHES:
            print(f"{model}: {check_encodings(model, folder, classes)} encodings agree", flush=True)
        for model in WITH_TEXT:
            check_text_without_metadata(model, folder)
            print(f"{model}: jaxlib's text without metadata agrees", flush=True)
        print(f"{check_chains(folder)} models keep their hash from encoding to encoding")
        check_swapped(folder)
        print("two_swapped: paired by the roles file and by data flow")


main()
