"""The sub-commands of `jetflock`: which program each one is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Command:
    """A sub-command that is a program of its own: its flags are its own business."""

    module: str  # with a PROGRAM: its own, or that of its `__main__`
    summary: str
    group: str
    extra: str  # what to install when it cannot be imported


START, ROLES, LOOK, UPKEEP = "Start here", "One role alone", "Look at it", "Look after it"

COMMANDS = {
    "serve": Command("deploy.local", "Run everything on this machine.", START, "serve"),
    "chat": Command("jetflock.chat", "Talk to a model.", START, "serve"),
    "pull": Command("jetflock.commands.pull", "Fetch a model from the hub.", START, "worker"),
    "list": Command(
        "jetflock.commands.list_fetched", "Models of the hub on this disk.", START, "worker"
    ),
    "rm": Command("jetflock.commands.rm", "Remove one of them.", START, "worker"),
    "doctor": Command("jetflock.doctor", "What is wrong, and the remedy.", START, "serve"),
    "frontend": Command("frontend", "The HTTP and NATS API.", ROLES, "frontend"),
    "worker": Command("worker", "A worker that runs a model.", ROLES, "worker"),
    "detok": Command("detok", "The detokenizer: token ids become text.", ROLES, "detok"),
    "autoscale": Command("deploy.autoscale", "Workers by load.", ROLES, "serve"),
    "ps": Command("jetflock.commands.ps", "Each jetflock serve that runs here.", LOOK, "serve"),
    "top": Command("jetflock.top", "Workers and queues, live.", LOOK, "serve"),
    "models": Command("jetflock.commands.models", "What is served.", LOOK, "serve"),
    "config": Command(
        "jetflock.commands.config_show", "Each value, and where it comes from.", LOOK, "serve"
    ),
    "events": Command(
        "jetflock.commands.events", "Workers that came, went and died.", LOOK, "serve"
    ),
    "tail": Command("jetflock.commands.tail", "A request's text, as it comes.", LOOK, "serve"),
    "replay": Command(
        "jetflock.commands.replay", "Run requests again, and compare.", LOOK, "serve"
    ),
    "shadow": Command(
        "jetflock.commands.shadow", "Compare a model as its requests come.", LOOK, "serve"
    ),
    "usage": Command("jetflock.commands.usage", "Tokens and engine time, billed.", LOOK, "serve"),
    "bench": Command("jetflock.bench", "Load on an OpenAI-compatible URL.", LOOK, "bench"),
    "admin": Command(
        "jetflock.commands.admin", "Pause, drain, abort: a running service.", UPKEEP, "serve"
    ),
    "service": Command(
        "jetflock.commands.systemd", "jetflock serve as a systemd unit.", UPKEEP, "serve"
    ),
    "dead": Command("jetflock.commands.dead", "Requests that were given up.", UPKEEP, "serve"),
    "batch": Command("jetflock.commands.batch", "Run a file of requests.", UPKEEP, "frontend"),
    "train-draft": Command(
        "jetflock.commands.train_draft", "A small model to guess for MODEL.", UPKEEP, "worker"
    ),
    "setup": Command("jetflock.commands.setup", "Make streams and consumers.", UPKEEP, "worker"),
    "migrate": Command("jetflock.commands.migrate", "Move to other streams.", UPKEEP, "frontend"),
    "nats-users": Command("deploy.nats", "NATS users with least rights.", UPKEEP, "frontend"),
    "completion": Command("jetflock.commands.completion", "Flags at the Tab key.", UPKEEP, "serve"),
}
