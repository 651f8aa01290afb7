#!/usr/bin/env bash
# What `cmake --install` puts down is enough to build against: header, both
# libraries and the pkg-config file, from C and as seen by C++.
# labels: cpu e2e
set -euo pipefail
if [ -n "${AUTOMAP_SANITIZE:-}" ]; then
  echo "skipped: a sanitized library needs the sanitizer's own link flags"
  exit 77
fi
prefix=$(mktemp -d)
trap 'rm -rf "$prefix"' EXIT
cmake --install "$AUTOMAP_BUILD" --prefix "$prefix" >"$prefix/install.log"
package=$(find "$prefix" -name automap.pc)
export PKG_CONFIG_PATH=${package%/*}

cat >"$prefix/user.c" <<'C'
#include <automap.h>
#include <stdio.h>

int main(void) {
    AmError error = {0};
    printf("%s %d\n", AM_VERSION, (int)error.code);
    return 0;
}
C
cc -std=c17 -Wall -Wextra -Wpedantic -Werror "$prefix/user.c" -o "$prefix/user" $(pkg-config --cflags --libs automap)
version=$(LD_LIBRARY_PATH="$(pkg-config --variable=libdir automap)" "$prefix/user")
[ "$version" = "$(pkg-config --modversion automap) 0" ]
cp "$prefix/user.c" "$prefix/user.cc"
sed -i 's/AmError error = {0}/AmError error = {}/' "$prefix/user.cc"
c++ -std=c++17 -Wall -Wextra -Werror -fsyntax-only "$prefix/user.cc" $(pkg-config --cflags automap)
[ -e "$(pkg-config --variable=libdir automap)/libautomap.a" ]
if [ -n "${AUTOMAP:-}" ]; then "$prefix/bin/automap" --version; fi
echo "installed, compiled and ran: automap $version"
