"""protocol.toml at the edge: what it may say of panels, score paths and pairs, and how a mistake in it is named."""

from __future__ import annotations

import pytest

from engcmp_assets.captured_rows.journalled import launches_of
from engcmp_assets.kernel.protocol import Protocol, parse_protocol
from engcmp_assets.kernel.study import Study
from engcmp_resources.errors import EngcmpError


@pytest.fixture(scope="session")
def text(study: Study) -> str:
    return study.files["protocol.toml"].decode()


def parsed(text: str, *edits: tuple[str, str]) -> Protocol:
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new, 1)
    return parse_protocol(text.encode(), where="here")


PB = 'reference = "topk"\ntop_k = 1024\n'
PD_WINDOWS = 'windows = ["code-1", "prose-1"]\n'
DECODE = '[capture.decode]\npanels = ["pd"]\nlaunches = 1\nrepeats = 2'
WRONG: dict[str, tuple[tuple[str, str], str]] = {
    "top_k without a top-K reference": (
        ('reference = "full"\n', 'reference = "full"\ntop_k = 9\n'),
        "panels.pa.top_k must stand with",
    ),
    "a top-K reference without top_k": ((PB, 'reference = "topk"\n'), "panels.pb.top_k must stand with"),
    "no top at all": (("top_k = 1024", "top_k = 0"), "panels.pb.top_k: Input should be greater than or equal to 1"),
    "another reference": (('reference = "topk"', 'reference = "top"'), "panels.pb.reference: Input should be"),
    "other rows": (('rows = "consecutive"', 'rows = "last"'), "panels.pd.rows: Input should be"),
    "no rows": (("rows_per_window = 8", "rows_per_window = 0"), "panels.pd.rows_per_window: Input should be"),
    "a window twice": ((PD_WINDOWS, 'windows = ["code-1", "code-1"]\n'), "panels.pd.windows has 'code-1' twice"),
    "an unknown field": ((PD_WINDOWS, PD_WINDOWS + "window = 1\n"), "panels.pd.window: Extra inputs"),
    "no roles": (('roles = ["context"]', "roles = []"), "panels.pa.roles: List should have at least 1 item"),
    "a name that no artifact may have": (("[panels.pd]", '[panels."p d"]'), r"panels.p d.\[key\]: String should match"),
    "a measure of full rows at a top-K panel": (
        ('measures = ["kl_coarse", ', 'measures = ["kl_full", '),
        "panels.pb.measures names 'kl_full', which does not exist.*kl_coarse",
    ),
    "a measure of top-K rows at a full panel": (
        ('measures = ["kl_full", "nll", "top1"]', 'measures = ["kl_pb20"]'),
        "panels.pd.measures names 'kl_pb20'",
    ),
    "a pair measure of full rows at a top-K panel": (
        ('pair_measures = ["kl_pair_coarse"', 'pair_measures = ["kl_pair_full"'),
        "panels.pb.pair_measures names 'kl_pair_full'",
    ),
    "a primary measure that is not measured": (('primary = ["kl_full"]', 'primary = ["excess_entropy"]'), "panels.pa.primary"),
    "an unknown panel on a path": (('panels = ["pa", "pb", "pd"]', 'panels = ["pa", "px"]'), "capture.prefill.panels names 'px'"),
    "a panel that is not captured": (('panels = ["pa", "pb", "pd"]', 'panels = ["pa", "pd"]'), "capture.prefill.panels lacks 'pb'"),
    "a panel twice on a path": (('panels = ["pd"]', 'panels = ["pd", "pd"]'), "capture.decode.panels has 'pd' twice"),
    "no launch": (("launches = 2", "launches = 0"), "capture.prefill.launches: Input should be greater"),
    "no repeat": (("repeats = 2\n\n# ---", "repeats = 0\n\n# ---"), "capture.decode.repeats: Input should be greater"),
    "another path": (('candidate_path = "decode"', 'candidate_path = "http"'), "comparisons.5.candidate_path: Input"),
    "a decode pair without a decode path": ((DECODE, ""), "comparisons.decode-vs-prefill-q8_0.candidate_path: no panel"),
    "an arm beside itself": (
        ('candidate_path = "decode"', 'candidate_path = "prefill"'),
        "comparisons.decode-vs-prefill-q8_0.baseline is the candidate itself",
    ),
    "a version that is not there": (
        ('source = "llamacpp-b8672"', 'source = "llamacpp-b1"'),
        "engines.llamacpp.versions.b8672.source names 'llamacpp-b1'",
    ),
    "an arm of no version": (('arm = "q8_0/llamacpp@b8672"', 'arm = "q8_0/llamacpp@b1"'), "arms.0.arm names 'b1'"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_a_mistake_is_named_by_its_field_and_its_file(text: str, wrong: str) -> None:
    edit, words = WRONG[wrong]
    with pytest.raises(EngcmpError, match=words) as raised:
        parsed(text, edit)
    assert raised.value.where == "here"
    assert raised.value.remedy


def test_arms_are_compared_on_the_prefill_panels_and_score_paths_on_the_decode_panel(text: str) -> None:
    protocol = parsed(text)
    panels = {pair.pair_id: protocol.panels_of(pair) for pair in protocol.comparisons}
    assert panels["q4_0-vs-q8_0"] == ("pa", "pb")
    assert panels["decode-vs-prefill-q4_0"] == ("pd",)


def test_two_arms_may_be_compared_on_the_decode_path_alone(text: str) -> None:
    both = 'baseline = "q4_0/llamacpp@b10809"\ncandidate_path = "decode"\nbaseline_path = "decode"'
    protocol = parsed(text, ('baseline = "q4_0/llamacpp@b10809"', both))
    pair = next(pair for pair in protocol.comparisons if pair.candidate_path == pair.baseline_path == "decode")
    assert protocol.panels_of(pair) == ("pd",)


def test_launches_are_numbered_through_prefill_first_and_runs_carry_those_numbers(text: str) -> None:
    protocol = parsed(text)
    launches = launches_of(protocol)
    assert [(one.number, one.path, one.repeats, one.panels) for one in launches] == [
        (1, "prefill", 2, ("pa", "pb", "pd")), (2, "prefill", 2, ("pa", "pb", "pd")), (3, "decode", 2, ("pd",)),
    ]  # fmt: skip
    named = {f"{one.number}.{repeat}" for one in launches for repeat in range(1, one.repeats + 1)}
    assert {*protocol.capture.runs("prefill"), *protocol.capture.runs("decode")} == named


def test_a_study_without_a_decode_path_has_no_launch_of_it(text: str) -> None:
    cut = (
        text[: text.index("[capture.decode]")]
        + text[text.index("# ---------------------------------------------------------------- how it is judged") :]
    )
    cut = cut[: cut.index('[[comparisons]]\npair_id = "decode-vs-prefill-q8_0"')] + cut[cut.index("[limits]") :]
    protocol = parsed(cut)
    assert [one.path for one in launches_of(protocol)] == ["prefill", "prefill"]
    assert protocol.capture.runs("decode") == ()
    assert protocol.capture.decode_panels == ()


def test_a_study_may_be_captured_on_the_decode_path_alone(text: str) -> None:
    at = text.index("[capture.prefill]"), text.index("[capture.decode]")
    alone = text[: at[0]] + text[at[1] :].replace('panels = ["pd"]', 'panels = ["pa", "pb", "pd"]', 1)
    kept = (
        alone.index("[[comparisons]]"),
        alone.index("# ---------------------------------------------------------------- what comes later"),
    )
    pair = """[[comparisons]]
pair_id = "x"
label = "x"
candidate = "q4_0/llamacpp@b11549"
baseline = "q8_0/llamacpp@b11549"
candidate_path = "decode"
baseline_path = "decode"
"""
    protocol = parsed(alone[: kept[0]] + pair + alone[kept[1] :])
    assert [protocol.capture.main_path(name) for name in protocol.panels] == ["decode"] * 3
    assert protocol.capture.runs("decode") == ("1.1", "1.2") and protocol.capture.runs("prefill") == ()
    assert [(launch.number, launch.path) for launch in launches_of(protocol)] == [(1, "decode")]
    assert protocol.panels_of(protocol.comparisons[0]) == ("pa", "pb", "pd")


def test_a_light_panel_has_the_measures_of_light_rows_and_no_others(text: str) -> None:
    light = ('reference = "full"\n', 'reference = "full"\nkeep = "light"\n')
    measures = (
        'measures = ["kl_full", "nll", "top1", "entropy"]\nprimary = ["kl_full"]',
        'measures = ["kl_top20", "nll"]\nprimary = ["kl_top20"]',
    )
    pairs = ('pair_measures = ["kl_pair_full", "rows_bit_identical"]', 'pair_measures = ["kl_pair20"]')
    plan = parsed(text, light, measures, pairs).panels["pa"]
    assert (plan.keep, plan.kl, plan.possible_of_pairs) == ("light", "kl_top20", ("kl_pair20",))
    with pytest.raises(EngcmpError, match=r"panels.pa.measures names 'kl_full', which does not exist.*kl_top20"):
        parsed(text, light)
    with pytest.raises(EngcmpError, match=r"panels.pa.pair_measures names 'kl_pair_full'"):
        parsed(text, light, measures)


SERVER = """[engines.boxed]
kind = "docker"
label = "in a container"
[engines.boxed.settings]
api = "llama-server"
[engines.boxed.versions.b1]
source = "image"
files = { library = "llamacpp-b11549" }
[sources.image]
image = "x/y"
tag = "1"
digest = "sha256:%s"
license = "MIT"
[[arms]]
arm = "q4_0/boxed@b1"
""" % ("0" * 64)
PLACE = "# ---------------------------------------------------------------- what is measured"


def test_a_server_engine_names_its_image_and_further_files_by_their_role(text: str) -> None:
    protocol = parsed(text, (PLACE, SERVER + PLACE))
    arm = protocol.require_arm("q4_0/boxed@b1")
    assert protocol.roles_of(arm) == {"image": "image", "library": "llamacpp-b11549"}
    assert protocol.roles_of(protocol.arm_keys[0]) == {"library": "llamacpp-b8672"}
    with pytest.raises(EngcmpError, match=r"engines.boxed.versions.b1.files.library names 'nothing'"):
        parsed(text, (PLACE, SERVER.replace('library = "llamacpp-b11549"', 'library = "nothing"') + PLACE))
    with pytest.raises(EngcmpError, match=r"engines.boxed.threads: Extra inputs"):
        parsed(text, (PLACE, SERVER.replace('label = "in a', 'threads = 2\nlabel = "in a') + PLACE))


@pytest.mark.parametrize(
    ("wrong", "right"), [("thread = 2", "threads"), ("context_token = 512", "context_tokens"), ("kinds = 'a'", "kind")]
)
def test_a_misspelt_key_is_named_with_the_right_one(text: str, wrong: str, right: str) -> None:
    """The right one is missing for that reason alone: it must not be the one that is told."""
    line = next(line for line in text[text.index("[engines.llamacpp]") :].splitlines() if line.startswith(f"{right} ="))
    found = (
        rf"engines\.llamacpp\.{wrong.split(maxsplit=1)[0]}: Extra inputs are not permitted; did you mean '{right}'\?"
    )
    with pytest.raises(EngcmpError, match=found):
        parsed(text, ("[engines.llamacpp]\n", "[engines.llamacpp]\n" + wrong + "\n"), (f"\n{line}\n", "\n"))


def test_a_server_that_already_runs_needs_no_source_and_every_other_engine_does(text: str) -> None:
    lone = SERVER.replace('source = "image"\nfiles = { library = "llamacpp-b11549" }\n', "")
    protocol = parsed(text, (PLACE, lone.replace('kind = "docker"', 'kind = "external"') + PLACE))
    assert protocol.roles_of(protocol.require_arm("q4_0/boxed@b1")) == {}
    with pytest.raises(EngcmpError, match=r"engines\.boxed\.versions\.b1\.source: Field required"):
        parsed(text, (PLACE, lone + PLACE))
