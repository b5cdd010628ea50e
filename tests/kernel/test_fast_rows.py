"""The sums of both ways, compiled and numpy, against an exact oracle, and the properties that every row's figures have."""

import math
import subprocess
import sys
from decimal import Decimal, localcontext
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engcmp_assets.kernel import fast_rows, row_loop
from engcmp_assets.kernel.fast_rows import RowSums, row_sums, widened
from engcmp_assets.kernel.row_measures import RowScores, find_bad_rows, pair_kl, score_rows
from engcmp_resources.errors import EngcmpError

CHECKOUT = Path(__file__).resolve().parents[2]
INF = math.inf
SUMS = tuple(RowSums.__dataclass_fields__)
NAMES = tuple(RowScores.__dataclass_fields__)
EXACT = ("top1", "agree_text", "top3_contained", "engine_top_id", "reference_top_id")
# What a row of float32 logits can be: multiples of 1/64, so that adding an integer and taking it off again is exact.
LOGIT = st.integers(-2048, 2048).map(lambda n: n / 64) | st.sampled_from([-1e30, -1000.0, 0.0, -0.0])
LONG = np.longdouble
needs_long = pytest.mark.skipif(np.finfo(LONG).eps > 2e-19, reason="this machine has no floats longer than 64 bits")


@pytest.fixture(params=["compiled", "numpy"])
def way(request, monkeypatch):
    """Each test that takes it runs on both ways."""
    if request.param == "numpy":
        monkeypatch.setattr(fast_rows, "compiled", lambda: False)
    else:
        assert fast_rows.compiled(), "llvmlite is a dependency: the compiled way must work where the tests run"
    return request.param


def close(found, exact):
    return abs(found - exact) <= max(1e-12 * abs(exact), 1e-14)


def oracle(p, q, token):
    """The measures of one row, in 60 digits; every value of a row is a float and so an exact decimal."""
    with localcontext() as context:
        context.prec = 60

        def log_softmax(row):
            exact = [None if value == -INF else Decimal(float(value)) for value in row]
            log_sum = sum(value.exp() for value in exact if value is not None).ln()
            return [None if value is None else value - log_sum for value in exact]

        log_p, log_q = log_softmax(p), log_softmax(q)
        p_entropy, q_entropy = (-sum(a.exp() * a for a in side if a is not None) for side in (log_p, log_q))
        exact = {
            "kl_full": sum(a.exp() * (a - b) for a, b in zip(log_p, log_q, strict=True) if a is not None),
            "nll": -log_q[token],
            "entropy": q_entropy,
            "excess_entropy": q_entropy - p_entropy,
            "nll_minus_reference": log_p[token] - log_q[token],
            "reference_nll": -log_p[token],
            "reference_entropy": p_entropy,
            "reference_top_probability": max(a for a in log_p if a is not None).exp(),
        }
        return {name: float(value) for name, value in exact.items()}


def long_oracle(p, q):
    """KL and entropy of q of long rows, in 64-bit mantissas: rounding is 2,000 times smaller than a float64's."""
    p, q = p.astype(LONG), q.astype(LONG)
    log_p, log_q = (side - side.max() - np.log(np.exp(side - side.max()).sum()) for side in (p, q))
    return float((np.exp(log_p) * (log_p - log_q)).sum()), float(-(np.exp(log_q) * log_q).sum())


def planted(kind, chance, vocab=389):
    p = chance.normal(0, 3, vocab)
    q = p + chance.normal(0, 0.3, vocab)
    if kind == "peaked":
        p[17] = q[17] = 60.0
    elif kind == "flat":
        p, q = np.zeros(vocab), chance.normal(0, 1e-3, vocab)
    elif kind == "ties":
        p, q = np.round(p), np.round(q)
    elif kind == "masked":
        p[5:90], q[5:90] = -INF, -INF
        p[100] = -INF  # p = 0 where q > 0 is legal
    elif kind == "finite mask":
        p[5:90], q[5:90] = -1e30, np.finfo(np.float32).min
    elif kind == "near":
        q = p + chance.normal(0, 1.4e-6, vocab)
    elif kind == "far apart":
        q = -8 * p
    elif kind == "bfloat16":
        p, q = (bfloat16(side) for side in (p, q))
    return p, q


def bfloat16(values):
    """Float64 values rounded towards zero to what a bfloat16 holds."""
    bits = np.asarray(values, dtype=np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
    return bits.view(np.float32)


def bits_of_bfloat16(values):
    return (np.asarray(values, dtype=np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)


def scores_of(p, q, token=0, **options):
    found = score_rows(np.atleast_2d(p), np.atleast_2d(q), [token], where="window t", **options)
    return {name: getattr(found, name)[0] for name in NAMES}


KINDS = ("random", "peaked", "flat", "ties", "masked", "finite mask", "near", "far apart", "bfloat16")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_every_measure_agrees_with_a_sixty_digit_oracle(way, kind, dtype):
    p, q = (side.astype(dtype) for side in planted(kind, np.random.default_rng(len(kind))))
    found = scores_of(p, q, token=1)
    for name, exact in oracle(p, q, 1).items():
        assert close(found[name], exact), (name, found[name], exact)
    assert found["reference_top_id"] == int(np.flatnonzero(p == p.max())[0])
    assert found["engine_top_id"] == int(np.flatnonzero(q == q.max())[0])


def test_a_divergence_of_a_millionth_of_a_millionth_is_no_noise(way):
    p, q = planted("near", np.random.default_rng(3), vocab=512)
    found, exact = scores_of(p, q)["kl_full"], oracle(p, q, 0)["kl_full"]
    assert 1e-13 < exact < 1e-11
    assert found == pytest.approx(exact, rel=2e-3)


@needs_long
def test_rows_of_300000_ids_are_as_exact_as_short_ones(way):
    chance = np.random.default_rng(5)
    p = chance.normal(0, 3, (3, 300_007)).astype(np.float32)
    q = p + chance.normal(0, 0.1, p.shape).astype(np.float32)
    p[1], q[1] = 0.0, np.float32(1e-3) * q[1]  # a flat reference: every id weighs the same
    q[2] = p[2] + np.float32(1e-6) * q[2]
    scores = score_rows(p, q, [0, 0, 0], where="window t")
    for row in range(3):
        kl, entropy = long_oracle(p[row], q[row])
        assert close(scores.kl_full[row], kl), row
        assert close(scores.entropy[row], entropy), row


def test_both_ways_agree_and_the_tops_are_the_same(monkeypatch):
    chance = np.random.default_rng(6)
    p = chance.normal(0, 4, (9, 20_013)).astype(np.float32)
    q = p + chance.normal(0, 1, p.shape).astype(np.float32)
    p[2, 7:900], q[2, 7:900] = -INF, -INF
    compiled = row_sums(p, q)
    monkeypatch.setattr(fast_rows, "compiled", lambda: False)
    numpy = row_sums(p, q)
    for name in SUMS:
        assert np.allclose(getattr(compiled, name), getattr(numpy, name), rtol=1e-13, atol=0), name
    assert np.array_equal(compiled.p_top, numpy.p_top) and np.array_equal(compiled.q_top, numpy.q_top)


@pytest.mark.parametrize("vocab", [1, 2, 7, 8, 9, 1023, 1024, 1025, 2055])
def test_rows_of_any_width_are_added_up_whole(way, vocab):
    # Equal values: the sum of exp(x) counts the ids.
    p, q = np.full((2, vocab), 3.5, dtype=np.float32), np.full((2, vocab), -2.0, dtype=np.float32)
    sums = row_sums(p, q)
    assert sums.p_sum.tolist() == sums.q_sum.tolist() == [vocab, vocab]
    assert not sums.p_moment.any() and not sums.cross.any() and not sums.p_top.any()


@pytest.mark.parametrize("place", [0, 6, 7, 8, 1024, 2054])
@pytest.mark.parametrize("value", [math.nan, INF, -INF])
def test_one_bad_value_is_found_wherever_it_lies(way, place, value):
    for side in (0, 1):
        arrays = [np.linspace(-3, 3, 2 * 2055, dtype=np.float32).reshape(2, 2055) for _ in range(2)]
        arrays[side][1, place] = value
        bad = find_bad_rows(*arrays, where="window t")
        legal = value == -INF and side == 0  # p = 0 where q > 0
        assert [one.index for one in bad] == ([] if legal else [1])
        assert legal or f"id {place}" in bad[0].reason or f"first {place}" in bad[0].reason


def test_an_engine_value_far_below_its_maximum_counts_in_full(way):
    # q(1) is e^-5000, which no float64 holds; its logarithm is -5000 all the same.
    found = scores_of(np.zeros(2, dtype=np.float32), np.array([0.0, -5000.0], dtype=np.float32), token=1)
    assert found["kl_full"] == pytest.approx(2500 - math.log(2), abs=1e-11)
    assert found["nll"] == 5000.0


def test_rows_of_sixteen_bits_read_as_the_numbers_that_they_hold(way):
    chance = np.random.default_rng(8)
    logits = chance.normal(0, 4, (2, 5, 1003))
    tokens = chance.integers(0, 1003, 5)
    half = logits.astype(np.float16)
    half[0, 0, :3] = [6e-8, -6e-8, 65504.0]  # subnormal, and the largest
    brain = bfloat16(logits)
    for short, wide in ((half, half.astype(np.float32)), (bits_of_bfloat16(brain), brain)):
        one = score_rows(short[0], short[1], tokens, where="window t")
        other = score_rows(wide[0], wide[1], tokens, where="window t")
        for name in NAMES:
            assert np.array_equal(getattr(one, name), getattr(other, name)), name
    mixed = score_rows(half[0], brain[1].astype(np.float64), tokens, where="window t")
    assert mixed.kl_full == pytest.approx(
        score_rows(half[0].astype(np.float64), brain[1].astype(np.float64), tokens, where="window t").kl_full, abs=0
    )


def test_widening_keeps_every_bfloat16():
    bits = np.arange(1 << 16, dtype=np.uint16).reshape(1, -1)
    assert np.array_equal(bits_of_bfloat16(widened(bits)), bits)


@pytest.mark.parametrize("dtype", [">f4", "<f8", ">f8"])
def test_byte_order_and_layout_do_not_matter(dtype):
    chance = np.random.default_rng(9)
    p, q = chance.normal(0, 3, (2, 6, 130)).astype(np.float32)
    straight = score_rows(p, q, [1] * 6, where="window t")
    turned = score_rows(
        np.asfortranarray(p.astype(dtype)), q[:, ::-1].astype(dtype)[:, ::-1], [1] * 6, where="window t"
    )
    assert turned.kl_full == pytest.approx(straight.kl_full, rel=1e-13)
    assert np.array_equal(turned.top1, straight.top1)


def test_rows_that_are_packed_with_other_fields_read_the_same():
    # 13 bytes from a row to the next: no whole number of values.
    packed = np.zeros(3, dtype=[("flag", "u1"), ("row", "<f4", 3)])
    packed["row"] = np.random.default_rng(15).normal(0, 3, (3, 3))
    alone = np.ascontiguousarray(packed["row"])
    assert pair_kl(packed["row"], alone, where="window t").tolist() == [0.0, 0.0, 0.0]
    assert np.array_equal(row_sums(packed["row"], alone).p_sum, row_sums(alone, alone).p_sum)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("jobs", [2, 3])
def test_the_number_of_threads_and_the_rows_beside_it_change_no_bit_of_a_row(way, jobs, dtype, monkeypatch):
    chance = np.random.default_rng(10)
    p, q = chance.normal(0, 3, (2, 11, 3001)).astype(dtype)
    p[4, :40], q[4, :40] = -INF, -INF
    tokens = chance.integers(50, 3001, 11)
    whole = score_rows(p, q, tokens, where="window t")
    monkeypatch.setattr(fast_rows, "_CHUNK_VALUES", 2 * 3001)
    shared = score_rows(p, q, tokens, where="window t", jobs=jobs)
    order = chance.permutation(11)
    mixed = score_rows(p[order], q[order], tokens[order], where="window t")
    for name in NAMES:
        assert np.array_equal(getattr(shared, name), getattr(whole, name)), name
        assert np.array_equal(getattr(mixed, name), getattr(whole, name)[order]), name


def test_fewer_than_one_thread_is_refused():
    with pytest.raises(EngcmpError, match="on 0 threads"):
        score_rows(np.zeros((1, 3)), np.zeros((1, 3)), [0], where="window t", jobs=0)


def test_positions_beyond_two_to_the_31_are_read_where_they_lie(way, tmp_path):
    vocab, count = 154_880, 27_733  # 4.3e9 values a side, in a file that takes no room where it holds zeros
    chance = np.random.default_rng(11)
    last = chance.normal(0, 3, (2, vocab)).astype(np.float16)
    files = []
    for side in range(2):
        with (tmp_path / f"{side}.f16").open("wb") as file:
            file.truncate(vocab * count * 2)
            file.seek(vocab * (count - 1) * 2)
            file.write(last[side].tobytes())
        files.append(np.memmap(tmp_path / f"{side}.f16", dtype=np.float16, mode="r", shape=(count, vocab)))
    assert files[0].size > 1 << 31
    # Rows 0, the middle one and the last, in one call: the stride between them is beyond 2^31 too.
    stride = (count - 1) // 2
    found = score_rows(*(file[::stride] for file in files), [1, 1, 1], where="window t")
    alone = score_rows(last[:1], last[1:], [1], where="window t")
    assert found.kl_full.tolist() == [0.0, 0.0, alone.kl_full[0]]
    assert found.entropy[0] == pytest.approx(math.log(vocab), abs=1e-13)


def test_a_stride_beyond_two_to_the_31_values_is_followed_by_the_compiled_loop(tmp_path):
    vocab, count = 1031, 3
    stride = (1 << 31) + 7
    chance = np.random.default_rng(12)
    rows = chance.normal(0, 3, (count, vocab)).astype(np.float32)
    with (tmp_path / "rows.f32").open("wb") as file:
        for number, row in enumerate(rows):
            file.seek(number * stride * 4)
            file.write(row.tobytes())
    flat = np.memmap(tmp_path / "rows.f32", dtype=np.float32, mode="r")
    far = np.lib.stride_tricks.as_strided(flat, (count, vocab), (stride * 4, 4))
    assert far[1:].size == 2 * vocab and far.strides[0] > 1 << 33
    found, near = row_sums(far, rows[::-1]), row_sums(rows, rows[::-1])
    for name in SUMS:
        assert np.array_equal(getattr(found, name), getattr(near, name)), name


@pytest.mark.parametrize(
    "heights", [[1, 2, 3, 4], [4, 3, 2, 1], [1, 4, 2, 4], [4, 1, 1, 4], [-INF, 2, -INF, 1], [-1e30, 5, 1, 0]]
)
def test_a_maximum_that_is_met_late_moves_the_sums_of_all_before_it(way, heights):
    # One height for each run of the compiled loop and the few values after the last; q is shifted by one run.
    vocab = 3 * row_loop.RUN + 5
    chance = np.random.default_rng(14)
    base = np.repeat(np.array(heights, dtype=np.float64) * 20, row_loop.RUN)[:vocab]
    p = (base + chance.integers(-64, 64, vocab) / 64).astype(np.float32)
    q = np.where(np.isneginf(p), -INF, np.maximum(np.roll(base, row_loop.RUN), -1e29)).astype(np.float32)
    q[~np.isfinite(q) & np.isfinite(p)] = 0
    token = int(p.argmax())
    found, exact = scores_of(p, q, token), oracle(p, q, token)
    for name, value in exact.items():
        assert close(found[name], value), (name, found[name], value)
    assert (found["reference_top_id"], found["engine_top_id"]) == (p.argmax(), q.argmax())


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 2200), st.data())
def test_the_first_of_equal_maxima_is_the_top_wherever_the_others_lie(vocab, data):
    places = data.draw(st.lists(st.integers(0, vocab - 1), min_size=1, max_size=4))
    row = np.full((1, vocab), -3.0, dtype=np.float32)
    row[0, places] = 2.0
    sums = row_sums(row, np.zeros_like(row))
    assert (sums.p_top[0], sums.q_top[0], sums.p_max[0]) == (min(places), 0, 2.0)


def test_zero_and_minus_zero_are_equal():
    row = np.full((1, 3000), -1.0, dtype=np.float32)
    row[0, [2500, 2990]] = [-0.0, 0.0]
    assert row_sums(row, -row).p_top.tolist() == [2500]


def rows_and_token(low=1, high=20):
    def pair(width):
        row = st.lists(LOGIT, min_size=width, max_size=width)
        return st.tuples(row, row, st.integers(0, width - 1))

    return st.integers(low, high).flatmap(pair)


@settings(max_examples=150, deadline=None)
@given(rows_and_token())
def test_the_divergence_is_never_negative_and_a_row_has_none_to_itself(case):
    p, q, _ = (np.array([one], dtype=np.float32) for one in case)
    assert pair_kl(p, q, where="window t")[0] >= 0
    for row in (p, q):
        assert pair_kl(row, row.copy(), where="window t").tolist() == [0.0]


@settings(max_examples=150, deadline=None)
@given(rows_and_token(), st.integers(-500, 500))
def test_a_constant_added_to_all_logits_changes_nothing(case, constant):
    p, q, token = np.array(case[0]), np.array(case[1]), case[2]
    if min(p.min(), q.min()) < -500:  # a mask of -1e30 does not move
        p, q = np.maximum(p, -500), np.maximum(q, -500)
    before, after = scores_of(p, q, token), scores_of(p + constant, q + constant, token)
    for name in NAMES:
        assert after[name] == before[name] if name in EXACT else close(after[name], before[name]), name


@settings(max_examples=150, deadline=None)
@given(rows_and_token(), st.randoms(use_true_random=False))
def test_another_order_of_the_vocabulary_changes_nothing_but_which_of_equals_comes_first(case, chance):
    p, q, token = np.array(case[0]), np.array(case[1]), case[2]
    order = list(range(len(p)))
    chance.shuffle(order)
    before, after = scores_of(p, q, token), scores_of(p[order], q[order], order.index(token))
    for name in NAMES:
        if name not in EXACT:
            assert close(after[name], before[name]), name
    if len(set(p.tolist())) == len(set(q.tolist())) == len(p):
        assert [after[name] for name in ("top1", "agree_text", "top3_contained")] == [
            before[name] for name in ("top1", "agree_text", "top3_contained")
        ]
        assert order[after["engine_top_id"]] == before["engine_top_id"]


def test_the_compiled_sums_are_the_same_bits_on_every_processor(monkeypatch):
    binding = pytest.importorskip("llvmlite.binding")
    if not binding.get_process_triple().startswith("x86_64"):
        pytest.skip("the processors named here are of another kind")
    chance = np.random.default_rng(13)
    p, q = chance.normal(0, 3, (2, 3, 3003)).astype(np.float32)
    p[1, 5], q[1, 5] = -INF, -INF
    sides = {dtype: [side.astype(dtype) for side in (p, q)] for dtype in ("float16", "float32", "float64")}
    sides["uint16"] = [bits_of_bfloat16(side) for side in (p, q)]
    here = {dtype: row_sums(*pair) for dtype, pair in sides.items()}
    # One without a multiply-add, a float16 or a lookup of its own; one with 4 values in a register; one with 8. Where they can run.
    runs_here = binding.get_host_cpu_features()
    processors = [("x86-64", "")]
    if all(runs_here.get(feature) for feature in ("avx2", "fma", "f16c")):
        processors.append(("haswell", "+avx2,+f16c"))
    if all(runs_here.get(feature) for feature in ("avx512f", "avx512vl", "avx512bw", "avx512dq", "avx512cd")):
        processors.append(("skylake-avx512", "+avx512f,+avx2,+f16c"))
    lookups = [row_loop.lookup_for(features) for _, features in processors]
    assert len(set(lookups)) == len(lookups), "each of them looks the table up in another way"
    for processor, features in processors:
        loops = row_loop.loops_for(processor, features)
        assert ("float16" in loops) == ("+f16c" in features)
        monkeypatch.setattr(row_loop, "compiled", lambda loops=loops: loops)
        for dtype, pair in sides.items():
            there = row_sums(*pair)
            for name in SUMS:
                same = getattr(there, name).tobytes() == getattr(here[dtype], name).tobytes()
                assert same, (processor, dtype, name)


@pytest.mark.parametrize(
    ("features", "lookup"), [("+avx512f,+avx2", "avx512"), ("-avx512f,+avx2", "avx2"), ("-avx2", "load")]
)
def test_a_processor_looks_the_table_up_as_its_features_allow(features, lookup):
    assert lookup in row_loop.lookup_for(features)


def test_a_loop_that_gives_other_sums_is_not_used(monkeypatch):
    honest = fast_rows._compiled_sums

    def wrong(p, q):
        p_top, q_top, sums, lowest = honest(p, q)
        return p_top, q_top, sums * (1 + 1e-9), lowest

    monkeypatch.setattr(fast_rows, "_compiled_sums", wrong)
    assert not fast_rows.compiled.__wrapped__()
    monkeypatch.setattr(fast_rows, "_compiled_sums", honest)
    assert fast_rows.compiled.__wrapped__()


def test_without_llvmlite_numpy_scores_the_same():
    code = """
import sys
sys.modules["llvmlite"] = None  # as where it is not installed
import numpy as np
from engcmp_assets.kernel import fast_rows
from engcmp_assets.kernel.row_measures import pair_kl
chance = np.random.default_rng(1)
p, q = chance.normal(0, 3, (2, 2, 5000)).astype(np.float32)
print(fast_rows.compiled(), *pair_kl(p, q, where="window t").tolist())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=CHECKOUT)
    said, *kl = done.stdout.split()
    chance = np.random.default_rng(1)
    p, q = chance.normal(0, 3, (2, 2, 5000)).astype(np.float32)
    assert said == "False"
    assert [float(one) for one in kl] == pytest.approx(pair_kl(p, q, where="window t").tolist(), rel=1e-13)


@pytest.mark.parametrize("far", [[0], [2], [0, 1, 2, 3], [3], []])
def test_rows_with_values_far_below_the_highest_read_as_each_does_alone(way, far):
    p, q = np.random.default_rng(23).normal(0, 3, (2, 4, 2100)).astype(np.float32)
    for row in far:
        p[row, 11], q[row, 5:900] = -INF, -1e5
        p[row, 5:900] = -1e5
    together = row_sums(p, q)
    alone = [row_sums(p[row : row + 1], q[row : row + 1]) for row in range(4)]
    for name in SUMS:
        assert getattr(together, name).tobytes() == b"".join(getattr(one, name).tobytes() for one in alone), name


def test_both_loops_give_the_same_bits_where_nothing_is_far_below():
    if not fast_rows.compiled():
        pytest.skip("no loop is compiled here")
    p, q = np.random.default_rng(24).normal(0, 60, (2, 5, 4096)).astype(np.float32)
    found = []
    for name in ("float32", f"{row_loop.FAR}float32"):
        out, places = np.full((5, len(row_loop.OUTPUTS)), -3e38), np.full((5, 2), -1)
        arrays = [row_loop.address(one) for one in (p, q, out, places)]
        row_loop.compiled()[name](*arrays[:2], 4096, 5, 4096, 4096, *arrays[2:])
        found.append(out.tobytes() + places.tobytes())
    assert found[0] == found[1]
