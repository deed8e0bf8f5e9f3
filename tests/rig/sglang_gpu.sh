#!/usr/bin/env bash
# Builds SGLang as released, for an NVIDIA GPU, in an environment of its own and prints the path of its python.
#
# usage: tests/rig/sglang_gpu.sh    (settings: see cached_venv.sh)
source "$(dirname "${BASH_SOURCE[0]}")/cached_venv.sh"

readonly version=0.5.23

install_engine() {
  install_from "sglang==$version"
  # An environment that can't even import the server is not worth a marker.
  "$python" -c 'import sglang.srt.entrypoints.http_server'
}

needs_gpu
# Raise the number when the steps above change.
cached_venv "sglang-$version-gpu" "sglang $version, recipe 1" "12 GB"
