#!/bin/sh
# Starts NVIDIA Dynamo's frontend, its mocked engine and a nats-server for them, until stopped.
#
#   bench/peers/dynamo.sh DIR PORT paced|fast
#
# DIR is where `bench/peers/setup.sh dynamo DIR` made the environment. `paced`: 10 ms a token.
# REQUEST_PLANE=nats sends requests over NATS in place of its default, TCP.
set -eu

usage="usage: $0 DIR PORT paced|fast"
dir=${1:?$usage}
port=${2:?$usage}
case ${3:?$usage} in
paced) speed=0.6 ;;
fast) speed=1000000 ;;
*) echo "$usage" >&2; exit 2 ;;
esac

store=$(mktemp -d)
nats_port=$((port + 1))
pids=""
trap 'kill $pids 2>/dev/null; wait; rm -rf "$store"' EXIT
trap 'exit 0' TERM INT
export DYN_LOG=warn DYN_FILE_KV="$store/kv" NATS_SERVER="nats://127.0.0.1:$nats_port"
python="$dir/dynamo/bin/python"
planes="--discovery-backend file --request-plane ${REQUEST_PLANE:-tcp} --event-plane nats"

"${NATS_SERVER_BINARY:-nats-server}" -js -sd "$store/nats" -a 127.0.0.1 -p "$nats_port" &
pids="$pids $!"
"$python" -m dynamo.frontend --http-host 127.0.0.1 --http-port "$port" --router-mode round-robin $planes &
pids="$pids $!"
"$python" -m dynamo.mocker --model-path deploy/demo_model/checkpoint --model-name mock \
    --speedup-ratio "$speed" $planes &
pids="$pids $!"
wait
