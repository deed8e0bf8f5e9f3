#!/usr/bin/env bash
# Builds a real SGLang for this CPU in an environment of its own and prints the path of its python.
#
# usage: tests/rig/sglang_cpu.sh
#
#   KVCACHE_RIG_CACHE        where environments are kept (default ~/.cache/kvcache-exporter)
#   KVCACHE_RIG_PYTHON       the interpreter the environment is made of (default python3)
#   KVCACHE_RIG_TORCH_INDEX  one more package index, for machines whose pip is not set up for CPU wheels of
#                            torch; given to pip as --extra-index-url
#
# Done once: later runs find the marker and print the path at once. The marker is written last, so what an
# interrupted run leaves behind has none and is thrown away. A virtual environment has its own path written
# into its scripts: it can't be built elsewhere and moved into place.
#
# Who starts the engine puts tests/rig/stubs on PYTHONPATH: SGLang wants to import its compiled kernels.
set -euo pipefail

readonly version=0.5.23
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly here
readonly lock=$here/sglang-cpu.lock
readonly cache=${KVCACHE_RIG_CACHE:-$HOME/.cache/kvcache-exporter}
readonly home=$cache/sglang-$version-cpu
readonly log=$cache/sglang-$version-cpu.log
readonly marker=$home/complete
# Raise the number when the steps below change: environments of an older recipe are built again.
recipe="sglang $version, recipe 1, lock $(cksum <"$lock")"
readonly recipe

is_complete() { [[ -f $marker && $(<"$marker") == "$recipe" && -x $home/venv/bin/python ]]; }

build() {
  rm -rf "$home"
  mkdir -p "$home"
  "${KVCACHE_RIG_PYTHON:-python3}" -m venv "$home/venv"
  local python=$home/venv/bin/python
  local index=()
  if [[ -n ${KVCACHE_RIG_TORCH_INDEX:-} ]]; then
    index=(--extra-index-url "$KVCACHE_RIG_TORCH_INDEX")
  fi
  # Nothing is resolved: SGLang's own requirements want CUDA packages and another torch, and the list is whole.
  "$python" -m pip install -q --no-input --no-deps "${index[@]}" -r "$lock"
  # torchvision was built for another torch: what it registers there at import does not exist here. SGLang
  # imports its image transforms, which need none of it.
  local packages
  packages=$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
  : >"$packages/torchvision/_meta_registrations.py"
  # An environment that can't even import the server is not worth a marker.
  PYTHONPATH=$here/stubs SGLANG_USE_CPU_ENGINE=1 "$python" -c 'import sglang.srt.entrypoints.http_server'
}

mkdir -p "$cache"
exec 9>"$home.lock"
flock 9 # a second run waits here, then finds the marker of the first

if ! is_complete; then
  echo "building SGLang $version for the CPU in $home (about 2.5 GB, a few minutes)" >&2
  # In a shell of its own: inside `if ! build` the -e that stops it at the first failure would be off.
  set +e
  (set -e && build) >"$log" 2>&1 9>&-
  status=$?
  set -e
  if ((status != 0)); then
    echo "SGLang could not be installed; the end of $log:" >&2
    tail -n 40 "$log" >&2
    exit 1
  fi
  printf '%s\n' "$recipe" >"$marker"
fi
echo "$home/venv/bin/python"
