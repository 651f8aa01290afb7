"""Predicted beside reported memory of plans for JAX on eight host devices.

The models of plans of one program are those of the zoo that JAX runs, and the further ones of
tests/e2e/test_jax_memory.py. Plans of several functions are the default ones of the zoo's small models, and those of
every schedule and of ZeRO, with and without recomputation. Losses are compared with those of one device.

    AUTOMAP=build/automap PYTHONPATH=datasets python bench/jax_memory.py [--write bench/README.md]    # two minutes
    AUTOMAP=build/automap PYTHONPATH=datasets python bench/jax_memory.py --functions [MODEL ...]      # hours for all
    AUTOMAP=build/automap PYTHONPATH=datasets python bench/jax_memory.py --one-program [MODEL ...]    # three minutes
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


def plans_of_functions(pipelines):
    """{name of a plan: options of its search}."""
    found = {what: options for what, options in pipelines.MORE.items() if what != "recomputed"}
    for what in ("gpipe", "1f1b", "zb_h1", "interleaved"):
        words = ["even_pipeline_full" if word == "even_pipeline" else word for word in pipelines.MORE[what]]
        if "--mesh" in words:  # the baseline chooses its own
            at = words.index("--mesh")
            del words[at:at + 2]
        found[f"{what}, recomputed"] = words
    found["zero3, recomputed"] = ["zero3_full" if word == "zero3" else word for word in pipelines.MORE["zero3"]]
    return found


def rows_of_functions(folder, models):
    """The table of plans of several functions, row by row; only of `models` if there are any."""
    import test_jax_memory as memory
    import test_jax_pipelines as pipelines
    from automap_jax.one_program import is_one_program

    yield "| model | plan | schedule, stages | measured | predicted | predicted / measured |"
    yield "|---|---|---|---|---|---|"
    for name in models or memory.TINY:
        for what, options in plans_of_functions(pipelines).items():
            module = next((pipelines.MODELS / name).glob("model.hlo.pb*"))
            done = pipelines.automap("search", module, "--for", "jax", *options, "-o", folder / "plan.json", "--quiet")
            if done.returncode == 4:
                yield f"| {name} | {what} | refused | | | |"
                continue
            run, document, worst, found, predicted = pipelines.trained(name, what, options, folder, 2)
            assert worst <= pipelines.NARROW.get(name, pipelines.TOLERANCE), f"{name}, {what}: {worst:.1e}"
            if not is_one_program(document):
                plan = f"{document['schedule']}, {len(run.stages)}"
                yield f"| {name} | {what} | {plan} | {found:,} | {predicted:,} | {predicted / found:.3f} |"


def rows_of_pipelines(folder, models):
    """The table of pipelines as one program beside the prediction, which is for functions, row by row."""
    import test_jax_pipelines as pipelines

    yield "| model | plan | measured | predicted for functions | measured / predicted |"
    yield "|---|---|---|---|---|"
    for name in models or ("mlp_tiny", "vgg_tiny", "gpt2_tiny"):
        for what in ("gpipe", "1f1b", "zb_h1"):
            step, state, data = pipelines.arguments_of(name)
            document, plan = pipelines.document_of(name, pipelines.MORE[what], folder)
            run = pipelines.automap_jax.run(document, step, (*state, *data(0)), donate=True, form="one_program")
            run(*state, *data(0))
            predicted = max(row["peak_bytes"] + row.get("channel_bytes", 0) for row in plan["predicted"]["devices"])
            yield f"| {name} | {what} | {run.peak_bytes:,} | {predicted:,} | {run.peak_bytes / predicted:.2f} |"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", metavar="DOCUMENT")
    tables = {"functions": rows_of_functions, "one-program": rows_of_pipelines}
    parser.add_argument("--functions", nargs="*", metavar="MODEL", help="plans of several functions; default all")
    parser.add_argument("--one-program", nargs="*", metavar="MODEL", help="pipelines as one program")
    options = parser.parse_args()
    chosen = {name: vars(options)[name.replace("-", "_")] for name in tables}
    what = next((name for name, models in chosen.items() if models is not None), None)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        at = pathlib.Path(folder)
        for row in tables[what](at, chosen[what]) if what else rows_of_programs(at):
            rows.append(row)
            print(row, flush=True)
    if options.write:
        section = "bench/jax_memory.py" + (f", {what}" if what else "")
        marked_section.write(options.write, section, "\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
