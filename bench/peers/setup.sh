#!/bin/sh
# Makes the virtual environment of one peer of `python -m bench.engine --peers`, by pip alone.
#
#   bench/peers/setup.sh transformers DIR
#
# The environment is DIR/PEER; `--peers-dir DIR` finds it there.
set -eu

usage="usage: $0 transformers DIR"
peer=${1:?$usage}
dir=${2:?$usage}
venv=$dir/$peer
python=${PYTHON:-python3}

mkdir -p "$dir"
test -x "$venv/bin/python" || "$python" -m venv "$venv"
pip() { "$venv/bin/python" -m pip --disable-pip-version-check -q "$@"; }

case $peer in
transformers)
    pip install "transformers==5.23.*" "torch==2.13.0" accelerate psutil
    ;;
*)
    echo "$usage" >&2
    exit 2
    ;;
esac
