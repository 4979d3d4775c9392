"""How much is measured: all of it on a GPU, a little of each on a CPU, where programs are tried."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sizes:
    """Numbers of requests, and lengths in tokens."""

    copy_bytes: int
    product: int  # rows and columns of a matrix
    heads: tuple[tuple[int, int, int], ...]  # of queries, of keys and values; their dimension
    page_sizes: tuple[int, ...]
    seq_lens: tuple[int, ...]  # of the correctness cells
    token_lens: tuple[int, ...]  # of prompts whose tokens are compared
    token_outputs: int
    logprob_len: int  # of the prompt whose logprobs are compared
    logprob_outputs: int
    attention_rows: tuple[int, ...]
    attention_lens: tuple[int, ...]
    cold_bytes: int  # more than the caches hold
    linear_rows: tuple[int, ...]
    decode_rows: tuple[int, ...]  # falling; one of them twice, for the noise
    sampled_rows: tuple[int, ...]  # of those, with top_k and top_p, too
    decode_len: int  # of the prompt
    decode_tokens: int
    prompt_lens: tuple[int, ...]
    chunks: tuple[int, ...]
    num_offline: int
    num_offline_subset: int
    offline_len: int  # at most
    shared_len: int  # of a prefix in common
    streams: tuple[int, ...]
    stream_tokens: int
    peer_tokens: int
    num_rounds: int


ON_GPU = Sizes(
    copy_bytes=8 << 30,
    product=8192,
    heads=((16, 8, 128), (32, 8, 128), (32, 8, 64), (28, 4, 128)),
    page_sizes=(16, 64),
    seq_lens=(1, 15, 64, 257, 1023, 4099),
    token_lens=(1, 15, 40, 130),
    token_outputs=12,
    logprob_len=700,
    logprob_outputs=64,
    attention_rows=(1, 8, 32, 64, 128, 256),
    attention_lens=(512, 1024, 4096, 16384),
    cold_bytes=256 << 20,
    linear_rows=(1, 2, 4, 8, 16, 32, 64, 128, 256),
    decode_rows=(256, 128, 64, 32, 8, 1, 1),
    sampled_rows=(128, 32, 1),
    decode_len=1024,
    decode_tokens=128,
    prompt_lens=(1024, 4096, 8192, 16384),
    chunks=(2048, 8192),
    num_offline=256,
    num_offline_subset=64,
    offline_len=1024,
    shared_len=1024,
    streams=(64, 256),
    stream_tokens=256,
    peer_tokens=128,
    num_rounds=20,
)
ON_CPU = Sizes(
    copy_bytes=1 << 20,
    product=128,
    heads=((4, 2, 16), (7, 1, 32)),
    page_sizes=(16, 64),
    seq_lens=(1, 15, 67),
    token_lens=(1, 20),
    token_outputs=3,
    logprob_len=70,
    logprob_outputs=8,
    attention_rows=(1, 2),
    attention_lens=(32,),
    cold_bytes=1 << 10,
    linear_rows=(1, 2),
    decode_rows=(2, 1, 1),
    sampled_rows=(1,),
    decode_len=32,
    decode_tokens=12,
    prompt_lens=(64,),
    chunks=(32,),
    num_offline=4,
    num_offline_subset=2,
    offline_len=20,
    shared_len=32,
    streams=(4,),
    stream_tokens=16,
    peer_tokens=8,
    num_rounds=2,
)
