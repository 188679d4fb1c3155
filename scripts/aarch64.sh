#!/usr/bin/env bash
# The native kernels against the exact evaluator, without Python (src/native/selfcheck.cpp): this
# machine's instruction sets, then aarch64 under qemu. The digests of all of them must be the same.
#   scripts/aarch64.sh [seconds of each, 20] [seed, 0]
#   CXX=clang++ scripts/aarch64.sh native        # native only; `cross`: aarch64 only
set -euo pipefail
mode=both
case ${1:-} in native | cross) mode=$1; shift ;; esac
seconds=${1:-20} seed=${2:-0}
native=$(cd "$(dirname "${BASH_SOURCE[0]}")/../src/native" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# CMakeLists.txt's, for bits' sake.
flags=(-std=c++20 -O3 -ffp-contract=off -fno-math-errno -Wno-psabi)

# check <name> <isa> <the isa's flags> <command before the program> <compiler>...
check() {
  local name=$1 isa=$2 isa_flags under=$4 program="$work/$1"
  read -ra isa_flags <<< "$3"
  shift 4
  local compile=("$@" "${flags[@]}" -DBITMMA_ISA="$isa")
  echo "== $name: $*"
  # Only the kernels get the instruction set's flags, as in the module.
  "${compile[@]}" "${isa_flags[@]}" -c "$native/kernels.cpp" -o "$program.o"
  "${compile[@]}" -static "$native/selfcheck.cpp" "$program.o" -o "$program"
  $under "$program" --seconds "$seconds" --seed "$seed" | tee "$program.txt"
}
has() { for flag; do grep -qw "$flag" /proc/cpuinfo || return 1; done; }

if [[ $mode != cross ]]; then
  cxx=${CXX:-g++}
  check plain plain "" "" "$cxx"
  if has avx2 fma f16c; then check avx2 avx2 "-mavx2 -mfma -mf16c" "" "$cxx"; fi
  if has avx512f avx512dq avx512bw avx512vl; then
    avx512="-mavx512f -mavx512dq -mavx512bw -mavx512vl -mfma -mf16c -mavx2"
    check avx512 avx512 "$avx512" "" "$cxx"
    if has avx512vbmi avx512_vnni; then
      check avx512vbmi avx512vbmi "$avx512 -mavx512vbmi -mavx512vnni" "" "$cxx"
    fi
  fi
fi
if [[ $mode != native ]]; then
  read -ra cross <<< "${CXX_AARCH64:-aarch64-linux-gnu-g++}"  # or clang++ --target=aarch64-linux-gnu
  for tool in "${cross[0]}" qemu-aarch64; do
    command -v "$tool" > /dev/null || {
      echo "$tool is missing; on Debian and Ubuntu: apt-get install g++-aarch64-linux-gnu qemu-user" >&2
      exit 1
    }
  done
  check aarch64 plain "" qemu-aarch64 "${cross[@]}"
fi
if (($(sed -n 's/.*digest //p' "$work"/*.txt | sort -u | wc -l) != 1)); then
  echo "the digests differ: some machine computes other bits" >&2
  exit 1
fi
