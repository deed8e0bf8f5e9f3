#!/usr/bin/env bash
# Downloads a vLLM and what it and the rig need, and packs them small for a GPU host without a network.
#
# usage: tests/rig/gpu/make_parts.sh OUT [CACHE]
#
#   OUT    gets a-python.tar.xz, b-ops.tar.xz, c-fa3.tar.xz and SHA256SUMS, some 40 MiB together
#   CACHE  keeps the wheels (1 GB; default OUT.cache)
#   ARCH   the GPU's compute capability, without the dot (default 90, Hopper)
#
# Needs bash, python3 with pip (any version), tar and xz; about four minutes on two cores, most of it xz.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[[ $# -ge 1 ]] || { sed -n '2,10s/^# \?//p' "${BASH_SOURCE[0]}" >&2; exit 2; }
mkdir -p "$1" "${2:-$1.cache}"
out=$(cd "$1" && pwd)
cache=$(cd "${2:-$1.cache}" && pwd)
# The newest release that pins torch 2.11.0, which is what the host has.
readonly version=0.26.0 arch=${ARCH:-90}
export PIP_DISABLE_PIP_VERSION_CHECK=1

platform=(--only-binary=:all: --python-version 3.12 --implementation cp)
for glibc in 35 34 31 28 27 26 24 17; do platform+=(--platform "manylinux_2_${glibc}_x86_64"); done
platform+=(--platform manylinux2014_x86_64 --platform manylinux1_x86_64)
fetch() { python3 -m pip download -q --no-deps "${platform[@]}" "$@"; }

lists=("$here/wheels.txt" "$here/wheels-rig.txt")
wheels=$cache/wheels-$(cat "${lists[@]}" | cksum | cut -d' ' -f1)
if [[ ! -e $wheels/complete ]]; then
  rm -rf "$wheels"
  mkdir -p "$wheels"
  for list in "${lists[@]}"; do fetch -d "$wheels" -r "$list"; done
  touch "$wheels/complete"
fi
compgen -G "$cache/vllm/vllm-$version-*.whl" >/dev/null || fetch -d "$cache/vllm" "vllm==$version"

build=$(mktemp -d "$cache/build.XXXXXX")
trap 'rm -rf "$build"' EXIT
site=$build/site
mkdir "$site"
python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir "${platform[@]}" \
  --target "$site" "$wheels"/*.whl
rm -rf "${site:?}/bin" "$site/pycountry/locales" "$site"/mistral_common/data/tekken* \
  "$site"/tvm_ffi/lib/libtvm_ffi_testing.so
python3 "$here/unpack_vllm.py" "$cache"/vllm/vllm-"$version"-*.whl "$site"
for library in _C_stable_libtorch _moe_C_stable_libtorch _flashmla_C; do
  python3 "$here/slim_so.py" "$site/vllm/$library.abi3.so" "$build/slim.so" --arch "$arch"
  mv "$build/slim.so" "$site/vllm/$library.abi3.so"
done
cp -r "$here"/stubs/* "$site/"
mkdir "$site/.fallback"
cp -r "$here"/fallback/* "$site/.fallback/"
# pip notes here where a wheel came from: a folder of this machine.
rm -f "$site"/*.dist-info/direct_url.json
sed -i '/direct_url.json/d' "$site"/*.dist-info/RECORD
find "$site" -name __pycache__ -prune -exec rm -rf {} +
find "$site" -exec touch -h -d @1700000000 {} +
chmod -R u+w,a+rX "$site"

pack() { # NAME WHAT...
  local name=$1
  shift
  tar -C "$site" --sort=name --mtime=@1700000000 --owner=0 --group=0 --numeric-owner -cf - "$@" |
    xz -T1 -7 >"$out/$name.tmp"
  mv "$out/$name.tmp" "$out/$name"
}
rm -f "$out"/*.tar.xz
ops=(./vllm/{_C_stable_libtorch,_moe_C_stable_libtorch,_flashmla_C,_flashmla_extension_C}.abi3.so)
flash=./vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so
pack c-fa3.tar.xz "$flash" &
pack b-ops.tar.xz "${ops[@]}"
pack a-python.tar.xz "${ops[@]/#/--exclude=}" "--exclude=$flash" .
wait $!
cd "$out"
sha256sum ./*.tar.xz >SHA256SUMS
du -ch --apparent-size ./*.tar.xz
