"""What a server is asked for at a capture: full rows where a panel keeps them, else what its API gives; what it cannot give is refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from engcmp_assets.captured_rows import running
from engcmp_assets.captured_rows.journalled import Capture, Launch
from engcmp_assets.captured_rows.running import Running, launch_place
from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.study import load_study
from engcmp_resources.engines.servers import Capabilities, LightRows, RowsTaken, RunningServer
from engcmp_resources.errors import EngcmpError

ARM = ArmKey.parse("q4_0/llamacpp-docker@b11549")
LAUNCH = Launch(2, "prefill", 1, ("pa",))


class StandInServer:
    """Stands for a server that is running: it says what it can do, and what it was asked for."""

    url, facts = "http://127.0.0.1:1", {"engine": "stand-in"}

    def __init__(self, **can: Any) -> None:
        self.capabilities, self.asked = Capabilities(**can), list[tuple[Any, ...]]()

    def tokenize(self, text: str) -> list[int]:
        return [len(text)]

    def full_rows(self, *asked: Any) -> RowsTaken:
        self.asked.append(("full", *asked))
        return RowsTaken(1, 0.1, {"chunks": [4]})

    def light_rows(self, *asked: Any) -> LightRows:
        self.asked.append(("light", *asked))
        return LightRows(np.zeros((1, 20), np.int64), np.zeros((1, 20)), np.zeros(1), 0.1)

    def refuse_changed(self) -> None:
        self.asked.append(("unchanged",))


def asked_of(keeps: list[str], **can: Any) -> tuple[StandInServer, Running]:
    """What a capture whose launch serves panels that keep this has of a server that can do that."""
    server = StandInServer(**can)
    panels = [SimpleNamespace(keep=keep) for keep in keeps]
    capture = SimpleNamespace(panels_of=lambda _launch: panels, work=SimpleNamespace(arm=ARM))
    return server, running._asked_of(cast(Capture, capture), LAUNCH, cast(RunningServer, server))


def test_full_rows_are_asked_for_where_a_panel_keeps_them(tmp_path: Path) -> None:
    server, found = asked_of(["light", "rows"], prompt_logprobs="full", rows=("prefill",), tokenizer=True)
    assert found.light is None and found.full is not None and found.tokenize is not None
    found.full("w", [1, 2], [0], tmp_path / "rows")
    found.unchanged()
    assert server.asked == [("full", "prefill", "w", [1, 2], [0], tmp_path / "rows"), ("unchanged",)]
    assert found.facts == server.facts and found.tokenize("abc") == [3]


def test_light_rows_are_asked_for_where_no_panel_keeps_more(tmp_path: Path) -> None:
    server, found = asked_of(["light"], prompt_logprobs=20)
    assert found.full is None and found.light is not None and found.tokenize is None
    assert found.light("w", [1, 2], [0]).next_log_prob.shape == (1,)
    assert server.asked == [("light", "prefill", "w", [1, 2], [0])]
    _, both = asked_of(["light"], prompt_logprobs=0, rows=("prefill",))
    assert both.full is not None and both.light is not None, "a server of full rows gives light ones too"


@pytest.mark.parametrize(
    ("keeps", "can", "said"),
    [
        (["rows"], {"prompt_logprobs": 20}, "wants full rows on the prefill path, .* gives 20 log-prob"),
        (["rows", "light"], {"rows": ("decode",)}, "wants full rows .* gives no log-probabilities there"),
        (["light"], {"prompt_logprobs": 5}, "wants the 20 most probable tokens of a row .* gives 5"),
        (["light"], {"decode_logprobs": 20}, "wants the 20 most probable tokens of a row .* gives no log"),
    ],
)
def test_what_a_server_cannot_give_is_refused_before_anything_is_measured(
    keeps: list[str], can: dict[str, Any], said: str
) -> None:
    with pytest.raises(EngcmpError, match=f"{ARM}: launch 2 {said}.*nothing was measured"):
        asked_of(keeps, **can)


def test_a_launch_has_its_files_and_a_folder_that_is_gone_when_it_ends(tmp_path: Path) -> None:
    study, scratch = load_study("smollm2-docker"), tmp_path / "start-1"
    scratch.mkdir()
    (scratch / "left.txt").write_text("of a start that was killed")
    work = SimpleNamespace(study=study, say=print, file=lambda artifact, output: tmp_path / f"{artifact}~{output}")
    with (
        pytest.raises(ZeroDivisionError),
        launch_place(cast(Any, work), ARM, scratch, labels={}, log=tmp_path / "log") as place,
    ):
        assert place.scratch == scratch and list(scratch.iterdir()) == []
        assert place.files == {
            "model": tmp_path / "sources~q4_0.gguf",
            "library": tmp_path / "sources~engine-library",
        }, "an image is no file"
        assert place.study == study.folder and place.gpus == ()
        raise ZeroDivisionError
    assert not scratch.exists()
