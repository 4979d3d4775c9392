"""How the flags of `jetflock serve` are shown: a screenful by default, all of them on request."""

from __future__ import annotations

import dataclasses
import typing
from typing import Annotated, Any

from cyclopts import Group, Parameter

from deploy.autoscale.scale_config import ScaleConfig
from deploy.local.serve_config import ServeConfig
from detok.config import DetokConfig
from frontend.config import FrontendConfig
from shared.config import ClusterConfig
from worker.config import WorkerConfig

SHORT_HELP = ("workers", "host", "port", "model_name", "api_key_file", "nats_url", "data_dir")

_OWN = Group("Serve", sort_key=0)
_GROUPS = (  # the first class that has a field owns it
    (ClusterConfig, Group("NATS, limits and logs", sort_key=3)),
    (FrontendConfig, Group("Frontend", sort_key=1)),
    (WorkerConfig, Group("Worker and engine", sort_key=2)),
    (DetokConfig, Group("Detokenizer", sort_key=4)),
    (ScaleConfig, Group("Scaling, when --workers is a range", sort_key=5)),
)


def serve_flags(*, is_short: bool) -> type[ServeConfig]:
    """ServeConfig, annotated with what its help shows and in which group.

    A class of its own also because cyclopts looks type names up in the module of the class, where
    those of inherited fields are not defined: here they are types already.
    """
    hints = typing.get_type_hints(ServeConfig, include_extras=True)
    fields: list[Any] = []
    for field in dataclasses.fields(ServeConfig):
        shown = Parameter(
            group=_OWN if is_short else _group_of(field.name),
            show=not is_short or field.name in SHORT_HELP,
            show_env_var=not is_short,
        )
        hint = hints[field.name]
        if typing.get_origin(hint) is not Annotated:
            hint = Annotated[hint, shown]
        fields.append((field.name, hint, field.default))
    flags = dataclasses.make_dataclass(
        "ServeFlags",
        fields,
        bases=(ServeConfig,),
        namespace={"__module__": __name__},  # else it passes for a class of the standard library
        frozen=True,
        kw_only=True,
    )
    assert issubclass(flags, ServeConfig)
    return flags


def _group_of(field_name: str) -> Group:
    for config_class, group in _GROUPS:
        if field_name in {field.name for field in dataclasses.fields(config_class)}:
            return group
    return _OWN
