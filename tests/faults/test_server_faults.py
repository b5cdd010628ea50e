"""Faults of servers that users of other tools have met (FAULTS, sections 2, 3, 4 and 9): a capture is right in spite of them, or refused.

Tested where the client itself is tested:

| fault | test |
| --- | --- |
| 2 log-probabilities altered by sampling parameters | engines/test_vllm_http.py, test_sglang_http.py: not what they seem stop the run |
| 2 stale log-probabilities of a cached prefix | the same; and below, in any order |
| 2 a server that errs at echo with log-probabilities | engines/test_vllm_http.py: a server that cannot score a prompt is said to lack it |
| 3 a flag that promised determinism and set nothing | engines/test_vllm_fork_launch.py: what is in the container is in the receipt |
| 4 the server takes other tokens than were planned | engines/test_vllm_http.py: 40 tokens were sent and the server took 8 |
| 4 a double or missing begin token | engines/test_vllm_http.py: is told |
| 4 control tokens in a text, another model's tokenizer | engines/test_vllm_http.py: told apart by the probe texts |
| 9 prefill sold as decode | engines/test_vllm_http.py: rows of the decode path are refused with the reason |
| 9 cached prompts in a measurement | engines/test_vllm_http.py, test_sglang_http.py, test_cuteafd_http.py: cached tokens void a capture |
"""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

sys.path.append(str(Path(__file__).parent.parent / "engines"))

from simulated import MODEL, VOCAB, Rows, prove, simulated, tokens, truth

from engcmp_resources.engines._api import ApiClient, ApiName, BrokenOff, tokenizer_differences
from engcmp_resources.engines.servers import ScorePath
from engcmp_resources.errors import EngcmpError

IDS = tokens(40)
ALL = list(range(39))


def rows_of(client: ApiClient, out: Path, ids: list[int] = IDS, path: ScorePath = "prefill") -> Rows:
    positions = list(range(len(ids) - 1))
    client.full_rows(path, "w1", ids, positions, out, deadline_s=30)
    return np.fromfile(out, dtype="<f4").reshape(len(positions), VOCAB)


# ---------------------------------------------------------------- 2 log-probabilities


def test_rows_are_taken_alone_and_what_other_requests_change_is_not_in_them(tmp_path: Path) -> None:
    with simulated("vllm", max_logprobs=-1, faults=["noise_under_load"]) as (client, _):
        alone = [rows_of(client, tmp_path / "rows") for _ in range(2)]
        notes = client.light_rows("prefill", "w1", IDS, ALL, deadline_s=30).notes
    assert alone[0].tobytes() == alone[1].tobytes() == truth(IDS, ALL).tobytes()
    assert notes["other_requests_in_step"] == {"missing": "the API does not state it"}


@pytest.mark.parametrize("api", ["vllm", "sglang"])
def test_rows_do_not_depend_on_the_order_in_which_windows_are_scored(api: ApiName, tmp_path: Path) -> None:
    """Windows with a beginning in common, and a server that answers from its cache with another prompt's values."""
    windows = [IDS, [*IDS[:32], *tokens(8, seed=9)], tokens(40, seed=5)]
    options: dict[str, Any] = {"max_logprobs": -1} if api == "vllm" else {}
    with simulated(api, faults=["logprobs_stale"], **options) as (client, _):
        for order in ([0, 1, 2], [2, 1, 0]):
            for index in order:
                try:
                    found = rows_of(client, tmp_path / "rows", windows[index])
                except EngcmpError as error:  # SGLang has no salt: what it has cached is seen and refused
                    assert api == "sglang"
                    assert "came from the prefix cache" in str(error)
                else:
                    assert found.tobytes() == truth(windows[index], ALL).tobytes()


@pytest.mark.parametrize("api", ["vllm", "sglang", "cuteafd"])
def test_an_engine_that_dies_in_a_capture_leaves_nothing_and_the_next_one_gives_the_same_rows(
    api: ApiName, tmp_path: Path
) -> None:
    dumps, out = tmp_path / "dumps", tmp_path / "rows"
    dumps.mkdir()
    options: dict[str, Any] = {"vllm": {"max_logprobs": -1}, "cuteafd": {"dump_root": dumps}}.get(api, {})
    with simulated(api, faults=[{"name": "dies_in_row", "at": {"row": 20}}], **options) as (client, _):
        with pytest.raises(BrokenOff):
            rows_of(client, out)
        assert [path for path in tmp_path.rglob("*") if path != dumps] == []
    with simulated(api, **options) as (client, _):
        assert rows_of(client, out).tobytes() == truth(IDS, ALL).tobytes()


# ---------------------------------------------------------------- 3 nondeterminism


def test_no_determinism_is_claimed_of_a_server_and_two_captures_show_it(tmp_path: Path) -> None:
    with simulated("sglang", faults=["noise"]) as (client, _):
        proved, _facts = prove(client)
        one, two = (rows_of(client, tmp_path / "rows") for _ in range(2))
    assert not [name for name in proved.as_json() if "determin" in name]
    assert not np.array_equal(one, two)
    assert float(np.abs(one - two).max()) < 1


def test_the_first_row_that_differs_between_captures_is_found_where_the_second_chunk_begins(tmp_path: Path) -> None:
    with simulated("vllm", max_logprobs=-1, chunk=16, faults=["noise_from_second_chunk"]) as (client, _):
        one, two = (rows_of(client, tmp_path / "rows") for _ in range(2))
    differing = np.flatnonzero((one != two).any(axis=1))
    assert differing[0] == 16
    assert one[:16].tobytes() == truth(IDS, list(range(16))).tobytes()


def test_a_repeat_is_as_cold_as_the_first_capture(tmp_path: Path) -> None:
    with simulated("vllm", max_logprobs=-1, faults=["cache_changes_rows", "logprobs_stale"]) as (client, _):
        first, *repeats = (rows_of(client, tmp_path / "rows") for _ in range(3))
    assert all(repeat.tobytes() == first.tobytes() for repeat in repeats)


# ---------------------------------------------------------------- 4 prompt tokens and templates


@pytest.mark.parametrize("api", ["vllm", "sglang", "cuteafd"])
@pytest.mark.parametrize("fault", ["tokenizer_other", "control_strings_parsed", "bos_double"])
def test_rows_are_of_the_ids_that_were_sent_whatever_the_server_s_tokenizer_does(
    api: ApiName, fault: str, tmp_path: Path
) -> None:
    dumps = tmp_path / "dumps"
    dumps.mkdir()
    options: dict[str, Any] = {"vllm": {"max_logprobs": -1}, "cuteafd": {"dump_root": dumps}}.get(api, {})
    control = [3, 5, 6, *IDS[:10]]  # control tokens, as ids
    with simulated(api, faults=[fault], **options) as (client, _):
        assert rows_of(client, tmp_path / "rows", control).tobytes() == truth(control, list(range(12))).tobytes()


def test_the_shortest_windows(tmp_path: Path) -> None:
    with simulated("vllm", max_logprobs=-1, faults=["empty_prompt"]) as (client, _):
        assert rows_of(client, tmp_path / "rows", IDS[:2]).tobytes() == truth(IDS[:2], [0]).tobytes()
        with pytest.raises(EngcmpError, match=r"a row outside 0\.\.-1"):
            client.light_rows("prefill", "w1", IDS[:1], [0], deadline_s=5)


# ---------------------------------------------------------------- 9 unfair comparison


def test_the_same_chat_is_the_same_ids_on_two_engines_or_the_difference_is_told(tmp_path: Path) -> None:
    def chat(api: ApiName, **options: Any) -> dict[str, list[int]]:
        with simulated(api, **options) as (client, _):
            return {"chat": prove(client)[1]["template"]["prompt"]["token_ids"]}

    one = chat("vllm")
    dumps = tmp_path / "dumps"
    dumps.mkdir()
    assert tokenizer_differences(one, chat("cuteafd", dump_root=dumps)) == []
    assert tokenizer_differences(one, chat("cuteafd", dump_root=dumps, faults=["bos_double"])) == [
        "'chat': one side puts token 1 in front"
    ]


def test_a_capture_while_others_use_the_server_is_the_caller_s_to_avoid_and_its_rows_differ(tmp_path: Path) -> None:
    """What the notes cannot tell shows as a floor: so nothing else may use the server, and repeats are compared."""
    body = {"model": MODEL, "prompt": IDS, "max_tokens": 400, "ignore_eos": True, "min_tokens": 400}
    with simulated("vllm", max_logprobs=-1, faults=["noise_under_load"], timing={"itl_ms": 20}) as (client, simulator):

        def generate() -> None:
            with suppress(httpx.RequestError):  # the server is ended under it
                httpx.post(f"{simulator.url}/v1/completions", json=body, trust_env=False, timeout=60)

        other = threading.Thread(target=generate)
        other.start()
        while not any(record["prompt_ids"] == IDS for record in simulator.truth(path="/v1/completions")):
            assert other.is_alive()
        rows = rows_of(client, tmp_path / "rows")
        assert other.is_alive()
        simulator.stop()
        other.join(10)
    assert not np.array_equal(rows, truth(IDS, ALL))
