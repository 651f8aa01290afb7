"""Runs the program automap, which a wheel has beside the library.

It is not in the package, which loads the library when it is imported.
"""

import os
import pathlib
import sys

PROGRAM = pathlib.Path(__file__).parent / "automap_hlo/bin/automap"


def main() -> int:
    """Becomes the program. Returns 1 where this installation has none."""
    if not PROGRAM.exists():
        print(f"automap: {PROGRAM} is missing (expected the package from a wheel)", file=sys.stderr)
        return 1
    os.execv(PROGRAM, ["automap", *sys.argv[1:]])
