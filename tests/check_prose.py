#!/usr/bin/env python3
"""Counts sentences of comments, messages, documents and scripts that break docs/style.md.

A sentence is marked if it has a form that the style guide replaces: a "what" clause in place of a noun, things that act
like people, riddles by negation. The length of a sentence, and most words of the glossary's right column, are not
checked. A marker is a hint. The check keeps the share of marked sentences low: LIMITS, by kind.

A comment behind a member or statement of C must be a complete phrase: none may end with a comma or in the middle of an
enumeration, to be continued behind the next member.

  tests/check_prose.py [--list]    --list prints the marked sentences
"""
# labels: cpu check
# python: plain

import ast
import collections
import os
import pathlib
import re
import sys

# share of marked sentences; scripts: comments and docstrings of Python and Bash. Each top folder keeps the share of
# comments and scripts, unless it has few sentences.
LIMITS = {"comments": 0.030, "messages": 0.005, "documents": 0.030, "scripts": 0.030}
BY_FOLDER = ("comments", "scripts")
FEW = 50
FOLDERS = ("base", "ir", "models", "published", "propagation", "lowering", "cost", "dqn", "planners", "executor", "api",
           "cli", "examples", "include", "bench", "tests")
SCRIPT_FOLDERS = (".ci", "bench", "datasets", "examples", "python", "tests")

FORMS = (
    r"what (?:a|an|the|its|their|one|each|every|it|they|is|was|has|had|may|must|can|comes|goes|lies|makes|takes|needs"
    r"|follows|others?)",
    r"(?:is|are|was|were|be|been|being) (?:told|asked|wanted|meant|made again)",
    r"(?:nobody|whoever|hardly|of which|by chance|all the same|worth it|in the way|the like|for want of)",
    r"(?:is|are) none",
    r"none of (?:it|them)",
    r"(?:says?|knows?) (?:so|nothing|what|how|which|where|why|no)",
    r"tells?(?! apart)",
    r"stands? (?:for itself|beside|there|here|where|above|below)",
    r"lies? (?:in|on|at|together|apart|along)",
    r"(?:looked (?:at|into|for)|passed over|give way|goes by|speaks? of|has nothing)",
    r"as (?:it|they) (?:is|are|was|were|lies?|comes?)",
)
MARK = re.compile("|".join(rf"\b{form}\b" for form in FORMS), re.IGNORECASE)
BEGINS = re.compile(r"^(?:What|Where|Whether|Who|Whose|Of|By|Those|Nothing|Nobody)\b")
NOT_PROSE = re.compile(r"```.*?```|^ {4,}[^-\s][^\n]*$|^[|#][^\n]*$|\]\([^)\n]*\)", re.DOTALL | re.MULTILINE)
COMMENT = re.compile(r"/\*(.*?)\*/|//([^\n]*)", re.DOTALL)
REMARK = re.compile(r"(?:^[ \t]*#(?!!)[^\n]*\n)+", re.MULTILINE)
TRAILING = re.compile(r"^[ \t]*[^\s/*#][^\n]*?[;,] */\*((?:[^*]|\*(?!/))*)\*/[ \t]*$", re.MULTILINE)
UNFINISHED = re.compile(r"(?:,|\b(?:or|and|of|the))$")
STRING = re.compile(r'(?:"(?:[^"\\\n]|\\.)*"\s*)+')


def sentences(text):
    """Yields the sentences of at least four words."""
    text = re.sub(r"\s*\n\s*\*?\s*", " ", text)
    for sentence in re.split(r"(?<=[.!?;])\s+(?=[A-Z`\"'(])", text):
        sentence = sentence.strip(" */")
        if len(sentence.split()) >= 4:
            yield sentence


def read_script(path):
    """Yields the comments of a script, and the docstrings of Python."""
    text = path.read_text()
    for match in REMARK.finditer(text):
        yield re.sub(r"^[ \t]*# ?", "", match.group(0), flags=re.MULTILINE)
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                yield ast.get_docstring(node) or ""


def read(path):
    """Yields (kind, sentence) of a source file, a document or a script."""
    if path.suffix in (".py", ".sh", ".bash"):
        for remark in read_script(path):
            for sentence in sentences(remark):
                yield "scripts", sentence
        return
    text = path.read_text()
    if path.suffix == ".md":
        for sentence in sentences(NOT_PROSE.sub(" ", text)):
            yield "documents", sentence
        return
    for match in COMMENT.finditer(text):
        for sentence in sentences(match.group(1) or match.group(2) or ""):
            yield "comments", sentence
    if path.parts[0] == "tests":
        return
    for match in STRING.finditer(COMMENT.sub(" ", text)):
        message = "".join(re.findall(r'"((?:[^"\\\n]|\\.)*)"', match.group(0)))
        if len(message.split()) >= 4 and re.search("[a-z]{3}", message):
            yield "messages", message


def unfinished_comments(path):
    """Yields "path:line: comment" of comments behind members and statements that break off."""
    text = path.read_text()
    for match in TRAILING.finditer(text):
        comment = re.sub(r"\s*\n\s*\*?\s*", " ", match.group(1)).strip()
        if UNFINISHED.search(comment):
            yield f"{path}:{text.count(chr(10), 0, match.start(1)) + 1}: {comment}"


def main():
    os.chdir(os.environ.get("AUTOMAP_SOURCE", pathlib.Path(__file__).resolve().parent.parent))
    files = sorted(path for folder in FOLDERS for path in pathlib.Path(folder).rglob("*")
                   if path.suffix in (".c", ".h", ".cu") and "fuzz" not in path.parts)
    files += sorted(path for folder in ("*.md", "docs/*.md", "datasets/*.md") for path in pathlib.Path().glob(folder))
    files += sorted(path for folder in SCRIPT_FOLDERS for path in pathlib.Path(folder).rglob("*")
                    if path.suffix in (".py", ".sh", ".bash")) + sorted(pathlib.Path().glob("*.sh"))
    count, marked = collections.Counter(), collections.defaultdict(list)
    for path in files:
        for kind, sentence in read(path):
            key = kind, path.parts[0] if kind in BY_FOLDER else ""
            count[key] += 1
            if MARK.search(sentence) or (kind in BY_FOLDER and BEGINS.match(sentence)):
                marked[key].append(f"{path}: {sentence[:150]}")
    unfinished = [row for path in files if path.suffix in (".c", ".h", ".cu") for row in unfinished_comments(path)]
    for row in unfinished:
        print(f"{row} (expected one complete phrase for each member)")
    failed = not files or bool(unfinished)
    for kind, limit in LIMITS.items():
        keys = [key for key in count if key[0] == kind]
        rows = [row for key in keys for row in marked[key]]
        total = sum(count[key] for key in keys)
        print(f"{kind}: {len(rows)} of {total} sentences marked, {len(rows) / max(1, total):.1%} (at most {limit:.1%})")
        for key in keys:
            share = len(marked[key]) / count[key]
            if share > limit and count[key] >= FEW:
                failed = True
                print(f"{kind} of {key[1] or 'all'}: {share:.1%} marked, at most {limit:.1%}")
        if "--list" in sys.argv[1:]:
            print(*(f"  {row}" for row in rows), sep="\n")
    sys.exit(failed)


main()
