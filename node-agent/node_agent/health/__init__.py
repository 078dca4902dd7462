"""What is wrong with the devices of this node, as one immutable value.

Data flows ``rules`` (what raises, what clears: one table) -> ``faults`` (one open
fault) -> ``state`` (all of them, with what is remembered) -> ``fold`` (evidence in, new
state out) -> ``conditions`` (state to what stands on the Node). Everything here is
pure; ``store`` alone touches a file.
"""
