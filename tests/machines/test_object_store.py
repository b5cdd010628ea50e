"""Results in an S3 store: put there when they are committed, fetched when they are read, and refused where their hash is another."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import BUCKET, SECRET, Machine, S3Server
from homes import assert_one_clear_line, everything
from tiny import BASE_ARM, TINY, TinyStudy

from engcmp_resources import object_store
from engcmp_resources.canonical import sha256_bytes
from engcmp_resources.errors import EngcmpError
from engcmp_resources.object_store import CREDENTIALS, configured
from engcmp_resources.store import Blob, Store


@pytest.fixture
def shared_home(s3: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Store]:
    """A store of its own in a prefix of its own."""
    for name, value in (s3.variables | {"ENGCMP_OBJECT_STORE": f"s3://{BUCKET}/{tmp_path.name}"}).items():
        monkeypatch.setenv(name, value)
    yield Store(tmp_path / "home")


def row_file(tiny: TinyStudy) -> tuple[str, dict[str, object]]:
    """A file of captured rows of the tiny study: its name in the store, and its output."""
    (output, *_) = [
        one for one in _receipt(tiny)["outputs"] if one["name"].startswith("rows/")
    ]  # fmt: skip
    return f"store/{output['sha256'][:2]}/{output['sha256']}.{output['suffix']}", output


def _receipt(tiny: TinyStudy) -> dict[str, list[dict[str, object]]]:
    head = next((tiny.home / "heads" / TINY / BASE_ARM.replace("/", "~") / "captured_rows").glob("*.json"))
    sha256 = Store(tiny.home, read_only=True).head(TINY, BASE_ARM.replace("/", "~"), f"captured_rows/{head.stem}")
    assert sha256 is not None
    return Store(tiny.home, read_only=True).read_receipt(sha256)


def test_a_fresh_machine_verifies_with_the_object_store_alone(fresh: Machine, measured_with_s3: TinyStudy) -> None:
    done = fresh.run("verify", TINY)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{TINY}: verified" in done.stdout
    for kind in ("receipts", "heads"):
        names = [
            {str(path.relative_to(home)) for path in (home / kind).rglob("*.json")}
            for home in (fresh.home, measured_with_s3.home)
        ]
        assert names[0] == names[1] if kind == "heads" else names[0] <= names[1]
    assert fresh.run("verify", TINY).returncode == 0


def test_another_machine_measures_nothing_again(fresh: Machine) -> None:
    done = fresh.run("run", TINY)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "0 artifacts made, 14 answered from the store" in done.stderr


def test_a_corrupted_object_is_refused_by_name(fresh: Machine, s3: S3Server, measured_with_s3: TinyStudy) -> None:
    name, output = row_file(measured_with_s3)
    good = s3.objects.read(name)
    assert good is not None
    assert sha256_bytes(good) == output["sha256"]
    s3.objects.write(name, bytes([good[0] ^ 1]) + good[1:])
    try:
        done = fresh.run("pull", TINY)
        assert_one_clear_line(done, "refused", f"s3://{BUCKET}/shared/{name}", "delete the object", "engcmp push")
        assert not (fresh.home / name).exists()
        assert not list((fresh.home / "scratch" / "fetched").glob("[0-9a-f]" * 64))
        # The remedy is one: without the object, the machine that has the file puts it there again.
        s3.objects._files.rm_file(s3.objects._key(name))
        assert measured_with_s3.run("push", TINY, **s3.variables).returncode == 0
        assert s3.objects.read(name) == good
    finally:
        s3.objects.write(name, good)
    assert fresh.run("pull", TINY).returncode == 0


def test_a_forged_receipt_or_head_is_refused(
    fresh: Machine, s3: S3Server, measured_with_s3: TinyStudy, tmp_path: Path
) -> None:
    head = f"heads/{TINY}/{BASE_ARM.replace('/', '~')}/scores.json"
    sha256 = Store(measured_with_s3.home, read_only=True).head(TINY, BASE_ARM.replace("/", "~"), "scores")
    for name in (head, f"receipts/{sha256}.json"):
        good = s3.objects.read(name)
        assert good is not None
        s3.objects.write(name, good.replace(b"scores", b"sc0res"))
        try:
            done = fresh.run("pull", TINY, ENGCMP_HOME=str(tmp_path / name))  # an empty home each time
            assert_one_clear_line(done, f"s3://{BUCKET}/shared/{name}")
        finally:
            s3.objects.write(name, good)


def test_a_server_that_stops_answering_is_a_clear_error(
    shared_home: Store, s3: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(object_store, "_READ_S", 1)
    monkeypatch.setattr(object_store, "_ATTEMPTS", 1)
    objects = configured()
    assert objects is not None
    s3.signal(signal.SIGSTOP)
    try:
        with pytest.raises(EngcmpError) as caught:
            objects.read("heads/x")
    finally:
        s3.signal(signal.SIGCONT)
    for word in ("does not answer", "ReadTimeout", f"s3://{BUCKET}/{tmp_path.name}/heads/x", "engcmp push"):
        assert word in str(caught.value)
    assert objects.read("heads/x") is None


def test_a_run_that_cannot_reach_it_says_so_in_one_line(s3: S3Server, measured_with_s3: TinyStudy) -> None:
    nowhere = s3.variables | {"ENGCMP_OBJECT_STORE_ENDPOINT": "http://127.0.0.1:9"}
    done = measured_with_s3.run("run", TINY, **nowhere)
    assert_one_clear_line(
        done, "does not answer", f"s3://{BUCKET}/shared/heads/{TINY}/", "ENGCMP_OBJECT_STORE_ENDPOINT"
    )
    assert SECRET not in done.stdout + done.stderr


def test_a_fetch_that_was_cut_off_goes_on_where_it_was(shared_home: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "_RANGE_BYTES", 1000)
    data = os.urandom(4500)
    blob = shared_home.put_bytes(data, "bin")
    shared = shared_home.shared
    assert shared is not None
    shared.objects.upload(shared_home.here(blob), f"store/{blob.sha256[:2]}/{blob.sha256}.bin")
    shared_home.here(blob).unlink()
    asked: list[tuple[int, int]] = []
    files = shared.objects._files
    real = files.cat_file

    def lost_after_two(name: str, start: int, end: int) -> bytes:
        asked.append((start, end))
        if len(asked) == 3:
            raise ConnectionResetError
        return bytes(real(name, start=start, end=end))

    monkeypatch.setattr(files, "cat_file", lost_after_two)
    with pytest.raises(EngcmpError, match="does not answer"):
        shared_home.path(blob)
    assert not shared_home.here(blob).exists()
    assert shared_home.path(blob).read_bytes() == data
    assert asked == [(0, 1000), (1000, 2000), (2000, 3000), (2000, 3000), (3000, 4000), (4000, 4500)]
    assert shared_home.here(blob).stat().st_mode & 0o222 == 0


def test_what_a_crash_left_of_a_fetch_is_not_trusted(shared_home: Store) -> None:
    data = os.urandom(4500)
    blob = shared_home.put_bytes(data, "bin")
    assert shared_home.shared is not None
    shared_home.shared.objects.upload(shared_home.here(blob), f"store/{blob.sha256[:2]}/{blob.sha256}.bin")
    shared_home.here(blob).unlink()
    partial = shared_home.home / "scratch" / "fetched" / blob.sha256
    partial.parent.mkdir(parents=True, exist_ok=True)
    partial.write_bytes(bytes(3000))
    assert shared_home.path(blob).read_bytes() == data


def test_of_two_heads_the_later_measurement_stands(fresh: Machine, s3: S3Server, measured_with_s3: TinyStudy) -> None:
    assert fresh.run("pull", TINY, "--no-files").returncode == 0
    before = Store(fresh.home, read_only=True).head(TINY, "_study", "frozen_protocol")
    later = measured_with_s3.run("run", TINY, "--remeasure", **s3.variables)
    assert later.returncode == 0, later.stderr[-2000:]
    newest = Store(measured_with_s3.home, read_only=True).head(TINY, BASE_ARM.replace("/", "~"), "scores")
    assert fresh.run("push", TINY).returncode == 0  # the older one does not take the place of the later
    assert fresh.run("pull", TINY).returncode == 0
    assert Store(fresh.home, read_only=True).head(TINY, BASE_ARM.replace("/", "~"), "scores") == newest
    assert Store(fresh.home, read_only=True).head(TINY, "_study", "frozen_protocol") == before
    assert fresh.run("verify", TINY).returncode == 0


def test_keys_come_from_the_environment_or_a_file_of_mode_0600(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in s3.variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(EngcmpError, match="AWS_SECRET_ACCESS_KEY is not set"):
        configured()
    keys = tmp_path / "keys"
    keys.write_text(f"# of the results\nAWS_ACCESS_KEY_ID=tests\nAWS_SECRET_ACCESS_KEY={SECRET}\n", encoding="utf-8")
    monkeypatch.setenv(CREDENTIALS, str(keys))
    keys.chmod(0o640)
    with pytest.raises(EngcmpError, match="others can read this file of keys") as caught:
        configured()
    assert SECRET not in str(caught.value)
    keys.chmod(0o600)
    objects = configured()
    assert objects is not None
    assert objects.read("nothing/here") is None
    monkeypatch.setenv("ENGCMP_OBJECT_STORE", "https://bucket")
    with pytest.raises(EngcmpError, match="s3://bucket/prefix"):
        configured()


def test_a_bucket_that_is_not_there_is_named(shared_home: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGCMP_OBJECT_STORE", "s3://no-such-bucket/x")
    objects = configured()
    assert objects is not None
    with pytest.raises(EngcmpError, match=r"no such bucket.*s3://no-such-bucket/x/heads/y"):
        objects.write("heads/y", b"1")


def test_no_key_is_written_anywhere(measured_with_s3: TinyStudy) -> None:
    secret = SECRET.encode()
    for path in measured_with_s3.root.rglob("*"):
        if path.is_file() and path.stat().st_size < 50_000_000:
            assert secret not in path.read_bytes(), path


def test_without_the_setting_nothing_is_different(measured_with_s3: TinyStudy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ENGCMP_OBJECT_STORE", raising=False)
    before = everything(measured_with_s3.home / "store")
    store = Store(measured_with_s3.home)
    assert store.shared is None
    absent = Blob("0" * 64, 1, "bin")
    assert store.path(absent) == store.here(absent)
    assert not store.holds(absent)
    assert everything(measured_with_s3.home / "store") == before
