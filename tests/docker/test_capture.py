"""llama.cpp's server in a container, launched by digest: ready, rows, receipt, end."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from launching import ARM, VOCAB, LlamaLauncher, interrupt, tokens, until
from launching import after as later

from engcmp_resources import host_image
from engcmp_resources.canonical import sha256_file
from engcmp_resources.containers import DockerHost
from engcmp_resources.engines.base import LaunchSpec, start_decoder
from engcmp_resources.engines.servers import RunningServer
from engcmp_resources.errors import EngcmpError
from engcmp_resources.secrecy import hidden_secret


@pytest.fixture(scope="module")
def shared(
    docker_engine: None, llamacpp_library: Path, q4_0_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[LlamaLauncher, RunningServer]]:
    """One container for the tests that leave it as it was."""
    files = {"library": llamacpp_library, "model": q4_0_model}
    identities = {name: sha256_file(path) for name, path in files.items()}
    launcher = LlamaLauncher(tmp_path_factory.mktemp("shared"), files, identities)
    with launcher() as running:
        yield launcher, running


def test_rows_are_the_bits_of_the_process_kind(
    shared: tuple[LlamaLauncher, RunningServer], llamacpp_library: Path, q4_0_model: Path, tmp_path: Path
) -> None:
    launcher, running = shared
    ids, positions, ours, theirs = tokens(40), range(20, 26), tmp_path / "container", tmp_path / "process"
    taken = running.full_rows("decode", "w", ids, positions, ours)
    spec = LaunchSpec(
        "llamacpp", "b11549", launcher.identities["library"], launcher.identities["model"], 2, 512, 512, 512, VOCAB
    )
    files = {"library": llamacpp_library, "model": q4_0_model, "log": tmp_path / "log"}
    with start_decoder("llamacpp", spec, **files, environment={}) as decoder:
        decoder.decode_rows("w", ids, positions, theirs)
        stated = {name: decoder.facts[name] for name in ("n_ctx", "slots", "build_info", "model", "forced_token")}
    assert taken.rows == 6
    assert taken.seconds > 0
    assert taken.notes["prompt_tokens_processed"] == [1] * 6
    assert ours.stat().st_size == 6 * VOCAB * 4
    assert ours.read_bytes() == theirs.read_bytes()
    assert {name: running.facts[name] for name in stated} == stated


def test_light_rows_are_those_of_the_full_ones(shared: tuple[LlamaLauncher, RunningServer], tmp_path: Path) -> None:
    _, running = shared
    ids, positions = tokens(30, seed=3), [5, 6, 12]  # the last one begins anew
    running.full_rows("decode", "w", ids, positions, tmp_path / "rows")
    light = running.light_rows("decode", "w", ids, positions)
    rows = np.fromfile(tmp_path / "rows", dtype="<f4").reshape(3, VOCAB).astype(np.float64)
    rows -= np.log(np.exp(rows).sum(axis=1, keepdims=True))
    order = np.argsort(-rows, axis=1, kind="stable")[:, :20]
    assert (light.top_ids == order).all()
    assert np.allclose(light.top_log_probs, np.take_along_axis(rows, order, axis=1), rtol=0, atol=1e-12)
    assert np.allclose(light.next_log_prob, [rows[i, ids[p + 1]] for i, p in enumerate(positions)], rtol=0, atol=1e-12)


def test_the_receipt_says_what_runs_and_holds_no_secret_and_no_path(
    shared: tuple[LlamaLauncher, RunningServer],
) -> None:
    launcher, running = shared
    facts = running.facts
    container = launcher.containers()[0]
    assert facts["image"]["id"] == host_image.IMAGE_ID
    assert facts["image"]["labels"] == {"engcmp.image": "engcmp/host:1"}
    assert facts["container"] == {
        "id": container.id, "started_at": container.attrs["State"]["StartedAt"], "restart_count": 0,
    }  # fmt: skip
    assert facts["settings"] == {
        name: {"requested": asked, "resolved": asked}
        for name, asked in {
            "context_tokens": 512, "batch_tokens": 512, "micro_batch_tokens": 512, "threads": 2
        }.items()
    }  # fmt: skip
    assert 0 < facts["ready"]["ready_line_ms"] <= facts["ready"]["first_token_ms"] < 60_000
    assert facts["mounts"][0] == {
        "target": "/engcmp/model.gguf", "read_only": True, "file": "model", "sha256": launcher.identities["model"],
    }  # fmt: skip
    assert facts["environment"] == {"GGML_NO_BACKTRACE": "1", "OMP_WAIT_POLICY": "passive"}
    assert facts["capabilities"]["rows"] == ("decode",)
    assert facts["stated"]["/props"]["total_slots"] == 1
    (key_file,) = launcher.folder.glob("key-*")
    assert key_file.stat().st_mode & 0o777 == 0o600
    text = json.dumps(facts)
    for word in (key_file.read_text(), str(launcher.folder), str(launcher.files["model"]), host_image.python()):
        assert word not in text


def test_the_container_is_closed_and_carries_its_labels(shared: tuple[LlamaLauncher, RunningServer]) -> None:
    launcher, running = shared
    made = launcher.containers()[0].attrs
    assert running.url.startswith("http://127.0.0.1:")
    assert {made["Config"]["Labels"][name] for name in ("ENGCMP_ARM", "ENGCMP_RUN")} == {ARM, "run-1"}
    settings = made["HostConfig"]
    assert settings["RestartPolicy"]["Name"] == "no"
    assert settings["ReadonlyRootfs"]
    assert settings["CapDrop"] == ["ALL"]
    assert all(not mount["RW"] for mount in made["Mounts"] if mount["Type"] == "bind")
    assert {"Name": "core", "Hard": 0, "Soft": 0} in settings["Ulimits"]


@pytest.mark.parametrize(
    ("path", "positions", "what"),
    [
        ("prefill", [3], "gives no rows of the prefill path"),
        ("decode", [0, 1], "row 0 has no token before it"),
        ("decode", [5], "a row outside 0..3"),
        ("decode", [], "4 tokens and 0 rows"),
    ],
)
def test_rows_that_cannot_be_had_are_refused(
    shared: tuple[LlamaLauncher, RunningServer], path: str, positions: list[int], what: str, tmp_path: Path
) -> None:
    _, running = shared
    with pytest.raises(EngcmpError, match=what):
        running.full_rows(path, "w", tokens(4), positions, tmp_path / "rows")
    assert not list(tmp_path.iterdir())


def test_leaving_ends_all_that_was_started(llama: LlamaLauncher) -> None:
    with llama() as running:
        assert len(llama.containers()) == 1
        assert len(llama.processes()) == 1
        key = next(iter(llama.folder.glob("key-*"))).read_text()
        running.refuse_changed()
    llama.assert_nothing_is_left()
    log = llama.log.read_text()
    assert "server is listening on" in log
    assert key not in log
    with pytest.raises(EngcmpError, match="the container is gone"):
        running.refuse_changed()


def test_an_error_of_the_caller_ends_the_container(llama: LlamaLauncher) -> None:
    with pytest.raises(ZeroDivisionError), llama():
        raise ZeroDivisionError
    llama.assert_nothing_is_left()


def test_ctrl_c_in_mid_row_ends_the_container(llama: LlamaLauncher, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), llama() as running:
        later(0.7, interrupt)
        running.full_rows("decode", "w", tokens(300), range(1, 300), tmp_path / "rows")
    llama.assert_nothing_is_left()
    assert not (tmp_path / "rows").exists()


def test_a_server_killed_in_mid_row_gives_its_exit_code_and_leaves_nothing(
    llama: LlamaLauncher, tmp_path: Path
) -> None:
    with llama() as running:
        (container,) = llama.containers()
        later(0.7, container.kill)
        with pytest.raises(EngcmpError, match=r"the container ended with exit code 137 while taking rows of window w7"):
            running.full_rows("decode", "w7", tokens(300), range(1, 300), tmp_path / "rows")
        with pytest.raises(EngcmpError, match="the container ended with exit code 137"):
            running.light_rows("decode", "w8", tokens(30), [3])
    llama.assert_nothing_is_left()
    assert not (tmp_path / "rows").exists()


def test_a_restart_voids_the_capture(llama: LlamaLauncher, tmp_path: Path) -> None:
    with llama(port=None) as running:
        running.refuse_changed()
        llama.containers()[0].restart(timeout=0)
        with pytest.raises(EngcmpError, match=r"was restarted: started_at was 2.*, is 2.*; .* is void"):
            running.refuse_changed()
        with pytest.raises(EngcmpError, match="was restarted"):
            running.full_rows("decode", "w", tokens(9), [3], tmp_path / "rows")
    llama.assert_nothing_is_left()


def test_settings_that_the_engine_resolves_differently_are_refused(llama: LlamaLauncher) -> None:
    command = [word.replace("{batch_tokens}", "256") for word in llama.settings["command"]]
    with pytest.raises(EngcmpError, match="batch_tokens requested 512, found 256"), llama(command=command):
        pytest.fail("the engine started")
    llama.assert_nothing_is_left()


def test_a_declared_capability_that_is_lacking_stops_the_run(llama: LlamaLauncher) -> None:
    with (
        pytest.raises(EngcmpError, match=r"lacks what is declared of it: prompt_logprobs \(declared 20, proved 0"),
        llama(capabilities={"prompt_logprobs": 20}),
    ):
        pytest.fail("the engine started")
    llama.assert_nothing_is_left()


def test_another_file_than_the_launch_names_is_not_started(llama: LlamaLauncher) -> None:
    llama.identities["library"] = "0" * 64
    with pytest.raises(EngcmpError, match="library has sha256"), llama():
        pytest.fail("the engine started")
    assert llama.containers() == []


def test_the_preset_for_the_upstream_image_takes_the_same_launch(llama: LlamaLauncher) -> None:
    with llama(kind="llama-server", api=None, ready_line=None) as running:
        assert running.facts["kind"] == "llama-server"
        assert running.facts["ready"]["ready_line_ms"] > 0  # its own ready line is the kind's


def test_a_key_in_the_environment_is_in_the_receipt_by_its_hash_only(
    llama: LlamaLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = f"hf_{secrets.token_hex(16)}"
    monkeypatch.setenv("OUR_TOKEN", secret)
    with llama(secrets={"HF_TOKEN": "OUR_TOKEN"}, key_env="LLAMA_API_KEY") as running:
        environment = running.facts["environment"]
        seen = dict(pair.split("=", 1) for pair in llama.containers()[0].attrs["Config"]["Env"])
    assert seen["HF_TOKEN"] == secret
    assert environment["HF_TOKEN"] == hidden_secret(secret)
    assert environment["LLAMA_API_KEY"] == hidden_secret(seen["LLAMA_API_KEY"])
    assert "HTTP_PROXY" not in seen
    for text in (json.dumps(running.facts), llama.log.read_text()):
        assert secret not in text
        assert seen["LLAMA_API_KEY"] not in text


def test_the_lock_of_a_living_run_is_not_a_reason_to_remove_its_container(
    llama: LlamaLauncher, host: DockerHost
) -> None:
    with llama() as running:
        assert host.remove_orphans(llama.folder / "another.lock") == []
        assert host.remove_orphans() == []
        running.refuse_changed()
    assert until(lambda: not llama.containers())
