"""Whatever stands in the objects that commands show: it is shown, and each line is one line.

The objects are made from their schemas, so that they are what the API server lets pass and what
`status` can read, whoever wrote them.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from remediator.cli.history import Found, as_json, render_history
from remediator.cli.status import render_status
from remediator.decide.session import History
from remediator.kube.custom import CustomObject
from remediator.record.crds import remediation_crd
from remediator.record.status import Status
from tests.property.cases import cases


Schema = dict[str, Any]

NOW: Final = 1_800_000_000.0
FORGED: Final = "FORGED  ready"
HOSTILE: Final = f"Hot\x1b[2K\r\n{FORGED}\u2028{FORGED}\x0b{FORGED}\u202e\x9b"
TEXTS: Final = st.sampled_from([HOSTILE, "", "a"]) | st.text(max_size=8)
TIMES: Final = st.integers(0, 2**32).map(lambda at: f"{datetime.fromtimestamp(at, UTC):%FT%TZ}")
CRD: Final = remediation_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
_, PARTS = msgspec.json.schema_components([Status], ref_template="{name}")


def made(schema: Schema) -> st.SearchStrategy[Any]:
    """Return what a schema lets pass: of lists and optional fields some."""
    match schema:
        case {"$ref": name}:
            one: st.SearchStrategy[Any] = st.deferred(lambda: made(PARTS[name]))
        case {"anyOf": parts}:
            one = st.one_of([made(part) for part in parts])
        case {"enum": values}:
            one = st.sampled_from(values)
        case {"properties": properties}:
            fields = {name: made(part) for name, part in properties.items()}
            must = {name: fields.pop(name) for name in schema.get("required", ())}
            one = st.fixed_dictionaries(must, optional=fields)
        case {"additionalProperties": values}:
            one = st.dictionaries(TEXTS, made(values), max_size=2)
        case {"items": items}:
            one = st.lists(made(items), max_size=2)
        case {"format": "date-time"}:
            one = TIMES
        case _:
            one = _SCALARS[schema["type"]]
    return one


_SCALARS: Final[dict[Any, st.SearchStrategy[Any]]] = {
    "string": TEXTS,
    "integer": st.integers(-(2**31), 2**31),
    "number": st.floats(-1e12, 1e12),
    "boolean": st.booleans(),
    "null": st.none(),
}


def plain(text: str) -> None:
    for line in text.split("\n"):
        assert line.isprintable()
        assert not line.startswith(FORGED)


def objects() -> st.SearchStrategy[CustomObject]:
    parts: dict[str, Schema] = CRD["properties"]
    return st.builds(
        CustomObject,
        name=TEXTS,
        uid=st.just("u"),
        resource_version=st.just("1"),
        generation=st.just(1),
        spec=made(parts["spec"]),
        status=made(parts["status"]) | st.just({}),
    )


@settings(max_examples=cases(60), deadline=None)
@given(
    found=st.builds(
        Found,
        objects=st.lists(objects(), max_size=3),
        note=TEXTS,
        node=TEXTS,
        past=st.none() | st.builds(History, last=TEXTS),
    )
)
def test_any_record_of_sessions_is_shown_line_by_line(found: Found) -> None:
    plain(render_history(found, now=NOW))
    plain(json.dumps(msgspec.to_builtins(as_json(found)), indent=2))


@settings(max_examples=cases(60), deadline=None)
@given(document=made({"$ref": "Status"}))
def test_any_status_is_shown_line_by_line(document: Schema) -> None:
    plain(render_status(msgspec.convert(document, Status), now=NOW))
