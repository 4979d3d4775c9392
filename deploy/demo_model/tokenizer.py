"""The demo model's own byte-level BPE tokenizer, its special tokens and its chat template."""

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

BOS = "<|begin_of_text|>"
EOS = "<|end_of_turn|>"
PAD = "<|pad|>"
ROLES = ("system", "user", "assistant")
# <|begin_of_text|><|user|>Hello!<|end_of_turn|><|assistant|>Hi!<|end_of_turn|>
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message['role'] not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('unknown role: ' + message['role']) }}"
    "{% endif %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] | trim + '<|end_of_turn|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def role_token(role: str) -> str:
    """The header that opens a turn."""
    return f"<|{role}|>"


def token_id(tokenizer: Tokenizer, token: str) -> int:
    """The id of a token that the tokenizer must know."""
    found = tokenizer.token_to_id(token)
    if found is None:
        raise ValueError(f"the tokenizer does not know {token!r}")
    return found


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Byte-level BPE: every text comes back as it went in; a digit is a token of its own."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=[BOS, EOS, PAD, *(role_token(role) for role in ROLES)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != vocab_size:
        raise ValueError(f"text gives {tokenizer.get_vocab_size()} tokens, wanted {vocab_size}")
    # A plain text starts with begin-of-text, as a chat does by its template.
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, token_id(tokenizer, BOS))]
    )
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path, context_len: int) -> None:
    """Write tokenizer.json, tokenizer_config.json and the chat template."""
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        model_max_length=context_len,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    ).save_pretrained(folder)
    # The class bears a new name since transformers 5; the old one is understood by all versions.
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text()) | {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": CHAT_TEMPLATE,
    }
    del config["backend"]
    path.write_text(json.dumps(config, indent=2) + "\n")
