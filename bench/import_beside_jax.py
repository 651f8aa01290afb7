"""Reading modules beside jaxlib: automap's readers and XLA's own, on the same files.

For models of datasets/models, from the binary and from the HLO text that automap prints,
milliseconds of

    automap   ir_read(): decompress, parse, build, verify; as bench_import measures it
    jaxlib    HloModule.from_serialized_hlo_module_proto, hlo_module_from_text: parse, build, verify

and the ratio automap / jaxlib (below 1: automap is faster). Both are the least of seven.

Run as `AUTOMAP_BUILD=build python bench/import_beside_jax.py [--quick] [MODEL ...]`.
"""

import argparse
import os
import pathlib
import subprocess
import tempfile
import time

from jaxlib import _hlo

SOURCE = pathlib.Path(__file__).resolve().parents[1]
MODELS = SOURCE / "datasets" / "models"
BUILD = pathlib.Path(os.environ.get("AUTOMAP_BUILD", SOURCE / "build")).resolve()
NAMES = ["mlp_tiny", "vgg19", "t5_tiny", "t5_paper_6", "bert48", "t5_paper_24_3b"]
RUNS = 7


def least_seconds(parse, content):
    seconds = []
    for _ in range(RUNS):
        begin = time.perf_counter()
        parse(content)
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def automap_seconds(model):
    """{encoding: least seconds} from bench_import's table: model, encoding, ..., median, least."""
    done = subprocess.run([BUILD / "bench_import", model], cwd=SOURCE, capture_output=True, text=True, check=True)
    rows = [line.split() for line in done.stdout.splitlines()[1:]]
    return {row[1]: float(row[5]) / 1e3 for row in rows}


def jaxlib_seconds(model, folder):
    """{encoding: least seconds} of XLA's parsers."""
    stored = next(MODELS.joinpath(model).glob("model.hlo.pb*"))
    binary, text = folder / "model.hlo.pb", folder / "model.hlo.txt"
    for target in (binary, text):
        subprocess.run([BUILD / "automap", "convert", stored, target], check=True, stdout=subprocess.DEVNULL)
    return {
        "binary": least_seconds(_hlo.HloModule.from_serialized_hlo_module_proto, binary.read_bytes()),
        "text": least_seconds(_hlo.hlo_module_from_text, text.read_text()),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=NAMES, metavar="MODEL", help=f"default {' '.join(NAMES)}")
    parser.add_argument("--quick", action="store_true", help="mlp_tiny alone, to see that it works")
    options = parser.parse_args()
    print(f"{'model':16}{'from':8}{'automap ms':>12}{'jaxlib ms':>12}{'ratio':>8}")
    for model in ["mlp_tiny"] if options.quick else options.models:
        ours = automap_seconds(model)
        with tempfile.TemporaryDirectory() as folder:
            theirs = jaxlib_seconds(model, pathlib.Path(folder))
        for encoding, seconds in theirs.items():
            print(f"{model:16}{encoding:8}{1e3 * ours[encoding]:12.2f}{1e3 * seconds:12.2f}"
                  f"{ours[encoding] / seconds:8.2f}", flush=True)


if __name__ == "__main__":
    main()
