"""Kubernetes' label selectors, evaluated here so that decisions need no API call."""

from __future__ import annotations

from collections.abc import Mapping

from remediator.policy.base import LabelRequirement, LabelSelector


def selector_matches(selector: LabelSelector, labels: Mapping[str, str]) -> bool:
    """Tell whether labels satisfy a selector: all of it must hold, an empty one always does.

    Meaning as in Kubernetes: ``NotIn`` and ``DoesNotExist`` hold for a missing label.
    https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/
    """
    return all(labels.get(key) == value for key, value in selector.match_labels.items()) and all(
        _requirement_holds(one, labels) for one in selector.match_expressions
    )


def _requirement_holds(requirement: LabelRequirement, labels: Mapping[str, str]) -> bool:
    value = labels.get(requirement.key)
    match requirement.operator:
        case "In":
            return value in requirement.values
        case "NotIn":
            return value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
