"""Objects that steps make: from a template to the object, and found again after a restart.

The name comes from the node's UID, the session, the policy, the step and the attempt: a
repeat meets AlreadyExists, and takes the object over only if it says that it is of that
very attempt. The node owns it, so that it does not outlive a node that is deleted.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from remediator.decide.decision import Work
from remediator.kube.dynamic import Json, Kind, ObjectApi
from remediator.kube.errors import AlreadyExists, Invalid, NotFound
from remediator.policy.files import read_text
from remediator.policy.problems import PolicyError
from remediator.policy.templates import Template, TemplateError, check_template, fill
from remediator.policy.yaml import read_documents


OURS: Final = {"app.kubernetes.io/managed-by": "gpu-remediator"}
SESSION_LABEL: Final = "gpu-remediator.io/session"
POLICY_LABEL: Final = "gpu-remediator.io/policy"
MADE_LABEL: Final = "gpu-remediator.io/made"
"""Value: the object's own name; also on the pods of a Job."""
WORK_ANNOTATION: Final = "gpu-remediator.io/work"
NODE_ANNOTATION: Final = "gpu-remediator.io/node"
_NAME_CHARACTERS: Final = 40


class NotMadeError(Exception):
    """The object cannot be had, and trying again would not help. ``str()`` says why."""


class LateError(Exception):
    """The object is not there, and its time is over: it is not made any more. ``str()``: so."""


class Templates:
    """The templates of RemediatorConfig.

    Args:
        specs: by name.
        folder: where relative names of files begin.
    """

    def __init__(self, specs: Mapping[str, Template], *, folder: Path) -> None:
        self._specs = specs
        self._folder = folder

    @property
    def names(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(self._specs)

    def read(self, name: str) -> Json:
        """Return a template; blocking. Raises TemplateError."""
        spec = self._specs.get(name)
        if spec is None:
            raise TemplateError(f"RemediatorConfig has no template {name} under spec.templates")
        path = self._folder / spec.file
        try:
            return parse_template(read_text(path).decode(), file=str(path))
        except (PolicyError, UnicodeDecodeError) as error:
            raise TemplateError(f"template {name} ({path}) cannot be read: {error}") from error
        except TemplateError as error:
            raise TemplateError(f"template {name} ({path}): {error}") from error

    async def load(self, name: str) -> Json:
        """Return a template. Raises TemplateError."""
        return await asyncio.to_thread(self.read, name)


def parse_template(text: str, *, file: str) -> Json:
    """Return the object of a template's text.

    Raises:
        PolicyError: it is no YAML that everybody reads alike.
        TemplateError: it is none that could be created.
    """
    documents = read_documents(text, file=file)
    problems = [one for document in documents for one in document.problems]
    if problems:
        raise PolicyError(problems)
    if len(documents) != 1:
        raise TemplateError("it must be one document")
    return check_template(documents[0].data)


def words_of(work: Work) -> dict[str, str]:
    """Return what may be filled into text values."""
    return {
        "node": work.node,
        "uid": work.uid,
        "session": work.session,
        "attempt": str(work.attempt),
        "policy": work.policy,
    }


def name_of(work: Work, template: str) -> str:
    """Return the object's name: the same for the same attempt, another for any other."""
    return f"{template[:_NAME_CHARACTERS]}-{_digest(work.uid, work.key)}"


def named_for(found: Json, key: str) -> bool:
    """Tell whether an object's name is the one that the work of this key gave it."""
    metadata = found["metadata"]
    owners = [one.get("uid", "") for one in metadata.get("ownerReferences") or []]
    return any(str(metadata["name"]).endswith(f"-{_digest(uid, key)}") for uid in owners)


def _digest(uid: str, key: str) -> str:
    return hashlib.sha256(f"{uid}/{key}".encode()).hexdigest()[:12]


def object_of(template: Json, work: Work, *, name: str, namespace: str) -> Json:
    """Return the object to create. ``namespace``: where the template names none; "" for none."""
    made: Json = fill(template, words_of(work))
    metadata: dict[str, Any] = dict(made.get("metadata") or {})
    metadata.pop("generateName", None)
    metadata["name"] = name
    if namespace:
        metadata.setdefault("namespace", namespace)
    else:
        metadata.pop("namespace", None)
    metadata["labels"] = {**(metadata.get("labels") or {}), **labels_of(work, name)}
    metadata["annotations"] = {
        **(metadata.get("annotations") or {}),
        WORK_ANNOTATION: work.key,
        NODE_ANNOTATION: work.node,
    }
    owner = {"apiVersion": "v1", "kind": "Node", "name": work.node, "uid": work.uid}
    metadata["ownerReferences"] = [owner]
    return {**made, "metadata": metadata}


def labels_of(work: Work, name: str) -> dict[str, str]:
    """Return the labels by which an object says whose it is."""
    return {
        **OURS,
        SESSION_LABEL: work.session,
        POLICY_LABEL: work.policy,
        MADE_LABEL: name,
    }


def is_of(found: Json, work: Work) -> bool:
    """Tell whether an object is the one that this very attempt made."""
    metadata = found.get("metadata") or {}
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    owners = {one.get("uid") for one in metadata.get("ownerReferences") or []}
    return (
        labels.get(SESSION_LABEL) == work.session
        and annotations.get(WORK_ANNOTATION) == work.key
        and work.uid in owners
    )


def kind_of(obj: Json) -> Kind:
    """Return an object's kind."""
    return Kind(obj["apiVersion"], obj["kind"])


async def make(objects: ObjectApi, obj: Json, work: Work, *, now: float) -> Json:
    """Create the object, or take over the one that an earlier process made.

    Behind the work's deadline (``now``: the controller's clock) it is only looked for.

    Raises:
        NotMadeError: it is refused, or its name belongs to somebody else.
        LateError: it is not there, and must not be made any more.
        ApiError: any other trouble; RBAC, too, which people can mend meanwhile.
    """
    metadata = obj["metadata"]
    what, late = f"{obj['kind']} {metadata['name']}", now >= work.deadline
    if not late:
        try:
            return await objects.create(obj)
        except AlreadyExists:
            pass
        except (Invalid, NotFound) as error:
            raise NotMadeError(f"{what} was refused: {error.message or error}") from error
    found = await objects.read(kind_of(obj), metadata.get("namespace", ""), metadata["name"])
    if found is None and late:
        raise LateError(f"its time is over, and there is no {what}")
    if found is None:
        raise NotMadeError(f"{what} was deleted by somebody else")
    if not is_of(found, work):
        raise NotMadeError(f"a {what} that is not of this session is there already")
    return found
