#!/usr/bin/env bash
# The tests under AddressSanitizer and UndefinedBehaviorSanitizer: builds the native module with both
# in a temporary virtual environment and passes its arguments to pytest. GCC on Linux only.
#   scripts/sanitize.sh tests/test_engine.py -k wgmma
set -euo pipefail
# pytest's arguments are paths from where the caller stands.
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$(mktemp -d)
trap 'rm -rf "$venv"' EXIT

"${PYTHON:-python3}" -m venv "$venv"
CXX=g++ "$venv/bin/pip" install "$repo[test]" \
  -C cmake.define.BITMMA_SANITIZE=ON -C cmake.build-type=None -C install.strip=false

# Python itself is not instrumented, so the runtime must be loaded before it; libstdc++ beside it,
# or the runtime finds no __cxa_throw to wrap and dies at the first C++ exception.
preload="$(realpath "$(g++ -print-file-name=libasan.so)") $(realpath "$(g++ -print-file-name=libstdc++.so)")"
# PYTHONMALLOC=malloc: Python's own small-object pools would hide overruns of its buffers.
env LD_PRELOAD="$preload" \
  ASAN_OPTIONS=detect_leaks=0 \
  UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 \
  PYTHONMALLOC=malloc \
  "$venv/bin/python" -m pytest -p no:cacheprovider "$@"
