"""The words of RBAC for a request, and the sentences that name the missing rule."""

import pytest

from remediator.kube.access import access_of, rbac_rule
from remediator.kube.errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    ServerError,
    Throttled,
    Unauthorized,
    explain,
    from_status,
)
from remediator.kube.objects import Cause, Status, StatusDetails


@pytest.mark.parametrize(
    ("method", "target", "said", "rule"),
    [
        pytest.param(
            "GET",
            "/api/v1/nodes?limit=250",
            "list nodes",
            '{apiGroups: [""], resources: ["nodes"], verbs: ["list"]}',
            id="list",
        ),
        pytest.param(
            "GET",
            "/api/v1/nodes?watch=1&resourceVersion=7",
            "watch nodes",
            '{apiGroups: [""], resources: ["nodes"], verbs: ["watch"]}',
            id="watch",
        ),
        pytest.param(
            "PATCH",
            "/api/v1/nodes/n1/status?fieldManager=x",
            "patch nodes/status n1",
            '{apiGroups: [""], resources: ["nodes/status"], verbs: ["patch"]}',
            id="subresource",
        ),
        pytest.param(
            "POST",
            "/apis/coordination.k8s.io/v1/namespaces/a/leases",
            "create leases.coordination.k8s.io in namespace a",
            '{apiGroups: ["coordination.k8s.io"], resources: ["leases"], verbs: ["create"]}',
            id="namespaced-group",
        ),
        pytest.param(
            "GET",
            "/api/v1/namespaces/kube-system",
            "get namespaces kube-system",
            '{apiGroups: [""], resources: ["namespaces"], verbs: ["get"]}',
            id="namespace-itself",
        ),
        pytest.param(
            "DELETE",
            "/api/v1/namespaces/a/pods",
            "deletecollection pods in namespace a",
            '{apiGroups: [""], resources: ["pods"], verbs: ["deletecollection"]}',
            id="collection",
        ),
        pytest.param(
            "GET",
            "/version",
            "get /version",
            '{nonResourceURLs: ["/version"], verbs: ["get"]}',
            id="no-resource",
        ),
    ],
)
def test_request_is_named_as_rbac_names_it(method: str, target: str, said: str, rule: str) -> None:
    access = access_of(method, target)

    assert str(access) == said
    assert rbac_rule(access) == rule


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        (400, Status(), Invalid),
        (401, Status(), Unauthorized),
        (403, Status(), Forbidden),
        (404, Status(), NotFound),
        (409, Status(reason="Conflict"), Conflict),
        (409, Status(reason="AlreadyExists"), AlreadyExists),
        (410, Status(reason="Gone"), Gone),
        (400, Status(reason="Expired"), Gone),
        (422, Status(reason="Invalid"), Invalid),
        (429, Status(), Throttled),
        (500, Status(), ServerError),
        (503, Status(), ServerError),
    ],
)
def test_each_answer_becomes_the_error_that_says_what_to_do(
    code: int, status: Status, kind: type[ApiError]
) -> None:
    assert type(from_status(access_of("GET", "/api/v1/nodes"), code, status)) is kind


def test_changed_uid_is_a_conflict_not_a_bad_request() -> None:
    causes = (Cause("FieldValueInvalid", "metadata.uid", "field is immutable"),)
    status = Status(reason="Invalid", details=StatusDetails(causes=causes))

    error = from_status(access_of("PATCH", "/api/v1/nodes/n1"), 422, status)

    assert isinstance(error, Conflict)


def test_retry_after_comes_from_the_header_or_the_status() -> None:
    access = access_of("GET", "/api/v1/nodes")
    status = Status(details=StatusDetails(retry_after_seconds=3))

    from_header = from_status(access, 429, Status(), retry_after=7.0)
    from_body = from_status(access, 429, status)

    assert isinstance(from_header, Throttled)
    assert isinstance(from_body, Throttled)
    assert (from_header.retry_after, from_body.retry_after) == (7.0, 3.0)


def test_forbidden_names_the_rule_and_where_it_belongs() -> None:
    access = access_of("PATCH", "/apis/coordination.k8s.io/v1/namespaces/gpu/leases/lead")

    sentence = explain(Forbidden(access, status=403, message="nope"))

    assert "Role rule in namespace gpu" in sentence
    assert 'verbs: ["patch"]' in sentence
    assert "ClusterRole" not in sentence


def test_unauthorized_points_at_the_credentials() -> None:
    sentence = str(Unauthorized(access_of("GET", "/api/v1/nodes"), status=401))

    assert "does not accept our credentials" in sentence
