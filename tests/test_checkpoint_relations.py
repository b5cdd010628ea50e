"""Two checkpoints on disk: shared tensors byte for byte, and FP8 weights against the BF16 ones, on small files made here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from engcmp_resources import checkpoint_relations
from engcmp_resources.checkpoint_relations import check_fp8, compare_shared, tensors_of
from engcmp_resources.errors import EngcmpError
from engcmp_resources.fp8_scales import E4M3, LARGEST, bf16_values, group_of, relation_of

Tensors = dict[str, tuple[str, list[int], bytes]]
FINITE = np.flatnonzero(np.isfinite(E4M3))


def shard(path: Path, tensors: Tensors) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + len(data)]}
        end += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(data for _, _, data in tensors.values()))
    return path.parent


def bf16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def fp8_of(
    weights: npt.NDArray[np.float32], scales: npt.NDArray[np.float32], group: tuple[int, int]
) -> npt.NDArray[np.uint8]:
    """The nearest code of each weight, by looking at all codes: slow, and without the code under test."""
    wide = np.repeat(np.repeat(scales, group[0], 0)[: len(weights)], group[1], 1)[:, : weights.shape[1]]
    wanted = np.clip(weights.astype(np.float64) / wide, -LARGEST, LARGEST)
    codes: npt.NDArray[np.uint8] = FINITE[np.abs(wanted[..., None] - E4M3[FINITE]).argmin(axis=-1)].astype(np.uint8)
    return codes


def made_pair(tmp_path: Path, *, rule: str) -> tuple[Path, Path, npt.NDArray[np.uint8], npt.NDArray[np.float32]]:
    weights = bf16_values(bf16(np.random.default_rng(5).normal(0, 0.02, (48, 40)).astype(np.float32)))
    blocks = weights.reshape(3, 16, 40)
    scales = np.array(
        [[np.abs(one[:, i : i + 16]).max() / LARGEST for i in (0, 16, 32)] for one in blocks], dtype=np.float32
    )
    if rule == "pow2":
        scales = np.exp2(np.ceil(np.log2(scales))).astype(np.float32)
    codes = fp8_of(weights, scales, (16, 16))
    one = shard(tmp_path / "bf16" / "model.safetensors", {"a.weight": ("BF16", [48, 40], bf16(weights).tobytes())})
    other = shard(
        tmp_path / "fp8" / "model.safetensors",
        {"a.weight": ("F8_E4M3", [48, 40], codes.tobytes()), "a.weight_scale_inv": ("F32", [3, 3], scales.tobytes())},
    )
    return one, other, codes, scales


def test_the_table_of_codes_has_the_known_values() -> None:
    assert E4M3[0] == 0 and E4M3[1] == 2.0**-9 and E4M3[8] == 2.0**-6 and E4M3[0x38] == 1 and E4M3[0x7E] == LARGEST
    assert np.isnan(E4M3[[0x7F, 0xFF]]).all() and E4M3[0xFE] == -LARGEST and np.isfinite(E4M3).sum() == 254


@pytest.mark.parametrize("rule", ["amax", "pow2"])
def test_the_rule_of_the_scales_is_found(tmp_path: Path, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_relations, "_BLOCK_BYTES", 700)  # several steps of whole groups a tensor
    one, other, _, _ = made_pair(tmp_path, rule=rule)
    found = check_fp8(one, other)
    assert found.whole.values == 48 * 40 and found.whole.scales == 9
    assert found.whole.apart == 0 and found.whole.worst_steps <= 0.5 + 1e-6
    assert found.whole.rule == rule and not found.without


def test_one_wrong_code_is_counted(tmp_path: Path) -> None:
    one, other, codes, scales = made_pair(tmp_path, rule="amax")
    wrong = codes.copy()
    wrong[20, 7] = wrong[20, 7] ^ 0x08  # half or twice the value
    shard(
        other / "model.safetensors",
        {"a.weight": ("F8_E4M3", [48, 40], wrong.tobytes()), "a.weight_scale": ("F32", [3, 3], scales.tobytes())},
    )
    found = check_fp8(one, other)
    assert found.whole.apart == 1 and found.whole.worst_steps > 1


def test_a_weight_without_scales_is_named(tmp_path: Path) -> None:
    one, other, codes, _ = made_pair(tmp_path, rule="amax")
    shard(other / "model.safetensors", {"a.weight": ("F8_E4M3", [48, 40], codes.tobytes())})
    assert check_fp8(one, other).without == ("a.weight",)


def test_scales_of_another_shape_are_refused_by_the_tensor_s_name(tmp_path: Path) -> None:
    one, other, codes, _ = made_pair(tmp_path, rule="amax")
    shard(
        other / "model.safetensors",
        {"a.weight": ("F8_E4M3", [48, 40], codes.tobytes()), "a.weight_scale": ("F32", [7], b"\0" * 28)},
    )
    with pytest.raises(
        EngcmpError, match=r"tensor a.weight: scales of shape \[7\] do not fit weights of shape \[48, 40\]"
    ):
        check_fp8(one, other)


@pytest.mark.parametrize(
    ("scales", "group"),
    [
        ((), (300, 256)),
        ((1,), (300, 256)),
        ((300,), (1, 256)),
        ((300, 1), (1, 256)),
        ((3, 2), (128, 128)),
        ((19, 2), (16, 128)),
    ],
)
def test_how_scales_lie(scales: tuple[int, ...], group: tuple[int, int]) -> None:
    assert group_of((300, 256), scales) == group


def test_nan_codes_and_bad_scales_are_refused() -> None:
    weights, codes = np.ones((1, 2), np.float32), np.array([[0x38, 0x7F]], np.uint8)
    with pytest.raises(EngcmpError, match="a code is NaN"):
        relation_of(weights, codes, np.ones((1, 1), np.float32), (1, 2))
    with pytest.raises(EngcmpError, match="a scale is not positive"):
        relation_of(weights, codes, np.zeros((1, 1), np.float32), (1, 2))


def test_shared_tensors_are_compared_across_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_relations, "_BLOCK_BYTES", 16)
    same, ours, theirs = bytes(range(64)), bytes(40), bytes(37) + b"\1\0\0"
    one = shard(tmp_path / "one" / "model-1.safetensors", {"x": ("U8", [64], same), "only": ("U8", [1], b"\0")})
    shard(tmp_path / "one" / "model-2.safetensors", {"y": ("U8", [40], ours), "z": ("F32", [2], bytes(8))})
    other = shard(
        tmp_path / "other" / "model.safetensors",
        {"y": ("U8", [40], theirs), "z": ("F32", [2, 1], bytes(8)), "x": ("U8", [64], same)},
    )
    said: list[str] = []
    found = compare_shared(one, other, say=said.append)
    assert found.equal == ("x",) and found.only_one == ("only",) and found.only_other == ()
    assert found.differing == {"y": "bytes differ from byte 37 of 40 on", "z": "F32 [2] and F32 [2, 1]"}
    assert said == ["comparing model-1.safetensors", "comparing model-2.safetensors"]


def _cut(data: bytes) -> bytes:
    return data[:-1]


def _no_header(data: bytes) -> bytes:
    return data[:8] + b"{" * (len(data) - 8)


def _too_long(data: bytes) -> bytes:
    return (1 << 40).to_bytes(8, "little") + data[8:]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_cut, "which the file does not hold"),
        (_no_header, "no safetensors header"),
        (_too_long, "reaches beyond the file"),
    ],
)
def test_damaged_shards_are_named(tmp_path: Path, damage: Any, said: str) -> None:
    folder = shard(tmp_path / "one" / "model.safetensors", {"x": ("U8", [64], bytes(64))})
    path = folder / "model.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(EngcmpError, match=f"model.safetensors: .*{said}"):
        tensors_of(folder)


def test_a_tensor_in_two_shards_and_an_empty_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(EngcmpError, match="no safetensors file"):
        tensors_of(tmp_path)
    shard(tmp_path / "a.safetensors", {"x": ("U8", [1], b"\0")})
    shard(tmp_path / "b.safetensors", {"x": ("U8", [1], b"\0")})
    with pytest.raises(EngcmpError, match=r"tensor x stands in a\.safetensors too"):
        tensors_of(tmp_path)
