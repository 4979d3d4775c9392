"""The health of a process, and the HTTP server that tells it to probes and Prometheus."""
