#!/usr/bin/env bash
# Builds vLLM as released, for an NVIDIA GPU, in an environment of its own and prints the path of its python.
#
# usage: tests/rig/vllm_gpu.sh    (settings: see cached_venv.sh)
source "$(dirname "${BASH_SOURCE[0]}")/cached_venv.sh"

readonly version=0.32.0

install_engine() {
  install_from "vllm==$version"
  # An environment that can't even name its version is not worth a marker.
  "$python" -m vllm.entrypoints.cli.main --version
}

needs_gpu
# Raise the number when the steps above change.
cached_venv "vllm-$version-gpu" "vllm $version, recipe 1" "10 GB"
