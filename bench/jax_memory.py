"""Predicted beside reported memory of plans for JAX on eight host devices.

The models of plans of one program are those of the zoo that JAX runs, and the further ones of
tests/e2e/test_jax_memory.py. Plans of several functions are those of tests/e2e/test_jax_pipelines.py, of the whole zoo
with AUTOMAP_FULL=1.

    AUTOMAP=build/automap PYTHONPATH=datasets python bench/jax_memory.py [--write bench/README.md]    # two minutes
    AUTOMAP=build/automap PYTHONPATH=datasets python bench/jax_memory.py --functions [MODEL ...]      # ten minutes
"""

import argparse
import pathlib
import sys
import tempfile

import marked_section

SOURCE = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(SOURCE / "tests" / "e2e")]


def rows_of_programs(folder):
    """The table of plans of one program, row by row."""
    import test_jax_memory as memory

    yield "| model | mesh | reported | predicted | predicted / reported |"
    yield "|---|---|---|---|---|"
    for case in memory.cases([*memory.TINY, *memory.LIMITED, *memory.FURTHER], folder):
        found = memory.measured(*case[1:], folder)
        if found:
            shape, reported, predicted = found
            mesh = "x".join(map(str, shape))
            yield f"| {case[0]} | {mesh} | {reported:,} | {predicted:,} | {predicted / reported:.3f} |"


def rows_of_functions(folder, models):
    """The table of plans of several functions, row by row; only of `models` if there are any."""
    import test_jax_pipelines as pipelines
    from automap_jax.one_program import is_one_program

    yield "| model | plan | schedule, stages | measured | predicted | predicted / measured |"
    yield "|---|---|---|---|---|---|"
    for name, what, options in pipelines.cases():
        if (name, what) in pipelines.REFUSED or (models and name not in models):
            continue
        run, document, _, found, predicted = pipelines.trained(name, what, options, folder, 2)
        if not is_one_program(document):
            plan = f"{document['schedule']}, {len(run.stages)}"
            yield f"| {name} | {what} | {plan} | {found:,} | {predicted:,} | {predicted / found:.3f} |"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", metavar="DOCUMENT")
    parser.add_argument("--functions", nargs="*", metavar="MODEL", help="plans of several functions; default all")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        has_functions = options.functions is not None
        at = pathlib.Path(folder)
        for row in rows_of_functions(at, options.functions) if has_functions else rows_of_programs(at):
            rows.append(row)
            print(row, flush=True)
    if options.write:
        section = "bench/jax_memory.py" + (", functions" if has_functions else "")
        marked_section.write(options.write, section, "\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
