"""An engine that misbehaves on demand: one real HTTP server that speaks the dialects of several engines.

What it computes is a known function of its seed, every token and time of what it sent can be asked, and each fault that users of such
servers reported can be switched on by name. It needs the standard library and numpy alone.

    python -m tests.simulator --dialect vllm --port 0 --script script.json      # from the checkout's root

    with running_simulator("cuteafd", faults=["done_missing"], timing={"itl_ms": 10.0}, drafts=3) as simulator:
        ...                                             # talk to simulator.url
        simulator.script({"name": "stall", "at": {"token": 5}, "ms": 200})     # from now on
        record = simulator.last()                       # the prompt, each token and its time, of the last request

Where things are: `faults.py` names all faults and explains scripts; `options.py` all options; `model.py` is the truth; `running.py` starts
it as a child process, `container.py` in a container. Its own routes: GET /__sim__/truth (?first=N), /__sim__/log, /__sim__/faults, and
POST /__sim__/script. Times are nanoseconds of CLOCK_MONOTONIC, taken before the bytes are written.
"""
