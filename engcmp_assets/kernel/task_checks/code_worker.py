"""Runs calls of a reply's function and says what they returned. Sent into a sandbox as text: it imports nothing of this project.

It says values, never a verdict: what is right is known only outside. So there is nothing here that a reply could forge: to pass it must
give the right values. Input: JSON {"code", "entry", "calls": Python literals of tuples of arguments}. Output, JSON on the descriptor in
argv[1], for each call: {"returned": form, "arguments": form after the call}, {"raised": name}, or {"stage", "error"} of what failed.
"""

import ast
import json
import os
import sys
import types

MODULE = "solution"
# The types whose values are leaves, and how a value is written: an int in base 16, for its decimal form has a limit of digits.
LEAVES = ((bool, str), (int, hex), (float, float.hex), (str, str), (bytes, bytes.hex))


def exact_form(value: object) -> list[object]:
    """A value as nested lists whose leaves are strings, with its exact type: 1, 1.0 and True differ, a subclass of int is refused.

    Raises TypeError for any other type than the plain ones of Python.
    """
    kind = type(value)
    if value is None:
        return ["none"]
    for plain, write in LEAVES:
        if kind is plain:  # never `in` or `==`: the type may be the code's own, and say that it equals any other
            return [plain.__name__, write(value)]  # type: ignore[arg-type] # its kind was looked at above
    if kind is list or kind is tuple:
        return [kind.__name__, *map(exact_form, value)]  # type: ignore[call-overload] # its kind was looked at above
    if kind is set or kind is frozenset:
        return [kind.__name__, *sorted(map(exact_form, value), key=json.dumps)]  # type: ignore[call-overload] # its kind was looked at above
    if kind is dict:
        pairs = [[exact_form(key), exact_form(item)] for key, item in value.items()]  # type: ignore[attr-defined] # its kind was looked at above
        return ["dict", *sorted(pairs, key=json.dumps)]
    raise TypeError(f"a value of type {kind.__name__}")


def answers(code: str, entry: str, calls: list[str]) -> list[dict[str, object]]:
    """What each call gives. Whatever the code raises, SystemExit included, becomes an answer."""
    module = types.ModuleType(MODULE)
    sys.modules[MODULE] = module
    try:
        exec(compile(code, f"{MODULE}.py", "exec"), module.__dict__)  # noqa: S102 - what the sandbox is for
    except BaseException as error:  # noqa: BLE001 - all that untrusted code may raise
        return [{"stage": "load", "error": type(error).__name__}] * len(calls)
    return [answer(module, entry, arguments) for arguments in calls]


def answer(module: types.ModuleType, entry: str, arguments: str) -> dict[str, object]:
    """What one call gives."""
    stage = "arguments"
    try:
        given = ast.literal_eval(arguments)
        stage = "call"
        returned = module.__dict__[entry](*given)
        stage = "form"
        return {"returned": exact_form(returned), "arguments": exact_form(given)}
    except BaseException as error:  # noqa: BLE001 - all that untrusted code may raise
        name = type(error).__name__
        if stage == "call" and type(error).__module__ == "builtins":
            return {"raised": name}
        return {"stage": stage, "error": name}


def main() -> None:
    """All calls. Ends at once, so that neither threads nor exit handlers of the code can go on."""
    request = json.loads(sys.stdin.buffer.read())
    channel = int(sys.argv[1])
    text = json.dumps(answers(request["code"], request["entry"], request["calls"])).encode()
    while text:
        text = text[os.write(channel, text) :]
    os._exit(0)


if __name__ == "__main__":
    main()
