#!/usr/bin/env bash
# Unpacks what carry.sh has packed, and runs the benchmark with it:
# `bench/gpu/run.sh carry.tar.xz [flags of python -m bench.gpu]`.
set -euo pipefail
archive=$(realpath "${1:?usage: $0 ARCHIVE [FLAGS]}")
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m tarfile -e "$archive" "$work"
cd "$(dirname "$(realpath "$0")")/../.."
PATH="$work/packages/bin:$PATH" PYTHONPATH="$PWD:$work/packages${PYTHONPATH:+:$PYTHONPATH}" \
    "${PYTHON:-python3}" -m bench.gpu "$@"
