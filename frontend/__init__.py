"""The frontend: HTTP and NATS clients in, requests to the queue, text out."""
