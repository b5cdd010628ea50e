"""The bundle itself: what it holds, that it needs nothing but Python, that it is written whole or not, and signed."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from export.forging import Q4, Forger
from homes import CHECKOUT, Q8, STUDY, current_receipt, engcmp, engcmp_here
from hypothesis import given, settings
from hypothesis import strategies as st

from engcmp_assets.commands.main import main
from engcmp_assets.export import contents
from engcmp_assets.export.verifier.faults import Fault
from engcmp_assets.export.verifier.main import verify
from engcmp_assets.export.verifier.reading import MANIFEST, SIGNATURE, canonical
from engcmp_assets.export.verifier.signature import verified

VERIFIER = CHECKOUT / "engcmp_assets" / "export" / "verifier"


def _head(bundle: Path) -> str:
    return str(json.loads((bundle / MANIFEST).read_bytes())["head_sha256"])


def test_the_verifier_imports_the_standard_library_and_itself() -> None:
    allowed = {
        "__future__", "argparse", "base64", "collections", "csv", "dataclasses", "functools", "hashlib", "importlib", "io", "itertools",
        "json", "math", "os", "pathlib", "re", "stat", "statistics", "sys", "typing",
    }  # fmt: skip
    for path in (*VERIFIER.glob("*.py"), VERIFIER.parent / "verify.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            assert {name.partition(".")[0] for name in names} <= allowed | {"verifier"}, path


def test_python_alone_verifies_it(bundle: Path) -> None:
    """-I and -S: no package of anyone's, no environment; it says what it recomputed."""
    command = [sys.executable, "-I", "-S", str(bundle / "verify.py"), "--head", _head(bundle)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd="/")
    assert done.returncode == 0, done.stderr
    assert "figures were recomputed from their rows and agree" in done.stdout
    assert not list(bundle.rglob("__pycache__"))


def test_its_site_opens_there_with_every_link_alive(bundle: Path) -> None:
    pages = sorted((bundle / "site").rglob("*.html"))
    assert bundle / "site" / "index.html" in pages
    links = [
        (page, link)
        for page in pages
        for link in re.findall(r'href="([^"#]+)', page.read_text("utf-8"))
        if not link.startswith("data:")
    ]
    assert len(links) > 1000
    dead = {link for page, link in links if not (page.parent / link).is_file()}
    assert not dead


def test_it_fails_with_one_line_and_exit_1(bundle: Path, tmp_path: Path) -> None:
    own = Forger(bundle)
    own.files[own.table(Q4)] = b"window_id\n"
    folder = own.write(bundle, tmp_path / "forged")
    command = [sys.executable, "-I", str(folder / "verify.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1 and not done.stdout
    assert done.stderr == f"FAILED {own.table(Q4)}: bytes do not have the hash that the manifest states\n"


def test_the_same_results_give_the_same_head(bundle: Path, signed: Signed) -> None:
    """A second export, of another process: signed or not, it says the same."""
    assert signed.told["head_sha256"] == _head(signed.folder) == _head(bundle)
    tables = [path.relative_to(bundle) for path in (bundle / "rows").rglob("*.csv")]
    assert tables
    assert all((signed.folder / path).read_bytes() == (bundle / path).read_bytes() for path in tables)


def test_nothing_of_this_machine_leaves(bundle: Path, measured_home: Path) -> None:
    for path in bundle.rglob("*"):
        if path.is_file() and path.suffix in {".json", ".html", ".md", ".csv", ".toml"}:
            text = path.read_text(errors="replace")
            assert str(measured_home) not in text and str(Path.home() / "") not in text, path


def test_a_folder_with_something_in_it_is_left_alone(measured_home: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    done = engcmp_here("export", STUDY, "--out", str(tmp_path), ENGCMP_HOME=str(measured_home))
    assert done.returncode == 1 and "there is something already" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize("suffix", ["parquet", "html"])
def test_a_damaged_store_is_not_exported(home_copy: Path, tmp_path: Path, suffix: str) -> None:
    """A file that was changed is told before it can be published: tables that are read, and files that are only copied."""
    outputs = [
        output
        for name in ("scores", "publication")
        for output in current_receipt(home_copy, name, Q8 if name == "scores" else None)["outputs"]
        if output["suffix"] == suffix
    ]
    table = home_copy / "store" / outputs[0]["sha256"][:2] / f"{outputs[0]['sha256']}.{suffix}"
    data = table.read_bytes()
    table.unlink()
    table.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    done = engcmp_here("export", STUDY, "--out", str(tmp_path / "out" / "bundle"), ENGCMP_HOME=str(home_copy))
    assert done.returncode == 1 and "missing or changed" in done.stderr and table.name in done.stderr
    assert not list(tmp_path.glob("out/*"))


def test_what_would_not_verify_is_not_handed_out(
    measured_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A fault of the exporter itself is found before anyone gets the bundle, and nothing is left."""
    monkeypatch.setenv("ENGCMP_HOME", str(measured_home))
    whole = contents.rows_csv
    monkeypatch.setattr(contents, "rows_csv", lambda table: whole(table).replace(b"0.", b"1.", 40))
    with pytest.raises(SystemExit) as ended:
        main(["export", STUDY, "--out", str(tmp_path / "out" / "bundle")])
    assert ended.value.code == 1 and "the bundle would not verify" in capsys.readouterr().err
    assert not list((tmp_path / "out").iterdir())


def _key(path: Path) -> Ed25519PrivateKey:
    key = Ed25519PrivateKey.generate()
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    path.chmod(0o600)
    return key


@dataclass(frozen=True)
class Signed:
    """A signed bundle, the public key, and what its export told."""

    folder: Path
    public: str
    told: dict[str, Any]


@pytest.fixture(scope="module")
def signed(measured_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Signed:
    root = tmp_path_factory.mktemp("signed")
    key = _key(root / "key.pem")
    arguments = ["export", STUDY, "--out", str(root / "bundle"), "--sign", str(root / "key.pem"), "--json"]
    done = engcmp(*arguments, home=measured_home)
    assert done.returncode == 0, done.stderr
    return Signed(root / "bundle", key.public_key().public_bytes_raw().hex(), json.loads(done.stdout))


def test_a_signed_bundle_says_by_whom(signed: Signed) -> None:
    assert f"signed by {signed.public}" in verify(signed.folder, key=signed.public)


def test_every_forged_signature_is_found(signed: Signed, tmp_path: Path) -> None:
    folder, public = signed.folder, signed.public
    envelope = json.loads((folder / SIGNATURE).read_bytes())
    other = _key(tmp_path / "other.pem")

    def forged(name: str, data: bytes | None, source: Path = folder) -> Path:
        own = Forger(source)
        own.files.pop(SIGNATURE, None)
        if data is not None:
            own.files[SIGNATURE] = data
        return own.write(source, tmp_path / name)

    with pytest.raises(Fault, match="not signed, and a key was given"):
        verify(forged("none", None), key=public)
    with pytest.raises(Fault, match=r"of another BUNDLE\.json"):
        own = Forger(folder)
        own.files["files/new.txt"] = b"new\n"
        own.relist()
        verify(own.write(folder, tmp_path / "moved"))
    with pytest.raises(Fault, match="not by the one that was given"):
        verify(folder, key=other.public_key().public_bytes_raw().hex())
    for name, change in {
        "payload": {"payload": envelope["payload"][:-8] + "AAAAAAA="},
        "kind": {"payloadType": "text/plain"},
        "none of them": {"signatures": []},
        "two of them": {"signatures": envelope["signatures"] * 2},
        "another key": {
            "signatures": [envelope["signatures"][0] | {"keyid": other.public_key().public_bytes_raw().hex()}]
        },
        "no hex": {"signatures": [envelope["signatures"][0] | {"keyid": "key"}]},
    }.items():
        with pytest.raises(Fault, match=SIGNATURE):
            verify(forged(name, canonical(envelope | change)))


def test_a_key_that_others_can_read_is_refused(measured_home: Path, tmp_path: Path) -> None:
    _key(tmp_path / "key.pem")
    (tmp_path / "key.pem").chmod(0o644)
    arguments = ["export", STUDY, "--out", str(tmp_path / "b"), "--sign", str(tmp_path / "key.pem")]
    done = engcmp_here(*arguments, ENGCMP_HOME=str(measured_home))
    assert done.returncode == 1 and "can be read by others" in done.stderr and "chmod 600" in done.stderr


@settings(max_examples=20, deadline=None)
@given(message=st.binary(max_size=200), place=st.integers(0, 63), bit=st.integers(0, 7))
def test_our_check_of_ed25519_agrees_with_a_kept_library(message: bytes, place: int, bit: int) -> None:
    key = Ed25519PrivateKey.generate()
    public, signature = key.public_key().public_bytes_raw(), key.sign(message)
    assert verified(public, signature, message)
    assert not verified(public, signature, message + b"x")
    assert not verified(
        public, signature[:place] + bytes([signature[place] ^ (1 << bit)]) + signature[place + 1 :], message
    )


@pytest.mark.parametrize("name", ["json", "pathlib", "__future__", "importlib"])
def test_a_module_beside_the_verifier_does_not_stand_for_python_s_own(name: str, tmp_path: Path) -> None:
    shutil.copy(Path(contents.__file__).parent / "verify.py", tmp_path / "verify.py")
    (tmp_path / "verifier").mkdir()
    (tmp_path / "verifier" / "__init__.py").write_text("")
    (tmp_path / "verifier" / "main.py").write_text("import json\ndef main(folder, arguments):\n    return 7\n")
    (tmp_path / f"{name}.py").write_text("raise SystemExit(0)\n")
    assert subprocess.run([sys.executable, str(tmp_path / "verify.py")], check=False).returncode == 7
