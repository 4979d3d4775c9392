"""JSON schemas as applications write them: what structured outputs are tested and timed with."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]


def text(max_len: int = 16, **rest: Any) -> Schema:
    return {"type": "string", "maxLength": max_len, **rest}


def whole(low: int = 0, high: int = 1000) -> Schema:
    return {"type": "integer", "minimum": low, "maximum": high}


def num(low: float = 0, high: float = 100, **rest: Any) -> Schema:
    return {"type": "number", "minimum": low, "maximum": high, **rest}


def one_of(*values: Any) -> Schema:
    return {"enum": list(values)}


def matching(pattern: str) -> Schema:
    return {"type": "string", "pattern": pattern}


def formatted(name: str) -> Schema:
    return {"type": "string", "format": name}


def many(items: Any, high: int = 3, low: int = 0, **rest: Any) -> Schema:
    return {"type": "array", "items": items, "minItems": low, "maxItems": high, **rest}


def ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def maybe(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def obj(required: Schema | None = None, optional: Schema | None = None, **rest: Any) -> Schema:
    """Closed, unless `rest` says otherwise."""
    required, optional = required or {}, optional or {}
    schema = {
        "type": "object",
        "properties": {**required, **optional},
        "required": list(required),
        "additionalProperties": False,
    }
    return schema | rest


def tagged(tag: str, name: str, fields: Schema) -> Schema:
    return obj({tag: {"const": name}, **fields})


BOOL: Schema = {"type": "boolean"}
NULL: Schema = {"type": "null"}
ADDRESS = obj({"street": text(), "city": text(12), "zip": matching(r"^\d{5}$")}, {"state": text(2)})
POINT = obj({"lat": num(-90, 90), "lon": num(-180, 180)})
MONEY = obj({"amount": num(0, 99999), "currency": one_of("EUR", "USD", "GBP")})

SCALARS: dict[str, Any] = {
    "string": text(),
    "empty_string": {"type": "string", "maxLength": 0},
    "long_enough": {"type": "string", "minLength": 5, "maxLength": 9},
    "free_string": {"type": "string"},
    "free_integer": {"type": "integer"},
    "free_number": {"type": "number"},
    "anything": {},
    "true": True,
    "boolean": BOOL,
    "null": NULL,
    "const_text": {"const": "fixed"},
    "const_number": {"const": 42},
    "const_object": {"const": {"a": [1, 2, {"b": None}]}},
    "enum_mixed": {"enum": [1, "one", None, True, 2.5, {"k": "v"}, [1]]},
    "enum_unicode": one_of("grün", "日本語", "émoji 🙂", 'quo"te', "back\\slash", "new\nline"),
    "sentiment": {"type": "string", "enum": ["positive", "negative", "neutral"]},
    "nullable_type_list": {"type": ["string", "null"], "maxLength": 8},
    "number_or_text": {"type": ["integer", "string"], "maxLength": 4, "minimum": 1, "maximum": 9},
    "percent": num(0, 100),
    "probability": num(0, 1),
    "negative": {"type": "number", "exclusiveMaximum": 0, "minimum": -50},
    "age": whole(0, 150),
    "port": whole(1, 65535),
    "year": whole(1900, 2100),
    "temperature": num(-273.15, 1000),
    "exclusive": {"type": "integer", "exclusiveMinimum": 10, "exclusiveMaximum": 20},
    "tight": whole(7, 7),
    "across_zero": whole(-3, 12),
    "multiple_of_5": {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 100},
    "cents": {"type": "number", "multipleOf": 0.01, "minimum": 0, "maximum": 10},
    "even": {"type": "integer", "multipleOf": 2},
    "date": formatted("date"),
    "time": formatted("time"),
    "date_time": formatted("date-time"),
    "duration": formatted("duration"),
    "email": formatted("email"),
    "hostname": formatted("hostname"),
    "ipv4": formatted("ipv4"),
    "ipv6": formatted("ipv6"),
    "uuid": formatted("uuid"),
    "uri": formatted("uri"),
    "phone": matching(r"^\+?[0-9]{3}-[0-9]{4}$"),
    "slug": matching(r"^[a-z0-9]+(-[a-z0-9]+){0,3}$"),
    "hex_colour": matching(r"^#([0-9a-fA-F]{3}){1,2}$"),
    "semver": matching(r"^(0|[1-9]\d?)\.(0|[1-9]\d?)\.(0|[1-9]\d?)$"),
    "licence_plate": matching(r"^[A-Z]{1,3}-[A-Z]{1,2} [1-9][0-9]{0,3}$"),
    "unanchored": {"type": "string", "pattern": "ab+c", "maxLength": 12},
    "pattern_start": {"type": "string", "pattern": "^https://", "maxLength": 20},
    "pattern_end": {"type": "string", "pattern": r"\.png$", "maxLength": 14},
    "pattern_unicode": matching("^[äöü日本]{2,4}$"),
    "pattern_quotes": matching(r'^"[^"]{1,4}"\\$'),
    "pattern_alternatives": matching(r"^(foo|bar)(baz)?$"),
    "pattern_and_length": {
        "type": "string",
        "pattern": "^[a-z]*$",
        "minLength": 3,
        "maxLength": 6,
    },
    "iban": matching(r"^[A-Z]{2}\d{2}[A-Z0-9]{4,8}$"),
    "cron": matching(r"^(\*|[0-5]?\d) (\*|1?\d) (\*|[12]?\d) (\*|\d) (\*|[0-6])$"),
}

ARRAYS: dict[str, Any] = {
    "strings": many(text(8)),
    "numbers": many(num(), 5, 2),
    "booleans": many(BOOL, 4, 4),
    "empty_array": {"type": "array", "maxItems": 0},
    "enum_list": many(one_of("a", "b", "c"), 5, 1),
    "matrix": many(many(whole(0, 9), 3, 3), 3, 3),
    "nested_thrice": many(many(many(whole(0, 9), 2), 2), 2),
    "tuple": {
        "type": "array",
        "prefixItems": [text(5), whole(), BOOL],
        "items": False,
        "minItems": 3,
    },
    "tuple_open": {
        "type": "array",
        "prefixItems": [one_of("add", "del")],
        "items": whole(0, 9),
        "minItems": 1,
        "maxItems": 4,
    },
    "tuple_optional_tail": {"type": "array", "prefixItems": [BOOL, NULL], "items": False},
    "draft_7_tuple": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "array",
        "items": [whole(0, 5), text(4)],
        "additionalItems": False,
        "minItems": 2,
    },
    "bounding_box": many(num(-180, 180), 4, 4),
    "coordinates": many(
        {"type": "array", "prefixItems": [num(-180, 180), num(-90, 90)], "items": False}, 3, 1
    ),
    "objects": many(obj({"id": whole(), "name": text(8)}), 3, 1),
    "mixed_items": many({"anyOf": [text(4), whole(), NULL, BOOL]}, 5),
    "free_array": {"type": "array", "maxItems": 3},
    "unbounded_digits": {"type": "array", "items": whole(0, 9)},
    "dates": many(formatted("date"), 3, 1),
    "entities": many(
        obj(
            {
                "text": text(8),
                "label": one_of("PER", "ORG", "LOC"),
                "start": whole(),
                "end": whole(),
            }
        )
    ),
    "pairs": many({"type": "array", "items": text(4), "minItems": 2, "maxItems": 2}, 2, 1),
}

OBJECTS: dict[str, Any] = {
    "empty_object": obj(),
    "person": obj({"name": text(), "age": whole(0, 150)}, {"email": formatted("email")}),
    "address": ADDRESS,
    "point": POINT,
    "money": MONEY,
    "all_optional": obj({}, {"a": BOOL, "b": whole(), "c": text(4), "d": NULL}),
    "deep": obj({"a": obj({"b": obj({"c": obj({"d": obj({"e": BOOL})})})})}),
    "wide": obj({f"field_{i}": whole(0, 9) for i in range(25)}),
    "wide_optional": obj({}, {f"option_{i}": BOOL for i in range(25)}),
    "strange_names": obj(
        {"a b": BOOL, 'q"uote': BOOL, "ключ": BOOL, "日本": BOOL, "": BOOL, "$x": BOOL}
    ),
    "map_of_numbers": {"type": "object", "additionalProperties": whole(), "maxProperties": 3},
    "map_bounded": {
        "type": "object",
        "additionalProperties": BOOL,
        "minProperties": 1,
        "maxProperties": 2,
    },
    "map_of_objects": {"type": "object", "additionalProperties": POINT, "maxProperties": 2},
    "pattern_properties": {
        "type": "object",
        "patternProperties": {"^n_[a-z]{1,3}$": whole(), "^s_[a-z]{1,3}$": text(4)},
        "additionalProperties": False,
        "maxProperties": 3,
    },
    "open_with_listed": obj(
        {"kind": one_of("x", "y")}, additionalProperties=whole(0, 9), maxProperties=3
    ),
    "required_beyond_properties": {
        "type": "object",
        "properties": {"a": BOOL},
        "required": ["a", "b"],
        "additionalProperties": whole(0, 9),
        "maxProperties": 2,
    },
    "invoice": obj(
        {
            "number": matching(r"^INV-\d{6}$"),
            "issued": formatted("date"),
            "customer": obj({"name": text(), "address": ADDRESS}),
            "lines": many(obj({"item": text(), "quantity": whole(1, 99), "price": MONEY}), 2, 1),
            "total": MONEY,
        },
        {"paid": BOOL},
    ),
    "order": obj(
        {
            "id": formatted("uuid"),
            "status": one_of("new", "paid", "shipped", "cancelled"),
            "items": many(obj({"sku": matching("^[A-Z]{3}[0-9]{3}$"), "qty": whole(1, 9)}), 3, 1),
        }
    ),
    "weather": obj(
        {"location": text(), "temperature": num(-60, 60), "unit": one_of("C", "F")},
        {"humidity": num(), "wind": obj({"speed": num(), "direction": whole(0, 359)})},
    ),
    "recipe": obj(
        {
            "title": text(),
            "servings": whole(1, 12),
            "ingredients": many(
                obj({"name": text(10), "amount": num(), "unit": one_of("g", "ml", "tsp")}), 3, 1
            ),
            "steps": many(text(20), 3, 1),
        }
    ),
    "calendar_event": obj(
        {
            "title": text(),
            "start": formatted("date-time"),
            "attendees": many(formatted("email"), 2),
        },
        {"end": formatted("date-time"), "all_day": BOOL},
    ),
    "contact": obj(
        {
            "name": text(),
            "phones": many(obj({"kind": one_of("home", "work"), "number": text(9)}), 2),
        }
    ),
    "product": obj(
        {"name": text(), "price": num(0, 9999), "tags": many(text(6), 3), "stock": whole()},
        {"size": obj({"w": num(), "h": num()}), "rating": num(0, 5)},
    ),
    "movie": obj(
        {
            "title": text(),
            "year": whole(1900, 2100),
            "genres": many(one_of("drama", "comedy"), 2, 1),
        }
    ),
    "quiz": obj(
        {"question": text(24), "options": many(text(8), 4, 4), "answer": whole(0, 3)},
    ),
    "classification": obj({"label": one_of("spam", "ham"), "confidence": num(0, 1)}),
    "rating": obj({"score": whole(1, 5), "reason": text(30)}),
    "summary": obj({"summary": text(40), "keywords": many(text(8), 4, 1), "words": whole()}),
    "translation": obj({"source": text(2), "target": text(2), "text": text(20)}),
    "reasoning_steps": obj(
        {
            "steps": many(obj({"explanation": text(20), "output": text(10)}), 3, 1),
            "final_answer": text(10),
        }
    ),
    "sql_query": obj(
        {"table": matching("^[a-z_]{1,10}$"), "where": many(text(12), 2), "limit": whole()}
    ),
    "http_request": obj(
        {
            "method": one_of("GET", "POST", "PUT", "DELETE"),
            "url": matching("^https://[a-z.]{3,12}/$"),
        },
        {"headers": {"type": "object", "additionalProperties": text(6), "maxProperties": 2}},
    ),
    "log_record": obj(
        {
            "at": formatted("date-time"),
            "level": one_of("debug", "info", "error"),
            "message": text(20),
        },
        {
            "fields": {
                "type": "object",
                "additionalProperties": {
                    "type": ["string", "integer"],
                    "maxLength": 4,
                    "maximum": 99,
                    "minimum": 0,
                },
                "maxProperties": 2,
            }
        },
    ),
    "server_config": obj(
        {"host": formatted("hostname"), "port": whole(1, 65535)},
        {"tls": obj({"cert": text(8), "key": text(8)}), "workers": whole(1, 64), "debug": BOOL},
    ),
    "docker_service": obj(
        {"image": matching(r"^[a-z]{1,8}:[0-9.]{1,5}$")},
        {"ports": many(matching(r"^\d{2,4}:\d{2,4}$"), 2), "environment": many(text(8), 2)},
    ),
    "git_commit": obj(
        {"hash": matching("^[0-9a-f]{7}$"), "author": text(), "files": many(text(8), 3)}
    ),
    "bank_transfer": obj(
        {"from": matching(r"^[A-Z]{2}\d{6}$"), "to": matching(r"^[A-Z]{2}\d{6}$"), "value": MONEY}
    ),
    "patient": obj(
        {"id": matching(r"^P\d{4}$"), "born": formatted("date"), "sex": one_of("f", "m", "x")},
        {"allergies": many(text(8), 3), "blood": one_of("0", "A", "B", "AB")},
    ),
    "flight": obj(
        {
            "from": matching("^[A-Z]{3}$"),
            "to": matching("^[A-Z]{3}$"),
            "departs": formatted("date-time"),
            "seat": matching(r"^[1-9]\d?[A-F]$"),
        }
    ),
    "geojson_point": obj(
        {"type": {"const": "Point"}, "coordinates": many(num(-180, 180), 2, 2)},
    ),
    "playlist": obj(
        {"name": text(), "songs": many(obj({"title": text(8), "seconds": whole(1, 900)}), 3)}
    ),
    "game_state": obj(
        {"board": many(many(one_of("x", "o", " "), 3, 3), 3, 3), "turn": one_of("x", "o")}
    ),
    "survey": obj({f"q{i}": whole(1, 5) for i in range(1, 9)}),
    "resume": obj(
        {"name": text(), "skills": many(text(8), 4, 1)},
        {
            "jobs": many(
                obj({"title": text(8), "from": whole(1950, 2030), "to": maybe(whole(1950, 2030))}),
                2,
            )
        },
    ),
    "feature_flags": {"type": "object", "additionalProperties": BOOL, "maxProperties": 3},
    "jsonrpc": obj(
        {
            "jsonrpc": {"const": "2.0"},
            "method": text(8),
            "id": {"type": ["integer", "null"], "minimum": 0, "maximum": 99},
        },
        {"params": many(whole(), 3)},
    ),
    "annotated": obj(
        {"a": {"title": "A", "description": "an 'a'", "default": 3, "examples": [1], **whole()}},
        title="Annotated",
        description="keywords without effect",
    ),
    "openapi_style": obj(
        {
            "id": {"type": "integer", "format": "int32", "example": 5, **whole()},
            "note": {"nullable": True, "deprecated": True, **text(5)},
        }
    ),
    "content_encoded": obj({"data": {"contentEncoding": "base64", **text(8)}}),
    "free_object": {"type": "object", "maxProperties": 2},
}

COMBINED: dict[str, Any] = {
    "nullable": maybe(text(8)),
    "optional_nested": obj({"parent": maybe(obj({"id": whole()}))}),
    "pydantic_optional": obj({"a": maybe(whole()), "b": maybe(text(4)), "c": maybe(many(BOOL))}),
    "any_of_scalars": {"anyOf": [whole(), text(4), BOOL]},
    "any_of_objects": {
        "anyOf": [obj({"a": whole()}), obj({"b": text(4)}), obj({"a": BOOL, "b": NULL})]
    },
    "any_of_nested": {"anyOf": [{"anyOf": [whole(), NULL]}, {"anyOf": [text(3), BOOL]}]},
    "one_of_types": {"oneOf": [whole(), text(4), NULL]},
    "one_of_constants": {"oneOf": [{"const": "a", "title": "A"}, {"const": "b"}, {"const": 3}]},
    "one_of_tagged": {
        "oneOf": [
            tagged("kind", "circle", {"radius": num()}),
            tagged("kind", "square", {"side": num()}),
        ]
    },
    "one_of_tagged_refs": {
        "oneOf": [ref("cat"), ref("dog")],
        "discriminator": {"propertyName": "pet"},
        "$defs": {
            "cat": tagged("pet", "cat", {"lives": whole(0, 9)}),
            "dog": tagged("pet", "dog", {"tricks": many(text(5), 2)}),
        },
    },
    "one_of_enum_tags": {
        "oneOf": [
            obj({"t": one_of("a", "b"), "x": whole()}),
            obj({"t": one_of("c"), "y": BOOL}),
        ]
    },
    "all_of_one": {"allOf": [obj({"a": whole()})]},
    "all_of_bounds": {"allOf": [{"type": "integer"}, {"minimum": 5}, {"maximum": 9}]},
    "all_of_base": {
        "allOf": [
            {"type": "object", "properties": {"id": whole()}, "required": ["id"]},
            {"type": "object", "properties": {"name": text(5)}, "required": ["name"]},
        ],
        "maxProperties": 2,
    },
    "all_of_ref_and_more": {
        "allOf": [ref("base"), {"properties": {"extra": BOOL}, "required": ["extra"]}],
        "maxProperties": 2,
        "$defs": {"base": {"type": "object", "properties": {"id": whole()}, "required": ["id"]}},
    },
    "all_of_any_of": {
        "allOf": [
            {"anyOf": [{"type": "integer"}, NULL]},
            {"anyOf": [{"maximum": 5}, {"const": 9}]},
        ],
        "type": ["integer", "null"],
    },
    "ref_with_siblings": {
        "$ref": "#/$defs/n",
        "maximum": 50,
        "description": "narrower",
        "$defs": {"n": whole(10, 100)},
    },
    "refs_shared": obj(
        {"home": ref("address"), "work": ref("address")}, **{"$defs": {"address": ADDRESS}}
    ),
    "refs_chained": {"$ref": "#/$defs/a", "$defs": {"a": ref("b"), "b": ref("c"), "c": whole()}},
    "ref_to_property": obj({"first": text(5), "second": {"$ref": "#/properties/first"}}),
    "definitions_draft_7": {
        "definitions": {"tag": matching("^[a-z]{1,5}$")},
        "type": "array",
        "items": {"$ref": "#/definitions/tag"},
        "maxItems": 3,
    },
    "ref_escaped": {"$ref": "#/$defs/a~1b", "$defs": {"a/b": BOOL}},
    "enum_in_any_of": {"anyOf": [one_of("auto", "none"), obj({"name": text(5)})]},
    "tool_choice": {
        "anyOf": [
            obj({"name": {"const": "get_weather"}, "arguments": obj({"city": text(8)})}),
            obj({"name": {"const": "add"}, "arguments": obj({"a": whole(), "b": whole()})}),
            obj({"name": {"const": "stop"}, "arguments": obj()}),
        ]
    },
    "tool_calls": many(
        {
            "anyOf": [
                obj({"tool": {"const": "search"}, "query": text(12)}),
                obj({"tool": {"const": "open"}, "url": matching("^https://[a-z]{3,8}$")}),
            ]
        },
        2,
        1,
    ),
    "result_or_error": {
        "anyOf": [
            obj({"ok": {"const": True}, "value": num()}),
            obj({"ok": {"const": False}, "error": obj({"code": whole(), "message": text(12)})}),
        ]
    },
    "shapes": many(
        {
            "oneOf": [
                tagged("type", "circle", {"r": num()}),
                tagged("type", "rect", {"w": num(), "h": num()}),
                tagged("type", "poly", {"points": many(POINT, 2, 1)}),
            ]
        },
        2,
        1,
    ),
    "ui_component": obj(
        {"type": one_of("div", "button"), "label": text(8)},
        {"children": many(ref("leaf"), 2)},
        **{"$defs": {"leaf": obj({"type": {"const": "text"}, "value": text(6)})}},
    ),
    "number_or_range": {"anyOf": [num(), obj({"min": num(), "max": num()})]},
    "id_or_ids": {"anyOf": [whole(), many(whole(), 3, 1)]},
    "event_stream": many(
        {
            "oneOf": [
                tagged("event", "start", {"at": formatted("time")}),
                tagged("event", "stop", {"at": formatted("time"), "code": whole(0, 255)}),
            ]
        },
        3,
        1,
    ),
    "filter_expression": {
        "anyOf": [
            obj(
                {
                    "op": one_of("eq", "lt", "gt"),
                    "field": text(6),
                    "value": {"anyOf": [num(), text(5)]},
                }
            ),
            obj({"op": one_of("and", "or"), "left": ref("leaf"), "right": ref("leaf")}),
        ],
        "$defs": {"leaf": obj({"field": text(5), "value": whole()})},
    },
    "patch_operations": many(
        {
            "anyOf": [
                obj(
                    {
                        "op": one_of("add", "replace"),
                        "path": matching("^/[a-z]{1,6}$"),
                        "value": BOOL,
                    }
                ),
                obj({"op": {"const": "remove"}, "path": matching("^/[a-z]{1,6}$")}),
            ]
        },
        3,
        1,
    ),
    "nullable_everything": obj(
        {k: maybe(v) for k, v in {"a": BOOL, "b": POINT, "c": MONEY}.items()}
    ),
    "any_of_with_shared": {
        "type": "object",
        "properties": {"id": whole()},
        "required": ["id"],
        "maxProperties": 2,
        "anyOf": [
            {"properties": {"x": BOOL}, "required": ["x"]},
            {"properties": {"y": NULL}, "required": ["y"]},
        ],
    },
}

RECURSIVE: dict[str, Any] = {
    "tree": obj({"value": whole(0, 9), "children": many({"$ref": "#"}, 2)}),
    "linked_list": {
        "$ref": "#/$defs/node",
        "$defs": {"node": obj({"value": whole(0, 9), "next": maybe(ref("node"))})},
    },
    "binary_tree": {
        **ref("node"),
        "$defs": {"node": {"anyOf": [NULL, obj({"l": ref("node"), "v": BOOL, "r": ref("node")})]}},
    },
    "folders": obj(
        {"name": text(6)},
        {"files": many(text(5), 2), "folders": many({"$ref": "#"}, 2)},
    ),
    "expression": {
        **ref("e"),
        "$defs": {
            "e": {
                "anyOf": [whole(0, 9), obj({"op": one_of("+", "*"), "args": many(ref("e"), 2, 2)})]
            }
        },
    },
    "nested_lists": {**ref("l"), "$defs": {"l": many({"anyOf": [whole(0, 9), ref("l")]}, 2)}},
    "org_chart": obj({"name": text(8), "reports": many({"$ref": "#"}, 2)}, {"title": text(6)}),
    "comments": many(ref("c"), 2)
    | {"$defs": {"c": obj({"by": text(5), "text": text(8), "replies": many(ref("c"), 1)})}},
    "mutual": {
        **ref("a"),
        "$defs": {"a": obj({"b": maybe(ref("b"))}), "b": obj({"a": maybe(ref("a"))})},
    },
    "json_value": {
        **ref("v"),
        "$defs": {
            "v": {
                "anyOf": [
                    NULL,
                    BOOL,
                    whole(0, 9),
                    text(3),
                    many(ref("v"), 2),
                    {"type": "object", "additionalProperties": ref("v"), "maxProperties": 2},
                ]
            }
        },
    },
    "menu": obj({"label": text(6)}, {"items": many({"$ref": "#"}, 2), "url": text(8)}),
    "html": obj(
        {"tag": one_of("p", "b", "ul")},
        {"children": many({"anyOf": [text(6), {"$ref": "#"}]}, 2)},
    ),
}

SCHEMAS: dict[str, Any] = SCALARS | ARRAYS | OBJECTS | COMBINED | RECURSIVE
