"""Writes the output of a benchmark into its section of a document, such as bench/README.md.

    python3 bench/write_section.py bench/README.md build/bench_actors
    python3 bench/write_section.py bench/README.md python3 bench/pipelines.py

The section is between marks with the command as its name (marked_section.py). Rows of Markdown tables stay as they
are. Lines whose fields are separated by tabs become a Markdown table, and other output becomes a code block. A failed
command changes nothing.
"""

import subprocess
import sys

import marked_section


def as_table(rows):
    """Returns rows of fields as a Markdown table. The first row is its head, unless it ends with a verdict ("ok", "no"
    or "-"): then the fields are a check, its figure, the limit and the verdict."""
    if rows[0][-1] in ("ok", "no", "-"):
        rows = [["check", "here", "limit", "met"]] + rows
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "".join(line + "\n" for line in [lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def as_section(output):
    """Returns the output as Markdown."""
    lines = output.strip("\n").splitlines()
    rows = [line.split("\t") for line in lines]
    if len(rows[0]) > 2 and all(len(row) == len(rows[0]) for row in rows):
        return as_table(rows)
    lines = [line.rstrip().expandtabs() for line in lines]
    is_table = any(line.startswith("|") for line in lines)
    return "".join((line if is_table or not line else "    " + line) + "\n" for line in lines)


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    document, command = sys.argv[1], sys.argv[2:]
    marked_section.split(document, " ".join(command))  # before the time of the benchmark
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.returncode)
    section = as_section(done.stdout)
    if section.startswith("    ") or section.startswith("\n"):
        section = "\n" + section + "\n"
    marked_section.write(document, " ".join(command), section)


if __name__ == "__main__":
    main()
