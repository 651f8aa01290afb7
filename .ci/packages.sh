# Sourced by test.sh and quickstart.sh: installs the Debian packages that are
# missing, and nothing when none is.

build_packages=(build-essential cmake ninja-build pkg-config libjansson-dev libopenblas-dev libprotobuf-c-dev
  protobuf-c-compiler protobuf-compiler libzstd-dev zlib1g-dev libzip-dev libssl-dev libxxhash-dev
  libexpat1-dev libhwloc-dev)
test_packages=(libcmocka-dev libopenmpi-dev openmpi-bin libmpich-dev mpich python3 python3-venv zstd clang clang-format
  clang-tidy libclang-rt-dev lld ccache glpk-utils locales)

# install_packages NAME...
install_packages() {
  local missing=() name
  for name in "$@"; do
    dpkg-query -W -f='${Status}' "$name" 2>/dev/null | grep -q 'ok installed' || missing+=("$name")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  echo "installing: ${missing[*]}"
  if ! command -v apt-get >/dev/null; then
    echo "this is not a Debian or Ubuntu system; install these by hand: ${missing[*]}" >&2
    return 1
  fi
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then as_root=(sudo); fi
  "${as_root[@]}" apt-get update -qq </dev/null
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends "${missing[@]}" </dev/null >/dev/null
}

# [targets="NAME ..."] configure_and_build FOLDER [CMAKE OPTION...]: quiet unless it fails
configure_and_build() {
  local folder=$1
  shift
  local launcher=()
  if command -v ccache >/dev/null; then launcher=(-DCMAKE_C_COMPILER_LAUNCHER=ccache); fi
  # Folders of one clone share compiled files, with CUDA and without.
  export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
  mkdir -p "$folder"
  if ! { cmake -S . -B "$folder" -G Ninja "${launcher[@]}" "$@" && ninja -C "$folder" ${targets-}; } >"$folder/build.log" 2>&1; then
    tail -40 "$folder/build.log"
    return 1
  fi
}
