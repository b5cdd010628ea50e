"""Every difference between two launches is listed, once, and none that belongs to one start alone."""

from __future__ import annotations

from typing import Any

from engcmp_assets.kernel.launch_diff import Side, differences_text, launch_confound, launch_differences

SPEC: dict[str, Any] = {"engine": "e", "version": "v1", "identities": {"image": "sha256:aa"}, "settings": {"slots": 4}}
FACTS: dict[str, Any] = {
    "engine": "e", "version": "v1", "load_ms": 100, "container": {"id": "c1", "restart_count": 0}, "ready": {"first_token_ms": 5},
    "environment": {"HF_TOKEN": "sha256:0123456789ab", "THREADS": "2"}, "command": ["serve", "--port", "1"],
    "settings": {"n_ctx": {"requested": 512, "resolved": 512}}, "stated": {"props": {"build": "b1"}},
}  # fmt: skip
HOST = {"cpu": "A", "gpus": {"missing": "no NVIDIA device"}}


def differing(**changed: Any) -> dict[str, tuple[Any, Any, bool]]:
    facts, spec, host = (changed.get(name, {}) for name in ("facts", "spec", "host"))
    found = launch_differences(Side(SPEC, FACTS, HOST), Side(SPEC | spec, FACTS | facts, HOST | host))
    return {one.name: (one.first, one.second, one.declared) for one in found}


def test_a_launch_does_not_differ_from_itself_nor_from_its_next_start() -> None:
    again = {"load_ms": 99, "container": {"id": "c2", "restart_count": 0}, "ready": {"first_token_ms": 9}}
    secret = {"environment": {"HF_TOKEN": "sha256:ba9876543210", "THREADS": "2"}}
    assert differing(facts=again | secret) == {}


def test_what_the_protocol_declares_is_told_apart_from_what_it_does_not() -> None:
    found = differing(
        spec={"version": "v2", "settings": {"slots": 8}},
        facts={"version": "v2", "stated": {"props": {"build": "b2"}}, "environment": {"THREADS": "3"}},
        host={"cpu": "B"},
    )
    assert found == {
        "version": ("v1", "v2", True),
        "settings.slots": (4, 8, True),
        "stated.props.build": ("b1", "b2", False),
        "environment.THREADS": ("2", "3", False),
        "environment.HF_TOKEN": ("sha256:0123456789ab", {"missing": "it has none"}, False),
        "host.cpu": ("A", "B", False),
    }


def test_a_setting_that_only_one_side_has_is_a_difference() -> None:
    found = differing(facts={"command": ["serve", "--port", "1", "--enforce-eager"]})
    assert list(found) == ["command"]
    assert "serve --port 1 --enforce-eager" in differences_text(
        launch_differences(
            Side(SPEC, FACTS, HOST),
            Side(SPEC, FACTS | {"command": ["serve", "--port", "1", "--enforce-eager"]}, HOST),
        ),
        ("a", "b"),
    )


def test_a_setting_that_was_resolved_differently_is_not_declared() -> None:
    other = {"n_ctx": {"requested": 512, "resolved": 256}}
    assert differing(facts={"settings": other}) == {"settings.n_ctx.resolved": (512, 256, False)}
    other = {"n_ctx": {"requested": 256, "resolved": 512}}
    assert differing(facts={"settings": other}) == {"settings.n_ctx.requested": (512, 256, True)}


def test_the_confound_names_what_was_not_declared_and_shows_where_long_values_part() -> None:
    long = "CPU : SSE3 = 1 | AVX = 1 | AVX2 = 1 | F16C = 1 | FMA = 1 | BMI2 = 1 | "
    first = Side(SPEC, FACTS | {"system": long + "AVX512 = 1 | OPENMP = 1"}, HOST)
    second = Side(SPEC | {"version": "v2"}, FACTS | {"system": long + "OPENMP = 1"}, HOST)
    (sentence,) = launch_confound(launch_differences(first, second), command="engcmp launch diff x/a x/b")
    assert "system (..AVX512 = 1 | OPENMP = 1; ..OPENMP = 1)" in sentence and "engcmp launch diff x/a x/b" in sentence
    assert "version" not in sentence
    assert launch_confound(launch_differences(first, first), command="-") == []


def test_many_differences_are_counted_and_all_are_in_the_list() -> None:
    first, second = ({f"fact{index}": index + side for index in range(9)} for side in (0, 1))
    found = launch_differences(Side(SPEC, FACTS, first), Side(SPEC, FACTS, second))
    (sentence,) = launch_confound(found, command="-")
    assert len(found) == 9 and "and 3 more" in sentence


def test_what_one_side_alone_states_is_counted_and_is_no_difference_of_both() -> None:
    other = FACTS | {"environment": {**FACTS["environment"], "SPEED": "1"}}
    sides = Side(SPEC | {"kind": "one"}, FACTS, {}), Side(SPEC | {"kind": "other"}, other, {})
    (variable,) = launch_differences(*sides)[:1]
    assert variable.name == "environment.SPEED" and variable.told_by_both, (
        "a variable that one side lacks is a difference"
    )
    found = launch_differences(Side(SPEC, FACTS, {}), Side(SPEC, FACTS, {"a": 1, "b": 2}))
    (sentence,) = launch_confound(found, command="-")
    assert "differ in nothing that both state" in sentence and "2 other things are stated by one side only" in sentence
    text = differences_text(found, ("x", "y"))
    assert (
        "stated by the second only" in text and "host.a, host.b" in text and "a confound of every comparison: 0" in text
    )


def test_the_same_things_under_the_names_of_a_child_process_and_of_a_server_do_not_differ() -> None:
    process = {
        "engine": "e",
        "version": "v1",
        "model_sha256": "aa",
        "library_sha256": "bb",
        "context_tokens": 512,
        "threads": 2,
    }
    server = {
        "kind": "docker", "engine": "e", "version": "v1", "identities": {"model": "aa", "library": "bb"},
        "settings": {"context_tokens": 512, "threads": 3},
    }  # fmt: skip
    own = {"settings": {"n_ctx": {"requested": 512, "resolved": 512}, "n_threads": {"requested": 2, "resolved": 2}}}
    theirs = {
        "settings": {"context_tokens": {"requested": 512, "resolved": 512}, "threads": {"requested": 3, "resolved": 3}}
    }
    found = launch_differences(Side(process, own, {}), Side(server, theirs, {}))
    assert [(one.name, one.first, one.second) for one in found] == [
        ("settings.threads.resolved", 2, 3), ("kind", "child process", "docker"), ("settings.threads", 2, 3),
        ("settings.threads.requested", 2, 3),
    ]  # fmt: skip
