"""Spoilt input: texts with pieces cut out and put in, and JSON with any part of it changed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from hypothesis import strategies as st


JUNK = st.text(max_size=6) | st.sampled_from(
    ["{", "}", "[", "]", '"', "\\", "\\ud800", ",", ":", "null", "-", "1e999", "[" * 200, "\0"]
)
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=12)
    | st.sampled_from([0, -1, 2**63, 2**64, -(2**70), 1e300, -1e300, "", "2026-13-01T00:00:00Z"])
)
values: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda one: st.lists(one, max_size=3) | st.dictionaries(st.text(max_size=6), one, max_size=3),
    max_leaves=6,
)


@st.composite
def damaged(draw: st.DrawFn, texts: Sequence[str]) -> str:
    """Return one of these texts with up to four places of it overwritten."""
    text = draw(st.sampled_from(list(texts)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(JUNK) + text[at + draw(st.integers(0, 12)) :]
    return text


@st.composite
def altered(draw: st.DrawFn, texts: Sequence[str]) -> str:
    """Return one of these JSON texts with up to three of its parts replaced or left out."""
    document = [json.loads(draw(st.sampled_from(list(texts))))]
    for _ in range(draw(st.integers(1, 3))):
        inside, key = draw(st.sampled_from(list(_places(document))))
        if inside is not document and draw(st.booleans()) and draw(st.booleans()):
            del inside[key]
        else:
            inside[key] = draw(values)
    return json.dumps(document[0])


def _places(inside: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each part of a document as where it is and by which key."""
    keys = list(inside) if isinstance(inside, dict) else range(len(inside))
    for key in keys:
        yield inside, key
        if isinstance(inside[key], dict | list):
            yield from _places(inside[key])
