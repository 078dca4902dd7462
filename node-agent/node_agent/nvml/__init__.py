"""NVML in a process of its own that may hang and be killed."""
