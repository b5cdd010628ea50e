"""Looking and writing down, in this process: approval by the protocol, files that are there already, places that do not answer."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny import TINY, TinyStudy
from watched import ENGINE, FIRST, SECOND, iterations, make_watched, release

from engcmp_assets.engine_versions.look import candidates_of, look, look_patiently, write_candidates
from engcmp_assets.frozen_protocol.iteration_freeze import freeze_iteration
from engcmp_assets.kernel.study import load_study
from engcmp_resources.errors import EngcmpError
from engcmp_resources.store import Store


@pytest.fixture
def watched(
    tmp_path: Path, measured_home: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> TinyStudy:
    """The watched study, frozen, in this process's environment; approval as the test's parameter says."""
    tiny = make_watched(tmp_path, measured_home, approval=getattr(request, "param", "wait"))
    for name, value in (tiny.variables | {"ENGCMP_HOME": str(tiny.home)}).items():
        monkeypatch.setenv(name, value)
    done = tiny.run("freeze", TINY)
    assert done.returncode == 0, done.stderr
    return tiny


def looked(tiny: TinyStudy) -> list[str]:
    said: list[str] = []
    study = load_study(TINY)
    written = write_candidates(study, Store(tiny.home), look(study, ENGINE), said.append)
    assert not written.failed, written.failed
    return list(written.names)


@pytest.mark.parametrize("watched", ["automatic"], indirect=True)
def test_where_the_protocol_approves_the_arms_are_there_at_once_except_of_a_tag_pushed_again(
    watched: TinyStudy, llamacpp_library: Path
) -> None:
    release(watched, FIRST, llamacpp_library)
    assert looked(watched) == ["llamacpp-b1"]
    assert [str(arm) for arm in load_study(TINY).protocol.arm_keys][-1] == "q4_0/llamacpp@b1"
    release(watched, FIRST, llamacpp_library, note="again")
    (again,) = looked(watched)
    assert f"{again}.frozen.json" not in iterations(watched)
    assert list(candidates_of(load_study(TINY))) == [again]


def test_several_releases_are_written_in_their_order_and_a_second_look_writes_none(
    watched: TinyStudy, llamacpp_library: Path
) -> None:
    release(watched, SECOND, llamacpp_library)
    release(watched, FIRST, llamacpp_library)
    assert looked(watched) == ["llamacpp-b1", "llamacpp-b2"]
    assert looked(watched) == []


def test_a_file_that_a_user_wrote_under_that_name_is_left_alone(watched: TinyStudy, llamacpp_library: Path) -> None:
    release(watched, FIRST, llamacpp_library)
    path = watched.folder / "iterations" / "llamacpp-b1.toml"
    path.parent.mkdir()
    path.write_text('schema = "engcmp.iteration/1"\nbecause = "mine"\n', encoding="utf-8")
    before = path.read_bytes()
    assert looked(watched) == []
    assert path.read_bytes() == before


def test_a_declined_candidate_stays_declined(watched: TinyStudy, llamacpp_library: Path) -> None:
    release(watched, FIRST, llamacpp_library)
    looked(watched)
    path = watched.folder / "iterations" / "llamacpp-b1.toml"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("because =", 'declined = "crashes here"\nbecause =', 1), encoding="utf-8")
    assert looked(watched) == []
    with pytest.raises(EngcmpError, match="llamacpp-b1 was declined: crashes here"):
        freeze_iteration(load_study(TINY), "llamacpp-b1")


def test_a_wheel_without_the_member_is_named_and_keeps_no_other_release_from_being_found(
    watched: TinyStudy, llamacpp_library: Path
) -> None:
    path = release(watched, FIRST, Path(__file__))
    path.write_bytes(path.read_bytes().replace(b"xllamacpp.abi3.so", b"xllamacpp.other.o"))
    release(watched, SECOND, llamacpp_library)
    study = load_study(TINY)
    written = write_candidates(study, Store(watched.home), look(study, ENGINE), lambda _text: None)
    assert "xllamacpp/xllamacpp.abi3.so" in written.failed[FIRST]
    assert written.names == ("llamacpp-b2",)
    assert list(iterations(watched)) == ["llamacpp-b2.toml"]
    assert not list((watched.home / "scratch").glob("tmp-*"))


def test_an_index_that_does_not_answer_is_said_and_is_no_error(
    watched: TinyStudy, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = watched.folder / "protocol.toml"
    text = path.read_text(encoding="utf-8")
    text = text.replace('place = "folder"', 'place = "package_index"').replace(
        str(watched.root / "wheels"), "xllamacpp"
    )
    path.write_text(text, encoding="utf-8")
    for name, value in {
        "PIP_NO_INDEX": "0",
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        "PIP_FIND_LINKS": "",
    }.items():
        monkeypatch.setenv(name, value)
    seen = look_patiently(load_study(TINY), ENGINE)
    assert seen.findings == ()
    assert seen.unanswered is not None and "no answer" in seen.unanswered
