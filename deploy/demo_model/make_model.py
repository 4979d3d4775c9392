"""Makes the demo model from nothing: text, tokenizer, training, checkpoint.

python -m deploy.demo_model.make_model
"""

import argparse
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from deploy.demo_model.corpus import conversations, echoes
from deploy.demo_model.tokenizer import (
    BOS,
    EOS,
    PAD,
    role_token,
    save_tokenizer,
    token_id,
    train_tokenizer,
)
from deploy.demo_model.trainer import BatchMaker, SampleEncoder, Trainer

CONTEXT_LEN = 2048
VOCAB_SIZE = 2560
NUM_TOKENS_PER_BATCH = 1280
POOL_LEN = 3000
NUM_ECHOES = 9000
NUM_TOKENIZER_CHATS = 20_000
REPORT_EVERY = 400
SAMPLE_PROMPTS = (
    "hi", "What is 3+4?", "What is 17 - 9?", "Name three colours.", "What is the speed of light?",
    "Tell me a story about a dog.",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class MakeConfig:
    """What may be chosen on the command line."""

    out: Path
    num_steps: int
    max_lr: float
    seed: int
    num_threads: int

    @classmethod
    def from_args(cls) -> "MakeConfig":
        parser = argparse.ArgumentParser(description=__doc__)
        parser.add_argument("--out", type=Path, default=Path(__file__).parent / "checkpoint")
        parser.add_argument("--num-steps", type=int, default=2000)
        parser.add_argument("--max-lr", type=float, default=4e-3)
        parser.add_argument("--seed", type=int, default=1)
        parser.add_argument("--num-threads", type=int, default=1)
        args = parser.parse_args()
        return cls(args.out, args.num_steps, args.max_lr, args.seed, args.num_threads)


def make_model(config: MakeConfig) -> None:
    """Train and save; every report saves what is there so far."""
    torch.set_num_threads(config.num_threads)
    torch.manual_seed(config.seed)
    tokenizer = make_tokenizer(config.seed)
    model = build_model(tokenizer)
    print(f"{model.num_parameters()} parameters", flush=True)
    encoder = SampleEncoder(tokenizer, CONTEXT_LEN, config.seed)
    maker = BatchMaker(encoder, token_id(tokenizer, PAD), NUM_TOKENS_PER_BATCH, POOL_LEN)
    text = chain(echoes(config.seed, NUM_ECHOES), conversations(config.seed + 1))
    batches = maker.batches(text, config.seed)

    def report(step: int) -> None:
        for prompt in SAMPLE_PROMPTS:
            print(f"  {prompt} -> {answer(model, tokenizer, prompt)!r}", flush=True)
        save_checkpoint(model, tokenizer, config.out)

    Trainer(model, batches, config.num_steps, config.max_lr).train(REPORT_EVERY, report)


def make_tokenizer(seed: int) -> Tokenizer:
    """Trained on the same kind of text as the model, drawn with its own seed."""
    chats = islice(conversations(seed), NUM_TOKENIZER_CHATS)
    return train_tokenizer((turn.text for turns in chats for turn in turns), VOCAB_SIZE)


def build_model(tokenizer: Tokenizer) -> LlamaForCausalLM:
    """About 3.6 million parameters, random."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCAB_SIZE,
            hidden_size=256,
            intermediate_size=512,
            num_hidden_layers=5,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=64,
            tie_word_embeddings=True,
            max_position_embeddings=CONTEXT_LEN,
            bos_token_id=token_id(tokenizer, BOS),
            eos_token_id=token_id(tokenizer, EOS),
            pad_token_id=token_id(tokenizer, PAD),
        )
    )


def save_checkpoint(model: LlamaForCausalLM, tokenizer: Tokenizer, folder: Path) -> None:
    """Write a checkpoint in the Hugging Face format, weights in bfloat16."""
    copy = LlamaForCausalLM(model.config)
    copy.load_state_dict(model.state_dict())
    torch.nn.Module.to(copy, torch.bfloat16)
    copy.generation_config = GenerationConfig(
        bos_token_id=model.config.bos_token_id,
        eos_token_id=model.config.eos_token_id,
        pad_token_id=model.config.pad_token_id,
    )
    copy.save_pretrained(folder)
    save_tokenizer(tokenizer, folder, CONTEXT_LEN)
    for path in folder.iterdir():
        path.chmod(0o644)


def answer(
    model: LlamaForCausalLM, tokenizer: Tokenizer, prompt: str, max_tokens: int = 150
) -> str:
    """The model's greedy answer to one user message."""
    text = f"{BOS}{role_token('user')}{prompt}{EOS}{role_token('assistant')}"
    ids = torch.tensor([tokenizer.encode(text, add_special_tokens=False).ids])
    output = model.generate(ids, max_new_tokens=max_tokens, do_sample=False)
    return str(tokenizer.decode(output[0, ids.shape[1] :].tolist()))


if __name__ == "__main__":
    make_model(MakeConfig.from_args())
