"""What a teacher says where it cannot begin; the rows themselves are tested with torch, by `make test-vllm`."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from engcmp_resources.engines.teacher import teacher_rows
from engcmp_resources.errors import EngcmpError


@pytest.mark.parametrize("name", ["torch", "transformers"])
def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    for module in ("torch", "transformers"):
        monkeypatch.setitem(sys.modules, module, SimpleNamespace() if module != name else None)
    with pytest.raises(EngcmpError, match=rf"needs the package {name}; pip install 'engcmp\[torch\]'"):
        teacher_rows(tmp_path, {"w": [1, 2]}, tmp_path / "out", dtype="float32")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("files", [[], ["config.json"], ["model.safetensors"], ["config.json", "pytorch_model.bin"]])
def test_a_folder_without_config_or_safetensors_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: list[str]
) -> None:
    for module in ("torch", "transformers"):
        monkeypatch.setitem(sys.modules, module, SimpleNamespace())
    model = tmp_path / "model"
    model.mkdir()
    for name in files:
        (model / name).touch()
    with pytest.raises(EngcmpError, match=r"config\.json and weights in safetensors are needed"):
        teacher_rows(model, {"w": [1, 2]}, tmp_path / "out", dtype="float32")
