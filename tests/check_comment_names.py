#!/usr/bin/env python3
"""Functions that comments of C sources name as `name()` exist.

A name exists if code of the project has it as a word: a definition, a declaration or a call of a library. Patterns such
as verify_NAME() are not checked. OF_OTHERS are functions of other projects.
"""
# labels: cpu check

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDERS = ("api", "base", "bench", "cli", "cost", "datasets", "dqn", "examples", "executor", "include", "ir",
           "lowering", "models", "planners", "propagation", "published", "python", "tests")  # fmt: skip
COMMENT_OR_STRING = re.compile(r'(?P<comment>/\*.*?\*/|//[^\n]*)|"(?:\\.|[^"\\])*"', re.DOTALL)
NAMED = re.compile(r"(?<![\w.])([a-z]\w*)\(\)")
OF_OTHERS = {"is_kernel_available"}  # Megatron-LM


def sources():
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".c", ".h", ".cu", ".def", ".py"):
                yield path


def main():
    words, named = set(OF_OTHERS), []
    for path in sources():
        text = path.read_text(errors="replace")
        if path.suffix != ".py":
            for match in COMMENT_OR_STRING.finditer(text):
                for name in NAMED.finditer(match["comment"] or ""):
                    named.append((path, text.count("\n", 0, match.start() + name.start()) + 1, name[1]))
            text = COMMENT_OR_STRING.sub(lambda match: " " if match["comment"] else match[0], text)
        words.update(re.findall(r"\w+", text))
    missing = [f"{path.relative_to(ROOT)}:{line}: {name}() is no function here" for path, line, name in named
               if name not in words and not re.search("[A-Z]{3}", name)]
    print("\n".join(missing) or f"{len(named)} names of functions in comments exist")
    return 1 if missing or len(named) < 500 else 0


if __name__ == "__main__":
    sys.exit(main())
