#!/usr/bin/env python3
"""Checks the links of all documents: files, anchors, and the names of pages in other files.

- A link `](PATH#ANCHOR)` of an .md file names a file or folder, and a heading of it.
- A name of a file after `docs/`, in any source file, names a page or a picture.
- A source file that a document names, such as `ir/read.c` or `read.c`, exists.
- A function that a document names in a file, as "`NAME()` in `FILE`", is in that file.
- Two headings of one page differ, so that anchors stay when a section is added.
- A line has at most 120 characters, except tables, code blocks and lines of one word.

  tests/check_links.py            prints each violation as FILE:LINE: TEXT; the exit code is 1 if there is one
"""
# labels: cpu check

import collections
import os
import pathlib
import re
import sys

ROOT = pathlib.Path(os.environ.get("AUTOMAP_SOURCE", pathlib.Path(__file__).parents[1]))
LINK = re.compile(r"\]\(([^)\s]+)\)")
FILE = re.compile(r"`(?:\./)?((?:[\w-]+/)*[\w-]+\.(?:c|cu|def|h|py|sh))`")
FUNCTION = re.compile(r"`(\w+)\(\)` in `((?:[\w-]+/)*[\w-]+\.(?:c|cu|h|py))`")
PAGE = re.compile(r"\bdocs/([\w-]+\.(?:md|svg))\b")
SOURCES = {"", ".c", ".cmake", ".cu", ".def", ".h", ".md", ".py", ".sh", ".txt"}
FOREIGN = {"cuda.h", "mpi.h", "nvrtc.h"}  # headers of libraries
WIDTH = 120


def lines_of(text):
    """Yields (number, line, whether the line is code)."""
    is_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            is_code = not is_code
        yield number, line, is_code or line.startswith(("```", "    "))


def headings(text):
    """Yields (number, anchor) of the headings, as GitHub forms anchors."""
    for number, line, is_code in lines_of(text):
        match = re.match(r"#+ (.*)", line)
        if match and not is_code:
            words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", match[1]).lower()
            yield number, re.sub(r"[^\w\- ]", "", words).replace(" ", "-")


def find_sources(name, files):
    """Returns the files that have this path, from the root or from a folder of the sources."""
    return [name] if name in files else [file for file in files if file.endswith("/" + name)]


def check_page(path, text, anchors, files):
    """Yields (line, problem) of one document."""
    for anchor, count in collections.Counter(anchors[path]).items():
        if count > 1:
            yield 1, f"{count} headings with the anchor #{anchor}"
    for number, line, is_code in lines_of(text):
        if is_code:
            continue
        for name in FILE.findall(line):
            if path.name != "CHANGELOG.md" and name not in FOREIGN and not find_sources(name, files):
                yield number, f"no file {name}"
        for function, name in FUNCTION.findall(line):
            if not any(re.search(rf"\b{function}\(", pathlib.Path(file).read_text())
                       for file in find_sources(name, files)):
                yield number, f"no function {function}() in {name}"
        if len(line) > WIDTH and not line.startswith("|") and " " in line.strip():
            yield number, f"{len(line)} characters, at most {WIDTH}"
        for target in LINK.findall(re.sub(r"`[^`]*`", "", line)):
            if re.match(r"[a-z]+:", target):
                continue
            name, _, anchor = target.partition("#")
            file = os.path.normpath(path.parent / name) if name else str(path)
            if file not in files and not any(other.startswith(file + "/") for other in files):
                yield number, f"no file {file}"
            elif anchor and anchor not in anchors.get(pathlib.Path(file), ()):
                yield number, f"no heading #{anchor} in {file}"


def list_files():
    """Returns the names of all files, without hidden and build folders."""
    found = set()
    for folder, folders, names in os.walk("."):
        skipped = (".", "__", "build") if folder == "." else (".", "__")
        folders[:] = [name for name in folders if not name.startswith(skipped)]
        found.update(os.path.normpath(os.path.join(folder, name)) for name in names)
    return found


def check_names(path, files):
    """Yields (line, problem) of the names of pages in a source file."""
    for number, line in enumerate(path.read_text(errors="ignore").splitlines(), 1):
        for name in PAGE.findall(line):
            if f"docs/{name}" not in files:
                yield number, f"no page docs/{name}"


def main():
    os.chdir(ROOT)
    files = list_files()
    pages = {pathlib.Path(name): pathlib.Path(name).read_text() for name in sorted(files) if name.endswith(".md")}
    anchors = {path: [anchor for _, anchor in headings(text)] for path, text in pages.items()}
    violations = [f"{path}:{number}: {problem}" for path, text in pages.items()
                  for number, problem in check_page(path, text, anchors, files)]
    for name in sorted(files):
        if pathlib.Path(name).suffix in SOURCES:
            violations += [f"{name}:{number}: {problem}" for number, problem in check_names(pathlib.Path(name), files)]
    print("\n".join(violations), end="\n" if violations else "")
    print(f"{len(pages)} documents checked, {len(violations)} violations")
    return 1 if violations or not pages else 0


if __name__ == "__main__":
    sys.exit(main())
