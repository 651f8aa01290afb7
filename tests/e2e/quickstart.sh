#!/usr/bin/env bash
# The README's first command, as a test: quickstart.sh with the existing build.
# labels: cpu e2e
# timeout: 300
# cost: 20
set -euo pipefail
cd "$AUTOMAP_SOURCE"
if [ -z "${AUTOMAP:-}" ]; then
  echo "skipped: this build has no program"
  exit 77
fi
if [ "$AUTOMAP_BUILD" != "$AUTOMAP_SOURCE/build" ]; then
  echo "skipped: quickstart.sh works in build/, this is $AUTOMAP_BUILD"
  exit 77
fi
./quickstart.sh
