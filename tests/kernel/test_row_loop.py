"""The compiled loops that are kept between processes: the same bits as compiled anew, whatever lies in the cache."""

import ast
import os
import subprocess
import sys
from decimal import Decimal, localcontext
from pathlib import Path

import numpy as np
import pytest

from engcmp_assets.kernel import fast_rows, row_loop
from engcmp_assets.kernel.fast_rows import RowSums, row_sums

CHECKOUT = Path(__file__).resolve().parents[2]
binding = pytest.importorskip("llvmlite.binding")

# Scores rows in a process of its own; says whether a loop was compiled there, how it scores, and the bits of the sums.
SCORING = """
import sys
import numpy as np
from engcmp_assets.kernel import fast_rows, row_loop
from engcmp_assets.kernel.fast_rows import RowSums, row_sums
from engcmp_resources.object_cache import ObjectCache
honest, written = row_loop._module, []
row_loop._module = lambda *given: written.append(1) or honest(*given)
row_loop.keep_objects(ObjectCache())
p, q = np.random.default_rng(1).normal(0, 3, (2, 3, 3003)).astype(np.float32)
sums = row_sums(p, q)
bits = b"".join(getattr(sums, name).tobytes() for name in RowSums.__dataclass_fields__)
print(len(written), fast_rows.compiled(), bits.hex())
"""


class Kept(dict):
    """Code in a dictionary."""

    load = dict.get
    store = dict.__setitem__


def here():
    return binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten()


def bits_of(loops, monkeypatch):
    """The sums of rows of each dtype by these loops."""
    chance = np.random.default_rng(31)
    p, q = chance.normal(0, 3, (2, 3, 3003)).astype(np.float32)
    p[1, 5], q[1, 5] = -np.inf, -np.inf
    monkeypatch.setattr(row_loop, "compiled", lambda: loops)
    sides = {dtype: [side.astype(dtype) for side in (p, q)] for dtype in ("float32", "float64", "float16")}
    sides["uint16"] = [(side.view(np.uint32) >> np.uint32(16)).astype(np.uint16) for side in (p, q)]
    return [
        getattr(row_sums(*pair), name).tobytes() for pair in sides.values() for name in RowSums.__dataclass_fields__
    ]


def test_kept_code_gives_the_bits_of_compiled_code_and_is_not_compiled_again(monkeypatch):
    kept = Kept()
    compiled = row_loop.loops_for(*here(), kept)
    assert list(kept) == [row_loop.object_key(*here())]
    honest = row_loop._module
    monkeypatch.setattr(row_loop, "_module", None)  # calling it fails: nothing can be compiled any more
    loaded = row_loop.loops_for(*here(), kept)
    with pytest.raises(TypeError):
        row_loop.loops_for(*here(), Kept())
    monkeypatch.setattr(row_loop, "_module", honest)
    alone = row_loop.loops_for(*here())
    assert set(loaded) == set(compiled) == set(alone)
    assert bits_of(loaded, monkeypatch) == bits_of(compiled, monkeypatch) == bits_of(alone, monkeypatch)


def test_another_processor_other_features_and_another_llvm_have_other_keys(monkeypatch):
    keys = {
        row_loop.object_key(*one)
        for one in (("haswell", ""), ("haswell", "+f16c"), ("znver4", ""), ("znver4+f16c", ""))
    }
    monkeypatch.setattr("llvmlite.__version__", "0.0.1")
    keys.add(row_loop.object_key("haswell", ""))
    assert len(keys) == 5
    assert row_loop.object_key("haswell", "") in keys


def test_the_key_is_of_all_that_the_code_depends_on(monkeypatch, tmp_path):
    # The module's own text is in the key; so it takes nothing from another module of ours.
    text = Path(row_loop.__file__).read_text(encoding="utf-8")
    imported = {
        name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
    }
    assert not [name for name in imported if name.startswith("engcmp")]
    before = row_loop.object_key(*here())
    changed = tmp_path / "row_loop.py"
    changed.write_text(text + "\n", encoding="utf-8")
    monkeypatch.setattr(row_loop, "__file__", str(changed))
    assert row_loop.object_key(*here()) != before


def scored(cache):
    done = subprocess.run(
        [sys.executable, "-c", SCORING], capture_output=True, text=True, check=True, cwd=CHECKOUT,
        env=os.environ | {"XDG_CACHE_HOME": str(cache)},
    )  # fmt: skip
    written, compiled, bits = done.stdout.split()
    return int(written), compiled == "True", bits


def test_the_second_process_compiles_nothing_a_damaged_file_is_replaced_and_the_bits_stay(tmp_path):
    first = scored(tmp_path)
    (file,) = (tmp_path / "engcmp" / "compiled").iterdir()
    whole = file.read_bytes()
    second = scored(tmp_path)
    file.write_bytes(whole[:-100])
    third = scored(tmp_path)
    assert file.read_bytes() == whole
    (tmp_path / "file").write_bytes(b"")
    nowhere = scored(tmp_path / "file")
    assert [one[0] for one in (first, second, third, nowhere)] == [1, 0, 1, 1]
    assert all(one[1] for one in (first, second, third, nowhere))
    assert len({one[2] for one in (first, second, third, nowhere)}) == 1


def test_code_that_gives_other_sums_is_not_used(monkeypatch):
    # Sound by its hash, and wrong: the self-test of fast_rows finds it, and numpy scores.
    kept = Kept()
    monkeypatch.setattr(row_loop, "_EXP", (*row_loop._EXP[:2], row_loop._EXP[2] * 1.01, *row_loop._EXP[3:]))
    row_loop.loops_for(*here(), kept)
    monkeypatch.undo()
    monkeypatch.setattr(row_loop, "compiled", lambda: row_loop.loops_for(*here(), kept))
    assert not fast_rows.compiled.__wrapped__()


def test_the_polynomial_is_as_exact_as_it_says_and_the_table_is_of_the_nearest_floats():
    with localcontext() as context:
        context.prec = 40
        scale, eighth = Decimal(row_loop.SCALE), Decimal(2).ln() / 8
        assert all(float((j * eighth).exp()) == root for j, root in enumerate(row_loop._ROOTS))
        rests = [step * eighth / 400 for step in range(-199, 200, 2)]
        errors = [abs(sum(Decimal(c) * r**n for n, c in enumerate(row_loop._EXP)) / scale / r.exp() - 1) for r in rests]
    assert Decimal("5e-16") < max(errors) < Decimal("9.3e-16")


def test_exponentials_are_exact_to_a_few_units_in_the_last_place():
    # A row of 0 and 31 times x: its moment is 31 x exp(x), at any place of the table and of the exponent.
    xs = -(np.random.default_rng(32).uniform(0, 1, 600) ** 3) * 560.0  # what is below 1e-250 counts as 0
    rows = np.repeat(xs[:, None], 32, axis=1)
    rows[:, 0] = 0.0
    found = row_sums(rows, rows).p_moment
    with localcontext() as context:
        context.prec = 40
        errors = [
            abs(Decimal(float(one)) / (31 * Decimal(float(x)) * Decimal(float(x)).exp()) - 1)
            for one, x in zip(found, xs, strict=True)
        ]
    # Of ln 2 as a float64, x keeps 3.4e-17 of itself; the rest is the polynomial and the rounding of products and sums.
    assert max(float(error) - 3.4e-17 * abs(x) for error, x in zip(errors, xs, strict=True)) < 2.5e-15
