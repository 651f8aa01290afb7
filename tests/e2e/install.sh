#!/usr/bin/env bash
# The files of `cmake --install` suffice to build against: header, both
# libraries, the pkg-config file and the CMake package, from C and as seen by C++. The examples run. Man pages
# and completions have every option.
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

# The examples, by find_package(automap).
cmake -S "$prefix/share/doc/automap/examples" -B "$prefix/examples" -DCMAKE_PREFIX_PATH="$prefix" \
  -DCMAKE_C_FLAGS=-Werror >"$prefix/examples.log"
cmake --build "$prefix/examples" >>"$prefix/examples.log"
model=$AUTOMAP_SOURCE/datasets/models/mlp_tiny
"$prefix/examples/find_plan" "$model/model.hlo.pb" nominal:4 evaluations=10 mesh=data=4 >"$prefix/search" \
  2>"$prefix/progress"
grep -q '^stage 0: 4 devices, mesh data=4$' "$prefix/search"
grep -q 'f32\[' "$prefix/search"
grep -q 'evaluations, best ' "$prefix/progress"
if "$prefix/examples/find_plan" "$model/model.hlo.pb" nominal:4 mehs=data=4 2>"$prefix/refusal"; then exit 1; fi
grep -q 'did you mean mesh?' "$prefix/refusal"
"$prefix/examples/train" "$model/model.hlo.pb" nominal:4 "$model/data.npz" 3 >"$prefix/train"
grep -q '^predicted step' "$prefix/train"
[ "$(grep -c '^step [0-2]  loss' "$prefix/train")" = 3 ]

for file in LICENSE README.md CHANGELOG.md docs/commands.md; do [ -e "$prefix/share/doc/automap/$file" ]; done
if [ -z "${AUTOMAP:-}" ]; then exit 0; fi
"$prefix/bin/automap" --version
bash_file=$prefix/share/bash-completion/completions/automap
zsh_file=$prefix/share/zsh/site-functions/_automap
fish_file=$prefix/share/fish/vendor_completions.d/automap.fish
bash -n "$bash_file"
if command -v zsh >/dev/null; then zsh -n "$zsh_file"; fi
if command -v fish >/dev/null; then fish -n "$fish_file"; fi
checked=0
for command in $("$AUTOMAP" help | sed \
  -n '/^modules:/,/^help:/s/^  \([a-z]*\) .*/\1/p') "agent train" "agent evaluate" "agent generate"; do
  page=$(<"$prefix/share/man/man1/automap-${command// /-}.1")
  in_bash=$(sed -n "s/^ *'$command') options='\(.*\)' ;;/\1 /p" "$bash_file")
  in_zsh=$(sed -n "/^ *'$command')$/,/;;/p" "$zsh_file")
  in_fish=$(grep -F -- "__fish_seen_subcommand_from ${command##* }'" "$fish_file")
  for option in $("$AUTOMAP" help $command | sed -n 's/^  \(--*[a-z0-9-]*\)[ ].*/\1/p'); do
    form="-l ${option#--} "
    if [ "$option" = -o ]; then form="-s o "; fi
    if [ "$command" = agent ]; then form=; fi # its options follow the action
    grep -qF -- "\\fB${option//-/\\-}\\fR" <<<"$page" || { echo "the man page of $command lacks $option"; exit 1; }
    grep -qF -- " $option " <<<"$in_bash" || { echo "completion of bash lacks $command $option"; exit 1; }
    grep -qF -- "$option[" <<<"$in_zsh" || { echo "completion of zsh lacks $command $option"; exit 1; }
    grep -qF -- "$form" <<<"$in_fish" || { echo "completion of fish lacks $command $option"; exit 1; }
    checked=$((checked + 1))
  done
done
[ "$checked" -gt 150 ]
# Bash proposes the rest of a word.
propose() { bash -c ". '$bash_file'; COMP_WORDS=($*); COMP_CWORD=3; _automap; echo \"\${COMPREPLY[*]}\""; }
proposal=$(propose automap search m.pb --sear)
[ "$proposal" = --searcher ]
proposal=$(propose automap search --searcher ann)
[ "$proposal" = anneal ]
echo "installed, compiled and ran: automap $version; $checked options in man pages and completions"
