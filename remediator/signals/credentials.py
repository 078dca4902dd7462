"""Credentials of a source from its files: read at each use, so that a rotated one is used at once.

Their contents appear in no error and no log line.
"""

from __future__ import annotations

import base64
import ssl
from pathlib import Path
from typing import Final

from remediator.policy.sources import Access


MAX_SECRET_BYTES: Final = 16 * 1024


class CredentialsError(Exception):
    """A file of credentials cannot be used; ``str()`` says which and why."""


def read_secret(path: str) -> str:
    """Return what a file holds, without the line's end. Raises CredentialsError."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_SECRET_BYTES + 1)
    except OSError as error:
        raise CredentialsError(f"{path} cannot be read: {error.strerror or error}") from error
    if len(data) > MAX_SECRET_BYTES:
        raise CredentialsError(f"{path} is longer than {MAX_SECRET_BYTES} bytes: no secret is")
    try:
        text = data.decode("ascii").strip()
    except UnicodeDecodeError:
        raise CredentialsError(f"{path} holds more than plain ASCII text") from None
    if not text or not text.isprintable():
        raise CredentialsError(f"{path} is empty, or has more than one line")
    return text


def headers_of(access: Access) -> dict[str, str]:
    """Return the header that lets us in, if any. Raises CredentialsError."""
    if access.bearer_token_file:
        return {"Authorization": f"Bearer {read_secret(access.bearer_token_file)}"}
    if access.username and access.password_file:
        pair = f"{access.username}:{read_secret(access.password_file)}".encode()
        return {"Authorization": f"Basic {base64.b64encode(pair).decode()}"}
    return {}


def tls_of(access: Access) -> ssl.SSLContext:
    """Return whom we trust, and who we are. Raises CredentialsError."""
    try:
        context = ssl.create_default_context(cafile=access.ca_file)
        if access.cert_file and access.key_file:
            context.load_cert_chain(access.cert_file, access.key_file)
    except (OSError, ssl.SSLError) as error:
        files = ", ".join(filter(None, (access.ca_file, access.cert_file, access.key_file)))
        raise CredentialsError(f"{files} cannot be used: {error.strerror or error}") from error
    return context
