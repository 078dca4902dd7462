"""What the controller leaves behind: status, saved state, audit log, Events, metrics.

Nothing here decides, and nothing here may hold up a decision: every writer is
fed by a plain call that returns at once and works behind it.
"""
