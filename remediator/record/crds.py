"""The CustomResourceDefinitions, made from the models: `deploy/crds/` is what this says.

Both kinds live in the controller's namespace: a Role is all the access that they need, who may
write policies is decided there, and two installations on one cluster do not mix.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from remediator.policy.model import NAME_PATTERN, Mode, RemediationPolicy
from remediator.policy.structural import structural
from remediator.record.policystatus import PolicyObjectStatus
from remediator.record.remediation import Remediation


GROUP: Final = "gpu-remediator.io"
VERSION: Final = "v1alpha1"

Json = dict[str, Any]


class Names(NamedTuple):
    """How one calls a kind."""

    kind: str
    plural: str
    singular: str
    short: str


POLICIES: Final = Names("RemediationPolicy", "remediationpolicies", "remediationpolicy", "rmp")
REMEDIATIONS: Final = Names("Remediation", "remediations", "remediation", "rmd")


def remediation_crd() -> Json:
    """Return the CustomResourceDefinition of `Remediation`."""
    schema = _resource(structural(Remediation))
    fixed = {
        "rule": "self == oldSelf",
        "message": "a session's node, id and beginning never change",
    }
    schema["properties"]["spec"]["x-kubernetes-validations"] = [fixed]
    return _crd(
        REMEDIATIONS,
        schema,
        [
            _column("Node", ".spec.node"),
            _column("Policy", ".spec.policy"),
            _column("Phase", ".status.phase"),
            _column("Step", ".status.step"),
            _column("Held by", ".status.heldBy"),
            _column("Result", ".status.result"),
            _column("Age", ".spec.started", "date"),
            _column("Why", ".status.why", priority=1),
        ],
    )


def policy_crd() -> Json:
    """Return the CustomResourceDefinition of `RemediationPolicy`."""
    schema = _resource(structural(RemediationPolicy))
    schema["properties"]["metadata"] = {
        "type": "object",
        "properties": {"name": {"type": "string", "pattern": NAME_PATTERN}},
    }
    schema["properties"]["spec"]["properties"]["mode"]["default"] = Mode.DRY_RUN.value
    schema["properties"]["status"] = structural(PolicyObjectStatus)
    return _crd(
        POLICIES,
        schema,
        [
            _column("Mode", ".spec.mode"),
            _column("Effective", ".status.effectiveMode"),
            _column("Accepted", '.status.conditions[?(@.type=="Accepted")].status'),
            _column("Matched", ".status.matchedNodes", "integer"),
            _column("Held by", ".status.heldBy"),
            _column("Age", ".metadata.creationTimestamp", "date"),
            _column("Version", ".status.version", priority=1),
        ],
    )


def _resource(schema: Json) -> Json:
    """Leave apiVersion, kind and metadata to the API server, which checks them itself."""
    for key in ("apiVersion", "kind", "metadata"):
        schema["properties"].pop(key, None)
    schema["required"] = ["spec"]
    return schema


def _column(name: str, path: str, kind: str = "string", *, priority: int = 0) -> Json:
    made: Json = {"name": name, "type": kind, "jsonPath": path}
    return made | ({"priority": priority} if priority else {})


def _crd(names: Names, schema: Json, columns: list[Json]) -> Json:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{names.plural}.{GROUP}",
            "labels": {"app.kubernetes.io/part-of": "gpu-remediator"},
        },
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": names.kind,
                "listKind": f"{names.kind}List",
                "plural": names.plural,
                "singular": names.singular,
                "shortNames": [names.short],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": columns,
                }
            ],
        },
    }
