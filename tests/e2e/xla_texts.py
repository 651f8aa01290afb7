"""Agreement of automap with XLA on the module texts of C++ test files.

usage: AUTOMAP=build/automap xla_texts.py [--list] FILE.cc...

Takes every string literal that is a module out of the files, such as XLA's hlo_parser_test.cc and
hlo_verifier_test.cc, and compares three things: XLA and automap both accept or both refuse; automap's
text of an accepted module is one that XLA reads; XLA prints the same for it as for the original.
Prints the share of agreement for each file, and with --list every disagreement.
"""

import os
import pathlib
import re
import sys
import tempfile

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "oracle"))
from xla_verdicts import ask_xla, canonical_texts, run_automap

AUTOMAP = os.environ.get("AUTOMAP", "build/automap")
LITERAL = re.compile(r'R"(\w*)\((.*?)\)\1"|"((?:[^"\\\n]|\\.)*)"|//[^\n]*|/\*.*?\*/|\'(?:[^\'\\]|\\.)\'', re.S)
TEST = re.compile(r'(?:TEST_[FP]|TEST)\(\s*\w+,\s*(\w+)\)|^\{?\s*"(\w+)",\s*$', re.M)
ESCAPES = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "'": "'"}


def unescaped(text):
    return re.sub(r"\\(.)", lambda match: ESCAPES.get(match[1], match[0]), text, flags=re.S)


def texts_of(source):
    """(test name, text) of each literal, adjacent ones joined, that looks like a module."""
    tests = [(match.start(), match[1] or match[2]) for match in TEST.finditer(source)]
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
            names = [name for start, name in tests if start <= begin]
            yield names[-1] if names else "?", text


def first_difference(left, right):
    """The first lines that differ of two results of canonical_texts()."""
    if not (left[0] and right[0]):
        return (left if not left[0] else right)[1][:600]
    for a, b in zip(left[1].splitlines() + ["(end)"], right[1].splitlines() + ["(end)"]):
        if a != b:
            return f"\n  {a[:600]}\n  {b[:600]}"
    return ""


def canonical_texts(texts):
    """canonical() of each text in forks, since XLA may end the process; a message where it refuses."""
    import pickle
    results = [None] * len(texts)
    at = 0
    while at < len(texts):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            with os.fdopen(write, "wb") as out:
                for text in texts[at:]:
                    try:
                        result = (True, canonical(text))
                    except Exception as refused:
                        result = (False, str(refused))
                    pickle.dump(result, out)
                    out.flush()
            os._exit(0)
        os.close(write)
        with os.fdopen(read, "rb") as source:
            while True:
                try:
                    results[at] = pickle.load(source)
                    at += 1
                except EOFError:
                    break
        os.waitpid(child, 0)
        if at < len(texts):
            results[at] = (False, "XLA ended the process")
            at += 1
    return results


def judge(path, verbose):
    cases = list(texts_of(path.read_text()))
    texts = [text for _, text in cases]
    theirs = ask_xla(texts)
    with tempfile.TemporaryDirectory() as folder:
        ours = run_automap(AUTOMAP, texts, pathlib.Path(folder))
    both = [i for i in range(len(cases)) if theirs[i].accepted and ours[i][0] == 0]
    printed = canonical_texts([texts[i] for i in both] + [ours[i][2] for i in both])
    same = {i: (printed[k], printed[len(both) + k]) for k, i in enumerate(both)}
    agreed = 0
    for i, (name, text) in enumerate(cases):
        code, message, _ = ours[i]
        problem = None
        if code not in (0, 3):
            problem = f"automap exits with {code}"
        elif theirs[i].accepted != (code == 0):
            problem = "XLA accepts" if theirs[i].accepted else f"automap accepts, XLA's {theirs[i].stage} refuses"
        elif i in same and same[i][0] != same[i][1]:
            problem = f"XLA reads automap's text differently: {first_difference(*same[i])}"
        agreed += problem is None
        if problem and verbose:
            print(f"--- {path.name} #{i} {name}: {problem}\n  XLA: {theirs[i].message[:700]}\n  automap: {message[:700]}")
            if verbose > 1:
                print(text)
    print(f"{path.name}: {agreed} of {len(cases)} as XLA ({100 * agreed / max(len(cases), 1):.1f} %)")
    return agreed, len(cases)


def main(arguments):
    verbose = arguments.count("--list") + 2 * arguments.count("--texts")
    files = [pathlib.Path(name) for name in arguments if not name.startswith("--")]
    sums = [judge(path, verbose) for path in files]
    print(f"all: {sum(a for a, _ in sums)} of {sum(n for _, n in sums)} as XLA")


main(sys.argv[1:])
