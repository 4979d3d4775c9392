"""A whole model in bfloat16 against transformers in float32: logprobs of prompt and output."""

from __future__ import annotations

import torch

from bench.gpu.direct_engine import random_prompts
from bench.gpu.rig import Rig
from bench.gpu.transformers_model import make_peer_model
from shared.protocol.logprobs import unpack_logprobs

MAX_ERROR = 5e-2  # relative norm, of what differs from their mean
NUM_KV_TOKENS = 4096


def run(rig: Rig) -> None:
    """The prompt is prefilled in chunks, then each token is a step that decodes."""
    engine = rig.engine(max_step_tokens=128, max_running=8, num_kv_tokens=NUM_KV_TOKENS)
    prompt = random_prompts([rig.sizes.logprob_len], seed=4)[0]
    num_outputs = rig.sizes.logprob_outputs
    ran = engine.run([prompt], [num_outputs], logprobs=0, prompt_logprobs=0)
    kernels = engine.kernels
    del engine
    outputs = [output for _, step in ran.steps for output in step.outputs]
    of_prompt = b"".join(output.prompt_logprobs for output in outputs)
    of_outputs = b"".join(output.logprobs for output in outputs)
    ours = [each.logprob for each in unpack_logprobs(of_prompt, 0)[1:]]
    ours += [each.logprob for each in unpack_logprobs(of_outputs, 0)]
    wanted = _wanted(rig, [*prompt, *ran.tokens[0]])
    parts = {"prefill": slice(len(prompt) - 1), "decode": slice(len(prompt) - 1, None)}
    for what, part in parts.items():
        error = _error(torch.tensor(ours[part]), wanted[part])
        facts = {"model": rig.task.model, "what": f"logprobs, {what}", "backend": kernels}
        rig.tell(facts | {"error": error, "ok": error < MAX_ERROR})


@torch.inference_mode()
def _wanted(rig: Rig, token_ids: list[int]) -> torch.Tensor:
    """Of each token but the first."""
    model = make_peer_model(rig, torch.float32)
    ids = torch.tensor([token_ids], device=rig.torch_device)
    logprobs = model(ids).logits[0, :-1].float().log_softmax(-1)
    return logprobs.gather(1, ids[0, 1:, None])[:, 0].cpu()


def _error(ours: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((ours - wanted).norm() / (wanted - wanted.mean()).norm())
