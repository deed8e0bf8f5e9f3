# An engine in a virtual environment of its own, built once. Sourced, not run.
#
#   KVCACHE_RIG_CACHE        where environments are kept (default ~/.cache/kvcache-exporter)
#   KVCACHE_RIG_PYTHON       the interpreter the environment is made of (default python3)
#   KVCACHE_RIG_TORCH_INDEX  one more package index, for machines whose pip is not set up for CPU wheels of
#                            torch; given to pip as --extra-index-url
#
# Later runs find the marker and print the path at once. The marker is written last, so what an interrupted
# run leaves behind has none and is thrown away. A virtual environment has its own path written into its
# scripts: it can't be built elsewhere and moved into place.
# shellcheck shell=bash
set -euo pipefail

install_from() { # PACKAGE...: with the index a user may have added
  "$python" -m pip install -q --no-input ${KVCACHE_RIG_TORCH_INDEX:+--extra-index-url "$KVCACHE_RIG_TORCH_INDEX"} "$@"
}

packages_folder() { "$python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])'; }

# needs_gpu: before gigabytes are fetched for one that isn't there.
needs_gpu() {
  if ! nvidia-smi -L >&2; then
    echo "no NVIDIA GPU can be used here (nvidia-smi -L failed): nothing was installed" >&2
    exit 1
  fi
}

# cached_venv NAME RECIPE SIZE: prints the path of the python; `install_engine` is what the caller defines,
# run with $python set. Environments of another recipe are built again.
cached_venv() {
  local name=$1 recipe=$2 size=$3
  local cache=${KVCACHE_RIG_CACHE:-$HOME/.cache/kvcache-exporter}
  local home=$cache/$name
  local log=$home.log marker=$home/complete
  python=$home/venv/bin/python
  mkdir -p "$cache"
  exec 9>"$home.lock"
  flock 9 # a second run waits here, then finds the marker of the first
  if [[ ! -f $marker || $(<"$marker") != "$recipe" || ! -x $python ]]; then
    echo "building $name in $home (about $size, a few minutes)" >&2
    rm -rf "$home"
    mkdir -p "$home"
    # In a shell of its own: inside `if ! build` the -e that stops it at the first failure would be off.
    set +e
    (
      set -e
      "${KVCACHE_RIG_PYTHON:-python3}" -m venv "$home/venv"
      install_engine
    ) >"$log" 2>&1 9>&-
    local status=$?
    set -e
    if ((status != 0)); then
      echo "$name could not be installed; the end of $log:" >&2
      tail -n 40 "$log" >&2
      exit 1
    fi
    printf '%s\n' "$recipe" >"$marker"
  fi
  echo "$python"
}
