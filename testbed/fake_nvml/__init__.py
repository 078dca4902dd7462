"""A libnvidia-ml.so.1 without a GPU, under the real Python binding, scripted by a file."""

from testbed.fake_nvml.library import NO_ID, CompilerMissingError, FakeNvml, build


__all__ = ["NO_ID", "CompilerMissingError", "FakeNvml", "build"]
