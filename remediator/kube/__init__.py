"""The controller's Kubernetes client: the only package that talks to the API server.

Data flows through it in this order: `config` (where the server is and how to
prove who we are) -> `transport` (one HTTP call with a deadline) -> `codec`
(bytes to narrow immutable objects) -> `reflector` (LIST and WATCH) -> `store`
(the current state, with indexes) -> `workqueue` (which node to look at next).
Writes go out through `patch`, `events` and `configmap`, each fenced by `lease`.

Why not the official package's client: its typed objects cost 6 times the memory
and 28 times the CPU of narrow ones, its informer spins on errors and never
notices a dead connection, and its elector leaves two leaders behind when the API
server hangs. What is used of it is `kubernetes.config`: credentials and TLS.
"""
