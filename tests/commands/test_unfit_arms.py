"""An arm that this machine cannot run ends a run that did not ask for it by name as a gap with its reason, and not as a failure."""

from __future__ import annotations

import dagster as dg
import pytest

from engcmp_assets.commands.run import _as_error, _end_with
from engcmp_assets.events import failures
from engcmp_resources.errors import EngcmpError, UnfitMachine
from engcmp_resources.start_failures import kind_of, remedy_for

OLD, OTHER = "q8_0/llamacpp@b1", "q4_0/llamacpp@b1"
UNFIT = UnfitMachine("arm a: no such instruction", where="log l", remedy="measure it on another machine")


def test_it_is_told_and_the_command_succeeds(capsys: pytest.CaptureFixture[str]) -> None:
    _end_with({OLD: UNFIT, OTHER: UNFIT}, [], 6)
    assert capsys.readouterr().out.count(f"Not measured on this machine: {UNFIT}") == 2


@pytest.mark.parametrize(
    ("failed", "named", "words"),
    [
        ({OLD: UNFIT}, [OLD], f"{OLD}: arm a: no such instruction"),
        ({OLD: UNFIT, OTHER: EngcmpError("died")}, [], f"^{OTHER}: died$"),
        ({OLD: UNFIT, OTHER: EngcmpError("died")}, [OLD], f"^2 of 6 arms failed; {OTHER}: died$"),
        ({OTHER: EngcmpError("died")}, [], "died"),
    ],
)
def test_an_arm_that_was_named_or_failed_otherwise_is_a_failure(
    failed: dict[str, EngcmpError], named: list[str], words: str
) -> None:
    with pytest.raises(EngcmpError, match=words):
        _end_with(failed, named, 6)


@pytest.mark.parametrize("error", [UNFIT, EngcmpError("died", where="here", remedy="mend it")])
def test_the_kind_of_error_goes_through_a_run_of_the_graph(error: EngcmpError) -> None:
    with pytest.raises(dg.Failure) as failed, failures():
        raise error
    back = _as_error(failed.value)
    assert type(back) is type(error)
    assert (back.what, back.where, back.remedy) == (error.what, error.where, error.remedy)


@pytest.mark.parametrize(
    ("text", "unfit"),
    [
        ("the container ended with exit code 132: it lacks", True),
        ("the server died of SIGILL before it was ready", True),
        ("run.sh: line 3: 77 Illegal instruction", True),
        ("the container ended with exit code 137", False),
        ("the container ended with exit code 1325", False),
    ],
)
def test_a_start_that_failed_for_want_of_an_instruction_is_known_by_its_words(text: str, unfit: bool) -> None:
    assert (kind_of(text) is UnfitMachine) == unfit
    assert ("another machine" in remedy_for(text)) == unfit
