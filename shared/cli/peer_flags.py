"""Flags of vLLM, SGLang and llama.cpp: taken as ours, or answered with what to do in jetflock.

`python -m shared.cli.peer_flags > docs/peer-flags.md` writes the page of all of them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence

from shared.cli.peer_flag_table import PEER_FLAGS, PEER_VALUES, SPECULATIVE_CONFIG, PeerFlag
from shared.errors import ConfigError

_HEAD = """\
# Flags of other servers

Made by `python -m shared.cli.peer_flags > docs/peer-flags.md`. These are flags of `jetflock serve`,
`worker` and `autoscale`. Flags that do not work as one of jetflock's are refused with the words of
this table.
"""

_VALUES_HEAD = """
The same for values of flags that both have:
"""

_SPECULATIVE_FIELDS = {
    "model": "--draft-model",
    "num_speculative_tokens": "--num-draft-tokens",
    "prompt_lookup_min": "--min-ngram-len",
    "prompt_lookup_max": "--max-ngram-len",
}


def is_peer_flag(word: str) -> bool:
    """Whether it is one of these, with its value or without."""
    name = word.partition("=")[0]
    return any(name in flag.names for flag in PEER_FLAGS)


def translated(words: Sequence[str], own_flags: Iterable[str] = ()) -> list[str]:
    """`words` with our flags in place of theirs. A flag of the program itself is left alone.

    Raises ConfigError for one that needs another word, with that word.
    """
    own = set(own_flags)
    by_name = {each: flag for flag in PEER_FLAGS for each in flag.names if each not in own}
    return _with_our_values(
        [
            _translated(word, by_name.get(word.partition("=")[0]))
            for word in _with_speculative_config(words)
        ]
    )


def _with_speculative_config(words: Sequence[str]) -> list[str]:
    """What vLLM says of guesses in JSON, in flags of ours. Raises ConfigError."""
    result: list[str] = []
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if name != SPECULATIVE_CONFIG:
            result.append(word)
        else:
            result += _speculative_flags(value if equals else next(rest, ""))
    return result


def _speculative_flags(text: str) -> list[str]:
    try:
        values = json.loads(text)
    except ValueError as exc:
        raise ConfigError(f"{SPECULATIVE_CONFIG} {text!r} is not JSON: {exc}") from exc
    if not isinstance(values, dict):
        raise ConfigError(f"{SPECULATIVE_CONFIG} must be a JSON object, not {text!r}")
    method = values.pop("method", "draft_model")
    if isinstance(method, str) and method.endswith("_mtp"):  # by family, as once: deepseek_mtp
        method = "mtp"
    if method not in ("draft_model", "eagle3", "mtp", "ngram", "suffix"):
        raise ConfigError(
            f"{SPECULATIVE_CONFIG}: method must be draft_model, eagle3, mtp, ngram or suffix, not "
            f"{method!r}"
        )
    flags = [] if method in ("draft_model", "eagle3") else ["--speculate", method]
    for name, value in values.items():
        if name not in _SPECULATIVE_FIELDS:
            raise ConfigError(f"{SPECULATIVE_CONFIG}: {name} is not supported; leave it out")
        flags += [_SPECULATIVE_FIELDS[name], str(value)]
    return flags


def _translated(word: str, flag: PeerFlag | None) -> str:
    if flag is None:
        return word
    theirs, equals, value = word.partition("=")
    if flag.ours:
        return f"{flag.ours}{equals}{value}"
    advice = flag.advice.replace("`", "")
    raise ConfigError(f"{theirs} is a flag of {flag.peers}. In jetflock: {advice}")


def _with_our_values(words: Sequence[str]) -> list[str]:
    """Raises ConfigError for a value that needs another word."""
    result: list[str] = []
    flag = ""  # whose value may come next
    for word in words:
        name, equals, value = word.partition("=")
        if not name.startswith("-"):
            result.append(_our_value(flag, word))
            flag = ""
        elif equals:
            result.append(f"{name}={_our_value(name, value)}")
        else:
            result.append(word)
            flag = word
    return result


def _our_value(flag: str, value: str) -> str:
    for each in PEER_VALUES:
        if each.flag == flag and value in each.values:
            if each.ours:
                return each.ours
            advice = each.advice.replace("`", "")
            raise ConfigError(f"{flag} {value} is a value of other servers. In jetflock: {advice}")
    return value


def markdown_page() -> str:
    """docs/peer-flags.md."""
    rows = [
        f"| {', '.join(f'`{name}`' for name in flag.names)} | {flag.peers} | {flag.in_jetflock} |"
        for flag in PEER_FLAGS
    ]
    values = [
        f"| `{each.flag}` | {', '.join(f'`{value}`' for value in each.values)} | "
        f"{each.in_jetflock} |"
        for each in PEER_VALUES
    ]
    flags = [_HEAD, "| flag | of | in jetflock |", "|---|---|---|", *rows]
    return "\n".join(
        [*flags, _VALUES_HEAD, "| flag | value | in jetflock |", "|---|---|---|", *values, ""]
    )


if __name__ == "__main__":
    sys.stdout.write(markdown_page())
