"""A summary with everything that a page must show: two arms and a dead one, floors measured and not, intervals and reasons."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

from engcmp_assets.kernel.plots import format_number
from engcmp_assets.kernel.records import Figure, Interval, Missing

STUDY = "smollm2-cpu"
ARMS = ("q8_0/llamacpp@b11549", "q4_0/llamacpp@b11549")
UNITS = {"kl_full": "nats", "nll": "nats", "top1": "share of rows", "entropy": "nats"}
BETTER = {"kl_full": "lower", "nll": "lower", "top1": "higher", "entropy": "neither"}
DEFINITIONS = {
    "kl_full": "Sum over the whole vocabulary of p (log p - log q), where p is the reference's distribution.",
    "nll": "-log q(next token).",
    "top1": "1 where the engine's most probable token is the reference's most probable token, else 0.",
    "entropy": "Minus the sum over the vocabulary of q log q.",
}
VALUES = {
    ARMS[0]: {"kl_full": 0.00132187, "nll": 2.71398, "top1": 0.981771, "entropy": 2.48831},
    ARMS[1]: {"kl_full": 0.0580312, "nll": 2.76104, "top1": 0.890625, "entropy": 2.51772},
}
POPULATIONS = {"all": (1.0, 12), "block:prose": (0.83, 3), "block:code": (1.21, 3), "block:json": (1.34, 3)}
BOOTSTRAP = "cluster bootstrap, 20,000 replicates, seed 20260929"
T = "t-interval on cluster means"
FAMILY, FAMILY_LEVEL = 15, 0.9966


def interval(value: float, level: float = 0.95, clusters: int = 12) -> dict[str, Any]:
    width = 0.07 if level == 0.95 else 0.11
    return {
        "low": value - width * abs(value),
        "high": value + 1.1 * width * abs(value),
        "level": level,
        "method": BOOTSTRAP if clusters > 8 else T,
    }


def zero_floor() -> dict[str, Any]:
    ends = {"low": 0.0, "high": 0.0, "level": 0.95, "method": BOOTSTRAP}
    return {
        kind: {"value": 0.0, "interval": ends, "rows_that_differ": 0.0} for kind in ("within_launch", "across_launches")
    }


def figure(arm: str, measure: str, population: str) -> dict[str, Any]:
    factor, clusters = POPULATIONS[population]
    value = VALUES[arm][measure] * (factor if measure != "top1" else 1.0)
    ends = interval(value)
    floor = {"within_launch": {"value": 0.0, "interval": {"missing": "all repeats are equal"}},
             "across_launches": {"missing": "only one launch was made"}}  # fmt: skip
    return Figure(
        figure_id=f"{STUDY}/{arm}/pa/{population}/{measure}",
        label=f"{measure} of {arm}",
        measure=measure,
        measure_version=1,
        unit=UNITS[measure],
        panel="pa",
        population=population,
        value=value,
        interval=Interval(ends["low"], ends["high"], 0.95, ends["method"])
        if clusters > 8
        else Missing("3 clusters, fewer than 8"),
        rows=32 * clusters,
        clusters=clusters,
        details={"floor": floor} if population == "all" else {},
    ).as_json()


def arm(key: str) -> dict[str, Any]:
    checkpoint, engine = key.split("/")
    return {
        "arm": key, "checkpoint": checkpoint, "engine": engine.split("@")[0], "version": engine.split("@")[1],
        "state": "measured", "reason": None, "runs": 4, "launches": 2, "repeats": 2, "rows": 384, "windows": 12,
        "score_path": "prefill", "file_bytes": 91_726_208 if checkpoint == "q4_0" else 144_811_072,
        "figures": [figure(key, measure, population) for population in POPULATIONS for measure in UNITS],
    }  # fmt: skip


def difference(measure: str, verdict: str, population: str = "all") -> dict[str, Any]:
    factor, clusters = POPULATIONS[population]
    value = factor * (VALUES[ARMS[1]][measure] - VALUES[ARMS[0]][measure])
    return {
        "figure_id": f"{STUDY}/pair/q4_0-to-q8_0/pa/{population}/{measure}", "label": f"{measure}, {population}",
        "measure": measure, "unit": UNITS[measure], "panel": "pa", "population": population, "value": value,
        "interval": interval(value, clusters=clusters), "interval_bonferroni": interval(value, FAMILY_LEVEL, clusters),
        "primary": (measure, population) == ("kl_full", "all"), "family": FAMILY,
        "candidate_mean": VALUES[ARMS[1]][measure], "baseline_mean": VALUES[ARMS[0]][measure],
        "floor": {"within_launch": {"value": 0.0, "interval": {"low": -1.5e-7, "high": 2.25e-7, "level": 0.95,
                                                               "method": BOOTSTRAP}},
                  "across_launches": {"missing": "the second launch failed"}},
        "verdict": verdict, "sentence": f"q4_0 differs from q8_0 in {measure}, {population}, by {format_number(value)}.",
        "bound": {"missing": "the difference is resolved"} if verdict == "resolved" else 0.1113,
        "leave_one_out": [value * 0.97, value * 1.03], "sign_clusters": clusters - 1,
        "largest_cluster": {"cluster": "code-2", "without": value * 0.9, "moves_by": value * 0.1},
        "against_each_run": [
            {"run": run, "value": value, "stands": verdict.startswith("resolved") or (verdict, run) == ("baseline-dependent", "1.1")}
            for run in ("1.1", "1.2")
        ],
        "sign_flip_p": 0.25 if clusters < 8 else {"missing": "12 clusters: the bootstrap interval decides from 8 on"},
        "rows": 32 * clusters, "clusters": clusters,
    }  # fmt: skip


def dead_arm() -> dict[str, Any]:
    return {**arm(ARMS[0]), "arm": "q2_k/llamacpp@b11549", "checkpoint": "q2_k", "state": "not measured",
            "reason": "the engine died while loading (signal 9)", "runs": 0, "rows": 0, "figures": []}  # fmt: skip


def sample() -> dict[str, Any]:
    """Two arms, a dead one, one comparison."""
    dead = dead_arm()
    pair = {
        "pair_id": "q4_0-to-q8_0", "candidate": ARMS[1], "baseline": ARMS[0],
        "label": "q4_0 beside q8_0 on llamacpp b11549",
        "kind": "arms", "candidate_path": "prefill", "baseline_path": "prefill", "state": "compared",
        "reason": None, "confounds": ["Both run on the same two CPU cores, one after the other."],
        "figures": [difference("kl_full", "resolved"), difference("kl_full", "not resolved", "block:code"),
                    difference("nll", "not resolved"), difference("top1", "resolved")],
    }  # fmt: skip
    summary = {
        "schema": "engcmp.summary/1", "study": STUDY, "title": "SmolLM2-135M on llama.cpp, two checkpoints",
        "question": "How close do the 8-bit and the 4-bit checkpoint stay to the same weights in float32?",
        "frozen_sha256": "3f" * 32,
        "reference": {"label": "SmolLM2-135M-Instruct, dequantized", "precision": "float32", "path": "numpy"},
        "terms": [{"measure": name, "version": 1, "unit": unit, "title": f"Title of {name}",
                   "definition": DEFINITIONS[name], "better": BETTER[name]} for name, unit in UNITS.items()],
        "panels": [{"panel": "pa", "label": "P-A: full vocabulary", "reference": "full", "score_path": "prefill"}],
        "arms": [arm(ARMS[0]), arm(ARMS[1]), dead], "comparisons": [pair],
        "limits": ["Twelve short windows in four kinds of content.", "One machine."],
        "plot": {"title": "Distance from the reference", "unit": "kl_full (nats)",
                 "rows": [plot_row(key) for key in ARMS] + [
                     {"label": dead["arm"], "value": {"missing": dead["reason"]}, "low": None, "high": None,
                      "group": "llamacpp"}]},
    }  # fmt: skip
    loaded: dict[str, Any] = json.loads(json.dumps(summary, sort_keys=True))
    return loaded


def plot_row(key: str) -> dict[str, Any]:
    value = VALUES[key]["kl_full"]
    ends = interval(value)
    return {"label": key, "value": value, "low": ends["low"], "high": ends["high"], "group": "llamacpp"}


def six_arms() -> dict[str, Any]:
    """The sample's two arms in three versions, with five comparisons of every kind and repeats that agree on every row."""
    summary = sample()
    arms, pairs = summary["arms"][:2], []
    summary["arms"] = [renamed(one, version) for version in ("b8672", "b10809", "b11549") for one in arms]
    for one in summary["arms"]:
        for item in one["figures"]:
            item["details"]["floor"] = zero_floor()
    for number, (verdict, version) in enumerate(
        [("resolved", "b8672"), ("not resolved", "b10809"), ("baseline-dependent", "b11549"), ("bit-identical", "b9")]
    ):
        pair = copy.deepcopy(summary["comparisons"][0])
        pair |= {"pair_id": f"pair-{number}", "candidate": f"q4_0/llamacpp@{version}", "label": f"Pair {number}"}
        for item in pair["figures"]:
            own = {"figure_id": item["figure_id"].replace("q4_0-to-q8_0", pair["pair_id"]), "floor": zero_floor()}
            item.update(judged(item, verdict) | own | {"bound": 0.1113})
        pairs.append(pair)
    absent = {"state": "not comparable", "reason": "the baseline was not captured", "figures": [], "confounds": []}
    summary["comparisons"] = [*pairs, {**copy.deepcopy(pairs[0]), "pair_id": "pair-4", "label": "Pair 4", **absent}]
    return summary


def judged(figure: dict[str, Any], verdict: str) -> dict[str, Any]:
    """The verdict with the numbers that give it: three documents resolve nothing, and equal rows differ in no measure."""
    if verdict == "bit-identical":
        none = interval(0.0, clusters=figure["clusters"])
        return {"verdict": verdict, "value": 0.0, "interval": none, "interval_bonferroni": none}
    if verdict == "resolved" and figure["clusters"] < 8:
        return {"verdict": "not resolved"}
    stands = {"resolved": ("1.1", "1.2"), "baseline-dependent": ("1.1",)}.get(verdict, ())
    against = [one | {"stands": one["run"] in stands} for one in figure["against_each_run"]]
    return {"verdict": verdict, "against_each_run": against}


def second_panel(summary: dict[str, Any]) -> dict[str, Any]:
    """The same summary with a panel `pb` on which `nll` was measured too, and `kl_coarse` only there."""
    for one in [*summary["arms"], *summary["comparisons"]]:
        for item in [item for item in one["figures"] if item["measure"] in ("kl_full", "nll")]:
            measure = {"kl_full": "kl_coarse"}.get(item["measure"], item["measure"])
            place = item["figure_id"].replace("/pa/", "/pb/").removesuffix(item["measure"]) + measure
            value = item["value"] * 0.5 if isinstance(item["value"], float) else item["value"]
            one["figures"].append({**item, "panel": "pb", "measure": measure, "figure_id": place, "value": value})
    summary["terms"].append({**summary["terms"][0], "measure": "kl_coarse", "title": "Title of kl_coarse"})
    summary["panels"].append({"panel": "pb", "label": "P-B: top 1,024", "reference": "topk", "score_path": "prefill"})
    return summary


def renamed(one: dict[str, Any], version: str) -> dict[str, Any]:
    old, new = one["arm"], f"{one['checkpoint']}/llamacpp@{version}"
    loaded: dict[str, Any] = json.loads(json.dumps(one).replace(old, new))
    return loaded


def all_figures(summary: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for part in [*summary["arms"], *summary["comparisons"]]:
        yield from part["figures"]


# Distances, and the two score paths of one arm.

DISTANCE_UNITS = {"kl_pair_full": "nats", "kl_pair_coarse": "nats", "rows_bit_identical": "share of rows"}
FEW = {"missing": "2 clusters: an interval needs at least 3"}
CONFOUND = "The decode path keeps log-probabilities as they are printed."


def distance(
    pair_id: str,
    measure: str,
    value: float,
    *,
    panel: str = "pa",
    rows: int = 384,
    clusters: int = 12,
    same: bool = False,
) -> dict[str, Any]:
    """A pair measure over all rows, as the room of comparisons writes it."""
    agree = 1.0 if measure == "rows_bit_identical" else 0.0
    floor: dict[str, Any] = {
        "value": agree,
        "interval": {"low": agree, "high": agree, "level": 0.95, "method": BOOTSTRAP},
    }
    absent = {"missing": "q8_0/llamacpp@b11549 has no second launch on this score path"}
    nothing = {"missing": "a distance between two captures is not a difference of means"}
    return {
        "figure_id": f"{STUDY}/pair/{pair_id}/{panel}/all/{measure}", "label": f"{measure} of {pair_id}", "measure": measure,
        "unit": DISTANCE_UNITS[measure], "panel": panel, "population": "all", "value": value, "rows": rows, "clusters": clusters,
        "interval": interval(value) if clusters > 8 else FEW, "interval_bonferroni": interval(value, 0.99) if clusters > 8 else FEW,
        "primary": False, "family": FAMILY,
        "floor": {"within_launch": floor, "across_launches": floor if clusters > 8 else absent},
        "verdict": "bit-identical" if same else "descriptive", "sentence": f"{measure} is {format_number(value)}.",
        "bound": nothing, "leave_one_out": nothing, "sign_clusters": nothing, "largest_cluster": nothing,
    }  # fmt: skip


def path_pair() -> dict[str, Any]:
    """Decode beside prefill of one arm, on two documents."""
    figures = []
    for measure, value in (("kl_full", -0.0000784), ("nll", 0.0217)):
        figures.append({
            **difference(measure, "not resolved"), "panel": "pd", "value": value, "rows": 16, "clusters": 2, "primary": False,
            "figure_id": f"{STUDY}/pair/decode-vs-prefill/pd/all/{measure}", "candidate_mean": 0.003081, "baseline_mean": 0.003159,
            "interval": FEW, "interval_bonferroni": FEW, "bound": FEW, "sign_flip_p": FEW,
            "floor": {"within_launch": {"value": 0.0, "interval": FEW, "rows_that_differ": 0.0},
                      "across_launches": {"missing": "one launch was captured"}},
            "sentence": f"{measure}: candidate minus baseline is {value:.4g}",
        })  # fmt: skip
    figures += [distance("decode-vs-prefill", "kl_pair_full", 0.002896, panel="pd", rows=16, clusters=2),
                distance("decode-vs-prefill", "rows_bit_identical", 0.0, panel="pd", rows=16, clusters=2)]  # fmt: skip
    return {
        "pair_id": "decode-vs-prefill", "kind": "score path", "candidate": ARMS[0], "baseline": ARMS[0],
        "candidate_path": "decode", "baseline_path": "prefill", "label": "Decode beside prefill, Q8_0", "state": "compared",
        "reason": None, "confounds": [CONFOUND], "figures": figures,
    }  # fmt: skip


def whole_study() -> dict[str, Any]:
    """Six arms on three panels: pairs that differ, one that is bit-identical, one without figures, and one of score paths."""
    summary = second_panel(six_arms())
    for pair in summary["comparisons"][:4]:
        same = pair["label"] == "Pair 3"
        size = 0.0 if same else 0.4224
        pair["figures"] += [
            distance(pair["pair_id"], "kl_pair_full", size, same=same),
            distance(pair["pair_id"], "rows_bit_identical", float(same) or 36 / 384, same=same),
            distance(pair["pair_id"], "kl_pair_coarse", size * 0.9, panel="pb", rows=1488, same=same),
        ]
    summary["comparisons"].append(path_pair())
    for one in summary["arms"]:
        key = one["arm"]
        own = next(item for item in one["figures"] if (item["measure"], item["population"]) == ("kl_full", "all"))
        one["figures"].append({**own, "panel": "pd", "figure_id": f"{STUDY}/{key}/pd/all/kl_full", "rows": 16, "clusters": 2,
                               "value": 0.0031, "interval": FEW})  # fmt: skip
    summary["terms"] += [{"measure": name, "version": 1, "unit": unit, "title": f"Title of {name}", "better": "neither",
                          "definition": "Between two captures."} for name, unit in DISTANCE_UNITS.items()]  # fmt: skip
    summary["panels"].append(
        {"panel": "pd", "label": "P-D: decode", "reference": "full", "score_path": "prefill and decode"}
    )
    return summary
