"""The first screen of README.md and the bars of docs/overview.svg are those of the search that README.md shows."""
# labels: cpu e2e full
# cost: 40
# timeout: 300

import pathlib
import subprocess
import sys

SOURCE = pathlib.Path(__file__).resolve().parents[2]

sys.exit(subprocess.run([sys.executable, "bench/first_screen.py", "--check"], cwd=SOURCE).returncode)
