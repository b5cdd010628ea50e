"""Images by digest: one that came from a registry, and one that says itself whether it is healthy."""

from __future__ import annotations

import io
import json
import sys
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import docker
import pytest
from launching import SimulatorLauncher

from engcmp_resources import host_image
from engcmp_resources.canonical import sha256_bytes
from engcmp_resources.containers import DockerHost
from engcmp_resources.errors import EngcmpError

SECOND_NS = 10**9
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def blobs(**config: Any) -> tuple[bytes, bytes, bytes]:
    """Layer, configuration and manifest of an image without files; `config` is what it says to Docker."""
    layer = bytes(1024)
    facts = {
        "architecture": "amd64", "os": "linux", "config": config,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{sha256_bytes(layer)}"]},
    }  # fmt: skip
    made = json.dumps(facts).encode()
    parts = {"config": ("config.v1+json", made), "layer": ("layer.v1.tar", layer)}
    described = {
        name: {
            "mediaType": f"application/vnd.oci.image.{kind}",
            "digest": f"sha256:{sha256_bytes(data)}",
            "size": len(data),
        }
        for name, (kind, data) in parts.items()
    }
    manifest = {
        "schemaVersion": 2, "mediaType": MANIFEST, "config": described["config"], "layers": [described["layer"]],
    }  # fmt: skip
    return layer, made, json.dumps(manifest).encode()


def image_tar(name: str, **config: Any) -> tuple[str, bytes]:
    """The ID of such an image, and its bytes as `docker save` writes them."""
    layer, made, _ = blobs(**config)
    members = {"layer.tar": layer, "config.json": made}
    members["manifest.json"] = json.dumps(
        [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    ).encode()
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for path, data in members.items():
            member = tarfile.TarInfo(path)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return f"sha256:{sha256_bytes(made)}", out.getvalue()


@contextmanager
def registry(*contents: bytes) -> Iterator[str]:
    """A registry of images on this machine; gives its address."""
    held = {f"sha256:{sha256_bytes(data)}": data for data in contents}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            last = self.path.rstrip("/").rpartition("/")[2]
            data = b"{}" if last == "v2" else held.get(last)
            self.send_response(404 if data is None else 200)
            self.send_header("Content-Type", MANIFEST if "/manifests/" in self.path else "application/octet-stream")
            self.send_header("Content-Length", str(len(data or b"")))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data or b"")

        do_HEAD = do_GET

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def test_an_image_of_a_registry_is_found_by_the_digest_that_the_registry_gave_it(host: DockerHost) -> None:
    layer, config, manifest = blobs(Labels={"io.engine.version": "0.9.2"})
    digest = f"sha256:{sha256_bytes(manifest)}"
    client = docker.from_env()
    with registry(layer, config, manifest) as address:
        name = f"{address}/somebody/engine"
        with pytest.raises(EngcmpError, match="is not present"):  # nothing is pulled by itself
            host.require_image(f"{name}@{digest}")
        client.images.pull(f"{name}@{digest}")
    try:
        found = host.require_image(f"{name}@{digest}")
        assert (found.digest, dict(found.labels)) == (digest, {"io.engine.version": "0.9.2"})
        assert host.require_image(f"{name}:v0.9.2@{digest}") == found
        assert host.require_image(digest).id == found.id  # without its name too
        assert host.require_image(found.id).id == found.id
        client.images.get(found.id).tag(name, "v0.9.2")
        other = "sha256:" + "2" * 64
        with pytest.raises(EngcmpError, match=f"is here as {found.id}, {digest}, the launch names {other}"):
            host.require_image(f"{name}:v0.9.2@{other}")
    finally:
        client.images.remove(host.require_image(digest).id, force=True)


@pytest.fixture
def healthy(simulator: SimulatorLauncher, host: DockerHost) -> Iterator[SimulatorLauncher]:
    """The simulator in an image of its own, whose health is whether a file is there."""
    check = {"Test": ["CMD", "/usr/bin/test", "-e", f"{simulator.folder}/well"], "Interval": SECOND_NS // 2}
    image, tar = image_tar("engcmp-test/healthy:1", Healthcheck=check)
    host.load_image(tar)
    system = [mount.source for mount in host_image.mounts()]
    more = [{"path": str(path), "target": str(path)} for path in system]
    simulator.settings = simulator.settings | {"mounts": [*simulator.settings["mounts"], *more], "ready_health": True}
    simulator.identities["image"] = image
    yield simulator
    docker.from_env().images.remove(image, force=True)


def test_the_health_status_of_an_image_is_waited_for(healthy: SimulatorLauncher) -> None:
    program = (
        "import pathlib,runpy,threading\n"
        f"threading.Timer(1.5, pathlib.Path({str(healthy.folder / 'well')!r}).touch).start()\n"
        "runpy.run_module('tests.simulator', run_name='__main__')"
    )
    mounts = [dict(mount, read_only=mount["path"] != str(healthy.folder)) for mount in healthy.settings["mounts"]]
    with healthy(
        image=healthy.identities["image"], entrypoint=[sys.executable, "-c", program], mounts=mounts
    ) as running:
        assert running.facts["ready"]["first_token_ms"] > 1500
        assert running.facts["image"]["id"] == healthy.identities["image"]
        state = healthy.containers()[0].attrs
        assert state["State"]["Health"]["Status"] == "healthy"
        assert not state["HostConfig"]["ReadonlyRootfs"]  # an image that holds its programs is run as it is


def test_an_image_that_says_it_is_not_well_is_no_start(healthy: SimulatorLauncher, tmp_path: Path) -> None:
    with (
        pytest.raises(EngcmpError, match=r"not ready within its deadline: its health status is '(starting|unhealthy)'"),
        healthy(image=healthy.identities["image"], start_deadline_s=3),
    ):
        pytest.fail("it was taken")
    healthy.assert_nothing_is_left()
