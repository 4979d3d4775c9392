"""What a checkpoint's files say about the scores that it gives to pairs of texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shared.checkpoint.tokenizer_bundle import TokenizerBundle
from shared.errors import ConfigError
from shared.protocol.model_cards import ScoreCard
from shared.protocol.reply import ScoreMethod

_CLASSIFIER = "ForSequenceClassification"
# Cross-encoders that are served, and whether their positions are counted from behind the padding's.
ENCODERS = {
    "BertForSequenceClassification": False,
    "ElectraForSequenceClassification": False,
    "ModernBertForSequenceClassification": False,
    "RobertaForSequenceClassification": True,
    "XLMRobertaForSequenceClassification": True,
}
_ANSWERS = ("yes", "no")
_DEFAULT_NUM_LABELS = 2  # of transformers, where config.json does not say
# What sentence-transformers writes down of a cross-encoder, and whether it makes probabilities.
_ACTIVATIONS = {"Sigmoid": True, "Identity": False}


def is_classifier(config: dict[str, Any]) -> bool:
    """Whether its head says something of the whole text, and generates nothing."""
    return _architecture(config).endswith(_CLASSIFIER)


def is_encoder(config: dict[str, Any]) -> bool:
    """Whether each token sees all others, and the whole is scored at once."""
    return _architecture(config) in ENCODERS


def encoder_context_len(path: Path, config: dict[str, Any]) -> int:
    """Raises ConfigError."""
    num_positions = config.get("max_position_embeddings")
    if not isinstance(num_positions, int):
        raise ConfigError(f"{path}/config.json: 'max_position_embeddings' is {num_positions!r}")
    if not ENCODERS[_architecture(config)]:
        return num_positions
    return num_positions - int(config.get("pad_token_id") or 0) - 1


def classifier_card(path: Path, config: dict[str, Any]) -> ScoreCard:
    """Of a checkpoint with one label. Raises ConfigError."""
    labels = config.get("id2label")
    num_labels = (
        len(labels) if isinstance(labels, dict) else config.get("num_labels", _DEFAULT_NUM_LABELS)
    )
    if num_labels != 1:
        raise ConfigError(
            f"{path}/config.json has {num_labels} labels (id2label): only classifiers with one, "
            "a score, are supported"
        )
    return ScoreCard(
        ScoreMethod.CLASSIFIER,
        is_encoder=is_encoder(config),
        is_probability=_is_probability(path, config),
    )


def yes_no_card(bundle: TokenizerBundle, vocab_size: int) -> ScoreCard | None:
    """Of a decoder that can be asked; None when it has no chat template, or no such tokens."""
    if bundle.chat_template is None:
        return None
    tokenizer = bundle.tokenizer()
    answer_ids = []
    for answer in _ANSWERS:
        token_ids = tokenizer.encode(answer, add_special_tokens=False).ids
        if len(token_ids) != 1 or token_ids[0] >= vocab_size:
            return None
        answer_ids.append(token_ids[0])
    return ScoreCard(ScoreMethod.YES_NO, answer_ids=tuple(answer_ids))


def _is_probability(path: Path, config: dict[str, Any]) -> bool:
    section = config.get("sentence_transformers")
    name = section.get("activation_fn") if isinstance(section, dict) else None
    name = name or config.get("sbert_ce_default_activation_function")
    if name is None:
        return True
    kind = str(name).rpartition(".")[2]
    if kind not in _ACTIVATIONS:
        raise ConfigError(
            f"{path}/config.json: activation_fn={name!r} is not supported; supported is "
            f"{' or '.join(_ACTIVATIONS)}"
        )
    return _ACTIVATIONS[kind]


def _architecture(config: dict[str, Any]) -> str:
    return str((config.get("architectures") or [""])[0])
