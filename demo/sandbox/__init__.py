"""A toy cluster on which people try a policy before they enable it: ``make sandbox``.

`world` sets it up, `happen` lets a fault happen on one of its nodes, `__main__` is the command.
"""
