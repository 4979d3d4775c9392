"""Fields of requests that some server of this kind knows: one line a field.

A route takes the fields of its body. Of all others that are here it refuses by name those that
would change its answer, and ignores the rest, which change nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

OFF: tuple[Any, ...] = (False, 0, "", [], {})  # equal to 0: 0.0; to "": no list


class Touches(enum.Enum):
    """What a field changes."""

    PROMPT = enum.auto()  # what the model reads
    OUTPUT = enum.auto()  # which tokens come out, and where they end
    ANSWER = enum.auto()  # what is told of them
    NOTHING = enum.auto()  # how another server goes about its work


@dataclass(frozen=True, slots=True)
class PeerField:
    """`fine`: values that ask for nothing, beside null. `remedy`: what to do in place of it."""

    name: str
    touches: Touches
    fine: tuple[Any, ...] = OFF
    remedy: str = ""

    def asks(self, value: Any) -> bool:
        return value not in self.fine


_P, _O, _A, _N = Touches.PROMPT, Touches.OUTPUT, Touches.ANSWER, Touches.NOTHING
_MAX_TOKENS = "say it by 'max_tokens'"
_GRAMMAR = "say it by 'response_format' or 'structured_outputs'"
_STATEFUL = "it is no function of a request and its tokens"
_THINKING = "say it by 'thinking_token_budget' of a chat"
_LOGPROBS = "say it by 'logprobs'"

PEER_FIELDS: tuple[PeerField, ...] = (
    # What the model reads.
    PeerField("messages", _P, ()),
    PeerField("prompt", _P, ()),
    PeerField("input", _P, ()),
    PeerField("text", _P, ()),
    PeerField("input_ids", _P, ()),
    PeerField("instructions", _P),
    PeerField("system", _P),
    PeerField("suffix", _P),
    PeerField("input_prefix", _P),
    PeerField("input_suffix", _P),
    PeerField("input_extra", _P),
    PeerField("tools", _P),
    PeerField("functions", _P, OFF, "say it by 'tools'"),
    PeerField("documents", _P),
    PeerField("chat_template", _P, ("",)),
    PeerField("chat_template_kwargs", _P),
    PeerField("continue_final_message", _P),
    PeerField("add_special_tokens", _P, (True,)),
    PeerField("truncate_prompt_tokens", _P, ()),
    PeerField("truncation_side", _P, ("", "left"), "a prompt is cut at its left"),
    PeerField("truncation", _P, ("disabled", False)),
    PeerField("truncate", _P),
    PeerField("prompt_embeds", _P),
    PeerField("input_embeds", _P),
    PeerField("prompt_table", _P),
    PeerField("decoder_input_ids", _P),
    PeerField("image_data", _P),
    PeerField("audio_data", _P),
    PeerField("video_data", _P),
    PeerField("multimodal_data", _P),
    PeerField("mm_processor_kwargs", _P),
    PeerField("media_io_kwargs", _P),
    PeerField("use_audio_in_video", _P),
    PeerField("max_dynamic_patch", _P, ()),
    PeerField("min_dynamic_patch", _P, ()),
    PeerField("image_max_dynamic_patch", _P, ()),
    PeerField("lora_path", _P, OFF, "an adapter is asked for by 'model'"),
    PeerField("lora", _P, OFF, "an adapter is asked for by 'model'"),
    PeerField("lora_request", _P, OFF, "an adapter is asked for by 'model'"),
    PeerField("session_params", _P),
    PeerField("n_keep", _P, (0, -1), "a prompt beyond the context is refused, not cut"),
    PeerField("n_discard", _P, OFF, "a prompt beyond the context is refused, not cut"),
    PeerField("web_search_options", _P, ()),
    PeerField("input_type", _P, ("",)),
    PeerField("task", _P, ("",)),
    # Which tokens come out. Without the field that they belong to, some of these change nothing.
    PeerField("temperature", _O, ()),
    PeerField("top_p", _O, (1,)),
    PeerField("top_k", _O, (0, -1)),
    PeerField("min_p", _O),
    PeerField("typical_p", _O, (1,)),
    PeerField("typical", _O, (1,), "say it by 'typical_p'"),
    PeerField("top_n_sigma", _O, (0, -1)),
    PeerField("top_a", _O),
    PeerField("tfs_z", _O, (1, 0)),
    PeerField("epsilon_cutoff", _O),
    PeerField("eta_cutoff", _O),
    PeerField("top_p_min", _O),
    PeerField("top_p_decay", _O, (1, 0)),
    PeerField("top_p_reset_ids", _O, (-1, [])),
    PeerField("min_keep", _O, (0, 1)),
    PeerField("dynatemp_range", _O),
    PeerField("dynatemp_exponent", _N),
    PeerField("smoothing_factor", _O),
    PeerField("smoothing_curve", _N),
    PeerField("xtc_probability", _O),
    PeerField("xtc_threshold", _N),
    PeerField("dry_multiplier", _O),
    PeerField("dry_base", _N),
    PeerField("dry_allowed_length", _N),
    PeerField("dry_penalty_last_n", _N),
    PeerField("dry_range", _O, OFF, "say it by 'dry_penalty_last_n'"),
    PeerField("dry_sequence_breakers", _N),
    PeerField("mirostat", _O, (0, False), _STATEFUL),
    PeerField("mirostat_mode", _O, (0, False), _STATEFUL),
    PeerField("mirostat_tau", _N),
    PeerField("mirostat_eta", _N),
    PeerField("adaptive_target", _O, (0, -1), _STATEFUL),
    PeerField("adaptive_decay", _N),
    PeerField("samplers", _O, ("", [])),
    PeerField("sampler_seq", _O, ("", []), "say it by 'samplers'"),
    PeerField("presence_penalty", _O),
    PeerField("frequency_penalty", _O),
    PeerField("repetition_penalty", _O, (1, 0)),
    PeerField("repeat_penalty", _O, (1, 0)),
    PeerField("repeat_last_n", _O, (-1,)),
    PeerField("penalize_nl", _O, (True,)),
    PeerField("prompt_ignore_length", _O),
    PeerField("no_repeat_ngram_size", _O),
    PeerField("encoder_repetition_penalty", _O, (1, 0)),
    PeerField("encoder_no_repeat_ngram_size", _O),
    PeerField("repetition_detection", _O),
    PeerField("logit_bias", _O),
    PeerField("embedding_bias", _O),
    PeerField("allowed_token_ids", _O, ([],)),
    PeerField("bad_words", _O),
    PeerField("bad_token_ids", _O),
    PeerField("bad", _O, OFF, "say it by 'bad_words'"),
    PeerField("suppress_tokens", _O, OFF, "say it by 'bad_token_ids'"),
    PeerField("force_words_ids", _O),
    PeerField("logits_processors", _O),
    PeerField("logit_processors", _O),
    PeerField("custom_logit_processor", _O, ("",)),
    PeerField("custom_params", _O),
    PeerField("vllm_xargs", _O),
    PeerField("extra_args", _O),
    PeerField("watermark", _O),
    PeerField("do_sample", _O, (True,), "greedy is 'temperature': 0"),
    PeerField("seed", _O, ()),
    PeerField("sampling_seed", _O, (), "say it by 'seed'"),
    PeerField("random_seed", _O, (), "say it by 'seed'"),
    PeerField("n", _O, (1,)),
    PeerField("n_cmpl", _O, (1,), "say it by 'n'"),
    PeerField("num_return_sequences", _O, (1,), "say it by 'n'"),
    PeerField("best_of", _O, (1,)),
    PeerField("use_beam_search", _O),
    PeerField("beam_width", _O, (1,)),
    PeerField("num_beams", _O, (1,), "say it by 'use_beam_search'"),
    PeerField("beam_search_diversity_rate", _O),
    PeerField("diversity_penalty", _O),
    PeerField("length_penalty", _O, (1,)),
    PeerField("early_stopping", _O),
    PeerField("max_tokens", _O, ()),
    PeerField("max_completion_tokens", _O, ()),
    PeerField("max_output_tokens", _O, ()),
    PeerField("max_new_tokens", _O, (), _MAX_TOKENS),
    PeerField("max_length", _O, (), _MAX_TOKENS),
    PeerField("n_predict", _O, (-1,), _MAX_TOKENS),
    PeerField("num_predict", _O, (-1,), _MAX_TOKENS),
    PeerField("t_max_predict_ms", _O, (0, -1), "the header X-Request-Timeout bounds the time"),
    PeerField("n_indent", _O),
    PeerField("min_tokens", _O),
    PeerField("min_new_tokens", _O, OFF, "say it by 'min_tokens'"),
    PeerField("min_length", _O, OFF, "say it by 'min_tokens'"),
    PeerField("thinking_token_budget", _O, (-1,), "chats take it"),
    PeerField("thinking_budget", _O, (-1,), _THINKING),
    PeerField("thinking_budget_tokens", _O, (-1,), _THINKING),
    PeerField("reasoning_budget_tokens", _O, (-1,), _THINKING),
    PeerField("reasoning_budget", _O, (-1,), _THINKING),
    PeerField("stop", _O),
    PeerField("stop_sequences", _O, OFF, "say it by 'stop'"),
    PeerField("stop_words", _O, OFF, "say it by 'stop'"),
    PeerField("stop_strings", _O, OFF, "say it by 'stop'"),
    PeerField("stop_regex", _O),
    PeerField("stop_token_ids", _O),
    PeerField("end_id", _O, (-1,), "say it by 'stop_token_ids'"),
    PeerField("pad_id", _N),
    PeerField("eos_token_id", _O, (-1,), "say it by 'stop_token_ids'"),
    PeerField("ignore_eos", _O),
    PeerField("min_keep_tokens", _O),
    PeerField("response_format", _O, ({"type": "text"}, {})),
    PeerField("structured_outputs", _O),
    PeerField("guided_json", _O),
    PeerField("guided_regex", _O),
    PeerField("guided_choice", _O),
    PeerField("guided_grammar", _O),
    PeerField("guided_whitespace_pattern", _O, ("",)),
    PeerField("guided_json_object", _O, OFF, _GRAMMAR),
    PeerField("guided_decoding", _O, OFF, _GRAMMAR),
    PeerField("guided_decoding_backend", _N),
    PeerField("structural_tag", _O, ("",)),
    PeerField("json_schema", _O),
    PeerField("regex", _O),
    PeerField("ebnf", _O),
    PeerField("grammar", _O, OFF, "say it by 'ebnf'"),
    PeerField("grammar_lazy", _O),
    PeerField("grammar_triggers", _O),
    PeerField("preserved_tokens", _O),
    PeerField("lookahead_config", _N),
    PeerField("tool_choice", _O, ("none", "auto")),
    PeerField("function_call", _O, ("none", "auto"), "say it by 'tool_choice'"),
    PeerField("max_tool_calls", _O, ()),
    PeerField("thinking", _O, ()),
    PeerField("output_config", _O, ({},)),
    # What is told.
    PeerField("echo", _A),
    PeerField("return_full_text", _A),
    PeerField("exclude_input_in_output", _A, (True,)),
    PeerField("logprobs", _A),
    PeerField("top_logprobs", _A),
    PeerField("prompt_logprobs", _A, ()),
    PeerField("n_probs", _A, OFF, _LOGPROBS),
    PeerField("post_sampling_probs", _A, OFF, "logprobs are of the model's own logits"),
    PeerField("logprob_token_ids", _A),
    PeerField("token_ids_logprob", _A),
    PeerField("return_logprob", _A, OFF, _LOGPROBS),
    PeerField("top_logprobs_num", _A, OFF, _LOGPROBS),
    PeerField("logprob_start_len", _A, (-1,)),
    PeerField("return_text_in_logprobs", _A),
    PeerField("return_hidden_states", _A),
    PeerField("return_routed_experts", _A),
    PeerField("return_indexer_topk", _A),
    PeerField("return_context_logits", _A),
    PeerField("return_generation_logits", _A),
    PeerField("return_encoder_output", _A),
    PeerField("return_perf_metrics", _A),
    PeerField("return_entropy", _A),
    PeerField("return_bytes", _A),
    PeerField("return_progress", _A),
    PeerField("return_cached_tokens_details", _A),
    PeerField("return_meta_info", _A),
    PeerField("return_tokens", _A, OFF, "say it by 'return_token_ids'"),
    PeerField("return_token_ids", _A),
    PeerField("return_prompt_token_ids", _A, OFF, "say it by 'return_token_ids'"),
    PeerField("return_tokens_as_token_ids", _A),
    PeerField("return_token_strs", _A),
    PeerField("with_pieces", _A, OFF, "say it by 'return_token_strs'"),
    PeerField("timings_per_token", _A),
    PeerField("response_fields", _A),
    PeerField("include_stop_str_in_output", _A),
    PeerField("no_stop_trim", _A, OFF, "say it by 'include_stop_str_in_output'"),
    PeerField("skip_special_tokens", _A, (True,)),
    PeerField("detokenize", _A, (True,)),
    PeerField("include_reasoning", _A, (True,)),
    PeerField("separate_reasoning", _A, (True,)),
    PeerField("reasoning_format", _A, ("auto", "none", "")),
    PeerField("parse_tool_calls", _A, (True,)),
    PeerField("modalities", _A, (["text"], [])),
    PeerField("audio", _A),
    PeerField("encoding_format", _A, ("float",)),
    PeerField("embed_dtype", _A, ("float32",)),
    PeerField("output_dtype", _A, ("float", "float32")),
    PeerField("embedding_types", _A, ([], ["float"])),
    PeerField("endianness", _A, ("native", "little")),
    PeerField("dimensions", _A, ()),
    PeerField("output_dimension", _A, (), "say it by 'dimensions'"),
    PeerField("embd_normalize", _A, (2,), "say it by 'normalize'"),
    PeerField("pooling", _A, ()),
    PeerField("normalize", _A, ()),
    PeerField("use_activation", _A, ()),
    PeerField("softmax", _A, (), "say it by 'use_activation'"),
    PeerField("activation", _A, (), "say it by 'use_activation'"),
    PeerField("return_documents", _A),
    PeerField("background", _A),
    PeerField("kv_transfer_params", _A),
    PeerField("disaggregated_params", _A),
    PeerField("ec_transfer_params", _A),
    PeerField("bootstrap_host", _A),
    PeerField("bootstrap_port", _A, ()),
    PeerField("bootstrap_room", _A, ()),
    # How another server goes about it: the answer is the same.
    PeerField("spaces_between_special_tokens", _N),  # only other tokenizers put any there
    PeerField("cache_prompt", _N),
    PeerField("id_slot", _N),
    PeerField("slot_id", _N),
    PeerField("n_threads", _N),
    PeerField("sse_ping_interval", _N),
    PeerField("backend_sampling", _N),
    PeerField("speculative", _N),
    PeerField("speculative.n_max", _N),
    PeerField("speculative.n_min", _N),
    PeerField("speculative.p_min", _N),
    PeerField("data_parallel_rank", _N),
    PeerField("routed_dp_rank", _N),
    PeerField("disagg_prefill_dp_rank", _N),
    PeerField("bootstrap_pair_key", _N),
    PeerField("skip_reading_prefix_cache", _N),
    PeerField("extra_key", _N),
    PeerField("log_metrics", _N),
    PeerField("t_max_prompt_ms", _N),
    PeerField("no_logs", _N),
    PeerField("stream_interval", _N),
    PeerField("kv_cache_retention_config", _N),
    PeerField("scheduling_params", _N),
    PeerField("external_trace_header", _N),
    PeerField("custom_labels", _N),
)


def peer_refusals(
    body_type: type[msgspec.Struct],
    own: Mapping[str, Callable[[Any], bool]],
    *,
    ignored: Collection[str],
    taken: Iterable[str] = (),
) -> dict[str, Callable[[Any], bool]]:
    """All that a route refuses: by its `own` rules, and by those above.

    `taken`: fields that it knows by other means than the body's type.
    """
    known = {*body_type.__struct_fields__, *own, *ignored, *taken}
    of_peers = {field.name: field.asks for field in PEER_FIELDS if field.name not in known}
    return {**own, **of_peers}


def changing(*touches: Touches) -> frozenset[str]:
    """The fields that change these: what a route ignores where none of them is."""
    return frozenset(field.name for field in PEER_FIELDS if field.touches in touches)


REMEDIES: Mapping[str, str] = {field.name: field.remedy for field in PEER_FIELDS if field.remedy}
