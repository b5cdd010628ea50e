"""For the tests of the top-K panel: rows by hand, random cases, exact answers in 60 digits, and what storage may cost."""

import math
from decimal import Decimal, localcontext

import numpy as np
from hypothesis import strategies as st

from engcmp_assets.kernel.topk_measures import TopKRows, reduce_rows, score_topk, topk_of

INF = math.inf
W = "window t"
# Multiples of 1/64 up to 16: adding an integer to them is exact, so only the code under test can make a difference.
LOGIT = st.integers(-1024, 1024).map(lambda n: n / 64)


def rows(*lists, dtype=np.float64):
    return np.array(lists, dtype=dtype)


def logs(*probabilities):
    with np.errstate(divide="ignore"):
        return np.log(np.array([probabilities], dtype=np.float64))


def both(reference, engine, tokens, k):
    top = topk_of(reference, tokens, k, where=W)
    return top, reduce_rows(engine, top.top_ids, tokens, where=W)


def scored(reference, engine, tokens, k):
    return score_topk(*both(reference, engine, tokens, k), where=W)


def stored_reference(ids, log_probs, tail, next_log_prob=-1.0):
    return TopKRows(
        np.array([ids], dtype=np.uint32),
        np.array([log_probs], dtype=np.float16),
        np.array([tail], dtype=np.float32),
        np.array([next_log_prob], dtype=np.float32),
    )


# ---------------------------------------------------------------- oracle


def exact_log_softmax(values):
    exact = [None if value == -INF else Decimal(float(value)) for value in values]
    log_sum = sum((value.exp() for value in exact if value is not None), Decimal(0)).ln()
    return [None if value is None else value - log_sum for value in exact]


def exact_kl(log_p, log_q):
    return sum((a.exp() * (a - b) for a, b in zip(log_p, log_q, strict=True) if a is not None), Decimal(0))


def exact_log_mass(log_values):
    total = sum((value.exp() for value in log_values if value is not None), Decimal(0))
    return None if total == 0 else total.ln()


def oracle(top, engine_row, token):
    """kl_coarse, kl_pb20, nll and entropy of one row, in 60 digits: the reference as stored, the engine's own full row."""
    with localcontext() as context:
        context.prec = 60
        ids = top.top_ids[0].tolist()
        log_p = exact_log_softmax([*top.top_log_probs[0].tolist(), float(top.tail_log_mass[0])])
        log_q = exact_log_softmax(engine_row)
        rest = exact_log_mass([value for index, value in enumerate(log_q) if index not in ids])
        coarse = exact_kl(log_p, [*(log_q[index] for index in ids), rest])
        own = sorted(range(len(engine_row)), key=lambda index: (-engine_row[index], index))[:20]
        buckets = [index for index in own if index in ids]
        p_rest = exact_log_mass([log_p[-1], *(log_p[place] for place, index in enumerate(ids) if index not in buckets)])
        q_rest = exact_log_mass([value for index, value in enumerate(log_q) if index not in buckets])
        pb20 = exact_kl(
            [*(log_p[ids.index(index)] for index in buckets), p_rest], [*(log_q[index] for index in buckets), q_rest]
        )
        entropy = -sum((value.exp() * value for value in log_q if value is not None), Decimal(0))
        values = {"kl_coarse": coarse, "kl_pb20": pb20, "nll": -log_q[token], "entropy": entropy}
        return {name: float(value) for name, value in values.items()} | {
            "pb20_tolerance": pb20_tolerance([float(log_q[index]) for index in buckets], p_rest, q_rest)
        }


def pb20_tolerance(bucket_log_q, p_rest, q_rest):
    """What float32 storage of the engine's top 20 can do to kl_pb20: its rest is 1 - sum, so the sum's error is relative to it."""
    if p_rest is None:
        return 5e-6
    error = sum(math.exp(value) * abs(value) for value in bucket_log_q) * 2.0**-24 + 1e-16
    share = INF if q_rest is None else error / math.exp(float(q_rest))
    return 5e-6 + math.exp(float(p_rest)) * (2 * share if share < 0.5 else INF)


def float64_buckets(logits, ids):
    """Exact log-probs over the ids and the rest, before any storage, [n, K + 1]."""
    values = np.asarray(logits, dtype=np.float64)
    log_p = values - np.logaddexp.reduce(values, axis=1, keepdims=True)
    ids = ids.astype(np.int64)
    listed = np.take_along_axis(log_p, ids, axis=1)
    np.put_along_axis(log_p, ids, -INF, axis=1)
    return np.column_stack([listed, np.logaddexp.reduce(log_p, axis=1)])


def storage_bound(log_p, log_q):
    """How far 16-bit storage of log p can move a KL, a priori: see score_topk."""
    p = np.exp(log_p)
    h = np.where(p > 0, np.abs(log_p), 0) / 2048 + 2.0**-25
    shared = np.log((p * np.exp(h)).sum(axis=1, keepdims=True))
    r = np.expm1(h + shared)
    with np.errstate(invalid="ignore"):
        terms = np.where(p > 0, p * r * (np.abs(log_p - log_q) + r), 0)
    return terms.sum(axis=1)


@st.composite
def cases(draw, minus_inf=False):
    width = draw(st.integers(1, 7))
    value = st.one_of(LOGIT, st.just(-INF)) if minus_inf else LOGIT
    reference = draw(st.lists(value, min_size=width, max_size=width).filter(lambda row: max(row) > -INF))
    engine = draw(st.lists(LOGIT, min_size=width, max_size=width))
    token = draw(st.sampled_from([index for index, value in enumerate(reference) if value > -INF]))
    return rows(reference), rows(engine), token, draw(st.integers(1, width))
