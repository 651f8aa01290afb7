"""Binary and JSON against Google's protobuf, on committed models and every JSON style.

Compiles ir/hlo.proto with protoc and lets Python's protobuf and automap read each other's files:
binary to our JSON to protobuf, and protobuf's JSON (camelCase or snake_case keys, defaults printed
or not, enums as numbers, bare or inside HloProto or HloSnapshot) to our binary.
"""
# labels: cpu e2e
# timeout: 120

import itertools
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[2]
AUTOMAP = os.environ.get("AUTOMAP")
MODELS = ["mlp_tiny", "two_swapped", "vgg_tiny", "exact_gather"]

try:
    from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
except ImportError:
    print("skipped: Python has no protobuf")
    sys.exit(77)
if not AUTOMAP or not os.path.exists(AUTOMAP) or not shutil.which("protoc"):
    print("skipped: no automap program or no protoc")
    sys.exit(77)


def load_messages(folder):
    """The message classes of our schema, by name."""
    compiled = folder / "schema.bin"
    subprocess.run(["protoc", f"--proto_path={SOURCE}", f"--descriptor_set_out={compiled}",
                    str(SOURCE / "ir" / "hlo.proto")], check=True)
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(compiled.read_bytes()).file:
        pool.Add(file)
    names = ["HloModuleProto", "HloProto", "HloSnapshot"]
    return [message_factory.GetMessageClass(pool.FindMessageTypeByName("hlo." + name)) for name in names]


def convert(source, target):
    """`automap convert`, which must succeed."""
    done = subprocess.run([AUTOMAP, "convert", source, target], capture_output=True, text=True)
    assert done.returncode == 0, f"convert {source} {target}: {done.stdout}{done.stderr}"


def json_styles():
    """Options of json_format that change its output."""
    for snake, defaults, numbers in itertools.product([False, True], repeat=3):
        yield {"preserving_proto_field_name": snake, "always_print_fields_with_no_presence": defaults,
               "use_integers_for_enums": numbers}


def check_model(path, folder, messages):
    """Both directions for one model; returns the number of files compared."""
    module_class, proto_class, snapshot_class = messages
    module = module_class.FromString(path.read_bytes())
    module.DiscardUnknownFields()
    snapshot = snapshot_class(hlo=proto_class(hlo_module=module))
    shapes = [module, snapshot.hlo, snapshot]

    ours = folder / "ours.hlo.json"
    convert(path, ours)
    text = ours.read_text()
    assert json_format.Parse(text, module_class()) == module, f"{path}: our JSON reads differently"
    assert json.loads(text) == json_format.MessageToDict(module), f"{path}: our JSON has another form"
    compared = 1

    theirs, back = folder / "theirs.hlo.json", folder / "back.hlo.pb"
    for style, message in itertools.product(json_styles(), shapes):
        theirs.write_text(json_format.MessageToJson(message, **style))
        convert(theirs, back)
        assert module_class.FromString(back.read_bytes()) == module, f"{path}: {style} reads differently"
        compared += 1
    wrapped = folder / "wrapped.pb"
    for message in shapes:
        wrapped.write_bytes(message.SerializeToString())
        convert(wrapped, back)
        assert module_class.FromString(back.read_bytes()) == module, f"{path}: wrapped binary reads differently"
        compared += 1
    return compared


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        messages = load_messages(folder)
        for model in MODELS:
            path = SOURCE / "datasets" / "models" / model / "model.hlo.pb"
            print(f"{model}: {check_model(path, folder, messages)} files agree")


main()
