"""A drain: which pods leave a node, in which order, and what keeps the others.

    pods --classify--> fates --plan(+ replies so far, now)--> next requests, blockers, done?
                                        ^                               |
                                        +------- replies <--- evict, delete

``classify``, ``plan``, ``replies`` and ``report`` are pure; ``engine`` talks to the API
server, ``worker`` follows the decisions, and ``marks`` says on the node how far it is.
"""
