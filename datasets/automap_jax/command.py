"""Exports a model of the zoo: the module and its roles, and, where the model is small enough to be
run, its state, its data, and the losses and final state of a reference run.
"""

import argparse
import pathlib

import jax

from . import reference
from .exporter import export, write_module
from .zoo import MODELS

# Source files in the committed modules are named relative to the package's folder.
PACKAGE_FOLDER = str(pathlib.Path(__file__).parents[1]).replace(".", r"\.") + "/"


def export_model(name, directory, steps=None, text=False):
    """Exports the zoo's model `name` to a directory; `steps` overrides the reference run's length,
    0 leaves it out; `text` adds jaxlib's own text of the module, with and without metadata."""
    model = MODELS[name]()
    if model.is_small():
        state, data = model.state(), model.data(model.batches)
        lowered, document = export(
            model.step,
            model.arguments,
            directory,
            state,
            data,
            constants=model.constants,
            inference=True,
        )
    else:
        lowered, document = write_module(
            model.step, model.arguments, directory, constants=model.constants
        )
    steps = model.steps if steps is None else steps
    if model.is_small() and steps:
        reference.write(model, document, directory, steps)
    if text:
        (directory / "model.hlo.txt").write_text(lowered.as_text("hlo"))
        (directory / "model.metadata.hlo.txt").write_text(lowered.as_text("hlo", debug_info=True))


def main():
    parser = argparse.ArgumentParser(
        prog="python -m automap_jax.export",
        description=__doc__,
    )
    parser.add_argument("name", nargs="?", choices=sorted(MODELS), help="a model of the zoo")
    parser.add_argument("--list", action="store_true", help="name the models and exit")
    parser.add_argument("--out", type=pathlib.Path, help="the directory to write (default ./NAME)")
    parser.add_argument("--steps", type=int, help="length of the reference run, 0 for none")
    parser.add_argument("--text", action="store_true", help="write jaxlib's text of the module too")
    options = parser.parse_args()
    if options.list:
        print("\n".join(sorted(MODELS)))
    elif options.name is None:
        parser.error("name a model, or --list them")
    else:
        jax.config.update("jax_hlo_source_file_canonicalization_regex", PACKAGE_FOLDER)
        export_model(
            options.name, options.out or pathlib.Path(options.name), options.steps, options.text
        )
