"""`engcmp catalog` held against the disk: each file once, with what the file itself and its receipt say of it."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest
from homes import CHECKOUT, Q4, STUDY, current_receipt, engcmp_here, output_file, replace_file

from engcmp_assets.catalog.entries import COLUMNS, FILES, Listed, code_version, columns_of, lines_of, package_of
from engcmp_assets.catalog.page import catalog_page
from engcmp_assets.kernel.study import Study
from engcmp_resources.canonical import sha256_file

README = (CHECKOUT / "engcmp_assets" / "audit" / "README.md").read_text(encoding="utf-8")
Lines = list[dict[str, Any]]


@pytest.fixture(scope="module")
def listed(measured_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the README's command has written the catalog of the measured study."""
    folder = tmp_path_factory.mktemp("catalog")
    done = engcmp_here("catalog", STUDY, "--out", str(folder / "catalog"), ENGCMP_HOME=str(measured_home))
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def files(listed: Path) -> Lines:
    return pl.read_parquet(listed / "catalog" / "catalog.parquet").to_dicts()


def heads(home: Path) -> dict[str, dict[str, Any]]:
    """Every current receipt of the study by hash, read from the disk."""
    found = [json.loads(path.read_bytes())["receipt_sha256"] for path in (home / "heads" / STUDY).rglob("*.json")]
    return {sha256: json.loads((home / "receipts" / f"{sha256}.json").read_bytes()) for sha256 in found}


def test_every_file_of_every_current_receipt_is_listed_once_and_nothing_else(measured_home: Path, files: Lines) -> None:
    receipts = heads(measured_home)
    wanted = {
        (sha256, output["name"], output["sha256"], output["bytes"], output["rows"])
        for sha256, receipt in receipts.items()
        for output in receipt["outputs"]
    }
    found = [(line["receipt_sha256"], line["output"], line["sha256"], line["bytes"], line["rows"]) for line in files]
    assert len(found) == len(set(found)) > 500
    assert set(found) == wanted
    for line in files:
        receipt = receipts[line["receipt_sha256"]]
        assert (line["artifact"], line["partition"], line["study"]) == (receipt["artifact"], receipt["arm"], STUDY)
        assert line["made_by_sha256"] == (receipt["answered_by"] or line["receipt_sha256"])


def test_each_path_leads_to_the_file_with_these_bytes(measured_home: Path, files: Lines) -> None:
    for line in {line["path"]: line for line in files}.values():
        path = measured_home / line["path"]
        assert path.stat().st_size == line["bytes"] and path.suffix == f".{line['kind']}"
        if line["bytes"] < 1 << 20:  # of large ones the name is their hash, and `verify` reads them
            assert sha256_file(path) == line["sha256"]


def test_rows_and_schema_are_those_that_the_tables_themselves_have(
    measured_home: Path, listed: Path, files: Lines
) -> None:
    """Of each table of each artifact; an arm's tables are like those of the other arms."""
    columns = pl.read_parquet(listed / "catalog" / "columns.parquet")
    tables = [line for line in files if line["kind"] == "parquet"]
    assert len(tables) > 50
    for line in tables:
        stored = pq.read_metadata(measured_home / line["path"])
        assert line["rows"] == stored.num_rows, line["output"]
        schema = stored.schema.to_arrow_schema()
        units = {field.name: (field.metadata or {}).get(b"unit", b"").decode() for field in schema}
        said = dict(re.findall(r"(\S+) \S+ \[(.+?)\](?:;|$)", line["schema"]))
        assert said == units, line["output"]
        same_arm = pl.col("partition").eq_missing(line["partition"])
        own = columns.filter((pl.col("artifact") == line["artifact"]) & same_arm & (pl.col("output") == line["output"]))
        assert own["column"].to_list() == schema.names and all(own["description"].str.len_chars() > 4)


def test_licences_are_those_that_the_protocol_states(study: Study, files: Lines) -> None:
    sources = {line["output"]: line for line in files if (line["artifact"], line["partition"]) == ("sources", Q4)}
    stated = study.protocol.sources
    assert sources["weights.gguf"]["licence"] == stated["weights"].license == "Apache-2.0"
    assert sources["engine-library"]["licence"] == stated["llamacpp-b11549"].license == "MIT"
    assert sources["engine-library"]["made_from_licences"] == ""
    scores = next(line for line in files if (line["artifact"], line["partition"]) == ("scores", Q4))
    assert (scores["licence"], scores["made_from_licences"]) == ("Apache-2.0", "Apache-2.0, MIT")
    frozen = next(line for line in files if line["artifact"] == "frozen_protocol")
    assert (frozen["partition"], frozen["made_from_licences"]) == (None, "")


def test_every_field_is_described_and_has_its_unit(listed: Path) -> None:
    for name, columns in (("catalog.parquet", FILES), ("columns.parquet", COLUMNS)):
        schema = pq.read_schema(listed / "catalog" / name)
        assert schema.names == [column.name for column in columns]
        for field in schema:
            assert len(field.metadata[b"description"]) > 8 and field.metadata[b"unit"]


# ---------------------------------------------------------------- one line each, as the README has them


def readme_queries() -> list[str]:
    return [line for line in README.splitlines() if line.startswith("python -c") and "catalog.parquet" in line]


@pytest.mark.parametrize("package", ["polars", "duckdb"])
def test_the_readme_s_one_line_asks_the_catalog(listed: Path, files: Lines, package: str) -> None:
    (line,) = [line for line in readme_queries() if f"import {package}" in line]
    done = subprocess.run(
        [sys.executable, *shlex.split(line)[1:]], cwd=listed, capture_output=True, text=True, check=True, timeout=60
    )
    assert len({one["path"] for one in files}) < len(files), "arms share files"
    by_artifact: dict[str, dict[str, int]] = {}
    for one in files:
        by_artifact.setdefault(one["artifact"], {})[one["path"]] = one["bytes"]
    for artifact, size in ((name, sum(own.values())) for name, own in by_artifact.items()):
        assert re.search(rf"{artifact}\W+{size}\b", done.stdout), done.stdout


# ---------------------------------------------------------------- the page


class Page(HTMLParser):
    """Links, ids and words of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.tables = self.captions = self.headers = 0
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.tags.add(tag)
        self.ids |= {named["id"] or ""} if "id" in named else set()
        self.links += [named["href"] or ""] if tag == "a" else []
        self.tables += tag == "table"
        self.captions += tag == "caption"
        self.headers += (tag, named.get("scope")) == ("th", "row")


def test_the_page_lists_each_file_and_its_links_lead_to_files_and_receipts(
    measured_home: Path, listed: Path, files: Lines
) -> None:
    text = (listed / "catalog" / "catalog.html").read_text(encoding="utf-8")
    page = Page(text)
    size = sum(path.stat().st_size for path in {measured_home / line["path"] for line in files})
    count = len({line["path"] for line in files})
    assert f"{len(files):,} outputs in {count:,} files, {size / 1e6:,.3f} MB (a file that several arms share" in text
    assert "script" not in page.tags and page.tables == page.captions > 50
    inside = {link[1:] for link in page.links if link.startswith("#")}
    assert inside and inside <= page.ids
    outside = [link for link in page.links if not link.startswith("#")]
    linked = {(listed / "catalog" / link).resolve() for link in outside}
    assert {(measured_home / line["path"]).resolve() for line in files} <= linked
    assert {(measured_home / "receipts" / f"{line['receipt_sha256']}.json").resolve() for line in files} <= linked
    assert all(path.is_file() for path in linked)
    columns = pl.read_parquet(listed / "catalog" / "columns.parquet").to_dicts()
    kept = Page(catalog_page("Catalog", files, columns))  # as the asset has it: sound wherever it is read
    assert all(link.startswith("#") for link in kept.links) and kept.headers == page.headers >= len(files)


def test_names_in_the_page_are_text_and_never_markup() -> None:
    receipt = {
        "study": "s", "artifact": "scores", "arm": None, "frozen_sha256": "f" * 64, "finished_at": "2026-11-30T00:00:00.000+00:00",
        "versions": {"step": "1", "measures": {"nll": 1}}, "answered_by": None,
        "code": {"package": "engcmp", "version": "0", "git_commit": "c" * 40, "dirty": True},
        "outputs": [{"name": "<script>", "sha256": "a" * 64, "bytes": 1, "suffix": "json", "role": "data", "rows": None, "columns": []}],
    }  # fmt: skip
    (line,) = lines_of([Listed(receipt, "b" * 64, receipt, "b" * 64)], {})
    assert columns_of([Listed(receipt, "b" * 64, receipt, "b" * 64)]) == []
    assert (line["rows"], line["schema"], line["code_version"]) == (None, "", "1+nll:1")
    assert line["package"] == f"engcmp 0, commit {'c' * 12}, changed"
    page = catalog_page("<b>", [line], [])
    assert "<script>" not in page and "&lt;script&gt;" in page and "&lt;b&gt;" in page


def test_no_commit_is_said_with_its_reason_and_no_measure_is_no_plus() -> None:
    code = {"package": "engcmp", "version": "0.1.0", "git_commit": {"missing": "not a git checkout"}, "dirty": None}
    assert package_of(code) == "engcmp 0.1.0, commit unknown: not a git checkout"
    assert code_version({"step": "2", "measures": {}}) == code_version({"step": 2}) == "2"


# ---------------------------------------------------------------- the command


def test_without_a_study_it_lists_all_that_have_results_and_each_line_is_json(
    measured_home: Path, files: Lines
) -> None:
    done = engcmp_here("catalog", "--json", ENGCMP_HOME=str(measured_home))
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line for line in lines if line["study"] == STUDY] == files
    told = engcmp_here("catalog", STUDY, ENGCMP_HOME=str(measured_home)).stdout.splitlines()
    assert len(told) == 2 + len(heads(measured_home))
    stored = {(measured_home / line["path"]).stat().st_ino: line["bytes"] for line in files}
    assert told[-1].endswith(f" in {len(stored):,} files, {sum(stored.values()) / 1e6:,.3f} MB on the disk")
    scores = current_receipt(measured_home, "scores", Q4)
    (line,) = [line for line in told if line.startswith("scores") and Q4 in line]
    assert line.split()[2:4] == [str(len(scores["outputs"])), f"{sum(one['rows'] or 0 for one in scores['outputs']):,}"]


def test_no_results_an_unknown_study_and_a_changed_file_are_one_clear_line(home_copy: Path, tmp_path: Path) -> None:
    done = engcmp_here("catalog", STUDY, ENGCMP_HOME=str(tmp_path / "none"))
    assert (done.returncode, done.stdout) == (1, "") and f"no results of {STUDY} here" in done.stderr
    assert not (tmp_path / "none").exists()
    done = engcmp_here("catalog", "nothing", ENGCMP_HOME=str(home_copy))
    assert done.returncode == 1 and "no study 'nothing'" in done.stderr
    path = output_file(home_copy, current_receipt(home_copy, "sources", Q4), "sources.parquet")
    replace_file(path, path.read_bytes()[:-1])
    done = engcmp_here("catalog", STUDY, "--out", str(tmp_path / "out"), ENGCMP_HOME=str(home_copy))
    assert done.returncode == 1 and str(path) in done.stderr and not (tmp_path / "out").exists()
