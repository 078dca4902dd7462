"""How a drain treats the pods of a node."""

from __future__ import annotations

from remediator.policy.base import Model


class Drain(Model):
    """Evict the node's pods, PodDisruptionBudgets respected."""
