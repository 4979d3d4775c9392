"""`jetflock pull MODEL`: fetches a model from the hub, to where serve and workers look for it."""

# No `from __future__ import annotations` here: cyclopts reads the types of the parameters.

import sys
from pathlib import Path

from jetflock.command_line.output import num_bytes_text
from jetflock.hub.engine_report import engine_reports
from jetflock.hub.hub_cache import why_not_whole
from shared.checkpoint.hub import fetch, fetch_all_but_weights, is_hub_id, names_gguf
from shared.checkpoint.model_files import local_checkpoint, resolve_model
from shared.checkpoint.weights.weight_files import check_weights
from shared.cli.program import Program
from shared.errors import ConfigError

_SUMMARY = """\
Fetch MODEL from the Hugging Face hub; what is there already is kept. MODEL is owner/name, or
owner/name:Q4_K_M for one GGUF file of it.

Its configuration comes first: what cannot be served is refused before its weights are fetched. (Of
a GGUF file it is within.) The folder is that of serve and workers: HF_HOME chooses it, HF_TOKEN
opens what needs a login."""


def main(model: str, /) -> None:
    """Fetch it."""
    if not is_hub_id(model):
        raise ConfigError(
            f"{model} is here: there is nothing to fetch"
            if Path(model).expanduser().exists()
            else f"{model!r} is no name of the hub: give owner/name, as on huggingface.co"
        )
    if names_gguf(model):
        path = resolve_model(model)
        [report] = engine_reports(path)
        problem = report.refusal or why_not_whole(path)
    else:
        [report] = engine_reports(local_checkpoint(fetch_all_but_weights(model)))
        if report.refusal:
            raise ConfigError(f"{report.refusal}; its weights were not fetched")
        path = fetch(model)
        problem = why_not_whole(path)
    if problem:
        raise ConfigError(f"{model} was fetched, and cannot be served: {problem}")
    num_bytes = check_weights(local_checkpoint(path))[1]
    sys.stdout.write(f"{model} is in {path}, weights of {num_bytes_text(num_bytes)}\n")
    if report.shortage:
        sys.stdout.write(f"this machine cannot serve it now: {report.shortage}\n")
    else:
        sys.stdout.write(f"serve it: jetflock serve {model}\n")


PROGRAM = Program(name="jetflock pull", summary=_SUMMARY, main=main, takes_file=False)

if __name__ == "__main__":
    PROGRAM.run()
