"""Attacks on both sandboxes: each ends as it must, the calls after it are right, and nothing of it is left (fixture `marked`)."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from engcmp_resources.containers import remove_orphans
from engcmp_resources.sandbox.finding import LocalSandbox
from engcmp_resources.sandbox.records import MIB, Limits

CHECKOUT = Path(__file__).resolve().parent.parent.parent
LIMITS = Limits(memory_bytes=256 * MIB, processes=48, call_s=4, total_s=60, tmp_bytes=8 * MIB, shm_bytes=4 * MIB)
TELL = """
import json, os, sys
WORD = sys.stdin.read()
def tell(value):
    os.write(int(sys.argv[1]), json.dumps(value).encode())
"""
# Every attack is called twice: with the word "attack", and then with "after", which must find a sandbox that works.
AFTER = """
if WORD == "after":
    tell({"processes": len([name for name in os.listdir("/proc") if name.isdigit()])})
    sys.exit(0)
"""


def attack(sandbox: LocalSandbox, marked: Any, text: str, limits: Limits = LIMITS) -> tuple[Any, int, str | None]:
    """What the attack told (None for nothing), its exit, its cause. The call after it is checked here."""
    ran = sandbox.run(marked.program(TELL + AFTER + text), [b"attack", b"after"], limits)
    assert ran.ending == "complete", ran
    first, second = ran.calls
    assert json.loads(second.output) == {"processes": 2}  # the supervisor and the call: nothing was left
    assert (second.exit, second.cause) == (0, None)
    return json.loads(first.output) if first.output and first.cause is None else None, first.exit, first.cause


def tried(lines: str) -> str:
    """A program that tells for each name what trying its expression gave: the error's name, or the value's text."""
    return f"""
import ctypes, pathlib, socket, signal, time, mmap
def attempt(text):
    try:
        return str(eval(text))[:80]
    except BaseException as error:
        return type(error).__name__
tell({{line: attempt(line) for line in {[line.strip() for line in lines.strip().splitlines()]!r}}})
"""


# ---------------------------------------------------------------- the network and the files of this machine


def test_no_address_can_be_reached_not_even_a_listener_of_this_machine(sandbox: LocalSandbox, marked: Any) -> None:
    with socket.socket() as listener:
        listener.bind(("0.0.0.0", 0))  # noqa: S104 - the attack must be able to reach it, were there a network
        listener.listen()
        listener.setblocking(False)
        port = listener.getsockname()[1]
        told, _, _ = attack(
            sandbox,
            marked,
            tried(f"""
                socket.create_connection(("127.0.0.1", {port}), timeout=2)
                socket.create_connection(("192.0.2.1", 80), timeout=2)
                socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("192.0.2.1", 53))
                socket.getaddrinfo("example.org", 80)
                socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)
                [name for _, name in socket.if_nameindex()]
            """),
        )
        errors = list(told.values())
        assert errors[0] == "ConnectionRefusedError"
        assert errors[1:3] == ["OSError", "OSError"]  # the network is unreachable
        assert errors[3:] == ["gaierror", "PermissionError", "['lo']"]
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_the_store_cannot_be_read_by_path_by_link_or_through_proc(
    sandbox: LocalSandbox, marked: Any, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("the store")
    secret.chmod(0o644)
    for folder in (tmp_path, *tmp_path.parents):
        if os.geteuid() == 0 and folder.is_relative_to("/tmp/pytest-of-root"):
            folder.chmod(0o755)
    told, _, _ = attack(
        sandbox,
        marked,
        tried(f"""
            open({str(secret)!r}).read()
            os.symlink({str(secret)!r}, "/tmp/" + MARK) or open("/tmp/" + MARK).read()
            os.link({str(secret)!r}, "/tmp/hard")
            open("/proc/1/root" + {str(secret)!r}).read()
            open("/proc/self/root" + {str(secret)!r}).read()
            os.listdir({str(CHECKOUT)!r})
            os.listdir("/proc/1/cwd/..")
            open("/proc/1/environ").read()
            open("/proc/1/mem", "rb")
            os.listdir("/proc/1/fd")
            open("/etc/shadow").read()
            open("/dev/vda", "rb")
            open("/dev/mem", "rb")
        """),
    )
    missing = {"FileNotFoundError", "PermissionError", "NotADirectoryError"}
    assert {line: said for line, said in told.items() if said not in missing} == {}


def test_what_can_be_seen_holds_no_folder_of_a_user(sandbox: LocalSandbox, marked: Any) -> None:
    told, _, _ = attack(
        sandbox,
        marked,
        "tell({'root': sorted(os.listdir('/')), 'tmp': os.listdir('/tmp'), 'names': sorted(os.environ),"
        " 'homes': [os.path.lexists(p) for p in ('/home', '/var', '/srv', '/run')]})",
    )
    assert set(told["root"]) <= {
        *("bin", "dev", "lib", "lib64", "proc", "sbin", "tmp", "usr"),
        *(".dockerenv", "etc", "root", "sys", "opt"),  # of Docker; /root or /opt only as the way to the Python
    }
    assert told["tmp"] == []
    assert set(told["names"]) <= {"HOME", "LANG", "TMPDIR", "LC_CTYPE"}
    assert not any(told["homes"])


def test_nothing_but_the_small_folders_can_be_written(sandbox: LocalSandbox, marked: Any) -> None:
    told, _, _ = attack(
        sandbox,
        marked,
        tried("""
            open("/usr/x", "w")
            open("/x", "w")
            open("/dev/x", "w")
            open("/proc/sys/kernel/core_pattern", "w")
            open("/proc/sysrq-trigger", "w")
            open("/proc/1/oom_score_adj", "w")
            pathlib.Path("/proc/self/uid_map").write_text("0 0 1")
            os.mkdir("/sys/fs/cgroup/x")
            open("/tmp/x", "w").write("x")
            open("/dev/shm/x", "w").write("x")
        """),
    )
    assert list(told.values())[-2:] == ["1", "1"]
    assert all(said.endswith("Error") for said in list(told.values())[:-2]), told


# ---------------------------------------------------------------- privileges


def test_no_privilege_can_be_had(sandbox: LocalSandbox, marked: Any) -> None:
    told, _, _ = attack(
        sandbox,
        marked,
        tried("""
            os.getuid()
            os.setuid(0)
            os.setgroups([0])
            os.chroot("/tmp")
            ctypes.CDLL(None).unshare(0x10000000)
            ctypes.CDLL(None).mount(b"none", b"/tmp", b"tmpfs", 0, None)
            ctypes.CDLL(None).ptrace(16, 1, 0, 0)
            os.nice(-5)
            [line.split()[1] for line in open("/proc/self/status") if line.startswith("CapEff")]
            [line.split()[1] for line in open("/proc/self/status") if line.startswith("NoNewPrivs")]
            [line.split()[1] for line in open("/proc/self/status") if line.startswith("Groups:") and line.split()[1:]]
        """),
    )
    user, *denied, capabilities, no_new, groups = told.values()
    assert user == "65534"
    assert set(denied) <= {"PermissionError", "OSError", "-1"}  # the second: a user that this namespace does not have
    assert (capabilities, no_new) == ("['0000000000000000']", "['1']")
    assert "'0'" not in groups


def test_the_supervisor_can_neither_be_ended_nor_stopped(sandbox: LocalSandbox, marked: Any) -> None:
    text = """
import signal
for number in range(1, 32):
    try:
        os.kill(1, number)
    except OSError:
        pass
tell("sent")
"""
    assert attack(sandbox, marked, text) == ("sent", 0, None)


def test_the_verdict_channel_of_the_supervisor_cannot_be_opened(sandbox: LocalSandbox, marked: Any) -> None:
    told, _, _ = attack(
        sandbox,
        marked,
        tried("""
            open("/proc/1/fd/0", "w")
            open("/proc/1/fd/1", "w")
            open("/dev/stdout", "w").write("forged" + chr(10))
            open("/dev/tty", "w")
            [name for name in os.listdir("/proc/self/fd") if int(name) > 2 and name != sys.argv[1]][1:]
        """),
    )
    assert list(told.values()) == ["PermissionError", "PermissionError", "7", told['open("/dev/tty", "w")'], "[]"]
    assert told['open("/dev/tty", "w")'].endswith("Error")


# ---------------------------------------------------------------- what there is only so much of


def test_a_fork_bomb_ends_with_its_time(sandbox: LocalSandbox, marked: Any) -> None:
    bomb = "while True:\n    try:\n        os.fork()\n    except OSError:\n        pass\n"
    assert attack(sandbox, marked, bomb) == (None, -signal.SIGKILL, "time")


def test_the_number_of_processes_is_bounded(sandbox: LocalSandbox, marked: Any) -> None:
    text = """
import time
made = 0
try:
    while made < 500:
        if os.fork() == 0:
            time.sleep(60)
        made += 1
except OSError:
    tell(made)
"""
    made, _, _ = attack(sandbox, marked, text)
    assert 20 < made < LIMITS.processes


@pytest.mark.parametrize(
    ("place", "most"), [("/dev/shm/x", LIMITS.shm_bytes), ("/tmp/x", LIMITS.tmp_bytes)], ids=["shm", "tmp"]
)
def test_memory_cannot_be_had_through_files(sandbox: LocalSandbox, marked: Any, place: str, most: int) -> None:
    text = f"""
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
done = 0
try:
    for number in range(100):
        with open({place!r} + str(number), "wb", buffering=0) as file:
            for _ in range(4):
                done += file.write(bytes(1 << 20))
except OSError as error:
    tell([done, error.errno])
"""
    told, _, _ = attack(sandbox, marked, text)
    done, number = told
    assert most // 2 <= done <= most
    assert number in (27, 28)  # too large, no space


@pytest.mark.parametrize("where", ["heap", "memfd", "children"])
def test_total_memory_is_bounded(sandbox: LocalSandbox, marked: Any, where: str) -> None:
    one = LIMITS.memory_bytes // 2
    text = {
        "heap": f"held = []\nfor _ in range(32):\n    held.append(b'x' * {one})\ntell('had it')",
        "memfd": f"""
import resource
held = [os.memfd_create(str(n)) for n in range(64)]
for number in held:
    for _ in range({LIMITS.tmp_bytes} // (1 << 20)):
        os.write(number, bytes(1 << 20))
tell('had it')
""",
        "children": f"""
import time
reading, writing = os.pipe()
for _ in range(6):
    if os.fork() == 0:
        held = b'x' * {one}
        os.write(writing, b'x')
        time.sleep(60)
os.close(writing)
had = b''
while len(had) < 6:
    had += os.read(reading, 1) or os._exit(3)
tell('had it')
""",
    }[where]
    told, code, cause = attack(sandbox, marked, text)
    assert told is None
    assert (code, cause) in {(-signal.SIGKILL, None), (3, None), (-signal.SIGKILL, "time")}


def test_ten_gigabytes_of_output_neither_arrive_nor_are_kept(sandbox: LocalSandbox, marked: Any) -> None:
    flood = "block = b'x' * (1 << 20)\nfor _ in range(10_240):\n    os.write({number}, block)\n"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    _, code, cause = attack(sandbox, marked, flood.format(number="int(sys.argv[1])"))
    assert (code, cause) == (-signal.SIGKILL, "output")
    for number in (1, 2):
        told, code, cause = attack(sandbox, marked, flood.format(number=number) + "tell('written')")
        assert (told, code, cause) == ("written", 0, None)  # nobody reads those
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024  # KiB


def test_sleeping_forever_ends_with_the_time_of_the_call(sandbox: LocalSandbox, marked: Any) -> None:
    text = "import signal, time\nfor n in (1, 2, 15):\n    signal.signal(n, signal.SIG_IGN)\nwhile True:\n    time.sleep(99)\n"
    assert attack(sandbox, marked, text) == (None, -signal.SIGKILL, "time")


def test_many_sleepers_end_with_the_time_of_the_run(sandbox: LocalSandbox, marked: Any) -> None:
    limits = Limits(call_s=2, total_s=5)
    ran = sandbox.run(marked.program("import time\ntime.sleep(99)\n"), [b""] * 50, limits)
    assert ran.ending == "time"
    assert {call.cause for call in ran.calls} == {"time"}
    assert 2 <= len(ran.calls) <= 3


def test_detached_grandchildren_end_with_their_call(sandbox: LocalSandbox, marked: Any) -> None:
    text = """
import time
for _ in range(5):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            while True:
                time.sleep(99)
        os._exit(0)
tell("gone")
"""
    assert attack(sandbox, marked, text) == ("gone", 0, None)  # nobody waits for them, though they hold the descriptor


def test_a_call_that_reads_nothing_and_closes_all_is_no_output(sandbox: LocalSandbox, marked: Any) -> None:
    assert attack(sandbox, marked, "os.closerange(0, 256)\nos._exit(7)") == (None, 7, None)


# ---------------------------------------------------------------- the caller's own end

_CALLER = """
import sys
from engcmp_resources.sandbox.bubblewrap import BubblewrapSandbox
from engcmp_resources.sandbox.docker_sandbox import DockerSandbox
from engcmp_resources.sandbox.records import Limits
made = {"docker": DockerSandbox, "bubblewrap": BubblewrapSandbox}[sys.argv[1]]()
made.run(sys.stdin.read(), [b""], Limits(call_s=100, total_s=100))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["killed", "ctrl-c"])
def test_a_caller_that_ends_leaves_nothing(sandbox: LocalSandbox, marked: Any, number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _CALLER, sandbox.name],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=CHECKOUT,
        text=True,
    ) as caller:
        assert caller.stdin is not None
        caller.stdin.write(marked.program("import time\ntime.sleep(99)\n"))
        caller.stdin.close()
        until = time.monotonic() + 60
        while not marked.left()["processes"] and time.monotonic() < until:
            time.sleep(0.05)
        assert marked.left()["processes"]
        caller.send_signal(number)
        caller.wait(60)
    if number == signal.SIGKILL and sandbox.name == "docker":
        assert any("removed a container left by a dead run" in said for said in remove_orphans())
    assert marked.wait_until_nothing_is_left() == {}
