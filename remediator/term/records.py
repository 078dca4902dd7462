"""What is written for people beside the status, where it is wanted: objects of our own kinds."""

from __future__ import annotations

from collections.abc import Callable

from remediator.kube.custom import CustomObjects
from remediator.record.chronicle import Chronicle
from remediator.record.crds import POLICIES, REMEDIATIONS
from remediator.record.policywriter import PolicyStatuses
from remediator.record.status import Status
from remediator.term.resources import Resources


def make_chronicle(has: Resources) -> Chronicle | None:
    """Return what records sessions; None where that is not wanted."""
    kept = has.cluster.remediations
    if not kept.keep:
        return None
    objects = CustomObjects(
        api=has.api,
        namespace=has.namespace,
        plural=REMEDIATIONS.plural,
        check=has.elector.check,
    )
    return Chronicle(objects=objects, kept=kept, nodes=has.fleet.all, now=has.clock.now)


def make_policy_statuses(
    has: Resources, status: Callable[[], Status | None]
) -> PolicyStatuses | None:
    """Return what tells of policies in their own objects; None where only files count."""
    if has.policy_objects is None:
        return None
    return PolicyStatuses(
        objects=CustomObjects(
            api=has.api,
            namespace=has.namespace,
            plural=POLICIES.plural,
            check=has.elector.check,
        ),
        there=lambda store=has.policy_objects.store: store,  # type: ignore[misc]
        loaded=lambda: has.watcher.current,
        status=status,
        now=has.clock.now,
    )
