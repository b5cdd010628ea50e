"""`engcmp launch diff`: the list of confounds of a comparison, from the receipts of two launches."""

from __future__ import annotations

import json
from pathlib import Path

from homes import STUDY, engcmp_here

OLD, NEW = f"{STUDY}/q4_0/llamacpp@b10809", f"{STUDY}/q4_0/llamacpp@b11549"


def test_it_lists_what_was_declared_and_what_came_with_the_release(measured_home: Path) -> None:
    done = engcmp_here("launch", "diff", OLD, NEW, "--json", ENGCMP_HOME=str(measured_home))
    assert done.returncode == 0, done.stderr
    found = {one["name"]: one for one in json.loads(done.stdout)["differences"]}
    assert (found["version"]["first"], found["version"]["second"], found["version"]["declared"]) == (
        "b10809",
        "b11549",
        True,
    )
    assert not found["ggml_version"]["declared"]
    text = engcmp_here("launch", "diff", OLD, NEW, ENGCMP_HOME=str(measured_home)).stdout
    assert "declared in the protocol: 2" in text and "ggml_version" in text


def test_launches_of_one_arm_do_not_differ_and_the_paths_of_one_do(measured_home: Path) -> None:
    assert (
        "do not differ"
        in engcmp_here("launch", "diff", OLD, OLD, "--path", "decode", ENGCMP_HOME=str(measured_home)).stdout
    )


def test_what_names_no_launch_is_refused_with_the_remedy(measured_home: Path, tmp_path: Path) -> None:
    done = engcmp_here("launch", "diff", OLD, STUDY, ENGCMP_HOME=str(measured_home))
    assert done.returncode == 1 and "STUDY/ARM" in done.stderr
    done = engcmp_here("launch", "diff", OLD, "q4_0/llamacpp@b10809", ENGCMP_HOME=str(measured_home))
    said = done.stderr
    assert done.returncode == 1 and "'q4_0/llamacpp@b10809' names no launch: a name is STUDY/ARM" in said
    assert OLD in said and NEW in said, "those that exist"
    done = engcmp_here("launch", "diff", "q4_0/llamacpp@b10809", NEW, ENGCMP_HOME=str(tmp_path))
    assert done.returncode == 1 and "none was measured here yet: engcmp run STUDY" in done.stderr
    done = engcmp_here("launch", "diff", OLD, f"{STUDY}/q4_0/llamacpp@b1", ENGCMP_HOME=str(measured_home))
    assert done.returncode == 1 and "b1" in done.stderr
    done = engcmp_here("launch", "diff", OLD, NEW, ENGCMP_HOME=str(tmp_path))
    assert done.returncode == 1 and "was not measured yet" in done.stderr and "engcmp run" in done.stderr
