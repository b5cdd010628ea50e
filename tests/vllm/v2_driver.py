"""Drives the V2 runner's own class of prompt log-probabilities on the CPU, with the capture hooked on; run by the environment's Python.

A server of the V2 runner does not start on this build (it wants a Triton that compiles for the CPU). Here Triton's own interpreter
runs the class's kernels. Only the engine around it is made up: a head, hidden states, and the batch of each step. Prints as JSON what the
class answered for each request: the log-probability of each next token.
"""

# ruff: noqa: E402 - what is set before an import is the point here
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported

import numpy as np
import torch
import triton
import triton.language
import vllm.triton_utils

vllm.triton_utils.triton, vllm.triton_utils.tl = triton, triton.language

import engcmp_vllm_capture

engcmp_vllm_capture.register()
engcmp_vllm_capture.register()  # vLLM does so too

from vllm import SamplingParams
from vllm.v1.worker.gpu.sample.prompt_logprob import PromptLogprobsWorker

VOCAB, WIDTH = 96, 32
# Each step: how many tokens of each request are read. `long` is more than the 1,024 rows that the class gives the head at once.
LENGTHS = {"chunked": 37, "beside": 20, "long": 1100}
STEPS = [{"chunked": 16, "beside": 20}, {"chunked": 16, "beside": 1}, {"chunked": 5}, {"long": 1100}]
DTYPES = {"chunked": torch.bfloat16, "beside": torch.bfloat16, "long": torch.float32}
WINDOWS = {"chunked": "w-chunked", "long": "w-long"}


def main(out: Path) -> None:
    torch.manual_seed(5)
    head = torch.randn(VOCAB, WIDTH).to(torch.bfloat16)
    tokens = {name: torch.randint(VOCAB, (length,)) for name, length in LENGTHS.items()}
    hidden = {name: torch.randn(length + 1, WIDTH).to(DTYPES[name]) for name, length in LENGTHS.items()}
    worker = PromptLogprobsWorker(8, torch.device("cpu"))
    all_tokens = torch.zeros(8, 1200, dtype=torch.int32)
    places = {name: 2 * place + 1 for place, name in enumerate(LENGTHS)}
    prompt_lens, computed = np.zeros(8, dtype=np.int32), torch.zeros(8, dtype=torch.int32)
    for name, place in places.items():
        asked = {"engcmp_window": WINDOWS[name]} if name in WINDOWS else None
        worker.add_request(name, place, SamplingParams(prompt_logprobs=1, max_tokens=4, extra_args=asked))
        all_tokens[place, : LENGTHS[name]] = tokens[name]
        prompt_lens[place] = LENGTHS[name]
    answered = {}
    for step in STEPS:
        names = list(step)
        counts = np.array([step[name] for name in names])
        mapping = np.array([places[name] for name in names])
        starts = computed.numpy()[mapping].copy()
        bounds = np.concatenate([[0], np.cumsum(counts)])
        batch = SimpleNamespace(
            req_ids=names, idx_mapping_np=mapping, idx_mapping=torch.tensor(mapping), num_tokens=int(counts.sum()),
            query_start_loc_np=bounds, query_start_loc=torch.tensor(bounds, dtype=torch.int32), num_scheduled_tokens=counts,
            num_computed_prefill_tokens_np=np.minimum(starts, prompt_lens[mapping]), prefill_len_np=prompt_lens[mapping],
        )  # fmt: skip
        states = torch.cat([hidden[name][at : at + step[name]] for name, at in zip(names, starts, strict=True)])
        found = worker.compute_prompt_logprobs(
            lambda rows: rows @ head.T.to(rows.dtype), states, batch, all_tokens, computed, prompt_lens
        )
        answered |= {name: one.logprobs[:, 0].tolist() for name, one in found.items()}
        for name in names:
            computed[places[name]] += step[name]
    rows = {name: (hidden[name][:-2] @ head.T.to(DTYPES[name])).float().tolist() for name in WINDOWS}
    torch_tokens = {name: one.tolist() for name, one in tokens.items()}
    out.write_text(json.dumps({"answered": answered, "tokens": torch_tokens, "rows": rows, "vocab": VOCAB}))


main(Path(sys.argv[1]))
