"""After an amendment, and beside another study: no figure is published under a hash or a name that is not its own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tiny import BASE_ARM, TINY, TinyStudy, make_tiny

OTHER = "smollm2-other"


@pytest.fixture(scope="module")
def tiny(measured_home: Path, tmp_path_factory: pytest.TempPathFactory) -> TinyStudy:
    """The tiny study, measured."""
    tiny = make_tiny(tmp_path_factory.mktemp("amend"), measured_home)
    for arguments in (("freeze", TINY), ("run", TINY)):
        done = tiny.run(*arguments)
        assert done.returncode == 0, done.stderr
    return tiny


def summary(tiny: TinyStudy, study: str = TINY) -> dict[str, Any]:
    path = tiny.home / "views" / study / "_study" / "publication" / "SUMMARY.json"
    document: dict[str, Any] = json.loads(path.read_bytes())
    return document


def test_a_copied_study_has_figures_of_its_own_name_and_verifies(tiny: TinyStudy) -> None:
    folder = tiny.folder.with_name(OTHER)
    shutil.copytree(tiny.folder, folder, ignore=shutil.ignore_patterns("FROZEN.json", "iterations"))
    path = folder / "protocol.toml"
    path.write_text(path.read_text(encoding="utf-8").replace(f'"{TINY}"', f'"{OTHER}"'), encoding="utf-8")
    try:
        for arguments in (("freeze", OTHER), ("run", OTHER), ("verify", OTHER)):
            done = tiny.run(*arguments)
            assert done.returncode == 0, done.stderr + done.stdout
        ids = [figure["figure_id"] for arm in summary(tiny, OTHER)["arms"] for figure in arm["figures"]]
        ids += [figure["figure_id"] for pair in summary(tiny, OTHER)["comparisons"] for figure in pair["figures"]]
        assert ids and all(one.startswith(f"{OTHER}/") for one in ids)
        assert tiny.run("trace", ids[0]).returncode == 0
    finally:
        shutil.rmtree(folder)


def test_after_an_amendment_old_figures_are_none_of_the_new_hash_until_they_are_made_anew(tiny: TinyStudy) -> None:
    same = tiny.run("amend", TINY, "--because", "nothing")
    assert same.returncode == 0 and "nothing has changed" in same.stdout
    text = tiny.folder / "texts" / "prose-1.txt"
    before, frozen = text.read_text(encoding="utf-8"), tiny.frozen
    text.write_text(before.replace("the", "THE"), encoding="utf-8")
    amended = tiny.run("amend", TINY, "--because", "another text")
    assert amended.returncode == 0, amended.stderr
    assert json.loads(frozen)["frozen_sha256"] in amended.stdout  # it says which hash it was

    code = (
        "from engcmp_assets.automation import stale_results; from engcmp_assets.kernel.study import load_study\n"
        "from engcmp_assets.kernel.work import Session; from engcmp_resources.store import Store\n"
        "from engcmp_resources.places import home_folder\n"
        "print(stale_results(Session(load_study('smollm2-tiny'), Store(home_folder(), read_only=True), 'test', print)))"
    )
    assert tiny.python(code) == "{}"  # no arm is measured under the new hash: the sensor asks for nothing

    refused = tiny.python(
        "import dagster as dg; from engcmp_assets.graph import definitions; from engcmp_assets.commands.instance import open_instance\n"
        "with open_instance() as instance:\n"
        "    job = definitions().resolve_job_def('smollm2_tiny_results')\n"
        "    try:\n"
        "        job.execute_in_process(instance=instance)\n"
        "    except dg.Failure as failure:\n"
        "        print(failure.metadata['what'].value)"
    )
    assert "under another frozen hash" in refused
    assert (
        summary(tiny)["frozen_sha256"] == json.loads(frozen)["frozen_sha256"]
    )  # the pages of the old hash stay what they are

    assert tiny.run("run", TINY).returncode == 0
    assert summary(tiny)["frozen_sha256"] == json.loads(tiny.frozen)["frozen_sha256"]
    assert next(one for one in summary(tiny)["arms"] if one["arm"] == BASE_ARM)["state"] == "measured"
    assert tiny.python(code) == "{}"
    verified = tiny.run("verify", TINY)
    assert verified.returncode == 0, verified.stdout
