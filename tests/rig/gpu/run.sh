#!/usr/bin/env bash
# On a GPU host without a network: installs the parts, then runs the rig, engines and exporter side by side.
#
# usage: tests/rig/gpu/run.sh PARTS [pytest arguments]
#
#   OUT   where the report goes (default build/rig-report)
#   SITE  where the parts are unpacked (default a folder in /tmp); kept, so that a second run starts at once
#
# The host has Python 3.12 with torch 2.11 (CUDA 13) and what README.md lists; the parts come from make_parts.sh.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../../.." && pwd)
[[ $# -ge 1 ]] || { sed -n '2,9s/^# \?//p' "${BASH_SOURCE[0]}" >&2; exit 2; }
parts=$1
shift
site=${SITE:-${TMPDIR:-/tmp}/kvcache-rig-site}
if [[ ! -e $site/.ready ]]; then
  "$here/install.sh" "$parts" "$site"
  touch "$site/.ready"
fi
# shellcheck source=/dev/null
source "$site/env.sh"
# SITE may have been unpacked for another copy of this repository.
export PYTHONPATH=$site:$root
KVCACHE_RIG_VLLM_PYTHON=$(command -v python3)
export KVCACHE_RIG_VLLM_PYTHON KVCACHE_RIG_GPU=1 KVCACHE_RIG_REPORT=${OUT:-$root/build/rig-report}
cd "$root"
# What lies above tests/rig asks for packages that only development needs.
exec python3 -m pytest --confcutdir tests/rig -p no:cacheprovider -q -rs --durations=10 \
  tests/rig/test_vllm*.py tests/rig/test_real_model.py "$@"
