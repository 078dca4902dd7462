"""The little of CUDA's driver API that makes a context and launches one kernel. By ctypes.

No toolkit, no Python package: `libcuda.so.1` comes with the driver, and compiles the PTX.
"""

from __future__ import annotations

import ctypes
from typing import Final


_PTX: Final = """\
.version {version}
.target {target}
.address_size 64
.visible .entry store(.param .u64 to)
{{
  .reg .b64 %to;
  .reg .b32 %one;
  ld.param.u64 %to, [to];
  mov.u32 %one, 1;
  st.u32 [%to], %one;
  ret;
}}
.visible .entry spin(.param .u64 turns)
{{
  .reg .pred %p;
  .reg .b64 %left;
  .reg .f32 %a;
  ld.param.u64 %left, [turns];
  mov.f32 %a, 0f3F800000;
again:
  fma.rn.f32 %a, %a, %a, %a;
  sub.u64 %left, %left, 1;
  setp.ne.u64 %p, %left, 0;
  @%p bra again;
  ret;
}}
"""
_TARGETS: Final = (("6.3", "sm_75"), ("6.0", "sm_50"), ("7.8", "sm_90"))
"""What old and new drivers compile for the card that is there; the first that is taken is used."""


class CudaError(Exception):
    """A call failed; the number is CUresult."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(f"{call}: CUresult {code}")
        self.code = code


class Context:
    """The primary context of one device, with the kernels of this module."""

    def __init__(self, device: int = 0) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._call("cuInit", ctypes.c_uint(0))
        context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), ctypes.c_int(device))
        self._call("cuCtxSetCurrent", context)
        self._module = self._load()

    def allocate(self, size: int) -> int:
        """Device memory; its address."""
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return int(address.value)

    def launch(self, kernel: str, argument: int, *, blocks: int = 1, threads: int = 1) -> None:
        """Start a kernel of one 64-bit argument.

        Raises:
            CudaError: it could not be started.
        """
        function = ctypes.c_void_p()
        self._call("cuModuleGetFunction", ctypes.byref(function), self._module, kernel.encode())
        value = ctypes.c_uint64(argument)
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(value))
        sizes = [ctypes.c_uint(n) for n in (blocks, 1, 1, threads, 1, 1, 0)]
        self._call("cuLaunchKernel", function, *sizes, None, arguments, None)

    def synchronize(self) -> None:
        """Wait for what was started.

        Raises:
            CudaError: a kernel has failed.
        """
        self._call("cuCtxSynchronize")

    def _load(self) -> ctypes.c_void_p:
        module = ctypes.c_void_p()
        failure = CudaError("cuModuleLoadData", 0)
        for version, target in _TARGETS:
            source = _PTX.format(version=version, target=target).encode()
            try:
                self._call("cuModuleLoadData", ctypes.byref(module), source)
            except CudaError as error:
                failure = error
                continue
            return module
        raise failure

    def _call(self, name: str, *arguments: object) -> None:
        code: int = getattr(self._cuda, name)(*arguments)
        if code:
            raise CudaError(name, code)
