"""The cells of examples/torch_plan.ipynb run as they stand on the library of this build: a pipeline on four ranks has
the losses of one process.

With --write the outputs of the cells are written into the notebook.
"""

# labels: cpu e2e torch full
# timeout: 600
# cost: 30
# python: torch

import contextlib
import io
import json
import os
import pathlib
import sys
import tempfile

if "AUTOMAP_SANITIZE" in os.environ:
    print("skipped: Python does not load a sanitized library")
    sys.exit(77)
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
from program import skip_where_missing

with skip_where_missing():
    import torch

    assert torch.__version__

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BOOK = SOURCE / "examples" / "torch_plan.ipynb"
sys.path.insert(0, str(SOURCE / "python"))
os.environ["PYTHONPATH"] = str(SOURCE / "python")  # of the ranks


def run_cells(book):
    names, outputs = {}, {}
    for number, cell in enumerate(book["cells"]):
        if cell["cell_type"] != "code":
            continue
        assert cell["execution_count"], "not executed"
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
        outputs[number] = printed.getvalue()
    return outputs


def main():
    book = json.loads(BOOK.read_text())
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        outputs = run_cells(book)
        os.chdir(SOURCE)
    assert sum(map(bool, outputs.values())) >= 2, outputs
    for number, text in outputs.items():
        print(text, end="")
        lines = text.splitlines(True)
        found = [{"name": "stdout", "output_type": "stream", "text": lines}] if text else []
        if "--write" in sys.argv:
            book["cells"][number]["outputs"] = found
        else:
            assert book["cells"][number]["outputs"] == found, f"cell {number}: another output (--write)"
    if "--write" in sys.argv:
        BOOK.write_text(json.dumps(book, indent=1) + "\n")


main()
