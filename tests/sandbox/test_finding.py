"""A sandbox is trusted only when it was proved; what does not hold is named."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engcmp_resources.sandbox.bubblewrap import BubblewrapSandbox
from engcmp_resources.sandbox.docker_sandbox import DockerSandbox
from engcmp_resources.sandbox.finding import LocalSandbox, find_sandbox, prove
from engcmp_resources.sandbox.records import MIB, BrokenSandboxError, Limits, NoSandboxError, Ran

CHECKOUT = Path(__file__).resolve().parent.parent.parent


def test_both_kinds_are_proved(sandbox: LocalSandbox, tmp_path: Path) -> None:
    prove(sandbox, [CHECKOUT, tmp_path])
    assert find_sandbox([CHECKOUT, tmp_path], [lambda: sandbox]) is sandbox
    facts = sandbox.facts()
    assert facts["sandbox"] == sandbox.name
    assert not any("/" in str(value) for value in facts.values())


@pytest.mark.parametrize("sandbox", ["docker"], indirect=True)
def test_a_container_has_every_limit_and_no_log(sandbox: LocalSandbox) -> None:
    assert isinstance(sandbox, DockerSandbox)
    with sandbox._attached(Limits()) as (made, _):
        made.reload()
        settings = made.attrs["HostConfig"]
        assert made.attrs["Config"]["User"] == "65534:65534"
        assert made.attrs["Config"]["Env"] in (None, [])
    assert {name: settings[name] for name in EVERY_LIMIT} == EVERY_LIMIT
    assert {limit["Name"]: limit["Hard"] for limit in settings["Ulimits"]} == {
        "core": 0,
        "nofile": 256,
        "fsize": 64 * MIB,
    }
    assert all(mount["ReadOnly"] for mount in settings["Mounts"])
    assert not settings["Privileged"] and not settings["CapAdd"] and not settings["Binds"]


EVERY_LIMIT = {
    "NetworkMode": "none",
    "IpcMode": "private",
    "NanoCpus": 2 * 10**9,
    "Memory": 2048 * MIB,
    "MemorySwap": 2048 * MIB,
    "PidsLimit": 256,
    "ShmSize": 16 * MIB,
    "ReadonlyRootfs": True,
    "CapDrop": ["ALL"],
    "SecurityOpt": ["no-new-privileges"],
    "Tmpfs": {"/tmp": f"size={64 * MIB},mode=1777,nosuid,nodev"},
    "LogConfig": {"Type": "none", "Config": {}},
    "RestartPolicy": {"Name": "no", "MaximumRetryCount": 0},
}


def test_a_folder_that_the_sandbox_would_show_is_refused(sandbox: LocalSandbox) -> None:
    with pytest.raises(NoSandboxError, match=f"{sandbox.name} shows .*/usr, and /usr/share lies in it; move it out"):
        prove(sandbox, [Path("/usr/share")])


def bubblewrap(patch: pytest.MonkeyPatch, without: Sequence[str] = (), more: Sequence[str] = ()) -> LocalSandbox:
    """A bubblewrap sandbox that lacks some of its arguments, or has others too."""
    whole = BubblewrapSandbox._arguments

    def changed(self: BubblewrapSandbox, limits: Limits) -> list[str]:
        words = [word for word in whole(self, limits) if word not in without]
        at = words.index("--proc")
        return [*words[:at], *more, *words[at:]]

    patch.setattr(BubblewrapSandbox, "_arguments", changed)
    return BubblewrapSandbox()


@pytest.mark.parametrize("sandbox", ["bubblewrap"], indirect=True)
class TestWhatDoesNotHoldIsNamed:
    def test_a_network(self, sandbox: LocalSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
        if [name for _, name in socket.if_nameindex()] == ["lo"]:
            pytest.skip("this machine has no network to show")
        with pytest.raises(NoSandboxError, match="bubblewrap does not hold: there is a network"):
            prove(bubblewrap(monkeypatch, ["--unshare-net"]), [])

    def test_a_folder_that_is_seen(self, sandbox: LocalSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(NoSandboxError, match=r"folders can be seen: \['/etc'\]"):
            prove(bubblewrap(monkeypatch, more=["--ro-bind", "/etc", "/etc"]), [Path("/etc")])

    def test_a_root_that_can_be_written(self, sandbox: LocalSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(NoSandboxError, match="files can be written"):
            prove(bubblewrap(monkeypatch, more=["--tmpfs", "/etc"]), [])


@pytest.mark.parametrize(
    ("wider", "said"),
    [
        ({"processes": 4096}, "the number of processes has no limit"),
        ({"memory_bytes": 4096 * MIB}, "total memory has no limit"),
        ({"shm_bytes": 64 * MIB}, "shared memory has no limit"),
    ],
    ids=["processes", "memory", "shm"],
)
def test_a_limit_that_is_not_kept_is_named(
    sandbox: LocalSandbox, monkeypatch: pytest.MonkeyPatch, wider: dict[str, Any], said: str
) -> None:
    run = sandbox.run

    def loose(program: str, inputs: Sequence[bytes], limits: Limits) -> Ran:
        return run(program, inputs, replace(limits, **wider))

    monkeypatch.setattr(sandbox, "run", loose)
    with pytest.raises(NoSandboxError, match=f"{sandbox.name} does not hold: {said}"):
        prove(sandbox, [])


def test_without_docker_and_bubblewrap_there_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoSandboxError, match=r"no sandbox: no Docker engine answers.*bubblewrap is not installed"):
        find_sandbox([])


def test_an_old_bubblewrap_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old = tmp_path / "bwrap"
    old.write_text("#!/bin/sh\necho bubblewrap 0.4.1\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoSandboxError, match=r"bubblewrap is too old: bubblewrap 0\.4\.1"):
        BubblewrapSandbox()


def test_the_first_kind_that_is_proved_is_taken(sandbox: LocalSandbox) -> None:
    def none() -> LocalSandbox:
        raise NoSandboxError("not here")

    assert find_sandbox([CHECKOUT], [none, lambda: sandbox]) is sandbox
    with pytest.raises(NoSandboxError, match="no sandbox: not here"):
        find_sandbox([CHECKOUT], [none])


# ---------------------------------------------------------------- sandboxes that break


def test_a_sandbox_without_its_python_is_broken_not_a_result(
    sandbox: LocalSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    if isinstance(sandbox, BubblewrapSandbox):
        monkeypatch.setattr(sandbox, "_python", (Path("/usr/bin/no-python"), Path("/usr")))
    else:
        monkeypatch.setattr("engcmp_resources.host_image.python", lambda: "/usr/bin/no-python")
    with pytest.raises(BrokenSandboxError, match="no-python"):
        sandbox.run("", [b""], Limits(total_s=5))


@pytest.mark.parametrize("sandbox", ["docker"], indirect=True)
def test_an_image_that_went_away_is_broken_not_a_result(sandbox: LocalSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(sandbox, DockerSandbox)
    monkeypatch.setattr(sandbox, "_image", f"sha256:{'1' * 64}")
    with pytest.raises(BrokenSandboxError, match="the Docker engine says: No such image"):
        sandbox.run("", [b""], Limits(total_s=5))


@pytest.mark.parametrize("sandbox", ["bubblewrap"], indirect=True)
def test_a_bubblewrap_that_may_not_make_namespaces_is_broken_not_a_result(
    sandbox: LocalSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "_bwrap", shutil.which("false"))
    with pytest.raises(BrokenSandboxError, match="the sandbox did not start: it said nothing"):
        sandbox.run("", [b""], Limits(total_s=5))
    with pytest.raises(NoSandboxError, match="no sandbox: the sandbox did not start"):
        find_sandbox([], [lambda: sandbox])
