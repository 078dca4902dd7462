"""What can go wrong when talking to the API server, by what the caller must do.

    ApiError                    the server refused, or was not reached
    |-- NotFound                the object is gone: nothing left to do for it
    |-- Conflict                the object changed under us: read again, decide again
    |   `-- AlreadyExists       it is there already: for deterministic names, a success
    |-- Gone                    the version is too old: LIST again
    |-- Denied                  ask a human: credentials or RBAC
    |   |-- Unauthorized
    |   `-- Forbidden
    |-- Invalid                 our request is wrong: repeating it is useless
    `-- Transient               try again later, with back-off
        |-- Throttled           not before `retry_after`
        |-- ServerError
        `-- Unreachable         no answer
            `-- TimedOut        no answer in time; the write may have happened
    ConfigError                 no usable credentials: tell the user, stop

No exception of the HTTP library or of the official client leaves this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from remediator.kube.access import Access, rbac_rule


if TYPE_CHECKING:
    from remediator.kube.objects import Status


class ConfigError(Exception):
    """No usable kubeconfig or service account; the text says what is missing."""


class ApiError(Exception):
    """A call to the API server failed.

    Attributes:
        access: which verb on which resource was asked for.
        status: the HTTP status, 0 when there was no answer.
        reason: the machine-readable reason of the Status object ("" when none).
        message: the server's own sentence, or the network's.
        causes: (reason, field, message) of each cause in the Status object.
    """

    def __init__(
        self,
        access: Access,
        *,
        status: int = 0,
        reason: str = "",
        message: str = "",
        causes: tuple[tuple[str, str, str], ...] = (),
    ) -> None:
        super().__init__(f"cannot {access}: {message or reason or status}")
        self.access = access
        self.status = status
        self.reason = reason
        self.message = message
        self.causes = causes


class NotFound(ApiError):  # noqa: N818 - named as Kubernetes names its reasons
    """404: the object does not exist."""


class Conflict(ApiError):  # noqa: N818
    """409: a precondition (resourceVersion, UID) no longer holds. Read again, decide again."""


class AlreadyExists(Conflict):
    """409 on a create: an object of that name is there already."""


class Gone(ApiError):  # noqa: N818
    """410: the version or continue token is too old. LIST again."""


class Denied(ApiError):  # noqa: N818
    """The server knows us not, or allows us not. Only a human can help."""

    def __str__(self) -> str:
        """The sentence for the user: what is missing, and what grants it."""
        return explain(self)


class Unauthorized(Denied):
    """401, also after the credentials were read again."""


class Forbidden(Denied):
    """403: RBAC or an admission policy refuses."""


class Invalid(ApiError):  # noqa: N818
    """400, 413, 415, 422 and other 4xx: the request itself is wrong."""


class Transient(ApiError):  # noqa: N818
    """Nothing is wrong with the request: try again later, with back-off."""


class Throttled(Transient):
    """429. For an eviction see `causes`: DisruptionBudget is no throttling.

    Attributes:
        retry_after: seconds that the server asks for; 0 when it does not say, and never more than
            `LONGEST_RETRY_AFTER`: who asks for an hour is a proxy, and knows less than we.
    """

    retry_after: float = 0.0


class ServerError(Transient):
    """5xx; and what is no answer of the API server's, such as a redirect."""

    retry_after: float = 0.0


class Unreachable(Transient):
    """No answer: refused, reset, no route, TLS failure."""


class TimedOut(Unreachable):
    """No answer before the deadline. A write may have happened all the same."""


_BY_STATUS: dict[int, type[ApiError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    429: Throttled,
}
_SERVER_ERRORS = 500
_REDIRECTS = range(300, 400)
LONGEST_RETRY_AFTER = 60.0
"""Seconds. The API server asks for one, or for ten."""


def from_status(access: Access, status: int, body: Status, *, retry_after: float = 0.0) -> ApiError:
    """The exception for an HTTP answer `status` with the Status object `body`.

    Two answers are not what their code says. A changed UID in a patch comes as
    422 (the field is immutable): the object was replaced, which is a Conflict. An
    expired continue token comes as 410 or as reason Expired.
    """
    elsewhere = status in _REDIRECTS  # the API server sends nobody elsewhere
    trouble = elsewhere or status >= _SERVER_ERRORS
    kind = _BY_STATUS.get(status, ServerError if trouble else Invalid)
    causes = tuple((cause.reason, cause.field, cause.message) for cause in body.causes)
    if body.reason == "AlreadyExists":
        kind = AlreadyExists
    elif body.reason == "Expired":
        kind = Gone
    elif kind is Invalid and any(field == "metadata.uid" for _, field, _ in causes):
        kind = Conflict
    message = f"redirected (HTTP {status}): does a proxy stand before it?" if elsewhere else ""
    message = message or body.message
    error = kind(access, status=status, reason=body.reason, message=message, causes=causes)
    if isinstance(error, Throttled | ServerError):
        asked = retry_after or float(body.retry_after_seconds)
        error.retry_after = max(0.0, min(asked, LONGEST_RETRY_AFTER))
    return error


def explain(error: ApiError) -> str:
    """One sentence for the user: what is missing, and which RBAC rule grants it."""
    if isinstance(error, Unauthorized):
        return (
            f"the API server does not accept our credentials ({error.message or 'HTTP 401'}):"
            " the token is wrong, expired, or of another cluster;"
            " check the kubeconfig's current context or the pod's service account"
        )
    if isinstance(error, Forbidden):
        where = "Role" if error.access.namespace else "ClusterRole"
        place = f" in namespace {error.access.namespace}" if error.access.namespace else ""
        return (
            f"not allowed to {error.access} ({error.message or 'HTTP 403'});"
            f" unless an admission policy refused it, this {where} rule{place} grants it:"
            f" {rbac_rule(error.access)}"
        )
    return str(error)
