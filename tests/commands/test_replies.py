"""`engcmp replies` as a user runs it: right verdicts on the model's own tokenizer, one line for bad input, nothing half written."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest
from homes import CHECKOUT, Here, assert_one_clear_line, engcmp

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))

import bench_replies
from replies_corpus.corpus import HEALTHY, LENGTHS, LOOPS, REPORTING, TUNING, corpus
from replies_corpus.report import report
from replies_corpus.writing import much, paragraph, sentence

from engcmp_assets.kernel.replies.hits import ON_REPORTING_SEEDS, Case, count_hits, hits_text
from engcmp_resources.gguf_files import open_gguf
from engcmp_resources.reply_files import PROBES, ReplyTokenizer
from engcmp_resources.tokenizing import GgufTokenizer

KEYS = {
    "reply_id", "finish", "looped", "detector", "onset_token", "self_repetition", "restated", "novelty8", "compression",
    "reasoning_tokens", "reasoning_chars", "answer_tokens", "answer_chars", "judged",
}  # fmt: skip


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Here:
    return Here(monkeypatch, capsys)


@pytest.fixture(scope="session")
def tokenizer_folder(smollm2_weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2's tokenizer, as the weights hold it."""
    folder = tmp_path_factory.mktemp("tokenizer")
    with open_gguf(smollm2_weights) as model:
        (folder / "tokenizer.json").write_text(GgufTokenizer.from_model(model).as_json(), encoding="utf-8")
    return folder


def line(reply_id: str, reasoning: str | None = "", answer: str | None = "", **more: Any) -> dict[str, Any]:
    entry = {"reply_id": reply_id, "kind": "prose", "reasoning": reasoning, "answer": answer, "finish_reason": "stop"}
    return entry | more


def write(folder: Path, *lines: dict[str, Any] | bytes) -> Path:
    path = folder / "replies.jsonl"
    path.write_bytes(b"\n".join(one if isinstance(one, bytes) else json.dumps(one).encode() for one in lines))
    return path


def run(here: Here, path: Path, tokenizer: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return here(
        "replies",
        str(path),
        "--tokenizer",
        str(tokenizer),
        "--out",
        str(path.parent / "out.json"),
        *more,
        home=path.parent,
    )


def verdicts(path: Path) -> list[dict[str, Any]]:
    document = json.loads((path.parent / "out.json").read_bytes())
    assert set(document) == {"replies"}
    found: list[dict[str, Any]] = document["replies"]
    return found


def refused(here: Here, path: Path, tokenizer: Path, *words: str, more: tuple[str, ...] = ()) -> None:
    before = sorted(path.parent.rglob("*"))
    assert_one_clear_line(run(here, path, tokenizer, *more), *words)
    assert sorted(path.parent.rglob("*")) == before


# ---------------------------------------------------------------- verdicts


def test_the_labelled_corpus_is_told_apart_on_seeds_that_no_threshold_was_chosen_by(tokenizer_folder: Path) -> None:
    found = report(ReplyTokenizer.load(tokenizer_folder), REPORTING)
    assert found == ON_REPORTING_SEEDS, hits_text(found)
    vote = found.detectors[-1]
    assert vote.detector == "vote" and vote.false_flags == 0
    assert vote.hits >= 0.95 * found.loops
    assert found.loops > 250 and found.healthy > 500


def test_the_corpus_has_every_class_in_every_length_and_disjoint_seeds() -> None:
    assert not set(TUNING) & set(REPORTING)
    names = [one.name for one in corpus((1,))]
    assert len(set(names)) == len(names)
    for chars in LENGTHS:
        assert {f"{write.__name__}/1/{chars}/length" for write in LOOPS} <= set(names)
        assert {f"{name}/1/{chars}/length" for name in HEALTHY} <= set(names)
    assert [one.answer for one in corpus((1,), (5000,))] == [one.answer for one in corpus((1,), (5000,))]


def test_hits_and_false_flags_are_counted_by_label() -> None:
    cases = [Case("a", True, ["exact_period"], True), Case("b", True, [], False), Case("c", False, ["novelty8"], False)]
    found = count_hits(cases)
    assert (found.loops, found.healthy, found.missed) == (2, 1, ("b",))
    assert {one.detector: (one.hits, one.false_flags) for one in found.detectors} == {
        "exact_period": (1, 0), "self_repetition": (0, 0), "novelty8": (0, 1), "novelty8_digits": (0, 0), "vote": (1, 0),
    }  # fmt: skip


def test_each_reply_gets_its_class_and_exactly_the_keys_that_are_promised(
    here: Here, tokenizer_folder: Path, tmp_path: Path
) -> None:
    chance = Random(1)
    healthy, unit = much(paragraph, chance, 4000), sentence(chance) + " "
    path = write(
        tmp_path,
        line("capped", healthy, finish_reason="length"),
        line("looped", healthy + unit * 200, finish_reason="length", kind="reasoning"),
        line("recovered", healthy + unit * 300 + healthy[::-1], "It is 3."),
        line("finished", None, healthy),
        line("empty"),
        line("broken", "", "So", finish_reason=None),
        line("stopped", "", healthy + unit * 200, finish_reason="stopped_early"),
    )
    done = run(here, path, tokenizer_folder)
    assert done.returncode == 0, done.stderr
    found = {one["reply_id"]: one for one in verdicts(path)}
    assert list(found) == ["capped", "looped", "recovered", "finished", "empty", "broken", "stopped"]
    assert all(set(one) == KEYS for one in found.values())
    ends = {name: (one["finish"], one["looped"], one["detector"]) for name, one in found.items()}
    assert ends == {
        "capped": ("capped", False, None), "looped": ("capped", True, "exact_period"), "finished": ("finished", False, None),
        "recovered": ("recovered", False, "exact_period"), "empty": ("empty", False, None), "broken": ("error", False, None),
        "stopped": ("stopped_early", True, "exact_period"),
    }  # fmt: skip
    looped, tokenizer = found["looped"], ReplyTokenizer.load(tokenizer_folder)
    assert looped["reasoning_chars"] == len(healthy + unit * 200) and looped["answer_tokens"] == 0
    assert looped["reasoning_tokens"] == len(tokenizer.encode(healthy + unit * 200))
    assert looped["onset_token"] == pytest.approx(len(tokenizer.encode(healthy + unit)), abs=3)
    assert looped["self_repetition"] > 0.5 and looped["novelty8"] == 0.0 and 0 < looped["compression"] < 1
    assert found["empty"]["novelty8"] == {"missing": "the span is shorter than 8 words"}
    ends = "2 capped, 1 empty, 1 error, 1 finished, 1 recovered, 1 stopped_early"
    assert f"7 replies, each counted once by how it ended: {ends}" in done.stdout
    assert "2 of the 4 that did not finish by themselves ended in a loop" in done.stdout
    assert "The vote of the detectors finds 267 of 270 labelled loops, and flags 0 of 600 healthy" in done.stdout
    assert done.stdout.index("The vote") < done.stdout.index("7 replies")
    assert len(done.stdout.splitlines()) < 12


def test_what_is_too_short_to_judge_is_said_to_be_so_and_a_loop_in_it_is_still_told(
    here: Here, tokenizer_folder: Path, tmp_path: Path
) -> None:
    path = write(
        tmp_path,
        line("short", "", "It is 3.", finish_reason="length"),
        line("copies", "", "Wait, no. " * 40, finish_reason="length"),
        line("long", "", much(paragraph, Random(5), 3000), finish_reason="length"),
    )
    done = run(here, path, tokenizer_folder)
    assert {one["reply_id"]: (one["judged"], one["looped"]) for one in verdicts(path)} == {
        "short": (False, False), "copies": (True, True), "long": (True, False),
    }  # fmt: skip
    assert "1 too short to judge: in a last span of fewer than 249 tokens only exact copies can be told" in done.stdout


def test_a_line_may_leave_its_reasoning_out(here: Here, tokenizer_folder: Path, tmp_path: Path) -> None:
    bare = {name: value for name, value in line("r1", "", "It is 3.").items() if name != "reasoning"}
    path = write(tmp_path, bare, line("r2", None, "It is 3."))
    assert run(here, path, tokenizer_folder).returncode == 0
    one, other = verdicts(path)
    assert {**one, "reply_id": "r2"} == other and one["reasoning_tokens"] == 0


def test_for_machines_the_summary_is_one_object_with_the_evidence(
    here: Here, tokenizer_folder: Path, tmp_path: Path
) -> None:
    path = write(tmp_path, line("r1", "Wait, no. " * 300 + "Wa", finish_reason="length"))
    done = run(here, path, tokenizer_folder, "--json", "--jobs", "1")
    summary = json.loads(done.stdout)
    assert (summary["replies"], summary["looped"], summary["finish"]) == (1, 1, {"capped": 1})
    assert summary["loops"][0]["span"] == "reasoning" and summary["loops"][0]["period"]["tokens"] == 4
    assert summary["thresholds"]["novelty_words"] == 700
    assert summary["detectors_on_the_labelled_corpus"]["detectors"][-1]["detector"] == "vote"


def test_verdicts_are_the_same_on_any_number_of_threads(here: Here, tokenizer_folder: Path, tmp_path: Path) -> None:
    lines = [
        line(f"r{number}", one.reasoning, one.answer, kind=one.kind, finish_reason=one.finish_reason)
        for number, one in enumerate(corpus((3,), (9000,)))
    ]
    path = write(tmp_path, *lines)
    written = []
    for jobs in ("1", "3"):
        assert run(here, path, tokenizer_folder, "--jobs", jobs).returncode == 0
        written.append((tmp_path / "out.json").read_bytes())
    assert written[0] == written[1]


def test_a_gguf_file_serves_as_the_tokenizer(
    here: Here, smollm2_weights: Path, tokenizer_folder: Path, tmp_path: Path
) -> None:
    path = write(tmp_path, line("r1", "", much(paragraph, Random(2), 3000)))
    link = tmp_path / "weights.gguf"
    link.symlink_to(smollm2_weights)
    assert run(here, path, link).returncode == 0
    written = (tmp_path / "out.json").read_bytes()
    assert run(here, path, tokenizer_folder).returncode == 0
    assert (tmp_path / "out.json").read_bytes() == written


def test_names_of_control_tokens_in_a_text_are_text_and_are_told(
    here: Here, tokenizer_folder: Path, tmp_path: Path
) -> None:
    path = write(tmp_path, line("leak", "", "It is 3.<|im_end|>"), line("clean", "", "It is 3."))
    done = run(here, path, tokenizer_folder)
    assert "1 with the name of a control token in the text, counted as text: leak" in done.stdout
    leak, clean = verdicts(path)
    assert leak["answer_tokens"] > clean["answer_tokens"] + 1


def test_a_reply_of_two_megabytes_is_judged(here: Here, tokenizer_folder: Path, tmp_path: Path) -> None:
    path = write(
        tmp_path,
        line("wide", "", "a" * 2_000_000),
        line("long", much(paragraph, Random(3), 2_000_000), finish_reason="length"),
    )
    assert run(here, path, tokenizer_folder).returncode == 0
    wide, long = verdicts(path)
    assert (wide["finish"], wide["detector"], wide["answer_chars"]) == ("recovered", "exact_period", 2_000_000)
    assert (long["finish"], long["looped"]) == ("capped", False)


def test_it_runs_as_a_process_of_its_own_and_says_where_it_is(tokenizer_folder: Path, tmp_path: Path) -> None:
    path = write(tmp_path, line("r1", "", "It is 3."))
    done = engcmp(
        "replies",
        str(path),
        "--tokenizer",
        str(tokenizer_folder),
        "--out",
        str(tmp_path / "new" / "out.json"),
        home=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "1/1 replies" in done.stderr
    assert (tmp_path / "new" / "out.json").is_file()


def test_the_benchmark_judges_replies_of_every_sort(tokenizer_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench_replies.measure(tokenizer_folder, 6, 3000, 1)
    assert "6 replies, " in capsys.readouterr().out


def test_the_corpus_report_is_printed_as_text_and_json(tokenizer_folder: Path) -> None:
    script = CHECKOUT / "tests" / "replies_corpus" / "report.py"
    done = subprocess.run([sys.executable, str(script), "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "Example: report.py" in done.stdout


# ---------------------------------------------------------------- bad input


GOOD = line("r1", "", "It is 3.")
BAD_LINES: dict[str, tuple[dict[str, Any] | bytes, tuple[str, ...]]] = {
    "invalid UTF-8": (b'{"reply_id": "x\xff"}', ("line 2", "invalid UTF-8: byte 16 of the line is 0xff", "U+FFFD")),
    "a cut character": (json.dumps(line("r2")).encode()[:-2] + b"\xe4\xbd", ("line 2", "invalid UTF-8")),
    "not JSON": (b"{", ("line 2", "not JSON", "one JSON object a line")),
    "a list": (b"[]", ("line 2", "not a JSON object", '"finish_reason"')),
    "deep nesting": (b"[" * 100_000, ("line 2", "not JSON")),
    "a missing field": ({"reply_id": "r2", "kind": "prose", "reasoning": "", "finish_reason": "stop"}, ("line 2", '"answer" is missing')),
    "a field that stands twice": (b'{"answer": "a", "answer": "b"}', ("line 2", "'answer' stands twice")),
    "a number": (line("r2", answer=3), ("line 2", '"answer" is 3, not text')),
    "no kind": (line("r2", kind=None), ("line 2", '"kind" is null, not text')),
    "an empty id": (line(""), ("line 2", '"reply_id" is "", not text')),
    "half a surrogate pair": (line("r2", answer="a\ud83d"), ("line 2", "half of a surrogate pair, \\ud83d, as character 2", "U+FFFD")),
    "an unknown kind": (line("r2", kind="poem"), ("line 2", "unknown kind 'poem'", "code, json, prose, reasoning")),
    "an unknown end": (line("r2", finish_reason="done"), ("line 2", "unknown finish_reason 'done'", "stop")),
    "an id that stands twice": (line("r1"), ("line 2", "reply_id 'r1' stands on line 1 already")),
}  # fmt: skip


@pytest.mark.parametrize("fault", BAD_LINES)
def test_a_bad_line_is_named_with_its_remedy_and_nothing_is_written(
    here: Here, tokenizer_folder: Path, tmp_path: Path, fault: str
) -> None:
    bad, words = BAD_LINES[fault]
    refused(here, write(tmp_path, GOOD, bad), tokenizer_folder, "replies.jsonl", *words)


def test_blank_lines_and_a_byte_order_mark_and_other_fields_do_no_harm(
    here: Here, tokenizer_folder: Path, tmp_path: Path
) -> None:
    path = write(tmp_path, b"\xef\xbb\xbf" + json.dumps(GOOD | {"seed": 7}).encode(), b"", b"  ", line("r2"))
    assert run(here, path, tokenizer_folder).returncode == 0
    assert [one["reply_id"] for one in verdicts(path)] == ["r1", "r2"]


@pytest.mark.parametrize("data", [b"", b"\n \n"])
def test_a_file_without_a_reply_is_refused(here: Here, tokenizer_folder: Path, tmp_path: Path, data: bytes) -> None:
    refused(here, write(tmp_path, data), tokenizer_folder, "no reply in the file", '"reply_id"')


def test_places_that_do_not_serve_are_refused_before_the_work(
    here: Here, tokenizer_folder: Path, tmp_path: Path
) -> None:
    path = write(tmp_path, GOOD)
    for place, words in (
        (path, "is the file of the replies"),
        (tmp_path, "cannot be written there"),
        (path / "x", "cannot be written there"),
    ):
        done = here("replies", str(path), "--tokenizer", str(tokenizer_folder), "--out", str(place), home=tmp_path)
        assert_one_clear_line(done, words)
    assert json.loads(path.read_bytes()) == GOOD
    refused(here, tmp_path / "none.jsonl", tokenizer_folder, "none.jsonl", "cannot be read")
    refused(here, tmp_path, tokenizer_folder, "not a file")


def test_a_place_without_a_tokenizer_or_with_a_damaged_one_is_refused(
    here: Here, tokenizer_folder: Path, tmp_path: Path
) -> None:
    path = write(tmp_path, GOOD)
    refused(here, path, tmp_path / "none", "no tokenizer can be read", "tokenizer.json", "GGUF")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "tokenizer.json").write_text("{}", encoding="utf-8")
    refused(here, path, tmp_path / "bad", "not a tokenizer.json", "fetch it again")
    (tmp_path / "bad" / "tokenizer.json").write_bytes(b"\xff\xfe")
    refused(here, path, tmp_path / "bad", "no tokenizer can be read")
    (tmp_path / "bad.gguf").write_bytes(b"GGUF")
    refused(here, path, tmp_path / "bad.gguf", "not a GGUF, or truncated")


def test_a_tokenizer_that_changes_text_is_not_one_of_a_model_that_writes(
    here: Here, tokenizer_folder: Path, tmp_path: Path
) -> None:
    document = json.loads((tokenizer_folder / "tokenizer.json").read_bytes())
    document["normalizer"] = {"type": "Lowercase"}
    (tmp_path / "lower").mkdir()
    (tmp_path / "lower" / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
    refused(
        here,
        write(tmp_path, GOOD),
        tmp_path / "lower",
        'gives "The Quick brown fox',
        "the model that wrote the replies",
    )


def test_a_tokenizer_that_asks_for_truncation_is_read_without_it(tokenizer_folder: Path, tmp_path: Path) -> None:
    document = json.loads((tokenizer_folder / "tokenizer.json").read_bytes())
    document["truncation"] = {"max_length": 4, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    document["padding"] = {
        "strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": "x",
    }  # fmt: skip
    (tmp_path / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
    for probe in PROBES:
        assert ReplyTokenizer.load(tmp_path).encode(probe) == ReplyTokenizer.load(tokenizer_folder).encode(probe)


def test_a_tokenizer_may_be_named_by_its_folder_or_its_file(tokenizer_folder: Path) -> None:
    own, same = (ReplyTokenizer.load(place) for place in (tokenizer_folder, tokenizer_folder / "tokenizer.json"))
    assert all(own.encode(probe) == same.encode(probe) for probe in PROBES)


def test_a_tokenizer_that_gives_other_ids_than_the_engine_is_refused(
    here: Here, tokenizer_folder: Path, tmp_path: Path
) -> None:
    path, probes = write(tmp_path, GOOD), tmp_path / "probes.json"
    ids = {probe: ReplyTokenizer.load(tokenizer_folder).encode(probe) for probe in PROBES}
    probes.write_text(json.dumps(ids), encoding="utf-8")
    assert run(here, path, tokenizer_folder, "--probes", str(probes)).returncode == 0
    (tmp_path / "out.json").unlink()
    probes.write_text(json.dumps(ids | {PROBES[3]: [5, 6]}), encoding="utf-8")
    refused(
        here,
        path,
        tokenizer_folder,
        "the engine [5, 6]",
        "probes.json",
        "the model that wrote",
        more=("--probes", str(probes)),
    )
    for text, words in (
        ("[]", "not an object"),
        ('{"a": ["x"]}', "not an object"),
        ("{}", "no probe string"),
        ("{", "not JSON"),
    ):
        probes.write_text(text, encoding="utf-8")
        refused(here, path, tokenizer_folder, words, "probes.json", more=("--probes", str(probes)))
