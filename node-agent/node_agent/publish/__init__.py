"""How what the agent knows gets out: conditions, Events, metrics, health endpoints.

``access`` (who we are) -> ``node_api`` (the few requests of an agent) -> ``standing``
(pure: what to write) -> ``publisher`` (when to write) -> ``events``; beside them
``metrics`` (text, rendered on change) and ``web`` (the endpoints).
"""
