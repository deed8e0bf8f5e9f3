#!/usr/bin/env bash
# Makes the null GPU: the CUDA runtime's and driver's calls, cuBLAS and NVML, where kernels do nothing.
#
# usage: tests/rig/gpu/nullgpu/build.sh VENV SITE OUT
#
#   VENV  has a Python 3.12 with the CUDA build of torch
#   SITE  the unpacked parts
#   OUT   gets libnullgpu.so (to preload), libcuda.so.1 and libnvidia-ml.so.1
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
venv=$(cd "$1" && pwd)
site=$(cd "$2" && pwd)
mkdir -p "$3"
out=$(cd "$3" && pwd)
packages=$(echo "$venv"/lib/python3.*/site-packages)
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
mkdir -p "$build/include/crt"
cp "$packages/triton/backends/nvidia/include/crt/host_defines.h" "$build/include/crt/"
python3 "$here/missing_calls.py" "$here" "$packages/torch/lib" "$site" >"$build/missing.c"
gcc -w -O1 -shared -fPIC -I"$packages/nvidia/cu13/include" -I"$build/include" -o "$out/libnullgpu.so" \
  "$here"/cuda_*.c "$build/missing.c" -lpthread -ldl
cp "$out/libnullgpu.so" "$out/libcuda.so.1"
gcc -w -shared -fPIC -o "$out/libnvidia-ml.so.1" "$here/nvml.c"
