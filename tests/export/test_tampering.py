"""Sixty and more ways to tamper with a bundle: each is found, and the file that was tampered with, or its claim, is named.

Three kinds. *As found*: bytes are changed and nothing else. *Listed again*: the manifest fits the changed bytes. *Chained again*: every
hash and link fits too, so that only the rows behind the figures tell; and where even these are made to fit, the published head tells.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from export.forging import Q4, Q8, Forger
from homes import EVERY_ARM

from engcmp_assets.export.verifier.chain import TABLES
from engcmp_assets.export.verifier.faults import Fault
from engcmp_assets.export.verifier.main import verify
from engcmp_assets.export.verifier.reading import MANIFEST, canonical, sha256

Tamper = Callable[[Forger], str]
"""Changes a bundle; returns a part of what the verifier must say."""
AS_FOUND: dict[str, Tamper] = {}
LISTED: dict[str, Tamper] = {}
CHAINED: dict[str, Tamper] = {}


def into(corpus: dict[str, Tamper], name: str) -> Callable[[Tamper], Tamper]:
    def add(tamper: Tamper) -> Tamper:
        assert name not in corpus
        corpus[name] = tamper
        return tamper

    return add


def flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


# ---------------------------------------------------------------------- as found

_FILES: dict[str, Callable[[Forger], str]] = {
    "receipt": lambda own: own.receipt_path("scores", Q4),
    "head": lambda own: own.head("summaries", Q8),
    "summary": lambda own: own.output("summaries", "summary.json", Q4),
    "page": lambda own: own.output("publication", "SUMMARY.html"),
    "scored rows": lambda own: own.output("scores", "rows-pa.parquet", Q4),
    "plot": lambda own: own.output("publication", "plot.png"),
    "table of rows": lambda own: own.table(Q8),
    "table of a pair": lambda _: "rows/pairs/q4_0-vs-q8_0.csv",
    "protocol": lambda _: "protocol/protocol.toml",
    "freeze": lambda _: "protocol/FROZEN.json",
    "text": lambda own: next(name for name in own.files if name.startswith("protocol/texts/")),
    "verifier": lambda _: "verifier/figures.py",
    "provenance": lambda _: "prov.json",
    "readme": lambda _: "README.md",
}


def _byte(which: str) -> Tamper:
    def tamper(own: Forger) -> str:
        name = _FILES[which](own)
        own.change(name, flipped)
        return f"{name}: bytes do not have the hash"

    return tamper


def _gone(which: str) -> Tamper:
    def tamper(own: Forger) -> str:
        name = _FILES[which](own)
        del own.files[name]
        return f"{name}: is missing"

    return tamper


AS_FOUND |= {f"a byte of the {which}": _byte(which) for which in _FILES}
AS_FOUND |= {f"no {which}": _gone(which) for which in ("receipt", "head", "page", "table of rows", "freeze")}


@into(AS_FOUND, "a file cut short")
def _(own: Forger) -> str:
    name = own.table(Q4)
    own.change(name, lambda data: data[:-200])
    return name


@into(AS_FOUND, "a line break at the end")
def _(own: Forger) -> str:
    name = own.receipt_path("comparisons")
    own.change(name, lambda data: data + b"\n")
    return name


@into(AS_FOUND, "an empty file")
def _(own: Forger) -> str:
    name = own.output("comparisons", "comparisons.json")
    own.files[name] = b""
    return name


@into(AS_FOUND, "a file too many")
def _(own: Forger) -> str:
    own.files["files/hidden.txt"] = b"a better figure\n"
    return "files/hidden.txt: lies in the bundle"


@into(AS_FOUND, "a receipt too many")
def _(own: Forger) -> str:
    own.files[f"receipts/{'0' * 64}.json"] = b"{}\n"
    return "0000.json: lies in the bundle"


@into(AS_FOUND, "a byte of the manifest")
def _(own: Forger) -> str:
    own.change(MANIFEST, lambda data: data.replace(b'"study":"s', b'"study":"S', 1))
    return "study"


@into(AS_FOUND, "a manifest laid out anew")
def _(own: Forger) -> str:
    own.files[MANIFEST] = json.dumps(own.manifest, indent=1).encode()
    return f"{MANIFEST}: is not canonical JSON"


@into(AS_FOUND, "a key of the manifest that stands twice")
def _(own: Forger) -> str:
    own.change(MANIFEST, lambda data: data.replace(b'{"by_hash"', b'{"study":"other","by_hash"', 1))
    return f"{MANIFEST}: is not canonical JSON"


@into(AS_FOUND, "a manifest that is no JSON")
def _(own: Forger) -> str:
    own.change(MANIFEST, lambda data: data[:-3])
    return f"{MANIFEST}: is not JSON"


@into(AS_FOUND, "no manifest")
def _(own: Forger) -> str:
    del own.files[MANIFEST]
    return f"{MANIFEST}: is missing"


def _manifest(change: Callable[[dict[str, Any]], Any], said: str) -> Tamper:
    def tamper(own: Forger) -> str:
        change(own.manifest)
        own.files[MANIFEST] = canonical(own.manifest)
        return said

    return tamper


LISTED |= {
    "a manifest of another form": _manifest(lambda one: one.update(schema="engcmp.bundle/0"), "is not a manifest of"),
    "a field too many in the manifest": _manifest(lambda one: one.update(trust="me"), "is not a manifest of"),
    "a path out of the folder": _manifest(
        lambda one: one["files"][0].update(path="../secret"), "'../secret', which is no path"
    ),
    "an absolute path": _manifest(
        lambda one: one["files"][0].update(path="/etc/hostname"), "'/etc/hostname', which is no path"
    ),
    "a file that is listed twice": _manifest(lambda one: one["files"].append(one["files"][0]), "or stands twice"),
    "a file without a hash": _manifest(lambda one: one["files"][0].update(sha256="none"), "has no hash and size"),
    "another size": _manifest(lambda one: one["files"][5].update(bytes=1), "bytes do not have the hash"),
    "another head in the manifest": _manifest(lambda one: one.update(head_sha256="0" * 64), "states another head"),
    "another frozen hash in the manifest": _manifest(
        lambda one: one.update(frozen_sha256="0" * 64), "another frozen hash"
    ),
    "another study in the manifest": _manifest(lambda one: one.update(study="other"), "is not the head of the place"),
}


# ---------------------------------------------------------------------- listed again


@into(LISTED, "an edited receipt under its old name")
def _(own: Forger) -> str:
    name = own.receipt_path("summaries", Q4)
    own.edit_receipt("summaries", lambda receipt: receipt["figures"][0].update(value=0.1), Q4)
    own.relist()
    return f"{name}: the receipt's bytes do not have the hash of its name"


@into(LISTED, "an edited receipt under its new name")
def _(own: Forger) -> str:
    name = own.receipt_path("summaries", Q4)
    own.edit(name, lambda receipt: receipt["figures"][0].update(value=0.1))
    data = own.files.pop(name)
    own.files[f"receipts/{sha256(data)}.json"] = data
    own.relist()
    return "which is missing"


@into(LISTED, "a receipt that is laid out anew")
def _(own: Forger) -> str:
    name = own.receipt_path("tails", Q4)
    data = json.dumps(json.loads(own.files.pop(name)), indent=1).encode()
    own.files[f"receipts/{sha256(data)}.json"] = data
    own.relist()
    return "is not canonical JSON"


@into(LISTED, "a receipt that is something else")
def _(own: Forger) -> str:
    data = canonical({"schema": "engcmp.receipt/1"})
    own.files[f"receipts/{sha256(data)}.json"] = data
    own.relist()
    return "is not a receipt"


@into(LISTED, "a receipt that no head reaches")
def _(own: Forger) -> str:
    receipt = own.receipt("tails", Q4) | {"run_id": "another"}
    name = f"receipts/{sha256(canonical(receipt))}.json"
    own.files[name] = canonical(receipt)
    own.relist()
    return f"{name}: no head leads to this receipt"


@into(LISTED, "a receipt that is needed and gone")
def _(own: Forger) -> str:
    own.files.pop(own.receipt_path("engine_launch/scoring", Q8))
    own.relist()
    return "which is missing"


@into(LISTED, "heads of two arms swapped")
def _(own: Forger) -> str:
    one, other = own.head("summaries", Q4), own.head("summaries", Q8)
    own.files[one], own.files[other] = own.files[other], own.files[one]
    own.relist()
    return "is not the head of the place"


@into(LISTED, "receipts of two arms swapped behind their heads")
def _(own: Forger) -> str:
    hashes = {arm: Path(own.receipt_path("summaries", arm)).stem for arm in (Q4, Q8)}
    own.edit(own.head("summaries", Q4), lambda head: head.update(receipt_sha256=hashes[Q8]))
    own.edit(own.head("summaries", Q8), lambda head: head.update(receipt_sha256=hashes[Q4]))
    own.relist()
    return "swapped"


@into(LISTED, "a head of another artifact")
def _(own: Forger) -> str:
    found = Path(own.receipt_path("tails", Q4)).stem
    own.edit(own.head("scores", Q4), lambda head: head.update(receipt_sha256=found))
    own.relist()
    return "points to a receipt of tails"


@into(LISTED, "a head that points nowhere")
def _(own: Forger) -> str:
    own.edit(own.head("scores", Q4), lambda head: head.update(receipt_sha256="1" * 64))
    own.relist()
    return "points to receipt 111111111111, which is missing"


@into(LISTED, "a head taken away")
def _(own: Forger) -> str:
    name = own.receipt_path("catalog")
    del own.files[own.head("catalog")]
    own.relist()
    return f"{name}: no head leads to this receipt"


@into(LISTED, "scored rows replaced")
def _(own: Forger) -> str:
    one, other = (own.output("scores", "rows-pa.parquet", arm) for arm in (Q4, Q8))
    own.files[one] = own.files[other]
    own.relist()
    return "its output rows-pa.parquet has other bytes than it states"


@into(LISTED, "an output taken away")
def _(own: Forger) -> str:
    del own.files[own.output("tails", "tails.json", Q8)]
    own.relist()
    return "its output tails.json is neither in the bundle nor listed by hash"


@into(LISTED, "a row file no longer listed by hash")
def _(own: Forger) -> str:
    own.manifest["by_hash"] = own.manifest["by_hash"][1:]
    own.relist()
    return "is neither in the bundle nor listed by hash"


@into(LISTED, "an edited protocol")
def _(own: Forger) -> str:
    own.change("protocol/protocol.toml", lambda data: data.replace(b"replicates = 20000", b"replicates = 200", 1))
    own.relist()
    return "protocol/protocol.toml: was edited after the freeze"


@into(LISTED, "a protocol file taken away")
def _(own: Forger) -> str:
    name = next(name for name in own.files if name.startswith("protocol/texts/"))
    del own.files[name]
    own.relist()
    return f"{name}: is a file of the frozen protocol and missing"


@into(LISTED, "a protocol file added")
def _(own: Forger) -> str:
    own.files["protocol/texts/code-9.txt"] = b"easier text\n"
    own.relist()
    return "protocol/texts/code-9.txt: is no file of the frozen protocol"


@into(LISTED, "an edited freeze")
def _(own: Forger) -> str:
    own.edit("protocol/FROZEN.json", lambda frozen: frozen.update(amendments=[]))
    own.relist()
    return "protocol/FROZEN.json: was changed after the freeze"


def _refreeze(own: Forger) -> str:
    """A changed protocol with a freeze that fits it; returns the new frozen hash."""
    own.change("protocol/protocol.toml", lambda data: data.replace(b"seed = 20260929", b"seed = 20260930", 1))
    frozen = json.loads(own.files["protocol/FROZEN.json"])
    frozen["files"]["protocol.toml"] = sha256(own.files["protocol/protocol.toml"])
    body = {name: value for name, value in frozen.items() if name != "frozen_sha256"}
    frozen["frozen_sha256"] = sha256(canonical(body))
    own.files["protocol/FROZEN.json"] = canonical(frozen)
    return str(frozen["frozen_sha256"])


@into(LISTED, "a changed protocol, frozen again")
def _(own: Forger) -> str:
    _refreeze(own)
    own.relist()
    return "protocol/FROZEN.json: has another frozen hash than the manifest"


@into(LISTED, "a changed protocol, frozen again, in the manifest too")
def _(own: Forger) -> str:
    own.manifest["frozen_sha256"] = _refreeze(own)
    own.relist()
    return "is of another freeze than the bundle"


@into(LISTED, "a value in a table of rows")
def _(own: Forger) -> str:
    own.change(own.table(Q4), lambda data: data.replace(b"0.", b"9.", 1))
    own.relist()
    return f"{own.table(Q4)}"


@into(LISTED, "a table of rows that is not listed as one")
def _(own: Forger) -> str:
    own.manifest["tables"] = own.manifest["tables"][1:]
    own.relist()
    return "is not the table that its receipt states"


@into(LISTED, "no receipt of the tables")
def _(own: Forger) -> str:
    del own.files[own.receipt_path(TABLES)]
    del own.files[own.head(TABLES)]
    own.relist()
    return "the tables of rows are bound by no receipt"


@into(LISTED, "a stated hash of an original that is not the receipt's name")
def _(own: Forger) -> str:
    name = own.receipt_path("tails", Q4)
    next(entry for entry in own.manifest["files"] if entry["path"] == name)["original_sha256"] = "2" * 64
    own.relist()
    return f"{name}: the receipt's bytes do not have the hash of its name"


# ---------------------------------------------------------------------- chained again


def _figure(
    artifact: str, arm: str | None, change: Callable[[dict[str, Any]], Any], said: str, number: int = 0
) -> Tamper:
    def tamper(own: Forger) -> str:
        own.edit_receipt(artifact, lambda receipt: change(receipt["figures"][number]), arm)
        own.rechain()
        return said

    return tamper


def _nearer(figure: dict[str, Any]) -> None:
    figure["value"] *= 0.9


CHAINED |= {
    "a better value of an arm": _figure("summaries", Q4, _nearer, "pa/all/kl_full: is"),
    "a narrower interval": _figure(
        "summaries", Q4, lambda one: one["interval"].update(low=one["value"]), "its interval is"
    ),
    "no interval": _figure("summaries", Q4, lambda one: one.update(interval={"missing": "lost"}), "its interval is"),
    "more rows": _figure("summaries", Q8, lambda one: one.update(rows=5000), "states (5000, 12) rows and clusters"),
    "more clusters": _figure(
        "summaries", Q8, lambda one: one.update(clusters=400), "states (384, 400) rows and clusters"
    ),
    "a smaller family": _figure("summaries", Q4, lambda one: one["details"].update(family=1), "its interval is"),
    "a narrower corrected interval": _figure(
        "summaries", Q4, lambda one: one["details"]["interval_bonferroni"].update(high=one["value"]), "its interval is"
    ),
    "an invented floor": _figure(
        "summaries",
        Q4,
        lambda one: one["details"]["floor"]["within_launch"].update(value=0.5),
        "its floor within_launch is 0.5",
    ),
    "a floor of runs that are not there": _figure(
        "summaries",
        Q4,
        lambda one: one["details"]["floor"]["across_launches"].update(run="3.1"),
        "a repeat was removed",
    ),
    "a run left unsaid": _figure("summaries", Q4, lambda one: one["details"]["runs"].pop(), "states runs"),
    "a published value": _figure("publication", None, _nearer, "publishes"),
    "a published interval": _figure("publication", None, lambda one: one["interval"].update(low=0.0), "publishes"),
    "a difference in the receipt alone": _figure("comparisons", None, _nearer, "state different figures"),
    "a verdict in the receipt alone": _figure(
        "comparisons", None, lambda one: one["details"].update(verdict="not resolved"), "state different verdicts"
    ),
}


def _pair(change: Callable[[dict[str, Any]], Any], said: str, chosen: Callable[[dict[str, Any]], bool]) -> Tamper:
    """Change a figure of a pair in comparisons.json and in its receipt, and publish the same."""

    def tamper(own: Forger) -> str:
        names = []

        def edit(data: bytes) -> bytes:
            document = json.loads(data)
            figure = next(one for pair in document["pairs"] for one in pair["figures"] if chosen(one))
            change(figure)
            names.append(figure)
            return canonical(document)

        own.replace_output("comparisons", "comparisons.json", edit)
        (figure,) = names

        def restate(receipt: dict[str, Any]) -> None:
            for one in receipt["figures"]:
                if one["figure_id"] == figure["figure_id"]:
                    one |= {key: figure[key] for key in ("value", "interval", "rows", "clusters")}
                    if "verdict" in one["details"]:
                        one["details"]["verdict"] = figure["verdict"]

        own.edit_receipt("comparisons", restate)
        own.edit_receipt("publication", restate)
        own.rechain()
        return said

    return tamper


def _is(verdict: str, measure: str) -> Callable[[dict[str, Any]], bool]:
    return lambda one: one["verdict"] == verdict and one["measure"] == measure


CHAINED |= {
    "a smaller difference": _pair(_nearer, "kl_full: is", _is("resolved", "kl_full")),
    "a mean of one side": _pair(
        lambda one: one.update(candidate_mean=0.0), "candidate_mean is 0.0", _is("resolved", "kl_full")
    ),
    "resolved, in words": _pair(
        lambda one: one.update(verdict="resolved"), "is called resolved; the interval", _is("not resolved", "kl_full")
    ),
    "equal bit for bit, in words": _pair(
        lambda one: one.update(verdict="bit-identical"), "is called bit-identical", _is("resolved", "kl_full")
    ),
    "a smaller distance": _pair(_nearer, "kl_pair_full: is", _is("descriptive", "kl_pair_full")),
    "equal rows, in words": _pair(
        lambda one: one.update(verdict="resolved"), "is called resolved; the hashes", _is("bit-identical", "kl_full")
    ),
}


@into(CHAINED, "a row's value in the table, its receipt made to fit")
def _(own: Forger) -> str:
    def change(data: bytes) -> bytes:
        head, first, rest = data.split(b"\n", 2)
        cells = first.split(b",")
        cells[6:10] = [b"0.0"] * 4
        return b"\n".join([head, b",".join(cells), rest])

    own.replace_table(own.table(Q4), change)
    own.rechain()
    return "pa/all/kl_full: is"


@into(CHAINED, "a row left out of the table")
def _(own: Forger) -> str:
    own.replace_table(own.table(Q4), lambda data: data[: data.rstrip(b"\n").rindex(b"\n") + 1])
    own.rechain()
    return "the arms' rows are not the same rows"


@into(CHAINED, "a repeat left out of the table")
def _(own: Forger) -> str:
    def change(data: bytes) -> bytes:
        lines = [line.split(b",") for line in data.splitlines()]
        kept = [place for place, name in enumerate(lines[0]) if not name.endswith(b"@1.2")]
        return b"".join(b",".join(line[place] for place in kept) + b"\n" for line in lines)

    own.replace_table(own.table(Q4), change)
    own.rechain()
    return "a repeat was removed"


@into(CHAINED, "tables of two arms swapped")
def _(own: Forger) -> str:
    one, other = own.files[own.table(Q4)], own.files[own.table(Q8)]
    own.replace_table(own.table(Q4), lambda _: other)
    own.replace_table(own.table(Q8), lambda _: one)
    own.rechain()
    return "kl_full: is"


@into(CHAINED, "a table that is listed for another arm")
def _(own: Forger) -> str:
    tables = {entry["path"]: entry for entry in own.manifest["tables"]}
    one, other = tables[own.table(Q4)], tables[own.table(Q8)]
    one["arm"], other["arm"] = other["arm"], one["arm"]
    own.rechain()
    return "kl_full: is"


@into(CHAINED, "a cell that is no number")
def _(own: Forger) -> str:
    own.replace_table(own.table(Q4), lambda data: data.replace(b",0.", b",nan", 1))
    own.rechain()
    return own.table(Q4)


@into(CHAINED, "a ragged table")
def _(own: Forger) -> str:
    own.replace_table(own.table(Q4), lambda data: data + b"code-1,1\n")
    own.rechain()
    return "its lines have different lengths"


@into(CHAINED, "a pair's distance in its table")
def _(own: Forger) -> str:
    def change(data: bytes) -> bytes:
        lines = [line.split(b",") for line in data.splitlines()]
        lines[1][3] = b"0.0"
        return b"".join(b",".join(line) + b"\n" for line in lines)

    own.replace_table("rows/pairs/q4_0-vs-q8_0.csv", change)
    own.rechain()
    return "kl_pair_full: is"


@into(CHAINED, "rows called equal, or unequal, in the pair's table")
def _(own: Forger) -> str:
    table = f"rows/pairs/{'b10809-vs-b8672' if EVERY_ARM else 'b11549-vs-b10809'}-q8_0.csv"
    there, other = (
        (b",0.0\n", b",1.0\n") if EVERY_ARM else (b",1.0\n", b",0.0\n")
    )  # all rows of the second pair are equal
    own.replace_table(table, lambda data: data.replace(there, other))
    own.rechain()
    return "which rows are equal bit for bit is not what the hashes of the rows say"


@into(CHAINED, "another rule of the intervals")
def _(own: Forger) -> str:
    own.edit_receipt("summaries", lambda receipt: receipt["parameters"]["statistics"].update(seed=1), Q4)
    own.rechain()
    return "its interval is"


@into(CHAINED, "an edited page document")
def _(own: Forger) -> str:
    def change(data: bytes) -> bytes:
        document = json.loads(data)
        arm = next(one for one in document["arms"] if one.get("figures"))
        arm["figures"][0]["value"] *= 0.5
        return canonical(document)

    own.replace_output("publication", "SUMMARY.json", change)
    own.rechain()
    return "SUMMARY.json states"


@into(CHAINED, "an input that is another arm's")
def _(own: Forger) -> str:
    other = own.receipt("scores", Q8)
    found = Path(own.receipt_path("scores", Q8)).stem

    def change(receipt: dict[str, Any]) -> None:
        item = next(one for one in receipt["inputs"] if one["artifact"] == "scores")
        item |= {"receipt_sha256": found, "content_id": other["content_id"]}

    own.edit_receipt("summaries", change, Q4)
    own.rechain()
    return "its input scores is not what that receipt says"


@into(CHAINED, "a measurement under another freeze")
def _(own: Forger) -> str:
    own.edit_receipt("scores", lambda receipt: receipt.update(frozen_sha256="3" * 64), Q4)
    own.rechain()
    return "is of another freeze than the bundle"


@into(CHAINED, "a result that leads to no protocol")
def _(own: Forger) -> str:
    own.edit_receipt("summaries", lambda receipt: receipt.update(inputs=[]), Q4)
    own.rechain()
    return "its inputs do not lead to the frozen protocol"


@into(CHAINED, "work of another study")
def _(own: Forger) -> str:
    own.edit_receipt("tails", lambda receipt: receipt.update(study="other"), Q4)
    own.rechain()
    return "is of study other"


# ---------------------------------------------------------------------- what stands beside a figure, and what was left out


def _leading(one: dict[str, Any]) -> bool:
    return bool(one["verdict"] == "resolved" and one["measure"] == "kl_full" and one["population"] == "all")


def _open(one: dict[str, Any]) -> bool:
    return bool(one["verdict"] == "not resolved" and one["clusters"] < 8 and "missing" not in one["interval"])


def _falls(one: dict[str, Any]) -> None:
    one["against_each_run"][0]["stands"] = False


CHAINED |= {
    "a smaller bound": _pair(lambda one: one.update(bound=one["bound"] * 0.1), "its bound is", _open),
    "a bound of a resolved difference": _pair(lambda one: one.update(bound=0.001), "its bound is", _leading),
    "a narrower range without one document": _pair(
        lambda one: one.update(leave_one_out=[one["value"]] * 2), "its range without one cluster is", _leading
    ),
    "more documents of one sign": _pair(
        lambda one: one.update(sign_clusters=1), "states 1 clusters of its sign", _leading
    ),
    "another document that moves it most": _pair(
        lambda one: one["largest_cluster"].update(cluster="prose-9"), "moves it most is prose-9", _leading
    ),
    "a smaller sign-flip p": _pair(lambda one: one.update(sign_flip_p=0.01), "its sign-flip p is 0.01", _open),
    "a resolved difference that is called open": _pair(
        lambda one: one.update(verdict="not resolved", bound=one["interval"]["high"]),
        "is called not resolved",
        _leading,
    ),
    "an open difference that is called dependent": _pair(
        lambda one: one.update(verdict="baseline-dependent"), "is called baseline-dependent", _open
    ),
    "a run against which it is said to fall": _pair(_falls, "is said to fall against run 1.1", _leading),
    "a value against one run": _pair(
        lambda one: one["against_each_run"][2].update(value=0.1), "against run 2.1 it is 0.1", _leading
    ),
    "a run of the baseline that it is not held against": _pair(
        lambda one: one["against_each_run"].pop(), "is held against the runs", _leading
    ),
    "a floor beside a difference": _pair(
        lambda one: one["candidate_floor"]["within_launch"].update(value=0.2),
        "its candidate's floor within_launch",
        _leading,
    ),
    "a look that is called primary": _pair(lambda one: one.update(primary=True), "is called primary", _open),
}


def _left_out(chosen: Callable[[dict[str, Any]], bool], said: str) -> Tamper:
    """Take a figure of a pair out of every document and receipt that has it."""

    def tamper(own: Forger) -> str:
        gone: list[str] = []

        def without(value: Any) -> Any:
            if isinstance(value, dict):
                return {key: without(inner) for key, inner in value.items()}
            if isinstance(value, list):
                return [without(one) for one in value if not (isinstance(one, dict) and one.get("figure_id") in gone)]
            return value

        document = json.loads(own.files[own.output("comparisons", "comparisons.json")])
        gone.append(next(one["figure_id"] for pair in document["pairs"] for one in pair["figures"] if chosen(one)))
        for artifact, name in (("comparisons", "comparisons.json"), ("publication", "SUMMARY.json")):
            own.replace_output(artifact, name, lambda data: canonical(without(json.loads(data))))
            own.edit_receipt(artifact, lambda receipt: receipt.update(figures=without(receipt["figures"])))
        own.rechain()
        return said

    return tamper


CHAINED |= {
    "a difference left out everywhere": _left_out(_leading, "lacks the declared figure pa/all/kl_full"),
    "a distance left out everywhere": _left_out(
        lambda one: one["measure"] == "kl_pair_full", "lacks the declared figure pa/all/kl_pair_full"
    ),
}


def _without_pair(receipt: dict[str, Any]) -> None:
    receipt["figures"] = [one for one in receipt["figures"] if "/q4_0-vs-q8_0/" not in one["figure_id"]]


@into(CHAINED, "a pair left out everywhere")
def _(own: Forger) -> str:
    def change(data: bytes) -> bytes:
        document = json.loads(data)
        document["pairs"] = document["pairs"][1:]
        return canonical(document)

    own.replace_output("comparisons", "comparisons.json", change)
    own.edit_receipt("comparisons", _without_pair)
    own.rechain()
    return "lacks the declared pair q4_0-vs-q8_0"


@into(CHAINED, "a pair that is called not comparable")
def _(own: Forger) -> str:
    def change(data: bytes) -> bytes:
        document = json.loads(data)
        document["pairs"][0] |= {
            "state": "not comparable",
            "reason": "not measured yet",
            "figures": [],
            "speed": {"figures": []},
        }
        return canonical(document)

    own.replace_output("comparisons", "comparisons.json", change)
    own.edit_receipt("comparisons", _without_pair)
    own.rechain()
    return "pair q4_0-vs-q8_0 is called not comparable; the rows of both sides lie here"


@into(CHAINED, "a figure of an arm left out")
def _(own: Forger) -> str:
    own.edit_receipt("summaries", lambda receipt: receipt["figures"].pop(0), Q4)
    own.rechain()
    return "lacks the declared figure pa/all/kl_full"


@into(CHAINED, "a summary beside its receipt")
def _(own: Forger) -> str:
    def change(data: bytes) -> bytes:
        document = json.loads(data)
        document["figures"][0]["value"] *= 0.5
        return canonical(document)

    own.replace_output("summaries", "summary.json", change, Q4)
    own.rechain()
    return "summary.json and the receipt state different figures"


@into(CHAINED, "a page document that leaves a figure out")
def _(own: Forger) -> str:
    def change(data: bytes) -> bytes:
        document = json.loads(data)
        next(one for one in document["arms"] if one.get("figures"))["figures"].pop(5)
        return canonical(document)

    own.replace_output("publication", "SUMMARY.json", change)
    own.rechain()
    return "SUMMARY.json leaves out"


def _tail(change: Callable[[dict[str, Any]], Any], said: str) -> Tamper:
    def tamper(own: Forger) -> str:
        def edit(data: bytes) -> bytes:
            document = json.loads(data)
            change(document["panels"]["pa"])
            return canonical(document)

        own.replace_output("tails", "tails.json", edit, Q4)
        own.rechain()
        return said

    return tamper


CHAINED |= {
    "a milder tail": _tail(lambda one: one["overall"].update(p99_nats=0.1), "tails of all: p99_nats is 0.1"),
    "a tail of one length": _tail(
        lambda one: one["by_bucket"]["upto256"].update(max_nats=0.1), "tails of bucket:upto256: max_nats is 0.1"
    ),
    "a worst row left unsaid": _tail(lambda one: one["overall"]["worst_rows"].pop(0), "its worst rows are not those"),
    "a tail of a part left out": _tail(
        lambda one: one["by_bucket"].pop("upto128"), "tails of bucket:upto128 are missing"
    ),
}


# ---------------------------------------------------------------------- the tests

_ALL = {
    **{f"as found: {name}": tamper for name, tamper in AS_FOUND.items()},
    **{f"listed again: {name}": tamper for name, tamper in LISTED.items()},
    **{f"chained again: {name}": tamper for name, tamper in CHAINED.items()},
}  # fmt: skip


def test_the_corpus_is_large() -> None:
    assert len(_ALL) >= 60


@pytest.mark.parametrize("name", _ALL)
def test_each_tampering_is_found_and_named(name: str, bundle: Path, tmp_path: Path) -> None:
    own = Forger(bundle)
    said = _ALL[name](own)
    assert own.files != own.original, "the forger changed nothing"
    folder = own.write(bundle, tmp_path / "forged")
    with pytest.raises(Fault) as found:
        verify(folder)
    assert said in str(found.value)


def test_a_folder_too_many_is_named_though_it_is_empty(bundle: Path, tmp_path: Path) -> None:
    folder = Forger(bundle).write(bundle, tmp_path / "forged")
    (folder / "files" / "later").mkdir()
    with pytest.raises(Fault, match="files/later: lies in the bundle and is not in its manifest"):
        verify(folder)


@pytest.mark.parametrize("kind", ["link", "folder", "pipe", "linked folder"])
def test_only_ordinary_files_are_read(kind: str, bundle: Path, tmp_path: Path) -> None:
    folder = Forger(bundle).write(bundle, tmp_path / "forged")
    path = folder / "prov.json"
    data = path.read_bytes()
    path.unlink()
    if kind == "link":
        (tmp_path / "outside.json").write_bytes(data)
        path.symlink_to(tmp_path / "outside.json")
    elif kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.write_bytes(data)
        (folder / "verifier").rename(tmp_path / "verifier")
        (folder / "verifier").symlink_to(tmp_path / "verifier")
    with pytest.raises(Fault, match=r"link|ordinary"):
        verify(folder)


def test_a_bundle_that_was_made_anew_as_a_whole_has_another_head(bundle: Path, tmp_path: Path) -> None:
    """Hashes cannot tell it: nothing in it is wrong. The head that was published can."""
    head = json.loads((bundle / MANIFEST).read_bytes())["head_sha256"]
    own = Forger(bundle)
    own.edit_receipt("engine_launch/scoring", lambda receipt: receipt["environment"].update(cpu="a faster one"), Q4)
    own.rechain()
    folder = own.write(bundle, tmp_path / "forged")
    assert "verified" in verify(folder)
    with pytest.raises(Fault, match="something of it was made anew"):
        verify(folder, head=head)


def _answered_elsewhere(own: Forger, change: Callable[[dict[str, Any]], Any]) -> None:
    """An arm's `sources` as if another study had done the work, under a freeze of its own: the store answers by task, not by study."""
    maker = own.receipt("sources", Q4) | {
        "study": "other",
        "frozen_sha256": "4" * 64,
        "inputs": [],
        "answered_by": None,
    }
    change(maker)
    name = sha256(canonical(maker))
    own.files[f"receipts/{name}.json"] = canonical(maker)
    own.edit_receipt("sources", lambda receipt: receipt.update(answered_by=name), Q4)


def test_a_result_may_be_answered_from_the_work_of_another_study(bundle: Path, tmp_path: Path) -> None:
    own = Forger(bundle)
    _answered_elsewhere(own, lambda maker: maker.update(inputs=own.receipt("sources", Q4)["inputs"]))
    own.rechain()
    assert "verified" in verify(own.write(bundle, tmp_path / "answered"))


def test_what_it_was_answered_from_must_be_the_same_work(bundle: Path, tmp_path: Path) -> None:
    own = Forger(bundle)

    def change(maker: dict[str, Any]) -> None:
        maker["inputs"] = own.receipt("sources", Q4)["inputs"]
        maker["flags"] = ["another"]

    _answered_elsewhere(own, change)
    own.rechain()
    with pytest.raises(Fault, match="differs from the receipt that did its work"):
        verify(own.write(bundle, tmp_path / "answered"))


def test_a_sound_bundle_passes(bundle: Path) -> None:
    head = json.loads((bundle / MANIFEST).read_bytes())["head_sha256"]
    text = verify(bundle, head=head)
    assert "figures were recomputed from their rows and agree" in text
