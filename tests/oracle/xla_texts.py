"""Agreement of automap with XLA on the module texts of C++ test files.

usage: AUTOMAP=build/automap xla_texts.py [--list] FILE.cc...

Takes every string literal that is a module out of the files, such as XLA's hlo_parser_test.cc and
hlo_verifier_test.cc, and compares three things: XLA and automap both accept or both refuse; automap's
text of an accepted module is one that XLA reads; XLA prints the same for it as for the original.
Prints the share of agreement for each file, and with --list every disagreement. jaxlib may be older than the
file, and its verifier has other settings than a test: the second share counts a verdict that the test's own
source expects as agreement, too.
"""

import os
import pathlib
import re
import sys
import tempfile

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from xla_verdicts import ask_xla, canonical_texts, run_automap

AUTOMAP = os.environ.get("AUTOMAP", "build/automap")
LITERAL = re.compile(r'R"(\w*)\((.*?)\)\1"|"((?:[^"\\\n]|\\.)*)"|//[^\n]*|/\*.*?\*/|\'(?:[^\'\\]|\\.)\'', re.S)
TEST = re.compile(r'(?:TEST_[FP]|TEST)\(\s*\w+,\s*(\w+)\)|^\{?\s*"(\w+)",\s*$', re.M)
REFUSAL = re.compile(r"_FALSE\([^;]*ok\(\)|_NE\(absl::OkStatus|ExpectHasSubstr|HasSubstr\(|StatusIs\(")
ESCAPES = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "'": "'"}


def unescaped(text):
    return re.sub(r"\\(.)", lambda match: ESCAPES.get(match[1], match[0]), text, flags=re.S)


def texts_of(source):
    """(test name, whether the test expects a refusal, text) of each literal that looks like a module, adjacent
    literals joined."""
    matches = list(TEST.finditer(source))
    ends = [match.start() for match in matches[1:]] + [len(source)]
    tests = [(match.start(), match[1] or match[2], bool(match[1] and REFUSAL.search(source, match.start(), end)))
             for match, end in zip(matches, ends)]
    parts, end, begin = [], 0, 0
    found = []
    for match in list(LITERAL.finditer(source)) + [None]:
        if match and match[2] is None and match[3] is None:
            continue
        if parts and (match is None or re.sub(r"//[^\n]*", "", source[end:match.start()]).strip()):
            found.append((begin, "".join(parts)))
            parts = []
        if match:
            begin = begin if parts else match.start()
            parts.append(match[2] if match[2] is not None else unescaped(match[3]))
            end = match.end()
    for begin, text in found:
        if re.search(r"HloModule|ENTRY|ROOT|= .*\w\[.*\(", text) and ("(" in text or "HloModule" in text):
            before = [row[1:] for row in tests if row[0] <= begin]
            yield *(before[-1] if before else ("?", False)), text


def first_difference(left, right):
    """The first lines that differ of two results of canonical_texts()."""
    if not (left[0] and right[0]):
        return (left if not left[0] else right)[1][:600]
    for a, b in zip(left[1].splitlines() + ["(end)"], right[1].splitlines() + ["(end)"]):
        if a != b:
            return f"\n  {a[:600]}\n  {b[:600]}"
    return ""


def judge(path, verbose):
    cases = list(texts_of(path.read_text()))
    texts = [text for *_, text in cases]
    theirs = ask_xla(texts)
    with tempfile.TemporaryDirectory() as folder:
        ours = run_automap(AUTOMAP, texts, pathlib.Path(folder))
    both = [i for i in range(len(cases)) if theirs[i].accepted and ours[i][0] == 0]
    printed = canonical_texts([texts[i] for i in both] + [ours[i][2] for i in both])
    same = {i: (printed[k], printed[len(both) + k]) for k, i in enumerate(both)}
    agreed = expected = 0
    for i, (name, is_refusal, text) in enumerate(cases):
        code, message, _ = ours[i]
        problem = None
        if code not in (0, 3):
            problem = f"automap exits with {code}"
        elif theirs[i].accepted != (code == 0):
            problem = "XLA accepts" if theirs[i].accepted else f"automap accepts, XLA's {theirs[i].stage} refuses"
        elif i in same and same[i][0] != same[i][1]:
            problem = f"XLA reads automap's text differently: {first_difference(*same[i])}"
        agreed += problem is None
        is_expected = problem is not None and code in (0, 3) and i not in same and is_refusal == (code == 3)
        expected += is_expected
        if problem and verbose:
            print(f"--- {path.name} #{i} {name}: {problem}{' (as the test)' if is_expected else ''}\n  XLA: "
                  f"{theirs[i].message[:700]}\n  automap: {message[:700]}")
            if verbose > 1:
                print(text)
    count = max(len(cases), 1)
    print(f"{path.name}: {agreed} of {len(cases)} as jaxlib ({100 * agreed / count:.1f} %), "
          f"{agreed + expected} as jaxlib or the test ({100 * (agreed + expected) / count:.1f} %)")
    return agreed, agreed + expected, len(cases)


def main(arguments):
    verbose = arguments.count("--list") + 2 * arguments.count("--texts")
    files = [pathlib.Path(name) for name in arguments if not name.startswith("--")]
    sums = [judge(path, verbose) for path in files]
    agreed, expected, count = (sum(column) for column in zip(*sums))
    print(f"all: {agreed} of {count} as jaxlib, {expected} as jaxlib or the test")


main(sys.argv[1:])
