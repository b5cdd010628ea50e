"""A vLLM plugin that writes the logits of prompt rows, as the head gave them, for requests that ask for it.

It is mounted, not installed: the folder above this one is put on PYTHONPATH, and its dist-info names the entry point in the group
`vllm.general_plugins`, which vLLM loads in every process. It needs the standard library only.

A request asks by `"vllm_xargs": {"engcmp_window": NAME}` beside `"prompt_logprobs": 1`. Both are fields of the API as it is: `vllm_xargs`
reaches the model runner untouched and changes no sampling, and a server without the plugin takes the same request. `prompt_logprobs`
makes the runner compute the logits of all prompt rows, and its answer holds what the rows are checked against.

The variable ENGCMP_CAPTURE_DIR names the folder for the files; without it the plugin does nothing.
"""

import logging
import os
from pathlib import Path

from . import hooks

FOLDER_VARIABLE = "ENGCMP_CAPTURE_DIR"
_log = logging.getLogger("vllm.engcmp_capture")


def register() -> None:
    """Called by vLLM in each of its processes, in some more than once. Raises RuntimeError, which keeps the server from starting, where
    the capture is asked for and a model runner that may be used is not one that was verified.
    """
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        return
    verified = hooks.refuse_unverified(os.environ.get("VLLM_USE_V2_MODEL_RUNNER"))
    if hooks.install(verified, Path(folder)):
        _log.info("engcmp: prompt rows can be captured; verified: %s", ", ".join(verified))
