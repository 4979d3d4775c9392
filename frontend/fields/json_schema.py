"""JSON schemas from clients: bounded, and reduced to the keywords that constrain an output."""

from __future__ import annotations

import math
from typing import Any

from frontend.fields.regex_check import check_regex
from shared.errors import InvalidRequest, UnsupportedParameter

MAX_DEPTH = 24
MAX_NODES = 3000  # subschemas in all
MAX_PROPERTIES = 300  # of one object
MAX_ALTERNATIVES = 100  # of one anyOf, oneOf or allOf
MAX_COMBINATIONS = 100  # that an allOf of alternatives may multiply to
MAX_ENUM_VALUES = 2000  # in all
MAX_MULTIPLE_OF = 1000  # beyond, remainders make too many states
# The grammar's engine reads numbers as doubles, and limits of integers with 64 bits, too.
MAX_CONSTANT = 2**53
MAX_LIMIT = 2**63 - 1024

_UNSUPPORTED = frozenset(
    {
        "not",
        "if",
        "then",
        "else",
        "dependentRequired",
        "dependentSchemas",
        "dependencies",
        "contains",
        "minContains",
        "maxContains",
        "uniqueItems",
        "propertyNames",
        "unevaluatedProperties",
        "unevaluatedItems",
        "$dynamicRef",
        "$dynamicAnchor",
        "$recursiveRef",
        "$recursiveAnchor",
    }
)
_PLAIN = frozenset(
    {
        "type",
        "required",
        "minItems",
        "maxItems",
        "minProperties",
        "maxProperties",
        "minLength",
        "maxLength",
    }
)
_LOW = frozenset({"minimum", "exclusiveMinimum"})
_HIGH = frozenset({"maximum", "exclusiveMaximum"})
_SUBSCHEMA = frozenset({"additionalProperties", "additionalItems"})
_SUBSCHEMAS_BY_NAME = frozenset({"properties", "patternProperties", "$defs", "definitions"})
_COMBINED = frozenset({"anyOf", "oneOf", "allOf"})
FORMATS = frozenset(
    {
        "date-time",
        "time",
        "date",
        "duration",
        "email",
        "hostname",
        "ipv4",
        "ipv6",
        "uuid",
        "uri",
    }
)


class SchemaReader:
    """Reads one schema. Whatever is wrong is told with the place, as `param` and a path.

    Keywords that nobody defined, annotations and other formats than `FORMATS` are left out: JSON
    Schema lets them mean nothing. `is_closed`: objects that do not say otherwise have the listed
    properties only.
    """

    def __init__(self, param: str, *, is_closed: bool = False) -> None:
        self._param = param
        self._is_closed = is_closed
        self._root: Any = None
        self._num_nodes = 0
        self._num_enum_values = 0

    def read(self, schema: Any) -> Any:
        """The reduced schema. Raises InvalidRequest."""
        self._root = schema
        return self._node(schema, "", 0)

    def _node(self, node: Any, path: str, depth: int) -> Any:
        self._num_nodes += 1
        self._bound("subschemas", self._num_nodes, MAX_NODES, path)
        self._bound("levels", depth, MAX_DEPTH, path)
        if isinstance(node, bool):
            return node
        if not isinstance(node, dict):
            raise self._invalid("must be an object or a boolean", path)
        reduced: dict[str, Any] = {}
        for key in node:
            self._keyword(reduced, node, key, f"{path}/{key}", depth)
        if self._is_closed:
            self._close(reduced, path)
        return reduced

    def _keyword(
        self, reduced: dict[str, Any], node: dict[str, Any], key: str, path: str, depth: int
    ) -> None:
        value = node[key]
        if key in _UNSUPPORTED:
            if (key, value) != ("uniqueItems", False):
                raise UnsupportedParameter(self._param, f"holds {path}, which is not supported")
        elif key in _PLAIN:
            reduced[key] = value
        elif key in _LOW or key in _HIGH:
            reduced[key] = self._limit(value, path, is_low=key in _LOW)
        elif key == "const":
            reduced[key] = self._constant(value, path)
        elif key == "enum":
            reduced[key] = self._enum(value, path)
        elif key in _SUBSCHEMA:
            reduced[key] = self._node(value, path, depth + 1)
        elif key in _SUBSCHEMAS_BY_NAME:
            reduced[key] = self._by_name(value, key, path, depth + 1)
        elif key in ("items", "prefixItems"):
            is_list = isinstance(value, list)
            reduced[key] = (self._list if is_list else self._node)(value, path, depth + 1)
        elif key in _COMBINED:
            schemas = self._list(value, path, depth + 1)
            if key == "allOf":
                self._check_combinations(schemas, path)
            is_any = key == "oneOf" and self._is_distinct(value)
            if is_any and "anyOf" in node:
                raise UnsupportedParameter(self._param, f"holds {path} beside an anyOf")
            reduced["anyOf" if is_any else key] = schemas
        elif key == "pattern":
            check_regex(self._text(value, path), self._param)
            reduced[key] = value
        elif key == "format":
            if value in FORMATS:
                reduced[key] = value
        elif key == "$ref":
            if not self._text(value, path).startswith("#"):
                raise self._invalid(f"is {value[:100]!r}: references point into the schema", path)
            reduced[key] = value
        elif key == "multipleOf":
            if not isinstance(value, int | float) or not 0 < value <= MAX_MULTIPLE_OF:
                raise self._invalid(f"is {value!r}, must be above 0 and at most 1000", path)
            reduced[key] = value

    def _by_name(self, value: Any, key: str, path: str, depth: int) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self._invalid("must be an object", path)
        if key in ("properties", "patternProperties"):
            self._bound("properties", len(value), MAX_PROPERTIES, path)
        if key == "patternProperties":
            for pattern in value:
                check_regex(pattern, self._param)
        return {name: self._node(each, f"{path}/{name}", depth) for name, each in value.items()}

    def _list(self, value: Any, path: str, depth: int) -> list[Any]:
        if not isinstance(value, list):
            raise self._invalid("must be a list", path)
        self._bound("schemas", len(value), MAX_ALTERNATIVES, path)
        return [self._node(each, f"{path}/{i}", depth) for i, each in enumerate(value)]

    def _enum(self, value: Any, path: str) -> list[Any]:
        if not isinstance(value, list) or not value:
            raise self._invalid("must be a list with at least one value", path)
        self._num_enum_values += len(value)
        self._bound("enum values", self._num_enum_values, MAX_ENUM_VALUES, path)
        return [self._constant(each, path) for each in value]

    def _constant(self, value: Any, path: str) -> Any:
        if isinstance(value, list | dict):
            for each in value.values() if isinstance(value, dict) else value:
                self._constant(each, path)
        elif isinstance(value, int) and abs(value) > MAX_CONSTANT:
            raise self._invalid(f"holds {value}: beyond 2**53, give numbers as texts", path)
        return value

    def _limit(self, value: Any, path: str, *, is_low: bool) -> int | float:
        """One that is read exactly, and lets through nothing that `value` does not."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._invalid(f"is {value!r}, must be a number", path)
        if (value > MAX_LIMIT) if is_low else (value < -MAX_LIMIT):
            raise self._invalid(f"is {value}, which leaves no integer of 64 bits", path)
        near = float(max(value, -MAX_LIMIT) if is_low else min(value, MAX_LIMIT))
        if (near < value) if is_low else (near > value):
            near = math.nextafter(near, math.inf if is_low else -math.inf)
        return int(near) if near.is_integer() else near

    def _is_distinct(self, options: list[Any]) -> bool:
        """Objects with a constant property that differs: a oneOf of them is as good as anyOf."""
        tags = [self._tags(self._target(option)) for option in options]
        shared = set.intersection(*(set(each) for each in tags)) if tags else set()
        for name in shared:
            values = [value for each in tags for value in each[name]]
            if len(values) == len(set(values)):
                return True
        return False

    def _tags(self, option: Any) -> dict[str, list[str]]:
        """Required properties with constant texts, by name."""
        if not isinstance(option, dict):
            return {}
        required, properties = option.get("required"), option.get("properties")
        if not isinstance(required, list) or not isinstance(properties, dict):
            return {}
        tags: dict[str, list[str]] = {}
        for name, schema in properties.items():
            if name in required and isinstance(schema, dict):
                values = [schema["const"]] if "const" in schema else schema.get("enum")
                if isinstance(values, list) and all(isinstance(each, str) for each in values):
                    tags[name] = values
        return tags

    def _target(self, option: Any) -> Any:
        """What an option that is only a reference refers to."""
        for _ in range(MAX_DEPTH):
            reference = option.get("$ref") if isinstance(option, dict) else None
            if not isinstance(reference, str) or not reference.startswith("#/"):
                return option
            option = self._root
            for part in reference[2:].split("/"):
                name = part.replace("~1", "/").replace("~0", "~")
                option = option.get(name) if isinstance(option, dict) else None
        return None

    def _check_combinations(self, schemas: list[Any], path: str) -> None:
        num_combinations = 1
        for schema in schemas:
            for key in ("anyOf", "oneOf"):
                if isinstance(schema, dict) and isinstance(schema.get(key), list):
                    num_combinations *= max(1, len(schema[key]))
        self._bound("combinations of alternatives", num_combinations, MAX_COMBINATIONS, path)

    def _close(self, reduced: dict[str, Any], path: str) -> None:
        combined = sorted(reduced.keys() & (_COMBINED | {"$ref"}))
        if "allOf" in combined or ("properties" in reduced and combined):
            raise UnsupportedParameter(
                self._param,
                f"holds {path or '/'} with {combined[0]}, which cannot be closed to other "
                "properties; leave 'strict' out, or say additionalProperties yourself",
            )
        if "properties" in reduced:
            reduced.setdefault("additionalProperties", False)

    def _text(self, value: Any, path: str) -> str:
        if not isinstance(value, str):
            raise self._invalid("must be text", path)
        return value

    def _bound(self, what: str, num: int, high: int, path: str) -> None:
        if num > high:
            raise self._invalid(f"has {num} {what}, at most {high}", path)

    def _invalid(self, words: str, path: str) -> InvalidRequest:
        where = f" at {path[:200]}" if path else ""
        return InvalidRequest(f"'{self._param}'{where} {words}", param=self._param)
