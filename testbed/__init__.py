"""The real control plane that tests, demo and benchmarks run on: found or built, never downloaded.

Not part of the distribution. Data flows: `binaries` (where the programs are) -> `processes`
(a child that never outlives us) -> `controlplane` (the servers) -> `kwok` (kubelets, on demand)
-> `api` (plain HTTP client), `objects` (nodes, pods as data) -> `cluster` (nodes, pods, tokens as
a test or a demo wants them) -> `pytest_plugin` (fixtures).
"""
