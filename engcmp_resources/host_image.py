"""A container image made from nothing, whose containers run this host's own Python: for machines where no image can be had.

The image holds no file at all. Its bytes are made here and are the same everywhere, so its ID is a constant that a protocol can pin; what
runs in its containers is bound in from the host, read-only.
"""

from __future__ import annotations

import io
import json
import sys
import tarfile
from pathlib import Path

from engcmp_resources.canonical import sha256_bytes
from engcmp_resources.containers import DockerHost, Image, Mount
from engcmp_resources.errors import EngcmpError

NAME = "engcmp/host"
TAG = "1"
# The image's ID as Docker's own store has it: the SHA-256 of its configuration.
IMAGE_ID = "sha256:7579ad916ecbe704b7357dbe1710d3ab35d0e503903f62fbfbb0445e04119d60"
# The same image in a store of containerd, which names images by their manifest.
MANIFEST_DIGEST = "sha256:00f0f0fdf680ca8e032099f0bb115fb5cd80b7fdf328acf687f2cbfab6e3751c"

_SYSTEM = ("/usr", "/lib", "/lib64", "/bin")
_EMPTY_LAYER = bytes(1024)  # a tar without members
_CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
_LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"
_MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
_CREATED = "2026-01-01T00:00:00Z"


def is_host_image(digest: str) -> bool:
    """Whether a digest names this image."""
    return digest in (IMAGE_ID, MANIFEST_DIGEST)


def require_engine_with(wanted: str) -> None:
    """Raise EngcmpError where no Docker engine answers, or it lacks the image `[NAME@]sha256:DIGEST`; this file's own is made at use."""
    host = DockerHost()
    try:
        if not is_host_image(wanted.rpartition("@")[2]):
            host.require_image(wanted)
    finally:
        host.close()


def image_tar() -> bytes:
    """The image as `docker load` reads it: an OCI layout with Docker's own manifest beside. The same bytes on every machine."""
    layer, config, manifest = _EMPTY_LAYER, _config(), _manifest()
    index = {
        "schemaVersion": 2,
        "manifests": [
            _descriptor(_MANIFEST_TYPE, manifest)
            | {"annotations": {"io.containerd.image.name": f"docker.io/{NAME}:{TAG}"}}
        ],
    }
    docker_manifest = [{"Config": _blob(config), "RepoTags": [f"{NAME}:{TAG}"], "Layers": [_blob(layer)]}]
    members = {
        "oci-layout": _json({"imageLayoutVersion": "1.0.0"}),
        "index.json": _json(index),
        "manifest.json": _json(docker_manifest),
        **{_blob(data): data for data in (layer, config, manifest)},
    }
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in members.items():
            member = tarfile.TarInfo(name)  # its time, owner and mode are constants
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return out.getvalue()


def ensure(host: DockerHost) -> Image:
    """The image in the Docker engine, loaded first where it is not there. Raises EngcmpError for an engine that gives it another ID."""
    for digest in (IMAGE_ID, MANIFEST_DIGEST):
        try:
            return host.require_image(digest)
        except EngcmpError:
            continue
    host.load_image(image_tar())
    try:
        return host.require_image(f"{NAME}@{IMAGE_ID}")
    except EngcmpError:
        return host.require_image(f"{NAME}@{MANIFEST_DIGEST}")


def mounts() -> list[Mount]:
    """What makes this host's Python run in the image: its system folders and its Python, at their own paths, read-only.

    Raises EngcmpError where containers are not of this host's system (macOS runs them in a virtual Linux).
    """
    if sys.platform != "linux":
        raise EngcmpError(
            f"the image {NAME} runs this host's own programs, and containers on {sys.platform} are Linux",
            remedy="use an engine of kind llamacpp here, or an image that holds its programs",
        )
    folders = [path for path in map(Path, _SYSTEM) if path.is_dir()]
    prefix = Path(sys.base_prefix).resolve()
    if not any(prefix.is_relative_to(folder) for folder in folders):
        folders.append(prefix)
    return [Mount(folder, str(folder)) for folder in folders]


def python() -> str:
    """The path of this host's Python, the same in the container; not that of a virtual environment."""
    return str(Path(sys.executable).resolve())


def _config() -> bytes:
    return _json(
        {
            "architecture": "amd64",  # a name only: the image holds no program
            "os": "linux",
            "created": _CREATED,
            "config": {"Labels": {"engcmp.image": f"{NAME}:{TAG}"}},
            "rootfs": {"type": "layers", "diff_ids": [_sha256(_EMPTY_LAYER)]},
            "history": [{"created": _CREATED, "created_by": "engcmp: an empty layer"}],
        }
    )


def _manifest() -> bytes:
    return _json(
        {
            "schemaVersion": 2,
            "mediaType": _MANIFEST_TYPE,
            "config": _descriptor(_CONFIG_TYPE, _config()),
            "layers": [_descriptor(_LAYER_TYPE, _EMPTY_LAYER)],
        }
    )


def _descriptor(media_type: str, data: bytes) -> dict[str, object]:
    return {"mediaType": media_type, "digest": _sha256(data), "size": len(data)}


def _blob(data: bytes) -> str:
    return f"blobs/sha256/{sha256_bytes(data)}"


def _sha256(data: bytes) -> str:
    return f"sha256:{sha256_bytes(data)}"


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
