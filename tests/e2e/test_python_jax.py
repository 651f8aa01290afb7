"""The cells of examples/jax_plan.ipynb run as they stand on the library of this build, and automap_jax.plan finds the
same shardings by the library and by the program."""

# labels: jax e2e
# cost: 15

import json
import os
import pathlib
import sys
import tempfile

if "AUTOMAP_SANITIZE" in os.environ:
    print("skipped: Python does not load a sanitized library")
    sys.exit(77)
SOURCE = pathlib.Path(os.environ["AUTOMAP_SOURCE"])
sys.path.insert(0, str(SOURCE / "python"))
PROGRAM = os.environ.pop("AUTOMAP")  # with it automap_jax uses the program


def run_cells(folder):
    """The names that the cells define, executed in a folder."""
    book = json.loads((SOURCE / "examples/jax_plan.ipynb").read_text())
    cells = ["".join(cell["source"]) for cell in book["cells"] if cell["cell_type"] == "code"]
    assert len(cells) > 5
    assert all(cell["execution_count"] for cell in book["cells"] if cell["cell_type"] == "code"), "not executed"
    here = os.getcwd()
    os.chdir(folder)
    try:
        names = {}
        for number, cell in enumerate(cells):
            exec(compile(cell, f"cell {number}", "exec"), names)
        return names
    finally:
        os.chdir(here)


def check_library(names):
    """The library and the program find the same shardings, with options."""
    import automap_hlo
    import automap_jax
    import jax

    searches = []
    search = automap_hlo.search
    automap_hlo.search = lambda *arguments, **options: searches.append(options) or search(*arguments, **options)
    arguments = names["state"], names["x"], names["y"]
    pins = ["--pin", "x=data,-", "--pin", "y=data"]
    options = ["--mesh", "data=4,model=2", "--no-exceptions", "--evaluations=20", *pins]
    found = []
    for program in (None, PROGRAM):
        if program:
            os.environ["AUTOMAP"] = program
        found.append(automap_jax.plan(names["step"], arguments, "nominal:8", options=options))
    assert jax.tree.leaves(found[0]) == jax.tree.leaves(found[1]), found
    assert len(searches) == 1, searches  # the program does not use the library
    assert searches[0]["pin"] == ["x=data,-", "y=data"] and searches[0]["even"] == [True], searches
    os.environ.pop("AUTOMAP")
    for refused, options in ((automap_hlo.UsageError, ["--evaluation", 3]), (ValueError, ["--seed"])):
        try:
            automap_jax.plan(names["step"], arguments, "nominal:8", options=options)
        except refused:
            continue
        raise AssertionError(f"{options} was accepted")


with tempfile.TemporaryDirectory() as folder:
    check_library(run_cells(folder))
print("the notebook's cells run; plans by library and program are equal")
