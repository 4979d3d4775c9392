"""Everything on one machine: a process tree of nats-server, detokenizer, frontend and workers."""
