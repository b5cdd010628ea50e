"""Listing tags of real git repositories, and of servers that are none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from release_places import Reply, Server, Watch

from engcmp_resources.errors import EngcmpError
from engcmp_resources.releases import git as git_module
from engcmp_resources.releases.base import Listing, RateLimitedError, ReleasePlace, UnreachableError, list_releases


def listed(url: str, timeout_s: float = 20.0) -> Listing:
    return list_releases(ReleasePlace("git", url), timeout_s=timeout_s)


def fails(kind: type[EngcmpError], words: str, url: str, timeout_s: float = 20.0) -> EngcmpError:
    with pytest.raises(kind, match=words) as failed:
        listed(url, timeout_s)
    assert type(failed.value) is kind
    return failed.value


class Repository:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"file://{folder}"
        folder.mkdir()
        self.git("init", "--quiet")

    def git(self, *arguments: str) -> str:
        who = [
            "-c",
            "user.name=t",
            "-c",
            "user.email=t@example.invalid",
            "-c",
            "commit.gpgsign=false",
            "-c",
            "tag.gpgsign=false",
        ]
        command = ["git", "-C", str(self.folder), *who, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    def commit(self) -> str:
        self.git("commit", "--quiet", "--allow-empty", "--message", "a change")
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path, bare_settings: None) -> Repository:
    return Repository(tmp_path / "engine")


@pytest.fixture
def own_git(tmp_path: Path, bare_settings: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program `git` that a test writes, first in PATH: what a server says that is not here is said by it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder / "git"


@pytest.fixture
def known_certificate(certificate: Path, bare_settings: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """git knows the certificate of `secure_server`."""
    monkeypatch.setenv("GIT_SSL_CAINFO", str(certificate))


def says(program: Path, text: str, code: int = 128) -> None:
    program.write_text(f"#!{sys.executable}\nimport sys\nsys.stderr.write({text!r})\nsys.exit({code})\n")
    program.chmod(0o755)


def test_tags_come_by_version_with_the_commit_also_of_an_annotated_one(repository: Repository) -> None:
    first = repository.commit()
    for tag in ("v1.10.0", "v1.9.0", "latest", "b1000", "b999"):
        repository.git("tag", tag)
    second = repository.commit()
    repository.git("tag", "--annotate", "v1.10.0rc1", "--message", "a candidate")
    listing = listed(repository.url)
    assert listing.place == f"tags of {repository.url}"
    assert [(release.tag, release.digest) for release in listing.releases] == [
        ("b999", f"git:{first}"),
        ("b1000", f"git:{first}"),
        ("latest", f"git:{first}"),
        ("v1.9.0", f"git:{first}"),
        ("v1.10.0rc1", f"git:{second}"),
        ("v1.10.0", f"git:{first}"),
    ]
    assert repository.git("rev-parse", "v1.10.0rc1") != second  # the tag is an object of its own
    assert [release.tag for release in listing.releases if release.prerelease] == ["v1.10.0rc1"]


def test_a_tag_that_was_pushed_anew_and_one_that_is_gone_are_seen(repository: Repository) -> None:
    repository.commit()
    repository.git("tag", "v1")
    repository.git("tag", "v2")
    before = {release.tag: release.digest for release in listed(repository.url).releases}
    commit = repository.commit()
    repository.git("tag", "--force", "v1")
    repository.git("tag", "--delete", "v2")
    after = {release.tag: release.digest for release in listed(str(repository.folder)).releases}
    assert after == {"v1": f"git:{commit}"}
    assert after["v1"] != before["v1"]


def test_a_repository_without_tags_has_no_releases_and_one_without_anything_is_an_error(repository: Repository) -> None:
    fails(EngcmpError, "it names neither a branch nor a tag", repository.url)
    repository.commit()
    assert listed(repository.url).releases == ()


def test_the_repository_that_one_stands_in_has_no_say(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.commit()
    repository.git("tag", "v1")
    here = Repository(tmp_path / "here")
    here.git("config", f"url.file://{tmp_path}/nowhere.insteadOf", repository.url)
    monkeypatch.chdir(here.folder)
    monkeypatch.setenv("GIT_DIR", str(here.folder / ".git"))
    assert [release.tag for release in listed(repository.url).releases] == ["v1"]


@pytest.mark.parametrize(
    "url",
    [
        "--upload-pack=touch owned",
        "ext::sh -c 'touch owned'",
        "http://example.invalid/x",
        "git://example.invalid/x",
        "origin",
        "../x",
        "",
        "user:secret@example.invalid:x",
    ],
)
def test_only_https_ssh_and_files_are_asked(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "secret" not in str(fails(EngcmpError, "not the URL of a git repository", url))
    assert list(tmp_path.iterdir()) == []


def test_a_setting_of_git_cannot_lead_to_another_protocol(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "gitconfig"
    settings.write_text(
        f'[url "ext::touch {tmp_path}/owned "]\n\tinsteadOf = https://example.invalid/\n[protocol]\n\tallow = always\n'
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    fails(EngcmpError, "transport 'ext' not allowed", "https://example.invalid/x")
    assert not (tmp_path / "owned").exists()


def test_a_repository_that_is_not_there(tmp_path: Path, bare_settings: None) -> None:
    error = fails(EngcmpError, "no such repository", f"file://{tmp_path}/missing")
    assert error.where == f"file://{tmp_path}/missing"


def test_a_host_without_an_address_and_a_closed_port(bare_settings: None) -> None:
    fails(UnreachableError, "git: no answer: .*resolve", "https://user:secret@repository.invalid/x")
    error = fails(UnreachableError, "git: no answer", "https://user:secret@127.0.0.1:9/x")
    assert "secret" not in str(error)


def test_a_server_without_tls(server: Server, bare_settings: None) -> None:
    fails(UnreachableError, "git: no answer", server.address.replace("http:", "https:") + "/x")


@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        (404, EngcmpError, "no such repository"),
        (401, EngcmpError, "a login is needed"),
        (403, EngcmpError, "a login is needed"),
        (429, RateLimitedError, "too many requests"),
        (500, UnreachableError, "no answer"),
        (503, UnreachableError, "no answer"),
    ],
)
def test_what_a_server_answers_is_told_apart(
    secure_server: Server, known_certificate: None, status: int, kind: type[EngcmpError], words: str
) -> None:
    secure_server["/x/info/refs"] = Reply(status=status, headers={"WWW-Authenticate": "Basic"} if status == 401 else {})
    url = secure_server.address.replace("//", "//user:s%40cret@") + "/x"
    error = fails(kind, words, url)
    assert "cret" not in str(error)
    if isinstance(error, RateLimitedError):
        assert error.retry_after_s == 300


def test_a_network_s_login_page_is_no_repository_without_tags(secure_server: Server, known_certificate: None) -> None:
    secure_server["/x/info/refs"] = Reply(b"<html>Log in</html>", headers={"Content-Type": "text/html"})
    secure_server["/x/HEAD"] = secure_server.replies["/x/info/refs"]
    fails(EngcmpError, "it names neither a branch nor a tag", f"{secure_server.address}/x")


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("ssh: connect to host x port 22: Connection refused\nfatal: Could not read from x.", UnreachableError, "no answer"),
        ("git@x: Permission denied (publickey).\nfatal: Could not read from remote repository.", EngcmpError, "a login is needed"),
        ("Host key verification failed.\nfatal: Could not read from remote repository.", EngcmpError, "a login is needed"),
        ("fatal: could not read Username for 'https://x': terminal prompts disabled", EngcmpError, "or there is no such repository"),
        ("ERROR: Repository not found.\nfatal: Could not read from remote repository.", EngcmpError, "no such repository"),
        ("fatal: something else at https://u:secret@x/", EngcmpError, "git failed: fatal: something else at https://x/"),
        ("", EngcmpError, "git gave no reason"),
    ],
)  # fmt: skip
def test_what_git_says_of_ssh_is_told_apart(own_git: Path, text: str, kind: type[EngcmpError], words: str) -> None:
    says(own_git, text)
    with pytest.raises(kind) as failed:
        listed("git@host.invalid:owner/engine.git")
    assert words in str(failed.value)
    assert "secret" not in str(failed.value)


def test_git_cannot_ask_for_a_password(own_git: Path) -> None:
    names = ("GIT_TERMINAL_PROMPT", "GIT_ASKPASS", "SSH_ASKPASS", "GIT_ALLOW_PROTOCOL")
    own_git.write_text(
        f"#!{sys.executable}\nimport os, sys\n"
        f"print('fatal:', *(os.environ[name] or 'none' for name in {names}), sys.stdin.read() or 'silent',"
        " os.getsid(0) == os.getpid(), file=sys.stderr)\nsys.exit(1)\n"
    )
    own_git.chmod(0o755)
    fails(EngcmpError, "fatal: 0 none none https:ssh:file silent True", "https://host.invalid/x")


def test_a_git_that_hangs_is_ended_with_its_helpers(own_git: Path, tmp_path: Path) -> None:
    own_git.write_text(f"#!/bin/sh\ntrap '' TERM\nsleep 60 &\necho $! > {tmp_path}/helper\nwait\nsleep 60\n")
    own_git.chmod(0o755)
    with Watch() as watch:
        fails(UnreachableError, "no whole answer in time", "https://host.invalid/x", timeout_s=1.0)
    assert watch.seconds < 30
    state = subprocess.run(
        ["ps", "-o", "stat=", "-p", (tmp_path / "helper").read_text().strip()],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    assert state.strip() == "" or state.startswith("Z")


def test_a_listing_without_end_and_one_that_is_none_are_refused(own_git: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_git.write_text("#!/bin/sh\nexec yes aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\n")
    own_git.chmod(0o755)
    fails(EngcmpError, "the listing has more than 50 MB", "https://host.invalid/x")
    own_git.write_text("#!/bin/sh\necho hello\n")
    fails(EngcmpError, "the answer is not a listing", "https://host.invalid/x")


def test_a_machine_without_git(bare_settings: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    fails(EngcmpError, "git is not installed", "https://host.invalid/x")


def test_the_limit_of_a_listing_is_the_same_everywhere() -> None:
    assert git_module.LIMIT_BYTES == 50_000_000
