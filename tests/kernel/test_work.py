"""How a receipt comes to be: keys before the work, answers from the store, evidence for each arm, and nothing from damage."""

from __future__ import annotations

import dataclasses
import datetime
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from homes import Q4, Q8, STUDY, flipped, replace_file

from engcmp_assets.kernel.receipts import check_receipt
from engcmp_assets.kernel.records import ArmKey, Check
from engcmp_assets.kernel.study import Study
from engcmp_assets.kernel.work import Done, Made, Product, Session, Step, Use, Work, materialize, output_blob
from engcmp_resources.errors import EngcmpError
from engcmp_resources.store import Blob, Store

Make = Callable[[Work], Made]


class Workshop:
    """Two small steps on a real store and the real study: `base`, the same for every arm, and `top`, made from it."""

    def __init__(self, home: Path, study: Study) -> None:
        self.said: list[str] = []
        self.made: list[str] = []
        self.content = b"rows"
        self.parameter = 1
        self.session = Session(study, Store(home), "run-1", self.said.append)
        self.base = self.step("base", (), self.make_base)
        self.top = self.step("top", (Use("base", "arm", ("rows.json",)),), self.make_top)
        self.all_arms = dataclasses.replace(
            self.step("wide", (Use("top", "every arm"),), self.make_wide), per_arm=False
        )

    def step(self, artifact: str, uses: tuple[Use, ...], make: Make) -> Step:
        def parameters(_study: Study, _arm: ArmKey | None) -> Mapping[str, Any]:
            return {"parameter": self.parameter} if artifact == "base" else {}

        return Step(artifact, artifact, "", "group", (), "1", uses, True, parameters, make)

    def make_base(self, work: Work) -> Made:
        self.made.append(f"base {work.arm}")
        return Made(
            [Product("rows.json", "json", self.content), Product("plot.png", "png", b"a picture", role="view")],
            checks=[Check("sound", True, "it is")], flags=["b", "a"], details={"parameter": self.parameter},
        )  # fmt: skip

    def make_top(self, work: Work) -> Made:
        self.made.append(f"top {work.arm}")
        return Made([Product("copy.json", "json", work.file("base", "rows.json").read_bytes() + b"!")])

    def make_wide(self, work: Work) -> Made:
        self.made.append("wide")
        return Made([Product("arms.json", "json", json.dumps(sorted(str(arm) for _, arm in work.inputs)).encode())])

    def run(self, step: Step, arm: str | None = Q4, **options: Any) -> Done:
        return materialize(self.session, step, None if arm is None else ArmKey.parse(arm), **options)


@pytest.fixture
def workshop(tmp_path: Path, study: Study) -> Workshop:
    return Workshop(tmp_path / "home", study)


# ---------------------------------------------------------------- answering


def test_the_same_task_is_done_once_and_its_head_then_stands(workshop: Workshop) -> None:
    first = workshop.run(workshop.base)
    again = workshop.run(workshop.base)
    assert workshop.made == [f"base {Q4}"]
    assert not first.answered_from_store
    assert again.answered_from_store
    assert again.sha256 == first.sha256


def test_another_arm_is_answered_with_a_receipt_of_its_own_and_the_same_content(workshop: Workshop) -> None:
    first = workshop.run(workshop.base)
    other = workshop.run(workshop.base, Q8)
    assert workshop.made == [f"base {Q4}"]
    assert other.answered_from_store
    assert other.sha256 != first.sha256
    assert other.receipt["arm"] == Q8
    assert other.receipt["answered_by"] == first.sha256
    for name in ("task_key", "content_id", "outputs", "checks", "flags", "details", "measurement"):
        assert other.receipt[name] == first.receipt[name]
    assert workshop.run(workshop.base, Q8).sha256 == other.sha256


def test_a_changed_parameter_or_version_is_another_task(workshop: Workshop) -> None:
    first = workshop.run(workshop.base)
    workshop.parameter = 2
    second = workshop.run(workshop.base)
    assert second.receipt["task_key"] != first.receipt["task_key"]
    assert second.receipt["content_id"] != first.receipt["content_id"]
    third = workshop.run(dataclasses.replace(workshop.base, version="2"))
    assert len(workshop.made) == 3
    assert third.receipt["measurement"] == 1
    workshop.parameter = 1
    back = workshop.run(workshop.base)
    assert back.answered_from_store
    assert back.receipt["content_id"] == first.receipt["content_id"]
    assert len(workshop.made) == 3


def test_what_is_made_from_equal_content_is_answered_though_its_input_has_a_new_receipt(workshop: Workshop) -> None:
    workshop.run(workshop.base)
    first = workshop.run(workshop.top)
    workshop.run(workshop.base, remeasure=True)
    second = workshop.run(workshop.top)
    assert workshop.made == [f"base {Q4}", f"top {Q4}", f"base {Q4}"]
    assert second.answered_from_store
    assert second.sha256 != first.sha256
    assert second.receipt["inputs"][0]["receipt_sha256"] != first.receipt["inputs"][0]["receipt_sha256"]


def test_measuring_again_adds_a_measurement_and_overwrites_nothing(workshop: Workshop) -> None:
    first = workshop.run(workshop.base)
    workshop.content = b"other rows"
    second = workshop.run(workshop.base, remeasure=True)
    assert (first.receipt["measurement"], second.receipt["measurement"]) == (1, 2)
    store = workshop.session.store
    assert store.read_receipt(first.sha256) == first.receipt
    assert store.path(output_blob(first.receipt, "rows.json")).read_bytes() == b"rows"
    assert workshop.run(workshop.base).sha256 == second.sha256
    assert workshop.run(workshop.base, Q8).receipt["measurement"] == 2  # the latest measurement is the one that answers


def test_an_arm_takes_over_a_later_measurement_of_the_same_task(workshop: Workshop) -> None:
    workshop.run(workshop.base)
    old = workshop.run(workshop.base, Q8)
    workshop.content = b"other rows"
    new = workshop.run(workshop.base, remeasure=True)
    after = workshop.run(workshop.base, Q8)
    assert after.sha256 != old.sha256
    assert after.receipt["answered_by"] == new.sha256
    assert after.receipt["outputs"] == new.receipt["outputs"]


# ---------------------------------------------------------------- receipts


def test_a_receipt_is_sound_and_says_what_was_made_and_from_what(workshop: Workshop) -> None:
    base = workshop.run(workshop.base)
    top = workshop.run(workshop.top)
    for done in (base, top):
        check_receipt(done.receipt, where="here")
        assert done.receipt["study"] == STUDY
        assert done.receipt["frozen_sha256"] == workshop.session.study.frozen_sha256
        assert done.receipt["run_id"] == "run-1"
    assert base.receipt["flags"] == ["a", "b"]
    (item,) = top.receipt["inputs"]
    assert (item["artifact"], item["arm"], item["receipt_sha256"]) == ("base", Q4, base.sha256)
    assert (item["content_id"], item["uses"]) == (base.receipt["content_id"], ["rows.json"])
    head = workshop.session.store.head(STUDY, Q4.replace("/", "~"), "top")
    assert head == top.sha256


def test_no_path_host_or_user_is_in_any_receipt(measured_home: Path) -> None:
    import getpass
    import socket

    words = {str(measured_home), str(Path.home()), socket.gethostname(), str(Path(__file__).parents[2])}
    words |= {f'"{getpass.getuser()}"'}
    for path in (measured_home / "receipts").iterdir():
        text = path.read_text()
        # A short host name may be part of a longer word.
        assert not [word for word in words if re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text)], path


def test_each_receipt_of_a_place_is_later_than_the_one_before_though_the_clock_was_set_back(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = workshop.run(workshop.base)

    class SetBack(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:
            return datetime.datetime(2020, 1, 1, tzinfo=tz)

    monkeypatch.setattr("engcmp_assets.kernel.work.datetime.datetime", SetBack)
    second = workshop.run(workshop.base, remeasure=True)
    assert second.receipt["finished_at"] > first.receipt["finished_at"]


def test_views_lead_to_the_current_outputs(workshop: Workshop) -> None:
    workshop.run(workshop.base)
    view = workshop.session.store.home / "views" / STUDY / Q4.replace("/", "~") / "base"
    assert (view / "rows.json").read_bytes() == b"rows"
    assert (view / "plot.png").read_bytes() == b"a picture"
    workshop.content = b"other rows"
    workshop.run(workshop.base, remeasure=True)
    assert (view / "rows.json").read_bytes() == b"other rows"
    (view / "rows.json").unlink()
    workshop.run(workshop.base)
    assert (view / "rows.json").is_symlink()


# ---------------------------------------------------------------- inputs


def test_a_receipt_names_the_inputs_that_were_used_though_another_process_made_them_anew_meanwhile(
    workshop: Workshop,
) -> None:
    used = workshop.run(workshop.base)

    def make(work: Work) -> Made:
        made = workshop.make_top(work)
        workshop.content = b"rows of another process"
        workshop.run(workshop.base, remeasure=True)
        return made

    top = workshop.run(dataclasses.replace(workshop.top, make=make))
    check_receipt(top.receipt, where="here")
    assert top.receipt["inputs"][0]["receipt_sha256"] == used.sha256


def test_a_missing_input_is_named_with_what_to_do(workshop: Workshop) -> None:
    with pytest.raises(EngcmpError, match=rf"top of {Q4} needs base, which was not made yet; materialize base first"):
        workshop.run(workshop.top)


def test_an_artifact_of_every_arm_takes_in_those_that_there_are(workshop: Workshop) -> None:
    workshop.run(workshop.base)
    workshop.run(workshop.top)
    first = workshop.run(workshop.all_arms, None)
    workshop.run(workshop.base, Q8)
    workshop.run(workshop.top, Q8)
    second = workshop.run(workshop.all_arms, None)
    blobs = [output_blob(done.receipt, "arms.json") for done in (first, second)]
    assert [json.loads(workshop.session.store.path(blob).read_bytes()) for blob in blobs] == [[Q4], sorted([Q4, Q8])]


@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_nothing_is_made_from_a_damaged_file(workshop: Workshop, damage: str) -> None:
    base = workshop.run(workshop.base)
    path = workshop.session.store.path(output_blob(base.receipt, "rows.json"))
    data = path.read_bytes()
    path.unlink()
    if damage != "gone":
        path.write_bytes(flipped(1)(data) if damage == "flip" else data[:-1])
    with pytest.raises(EngcmpError, match=rf"rows\.json of base is missing or was changed .*{path.name}.*made anew"):
        workshop.run(workshop.top)
    workshop.run(workshop.base)  # is not answered from the store: made anew
    assert workshop.made == [f"base {Q4}", f"top {Q4}", f"base {Q4}"]
    workshop.run(workshop.top)
    assert path.read_bytes() == data


def test_a_file_of_the_store_that_is_no_longer_sound_gets_no_receipt(workshop: Workshop) -> None:
    def make(work: Work) -> Made:
        blob = work.store.put_bytes(b"captured before a restart", "json")
        replace_file(work.store.path(blob), b"captured before A restart")
        return Made([Product("rows.json", "json", blob)])

    with pytest.raises(EngcmpError, match=r"rows\.json is missing or was changed since it was stored"):
        workshop.run(workshop.step("base", (), make))
    assert workshop.session.store.head(STUDY, Q4.replace("/", "~"), "base") is None


def test_an_output_that_the_receipt_lacks_is_an_error(workshop: Workshop) -> None:
    done = workshop.run(workshop.base)
    with pytest.raises(EngcmpError, match="artifact base has no output 'q5'; materialize it again"):
        output_blob(done.receipt, "q5")


# ---------------------------------------------------------------- damage heals


@pytest.mark.parametrize("kind", ["head", "receipt"])
def test_a_damaged_head_or_receipt_is_told_and_made_anew(workshop: Workshop, kind: str) -> None:
    first = workshop.run(workshop.base)
    store = workshop.session.store
    head = store.head_path(workshop.session.place("base", ArmKey.parse(Q4)))
    path = head if kind == "head" else store.receipt_path(first.sha256)
    replace_file(path, flipped(20)(path.read_bytes()))
    again = workshop.run(workshop.base)
    expected = f"[{Q4}] base: {kind} was changed after it was written ({path}); it is made anew"
    assert expected in workshop.said
    assert store.head(STUDY, Q4.replace("/", "~"), "base") == again.sha256
    assert store.read_receipt(again.sha256) == again.receipt
    assert len(workshop.made) == (1 if kind == "head" else 2)  # without its receipt the work has no evidence


def test_a_task_whose_receipt_is_of_another_version_of_engcmp_is_done_again(workshop: Workshop) -> None:
    first = workshop.run(workshop.base)
    store = workshop.session.store
    other = {name: value for name, value in first.receipt.items() if name != "flags"} | {"labels": []}
    place = workshop.session.place("base", ArmKey.parse(Q4))
    blobs = [output_blob(first.receipt, name) for name in ("rows.json", "plot.png")]
    store.commit(place, other, completes=blobs)
    again = workshop.run(workshop.base)
    check_receipt(again.receipt, where="here")
    assert not again.answered_from_store
    assert any(
        "labels: Extra inputs are not permitted" in line or "flags: Field required" in line for line in workshop.said
    )


def test_what_is_made_from_an_input_with_a_damaged_receipt_is_refused(workshop: Workshop) -> None:
    base = workshop.run(workshop.base)
    path = workshop.session.store.receipt_path(base.sha256)
    replace_file(path, path.read_bytes()[:-1])
    with pytest.raises(EngcmpError, match=f"receipt was changed after it was written .*{base.sha256}"):
        workshop.run(workshop.top)


def test_a_kill_between_receipt_and_head_is_finished_by_the_next_run(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = workshop.run(workshop.base)

    def die(*_arguments: object) -> None:
        raise KeyboardInterrupt

    workshop.content = b"other rows"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Store, "_set_head", die)
        workshop.run(workshop.base, remeasure=True)
    again = workshop.run(workshop.base)
    assert len(workshop.made) == 2
    assert again.answered_from_store
    assert again.sha256 != first.sha256
    assert again.receipt["measurement"] == 2


# ---------------------------------------------------------------- the frozen protocol


def test_nothing_is_made_under_a_protocol_that_was_edited_after_its_freeze(tmp_path: Path, study: Study) -> None:
    edited = Study(study.folder, {**study.files, "texts/prose-1.txt": b"edited"}, study.frozen)
    workshop = Workshop(tmp_path / "home", edited)
    with pytest.raises(EngcmpError, match=r"protocol file texts/prose-1\.txt was edited after the freeze"):
        workshop.run(workshop.base)
    assert workshop.made == []


def test_a_work_s_progress_and_words_carry_the_arm_and_the_artifact(workshop: Workshop) -> None:
    def make(work: Work) -> Made:
        work.say("hello")
        work.progress("rows", 2).update(2, "window a")
        return Made([Product("x.json", "json", work.store.put_bytes(b"1", "json"))])

    workshop.run(workshop.step("base", (), make))
    assert workshop.said == [f"[{Q4}] base: hello", f"[{Q4}] base: window a, 2/2 rows"]


def test_a_product_may_be_bytes_a_file_or_what_the_store_holds(workshop: Workshop) -> None:
    def make(work: Work) -> Made:
        path = work.store.temporary()
        path.write_bytes(b"from a file")
        return Made(
            [
                Product("a", "json", b"from bytes"), Product("b", "json", path, rows=3),
                Product("c", "json", work.store.put_bytes(b"held", "json")),
            ]
        )  # fmt: skip

    done = workshop.run(workshop.step("base", (), make))
    contents = [workshop.session.store.path(output_blob(done.receipt, name)).read_bytes() for name in "abc"]
    assert contents == [b"from bytes", b"from a file", b"held"]
    assert [output["rows"] for output in done.receipt["outputs"]] == [None, 3, None]
    assert isinstance(output_blob(done.receipt, "a"), Blob)


# ---------------------------------------------------------------- names of outputs


@pytest.mark.parametrize("name", ["q4_0~llamacpp@b1.json", "../up.json", "a//b.json", "", ".hidden", "rows.json\n"])
def test_an_output_that_no_receipt_may_name_is_refused_before_anything_is_stored(workshop: Workshop, name: str) -> None:
    def make(_work: Work) -> Made:
        return Made([Product("sound.json", "json", b"stays out"), Product(name, "json", b"and this too")])

    with pytest.raises(EngcmpError, match="an output of odd cannot be called") as told:
        workshop.run(workshop.step("odd", (), make))
    assert repr(name) in told.value.what and "letters" in str(told.value.remedy)
    home = workshop.session.store.home
    assert not [
        path
        for folder in ("store", "receipts", "heads", "views")
        for path in (home / folder).rglob("*")
        if path.is_file()
    ]


def test_a_record_that_its_own_check_would_refuse_is_not_written(workshop: Workshop) -> None:
    def make(_work: Work) -> Made:
        product = Product("twice.json", "json", b"rows")
        return Made([product, product])

    with pytest.raises(EngcmpError, match="an output stands twice") as told:
        workshop.run(workshop.step("odd", (), make))
    assert "nothing was recorded" in str(told.value.remedy)
    assert not list((workshop.session.store.home / "receipts").iterdir())
    assert workshop.session.current("odd", ArmKey.parse(Q4)) is None


def test_the_view_of_an_output_that_is_no_more_goes_and_a_user_s_own_file_stays(workshop: Workshop) -> None:
    names = ["rows/1.json", "rows/2.json", "old/only.json"]

    def make(_work: Work) -> Made:
        return Made([Product(name, "json", name.encode()) for name in names])

    step = workshop.step("many", (), make)
    workshop.run(step)
    folder = workshop.session.store.home / "views" / STUDY / Q4.replace("/", "~") / "many"
    (folder / "notes.txt").write_text("mine", encoding="utf-8")
    names[1:] = []
    workshop.run(dataclasses.replace(step, version="2"))
    left = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))
    assert left == ["notes.txt", "rows", "rows/1.json"]
    workshop.run(step)  # answered from the store: its names are there again
    assert (folder / "old" / "only.json").read_bytes() == b"old/only.json"


def test_views_of_an_artifact_below_another_one_stay(workshop: Workshop) -> None:
    workshop.run(workshop.step("captured/pa", (), lambda _work: Made([Product("a.json", "json", b"a")])))
    workshop.run(workshop.step("captured", (), lambda _work: Made([Product("b.json", "json", b"b")])))
    folder = workshop.session.store.home / "views" / STUDY / Q4.replace("/", "~") / "captured"
    assert (folder / "pa" / "a.json").read_bytes() == b"a" and (folder / "b.json").read_bytes() == b"b"
