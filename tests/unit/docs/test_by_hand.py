"""What the pages have people write on a Node by hand is what the controller reads."""

from __future__ import annotations

import re
from pathlib import Path

from remediator.decide.requests import (
    APPROVAL_ANNOTATION,
    REQUEST_ANNOTATION,
    Verb,
    decode_approvals,
    decode_request,
)


DOCS = Path(__file__).parents[3] / "docs"


def annotated(page: str, key: str) -> str:
    """Return the value that the one `kubectl annotate` of a page gives this key."""
    text = (DOCS / page).read_text(encoding="utf-8")
    (found,) = re.findall(rf"kubectl annotate node \S+ .*{re.escape(key)}='([^']*)'", text)
    return str(found)


def test_an_approval() -> None:
    (one,) = decode_approvals(annotated("policies/steps.md", APPROVAL_ANNOTATION))
    assert (one.policy, one.step, one.by) == ("gpu-reset", 3, "ann")
    assert one.expires_at > 0.0


def test_a_request() -> None:
    request = decode_request(annotated("cli.md", REQUEST_ANNOTATION))
    assert (request.verb, request.by, request.reason) == (Verb.CANCEL, "ann", "new board")
