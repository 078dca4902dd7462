"""A cluster on paper: virtual nodes, virtual time, and the same ``decide`` as everywhere.

``policy test``, ``simulate`` and ``replay`` are shells over :class:`remediator.lab.run.Lab`.
No I/O and no clock: what happens is what the caller says and what follows from it, so that
the same input gives the same timeline on every machine.
"""
