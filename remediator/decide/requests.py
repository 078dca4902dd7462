"""What people ask for by annotations of the Node: requests, and their yes to a step.

They are written with people's own credentials, by ``remediator cancel NODE`` and its like. We read
them with suspicion: of their texts no more is kept than we can repeat in what we write ourselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Final

import msgspec
from msgspec.structs import replace

from remediator.decide.session import decode


REQUEST_ANNOTATION: Final = "gpu-remediator.io/request"
APPROVAL_ANNOTATION: Final = "gpu-remediator.io/approval"
MAX_SAID: Final = 200
"""Characters kept of each text in a person's request: it is repeated in what we write."""
MAX_TIME: Final = 64
"""Characters of a time that somebody wrote: more is none."""


class Verb(StrEnum):
    """What people may ask for by ``remediator VERB NODE``."""

    CANCEL = "cancel"
    """End the session, undo what we added, leave this fault to people."""
    RELEASE = "release"
    """End the session, keep the node as it is: it is theirs now."""
    UNFREEZE = "unfreeze"
    """Drop an unreadable session annotation and decide anew."""
    RETRY = "retry"
    """Run the failed or escalated step again, with a new set of attempts."""


class Request(msgspec.Struct, frozen=True, omit_defaults=True):
    """A person's request, written with their own credentials; answered by being removed."""

    verb: Verb
    by: str
    at: str
    reason: str = ""


class Approval(msgspec.Struct, frozen=True, omit_defaults=True):
    """A person's yes to one step of one policy in one session, until ``expires`` (RFC 3339)."""

    session: str
    policy: str
    step: int
    by: str
    at: str
    expires: str

    @property
    def expires_at(self) -> float:
        """Epoch seconds; 0 if it cannot be read or names no zone: such an approval has expired."""
        try:
            when = datetime.fromisoformat(self.expires)
        except ValueError:
            return 0.0
        return 0.0 if when.tzinfo is None else when.timestamp()

    @property
    def note(self) -> str:
        """What the record of the step says that goes on by it."""
        return f"approved by {self.by} at {self.at[:MAX_TIME]}"


def encode_approvals(approvals: Sequence[Approval]) -> str:
    """Return the annotation's JSON: a list."""
    return msgspec.json.encode(approvals).decode()


def decode_approvals(text: str) -> tuple[Approval, ...]:
    """Read people's approvals, their texts cut to what we can repeat. Raises AnnotationError."""
    found = decode(text, tuple[Approval, ...], APPROVAL_ANNOTATION)
    return tuple(replace(one, by=one.by[:MAX_SAID], at=one.at[:MAX_SAID]) for one in found)


def decode_request(text: str) -> Request:
    """Read a person's request, its texts cut to what we can repeat. Raises AnnotationError."""
    request = decode(text, Request, REQUEST_ANNOTATION)
    by, at, reason = (one[:MAX_SAID] for one in (request.by, request.at, request.reason))
    return replace(request, by=by, at=at, reason=reason)
