"""Flags of vLLM, SGLang and llama.cpp: taken as ours, or answered with what to do in jetflock.

`python -m shared.cli.peer_flags > docs/peer-flags.md` writes the page of all of them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shared.errors import ConfigError


@dataclass(frozen=True, slots=True)
class PeerFlag:
    """One meaning. With `ours` the flag is taken as that one; else `advice` refuses it."""

    names: tuple[str, ...]
    peers: str
    ours: str = ""
    advice: str = ""

    @property
    def in_jetflock(self) -> str:
        return f"works as `{self.ours}`" if self.ours else self.advice


_ALL = "vLLM, SGLang, llama.cpp"
_BOTH = "vLLM, SGLang"
_MODEL_ADVICE = "MODEL stands without a flag: `jetflock serve MODEL`"
_LORA_ADVICE = "`--lora NAME=PATH`, once for each adapter"
_GRAPHS_ADVICE = "`--cuda-graph-sizes 0 --cuda-graph-tokens 0`"
_REQUEST_ADVICE = "it belongs to a request, and its default to the model's generation_config.json"

_HEAD = """\
# Flags of other servers

Made by `python -m shared.cli.peer_flags > docs/peer-flags.md`. These are flags of `jetflock serve`,
`worker` and `autoscale`. Flags that do not work as one of jetflock's are refused with the words of
this table.
"""

PEER_FLAGS = (
    PeerFlag(("--tensor-parallel-size", "--tp-size", "-tp"), _BOTH, "--tp"),
    PeerFlag(("--max-model-len",), "vLLM", "--max-context-len"),
    PeerFlag(("--context-length",), "SGLang", "--max-context-len"),
    PeerFlag(("--ctx-size", "-c"), "llama.cpp", "--max-context-len"),
    PeerFlag(("--served-model-name",), _BOTH, "--model-name"),
    PeerFlag(("--alias", "-a"), "llama.cpp", "--model-name"),
    PeerFlag(("--max-num-seqs",), "vLLM", "--max-running"),
    PeerFlag(("--max-running-requests",), "SGLang", "--max-running"),
    PeerFlag(("--parallel", "-np"), "llama.cpp", "--max-running"),
    PeerFlag(("--max-num-batched-tokens",), "vLLM", "--max-step-tokens"),
    PeerFlag(("--kv-cache-dtype",), _BOTH, "--kv-dtype"),
    PeerFlag(("--threads", "-t"), "llama.cpp", "--num-threads"),
    PeerFlag(("-q",), "vLLM", "--quantization"),
    PeerFlag(("--tool-call-parser",), _BOTH, "--tool-parser"),
    PeerFlag(
        ("--incremental-streaming-output", "--stream-output"),
        "SGLang",
        advice='`"incremental_streaming_output": true` in the body of `/generate`',
    ),
    PeerFlag(("--model", "--model-path", "-m"), _ALL, advice=_MODEL_ADVICE),
    PeerFlag(
        ("--hf-repo", "-hf", "-hfr"),
        "llama.cpp",
        advice=f"{_MODEL_ADVICE}, where MODEL may be OWNER/NAME:Q4_K_M",
    ),
    PeerFlag(
        ("--mem-fraction-static",),
        "SGLang",
        advice="`--gpu-memory-utilization`, which counts all that a worker takes of the GPU",
    ),
    PeerFlag(("--enable-lora",), _BOTH, advice=f"adapters need no switch: {_LORA_ADVICE}"),
    PeerFlag(("--lora-modules", "--lora-paths"), _BOTH, advice=_LORA_ADVICE),
    PeerFlag(("--lora-scaled", "--lora-init-without-apply"), "llama.cpp", advice=_LORA_ADVICE),
    PeerFlag(("--max-loras-per-batch", "--max-cpu-loras"), _BOTH, advice="`--max-loras`"),
    PeerFlag(
        ("--chunked-prefill-size", "--enable-chunked-prefill"),
        _BOTH,
        advice="prefill is always in chunks; `--max-step-tokens` is the budget of a step",
    ),
    PeerFlag(
        ("--batch-size", "-b", "--ubatch-size", "-ub"),
        "llama.cpp",
        advice="`--max-step-tokens` is the budget of a step",
    ),
    PeerFlag(
        ("--enable-prefix-caching", "--no-enable-prefix-caching", "--disable-radix-cache"),
        _BOTH,
        advice="the prefix cache is always on; a request's `cache_salt` keeps it to itself",
    ),
    PeerFlag(("--enforce-eager", "--disable-cuda-graph"), _BOTH, advice=_GRAPHS_ADVICE),
    PeerFlag(("--cuda-graph-max-bs", "--cuda-graph-bs"), "SGLang", advice="`--cuda-graph-sizes`"),
    PeerFlag(("--block-size",), "vLLM", advice="`--page-size`"),
    PeerFlag(
        ("--data-parallel-size", "--dp-size", "--dp", "-dp"),
        _BOTH,
        advice="`--workers N` starts N workers, each on a GPU of its own while there are enough",
    ),
    PeerFlag(
        ("--pipeline-parallel-size", "-pp", "--pp-size"),
        _BOTH,
        advice="there is none; `--tp N` divides a model among GPUs",
    ),
    PeerFlag(
        ("--n-gpu-layers", "--gpu-layers", "-ngl", "--cpu-offload-gb", "--swap-space"),
        "vLLM, llama.cpp",
        advice="a model is on the GPU or on the processor as a whole: `--device cuda` or `cpu`",
    ),
    PeerFlag(
        ("--speculative-config", "--speculative-algorithm", "--model-draft", "-md"),
        _ALL,
        advice="`--speculate suffix` with `--num-draft-tokens`; there are no draft models",
    ),
    PeerFlag(
        ("--enable-auto-tool-choice",),
        "vLLM",
        advice="tool calls are always read, as the chat template says; `--tool-parser` overrides",
    ),
    PeerFlag(
        ("--chat-template", "--jinja", "--tokenizer", "--tokenizer-path"),
        _ALL,
        advice="both come from the model's folder: put chat_template.jinja or tokenizer.json there",
    ),
    PeerFlag(
        ("--trust-remote-code",), _BOTH, advice="code in a checkpoint is never run; leave it out"
    ),
    PeerFlag(
        ("--download-dir", "--revision"),
        _BOTH,
        advice="the variable HF_HOME says where downloads lie; for a revision, name its folder",
    ),
    PeerFlag(
        ("--seed", "--random-seed", "-s", "--temp", "--top-k", "--top-p", "--n-predict", "-n"),
        _ALL,
        advice=_REQUEST_ADVICE,
    ),
    PeerFlag(
        ("--flash-attn", "-fa"),
        "llama.cpp",
        advice="`--attention-backend` chooses on a GPU; on a CPU there is nothing to choose",
    ),
    PeerFlag(("--mmproj",), "llama.cpp", advice="a model's image encoder is in its own folder"),
    PeerFlag(
        ("--embedding", "--embeddings", "--is-embedding", "--task", "--runner", "--reranking"),
        _ALL,
        advice="what a model can do its files say; /v1/embeddings and /v1/rerank need no switch",
    ),
    PeerFlag(
        ("--metrics", "--enable-metrics", "--slots"),
        "SGLang, llama.cpp",
        advice="/metrics and /cluster are always there",
    ),
    PeerFlag(
        ("--disable-log-requests", "--enable-log-requests", "--log-requests"),
        _BOTH,
        advice="prompts are never logged; `--log-level warning` logs less",
    ),
    PeerFlag(("--uvicorn-log-level", "--log-verbosity"), _ALL, advice="`--log-level`"),
    PeerFlag(("--allowed-origins",), "vLLM", advice="`--cors-origins`, once for each"),
    PeerFlag(
        ("--ssl-keyfile", "--ssl-certfile", "--ssl-key-file", "--ssl-cert-file", "--root-path"),
        _ALL,
        advice="TLS and paths are for what stands before the frontend",
    ),
    PeerFlag(
        ("--distributed-executor-backend", "--nnodes", "--node-rank", "--dist-init-addr"),
        _BOTH,
        advice="workers of any number of machines pull from one NATS: `jetflock worker MODEL "
        "--nats-url URL` on each",
    ),
)


def is_peer_flag(word: str) -> bool:
    """Whether it is one of these, with its value or without."""
    name = word.partition("=")[0]
    return any(name in flag.names for flag in PEER_FLAGS)


def translated(words: Sequence[str], own_flags: Iterable[str] = ()) -> list[str]:
    """`words` with our flags in place of theirs. A flag of the program itself is left alone.

    Raises ConfigError for one that needs another word, with that word.
    """
    own = set(own_flags)
    by_name = {each: flag for flag in PEER_FLAGS for each in flag.names if each not in own}
    return [_translated(word, by_name.get(word.partition("=")[0])) for word in words]


def _translated(word: str, flag: PeerFlag | None) -> str:
    if flag is None:
        return word
    theirs, equals, value = word.partition("=")
    if flag.ours:
        return f"{flag.ours}{equals}{value}"
    advice = flag.advice.replace("`", "")
    raise ConfigError(f"{theirs} is a flag of {flag.peers}. In jetflock: {advice}")


def markdown_page() -> str:
    """docs/peer-flags.md."""
    rows = [
        f"| {', '.join(f'`{name}`' for name in flag.names)} | {flag.peers} | {flag.in_jetflock} |"
        for flag in PEER_FLAGS
    ]
    return "\n".join([_HEAD, "| flag | of | in jetflock |", "|---|---|---|", *rows, ""])


if __name__ == "__main__":
    sys.stdout.write(markdown_page())
