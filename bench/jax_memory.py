"""Predicted beside reported memory of plans of one program for JAX on eight host devices.

The models are those of the zoo that JAX runs, and the further ones of tests/e2e/test_jax_memory.py.

    AUTOMAP=build/automap PYTHONPATH=datasets python bench/jax_memory.py [--write bench/README.md]    # two minutes
"""

import argparse
import pathlib
import sys
import tempfile

import marked_section

SOURCE = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(SOURCE / "tests" / "e2e")]


def main():
    import test_jax_memory as memory

    parser = argparse.ArgumentParser()
    parser.add_argument("--write", metavar="DOCUMENT")
    options = parser.parse_args()
    rows = ["| model | mesh | reported | predicted | predicted / reported |", "|---|---|---|---|---|"]
    with tempfile.TemporaryDirectory() as folder:
        for case in memory.cases([*memory.TINY, *memory.LIMITED, *memory.FURTHER], pathlib.Path(folder)):
            found = memory.measured(*case[1:], folder)
            if found:
                shape, reported, predicted = found
                mesh = "x".join(map(str, shape))
                rows.append(f"| {case[0]} | {mesh} | {reported:,} | {predicted:,} | {predicted / reported:.3f} |")
                print(rows[-1], flush=True)
    if options.write:
        marked_section.write(options.write, "bench/jax_memory.py", "\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
