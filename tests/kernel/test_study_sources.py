"""SOURCES.json: what is pinned, what is not known and why, and how a protocol's listed sources become what a launch needs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engcmp_assets.kernel.source_tables import ImageSource, ListedSource, RepositorySource, Source
from engcmp_assets.kernel.study_sources import parse_sources, with_listed
from engcmp_resources.errors import EngcmpError

COMMIT, DIGEST, SHA = "a" * 40, f"sha256:{'b' * 64}", "c" * 64
NO_LICENCE = {"field": "licence", "why": "no document names it"}


def entry(**changes: Any) -> dict[str, Any]:
    base = {
        "id": "one", "kind": "hf", "role": "model", "what": "a model", "where": "owner/name", "revision": COMMIT, "repo_type": "model",
        "files": [{"path": "a/b.safetensors", "sha256": SHA, "bytes": 3}], "licence": "MIT", "bytes": 3,
    }  # fmt: skip
    return {name: value for name, value in (base | changes).items() if value is not None}


def document(*entries: dict[str, Any]) -> bytes:
    return json.dumps({"schema": "engcmp.study-sources/1", "sources": list(entries)}).encode()


def test_a_whole_entry_is_read_and_pinned() -> None:
    found = parse_sources(document(entry()), where="here").source("one")
    assert found.pinned and found.bytes == 3
    found.require_pinned()


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a short commit": ({"revision": "abc"}, r"sources.0 \(source one\): .*revision 'abc' is not a commit of 40"),
    "an image without a digest": ({"kind": "registry", "repo_type": None, "revision": "v1"}, "is not a digest, sha256:"),
    "a hub entry without its type": ({"repo_type": None}, "repo_type must stand with kind hf"),
    "unknown without a reason": ({"licence": "unknown"}, "licence is unknown and `unknown` does not say why"),
    "a reason for what is known": ({"unknown": [NO_LICENCE]}, "`unknown` speaks of licence, which is known"),
    "a file's hash without a reason": (
        {"files": [{"path": "a", "sha256": "unknown", "bytes": 1}]}, "files.a.sha256 is unknown and `unknown` does not say why",
    ),
    "a path out of the source": ({"files": [{"path": "../a", "sha256": SHA, "bytes": 1}]}, "'../a' is no path within a source"),
    "an absolute path": ({"files": [{"path": "/a", "sha256": SHA, "bytes": 1}]}, "'/a' is no path within a source"),
    "a file twice": ({"files": [{"path": "a", "sha256": SHA, "bytes": 1}] * 2}, "file 'a' stands twice"),
    "an empty licence": ({"licence": " "}, "licence.*at least 1 character"),
    "not fetched without a note": ({"fetch": False}, "a source that is not fetched needs a note"),
    "an estimate beside the size": ({"about_bytes": 4}, "about_bytes stands only where bytes is unknown"),
    "another kind": ({"kind": "ftp"}, r"kind \(source one\): Input should be"),
    "an unknown field": ({"license": "MIT"}, r"license \(source one\): Extra inputs"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_fault_is_named_with_its_source(case: str) -> None:
    changes, said = WRONG[case]
    with pytest.raises(EngcmpError, match=said):
        parse_sources(document(entry(**changes)), where="here")


def test_one_reason_may_speak_of_every_file() -> None:
    files = [{"path": name, "sha256": "unknown", "bytes": 1} for name in ("a", "b")]
    parse_sources(
        document(entry(files=files, unknown=[{"field": "files.*.sha256", "why": "not stated"}])), where="here"
    )


def test_an_id_stands_once_and_a_wrong_one_lists_those_there_are() -> None:
    with pytest.raises(EngcmpError, match="source 'one' stands twice"):
        parse_sources(document(entry(), entry()), where="here")
    with pytest.raises(EngcmpError, match="no source 'two'") as told:
        parse_sources(document(entry()), where="here").source("two")
    assert "it has one" in str(told.value.remedy)


def test_what_has_no_pin_says_why_when_it_is_asked_for() -> None:
    unknown = [{"field": "revision", "why": "only its tag is stated"}]
    found = parse_sources(document(entry(revision="unknown", unknown=unknown)), where="here").source("one")
    assert not found.pinned
    with pytest.raises(
        EngcmpError, match=r"the revision of source one \(a model\) is not known: only its tag is stated"
    ):
        found.require_pinned()


def test_listed_sources_become_what_a_launch_needs() -> None:
    why = [{"field": "revision", "why": "only its tag is stated"}]
    data = document(
        entry(id="weights"),
        entry(id="launcher", kind="git", repo_type=None, where="https://host/x", tag="v1"),
        entry(id="image", kind="registry", repo_type=None, where="host/x", tag="v1", revision=DIGEST),
        entry(
            id="later", kind="git", repo_type=None, where="https://host/x", revision="unknown", tag="v2", unknown=why
        ),
    )
    names = ("weights", "launcher", "image", "later")
    listed: dict[str, Source] = {name: ListedSource(listed=name) for name in names}
    found = with_listed(listed, {"SOURCES.json": data}, where="here")
    assert found["launcher"] == RepositorySource(repository="https://host/x", tag="v1", commit=COMMIT, license="MIT")
    assert found["image"] == ImageSource(image="host/x", tag="v1", digest=DIGEST, license="MIT")
    assert found["weights"] == ListedSource(listed="weights", kind="hf", why=None)
    assert found["later"] == ListedSource(
        listed="later", kind="git", why="its revision is not known: only its tag is stated"
    )


def test_a_listed_source_needs_the_file_and_its_id() -> None:
    listed: dict[str, Source] = {"a": ListedSource(listed="b")}
    with pytest.raises(EngcmpError, match=r"sources.a.listed needs SOURCES.json, which is missing"):
        with_listed(listed, {}, where="here")
    with pytest.raises(EngcmpError, match="no source 'b'"):
        with_listed(listed, {"SOURCES.json": document(entry())}, where="here")


def test_a_tag_without_its_commit_says_how_to_find_it() -> None:
    unknown = [{"field": "revision", "why": "only its tag is stated"}]
    one = entry(kind="git", repo_type=None, where="https://host/x", tag="v1", revision="unknown", unknown=unknown)
    with pytest.raises(EngcmpError) as told:
        parse_sources(document(one), where="here").source("one").require_pinned()
    assert "git ls-remote https://host/x refs/tags/v1" in str(told.value.remedy)
