"""What the Docker engine understands of a request, read back from containers that are made and never started."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engcmp_resources import host_image
from engcmp_resources.containers import ContainerRequest, DockerHost, Mount, surely, tail_of
from engcmp_resources.errors import EngcmpError
from engcmp_resources.secrecy import hidden_secret

LABELS = {"ENGCMP_ARM": "a", "ENGCMP_LOCK": "/a.lock", "ENGCMP_RUN": "r"}
Made = Callable[..., dict[str, Any]]


@pytest.fixture
def made(host: DockerHost) -> Iterator[Made]:
    """The facts of a container that is created from a request."""
    import docker

    client, left = docker.from_env(), []

    def make(**changed: Any) -> dict[str, Any]:
        request = ContainerRequest(image=host_image.ensure(host).id, command=["/bin/true"], labels=LABELS, **changed)
        container = client.containers.create(**host._arguments(request, f"engcmp-test-{len(left)}"))
        left.append(container)
        container.reload()
        facts: dict[str, Any] = container.attrs
        return facts

    yield make
    for container in left:
        found = host.find(container.id)
        if found is not None:
            found.remove()


def test_a_port_is_published_on_this_machine_s_loopback_only(made: Made) -> None:
    settings = made(publish={8000: 18000, 9000: None})["HostConfig"]
    assert settings["NetworkMode"] == "bridge"
    assert settings["PortBindings"] == {
        "8000/tcp": [{"HostIp": "127.0.0.1", "HostPort": "18000"}],
        "9000/tcp": [{"HostIp": "127.0.0.1", "HostPort": ""}],
    }


def test_on_the_host_s_network_nothing_is_published(made: Made) -> None:
    settings = made(network="host", publish={8000: 18000})["HostConfig"]
    assert settings["NetworkMode"] == "host"
    assert not settings["PortBindings"]


def test_gpus_memory_devices_and_limits_are_as_asked(made: Made) -> None:
    settings = made(
        gpus=(0, 2),
        shm_bytes=1 << 30,
        ipc="host",
        ulimits={"memlock": -1, "core": 0},
        devices=["/dev/null:/dev/null:r"],
    )["HostConfig"]
    (asked,) = settings["DeviceRequests"]
    assert (asked["DeviceIDs"], asked["Capabilities"]) == (["0", "2"], [["gpu"]])
    assert settings["ShmSize"] == 1 << 30
    assert settings["IpcMode"] == "host"
    assert {limit["Name"]: limit["Hard"] for limit in settings["Ulimits"]} == {"memlock": -1, "core": 0}
    assert settings["Devices"][0]["PathOnHost"] == "/dev/null"
    assert made(gpus="all")["HostConfig"]["DeviceRequests"][0]["Count"] == -1


def test_without_a_word_nothing_is_given(made: Made) -> None:
    facts = made()
    settings = facts["HostConfig"]
    assert not settings["DeviceRequests"]
    assert not settings["Privileged"]
    assert settings["RestartPolicy"]["Name"] == "no"
    assert not settings["ReadonlyRootfs"]
    assert {name: facts["Config"]["Labels"][name] for name in LABELS} == LABELS
    assert facts["Config"]["Labels"]["ENGCMP_OWNER"]


def test_a_mount_is_read_only_unless_it_is_asked_for(made: Made, tmp_path: Path) -> None:
    mounts = made(mounts=[Mount(tmp_path, "/a"), Mount(tmp_path, "/b", read_only=False)])["HostConfig"]["Mounts"]
    assert {mount["Target"]: mount.get("ReadOnly", False) for mount in mounts} == {"/a": True, "/b": False}


def test_the_user_s_proxy_does_not_get_in(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text('{"proxies": {"default": {"httpProxy": "http://proxy.example:3128"}}}')
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    assert not any("proxy" in pair.lower() for pair in made(environment={"A": "1"})["Config"]["Env"])


def test_a_container_that_is_not_there_is_none_and_its_state_an_error(host: DockerHost, made: Made) -> None:
    container = host.find(made()["Id"])
    assert container is not None
    assert container.state().running is False
    assert container.published(8000) is None
    container.remove()
    container.remove()  # once more is no error
    assert host.find(container.name) is None
    with pytest.raises(EngcmpError, match=f"looking at container {container.name}: it is gone"):
        container.state()


def test_ctrl_c_begins_a_removal_again_and_is_raised_when_it_is_done() -> None:
    left = [KeyboardInterrupt("first"), KeyboardInterrupt("second")]

    def removal() -> None:
        if left:
            raise left.pop(0)

    with pytest.raises(KeyboardInterrupt, match="second"):
        surely(removal)
    assert left == []
    surely(removal)


def test_a_secret_is_shown_by_the_beginning_of_its_hash() -> None:
    assert hidden_secret("abc") == "sha256:ba7816bf8f01"  # of FIPS 180-2's first example


def test_the_tail_of_a_log_is_its_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert tail_of(log) == ""
    log.write_text("".join(f"line {number}\n" for number in range(50_000)))
    assert tail_of(log).splitlines() == [f"line {number}" for number in range(49_960, 50_000)]
