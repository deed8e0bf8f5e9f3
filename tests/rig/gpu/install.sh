#!/usr/bin/env bash
# On the GPU host: unpacks the parts and checks that they fit what is there.
#
# usage: tests/rig/gpu/install.sh PARTS SITE
#
# Writes SITE/env.sh, to be sourced before anything of vLLM runs, and SITE/bin/kvcache-exporter.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../../.." && pwd)
[[ $# -eq 2 ]] || { echo "usage: $0 PARTS SITE" >&2; exit 2; }
parts=$(cd "$1" && pwd)
mkdir -p "$2/bin"
site=$(cd "$2" && pwd)

(cd "$parts" && sha256sum --quiet -c SHA256SUMS) || { echo "a part is missing or damaged" >&2; exit 1; }
unpack='import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2], filter="tar")'
for part in "$parts"/*.tar.xz; do python3 -c "$unpack" "$part" "$site"; done

cat >"$site/env.sh" <<ENV
export PYTHONPATH=$site:$root PYTHONUNBUFFERED=1 PATH=$site/bin:\$PATH
export GLOO_SOCKET_IFNAME=lo NCCL_SOCKET_IFNAME=lo
export VLLM_USE_FLASHINFER_SAMPLER=0 VLLM_USE_DEEP_GEMM=0 DO_NOT_TRACK=1 TRANSFORMERS_OFFLINE=1
export VLLM_CACHE_ROOT=$site/.cache TRITON_CACHE_DIR=$site/.cache/triton
ENV
cat >"$site/bin/kvcache-exporter" <<'PROGRAM'
#!/usr/bin/env python3
import sys

from exporter.cli import main

sys.exit(main())
PROGRAM
chmod +x "$site/bin/kvcache-exporter"
if ! python3 -c 'import ctypes; ctypes.CDLL("libnvidia-ml.so.1")' 2>/dev/null; then
  for folder in /usr/local/nvidia/lib64 /usr/local/nvidia/lib /usr/lib/x86_64-linux-gnu/nvidia/current; do
    [[ -d $folder ]] || continue
    # Expanded when env.sh is sourced.
    # shellcheck disable=SC2016
    echo "export LD_LIBRARY_PATH=$folder:"'${LD_LIBRARY_PATH:-}' >>"$site/env.sh"
    break
  done
fi
# shellcheck source=/dev/null
source "$site/env.sh"
python3 -m compileall -q -j 0 "$site" >/dev/null 2>&1 || true
if ! python3 -c 'import numba; numba.njit(lambda x: x + 1)(1)' 2>/dev/null; then
  echo "numba cannot be imported here: a stand-in is used" >&2
  cp -r "$site/.fallback/numba" "$site/"
fi
exec python3 "$here/check_site.py" "$site/env.sh"
