"""The settings as files to copy: what each kind of launch left in its receipt, as its launcher takes it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from summary_sample import sample
from test_site import bare_evidence

from engcmp_assets.publication.site.launch_files import launch_files
from engcmp_assets.publication.site.site import render_site

CONFIG = "GLM5_FLASH_FP8_PREFILL=off\nRTX_GPUS=2\n"
CUTEAFD = {
    "command": ["bash", "run.sh", "--restart"], "launcher": {"commit": "ab" * 20, "patch_sha256": None, "config": CONFIG},
    "image": {"id": "sha256:1", "digest": "sha256:2"},
}  # fmt: skip
FORK = {
    "command": ["bash", "start.sh"], "launcher": {"commit": "cd" * 20, "patch_sha256": "ef" * 32},
    "environment": {"MODEL_PROFILE": "k4", "CACHE_DIR": "{cache}", "EXTRA": {"missing": "hidden"}},
}  # fmt: skip
DOCKER = {
    "command": ["-m", "/model.gguf", "--ctx-size", "512"], "image": {"id": "sha256:1", "digest": "name@sha256:2"}, "network": "none",
    "environment": {"A": "b c"}, "mounts": [{"target": "/model.gguf", "read_only": True, "file": "weights", "sha256": "0" * 64}],
}  # fmt: skip
CASES = {
    "cuteafd": (CUTEAFD, {"launcher.config": CONFIG, "start.sh": "bash run.sh --restart"}),
    "vllm-fork": (FORK, {"launch.env": "CACHE_DIR={cache}\nMODEL_PROFILE=k4\n", "start.sh": ". ./launch.env"}),
    "docker": (
        DOCKER,
        {
            "launch.env": "A=b c\n",
            "start.sh": "docker run --rm --env-file launch.env --network none name@sha256:2 -m /model.gguf",
        },
    ),
    "in this process": ({"environment": {"OMP_WAIT_POLICY": "passive"}}, {}),
    "somebody else's": ({}, {}),
}


@pytest.mark.parametrize("kind", CASES)
def test_each_kind_has_the_files_that_its_launcher_takes(kind: str, tmp_path: Path) -> None:
    facts, wanted = CASES[kind]
    found = {one["name"]: one["text"] for one in launch_files(facts)}
    assert set(found) == set(wanted)
    for name, text in wanted.items():
        assert found[name] == text if name != "start.sh" else text in found[name]
    if "start.sh" in found:
        script = tmp_path / "start.sh"
        script.write_text(found["start.sh"], encoding="utf-8")
        assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0


def test_the_page_has_each_file_to_copy_and_as_a_file_of_the_site() -> None:
    summary = sample()
    arm = summary["arms"][0]["arm"]
    evidence = bare_evidence(summary) | {
        "launches": {arm: {"kind": "cuteafd"}},
        "launch_files": {arm: launch_files(CUTEAFD)},
    }
    site = render_site(summary, evidence)
    page = site["settings.html"].decode("utf-8")
    (name,) = (one for one in site if one.endswith("/launcher.config"))
    assert site[name].decode("utf-8") == CONFIG and f'href="{name}"' in page and "GLM5_FLASH_FP8_PREFILL=off" in page
