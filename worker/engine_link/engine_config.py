"""The configuration of an engine process."""

# No `from __future__ import annotations` here: the fields' types are read at run time, by
# subclasses in other modules.
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import msgspec

from shared.checkpoint.stored_format import ActivationsName, KVDTypeName, MadeFormat
from shared.errors import ConfigError
from shared.protocol.role_cards import WorkerRole
from shared.telemetry.log import LogConfig

SpeculateName = Literal["off", "ngram", "suffix", "mtp"]
LoadFormat = Literal["safetensors", "dummy"]
PackedName = Literal["auto", "always", "off"]
DTypeName = Literal["auto", "float32", "bfloat16"]
DeviceName = Literal["auto", "cpu", "cuda"]
AttentionName = Literal["auto", "triton", "flashinfer", "torch"]
DecodeKernelName = Literal["triton", "xqa", "fa2"]
PrefillKernelName = Literal["triton", "fa2", "fa3"]
LinearsName = Literal["auto", "library"]
KernelSetName = Literal["amx-bf16", "avx512-bf16", "avx512", "avx2", "amx-bf16-emulated"]
CpuKernelsName = Literal["auto", "native", "torch", KernelSetName]
_EVERYWHERE = ("0.0.0.0", "::", "*")  # noqa: S104 - nobody shall listen there
_LEAST = {  # least value -> fields
    1: (
        *("tp", "pp", "page_size", "num_draft_tokens", "min_ngram_len", "max_lora_rank"),
        *("max_running", "max_step_tokens", "num_kv_tokens", "kv_memory_bytes"),
        *("max_context_len", "num_threads", "packed_max_bytes", "kv_disk_bytes"),
    ),
    0: ("max_loras", "state_snapshots"),
}
KV_DISK_FREE_BYTES = 1 << 30  # left on the disk of `kv_disk_dir`, which others fill as well


@dataclass(frozen=True, kw_only=True)
class EngineConfig(LogConfig):
    """How the engine runs. Built by the worker's I/O process, read once in the engine process."""

    help_group: ClassVar[str] = "Engine"
    program: ClassVar[str] = "worker.engine"
    """The module that takes it."""

    model_path: str = ""
    """Folder with config.json and *.safetensors."""
    dtype: DTypeName = "auto"
    """Of weights and KV cache; auto: float32 for small models, else bfloat16 where it is fast."""
    kv_dtype: KVDTypeName = "auto"
    """Of the KV cache; auto: the model's; fp8: float8_e4m3fn, on a GPU; int8: in our C++ on a CPU,
    with a scale for each token and head. Both take half the memory, round, and make another
    revision of the model."""
    cpu_activations: ActivationsName = "auto"
    """What weights of integers are multiplied with, in our C++ on a CPU; auto: as the checkpoint
    declares, else bfloat16; int8: rounded, with a scale for each token and 128 inputs. It makes
    another revision of the model."""
    quantization: MadeFormat | None = None
    """Make the projections of a 16-bit checkpoint int8 or fp8 by channel, or int4 in groups of 128,
    when it is loaded; a quantised one tells its format itself."""
    packed_weights: PackedName = "auto"
    """Keep weights on disk as our C++ multiplies them, for the next start: workers of a machine map
    the same memory. auto: those of quantised models; always: those in 16 bits, too; off: none."""
    packed_folder: str = ""
    """Where; by default jetflock in the user's cache."""
    packed_max_bytes: int = 64 << 30
    """Of all packed weights there; those that were not used for longest are removed."""
    load_format: LoadFormat = "safetensors"
    """dummy: random weights from config.json alone, for benchmarks; needs no tokenizer either."""
    device: DeviceName = "auto"
    """Where the model runs; auto: on an NVIDIA GPU where there is one."""
    deterministic: bool = False
    """A request's tokens and logprobs are the same, bit for bit, whatever runs beside it."""
    gpu_memory_utilization: float = 0.92
    """Share of the GPU's memory for weights, keys and values, and all else of this worker."""
    tp: int = 1
    """GPUs that share the model, with a process each: its heads and MLPs are divided among them."""
    pp: int = 1
    """GPUs that share the model by layers, with a process each: its stages. As many sets of
    requests go through them one behind the other, so that each stage has one to compute."""
    nnodes: int = 1
    """Hosts that share them: `jetflock worker` on each, with the same flags and a node_rank of its
    own."""
    node_rank: int = 0
    """Which of these hosts it is. Node 0 is the worker; the others compute its steps with it."""
    node_address: str = ""
    """Of node 0, where the others reach it, in a network of theirs: who may join is checked, and
    nothing encrypted; by default the address from which it reaches NATS."""
    node_port: int = 0
    """There; 0: any that is free."""
    cuda_graph_sizes: tuple[int, ...] = ()
    """Numbers of requests whose decode steps are captured, 0 is none; by default 1, 2, 4, 8, 16,
    ... all."""
    cuda_graph_tokens: tuple[int, ...] = ()
    """Numbers of tokens whose steps with prefill are captured, 0 is none; by default 16 up to 1024,
    fewer for large models."""
    attention_backend: AttentionName = "auto"
    """On a GPU; triton: our kernels, flashinfer: the fastest of its, torch: slow, to compare with;
    auto: the fastest of triton and flashinfer, which are tried at the start."""
    decode_attention_backend: DecodeKernelName | None = None
    """For requests that decode, in place of attention_backend; xqa and fa2 are flashinfer's."""
    prefill_attention_backend: PrefillKernelName | None = None
    """For prefill and guesses, in place of attention_backend; fa2 and fa3 are flashinfer's."""
    linears: LinearsName = "auto"
    """On a GPU; auto: of few rows by cuBLAS or our kernels, which are tried at the start; library:
    always by cuBLAS."""
    cpu_kernels: CpuKernelsName = "auto"
    """native: our C++, for bfloat16, by the best kernel set that the processor has; the name of a
    set: by that one; auto: native where it is possible, else torch."""
    max_running: int | None = None
    """Requests that decode in one step; by default 32 on a CPU, 256 on a GPU."""
    max_step_tokens: int | None = None
    """Token budget of a step: one for each decoding request, the rest for prefill chunks; by
    default 512 on a CPU, 8192 on a GPU."""
    max_step_s: float = 0.5
    """A step gets fewer prefill tokens when it would take longer."""
    target_itl_s: float | None = None
    """While requests decode, steps get fewer prefill tokens, so that none of them waits longer for
    a token; by default three times what a step without prefill takes."""
    target_ttft_s: float = 1.0
    """When prompts would wait longer for their first token, steps may take more than target_itl_s,
    up to max_step_s."""
    schedule_policy: Literal["fcfs", "lpm"] = "fcfs"
    """Who joins first, among requests of about the same age and priority: the first that came, or
    the one with the longest cached prefix."""
    priority_aging_s: float = 5.0
    """So many seconds of waiting inside the engine count as much as one step of priority."""
    page_size: int = 16
    """Tokens of one KV page; also the grain of the prefix cache."""
    num_kv_tokens: int | None = None
    """KV slots; by default as many as kv_memory_bytes holds."""
    kv_memory_bytes: int | None = None
    """Memory for keys and values; by default a quarter of what is available, at most 1 GiB."""
    kv_disk_dir: str | None = None
    """Folder for keys and values that leave memory, where later prompts find them, also those of
    the next worker; workers of a machine may share it. On a CPU; by default there is none."""
    kv_disk_bytes: int = 16 << 30
    """Of all that is there; what was not used for longest is removed."""
    role: WorkerRole = "both"
    """prefill: compute prompts, and hand requests with their first token to a worker that decodes;
    decode: go on with such requests, and take from the queue while no other worker is ready. They
    meet in kv_disk_dir, which both need."""
    max_pinned_share: float = 0.5
    """Of the KV slots, how many may hold prefixes that requests ask to keep (keep_prefix)."""
    state_snapshots: int | None = None
    """Of models with recurrent layers: states that are kept at page borders, behind which later
    prompts go on; 0: none, and no prefix; by default a quarter of the available memory, at most
    1 GiB."""
    max_context_len: int | None = None
    """Prompt and output together; by default config.json says; more where its rope stretches."""
    logits_processors: str | None = None
    """File of Python functions that requests may name as logits_processors: what they say must be a
    function of request and tokens alone. It makes another revision of the model."""
    profile_dir: str | None = None
    """Folder for the profiles that operators ask for (/start_profile); without it, they are
    refused."""
    grammar_timeout_s: float = 10.0
    """A request whose grammar takes longer to compile is failed."""
    num_threads: int | None = None
    """CPU threads of the model; by default one for each usable core, a small model has one."""
    max_loras: int = 8
    """LoRA adapters that are kept in memory; the one that was not used for longest gives way."""
    max_lora_rank: int = 64
    """The largest rank (r) of an adapter."""
    overlap: bool | None = None
    """Launch a step before the tokens of the one before it are known; by default on a GPU, no gain
    on a CPU."""
    speculate: SpeculateName = "off"
    """Guess tokens for a step to confirm: what followed the same words in the request, by its last
    few tokens (ngram), or by the longest repetition, also of earlier outputs (suffix); or, on a
    CPU, what the model's own MTP head says (mtp)."""
    draft_model: str | None = None
    """A small model with the same tokenizer, or an EAGLE-3 head, whose guesses a step confirms, on
    a CPU: a folder, or a hub id. How many it makes depends on what they cost and how many are
    right."""
    num_draft_tokens: int = 8
    """Guesses of a request in a step, at most."""
    min_ngram_len: int = 2
    """Tokens at the end that must have occurred before, at least."""
    max_ngram_len: int = 4
    """Of several occurrences the longest counts, up to this many tokens."""

    @property
    def num_local_ranks(self) -> int:
        """Of a model that is divided, on each host."""
        return self.num_ranks // self.nnodes

    @property
    def num_ranks(self) -> int:
        """The processes that share the model."""
        return self.tp * self.pp

    @property
    def divided_by(self) -> str:
        """Field and value that say how many share the model."""
        return f"pp={self.pp}" if self.pp > 1 else f"tp={self.tp}"

    @property
    def guesses_by(self) -> str:
        """Field and value that ask for guesses; "": none does."""
        if self.draft_model is not None:
            return f"draft_model={self.draft_model}"
        return "" if self.speculate == "off" else f"speculate={self.speculate}"

    @property
    def guesses_with_pages(self) -> bool:
        """Whether what guesses keeps something of each page."""
        return self.draft_model is not None or self.speculate == "mtp"

    def to_json(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Raises ConfigError."""
        try:
            return msgspec.json.decode(text, type=cls)
        except msgspec.DecodeError as exc:
            raise ConfigError(f"the engine's configuration cannot be read: {exc}") from exc

    def check(self) -> None:
        """Raises ConfigError for a value that no engine can run with."""
        self._check_numbers()
        self._check_nodes()
        self._check_choices()
        if self.pp > 1:
            self._check_stages()

    def _check_numbers(self) -> None:
        for least, names in _LEAST.items():
            for name in names:
                value = getattr(self, name)
                if value is not None and value < least:
                    raise ConfigError(f"{name} must be at least {least}, not {value}")
        for name in ("max_step_s", "target_itl_s", "target_ttft_s", "priority_aging_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{name} must be above 0 seconds, not {value}")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ConfigError(
                f"gpu_memory_utilization must be above 0, up to 1, not "
                f"{self.gpu_memory_utilization}"
            )
        if not 0 <= self.max_pinned_share <= 1:
            raise ConfigError(f"max_pinned_share must be 0 to 1, not {self.max_pinned_share}")
        if self.max_ngram_len < self.min_ngram_len:
            raise ConfigError(
                f"max_ngram_len={self.max_ngram_len} is less than "
                f"min_ngram_len={self.min_ngram_len}"
            )

    def _check_nodes(self) -> None:
        if self.nnodes < 1 or self.num_ranks % self.nnodes:
            raise ConfigError(f"nnodes={self.nnodes} does not divide {self.divided_by}")
        if not 0 <= self.node_rank < self.nnodes:
            raise ConfigError(
                f"node_rank={self.node_rank} is none of nnodes={self.nnodes}: they count from 0"
            )
        if self.node_address in _EVERYWHERE:
            raise ConfigError(
                f"node_address={self.node_address} must name the address that other hosts reach "
                "this one by: it is announced to them"
            )

    def _check_stages(self) -> None:
        """What the stages of a model do not do."""
        if self.tp > 1:
            raise ConfigError(
                f"pp={self.pp} is not possible with tp={self.tp}: a stage is one process"
            )
        if self.guesses_by:
            raise ConfigError(
                f"{self.guesses_by} is not possible with pp={self.pp}: stages confirm no guesses; "
                "leave it out"
            )
        if self.overlap:
            raise ConfigError(
                f"overlap=True is not possible with pp={self.pp}: its first stage begins with "
                "tokens that the last one has chosen; leave it out"
            )

    def _check_choices(self) -> None:
        """Those that exclude each other."""
        for name in ("decode_attention_backend", "prefill_attention_backend"):
            value = getattr(self, name)
            if value is not None and self.attention_backend == "torch":
                raise ConfigError(
                    f"{name}={value} is not possible with attention_backend=torch, which is for all"
                )
        if self.draft_model is not None and self.speculate != "off":
            raise ConfigError(
                f"draft_model={self.draft_model} and speculate={self.speculate} are two ways of "
                "guessing: leave one of them out"
            )
