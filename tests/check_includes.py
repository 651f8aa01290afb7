#!/usr/bin/env python3
"""Directions of includes, and the sizes of folders.

The table has the top folders that a folder may include, besides itself. The subfolders of a top folder include one
another without a cycle. cli/ includes the public header, base/ and the tables of options
alone. A folder has at most 20 source files and a line in the map of
docs/development.md. Every include names its folder, or a file beside it. Files of two folders have different base
names, tests apart.
"""
# labels: cpu check
# python: plain

import collections
import os
import pathlib
import re
import sys

# folder: the folders whose headers it may include, besides its own and include/
ALLOWED = {
    "base": "",
    "ir": "base",
    "models": "ir base",
    "published": "base",
    "dqn": "base",
    "propagation": "ir base",
    "lowering": "propagation ir base",
    "cost": "lowering propagation ir base",
    "planners": "cost dqn lowering propagation ir base",
    "executor": "lowering propagation ir base",
    "api": "published models planners executor cost dqn lowering propagation ir base",
    "cli": "api published models planners executor cost dqn lowering propagation ir base",
    "bench": "cli api published models planners executor cost dqn lowering propagation ir base",
    "tests": "bench cli api published models planners executor cost dqn lowering propagation ir base",
}
# cli/ is a client of include/automap.h. Besides its own headers it may include these.
CLI_MAY = ("cli/", "base/", "api/option_rows.h")
MOST_SOURCES = 20
GENERATED = {"automap.h", "automap_status.h", "automap_features.h", "automap_agent.h", "automap_assignment.h",
             "cuda_texts.h"}
# Host code of MPI and NCCL stays in one file each; the tests' stand-in for NCCL is another library.
ONE_USER = ("mpi.h", "nccl.h")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(["<])([^">]+)[">]', re.MULTILINE)
SOURCES = (".c", ".cu")


def read_includes(files):
    """Yields (file, line number, header, whether it is quoted)."""
    for path in files:
        text = path.read_text()
        for match in INCLUDE.finditer(text):
            yield path, text.count("\n", 0, match.start(2)) + 1, match.group(2), match.group(1) == '"'


def find_cycle(edges):
    """Returns the rooms of a cycle, first and last alike, or None."""
    state, path = {}, []

    def visit(room):
        state[room] = 1
        path.append(room)
        for other in sorted(edges.get(room, {})):
            if state.get(other) == 1:
                return path[path.index(other):] + [other]
            found = visit(other) if other not in state else None
            if found:
                return found
        path.pop()
        state[room] = 2
        return None

    for room in sorted(edges):
        found = visit(room) if room not in state else None
        if found:
            return found
    return None


def main():
    os.chdir(os.environ.get("AUTOMAP_SOURCE", pathlib.Path(__file__).resolve().parent.parent))
    files = sorted(path for folder in ALLOWED for path in pathlib.Path(folder).rglob("*")
                   if path.suffix in (".c", ".h", ".cu", ".def"))
    problems, checked = [], 0
    edges = collections.defaultdict(dict)  # room -> room -> the first include
    users = collections.defaultdict(set)
    for path, line, header, is_quoted in read_includes(files):
        if header in ONE_USER and "stand_in" not in path.parts:
            users[header].add(str(path))
        if not is_quoted:
            continue
        checked += 1
        if "/" not in header:
            if header not in GENERATED and not (path.parent / header).exists():
                problems.append(f'{path}:{line}: "{header}" does not name its folder')
            continue
        folder, target = path.parts[0], header.split("/")[0]
        if folder == "cli" and not header.startswith(CLI_MAY):
            problems.append(f'{path}:{line}: cli includes "{header}" (expected automap.h or one of {CLI_MAY})')
        if target != folder and target not in ALLOWED[folder].split():
            problems.append(f'{path}:{line}: {folder} must not include "{header}" (may include: {ALLOWED[folder]})')
        room, other = str(path.parent), os.path.dirname(header)
        if room != other and folder != "tests":
            edges[room].setdefault(other, f'{path}:{line}: "{header}"')
    cycle = find_cycle(edges)
    if cycle:
        problems.append("folders include one another in a cycle: " + " -> ".join(cycle))
        problems += ["  " + edges[a][b] for a, b in zip(cycle, cycle[1:])]
    sizes = collections.Counter(str(path.parent) for path in files if path.suffix in SOURCES)
    problems += [f"{folder}: {count} source files, at most {MOST_SOURCES} belong in a folder"
                 for folder, count in sorted(sizes.items()) if count > MOST_SOURCES]
    places = collections.defaultdict(set)  # base name -> folders
    for path in [*files, *pathlib.Path("examples").glob("*.c")]:
        if path.parts[0] != "tests":
            places[path.stem].add(str(path.parent))
    problems += [f"{stem}: files of this name in {' and '.join(sorted(folders))} (expected one folder)"
                 for stem, folders in sorted(places.items()) if len(folders) > 1]
    page = pathlib.Path("docs/development.md").read_text()
    problems += [f"{folder}: not in the map of docs/development.md" for folder in sorted(sizes)
                 if f"`{folder}/`" not in page and not folder.startswith("tests/")]
    problems += [f"{header} is included by more than one file: {' '.join(sorted(names))}"
                 for header, names in users.items() if len(names) > 1]
    print(*problems, sep="\n", end="\n" if problems else "")
    print(f"{checked} includes of {len(sizes)} folders checked, {len(problems)} violations")
    return 1 if problems or not checked else 0


sys.exit(main())
