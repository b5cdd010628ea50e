"""Listing tags of an image: a registry on this machine that answers as real ones do."""

from __future__ import annotations

import hashlib
import json
import urllib.parse
from collections.abc import Callable

import pytest
from release_places import Reply, Server, Watch

from engcmp_resources.errors import EngcmpError
from engcmp_resources.releases.base import Listing, RateLimitedError, ReleasePlace, UnreachableError, list_releases

TAGS = "/v2/owner/engine/tags/list"
MANIFESTS = "/v2/owner/engine/manifests"
A, B = f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"
JSON = {"Content-Type": "application/json"}


def tags(*names: str, **headers: str) -> Reply:
    return Reply(json.dumps({"name": "owner/engine", "tags": names}).encode(), headers=JSON | headers)


def manifest(digest: str) -> Reply:
    return Reply(b"", headers={"Docker-Content-Digest": digest})


def listed(
    server: Server,
    wanted: Callable[[str], bool] = lambda _tag: True,
    name: str = "owner/engine",
    timeout_s: float = 20.0,
) -> Listing:
    return list_releases(ReleasePlace("registry", f"{server.host}/{name}"), wanted=wanted, timeout_s=timeout_s)


def fails(kind: type[EngcmpError], words: str, server: Server, timeout_s: float = 20.0) -> EngcmpError:
    with pytest.raises(kind, match=words) as failed:
        listed(server, timeout_s=timeout_s)
    assert type(failed.value) is kind
    return failed.value


@pytest.fixture
def registry(server: Server, bare_settings: None) -> Server:
    return server


def test_tags_come_by_version_and_digests_are_asked_for_the_wanted_ones(registry: Server) -> None:
    registry[TAGS] = tags("v1.10.0", "latest", "v1.9.0", "v1.10.0rc1")
    registry[f"HEAD {MANIFESTS}/v1.9.0"] = manifest(A)
    registry[f"HEAD {MANIFESTS}/v1.10.0"] = manifest(B)
    listing = listed(registry, lambda tag: tag in ("v1.9.0", "v1.10.0"))
    assert listing.place == f"image {registry.host}/owner/engine"
    assert [(release.tag, release.digest, release.prerelease) for release in listing.releases] == [
        ("latest", None, False),
        ("v1.9.0", A, False),
        ("v1.10.0rc1", None, True),
        ("v1.10.0", B, False),
    ]
    assert [(method, path.split("?")[0]) for method, path, _ in registry.asked] == [
        ("GET", TAGS),
        ("HEAD", f"{MANIFESTS}/v1.9.0"),
        ("HEAD", f"{MANIFESTS}/v1.10.0"),
    ]
    accept = registry.asked[1][2]["accept"]
    for kind in ("oci.image.index.v1", "oci.image.manifest.v1", "docker.distribution.manifest.v2"):
        assert f"application/vnd.{kind}+json" in accept
    assert "application/vnd.docker.distribution.manifest.list.v2+json" in accept


def test_a_tag_that_was_pushed_anew_and_one_that_is_gone_are_seen(registry: Server) -> None:
    registry[TAGS] = tags("v1", "v2")
    registry[f"{MANIFESTS}/v1"], registry[f"{MANIFESTS}/v2"] = manifest(A), manifest(A)
    before = {release.tag: release.digest for release in listed(registry).releases}
    registry[TAGS] = tags("v1", "v3")
    registry[f"{MANIFESTS}/v1"] = manifest(B)
    after = {release.tag: release.digest for release in listed(registry).releases}
    assert before == {"v1": A, "v2": A}
    assert after == {"v1": B}  # v3 is in the list, and its manifest is gone


def test_all_pages_are_read(registry: Server) -> None:
    registry[f"{TAGS}?n=1000"] = tags("v1", "v2", Link='</v2/owner/engine/tags/list?n=1000&last=v2>; rel="next"')
    registry[f"{TAGS}?n=1000&last=v2"] = tags("v2", "v3", Link=f"<{registry.address}{TAGS}?last=v3>; foo=1; rel=next")
    registry[f"{TAGS}?last=v3"] = tags("v4", Link=f'<{TAGS}?n=1>; rel="prev"')
    assert [release.tag for release in listed(registry, lambda _: False).releases] == ["v1", "v2", "v3", "v4"]


def test_pages_in_a_circle_and_at_another_host_are_refused(registry: Server) -> None:
    registry[TAGS] = tags("v1", Link=f'<{TAGS}?n=1000>; rel="next"')
    fails(EngcmpError, "its pages lead in a circle", registry)
    registry[TAGS] = tags("v1", Link=f'<http://127.0.0.2{TAGS}>; rel="next"')
    fails(EngcmpError, "its next page is at another host", registry)


def test_a_registry_that_states_no_digest_is_asked_for_the_manifest(registry: Server) -> None:
    body = b'{"schemaVersion": 2, "manifests": []}'
    registry[TAGS] = tags("v1", "v2")
    registry[f"{MANIFESTS}/v1"] = Reply(body)
    registry[f"HEAD {MANIFESTS}/v2"], registry[f"GET {MANIFESTS}/v2"] = Reply(status=405), Reply(body)
    digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
    assert [release.digest for release in listed(registry).releases] == [digest, digest]
    registry[f"{MANIFESTS}/v1"] = Reply(b"<html>Log in</html>")
    fails(EngcmpError, "the answer is not a listing", registry)


@pytest.mark.parametrize("digest", ["sha512:" + "a" * 128, "sha256:" + "A" * 64, "sha256:abc", "a" * 64])
def test_a_digest_of_another_form_is_refused(registry: Server, digest: str) -> None:
    registry[TAGS] = tags("v1")
    registry[f"{MANIFESTS}/v1"] = manifest(digest)
    fails(EngcmpError, "tag v1 has the digest", registry)


def bearer(realm: str, scope: str = ', scope="repository:owner/engine:pull"') -> Reply:
    return Reply(status=401, headers={"WWW-Authenticate": f'Bearer realm="{realm}", service="registry.here"{scope}'})


def guarded(realm: str, reply: Reply, token: str) -> Callable[[dict[str, str]], Reply]:
    return lambda headers: reply if headers.get("authorization") == f"Bearer {token}" else bearer(realm)


@pytest.mark.parametrize("key", ["token", "access_token"])
def test_the_token_that_anyone_gets_is_fetched_once(registry: Server, other_server: Server, key: str) -> None:
    realm = f"{other_server.address}/token?account=none"
    other_server["/token"] = Reply(json.dumps({key: "t0ken"}).encode(), headers=JSON)
    registry[TAGS] = guarded(realm, tags("v1", "v2"), "t0ken")
    registry[f"{MANIFESTS}/v1"] = registry[f"{MANIFESTS}/v2"] = guarded(realm, manifest(A), "t0ken")
    assert [release.digest for release in listed(registry).releases] == [A, A]
    assert len(other_server.asked) == 1
    _, path, headers = other_server.asked[0]
    assert dict(urllib.parse.parse_qsl(path.split("?")[1])) == {
        "account": "none",
        "service": "registry.here",
        "scope": "repository:owner/engine:pull",
    }
    assert "authorization" not in headers


def test_a_token_is_not_taken_to_another_host_and_not_fetched_over_plain_http(
    registry: Server, other_server: Server
) -> None:
    registry["/token"] = Reply(b'{"token": "t0ken"}', headers=JSON)
    moved = Reply(status=307, headers={"Location": f"{other_server.address}/moved"})
    registry[TAGS] = guarded(f"{registry.address}/token", moved, "t0ken")
    other_server["/moved"] = tags("v1")
    assert [release.tag for release in listed(registry, lambda _: False).releases] == ["v1"]
    assert "authorization" not in other_server.asked[0][2]
    registry[TAGS] = bearer("http://auth.invalid/token")
    fails(EngcmpError, "gives tokens out over plain http", registry)
    registry[TAGS] = bearer("nonsense")
    fails(EngcmpError, "not an address of the web", registry)


@pytest.mark.parametrize("answer", [b"{}", b'{"token": ""}', b'{"token": "a\\r\\nb"}', b"<html>", b'{"token": 7}'])
def test_a_token_that_is_none_is_refused(registry: Server, answer: bytes) -> None:
    registry["/token"] = Reply(answer, headers=JSON)
    registry[TAGS] = bearer(f"{registry.address}/token", scope="")
    fails(EngcmpError, "the answer is not a listing", registry)
    assert "scope=repository%3Aowner%2Fengine%3Apull" in registry.asked[-1][1]


def test_an_image_that_needs_a_login(registry: Server) -> None:
    registry["/token"] = Reply(b'{"token": "t0ken"}', headers=JSON)
    registry[TAGS] = bearer(f"{registry.address}/token")
    error = fails(EngcmpError, "HTTP 401, a login is needed", registry)
    assert "name a public image" in str(error)
    assert "t0ken" not in str(error)
    registry[TAGS] = Reply(status=401, headers={"WWW-Authenticate": 'Basic realm="here"'})
    fails(EngcmpError, "HTTP 401, a login is needed", registry)
    registry[TAGS] = bearer(f"{registry.address}/denied")
    registry["/denied"] = Reply(status=403)
    fails(EngcmpError, "HTTP 403, a login is needed", registry)


@pytest.mark.parametrize(
    ("reply", "kind", "words"),
    [
        (Reply(status=404), EngcmpError, "there is no such image"),
        (Reply(status=500), UnreachableError, "HTTP 500"),
        (Reply(b"<html>Log in</html>", headers=JSON), EngcmpError, "the answer is not a listing"),
        (Reply(b'{"tags": [1]}', headers=JSON), EngcmpError, "the answer is not a listing"),
        (Reply(b'{"tags": ["../x"]}', headers=JSON), EngcmpError, "it holds a tag that is none"),
        (Reply(bytes(1_000_000), headers=JSON, repeat=51), EngcmpError, "more than 50 MB"),
    ],
    ids=["404", "500", "html", "number", "path", "large"],
)
def test_other_answers_are_told_apart(registry: Server, reply: Reply, kind: type[EngcmpError], words: str) -> None:
    registry[TAGS] = reply
    fails(kind, words, registry)


def test_a_rate_limit_at_a_manifest_counts_too(registry: Server) -> None:
    registry[TAGS] = tags("v1")
    registry[f"{MANIFESTS}/v1"] = Reply(status=429, headers={"Retry-After": "60"})
    error = fails(RateLimitedError, "too many requests", registry)
    assert isinstance(error, RateLimitedError)
    assert error.retry_after_s == 60


def test_an_image_without_tags_has_no_releases(registry: Server) -> None:
    registry[TAGS] = Reply(b'{"name": "owner/engine", "tags": null}', headers=JSON)
    assert listed(registry).releases == ()


def test_pages_without_end_are_given_up_in_time(registry: Server) -> None:
    count = iter(range(1_000_000))
    registry[TAGS] = lambda _: tags("v1", Link=f'<{TAGS}?page={next(count)}>; rel="next"')
    with Watch() as watch:
        fails(UnreachableError, "no whole answer in time", registry, timeout_s=1.0)
    assert watch.seconds < 20


def test_a_registry_that_does_not_answer(bare_settings: None) -> None:
    for host in ("127.0.0.1:9", "registry.invalid"):
        with pytest.raises(UnreachableError, match="no answer"):
            list_releases(ReleasePlace("registry", f"{host}/owner/engine"))


def test_only_this_machine_is_asked_over_plain_http(bare_settings: None) -> None:
    with pytest.raises(UnreachableError) as failed:
        list_releases(ReleasePlace("registry", "registry.invalid:5000/owner/engine"))
    assert str(failed.value.where).startswith("https://registry.invalid:5000/")


@pytest.mark.parametrize(
    "name",
    [
        "engine",
        "https://ghcr.io/owner/engine",
        "ghcr.io/owner/engine:tag",
        "ghcr.io/owner/engine@sha256:00",
        "user:secret@ghcr.io/owner/engine",
        "ghcr.io/../engine",
        "ghcr.io/owner/engine?x",
        "-x/engine",
    ],
)
def test_what_is_no_name_of_an_image_is_refused(name: str) -> None:
    with pytest.raises(EngcmpError, match="not the name of an image") as failed:
        list_releases(ReleasePlace("registry", name))
    assert "secret" not in str(failed.value)
