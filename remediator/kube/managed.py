"""Who set a node's `spec.unschedulable` last, by the managed fields that the server keeps.

The server notes for each field who changed its value. Somebody who uncordons a node and
cordons it again while nobody watches leaves the same node behind; only this note differs.
Nothing else of the managed fields is read: they are a fifth of a node's bytes.
"""

from __future__ import annotations

from typing import Final

import msgspec


FIELD_MANAGER: Final = "gpu-remediator"
"""How the managed fields of what we write name us."""


class _Set(msgspec.Struct, gc=False):
    """That a field is set: `{}`."""


class _Spec(msgspec.Struct, gc=False):
    unschedulable: _Set | None = msgspec.field(default=None, name="f:unschedulable")


class _Fields(msgspec.Struct, gc=False):
    spec: _Spec | None = msgspec.field(default=None, name="f:spec")


class Managed(msgspec.Struct, gc=False):
    """One entry of `metadata.managedFields`."""

    manager: str = ""
    fields: _Fields | None = msgspec.field(default=None, name="fieldsV1")


def set_by_others(managed: tuple[Managed, ...]) -> bool:
    """Whether somebody is known to have set `spec.unschedulable`, and it was not us.

    Setting the value that is there already leaves it to whoever set it.
    """
    owners = {
        one.manager
        for one in managed
        if one.fields is not None
        and one.fields.spec is not None
        and one.fields.spec.unschedulable is not None
    }
    return bool(owners) and FIELD_MANAGER not in owners
