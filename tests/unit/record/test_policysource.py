"""What `remediator status` says of policies as objects."""

from __future__ import annotations

from typing import cast

from hypothesis import example, given
from hypothesis import strategies as st

from remediator.kube.access import access_of
from remediator.kube.custom import CUSTOM, CustomObject
from remediator.kube.errors import ApiError, Forbidden, NotFound
from remediator.kube.reflector import Api, Reflector
from remediator.kube.store import Store
from remediator.policy.load import parse_policies
from remediator.record.policysource import PolicyObjects, text_of


PATH = "/apis/gpu-remediator.io/v1alpha1/namespaces/gpu/remediationpolicies"


def objects(error: ApiError | None = None) -> PolicyObjects:
    store: Store[CustomObject] = Store()
    mirror = Reflector(
        api=cast("Api", None), path=PATH, codec=CUSTOM, store=store, clock=lambda: 0.0
    )
    mirror.last_error = error
    return PolicyObjects(store=store, mirror=mirror)


def test_nothing_is_said_where_all_is_well() -> None:
    assert objects().notes() == ()


def test_a_missing_kind_and_a_missing_right_are_said() -> None:
    (missing,) = objects(NotFound(access_of("GET", PATH))).notes()
    assert "apply deploy/crds" in missing
    (denied,) = objects(Forbidden(access_of("GET", PATH))).notes()
    assert denied.startswith("policies as objects: ")


def test_an_object_that_cannot_be_read_is_named() -> None:
    seen = objects()
    seen.mirror.unreadable["odd"] = "spec: expected an object"
    (note,) = seen.notes()
    assert note.startswith("remediationpolicies.gpu-remediator.io/odd cannot be read")
    assert note.endswith("spec: expected an object")


@given(text=st.text(st.characters(codec="utf-8"), min_size=1, max_size=20))
@example(text="a\x7f\x80\x85\u2028\ufeff\ufffe\U0001f600 b\n\n c\u00e9")
def test_a_text_is_read_to_the_letter_whatever_characters_it_has(text: str) -> None:
    steps = [{"cordon": {}}, {"notify": {"to": ["log"], "message": text}}]
    spec = {"when": [{"xid": {"codes": [79]}}], "steps": steps}
    found = CustomObject(
        name="bus", uid="uid", resource_version="1", generation=1, spec=spec, status={}
    )
    (one,) = parse_policies(text_of(found), file="object").policies
    told = one.policy.spec.steps[1].notify
    assert told is not None
    assert told.message == text
