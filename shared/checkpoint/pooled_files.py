"""What a checkpoint's files say about the embeddings and the scores of pairs that it makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shared.checkpoint.json_file import read_json
from shared.checkpoint.sentence_modules import (
    FIRST,
    LAST,
    MEAN,
    MODULES_FILE,
    MOST,
    SentenceModules,
)
from shared.checkpoint.tokenizer_bundle import TokenizerBundle
from shared.errors import ConfigError
from shared.protocol.model_cards import ClassifierCard, EmbeddingCard, ScoreCard
from shared.protocol.reply import ScoreMethod
from shared.protocol.sampling import PoolingKind

_SIZE_KEYS = ("hidden_size", "n_embd", "d_model")
_DECODER_KINDS = {LAST: PoolingKind.LAST, MEAN: PoolingKind.MEAN}
ENCODER_MODES = (MEAN, FIRST, LAST, MOST)
_TOKENIZING_FILE = "sentence_bert_config.json"
_CLASSIFIER = "ForSequenceClassification"
# Cross-encoders that are served, and whether their positions are counted from behind the padding's.
ENCODERS = {
    "BertForSequenceClassification": False,
    "ElectraForSequenceClassification": False,
    "ModernBertForSequenceClassification": False,
    "RobertaForSequenceClassification": True,
    "XLMRobertaForSequenceClassification": True,
}
# The same of encoders that are served for embeddings.
EMBEDDERS = {
    "BertModel": False,
    "Gemma3TextModel": False,
    "ModernBertModel": False,
    "NomicBertModel": False,
    "RobertaModel": True,
    "XLMRobertaModel": True,
}
_ANSWERS = ("yes", "no")
_DEFAULT_NUM_LABELS = 2  # of transformers, where config.json does not say
_REGRESSION, _INDEPENDENT = "regression", "multi_label_classification"
_PROBLEMS = (None, "single_label_classification", _INDEPENDENT, _REGRESSION)
MAX_LABELS = 4096
MAX_LABEL_CHARS = 256
# What sentence-transformers writes down of a cross-encoder, and whether it makes probabilities.
_ACTIVATIONS = {"Sigmoid": True, "Identity": False}


def is_embedder(path: Path) -> bool:
    """Whether it was trained for embeddings: sentence-transformers leaves a modules.json."""
    return (path / MODULES_FILE).is_file()


def embedding_card(path: Path, config: dict[str, Any]) -> EmbeddingCard | None:
    """Says how sentence-transformers would embed, else by the last token, normalised.

    `config` is of the text model. None when it does not tell the size. Raises ConfigError for
    modules that we lack.
    """
    num_dimensions = next(
        (size for key in _SIZE_KEYS if isinstance(size := config.get(key), int)), None
    )
    if num_dimensions is None:
        return None
    pooling, normalize = PoolingKind.LAST, True
    if is_encoder(config):
        modules = encoder_modules(path)
        pooling, normalize = PoolingKind.ENCODED, modules.normalize
        num_dimensions = modules.dense[-1].out_features if modules.dense else num_dimensions
    elif is_embedder(path):
        pooling, normalize = _of_decoder(path)
    dimensions = config.get("matryoshka_dimensions")
    return EmbeddingCard(
        num_dimensions=num_dimensions,
        pooling=pooling,
        normalize=normalize,
        is_matryoshka=bool(config.get("is_matryoshka") or dimensions),
        matryoshka_dimensions=tuple(sorted(dimensions or ())),
    )


def encoder_modules(path: Path) -> SentenceModules:
    """How an encoder embeds: by the mean of all tokens, normalised, where no file tells.

    Raises ConfigError.
    """
    if not is_embedder(path):
        return SentenceModules((MEAN,))
    modules = SentenceModules.read(path, is_decoder=False)
    modules.mode_of(path, ENCODER_MODES)
    if read_json(path / _TOKENIZING_FILE, dict, {}).get("do_lower_case"):
        raise ConfigError(f"{path / _TOKENIZING_FILE}: do_lower_case=true is not supported")
    return modules


def _of_decoder(path: Path) -> tuple[PoolingKind, bool]:
    """Pooling, and whether the vector is normalised."""
    modules = SentenceModules.read(path, is_decoder=True)
    return _DECODER_KINDS[modules.mode_of(path, tuple(_DECODER_KINDS))], modules.normalize


def is_classifier(config: dict[str, Any]) -> bool:
    """Whether its head says something of the whole text, and generates nothing."""
    return _architecture(config).endswith(_CLASSIFIER)


def is_encoder(config: dict[str, Any]) -> bool:
    """Whether each token sees all others, and the whole is scored or embedded at once."""
    return _architecture(config) in ENCODERS | EMBEDDERS


def encoder_context_len(path: Path, config: dict[str, Any]) -> int:
    """What its positions allow, or less, where sentence-transformers would cut. Raises
    ConfigError.
    """
    num_positions = config.get("max_position_embeddings")
    if not isinstance(num_positions, int):
        raise ConfigError(f"{path}/config.json: 'max_position_embeddings' is {num_positions!r}")
    if (ENCODERS | EMBEDDERS)[_architecture(config)]:
        num_positions -= int(config.get("pad_token_id") or 0) + 1
    if _architecture(config) in ENCODERS:
        return num_positions
    wanted = read_json(path / _TOKENIZING_FILE, dict, {}).get("max_seq_length")
    if wanted is None:
        return num_positions
    if not isinstance(wanted, int) or wanted < 1:
        raise ConfigError(f"{path / _TOKENIZING_FILE}: 'max_seq_length' is {wanted!r}")
    return min(num_positions, wanted)


def class_labels(path: Path, config: dict[str, Any]) -> tuple[str, ...]:
    """The names of a classifier's outputs, in their order. Raises ConfigError."""
    names = config.get("id2label")
    if names is None:
        num_labels = config.get("num_labels", _DEFAULT_NUM_LABELS)
        is_number = isinstance(num_labels, int) and not isinstance(num_labels, bool)
        if not (is_number and 1 <= num_labels <= MAX_LABELS):
            raise ConfigError(
                f"{path}/config.json: 'num_labels' is {num_labels!r}, must be 1 to {MAX_LABELS}"
            )
        return tuple(f"LABEL_{idx}" for idx in range(num_labels))
    if not isinstance(names, dict) or not 1 <= len(names) <= MAX_LABELS:
        raise ConfigError(f"{path}/config.json: 'id2label' must name 1 to {MAX_LABELS} labels")
    labels = [names.get(str(idx)) for idx in range(len(names))]
    for idx, label in enumerate(labels):
        if not isinstance(label, str) or len(label) > MAX_LABEL_CHARS:
            raise ConfigError(
                f"{path}/config.json: 'id2label' has {len(names)} labels, and that of {idx} is "
                f"{str(label)[:100]!r}"
            )
    return tuple(map(str, labels))


def classifier_card(path: Path, config: dict[str, Any]) -> ClassifierCard:
    """Raises ConfigError."""
    labels, problem = class_labels(path, config), config.get("problem_type")
    if problem not in _PROBLEMS:
        raise ConfigError(f"{path}/config.json: problem_type={problem!r} is not supported")
    is_probability = problem != _REGRESSION
    return ClassifierCard(
        labels,
        is_encoder=is_encoder(config),
        is_probability=_is_probability(path, config) if len(labels) == 1 else is_probability,
        are_independent=problem == _INDEPENDENT,
    )


def score_card(classifier: ClassifierCard) -> ScoreCard | None:
    """That of a single label, which is a score; None: there are several."""
    if len(classifier.labels) > 1:
        return None
    return ScoreCard(
        ScoreMethod.CLASSIFIER,
        is_encoder=classifier.is_encoder,
        is_probability=classifier.is_probability,
    )


def yes_no_card(bundle: TokenizerBundle, vocab_size: int) -> ScoreCard | None:
    """The card of a decoder that can be asked; None when it has no chat template, or no such
    tokens.
    """
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
