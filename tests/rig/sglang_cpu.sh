#!/usr/bin/env bash
# Builds a real SGLang for this CPU in an environment of its own and prints the path of its python.
#
# usage: tests/rig/sglang_cpu.sh    (settings: see cached_venv.sh)
#
# Who starts the engine puts tests/rig/stubs on PYTHONPATH: SGLang wants to import its compiled kernels.
source "$(dirname "${BASH_SOURCE[0]}")/cached_venv.sh"

readonly version=0.5.23
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly here
readonly lock=$here/sglang-cpu.lock

install_engine() {
  # Nothing is resolved: SGLang's own requirements want CUDA packages and another torch, and the list is whole.
  install_from --no-deps -r "$lock"
  # torchvision was built for another torch: what it registers there at import does not exist here. SGLang
  # imports its image transforms, which need none of it.
  : >"$(packages_folder)/torchvision/_meta_registrations.py"
  # An environment that can't even import the server is not worth a marker.
  PYTHONPATH=$here/stubs SGLANG_USE_CPU_ENGINE=1 "$python" -c 'import sglang.srt.entrypoints.http_server'
}

# Raise the number when the steps above change.
cached_venv "sglang-$version-cpu" "sglang $version, recipe 1, lock $(cksum <"$lock")" "2.5 GB"
