"""The signature of what we POST to people's own receivers, by steps and by channels.

    X-Gpu-Remediator-Signature: t=<epoch seconds>,v1=<hex of HMAC SHA-256 of "<t>.<body>">

The time is signed with the body, so that a receiver can refuse what is replayed later.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final


SIGNATURE_HEADER: Final = "X-Gpu-Remediator-Signature"


def signature(secret: bytes, stamp: int, body: bytes) -> str:
    """Return the hexadecimal signature of a body sent at a time."""
    return hmac.new(secret, f"{stamp}.".encode() + body, hashlib.sha256).hexdigest()


def signature_header(secret: bytes, stamp: int, body: bytes) -> str:
    """Return the value of the header."""
    return f"t={stamp},v1={signature(secret, stamp, body)}"
