"""Images by digest: followed to this machine's platform, every part checked, logins kept to where they belong."""

from __future__ import annotations

import base64
import json
import platform
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from places import Place, image, sha256

from engcmp_resources.errors import EngcmpError
from engcmp_resources.fetching.base import Wanted
from engcmp_resources.fetching.fetch import fetch_source, outlook
from engcmp_resources.fetching.http import Http
from engcmp_resources.fetching.registry import Registry

HERE = {"x86_64": "amd64", "aarch64": "arm64", "arm64": "arm64"}[platform.machine()]
LAYERS = [b"first layer" * 1000, b"second layer"]
HTTP = Http(attempts=2, pause_s=0, sleep=lambda _s: None)


@pytest.fixture
def wanted(place: Place) -> Wanted:
    digest = image(place, "owner/engine", LAYERS, architecture=HERE)
    return Wanted("engine", "registry", f"{place.host}/owner/engine", digest)


def fetched(root: Path, wanted: Wanted) -> list[dict[str, Any]]:
    return fetch_source(wanted, root, Registry(HTTP), [].append)


def blob(place: Place, data: bytes) -> str:
    return f"/v2/owner/engine/blobs/sha256:{sha256(data)}"


def test_an_image_is_laid_out_as_a_folder_whose_every_part_has_its_digest(wanted: Wanted, tmp_path: Path) -> None:
    fetched(tmp_path, wanted)
    folder = tmp_path / "engine"
    (top,) = json.loads((folder / "index.json").read_bytes())["manifests"]
    assert top["digest"] == wanted.revision
    assert json.loads((folder / "oci-layout").read_bytes()) == {"imageLayoutVersion": "1.0.0"}

    def part(digest: str) -> bytes:
        data = (folder / "blobs" / "sha256" / digest.removeprefix("sha256:")).read_bytes()
        assert f"sha256:{sha256(data)}" == digest
        return data

    index = json.loads(part(top["digest"]))
    (own,) = [one for one in index["manifests"] if one["platform"]["architecture"] == HERE]
    manifest = json.loads(part(own["digest"]))
    assert [part(one["digest"]) for one in manifest["layers"]] == [layer + HERE.encode() for layer in LAYERS]
    assert json.loads(part(manifest["config"]["digest"]))["architecture"] == HERE
    assert len(list((folder / "blobs" / "sha256").iterdir())) == 5, "nothing of the other platform"


def test_a_look_says_how_big_it_is_and_fetches_no_layer(place: Place, wanted: Wanted, tmp_path: Path) -> None:
    seen = outlook(wanted, tmp_path, Registry(HTTP))
    assert len(seen.missing) == 7 and seen.unknown == 0
    assert seen.bytes > sum(len(layer) for layer in LAYERS)
    assert not [path for path, _ in place.asked if "/blobs/" in path] and not list(tmp_path.iterdir())


def test_a_layer_that_was_cut_is_continued_and_what_is_there_is_not_fetched_again(
    place: Place, wanted: Wanted, tmp_path: Path
) -> None:
    layer = blob(place, LAYERS[0] + HERE.encode())
    place.cuts[layer] = [5000]
    fetched(tmp_path, wanted)
    assert place.asked_for(layer)[-1]["range"] == "bytes=5000-"
    before = len(place.asked)
    fetched(tmp_path, wanted)
    assert all("/manifests/" in path for path, _ in place.asked[before:])


def test_a_manifest_with_another_digest_than_the_one_asked_for_is_refused(
    place: Place, wanted: Wanted, tmp_path: Path
) -> None:
    place.files[f"/v2/owner/engine/manifests/{wanted.revision}"] += b" "
    with pytest.raises(EngcmpError, match="its manifest has another digest than the one asked for"):
        fetched(tmp_path, wanted)


def test_a_layer_with_another_digest_is_not_kept(place: Place, wanted: Wanted, tmp_path: Path) -> None:
    layer = LAYERS[1] + HERE.encode()
    place.files[blob(place, layer)] = b"x" * len(layer)
    with pytest.raises(EngcmpError, match=f"engine: blobs/sha256/{sha256(layer)}: wrong sha256"):
        fetched(tmp_path, wanted)
    assert not (tmp_path / "engine" / "blobs" / "sha256" / sha256(layer)).exists()


def test_an_image_for_other_processors_only_is_refused(place: Place, tmp_path: Path) -> None:
    digest = image(place, "owner/engine", LAYERS, architecture="mips")
    wanted = Wanted("engine", "registry", f"{place.host}/owner/engine", digest)
    with pytest.raises(EngcmpError, match=f"no linux/{HERE}.*it has linux/mips, linux/sparc"):
        fetched(tmp_path, wanted)


def test_an_image_that_anyone_may_read_is_fetched_with_the_token_that_anyone_gets(
    place: Place, other: Place, wanted: Wanted, tmp_path: Path
) -> None:
    guarded(place, other)
    other.files["/token"] = json.dumps({"token": "abc"}).encode()
    fetched(tmp_path, wanted)
    assert {path for path, _ in other.asked} == {"/token?scope=repository%3Aowner%2Fengine%3Apull&service=registry"}
    assert not any("authorization" in headers for _, headers in other.asked)


def guarded(place: Place, tokens: Place) -> None:
    place.token = "Bearer abc"  # noqa: S105 - what the token service here gives to anyone
    place.refusal = {"WWW-Authenticate": f'Bearer realm="{tokens.address}/token",service="registry"'}


def test_the_user_s_login_goes_to_the_token_service_of_its_registry_and_nowhere_else(
    place: Place, other: Place, wanted: Wanted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guarded(place, other)
    other.files["/token"] = json.dumps({"access_token": "abc"}).encode()
    monkeypatch.setenv("ENGCMP_REGISTRY_LOGIN", "ghcr.io=me:secret")
    outlook(wanted, tmp_path, Registry(HTTP))
    assert not any("authorization" in headers for _, headers in other.asked), "it is for another registry"
    monkeypatch.setenv("ENGCMP_REGISTRY_LOGIN", f"{place.host}=me:secret")
    fetched(tmp_path, wanted)
    basic = f"Basic {base64.b64encode(b'me:secret').decode()}"
    assert other.asked[-1][1]["authorization"] == basic
    assert basic not in {headers.get("authorization") for _, headers in place.asked}


def test_a_layer_at_another_host_is_asked_for_without_the_token(
    place: Place, other: Place, wanted: Wanted, tmp_path: Path
) -> None:
    guarded(place, other)
    other.files["/token"] = json.dumps({"token": "abc"}).encode()
    layer = LAYERS[0] + HERE.encode()
    place.redirects[blob(place, layer)] = f"{other.address}/bucket/layer"
    other.files["/bucket/layer"] = layer
    fetched(tmp_path, wanted)
    assert place.asked_for(blob(place, layer))[0]["authorization"] == "Bearer abc"
    assert "authorization" not in other.asked_for("/bucket/layer")[0]


def test_a_registry_that_refuses_says_how_to_log_in(place: Place, other: Place, wanted: Wanted, tmp_path: Path) -> None:
    guarded(place, other)
    other.files["/token"] = json.dumps({"token": "wrong"}).encode()
    with pytest.raises(EngcmpError, match=r"HTTP 401, a login is needed.*ENGCMP_REGISTRY_LOGIN"):
        fetched(tmp_path, wanted)


@pytest.mark.parametrize(
    "change",
    [{"revision": "latest"}, {"where": "https://ghcr.io/a/b"}, {"where": "ghcr.io/../b"}, {"where": "ghcr.io"}],
)
def test_only_an_image_by_digest_is_fetched(tmp_path: Path, wanted: Wanted, change: dict[str, str]) -> None:
    with pytest.raises(EngcmpError, match="not an image by digest"):
        fetched(tmp_path, replace(wanted, **change))
