"""A program that holds an OpenGL context of a GPU through EGL, without a display: NVML lists it among the graphics processes.

Prints "ready" when it has the context, and ends when its input closes. It needs libEGL and libOpenGL (GLVND).
"""

from __future__ import annotations

import ctypes
import sys

_PLATFORM_DEVICE, _OPENGL_API, _VENDOR = 0x313F, 0x30A2, 0x3053
_POINTER, _INT = ctypes.c_void_p, ctypes.c_int


def main() -> None:
    egl = ctypes.CDLL("libEGL.so.1")
    egl.eglGetProcAddress.restype = _POINTER
    egl.eglInitialize.argtypes = [_POINTER] * 3
    egl.eglQueryString.argtypes, egl.eglQueryString.restype = [_POINTER, _INT], ctypes.c_char_p
    egl.eglCreateContext.argtypes, egl.eglCreateContext.restype = [_POINTER] * 4, _POINTER
    egl.eglMakeCurrent.argtypes = [_POINTER] * 4
    query = ctypes.CFUNCTYPE(_INT, _INT, _POINTER, _POINTER)(egl.eglGetProcAddress(b"eglQueryDevicesEXT"))
    display_of = ctypes.CFUNCTYPE(_POINTER, _INT, _POINTER, _POINTER)(
        egl.eglGetProcAddress(b"eglGetPlatformDisplayEXT")
    )

    devices, count = (_POINTER * 16)(), _INT()
    query(16, devices, ctypes.byref(count))
    for device in devices[: count.value]:
        display = display_of(_PLATFORM_DEVICE, device, None)
        if egl.eglInitialize(display, None, None) and b"NVIDIA" in egl.eglQueryString(display, _VENDOR):
            egl.eglBindAPI(_OPENGL_API)
            context = egl.eglCreateContext(display, None, None, None)
            if context and egl.eglMakeCurrent(display, None, None, context):
                ctypes.CDLL("libOpenGL.so.0").glFinish()
                print("ready", flush=True)
                sys.stdin.read()
                return
    raise SystemExit("no NVIDIA device gives an OpenGL context")


if __name__ == "__main__":
    main()
