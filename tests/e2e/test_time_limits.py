# labels: cpu e2e
# timeout: 300
# cost: 5
"""`search --seconds S` ends within 1.1 S, with a plan, for every searcher.

The limit is measured in processor time: tests/clock/processor_clock.c replaces the program's clock. The model is
BERT-48 on 32 devices; pricing one of its plans takes 50 ms. By default three searches are tried, in the full form all.
A random search uses its time.

Usage: AUTOMAP=build/automap python3 tests/e2e/test_time_limits.py
"""

import json
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
from program import AUTOMAP, FULL, MODELS, need_program

need_program()
BUILD = os.environ.get("AUTOMAP_BUILD", os.path.dirname(AUTOMAP))
CLOCK = os.path.join(BUILD, "libprocessor_clock.so")
SECONDS, SLACK = 1.0, 0.1
SEARCHES = [
    (),
    ("--space", "single_stage", "--searcher", "dqn"),
    ("--searcher", "random"),
    *(("--searcher", name) for name in ("dqn", "greedy", "exact", "agent")),
    ("--space", "single_stage"),
    ("--space", "single_stage", "--searcher", "exact"),
    ("--space", "operator", "--objective", "paper"),
    ("--searcher", "exhaustive", "--mesh", "data=32"),
]

if not os.path.exists(CLOCK):
    print(f"skipped: no {CLOCK}")
    sys.exit(77)
for options in SEARCHES if FULL else SEARCHES[:3]:
    words = ["search", str(MODELS / "bert48" / "model.hlo.pb.zst"), "--cluster", "C", "--seconds", str(SECONDS)]
    alone = os.environ | {"LD_PRELOAD": CLOCK, "AUTOMAP_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([AUTOMAP, *words, *options, "--json", "-o", os.devnull], capture_output=True, text=True,
                          env=alone)
    assert done.returncode == 0, f"{options}: {done.returncode}, {done.stderr}"
    report = json.loads(done.stdout)
    seconds = report["search_seconds"]
    assert seconds <= (1 + SLACK) * SECONDS, f"{options}: {seconds:.3f} s of processor time for a limit of {SECONDS} s"
    assert "random" not in options or report["evaluations"] > 1, f"{options}: {report['evaluations']} evaluations"
    print(f"{' '.join(options) or 'default'}: {seconds:.3f} s")
