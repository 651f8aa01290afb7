# labels: cpu e2e
"""docs/method.md and the sample of published runs: figures of the pages are those of their commands.

Run as `AUTOMAP=build/automap python3 tests/e2e/test_method.py`.
"""

import pathlib
import re
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "launch"))
from program import automap, need_program

METHOD = (ROOT / "docs" / "method.md").read_text()
PUBLISHED = (ROOT / "docs" / "published.md").read_text()
MODULE = ROOT / "examples" / "perceptron.hlo.txt"
RUNS = ROOT / "examples" / "published.csv"


def run(*words):
    done = automap(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def block_after(page, command):
    """The indented lines after a command, without blank ones, up to the text that follows."""
    lines = page[page.index(command) + len(command):].splitlines()[1:]
    end = next(k for k, line in enumerate(lines) if line and not line.startswith("    "))
    return [line.split() for line in lines[:end] if line.strip()]


def words_of(command):
    """A command of the page, whose files are those of the folder of examples."""
    assert command in METHOD, f"{command}: docs/method.md has another command"
    return [MODULE if word == "examples/perceptron.hlo.txt" else word for word in command.split()[1:]]


def check_search(plan):
    command = "automap search examples/perceptron.hlo.txt --cluster nominal:4 --mesh data=2,model=2 -o plan.json"
    printed = run(*[plan if word == "plan.json" else word for word in words_of(command)])
    rows = [line.split() for line in printed.splitlines()]
    shown = block_after(METHOD, command)
    assert len(shown) == 5
    for words in shown[:2]:
        assert any(row[0] == words[0] and row[2:4] == words[1:3] for row in rows if len(row) > 3), words
    for words in shown[2:]:
        assert any(row[: len(words)] == words for row in rows), words
    bound, gap = re.search(r"bound +(\S+) ms \(lower\), gap (\S+) %", printed).groups()
    assert f"the bound is {bound} ms" in METHOD and f"more than {float(gap):.1f} %" in METHOD, (bound, gap)


def check_lower(plan):
    command = "automap lower examples/perceptron.hlo.txt --plan plan.json"
    printed = run(*[plan if word == "plan.json" else word for word in words_of(command)])
    shown = block_after(METHOD, command)
    assert len(shown) == 8
    for words in shown:
        name, shape, opcode = words[0], words[2], words[3].split("(")[0]
        states = [word for word in words if word.startswith(("data=", "model="))]
        line = next((line for line in printed.splitlines() if line.split()[:3] == [name, "=", shape]), "")
        assert f" {opcode}(" in line, (words, line)
        found = line[line.index("@"):].replace("P(add)", "P").split()
        assert [state for state in states if state in found] == states, (words, line)


def check_groups():
    printed = run("groups", MODULE)
    assert len(re.findall(r"(?m)^group ", printed)) == 3, printed
    products = next(line.split() for line in run("info", MODULE).splitlines() if line.startswith("dot "))
    assert products[1:5] == ["5", "2", "0", "3"], products


def check_published(work):
    """The first and third row of the table; the page has four."""
    lines = RUNS.read_text().splitlines()
    (work / "runs.csv").write_text("\n".join([lines[0], lines[1], lines[3]]) + "\n")
    rows = [line.split() for line in run("published", work / "runs.csv").splitlines()]
    shown = block_after(PUBLISHED, "prints these rows among others:")
    assert len(shown) == 5
    for words in (shown[1], shown[2]):
        assert any(row[1 : len(words)] == words[1:] for row in rows), (words, rows)


def main():
    need_program()
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        check_search(work / "plan.json")
        check_lower(work / "plan.json")
        check_groups()
        check_published(work)


if __name__ == "__main__":
    main()
