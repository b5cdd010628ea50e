"""Listing wheels in a folder: real files that are put, changed and taken away."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from release_places import make_wheel

from engcmp_resources import places
from engcmp_resources.canonical import sha256_file
from engcmp_resources.errors import EngcmpError
from engcmp_resources.releases import folder as folder_module
from engcmp_resources.releases.base import Listing, ReleasePlace, UnreachableError, list_releases


def listed(folder: Path | str, package: str | None = "Demo.Wheel") -> Listing:
    return list_releases(ReleasePlace("folder", str(folder), package))


def test_wheels_of_the_package_are_releases_with_computed_hashes(tmp_path: Path) -> None:
    newer = make_wheel(tmp_path, "1.10")
    older = [make_wheel(tmp_path, "1.9", tag) for tag in ("py3-none-any", "cp310-abi3-macosx_11_0_arm64")]
    make_wheel(tmp_path, "2.0.dev1")
    make_wheel(tmp_path, "3.0", package="other")
    make_wheel(tmp_path / "below", "4.0")
    (tmp_path / "demo_wheel-5.0-py3-none-any.whl").mkdir()
    (tmp_path / "demo_wheel-6.0.tar.gz").write_bytes(b"")
    releases = listed(tmp_path).releases
    assert [(release.tag, release.prerelease) for release in releases] == [
        ("1.9", False),
        ("1.10", False),
        ("2.0.dev1", True),
    ]
    assert {file.name: file.sha256 for file in releases[0].files} == {path.name: sha256_file(path) for path in older}
    line = f"{newer.name} {sha256_file(newer)}\n"
    assert releases[1].digest == f"files:{hashlib.sha256(line.encode()).hexdigest()}"
    assert all(release.withdrawn is None for release in releases)


def test_a_wheel_that_was_built_anew_and_one_that_is_gone_are_seen(tmp_path: Path) -> None:
    make_wheel(tmp_path, "1.0")
    gone = make_wheel(tmp_path, "1.1")
    before = listed(tmp_path).releases
    gone.unlink()
    make_wheel(tmp_path, "1.0", text="changed = True\n")
    after = listed(tmp_path).releases
    assert [release.tag for release in after] == ["1.0"]
    assert after[0].digest != before[0].digest


def test_a_relative_folder_is_one_of_the_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_wheel(tmp_path / "wheels", "1.0")
    monkeypatch.setattr(folder_module, "CHECKOUT", tmp_path)
    assert len(listed("wheels").releases) == 1
    assert listed("wheels").place == "wheels of demo-wheel in wheels"


def test_the_checkout_is_this_one() -> None:
    assert folder_module.CHECKOUT == places.CHECKOUT


def test_a_wheel_that_is_still_being_copied_is_asked_for_again(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "1.0")
    wheel.write_bytes(wheel.read_bytes()[:-30])
    with pytest.raises(UnreachableError, match=f"{wheel.name} is not a whole wheel"):
        listed(tmp_path)


def test_an_empty_folder_has_no_releases_and_a_missing_one_is_an_error(tmp_path: Path) -> None:
    assert listed(tmp_path).releases == ()
    with pytest.raises(EngcmpError, match=r"no such folder of wheels .*/missing"):
        listed(tmp_path / "missing")


def test_a_package_must_be_named(tmp_path: Path) -> None:
    with pytest.raises(EngcmpError, match="no package is named"):
        listed(tmp_path, None)
    with pytest.raises(EngcmpError, match="not the name of a package"):
        listed(tmp_path, "../x")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every folder")
def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o000)
    with pytest.raises(EngcmpError, match="cannot be read: Permission denied"):
        listed(tmp_path)
    tmp_path.chmod(0o700)


def test_a_link_to_nothing_is_no_wheel(tmp_path: Path) -> None:
    (tmp_path / "demo_wheel-1.0-py3-none-any.whl").symlink_to("missing.whl")
    make_wheel(tmp_path, "1.1")
    assert [release.tag for release in listed(tmp_path).releases] == ["1.1"]
