"""The image made from nothing: one ID on every machine."""

from __future__ import annotations

import hashlib
import io
import json
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from engcmp_resources import host_image
from engcmp_resources.errors import EngcmpError


def members() -> dict[str, bytes]:
    found = {}
    with tarfile.open(fileobj=io.BytesIO(host_image.image_tar())) as tar:
        for member in tar.getmembers():
            file = tar.extractfile(member)
            assert file is not None
            found[member.name] = file.read()
            assert (member.mtime, member.uid, member.gid) == (0, 0, 0)
    return found


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def test_the_stated_ids_are_those_of_the_bytes() -> None:
    found = members()
    (entry,) = json.loads(found["manifest.json"])
    assert digest(found[entry["Config"]]) == host_image.IMAGE_ID
    (described,) = json.loads(found["index.json"])["manifests"]
    assert described["digest"] == host_image.MANIFEST_DIGEST
    assert host_image.is_host_image(host_image.IMAGE_ID)
    assert host_image.is_host_image(host_image.MANIFEST_DIGEST)
    assert not host_image.is_host_image(digest(b""))


def test_every_digest_and_size_is_of_a_blob_that_is_there() -> None:
    found = members()
    blobs = {name: data for name, data in found.items() if name.startswith("blobs/sha256/")}
    assert all(name == f"blobs/sha256/{hashlib.sha256(data).hexdigest()}" for name, data in blobs.items())
    manifest: dict[str, Any] = json.loads(found[f"blobs/sha256/{host_image.MANIFEST_DIGEST[7:]}"])
    for described in [manifest["config"], *manifest["layers"]]:
        assert len(found[f"blobs/sha256/{described['digest'][7:]}"]) == described["size"]
    config = json.loads(found[f"blobs/sha256/{manifest['config']['digest'][7:]}"])
    assert config["rootfs"]["diff_ids"] == [described["digest"] for described in manifest["layers"]]


def test_the_layer_holds_no_file() -> None:
    found = members()
    (layer,) = json.loads(found["manifest.json"])[0]["Layers"]
    with tarfile.open(fileobj=io.BytesIO(found[layer])) as tar:
        assert tar.getmembers() == []


def test_the_bytes_are_the_same_each_time() -> None:
    assert host_image.image_tar() == host_image.image_tar()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere containers are not of this host's system")
def test_the_mounts_hold_this_python_and_are_read_only() -> None:
    made = host_image.mounts()
    assert all(mount.read_only and mount.target == str(mount.source) for mount in made)
    assert any(Path(host_image.python()).is_relative_to(mount.target) for mount in made)
    assert any(Path("/usr/lib").is_relative_to(mount.target) for mount in made)


def test_where_containers_are_of_another_system_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(EngcmpError, match="containers on darwin are Linux; use an engine of kind llamacpp"):
        host_image.mounts()
