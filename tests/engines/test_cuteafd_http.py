"""CuteAFD's client against the simulator over HTTP: dumped rows equal to the truth on both score paths, and each fault."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from simulated import MODEL, VOCAB, client_at, planted, prove, simulated, soon, tokens, top20, truth

from engcmp_resources.engines._api import ApiClient, BrokenOff, Late
from engcmp_resources.engines._cuteafd_http import CuteafdApi, fnv1a_rows
from engcmp_resources.engines.servers import ScorePath
from engcmp_resources.errors import EngcmpError
from tests.simulator.probe import safetensors_of
from tests.simulator.running import Simulator

Pair = tuple[ApiClient, Simulator]
IDS, POSITIONS = tokens(40), [3, 0, 17, 38]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dumps")


@pytest.fixture(scope="module")
def shared(root: Path) -> Iterator[Pair]:
    with simulated("cuteafd", dump_root=root, decode_perturb=0.1) as pair:
        prove(pair[0])
        yield pair


@pytest.fixture
def pair(shared: Pair, root: Path) -> Iterator[Pair]:
    yield shared
    shared[1].script()
    assert list(root.iterdir()) == []  # no dump outlives its window, whatever happened


def take(client: ApiClient, out: Path, path: ScorePath = "prefill", deadline_s: float = 20) -> Any:
    return client.full_rows(path, "w1", IDS, POSITIONS, out, deadline_s=deadline_s)


@pytest.mark.parametrize(("path", "perturb"), [("prefill", 0.0), ("decode", 0.1)])
def test_full_rows_of_both_paths_are_the_truth_bit_for_bit(
    pair: Pair, tmp_path: Path, path: ScorePath, perturb: float
) -> None:
    taken = take(pair[0], tmp_path / "rows", path)
    assert (tmp_path / "rows").read_bytes() == truth(IDS, POSITIONS, perturb=perturb).tobytes()
    assert taken.rows == 4
    assert taken.notes["score_path"] == path
    assert taken.notes["cached_tokens"] == 0
    assert taken.notes["row_hashes"] == "held against the dump"


def test_row_r_is_asked_for_as_position_r_plus_1(pair: Pair, tmp_path: Path) -> None:
    client, simulator = pair
    take(client, tmp_path / "rows")
    record = simulator.last("/v1/bench/probe")
    assert record["prompt_ids"] == IDS
    one = tmp_path / "one"
    client.full_rows("prefill", "w1", [10, 20], [0], one, deadline_s=20)
    assert one.read_bytes() == truth([10], [0]).tobytes()  # the last token is never run


def test_light_rows_come_from_the_full_ones(pair: Pair) -> None:
    rows = pair[0].light_rows("decode", "w1", IDS, POSITIONS, deadline_s=20)
    wanted = truth(IDS, POSITIONS, perturb=0.1)
    assert np.array_equal(rows.top_ids, top20(wanted)[0])
    assert np.allclose(rows.top_log_probs, top20(wanted)[1], atol=1e-6)
    assert np.allclose(
        rows.next_log_prob, [row[IDS[p + 1]] for row, p in zip(wanted, POSITIONS, strict=True)], atol=1e-6
    )


def test_the_proof_says_what_the_server_can_do_and_how_it_was_found(pair: Pair) -> None:
    proved, facts = prove(pair[0])
    assert proved.rows == ("decode", "prefill")
    assert (proved.prompt_logprobs, proved.decode_logprobs) == ("full", "full")
    assert proved.cached_tokens
    assert proved.thinking_switch
    assert not proved.tokenizer
    assert not proved.metrics
    assert pair[0].tokenize("a") is None
    assert proved.evidence["prefill rows"].startswith("8 of 8 greedy tokens")
    assert proved.evidence["row hash"] == "of the dumped values"
    assert facts["kv_pool"]["tokens"] == 65_536
    assert facts["n_ctx"] == 8192
    assert facts["template"]["prompt"]["token_ids"][:2] == [1, 3]
    names = [setting["name"] for setting in facts["stated"]["/v1/bench/probe server"]["settings"]]
    assert "prefill_batch_tokens" in names


def test_a_server_without_full_prefill_logits_is_proved_for_decode_alone(tmp_path: Path) -> None:
    dumps = tmp_path / "dumps"
    dumps.mkdir()
    with simulated("cuteafd", dump_root=dumps, full_prefill_logits=False) as (client, _):
        proved, _ = prove(client)
        with pytest.raises(EngcmpError, match=r"scoring window w1 by prefill: HTTP status 400.*FULL_PREFILL_LOGITS"):
            take(client, tmp_path / "rows")
    assert proved.rows == ("decode",)
    assert proved.prompt_logprobs == 0


def test_a_server_whose_dumps_cannot_be_reached_gives_no_rows(tmp_path: Path) -> None:
    with simulated("cuteafd") as (client, _):
        proved, facts = prove(client)
        with pytest.raises(EngcmpError, match=r"no folder is known in which the server dumps rows"):
            take(client, tmp_path / "rows")
    assert proved.rows == ()
    assert facts["thinking"]["on"]["how"] == "/v1/chat/completions"


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("nan_rows", "window w1, row 3: 512 values are NaN"),
        ("dump_cut_short", "w1.*3"),
        ("dump_row_missing", "window w1: the dump has 3 rows .* 4 .* were asked for; row 3 is missing"),
        ("hash_wrong", "window w1, row 3: its hash is [0-9a-f]{16}, the answer says"),
        ("prompt_logprobs_short", "the answer has 3 rows of 4; row 38 is missing"),
        ("prompt_logprobs_refused", "HTTP status 500: .*the probe failed"),
        ("prompt_truncated", "HTTP status 400|40 tokens were sent and the engine ran 8"),
        ("html", "the answer is no JSON: '<"),
        ({"name": "http_429", "retry_after_s": 1}, r"too busy \(429\) and asks to wait 1 s"),
        ("dead_behind_health", "HTTP status 500"),
    ],
)
def test_rows_that_are_not_what_was_asked_for_are_refused_and_not_written(
    pair: Pair, tmp_path: Path, fault: Any, said: str
) -> None:
    client, simulator = pair
    simulator.script(fault)
    with pytest.raises(EngcmpError, match=said):
        take(client, tmp_path / "rows")
    assert list(tmp_path.iterdir()) == []


def test_cached_tokens_void_a_capture(pair: Pair, tmp_path: Path) -> None:
    client, simulator = pair
    simulator.script("logprobs_stale", "cache_always_hits")
    with pytest.raises(EngcmpError, match=r"tokens came from the prefix cache"):
        take(client, tmp_path / "rows")


@pytest.mark.parametrize(("by", "said"), [(1, r"shifted by -1"), (-1, r"shifted by \+1")])
def test_shifted_rows_stop_the_run(pair: Pair, by: int, said: str) -> None:
    client, simulator = pair
    simulator.script({"name": "logprobs_shifted", "by": by})
    with pytest.raises(EngcmpError, match=rf"rows of the path decode are {said}: there 8 of 8 greedy tokens"):
        prove(client)


def test_the_thinking_switch_is_not_declared_where_it_changes_nothing(pair: Pair) -> None:
    client, simulator = pair
    simulator.script("thinking_switch_ignored")
    proved, _ = prove(client)
    assert not proved.thinking_switch


def test_a_second_probe_is_refused_while_one_runs(pair: Pair, tmp_path: Path) -> None:
    client, simulator = pair
    simulator.script(ttft_ms=1500)
    body = {"body": {}, "spec": {"prompt_ids": IDS, "score_from": 1}}
    other = threading.Thread(target=lambda: httpx.post(f"{simulator.url}/v1/bench/probe", json=body, trust_env=False))
    other.start()
    until = soon()
    while all(record["ended"] != "open" for record in simulator.truth(path="/v1/bench/probe")):
        assert time.monotonic() < until
    with pytest.raises(EngcmpError, match=r"HTTP status 409"):
        take(client, tmp_path / "rows")
    other.join()


def test_the_wrong_model_is_refused_at_the_first_token(pair: Pair) -> None:
    client, simulator = pair
    simulator.script("model_name_wrong")
    with pytest.raises(EngcmpError, match=r"serves the model 'another/model', not 'sim/model'"):
        client.first_token(soon())


def test_an_engine_that_is_healthy_but_gives_no_token_is_late(pair: Pair) -> None:
    client, simulator = pair
    simulator.script("stuck_but_healthy")
    with pytest.raises(Late, match=r"while asking for a first token"):
        client.first_token(soon(0.5))


def test_an_engine_that_dies_in_a_row_leaves_no_rows(tmp_path: Path) -> None:
    dumps = tmp_path / "dumps"
    dumps.mkdir()
    fault = {"name": "dies_in_row", "at": {"row": 17}}
    with simulated("cuteafd", dump_root=dumps, faults=[fault]) as (client, simulator):
        with pytest.raises(BrokenOff, match=r"broke off while scoring window w1 by prefill"):
            take(client, tmp_path / "rows")
        assert simulator.process.wait(10) == 3
    assert not (tmp_path / "rows").exists()


def test_no_dump_is_asked_for_where_the_disk_has_no_room_for_it(tmp_path: Path) -> None:
    def answer(path: str, _: dict[str, Any]) -> Any:
        raise AssertionError(f"{path} was asked for")

    with planted(answer) as url:
        client = client_at("cuteafd", url, dump_root=tmp_path, vocab=1 << 30)
        with pytest.raises(EngcmpError, match=r"window w1 needs .* MB and the disk has"):
            client.full_rows("prefill", "w1", [1] * 20_000, list(range(19_000)), tmp_path / "rows", deadline_s=5)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
@pytest.mark.parametrize("knows_owner", [True, False])
def test_a_dump_of_another_user_is_removed_as_its_owner(knows_owner: bool) -> None:
    """The engine's container writes as root; here the simulator does, and the client acts as nobody."""
    removed = []

    def as_root(dump: Path) -> None:
        os.seteuid(0)
        shutil.rmtree(dump)
        removed.append(dump)

    with tempfile.TemporaryDirectory() as name:
        dumps, out = Path(name) / "dumps", Path(name) / "out"
        for folder in (dumps, out):
            folder.mkdir()
            folder.chmod(0o777)
        Path(name).chmod(0o755)
        with simulated("cuteafd", dump_root=dumps) as (_, simulator):
            client = CuteafdApi(
                simulator.url, key=None, label="arm x", model=MODEL, vocab=VOCAB, dump_root=dumps,
                remove_as_owner=as_root if knows_owner else None,
            )  # fmt: skip
            os.seteuid(65534)
            try:
                if knows_owner:
                    take(client, out / "rows")
                else:
                    with pytest.raises(EngcmpError, match=r"cannot be removed: .*; it is another user's"):
                        take(client, out / "rows")
            finally:
                os.seteuid(0)
        assert len(removed) == len(list(out.iterdir())) == int(knows_owner)


class Dumping:
    """A server that dumps rows of its own and says of them what a test wants."""

    def __init__(self, root: Path) -> None:
        self.root, self.rows = root, truth([5, 6, 7], [0, 1])
        self.said: dict[str, Any] = {}
        self.about: dict[str, Any] = {}
        self.hashes = ["0" * 16, "1" * 16]  # of logits that nobody sees

    def __call__(self, path: str, body: dict[str, Any]) -> Any:
        leaf = self.root / body["spec"]["dump_rows"]
        leaf.mkdir()
        lines = []
        for index, row in enumerate(self.rows):
            name = f"row-{index:08d}.safetensors"
            (leaf / name).write_bytes(safetensors_of(row))
            entry = {"position": index + 1, "vocab_size": VOCAB, "file": name, "tensor": "log_probs"}
            lines.append(json.dumps(entry | {"dtype": "F32", "byte_order": "little"}))
        (leaf / "manifest.jsonl").write_text("\n".join(lines))
        ids, values = top20(self.rows)
        rows = [
            {
                "position": index + 1,
                "hash": self.hashes[index],
                "argmax": int(ids[index][0]),
                "top": [[int(i), float(v)] for i, v in zip(ids[index], values[index], strict=True)],
                "finite": True,
            }
            | (self.about if index == 1 else {})
            for index in range(2)
        ]
        probe = {"prompt_ids": [5, 6, 7], "cached_tokens": 0, "rows": rows, "score_path": "prefill", "error": None}
        return {"probe": probe | self.said}


def dumped(dumping: Dumping, out: Path) -> Any:
    with planted(dumping) as url:
        client = client_at("cuteafd", url, dump_root=dumping.root)
        return client.full_rows("prefill", "w", [5, 6, 7], [0, 1], out, deadline_s=5)


@pytest.mark.parametrize(
    ("said", "about", "what"),
    [
        ({"score_path": "decode"}, {}, "scored by 'decode', not by 'prefill'"),
        ({"prompt_ids": [1, 5, 6, 7]}, {}, r"3 tokens were sent and the engine ran 4, beginning \[1, 5, 6\]"),
        ({"cached_tokens": 2}, {}, "2 tokens came from the prefix cache"),
        ({"error": "dump rows: No space left on device"}, {}, "the engine says: dump rows: No space left"),
        ({}, {"argmax": 3}, r"row 1: its most probable token is \d+, the answer says 3"),
        ({}, {"top": [[3, -0.5]]}, "row 1: its top values are not those of the answer"),
        ({}, {"top": [[600, -0.5]]}, "row 1: its top values are not those of the answer"),
        ({}, {"finite": False}, "row 1: the answer says that it is not finite, and the dump that it is"),
        ({}, {"position": 7}, "row 1 is missing"),
    ],
)
def test_a_dump_is_held_against_the_answer(
    tmp_path: Path, said: dict[str, Any], about: dict[str, Any], what: str
) -> None:
    dumping = Dumping(tmp_path)
    dumping.said, dumping.about = said, about
    with pytest.raises(EngcmpError, match=what):
        dumped(dumping, tmp_path / "rows")
    assert list(tmp_path.iterdir()) == []


def test_values_that_are_no_log_probabilities_are_refused(tmp_path: Path) -> None:
    dumping = Dumping(tmp_path)
    dumping.rows = dumping.rows + np.float32(1)
    with pytest.raises(EngcmpError, match=r"row 0: its probabilities sum to 2\.718"):
        dumped(dumping, tmp_path / "rows")


def test_hashes_of_logits_cannot_be_held_against_a_dump_and_the_notes_say_so(tmp_path: Path) -> None:
    taken = dumped(Dumping(tmp_path), tmp_path / "rows")
    assert taken.notes["row_hashes"] == "of the logits, not of the dump"
    assert (tmp_path / "rows").stat().st_size == 2 * VOCAB * 4


def test_minus_infinity_is_a_legal_value(tmp_path: Path) -> None:
    dumping = Dumping(tmp_path)
    dumping.rows[1][np.argmin(dumping.rows[1])] = -np.inf
    dumping.about = {"finite": False}
    assert dumped(dumping, tmp_path / "rows").rows == 2


def test_the_row_hash_is_fnv_1a_of_64_bits() -> None:
    def plain(data: bytes) -> str:
        value = 0xCBF29CE484222325
        for byte in data:
            value = ((value ^ byte) * 0x100000001B3) % 2**64
        return f"{value:016x}"

    rows = np.random.default_rng(1).normal(size=(3, 1500)).astype("<f4")
    assert fnv1a_rows(rows) == [plain(row.tobytes()) for row in rows]
