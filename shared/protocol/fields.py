"""Numbers that are checked where they are read."""

from typing import Annotated

import msgspec

Place = Annotated[int, msgspec.Meta(ge=0)]  # a stream sequence, or an index


TokenId = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]  # what four bytes hold
