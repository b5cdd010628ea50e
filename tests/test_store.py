"""The store: files appear whole or not at all, whatever ends the process that writes them; and the index is never believed blindly."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from homes import everything, flipped, replace_file

from engcmp_resources.canonical import canonical_bytes, sha256_bytes, sha256_file
from engcmp_resources.errors import EngcmpError
from engcmp_resources.store import Blob, Place, Store, read_head

PLACE = Place("study", "q4_0~llamacpp@b1", "captured_rows/pa")
MOUNT, UMOUNT = (shutil.which(name) or f"/usr/bin/{name}" for name in ("mount", "umount"))
CHECKOUT = Path(__file__).parents[1]

# Writes files, receipts and heads without end; each line tells one that is complete.
WRITE = """
import sys
from pathlib import Path
from engcmp_resources.store import Place, Store
store = Store(Path(sys.argv[1]))
number = int(sys.argv[2])
print("ready", flush=True)
while True:
    number += 1
    by_bytes = store.put_bytes(f"bytes {number} ".encode() * 9000, "json")
    path = store.temporary()
    path.write_bytes(f"file {number} ".encode() * 9000)
    by_file = store.put_file(path, "parquet")
    outputs = [{"sha256": b.sha256, "bytes": b.bytes, "suffix": b.suffix} for b in (by_bytes, by_file)]
    receipt = {"number": number, "task_key": f"{number:064x}", "outputs": outputs, "artifact": "rows"}
    sha256 = store.commit(Place("study", "arm", "rows"), receipt, completes=[by_bytes, by_file])
    store.view(store.home / "views" / "study" / "rows.json", by_bytes)
    print(number, sha256, flush=True)
"""

PUT_THE_SAME = """
import sys
from pathlib import Path
from engcmp_resources.store import Store
store = Store(Path(sys.argv[1]))
sys.stdin.read(1)
for number in range(300):
    data = f"shared {number} ".encode() * 500
    if number % 2:
        path = store.temporary()
        path.write_bytes(data)
        store.put_file(path, "json")
    else:
        store.put_bytes(data, "json")
"""


def start(program: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments], cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "home")


def receipt_of(store: Store, *blobs: Blob, key: str = "a" * 64) -> dict[str, Any]:
    outputs = [{"sha256": blob.sha256, "bytes": blob.bytes, "suffix": blob.suffix} for blob in blobs]
    return {"task_key": key, "outputs": outputs, "artifact": PLACE.artifact}


def completed(store: Store, *blobs: Blob, key: str = "a" * 64) -> str:
    return store.commit(PLACE, receipt_of(store, *blobs, key=key), completes=blobs)


# ---------------------------------------------------------------- files


def test_the_same_bytes_are_one_file_however_they_come(store: Store) -> None:
    first = store.put_bytes(b"some rows", "json")
    path = store.temporary()
    path.write_bytes(b"some rows")
    inode = store.path(first).stat().st_ino
    assert store.put_bytes(b"some rows", "json") == first
    assert store.put_file(path, "json") == first
    assert store.path(first).stat().st_ino == inode
    assert not path.exists()
    assert len([entry for entry in (store.home / "store").rglob("*") if entry.is_file()]) == 1


def test_a_stored_file_has_its_hash_as_its_name_and_cannot_be_written(store: Store) -> None:
    other = store.temporary()
    other.write_bytes(b"abcd")
    assert store.path(store.put_file(other, "json")).stat().st_mode & 0o777 == 0o444
    blob = store.put_bytes(b"abc", "json")
    path = store.path(blob)
    assert path.name == f"{sha256_bytes(b'abc')}.json"
    assert path.parent.name == blob.sha256[:2]
    assert path.stat().st_mode & 0o777 == 0o444


def test_a_damaged_file_is_replaced_when_its_bytes_are_put_again(store: Store) -> None:
    blob = store.put_bytes(b"abcdef", "json")
    replace_file(store.path(blob), b"abcdeg")
    assert not store.holds(blob)
    assert store.find(blob.sha256, "json") is None
    store.put_bytes(b"abcdef", "json")
    assert store.path(blob).read_bytes() == b"abcdef"


@pytest.mark.parametrize("other", ["link", "folder", "pipe", "nothing"])
def test_what_is_not_an_ordinary_file_is_not_held(store: Store, tmp_path: Path, other: str) -> None:
    blob = store.put_bytes(b"abcdef", "json")
    path = store.path(blob)
    path.unlink()
    if other == "link":
        (tmp_path / "elsewhere").write_bytes(b"abcdef")
        path.symlink_to(tmp_path / "elsewhere")
    elif other == "folder":
        path.mkdir()
    elif other == "pipe":
        os.mkfifo(path)
    assert not store.holds(blob)
    assert store.find(blob.sha256, "json") is None


def test_a_file_that_is_hashed_once_is_hashed_again_after_any_change(store: Store) -> None:
    blob = store.put_bytes(b"abcdef", "json")
    assert store.holds(blob)
    path = store.path(blob)
    before = path.stat()
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.write(b"x")
    os.utime(
        path, ns=(before.st_atime_ns, before.st_mtime_ns)
    )  # size, mtime and inode are as before; ctime cannot be set
    assert not store.holds(blob)


def test_a_hard_link_made_or_removed_while_a_file_is_hashed_changes_nothing(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process copies the home by hard links, or removes such a copy: only the ctime of the file differs after that."""
    blob = store.put_bytes(b"abcdef", "json")
    path, other = store.path(blob), tmp_path / "copy"
    for change_links in (lambda: other.hardlink_to(path), other.unlink):

        def hash_beside(file: Path, meanwhile: Callable[[], None] = change_links) -> str:
            before = file.stat().st_ctime_ns
            while file.stat().st_ctime_ns == before:  # the clock of a file system is coarse
                time.sleep(0.01)
                if meanwhile == other.unlink or not other.exists():
                    meanwhile()
            return sha256_file(file)

        with monkeypatch.context() as patch:
            patch.setattr("engcmp_resources.store.sha256_file", hash_beside)
            assert Store(store.home).holds(blob)


def test_a_file_that_is_replaced_while_it_is_hashed_is_not_held(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    blob = store.put_bytes(b"abcdef", "json")

    def hash_beside(file: Path) -> str:
        digest = sha256_file(file)
        replace_file(file, b"abcdeg")
        return digest

    monkeypatch.setattr("engcmp_resources.store.sha256_file", hash_beside)
    assert not store.holds(blob)


def test_two_processes_may_put_the_same_files_at_once(tmp_path: Path) -> None:
    writers = [start(PUT_THE_SAME, str(tmp_path / "home")) for _ in range(2)]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go")
        writer.stdin.flush()
    assert [writer.wait(60) for writer in writers] == [0, 0]
    for writer in writers:
        writer.communicate()
    files = [path for path in (tmp_path / "home" / "store").rglob("*") if path.is_file()]
    assert len(files) == 300
    assert all(sha256_file(path) == path.stem for path in files)
    assert not list((tmp_path / "home" / "scratch").glob("tmp-*"))


# ---------------------------------------------------------------- kills


def assert_all_visible_is_whole(home: Path) -> None:
    """Every file has the hash of its name, every head its receipt, every receipt its files."""
    for path in (home / "store").rglob("*"):
        assert path.is_dir() or sha256_file(path) == path.stem, path
    for path in (home / "receipts").iterdir():
        assert sha256_file(path) == path.stem
        receipt = json.loads(path.read_bytes())
        for output in receipt["outputs"]:
            assert (home / "store" / output["sha256"][:2] / f"{output['sha256']}.{output['suffix']}").is_file()
    place = Place("study", "arm", "rows")
    head = home / "heads" / "study" / "arm" / "rows.json"
    if head.exists():
        assert (home / "receipts" / f"{read_head(head, place)}.json").is_file()
    view = home / "views" / "study" / "rows.json"
    assert not view.is_symlink() or view.resolve(strict=True)


def assert_what_was_told_is_done(home: Path, number: str, sha256: str) -> None:
    """And the head, once settled, points to the newest receipt that is there."""
    store = Store(home)
    assert store.completed_task(f"{int(number):064x}") == sha256
    store.settle(Place("study", "arm", "rows"))
    head = store.head("study", "arm", "rows")
    assert head is not None
    numbers = [json.loads(path.read_bytes())["number"] for path in (home / "receipts").iterdir()]
    assert store.read_receipt(head)["number"] == max(numbers)


def test_a_kill_at_any_moment_leaves_only_whole_files_and_the_next_run_cleans_up(tmp_path: Path) -> None:
    home, draw = tmp_path / "home", random.Random(20261129)
    for round_number in range(24):
        writer = start(WRITE, str(home), str(round_number * 10_000))
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        began = time.monotonic()
        told = [writer.stdout.readline()] if round_number % 3 else []
        time.sleep(draw.uniform(0.0, 1.5) * (time.monotonic() - began if told else 0.02))
        writer.send_signal(signal.SIGKILL)
        told += writer.communicate(timeout=30)[0].splitlines()
        assert_all_visible_is_whole(home)
        if told:
            assert_what_was_told_is_done(home, *told[-1].split())
    Store(home)
    assert not list((home / "scratch").glob("tmp-*"))
    assert not list((home / "views").rglob(".*"))


def test_a_commit_that_was_killed_after_its_receipt_is_finished_later(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob = store.put_bytes(b"rows", "json")
    first = completed(store, blob, key="1" * 64)

    def die(*_arguments: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(store, "_set_head", die)
        completed(store, blob, key="2" * 64)
    later = Store(store.home)
    assert later.head(PLACE.study, PLACE.arm_folder, PLACE.artifact) == first
    later.settle(PLACE)
    second = later.head(PLACE.study, PLACE.arm_folder, PLACE.artifact)
    assert second not in (None, first)
    assert later.completed_task("2" * 64) == second
    later.settle(PLACE)  # nothing is left to do
    assert later.head(PLACE.study, PLACE.arm_folder, PLACE.artifact) == second


def test_an_intent_without_its_receipt_changes_nothing(store: Store) -> None:
    first = completed(store, store.put_bytes(b"rows", "json"))
    for data in (b"", b"{}\n", canonical_bytes({"receipt_sha256": "f" * 64, "completes": True}), b"\xff\xfe"):
        path = store.home / "scratch" / "intents" / "study~q4_0~llamacpp@b1~captured_rows~pa.json"
        path.write_bytes(data)
        store.settle(PLACE)
        assert not path.exists()
        assert store.head(PLACE.study, PLACE.arm_folder, PLACE.artifact) == first


def test_temporaries_of_a_living_process_are_left_alone_though_its_number_is_ours(tmp_path: Path) -> None:
    """Containers that share a home all have low process numbers: the lock decides, not the number."""
    writer = start(
        "import sys\nfrom pathlib import Path\nfrom engcmp_resources.store import Store\nstore = Store(Path(sys.argv[1]))\n"
        "path = store.temporary(); path.write_bytes(b'half'); print(path, flush=True); sys.stdin.read()",
        str(tmp_path / "home"),
    )
    assert writer.stdout is not None
    path = Path(writer.stdout.readline().strip())
    other = Store(tmp_path / "home")
    assert other.temporary() != path
    assert path.read_bytes() == b"half"
    writer.kill()
    writer.communicate()
    assert path.exists()
    Store(tmp_path / "home")
    assert not path.exists()
    assert not path.parent.exists()


def test_temporaries_go_when_their_process_ends_by_itself(tmp_path: Path) -> None:
    done = start(
        "import sys\nfrom pathlib import Path\nfrom engcmp_resources.store import Store\n"
        "store = Store(Path(sys.argv[1]))\nstore.temporary().write_bytes(b'half')",
        str(tmp_path / "home"),
    )
    done.communicate(timeout=30)
    assert done.returncode == 0
    assert list((tmp_path / "home" / "scratch").glob("tmp-*")) == []


# ---------------------------------------------------------------- a full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """A file system of so many KiB, which can be made larger; needs the right to mount."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(kib: int) -> Path:
        options = f"size={kib}k" if not folder.is_mount() else f"remount,size={kib}k"
        if not Path(MOUNT).exists():
            pytest.skip("no mount command here")
        done = subprocess.run(
            [MOUNT, "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            pytest.skip(f"cannot mount a small file system here: {done.stderr.strip()}")
        return folder

    yield mount
    if folder.is_mount():
        subprocess.run([UMOUNT, str(folder)], check=True)


def test_a_full_disk_is_told_and_nothing_half_written_remains(small_disk: Callable[[int], Path]) -> None:
    store = Store(small_disk(400) / "home")
    kept = [store.put_bytes(bytes([number]) * 30_000, "json") for number in range(5)]
    with pytest.raises(EngcmpError, match=r"the disk is full .*free space and start again"):
        store.put_bytes(b"x" * 600_000, "json")
    path = store.temporary()
    with pytest.raises(OSError, match="No space left"):
        path.write_bytes(b"y" * 600_000)
    path.unlink()
    assert all(store.holds(blob) for blob in kept)
    assert_all_visible_is_whole(store.home)
    assert not [entry for entry in (store.home / "scratch").rglob("*") if entry.is_file() and entry.suffix != ".lock"]
    small_disk(4000)
    assert store.holds(store.put_bytes(b"x" * 600_000, "json"))


def test_a_receipt_that_does_not_fit_moves_no_head(small_disk: Callable[[int], Path]) -> None:
    store = Store(small_disk(200) / "home")
    blob = store.put_bytes(b"rows", "json")
    first = completed(store, blob)
    big = receipt_of(store, blob) | {"details": "d" * 400_000}
    with pytest.raises(EngcmpError, match="the disk is full"):
        store.commit(PLACE, big, completes=[blob])
    assert store.head(PLACE.study, PLACE.arm_folder, PLACE.artifact) == first
    assert [path.stem for path in (store.home / "receipts").iterdir()] == [first]
    small_disk(4000)
    store.settle(PLACE)
    assert store.head(PLACE.study, PLACE.arm_folder, PLACE.artifact) == first
    second = store.commit(PLACE, big, completes=[blob])
    assert store.head(PLACE.study, PLACE.arm_folder, PLACE.artifact) == second


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(EngcmpError, match=r"cannot write there: Not a directory \(.*file.*ENGCMP_HOME"):
        Store(tmp_path / "file" / "home")


# ---------------------------------------------------------------- the index


def test_a_completed_task_is_answered_without_reading_its_files_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob = store.put_bytes(b"rows", "json")
    sha256 = completed(store, blob)
    later = Store(store.home)
    monkeypatch.setattr("engcmp_resources.store.sha256_file", lambda path: pytest.fail(f"hashed {path}"))
    assert later.completed_task("a" * 64) == sha256


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "not JSON": lambda _: b"\x00\xff{",
    "a list": lambda _: b"[]\n",
    "a number": lambda _: b"7\n",
    "nested without end": lambda _: b"[" * 100_000,
    "not UTF-8": lambda data: data.decode().encode("utf-16"),
    "NaN": lambda _: b'{"files":NaN}\n',
    "cut": lambda data: data[:40],
    "first byte": flipped(0),
    "other types": lambda _: canonical_bytes({"receipt_sha256": [1], "files": 3}),
    "a path": lambda _: canonical_bytes({"receipt_sha256": "../heads/x", "files": {}}),
    "files a list": lambda data: canonical_bytes(json.loads(data) | {"files": []}),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_index_entry_means_work_again(store: Store, damage: str) -> None:
    completed(store, store.put_bytes(b"rows", "json"))
    path = store.home / "tasks" / f"{'a' * 64}.json"
    replace_file(path, DAMAGE[damage](path.read_bytes()))
    assert Store(store.home).completed_task("a" * 64) is None


def test_no_flipped_byte_of_an_index_entry_gives_a_wrong_answer(store: Store) -> None:
    sha256 = completed(store, store.put_bytes(b"rows", "json"))
    path = store.home / "tasks" / f"{'a' * 64}.json"
    original = path.read_bytes()
    for position in range(len(original)):
        replace_file(path, flipped(position)(original))
        assert Store(store.home, read_only=True).completed_task("a" * 64) in (None, sha256)


def test_an_index_entry_that_names_another_task_s_receipt_is_not_believed(store: Store) -> None:
    blob = store.put_bytes(b"rows", "json")
    completed(store, blob, key="1" * 64)
    completed(store, blob, key="2" * 64)
    tasks = store.home / "tasks"
    replace_file(tasks / f"{'1' * 64}.json", (tasks / f"{'2' * 64}.json").read_bytes())
    assert store.completed_task("1" * 64) is None
    assert store.completed_task("2" * 64) is not None


def test_a_task_whose_file_was_changed_or_is_gone_counts_as_not_done(store: Store) -> None:
    blob = store.put_bytes(b"rows" * 100, "json")
    completed(store, blob)
    original = store.path(blob).read_bytes()
    for data in (original[:-1], original + b"x", flipped(7)(original)):
        replace_file(store.path(blob), data)
        assert Store(store.home).completed_task("a" * 64) is None
    store.path(blob).unlink()
    assert Store(store.home).completed_task("a" * 64) is None


def test_a_receipt_that_was_changed_completes_nothing(store: Store) -> None:
    sha256 = completed(store, store.put_bytes(b"rows", "json"))
    path = store.receipt_path(sha256)
    replace_file(path, flipped(5)(path.read_bytes()))
    assert store.completed_task("a" * 64) is None


def test_a_copied_home_is_hashed_once_and_then_trusted(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sha256 = completed(store, store.put_bytes(b"rows", "json"))
    shutil.copytree(store.home, tmp_path / "copy")
    assert Store(tmp_path / "copy").completed_task("a" * 64) == sha256
    monkeypatch.setattr("engcmp_resources.store.sha256_file", lambda path: pytest.fail(f"hashed {path}"))
    assert Store(tmp_path / "copy").completed_task("a" * 64) == sha256


def test_a_part_is_answered_only_under_its_own_key(store: Store) -> None:
    store.keep_part("pair-a", b'{"value":1}\n')
    store.keep_part("pair-b", b'{"value":2}\n')
    tasks = store.home / "tasks"
    assert store.part("pair-a") == b'{"value":1}\n'
    replace_file(tasks / "part-pair-a.json", (tasks / "part-pair-b.json").read_bytes())
    assert store.part("pair-a") is None
    assert store.part("pair-b") == b'{"value":2}\n'
    for damage in DAMAGE.values():
        replace_file(tasks / "part-pair-a.json", damage((tasks / "part-pair-b.json").read_bytes()))
        assert store.part("pair-a") is None


def test_a_part_whose_bytes_were_changed_is_made_again(store: Store) -> None:
    store.keep_part("pair", b'{"value":1}\n')
    path = next((store.home / "store").rglob("*.json"))
    replace_file(path, b'{"value":2}\n')
    assert store.part("pair") is None


# ---------------------------------------------------------------- receipts and heads


def test_any_flipped_byte_of_a_head_is_an_error(store: Store) -> None:
    completed(store, store.put_bytes(b"rows", "json"))
    path = store.head_path(PLACE)
    original = path.read_bytes()
    for position in range(len(original)):
        replace_file(path, flipped(position)(original))
        with pytest.raises(EngcmpError, match=r"head|receipt .* is missing"):
            store.read_receipt(str(store.head(PLACE.study, PLACE.arm_folder, PLACE.artifact)))


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_head_is_an_error_that_names_it(store: Store, damage: str) -> None:
    completed(store, store.put_bytes(b"rows", "json"))
    path = store.head_path(PLACE)
    replace_file(path, DAMAGE[damage](path.read_bytes()))
    with pytest.raises(EngcmpError, match=r"head .*captured_rows/pa\.json.*run the study again"):
        store.head(PLACE.study, PLACE.arm_folder, PLACE.artifact)


def test_a_head_of_another_place_is_not_believed(store: Store) -> None:
    completed(store, store.put_bytes(b"rows", "json"))
    other = Place("study", "q8_0~llamacpp@b1", "captured_rows/pa")
    store.head_path(other).parent.mkdir(parents=True)
    shutil.copy(store.head_path(PLACE), store.head_path(other))
    with pytest.raises(EngcmpError, match="head was changed"):
        store.head(other.study, other.arm_folder, other.artifact)


@pytest.mark.parametrize("name", ["0" * 64, "../heads/study", "", "x" * 5000])
def test_a_receipt_that_is_not_there_is_an_error(store: Store, name: str) -> None:
    with pytest.raises(EngcmpError, match="is missing"):
        store.read_receipt(name)


def test_a_changed_receipt_is_an_error_that_names_it(store: Store) -> None:
    sha256 = completed(store, store.put_bytes(b"rows", "json"))
    path = store.receipt_path(sha256)
    replace_file(path, flipped(-2)(path.read_bytes()))
    with pytest.raises(EngcmpError, match=f"changed after it was written .*{sha256}"):
        store.read_receipt(sha256)


def test_receipts_with_their_right_hash_but_not_canonical_are_refused(store: Store) -> None:
    for data in (
        b'{"b":1,"a":2}\n',
        b'{"a":1,"a":2}\n',
        b'{"a":NaN}\n',
        b"[1]\n",
        b'{"a": 1}\n',
        b"\xff",
        b"[" * 50_000,
    ):
        path = store.receipt_path(sha256_bytes(data))
        path.write_bytes(data)
        with pytest.raises(EngcmpError, match=r"not (a canonical )?JSON"):
            store.read_receipt(path.stem)


# ---------------------------------------------------------------- readers and views


def test_a_reader_writes_nothing_and_makes_no_folder(tmp_path: Path) -> None:
    reader = Store(tmp_path / "home", read_only=True)
    blob = Blob("0" * 64, 1, "json")
    for write in (
        lambda: reader.put_bytes(b"a", "json"), lambda: reader.put_file(Path(__file__), "py"), reader.temporary,
        lambda: reader.scratch("x"), lambda: reader.drop_scratch("x"), lambda: reader.keep_part("k", b"1"),
        lambda: reader.commit(PLACE, {}, completes=None), lambda: reader.view(tmp_path / "home" / "views" / "x", blob),
    ):  # fmt: skip
        with pytest.raises(EngcmpError, match="opened for reading"):
            write()
    assert not (tmp_path / "home").exists()


def test_a_reader_answers_from_a_copied_store_without_touching_it(store: Store, tmp_path: Path) -> None:
    sha256 = completed(store, store.put_bytes(b"rows", "json"))
    shutil.copytree(store.home, tmp_path / "copy")
    before = everything(tmp_path / "copy")
    reader = Store(tmp_path / "copy", read_only=True)
    assert reader.completed_task("a" * 64) == sha256
    assert everything(tmp_path / "copy") == before


def test_a_view_is_a_relative_link_that_follows_the_current_file(store: Store, tmp_path: Path) -> None:
    link = store.view_path(PLACE, "rows/1.1/prose", "json")
    first, second = store.put_bytes(b"1", "json"), store.put_bytes(b"2", "json")
    store.view(link, first)
    assert link == store.home / "views/study/q4_0~llamacpp@b1/captured_rows/pa/rows/1.1/prose.json"
    assert not link.readlink().is_absolute()
    store.view(link, second)
    assert link.read_bytes() == b"2"
    replace_file(link, b"3")
    store.view(link, second)
    assert link.is_symlink()
    shutil.move(store.home, tmp_path / "moved")
    assert (tmp_path / "moved" / link.relative_to(store.home)).read_bytes() == b"2"
