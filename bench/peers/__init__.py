"""One small program an engine: it speaks the protocol of `bench.peers.runner`, and no more."""
