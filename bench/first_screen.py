"""The first screen of README.md: the result of one search, as the program prints it, shortened, and as bars.

    python3 bench/first_screen.py           # writes README.md and docs/overview.svg
    python3 bench/first_screen.py --check   # exits with 1 where they differ from the result

The command is the one that README.md shows. Run in the source folder; the search takes 10 s.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile

AUTOMAP = os.environ.get("AUTOMAP", "build/automap")
README, PICTURE = "README.md", "docs/overview.svg"
COMMAND = re.compile(r"^    \$ automap (search .*) -o \S+\n", re.M)
PARAMETERS = [r"state\['params'\]\['layers'\]\[.*\]\['%s'\]\['kernel'\]" % name for name in ("down", "gate", "query")]
PLANS = ["this one", "data_parallel", "megatron", "megatron_sequence", "zero3", "context_zero3"]
LABELS = {"this one": "this plan", "zero3": "zero3 (FSDP)"}
LEFT, TOP, WIDTH, STEP = 210, 229, 520, 28  # of the bars, in pixels


def cells(line):
    return re.split(r"\s{2,}", line.strip())


def aligned(rows):
    """The parameter table of the rows; its last column is aligned to the right."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    for row in rows:
        yield "  ".join([cell.ljust(width) for cell, width in zip(row[:-1], widths)] + [row[-1].rjust(widths[-1])])


def shown(table):
    """The rows of a few weights, those with most layers, and the batch."""
    for name in PARAMETERS:
        yield max((row for row in table if re.fullmatch(name, row[0])), key=lambda row: int(row[-1]))
    yield next(row for row in table if row[0] == "tokens")


def screen(lines):
    """The shortened output."""
    head = next(k for k, line in enumerate(lines) if line.startswith("parameter "))
    table = [cells(line) for line in lines[head : lines.index("", head)]]
    rows = list(aligned([table[0], *shown(table[1:])]))
    plans = [line.rstrip() for line in lines if any(line.startswith(name + " ") for name in ["plan", *PLANS])]
    plans = [line for line in plans if not line.endswith(".json")]
    memory = next(line for line in lines if line.startswith("memory "))
    bound = next(line for line in lines if line.startswith("bound "))
    memory = memory[: memory.index(": ") + 2] + "…"
    return [lines[0], "", rows[0], "…", *rows[1:], "…", *plans, "…", memory, bound]


def milliseconds(text):
    number, unit = text.split()
    return float(number) * {"ms": 1, "s": 1000}[unit]


def bars(lines):
    """The bars of the picture: the plan, the baselines by their times, and the bound."""
    rows = {row[0]: row for row in map(cells, lines) if row[0] in PLANS}
    times = {name: row[1] for name, row in rows.items() if row[1] != "-"}
    order = sorted(PLANS, key=lambda name: (name != "this one", milliseconds(times[name]) if name in times else 1e9))
    bound = re.match(r"bound +(\S+ m?s)", next(line for line in lines if line.startswith("bound ")))[1]
    scale = WIDTH / max(milliseconds(time) for time in times.values())
    yield '  <g text-anchor="end">'
    for k, name in enumerate(order):
        kind = ' class="bold"' if k == 0 else ""
        yield f'    <text{kind} x="{LEFT - 10}" y="{TOP + 14 + STEP * k}">{LABELS.get(name, name)}</text>'
    yield "  </g>"
    for k, name in enumerate(order):
        kind, at = ("ours", "bold") if k == 0 else ("other", "small"), TOP + STEP * k
        if name not in times:
            yield f'  <text class="small" x="{LEFT}" y="{at + 14}">{rows[name][-1]}</text>'
            continue
        width = round(scale * milliseconds(times[name]))
        yield f'  <rect class="{kind[0]}" x="{LEFT}" y="{at}" width="{width}" height="19" rx="2"/>'
        yield f'  <text class="{kind[1]}" x="{LEFT + width + 8}" y="{at + 14}">{times[name]}</text>'
    x, end = LEFT + scale * milliseconds(bound), TOP + STEP * len(order)
    yield f'  <path class="bound" d="M{x:.1f} {TOP - 7}V{end}"/>'
    yield f'  <text class="boundtext" x="{LEFT}" y="{end + 18}">lower bound over all plans of the space: {bound}</text>'


def result(command):
    with tempfile.TemporaryDirectory() as folder:
        words = [AUTOMAP, *shlex.split(command), "-o", os.path.join(folder, "plan.json")]
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    arguments = parser.parse_args()
    readme, picture = open(README).read(), open(PICTURE).read()
    found = COMMAND.search(readme)
    lines = result(found[1])
    block = "".join(f"    {line}".rstrip() + "\n" for line in screen(lines))
    end = re.compile(r"^(?=\S)", re.M).search(readme, found.end()).start()
    marks = picture.index("  <!-- bars -->\n") + len("  <!-- bars -->\n"), picture.index("</svg>")
    new = {
        README: readme[: found.end()] + block + "\n" + readme[end:],
        PICTURE: picture[: marks[0]] + "\n".join(bars(lines)) + "\n" + picture[marks[1] :],
    }
    differing = [path for path, old in ((README, readme), (PICTURE, picture)) if new[path] != old]
    if arguments.check:
        sys.exit(f"bench/first_screen.py writes another {' and '.join(differing)}" if differing else 0)
    for path in differing:
        with open(path, "w") as file:
            file.write(new[path])


if __name__ == "__main__":
    main()
