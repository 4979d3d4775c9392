"""Why no token could be chosen in a place: it fails its request, and no other one."""

from __future__ import annotations

import enum


class SampleError(enum.Enum):
    """The value is what the client reads."""

    NOT_A_NUMBER = "the model's output for this request is not a number"
    NOTHING_ALLOWED = (
        "no token is left to choose: logit_bias, allowed_token_ids, bad_words and min_tokens "
        "together exclude every one"
    )
