#!/usr/bin/env bash
# The rehearsal of ../run.sh without a GPU and without a network: memory is the host's, kernels do nothing, all
# else is real (the engine, its scheduler, its pool; the exporter; the checks). As root.
#
# usage: tests/rig/gpu/nullgpu/run.sh VENV PARTS WORK [pytest arguments]
#
#   VENV   stands for the host: Python 3.12 with torch 2.11 (CUDA 13) and what ../README.md lists
#   WORK   keeps the unpacked parts, the null GPU and the report
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[[ $# -ge 3 ]] || { sed -n '2,9s/^# \?//p' "${BASH_SOURCE[0]}" >&2; exit 2; }
venv=$(cd "$1" && pwd)
parts=$(cd "$2" && pwd)
mkdir -p "$3/site"
work=$(cd "$3" && pwd)
shift 3
unset PYTHONPATH
export PATH=$venv/bin:$here/bin:$PATH SITE=$work/site OUT=$work/report
if [[ ! -e $work/null/libnullgpu.so ]]; then
  unpack='import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2], filter="tar")'
  for part in "$parts"/*.tar.xz; do python3 -c "$unpack" "$part" "$SITE"; done
  "$here/build.sh" "$venv" "$SITE" "$work/null"
fi
cp -r "$here"/plugin/* "$SITE/"
# Expanded by the shell inside.
# shellcheck disable=SC2016
inside='ip link set lo up; exec env LD_LIBRARY_PATH="$0" LD_PRELOAD="$0/libnullgpu.so" "$@"'
exec unshare -n bash -c "$inside" "$work/null" "$here/../run.sh" "$parts" "$@"
