"""What the structs of answers are made of: the one description of what clients read."""

from typing import Annotated

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0)]
Amount = Annotated[float, msgspec.Meta(ge=0)]


class WireStruct(msgspec.Struct, frozen=True, kw_only=True):
    """An object of an answer, or of an event. Its fields stand on the wire in this order.

    What is UNSET is not sent, and all else is: the OpenAPI document requires exactly that.
    """


class TypedStruct(WireStruct, frozen=True, kw_only=True, tag_field="type"):
    """An object whose first field, `type`, says what it is."""
