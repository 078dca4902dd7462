"""The pure core: from facts, policies, sessions, guards' memory and the time to a decision.

Three stages, each a room of its own: :mod:`match` (which policies hold for a node),
:mod:`admit` (which candidates the guards let through, fleet-wide), :mod:`plan` (what
a session does next). No I/O, no clock: import-linter holds it to that.
"""
