"""A program that holds memory of a GPU through the CUDA driver, and keeps the GPU busy where it is asked to.

    python holder.py BYTES [--load]

Prints "ready" when it holds the memory, and ends when its input closes. Standard library only: it must run wherever a driver is.
"""  # fmt: skip

from __future__ import annotations

import ctypes
import sys
import threading


def main() -> None:
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: object) -> None:
        code = getattr(cuda, name)(*arguments)
        if code != 0:
            raise SystemExit(f"{name}: CUDA error {code}")

    size = int(sys.argv[1])
    device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(size))
    print("ready", flush=True)
    end = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), end.set()), daemon=True).start()
    while not end.is_set():
        if "--load" in sys.argv:
            for value in range(50):
                call("cuMemsetD32_v2", memory, ctypes.c_uint(value), ctypes.c_size_t(size // 4))
            call("cuCtxSynchronize")
        else:
            end.wait()


if __name__ == "__main__":
    main()
