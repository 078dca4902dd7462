"""From flags to a connection, with the user's own credentials; errors become sentences."""

from __future__ import annotations

import asyncio
import getpass
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

import msgspec

from remediator.cli.failure import Failure
from remediator.kube.client import ApiClient, connect, load_config
from remediator.kube.codec import DecodeError
from remediator.kube.errors import ApiError, ConfigError


T = TypeVar("T")

_REVIEW = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


class Target(NamedTuple):
    """Which cluster, and where in it the controller lives."""

    kubeconfig: str | None
    context: str | None
    namespace: str


def on_cluster(target: Target, work: Callable[[ApiClient], Awaitable[T]]) -> T:
    """Connect and do the work.

    Raises:
        Failure: no kubeconfig, wrong token, no permission, no answer: one sentence that
            says what is missing and, if it is a permission, the rule that grants it.
    """

    async def connected() -> T:
        config = await load_config(kubeconfig=target.kubeconfig, context=target.context)
        async with connect(config, max_connections=4) as api:
            return await work(api)

    try:
        return asyncio.run(connected())
    except (ConfigError, ApiError, DecodeError) as error:
        raise Failure(f"error: {error}") from error


async def who_am_i(api: ApiClient) -> str:
    """Return our name as the API server sees it, else that of the local account."""
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    try:
        answer = await api.request("POST", _REVIEW, msgspec.json.encode(body))
        return msgspec.json.decode(answer, type=_Review).status.user.username
    except (ApiError, msgspec.DecodeError):
        return getpass.getuser()


class _User(msgspec.Struct):
    username: str


class _Reviewed(msgspec.Struct, rename={"user": "userInfo"}):
    user: _User


class _Review(msgspec.Struct):
    status: _Reviewed
