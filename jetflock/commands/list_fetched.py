"""`jetflock list`: the models of the hub on this disk, and whether they can be served."""

# No `from __future__ import annotations` here: cyclopts reads the types of the parameters.

import datetime
from typing import Annotated

from cyclopts import Parameter

from jetflock.command_line.output import num_bytes_text, print_json, print_table
from jetflock.hub.engine_report import engine_reports
from jetflock.hub.hub_cache import FetchedModel, fetched_models, why_not_whole
from shared.checkpoint.model_files import local_checkpoint
from shared.cli.program import Program

_SUMMARY = """\
List the models of the hub on this disk: size, commit, date, and whether their files are whole.

With --check the engine says of each whole one whether it is served; that takes some seconds. What
is served now, jetflock models lists."""
_COLUMNS = ("model", "size", "commit", "fetched", "servable")
_COMMIT_LEN = 8

_Flag = Annotated[bool, Parameter(negative="")]
_AsJson = Annotated[bool, Parameter(name="--json", negative="")]


def main(*, check: _Flag = False, as_json: _AsJson = False) -> None:
    """List."""
    models = list(fetched_models())
    problems = {each.model: why_not_whole(each.path) for each in models}
    if check:
        whole = [each for each in models if problems[each.model] is None]
        reports = engine_reports(*(local_checkpoint(each.path) for each in whole)) if whole else []
        for each, report in zip(whole, reports, strict=True):
            problems[each.model] = report.refusal or report.shortage or None
    if as_json:
        print_json([_facts(each, problems[each.model]) for each in models])
        return
    rows = [_row(each, problems[each.model], "yes" if check else "whole") for each in models]
    print_table(_COLUMNS, rows, "there is no model of the hub: jetflock pull owner/name")


def _facts(model: FetchedModel, problem: str | None) -> dict[str, object]:
    return {
        "model": model.model,
        "num_bytes": model.num_bytes,
        "commit": model.revision,
        "fetched_at": model.modified_at,
        "path": str(model.path),
        "problem": problem,
    }


def _row(model: FetchedModel, problem: str | None, if_none: str) -> list[str]:
    day = datetime.datetime.fromtimestamp(model.modified_at).astimezone()
    return [
        model.model,
        num_bytes_text(model.num_bytes),
        model.revision[:_COMMIT_LEN],
        day.isoformat(" ", "minutes")[:16],
        if_none if problem is None else f"no: {problem}",
    ]


PROGRAM = Program(name="jetflock list", summary=_SUMMARY, main=main, takes_file=False)

if __name__ == "__main__":
    PROGRAM.run()
