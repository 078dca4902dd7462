"""One term as the leader: take over what is there, decide and act, hand over in order.

`resources` is what lives longer than a term. `lead` is its order; around the engine it has
`parts` (who decides and acts, put together), `control` (what people tell the controller as a
whole), `correspondence` (messages, over a change of the leader), `leftovers` (Jobs that nobody
wants) and `view` (what people see).

What a term builds is thrown away with it: a process that lost its lease ends, and the next
leader begins from the nodes and the remembered state.
"""
