"""A launcher's files: fetched at a commit as a tar of the same bytes, unpacked within their folder, patched, and its config written."""

from __future__ import annotations

import io
import os
import tarfile
import time
from pathlib import Path

import pytest

from engcmp_resources.canonical import sha256_file
from engcmp_resources.engines._launcher_source import apply_patch, fetch_launcher, run_program, unpack_launcher
from engcmp_resources.engines._launchers import config_text
from engcmp_resources.engines._leases import LEASE, remove_leftovers
from engcmp_resources.errors import EngcmpError
from tests.launchers.launched import git, repository

FILES = {
    "run.sh": "echo one\n",
    "scripts/lib.sh": "echo two\n",
    ".gitattributes": "scripts export-ignore\nrun.sh export-subst\n",
}


@pytest.fixture
def commit(tmp_path: Path) -> str:
    return repository(tmp_path / "repository", FILES | {"run.sh": "echo $Format:%H$\n"})


def fetched(tmp_path: Path, commit: str, name: str = "one") -> Path:
    (tmp_path / name).mkdir()
    return fetch_launcher(f"file://{tmp_path}/repository", commit, tmp_path / name)


def test_a_launcher_is_fetched_as_it_was_committed(tmp_path: Path, commit: str) -> None:
    tar = fetched(tmp_path, commit)
    unpack_launcher(tar, commit, tmp_path / "out")
    assert (tmp_path / "out/run.sh").read_text() == "echo $Format:%H$\n"
    assert (tmp_path / "out/scripts/lib.sh").read_text() == "echo two\n"
    assert not (tmp_path / "out/.git").exists()


def test_the_tar_is_the_same_bytes_wherever_it_is_made(tmp_path: Path, commit: str) -> None:
    one = fetched(tmp_path, commit)
    git(tmp_path / "repository", "commit", "--quiet", "--allow-empty", "--message=more")
    mask = os.umask(0o077)
    try:
        two = fetched(tmp_path, commit, "two")
    finally:
        os.umask(mask)
    assert two.read_bytes() == one.read_bytes()
    with tarfile.open(one) as tar:
        members = tar.getmembers()
    assert [member.name for member in members] == sorted(member.name for member in members)
    assert {(member.mtime, member.uid, member.uname) for member in members} == {(0, 0, "")}


def test_an_older_commit_than_the_branch_s_is_fetched(tmp_path: Path, commit: str) -> None:
    (tmp_path / "repository/run.sh").write_text("echo newer\n")
    git(tmp_path / "repository", "commit", "--quiet", "--all", "--message=newer")
    unpack_launcher(fetched(tmp_path, commit), commit, tmp_path / "out")
    assert (tmp_path / "out/run.sh").read_text() == "echo $Format:%H$\n"


@pytest.mark.parametrize(
    ("url", "commit", "said"),
    [
        ("ext::sh -c true", "0" * 40, "not the URL of a launcher's repository"),
        ("--upload-pack=true", "0" * 40, "not the URL"),
        ("/somewhere", "0" * 40, "not the URL"),
        ("file:///nowhere", "v3.0.1", "'v3.0.1' is no full commit"),
        ("file:///nowhere", "0" * 40, "git fetch: .*nowhere"),
    ],
)
def test_what_is_no_repository_or_commit_is_refused(tmp_path: Path, url: str, commit: str, said: str) -> None:
    with pytest.raises(EngcmpError, match=said):
        fetch_launcher(url, commit, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("commit")
def test_a_commit_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngcmpError, match=r"git rev-parse"):
        fetched(tmp_path, "1" * 40)


def test_no_hook_of_the_user_runs(tmp_path: Path, commit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    for name in ("post-checkout", "reference-transaction", "post-merge"):
        (hooks / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
        (hooks / name).chmod(0o755)
    (tmp_path / "gitconfig").write_text(f"[core]\n\thooksPath = {hooks}\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".gitconfig").write_text(f"[core]\n\thooksPath = {hooks}\n")
    fetched(tmp_path, commit)
    assert not (tmp_path / "ran").exists()


def made_tar(path: Path, *members: tuple[str, bytes, str], comment: str = "c" * 40) -> Path:
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT, pax_headers={"comment": comment}) as tar:
        for name, kind, value in members:
            member = tarfile.TarInfo(name)
            member.type = kind
            if kind == tarfile.REGTYPE:
                member.size = len(value)
                tar.addfile(member, io.BytesIO(value.encode()))
            else:
                member.linkname = value
                tar.addfile(member)
    return path


@pytest.mark.parametrize(
    ("member", "said"),
    [
        (("../out.txt", tarfile.REGTYPE, "x"), "is no path within"),
        (("/tmp/out.txt", tarfile.REGTYPE, "x"), "is no path within"),
        ((".git/config", tarfile.REGTYPE, "x"), "is no path within"),
        (("a", tarfile.SYMTYPE, "/etc"), "leads out of the launcher"),
        (("a/b", tarfile.SYMTYPE, "../../etc"), "leads out of the launcher"),
        (("a", tarfile.LNKTYPE, "run.sh"), "is no file, folder or link"),
        (("a", tarfile.CHRTYPE, ""), "is no file, folder or link"),
        (("a", tarfile.BLKTYPE, ""), "is no file, folder or link"),
        (("a", tarfile.FIFOTYPE, ""), "is no file, folder or link"),
        (("link", tarfile.REGTYPE, "x"), "stands twice"),
        (("link", tarfile.DIRTYPE, ""), "stands twice"),
        (("real/y", tarfile.SYMTYPE, "z"), "stands twice"),
        (("link/x", tarfile.REGTYPE, "x"), "is below a link"),
    ],
)
def test_members_that_leave_the_folder_are_refused(tmp_path: Path, member: tuple[str, bytes, str], said: str) -> None:
    tar = made_tar(tmp_path / "l.tar", ("real/y", tarfile.REGTYPE, "y"), ("link", tarfile.SYMTYPE, "real"), member)
    with pytest.raises(EngcmpError, match=said):
        unpack_launcher(tar, "c" * 40, tmp_path / "out")
    assert not (tmp_path / "out.txt").exists()


def test_links_that_lead_out_by_way_of_other_links_are_refused_and_nothing_is_written_through_them(
    tmp_path: Path,
) -> None:
    """`deep/in/here` is `deep/in`, so three steps up from it leave the folder, though the text of the second link does not say so."""
    through = [("deep/in/here", tarfile.SYMTYPE, "."), ("out", tarfile.SYMTYPE, "deep/in/here/../../../caught.txt")]
    tar = made_tar(tmp_path / "l.tar", *through, ("out", tarfile.REGTYPE, "evil"))
    with pytest.raises(EngcmpError, match="'out' stands twice"):
        unpack_launcher(tar, "c" * 40, tmp_path / "one")
    for order in (through, through[::-1]):
        tar = made_tar(tmp_path / "l.tar", *order)
        with pytest.raises(EngcmpError, match="'out' is a link that leads out of the launcher"):
            unpack_launcher(tar, "c" * 40, tmp_path / f"two-{order[0][0][0]}")
    assert not list(tmp_path.rglob("caught.txt"))


def test_a_tar_of_another_commit_or_none_is_refused(tmp_path: Path) -> None:
    tar = made_tar(tmp_path / "l.tar", ("run.sh", tarfile.REGTYPE, "x"))
    with pytest.raises(EngcmpError, match=f"of commit {'c' * 40}, the launch names {'d' * 40}"):
        unpack_launcher(tar, "d" * 40, tmp_path / "one")
    (tmp_path / "no.tar").write_bytes(b"not a tar" * 100)
    with pytest.raises(EngcmpError, match="cannot be read"):
        unpack_launcher(tmp_path / "no.tar", "c" * 40, tmp_path / "two")


PATCH = """--- a/run.sh
+++ b/run.sh
@@ -1 +1 @@
-echo one
+echo patched
"""


def test_a_patch_is_applied_also_below_another_repository(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    folder, patch = tmp_path / "launcher", tmp_path / "fix.patch"
    folder.mkdir()
    (folder / "run.sh").write_text("echo one\n")
    patch.write_text(PATCH)
    apply_patch(folder, patch, sha256_file(patch))
    assert (folder / "run.sh").read_text() == "echo patched\n"
    with pytest.raises(EngcmpError, match="git apply"):
        apply_patch(folder, patch, sha256_file(patch))
    with pytest.raises(EngcmpError, match="the patch has sha256"):
        apply_patch(folder, patch, "0" * 64)
    with pytest.raises(EngcmpError, match="no such patch"):
        apply_patch(folder, tmp_path / "none", "0" * 64)


def test_a_patch_does_not_write_outside(tmp_path: Path) -> None:
    folder, patch = tmp_path / "launcher", tmp_path / "evil.patch"
    folder.mkdir()
    patch.write_text("--- /dev/null\n+++ b/../outside\n@@ -0,0 +1 @@\n+x\n")
    with pytest.raises(EngcmpError, match="git apply"):
        apply_patch(folder, patch, sha256_file(patch))
    assert not (tmp_path / "outside").exists()


def test_a_config_is_lines_that_all_parsers_read_alike() -> None:
    text = config_text({"POOL_TOKENS": 1024, "MODEL_ID": "sim/model", "ADDR": "127.0.0.1:8001"})
    assert text == "ADDR=127.0.0.1:8001\nMODEL_ID=sim/model\nPOOL_TOKENS=1024\n"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("MODEL_ID", '"quoted"'), ("MODEL_ID", "two words"), ("MODEL_ID", "x#comment"), ("MODEL_ID", ""), ("MODEL_ID", "a\nADDR=0"),
        ("model_id", "x"), ("MODEL ID", "x"), ("MODEL_ID=x\nB", "y"), ("USAGE", True), ("MODEL_ID", "$(id)"), ("MODEL_ID", "'x'"),
    ],
)  # fmt: skip
def test_a_config_that_parsers_would_read_differently_is_refused(key: str, value: str) -> None:
    with pytest.raises(EngcmpError, match="config of the launcher"):
        config_text({key: value})


def test_a_program_that_does_not_end_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    started = time.monotonic()
    code, said = run_program(["sh", "-c", "echo begun; sleep 60 & echo $! >child; wait"], tmp_path, os.environ, 0.5)
    assert code is None
    assert said == "begun\n"
    assert time.monotonic() - started < 20
    child = int((tmp_path / "child").read_text())
    until = time.monotonic() + 10
    while Path(f"/proc/{child}/cmdline").exists() and Path(f"/proc/{child}/cmdline").read_bytes():
        assert time.monotonic() < until


def test_a_lease_of_another_lock_or_a_broken_one_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / LEASE).write_text('{"name": "x", "labels": {"ENGCMP_LOCK": "/other"}}')
    (tmp_path / LEASE).write_text("{")
    assert remove_leftovers(tmp_path, tmp_path / "lock") == []
    assert (tmp_path / "a" / LEASE).exists()
