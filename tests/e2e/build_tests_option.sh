#!/usr/bin/env bash
# AUTOMAP_TESTS: AUTO configures without cmocka and leaves the tests out, ON is an error without it.
# labels: cpu e2e
# cost: 8
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# A pkg-config that lacks cmocka.
cat >"$work/pkg-config" <<'SCRIPT'
#!/bin/sh
for word; do case $word in cmocka*) exit 1 ;; esac; done
exec pkg-config "$@"
SCRIPT
chmod +x "$work/pkg-config"

# configure FOLDER [OPTION...]
configure() {
  local folder=$1
  shift
  cmake -S "$AUTOMAP_SOURCE" -B "$work/$folder" -G Ninja -DAUTOMAP_MPI=OFF "$@" >"$work/$folder.log" 2>&1
}

fail() { echo "FAILED: $1"; tail -20 "$work/$2.log"; exit 1; }

without=(-DPKG_CONFIG_EXECUTABLE="$work/pkg-config")
configure auto "${without[@]}" || fail "AUTO needs cmocka" auto
! grep -q 'test_api' "$work/auto/build.ninja" || fail "AUTO without cmocka has tests" auto
if configure on "${without[@]}" -DAUTOMAP_TESTS=ON; then fail "ON without cmocka is accepted" on; fi
grep -q cmocka "$work/on.log" || fail "the error does not name cmocka" on
configure default || fail "AUTO with cmocka fails" default
grep -q 'test_api' "$work/default/build.ninja" || fail "AUTO with cmocka has no tests" default
echo "AUTOMAP_TESTS: right with and without cmocka"
