#!/usr/bin/env bash
# curl alone: examples/curl.sh [URL]
set -euo pipefail
url="${1:-http://127.0.0.1:8000}"

# Which models are there?
curl -fsS "$url/v1/models"
echo

# A chat answer.
curl -fsS "$url/v1/chat/completions" -H 'Content-Type: application/json' -d '{
  "model": "jetflock-demo",
  "messages": [{"role": "user", "content": "Hello! Who are you?"}]
}'
echo

# A stream. Each event has an id: send the last one back as Last-Event-ID to go on after it.
events=$(curl -fsSN "$url/generate" -H 'Content-Type: application/json' -d '{
  "text": "Once upon a time", "max_tokens": 12, "temperature": 0, "stream": true,
  "incremental_streaming_output": true
}')
echo "$events" | head -n 8

third=$(echo "$events" | sed -n 's/^id: //p' | sed -n 3p)
curl -fsSN "$url/v1/streams/${third%%.*}" -H "Last-Event-ID: $third" | head -n 8
