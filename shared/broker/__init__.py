"""JetStream as jetflock uses it: messages, buckets, objects, readers, and typed errors."""
