"""The flags, and values of flags, of vLLM, SGLang and llama.cpp, and what they are in jetflock."""

from __future__ import annotations

from dataclasses import dataclass


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


@dataclass(frozen=True, slots=True)
class PeerValue:
    """Values of `flag`, a flag of ours, that peers have for it: taken as `ours`, or answered."""

    flag: str
    values: tuple[str, ...]
    ours: str = ""
    advice: str = ""

    @property
    def in_jetflock(self) -> str:
        return f"works as `{self.ours}`" if self.ours else self.advice


SPECULATIVE_CONFIG = "--speculative-config"
_ALL = "vLLM, SGLang, llama.cpp"
_BOTH = "vLLM, SGLang"
_MODEL_ADVICE = "MODEL stands without a flag: `jetflock serve MODEL`"
_LORA_ADVICE = "`--lora NAME=PATH`, once for each adapter"
_GRAPHS_ADVICE = "`--cuda-graph-sizes 0 --cuda-graph-tokens 0`"
_REQUEST_ADVICE = "it belongs to a request, and its default to the model's generation_config.json"

PEER_FLAGS = (
    PeerFlag(("--tensor-parallel-size", "--tp-size", "-tp"), _BOTH, "--tp"),
    PeerFlag(("--pipeline-parallel-size", "--pp-size", "-pp"), _BOTH, "--pp"),
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
        ("--tool-parser-plugin", "--reasoning-parser-plugin"),
        "vLLM",
        advice="`--tool-parser FILE.py` or `--reasoning-parser FILE.py`, which names it, too",
    ),
    PeerFlag(("--chat-template-file",), "llama.cpp", "--chat-template"),
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
    PeerFlag(
        ("--max-mamba-cache-size", "--mamba-full-memory-ratio"),
        "SGLang",
        advice="`--state-snapshots`, beside one state for each of `--max-running`",
    ),
    PeerFlag(
        ("--mamba-cache-mode", "--mamba-block-size"),
        "vLLM",
        advice="`--state-snapshots N` bounds how many states are kept; where, prompts decide",
    ),
    PeerFlag(
        ("--mamba-cache-dtype", "--mamba-ssm-cache-dtype", "--mamba-ssm-dtype"),
        _BOTH,
        advice="recurrent states are float32; leave it out",
    ),
    PeerFlag(("--enforce-eager", "--disable-cuda-graph"), _BOTH, advice=_GRAPHS_ADVICE),
    PeerFlag(
        ("--cuda-graph-max-bs", "--cuda-graph-bs", "--compilation-config"),
        _BOTH,
        advice="`--cuda-graph-sizes`; nothing else is compiled by a flag",
    ),
    PeerFlag(("--block-size",), "vLLM", advice="`--page-size`"),
    PeerFlag(
        ("--data-parallel-size", "--dp-size", "--dp", "-dp"),
        _BOTH,
        advice="`--workers N` starts N workers, each on a GPU of its own while there are enough",
    ),
    PeerFlag(
        ("--n-gpu-layers", "--gpu-layers", "-ngl", "--cpu-offload-gb", "--n-cpu-moe", "--cpu-moe"),
        "vLLM, llama.cpp",
        advice="a model is on the GPU or on the processor as a whole: `--device cuda` or `cpu`",
    ),
    PeerFlag(("--speculative-draft-model-path",), "SGLang", "--draft-model"),
    PeerFlag(("--model-draft", "-md"), "llama.cpp", "--draft-model"),
    PeerFlag(("--speculative-num-steps",), "SGLang", "--num-draft-tokens"),
    PeerFlag(("--num-speculative-tokens",), "vLLM", "--num-draft-tokens"),
    PeerFlag(("--draft-max",), "llama.cpp", "--num-draft-tokens"),
    PeerFlag(
        (SPECULATIVE_CONFIG,),
        "vLLM",
        advice="`--draft-model`, or `--speculate` with `--num-draft-tokens`, as its JSON says",
    ),
    PeerFlag(
        (
            "--speculative-algorithm",
            "--speculative-eagle-topk",
            "--speculative-num-draft-tokens",
            "--spec-type",
        ),
        "SGLang, llama.cpp",
        advice="`--draft-model PATH`, or `--speculate mtp`, `ngram` or `suffix`; guesses are "
        "chains of up to `--num-draft-tokens`",
    ),
    PeerFlag(
        ("--enable-auto-tool-choice",),
        "vLLM",
        advice="tool calls are always read, as the chat template says; `--tool-parser` overrides",
    ),
    PeerFlag(
        ("--jinja", "--tokenizer", "--tokenizer-path"),
        _ALL,
        advice="both come from the model's folder; `--chat-template FILE` takes the template's "
        "place",
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
        (
            "--seed",
            "--random-seed",
            "-s",
            "--temp",
            "--top-k",
            "--top-p",
            "--n-predict",
            "-n",
            "--override-generation-config",
            "--max-logprobs",
            "--grammar",
            "--json-schema",
            "--reverse-prompt",
        ),
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
        (
            "--embedding",
            "--embeddings",
            "--is-embedding",
            "--task",
            "--runner",
            "--reranking",
            "--pooling",
            "--override-pooler-config",
        ),
        _ALL,
        advice="what a model can do its files say; /v1/embeddings and /v1/rerank need no switch",
    ),
    PeerFlag(
        ("--metrics", "--enable-metrics", "--slots", "--props"),
        "SGLang, llama.cpp",
        advice="/metrics, /cluster and /props are always there",
    ),
    PeerFlag(
        (
            "--disable-log-requests",
            "--enable-log-requests",
            "--log-requests",
            "--disable-log-stats",
            "--decode-log-interval",
        ),
        _BOTH,
        advice="prompts are never logged; `--log-level warning` logs less",
    ),
    PeerFlag(("--uvicorn-log-level", "--log-verbosity", "-lv"), _ALL, advice="`--log-level`"),
    PeerFlag(("--allowed-origins",), "vLLM", advice="`--cors-origins`, once for each"),
    PeerFlag(
        ("--ssl-keyfile", "--ssl-certfile", "--ssl-key-file", "--ssl-cert-file", "--root-path"),
        _ALL,
        advice="TLS and paths are for what stands before the frontend",
    ),
    PeerFlag(
        ("--distributed-executor-backend", "--dist-init-addr", "--master-addr", "--master-port"),
        _BOTH,
        advice="hosts with `--nnodes` find each other over NATS; `--node-address` says where node "
        "0 listens",
    ),
    PeerFlag(("--cache-type-k", "-ctk"), "llama.cpp", "--kv-dtype"),
    PeerFlag(("--scheduling-policy",), "vLLM", "--schedule-policy"),
    PeerFlag(("--watchdog-timeout",), "SGLang", "--hang-timeout-s"),
    PeerFlag(
        ("--cache-type-v", "-ctv"),
        "llama.cpp",
        advice="keys and values have one type: `--kv-dtype`",
    ),
    PeerFlag(
        ("--enable-hierarchical-cache", "--hicache-storage-backend", "--kv-offloading-size"),
        _BOTH,
        advice="on a CPU `--kv-disk-dir` and `--kv-disk-bytes`; pages do not leave a GPU yet",
    ),
    PeerFlag(
        ("--swap-space",),
        "vLLM",
        advice="a retracted request finds its pages by `--kv-disk-dir`, or computes them again",
    ),
    PeerFlag(
        ("--max-total-tokens", "--num-gpu-blocks-override", "--kv-cache-memory-bytes"),
        _BOTH,
        advice="`--num-kv-tokens`, or `--kv-memory-bytes`",
    ),
    PeerFlag(
        ("--max-prefill-tokens", "--max-num-partial-prefills", "--stream-interval"),
        _BOTH,
        advice="`--max-step-tokens` is the budget of a step; each token is sent as it comes",
    ),
    PeerFlag(
        ("--disable-overlap-schedule", "--async-scheduling", "--no-async-scheduling"),
        _BOTH,
        advice="the host always works beside the device; `--no-overlap` keeps it from that",
    ),
    PeerFlag(
        ("--max-queued-requests", "--max-queue-size"),
        "SGLang",
        advice="`--queue-max-msgs` and `--queue-max-bytes` bound the queue",
    ),
    PeerFlag(
        ("--enable-expert-parallel", "--ep-size", "--ep", "--expert-parallel-size"),
        _BOTH,
        advice="`--tp N` divides experts among GPUs, too; there is no other way",
    ),
    PeerFlag(
        ("--split-mode", "-sm", "--main-gpu", "-mg", "--tensor-split", "-ts"),
        "llama.cpp",
        advice="`--tp N` divides a model among N GPUs; CUDA_VISIBLE_DEVICES says which",
    ),
    PeerFlag(
        ("--grammar-backend", "--guided-decoding-backend", "--structured-outputs-config"),
        _BOTH,
        advice="there is one, llguidance; a request says its grammar or schema",
    ),
    PeerFlag(
        ("--sampling-backend", "--moe-runner-backend", "--fp8-gemm-backend", "--enable-p2p-check"),
        _BOTH,
        advice="there is nothing to choose; `--attention-backend` chooses attention",
    ),
    PeerFlag(
        (
            "--rope-scaling",
            "--rope-theta",
            "--rope-freq-base",
            "--hf-overrides",
            "--json-model-override-args",
            "--override-kv",
        ),
        _ALL,
        advice="the model's config.json says it: change it there, in a copy of the folder",
    ),
    PeerFlag(
        (
            "--chat-template-content-format",
            "--chat-template-kwargs",
            "--default-chat-template-kwargs",
        ),
        _BOTH,
        advice="the template says which form it takes; `chat_template_kwargs` stand in a request",
    ),
    PeerFlag(
        ("--reasoning-format", "--reasoning-budget"),
        "llama.cpp",
        advice="`--reasoning-parser`, or `none` of it; `separate_reasoning` and "
        "`max_completion_tokens` stand in a request",
    ),
    PeerFlag(
        ("--limit-mm-per-prompt", "--mm-processor-kwargs"),
        "vLLM",
        advice="`--max-images`, `--max-image-bytes`, `--max-image-pixels` and `--max-image-tokens` "
        "bound images, `--max-videos`, `--max-video-frames` and others videos, `--max-audios` and "
        "others audio",
    ),
    PeerFlag(
        ("--kv-transfer-config",),
        "vLLM",
        advice="`jetflock worker --role prefill` and `--role decode` meet in one `--kv-disk-dir`, "
        "or by `--kv-transfer-bind`",
    ),
    PeerFlag(("--disaggregation-mode",), "SGLang", "--role"),
    PeerFlag(
        ("--enable-sleep-mode", "--enable-memory-saver"),
        _BOTH,
        advice="always on: `jetflock admin sleep`, or `/sleep` of the admin plane",
    ),
    PeerFlag(
        ("--sleep-idle-seconds",),
        "llama.cpp",
        advice="`--workers 0..1` with `--scale-idle-s`: an idle worker ends, a request starts one",
    ),
    PeerFlag(
        ("--enable-cache-report", "--enable-prompt-tokens-details"),
        _BOTH,
        advice="usage always tells `cached_tokens`",
    ),
    PeerFlag(
        ("--skip-tokenizer-init", "--skip-server-warmup", "--no-warmup", "--warmups"),
        _ALL,
        advice="a worker takes requests when it has loaded and warmed up; leave it out",
    ),
    PeerFlag(
        ("--cont-batching", "-cb", "--kv-unified", "-kvu", "--cache-prompt", "--cache-reuse"),
        "llama.cpp",
        advice="requests always share steps and the cache of prefixes; leave it out",
    ),
    PeerFlag(
        ("--no-mmap", "--mlock", "--numa", "--prio", "--poll", "--threads-batch", "-tb"),
        "llama.cpp",
        advice="`--num-threads` is all there is; the system's own tools do the rest",
    ),
    PeerFlag(
        ("--context-shift", "--no-context-shift", "--swa-full", "--defrag-thold"),
        "llama.cpp",
        advice="an answer ends with the model's context, and nothing is shifted; leave it out",
    ),
    PeerFlag(
        ("--ui", "--no-ui", "--webui", "--no-webui", "--slot-save-path", "--threads-http"),
        "llama.cpp",
        advice="there is no such switch: the page is at /, and streams are kept in NATS",
    ),
    PeerFlag(
        ("--offline",),
        "llama.cpp",
        advice="the variable HF_HUB_OFFLINE=1, or a folder in place of a hub id",
    ),
    PeerFlag(("--log-file",), "llama.cpp", advice="logs go to stderr: send that to a file"),
)

PEER_VALUES = (
    PeerValue("--dtype", ("bf16",), "bfloat16"),
    PeerValue("--dtype", ("float", "fp32", "f32"), "float32"),
    PeerValue(
        "--dtype",
        ("half", "float16", "fp16", "f16"),
        advice="there is no float16: `--dtype bfloat16`, or auto",
    ),
    PeerValue("--kv-dtype", ("fp8_e4m3",), "fp8"),
    PeerValue(
        "--kv-dtype",
        ("bfloat16", "bf16", "f16", "float16", "f32"),
        advice="`--kv-dtype` auto is the type that the model computes in, which `--dtype` says",
    ),
    PeerValue("--kv-dtype", ("q8_0",), "int8"),
    PeerValue(
        "--kv-dtype",
        ("fp8_e5m2", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl", "nvfp4"),
        advice="`--kv-dtype` fp8 (e4m3) on a GPU or int8 on a processor",
    ),
    PeerValue(
        "--quantization",
        (
            "awq",
            "awq_marlin",
            "gptq",
            "gptq_marlin",
            "compressed-tensors",
            "bitsandbytes",
            "gguf",
            "modelopt",
            "modelopt_fp4",
            "mxfp4",
            "nvfp4",
        ),
        advice="the files of a quantised model say their format themselves: leave the flag out; "
        "int8, int4 and fp8 quantise a model of 16 bits as it is loaded",
    ),
    PeerValue("--schedule-policy", ("priority",), "fcfs"),  # which counts priorities, too
    PeerValue("--generation-config", ("vllm",), "none"),
    PeerValue("--attention-backend", ("FLASHINFER",), "flashinfer"),
    PeerValue("--attention-backend", ("TRITON_ATTN",), "triton"),
    PeerValue("--attention-backend", ("TORCH_SDPA", "torch_native"), "torch"),
    PeerValue(
        "--attention-backend",
        ("FLASH_ATTN", "FLASHMLA", "fa3", "fa4", "flashmla", "trtllm_mha"),
        advice="`--attention-backend` flashinfer or triton; auto chooses by trial",
    ),
)
