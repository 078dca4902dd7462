"""Xids and SXids: the catalogue (data), the kernel-log parser and the episode counter.

Data flows ``assemble`` (lines) -> ``parse`` (one report) -> ``episodes`` (one fault,
one count). Everything here is pure; sources of lines live in ``node_agent.sources``.
"""
