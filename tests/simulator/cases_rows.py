"""What shows each fault of rows and dumps: the rows as they were sent, beside those of the model."""

from __future__ import annotations

import math
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from engcmp_resources.errors import EngcmpError
from engcmp_resources.row_layouts.probe_dump import open_dump

from .cases import Of, shows
from .model import Model, log_softmax, tokenize
from .running import Simulator, running_simulator
from .talking import ask, chat_stream, rows_of, score

PROMPT = tokenize("These rows are compared with the truth, all of them, to the last bit.")
LAST = len(PROMPT) - 1
Rows = npt.NDArray[np.float32]


def truth_rows() -> Rows:
    return log_softmax(Model().rows(PROMPT, range(LAST)))


def scored(simulator: Simulator, **changes: Any) -> Rows:
    return np.array(rows_of(score(simulator, PROMPT, **changes), 512), dtype=np.float32)


def probed(simulator: Simulator, **spec: Any) -> Any:
    answer = ask(simulator, "/v1/bench/probe", {"spec": {"prompt_ids": PROMPT, "score_from": 1} | spec})
    return answer.json()["probe"]["rows"]


def differing(one: Rows, other: Rows) -> list[int]:
    """The rows that are not equal bit for bit."""
    return np.flatnonzero((one != other).any(axis=1)).tolist()


@shows("noise")
def each_run_gives_other_rows(of: Of, _: Any) -> None:
    simulator = of("vllm")
    assert not differing(scored(simulator), truth_rows())
    simulator.script({"name": "noise", "scale": 0.01})
    one, other = scored(simulator), scored(simulator)
    assert len(differing(one, other)) == len(differing(one, truth_rows())) == LAST
    assert 0.005 < np.std((one - truth_rows()).astype(np.float64)) < 0.02
    simulator.script({"name": "noise", "at": {"row": {"from": 10}}})
    assert differing(scored(simulator), truth_rows()) == list(range(10, LAST))
    simulator.script({"name": "noise", "times": 1})
    assert len(differing(scored(simulator), truth_rows())) == LAST, "the first repeat differs"
    assert not differing(scored(simulator), truth_rows()), "the others do not"


@shows("noise")
def noise_changes_what_is_sampled_and_can_be_repeated(_: Of, __: Any) -> None:
    runs = []
    for seed in (5, 5, 6):
        with running_simulator("vllm", noise_seed=seed, faults=[{"name": "noise", "scale": 1.0}]) as simulator:
            runs.append([chat_stream(simulator, max_tokens=30).token_ids for _ in range(2)])
    assert runs[0] == runs[1] != runs[2]
    assert runs[0][0] != runs[0][1]


@shows("noise_under_load")
def rows_differ_while_others_run(of: Of, _: Any) -> None:
    simulator = of("vllm")
    simulator.script("noise_under_load")
    assert not differing(scored(simulator), truth_rows())
    simulator.script("noise_under_load", {"name": "stall", "ms": 4000.0, "at": {"token": 0}, "times": 1})
    other = threading.Thread(target=chat_stream, args=(simulator,), kwargs={"max_tokens": 1})
    other.start()
    while "stall" not in simulator.truth()[-1]["faults"]:
        time.sleep(0.01)
    assert len(differing(scored(simulator), truth_rows())) == LAST
    other.join()


@shows("noise_from_second_chunk")
def rows_differ_from_the_second_chunk_on(_: Of, __: Any) -> None:
    for dialect in ("vllm", "cuteafd"):
        options: dict[str, Any] = {"max_logprobs": -1} if dialect == "vllm" else {}
        with running_simulator(dialect, chunk=20, faults=["noise_from_second_chunk"], **options) as simulator:
            if dialect == "vllm":
                one, other = scored(simulator), scored(simulator)
                assert differing(one, truth_rows()) == differing(one, other) == list(range(20, LAST))
            else:
                hashes = [[row["hash"] for row in probed(simulator)] for _ in range(2)]
                assert [a == b for a, b in zip(*hashes, strict=True)] == [True] * 20 + [False] * (LAST - 20)


@shows("logprobs_shifted")
def rows_are_those_of_the_next_or_the_last_position(of: Of, _: Any) -> None:
    simulator, ours = of("vllm"), truth_rows()
    simulator.script({"name": "logprobs_shifted", "by": 1})
    assert scored(simulator)[:-1].tobytes() == ours[1:].tobytes()
    simulator.script({"name": "logprobs_shifted", "by": -1})
    assert scored(simulator)[1:].tobytes() == ours[:-1].tobytes()
    sglang = of("sglang")
    sglang.script({"name": "logprobs_shifted", "by": 1})
    body = {"input_ids": PROMPT, "return_logprob": True, "logprob_start_len": 0}
    told = ask(sglang, "/generate", body).json()["meta_info"]["input_token_logprobs"]
    assert told[1][0] == float(ours[1][PROMPT[1]])


@shows("logprobs_processed")
def rows_depend_on_the_temperature(of: Of, _: Any) -> None:
    simulator = of("vllm")
    assert scored(simulator, temperature=2.0).tobytes() == truth_rows().tobytes()
    simulator.script("logprobs_processed")
    halved = log_softmax(Model().rows(PROMPT, range(LAST)) / np.float32(2))
    assert scored(simulator, temperature=2.0).tobytes() == halved.tobytes()
    assert scored(simulator, temperature=1.0).tobytes() == truth_rows().tobytes()


@shows("logprobs_stale")
def cached_rows_are_those_of_another_prompt(of: Of, _: Any) -> None:
    simulator = of("vllm")
    simulator.script("logprobs_stale")
    salt = {"cache_salt": "stale"}
    assert not differing(scored(simulator, **salt), truth_rows()), "the first time nothing is cached"
    again = scored(simulator, **salt)
    cached = simulator.last()["cached_tokens"]
    assert cached == LAST // 16 * 16
    assert differing(again, truth_rows())[-1] == cached - 1
    assert len(differing(again, truth_rows())) > cached - 3
    assert again[cached:].tobytes() == truth_rows()[cached:].tobytes()
    told = ask(simulator, "/v1/completions", {"prompt": PROMPT, "max_tokens": 1, "prompt_logprobs": 1} | salt).json()
    assert told["usage"]["prompt_tokens_details"]["cached_tokens"] == cached


@shows("cache_changes_rows")
def warm_rows_are_not_cold_ones(of: Of, _: Any) -> None:
    simulator = of("llama-server")
    simulator.script("cache_changes_rows")

    def row(*, cached: bool) -> list[float]:
        body = {"prompt": PROMPT, "n_predict": 1, "n_probs": 512, "cache_prompt": cached}
        (said,) = ask(simulator, "/completion", body).json()["completion_probabilities"]
        return [one["logprob"] for one in sorted(said["top_logprobs"], key=lambda one: one["id"])]

    cold, warm, warm_again, cold_again = (row(cached=cached) for cached in (False, True, True, False))
    assert cold == cold_again == log_softmax(Model().logits(PROMPT)).tolist()
    assert warm == warm_again != cold


@shows("prompt_logprobs_short")
def fewer_rows_than_the_prompt_has(of: Of, _: Any) -> None:
    simulator = of("vllm")
    simulator.script({"name": "prompt_logprobs_short", "rows": 3})
    assert len(score(simulator, PROMPT, prompt_logprobs=1)) == len(PROMPT) - 3
    simulator = of("cuteafd")
    simulator.script({"name": "prompt_logprobs_short", "rows": 3})
    assert [row["position"] for row in probed(simulator)] == list(range(1, LAST - 2))
    simulator = of("sglang")
    simulator.script({"name": "prompt_logprobs_short", "rows": 3})
    body = {"input_ids": PROMPT, "return_logprob": True, "logprob_start_len": 0}
    assert len(ask(simulator, "/generate", body).json()["meta_info"]["input_token_logprobs"]) == len(PROMPT) - 3


@shows("nan_rows")
def a_row_of_nan(of: Of, dump_root: Path) -> None:
    simulator = of("vllm")
    simulator.script({"name": "nan_rows", "at": {"row": [2, 4]}})
    entries = score(simulator, PROMPT, prompt_logprobs=1)
    assert [
        row for row, entry in enumerate(entries[1:]) if any(math.isnan(one["logprob"]) for one in entry.values())
    ] == [2, 4]
    simulator = of("cuteafd")
    simulator.script({"name": "nan_rows", "at": {"row": 2}})
    leaf = f"nan-{time.monotonic_ns()}"
    assert [row["position"] for row in probed(simulator, dump_rows=leaf) if not row["finite"]] == [3]
    rows = open_dump(dump_root / leaf, "nan").block(0, LAST)
    assert np.isnan(rows).all(axis=1).tolist() == [row == 2 for row in range(LAST)]


@shows("dump_cut_short")
def a_file_that_is_half_there(of: Of, dump_root: Path) -> None:
    simulator, leaf = of("cuteafd"), f"cut-{time.monotonic_ns()}"
    simulator.script({"name": "dump_cut_short", "at": {"row": 5}})
    assert len(probed(simulator, dump_rows=leaf)) == LAST
    with pytest.raises(EngcmpError, match="row 5: "):
        open_dump(dump_root / leaf, "cut")


@shows("dump_row_missing")
def a_row_that_is_not_in_the_dump(of: Of, dump_root: Path) -> None:
    simulator, leaf = of("cuteafd"), f"gap-{time.monotonic_ns()}"
    simulator.script({"name": "dump_row_missing", "at": {"row": 5}})
    assert len(probed(simulator, dump_rows=leaf)) == LAST
    assert open_dump(dump_root / leaf, "gap").positions.tolist() == [row for row in range(LAST) if row != 5]


@shows("hash_wrong")
def a_hash_that_is_not_the_rows(of: Of, _: Any) -> None:
    simulator = of("cuteafd")
    right = [row["hash"] for row in probed(simulator)]
    simulator.script({"name": "hash_wrong", "at": {"row": 5}})
    wrong = [row["hash"] for row in probed(simulator)]
    assert [index for index in range(LAST) if right[index] != wrong[index]] == [5]
