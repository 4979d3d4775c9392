"""The streams, buckets and consumers of a service: how they are made, sized and checked."""
