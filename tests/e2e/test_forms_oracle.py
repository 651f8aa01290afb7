"""The forms of module texts against XLA's parser and verifier.

Every text of tests/data/verify/texts.txt is given to automap and to jaxlib: both accept or both refuse it as the
file says, but for the texts that are marked "alone". XLA prints the same of automap's text of an accepted
module as of the original.
"""
# labels: jax e2e
# timeout: 300

import os
import pathlib
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[2]
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
sys.path[:0] = [str(SOURCE / "tests" / "oracle")]

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
from program import AUTOMAP, skip_where_missing

with skip_where_missing():
    from xla_verdicts import ask_xla, canonical_texts, run_automap


def cases():
    """(title, is accepted, is alone, text) of each text."""
    body = (SOURCE / "tests" / "data" / "verify" / "texts.txt").read_text()
    for part in body.split("\n>>> ")[1:]:
        head, _, text = part.partition("\n")
        kind, _, title = head.partition(": ")
        words = kind.split()
        if "CR" in words:
            text = text.replace("\n", "\r")
        yield title, words[0] == "accepted", "alone" in words, text


rows = list(cases())
texts = [text for *_, text in rows]
theirs = ask_xla(texts)
with tempfile.TemporaryDirectory() as folder:
    ours = run_automap(AUTOMAP, texts, pathlib.Path(folder))
failures = []
for (title, is_accepted, is_alone, _), xla, (code, message, _) in zip(rows, theirs, ours):
    if (code == 0) != is_accepted:
        failures.append(f"{title}: automap exits with {code}: {message}")
    if xla.accepted != (is_accepted != is_alone):
        failures.append(f"{title}: XLA's {xla.stage or 'verdict'}: {xla.message[:400]}")
both = [k for k, row in enumerate(rows) if row[1] and theirs[k].accepted and ours[k][0] == 0]
printed = canonical_texts([texts[k] for k in both] + [ours[k][2] for k in both])
for place, k in enumerate(both):
    left, right = printed[place], printed[len(both) + place]
    if left != right:
        failures.append(f"{rows[k][0]}: XLA prints\n{left[1]}\nof the text and of automap's\n{right[1]}")
assert not failures, "\n".join(failures)
print(f"{len(rows)} texts are judged as XLA does, {len(both)} are printed alike")
