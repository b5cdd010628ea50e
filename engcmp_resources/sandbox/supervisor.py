"""The first process inside a sandbox: starts the untrusted program once for each input, and reports over a channel of its own.

It is sent into the sandbox as text and imports nothing of this project. It is process 1 there, so that no signal from inside reaches it
and its end is the end of every other process. It never loads untrusted code. Its standard input and output are the private channel: the
program gets neither, and cannot open them through /proc, because this process is not dumpable. Every line that it writes begins with a
nonce that only it and the caller know.
"""

import base64
import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time

PR_SET_DUMPABLE = 4
NULL = "/dev/null"
HEADER_BYTES = 8
BLOCK = 1 << 16


def main() -> None:
    """Read the request, say that the supervisor is ready, run each call, say that all is done."""
    if os.getpid() != 1 or os.getuid() == 0 or ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        sys.exit("the supervisor must be process 1, not root, and not dumpable")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = sys.stdin.buffer
    request = json.loads(channel.read(int.from_bytes(channel.read(HEADER_BYTES), "big")))
    nonce, limits = request["nonce"], request["limits"]
    until = time.monotonic() + limits["total_s"]
    say(nonce, {"ready": sys.version.split()[0]})
    for text in request["inputs"]:
        left = min(limits["call_s"], until - time.monotonic())
        if left <= 0:
            say(nonce, {"end": "time"})
            return
        output, code, cause = one_call(request["program"], base64.b64decode(text), left, limits)
        say(nonce, {"output": base64.b64encode(output).decode(), "exit": code, "cause": cause})
    say(nonce, {"end": "complete"})


def say(nonce: str, word: dict[str, object]) -> None:
    """One line on the private channel."""
    sys.stdout.write(f"{nonce} {json.dumps(word)}\n")
    sys.stdout.flush()


def one_call(program: str, given: bytes, seconds: float, limits: dict[str, float]) -> tuple[bytes, int, str | None]:
    """What the program wrote, its exit code, and what it was ended for; on return no process but this one is left."""
    until = time.monotonic() + seconds
    reading, writing = os.pipe()
    source = os.memfd_create("input")
    os.write(source, given)
    os.lseek(source, 0, os.SEEK_SET)
    command = [sys.executable, "-I", "-S", "-B", "-c", program, str(writing)]
    with open(NULL, "r+b") as null:  # noqa: PTH123 - alone in here, without pathlib's cost
        process = subprocess.Popen(
            command,
            stdin=source,
            stdout=null,
            stderr=null,
            pass_fds=(writing,),
            env={"LANG": "C.UTF-8", "HOME": "/tmp", "TMPDIR": "/tmp"},  # noqa: S108 - inside the sandbox
            cwd="/tmp",  # noqa: S108 - inside the sandbox
            start_new_session=True,
            preexec_fn=lambda: bound(limits),  # noqa: PLW1509 - one thread only
        )
    os.close(writing)
    os.close(source)
    output, cause = listen(process.pid, reading, until, int(limits["output_bytes"]))
    code = clear(process.pid)
    os.close(reading)  # not earlier: a program that writes too much would end of that, not by our hand
    return output, code, cause


def bound(limits: dict[str, float]) -> None:
    """Limits of each process of the program, and that it is the first to go when memory runs out."""
    files, most = int(limits["open_files"]), int(limits["tmp_bytes"])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    # Its /proc files are the superuser's while it is not dumpable. No untrusted process lives at this moment, and exec follows.
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
    with open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123 - as above
        file.write("1000")


def listen(pid: int, reading: int, until: float, most: int) -> tuple[bytes, str | None]:
    """The output until the program's own process ends: one of its children may hold the descriptor open for ever."""
    output = bytearray()
    os.set_blocking(reading, False)
    ended = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    poll.register(ended, select.POLLIN)
    try:
        while (left := until - time.monotonic()) > 0:
            ready = {number for number, _ in poll.poll(left * 1000)}
            if reading in ready and not take(reading, output, most):
                poll.unregister(reading)
            if len(output) > most:
                return bytes(output[:most]), "output"
            if ended in ready:
                while len(output) <= most and take(reading, output, most):
                    pass
                return bytes(output[:most]), "output" if len(output) > most else None
        return bytes(output), "time"
    finally:
        os.close(ended)


def take(reading: int, output: bytearray, most: int) -> bool:
    """Whether there may be more to read after this block."""
    try:
        block = os.read(reading, min(BLOCK, most + 1))
    except BlockingIOError:
        return False
    output += block
    return bool(block)


def clear(pid: int) -> int:
    """Kill every process but this one, however deep it hides, and give the exit code of `pid`."""
    code = 0
    while True:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        try:
            gone, status = os.waitpid(-1, 0)
        except ChildProcessError:
            return code
        if gone == pid:
            code = os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    main()
