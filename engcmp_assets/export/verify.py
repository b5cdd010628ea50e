"""Verify the exported study that this file lies in: `python verify.py`. Needs Python 3.11 or newer and nothing else."""

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # this folder: a file json.py beside this one would else stand for Python's own
    import importlib.util
    from pathlib import Path

    sys.dont_write_bytecode = True
    folder = Path(__file__).resolve().parent
    place = folder / "verifier"
    spec = importlib.util.spec_from_file_location(
        "verifier", place / "__init__.py", submodule_search_locations=[str(place)]
    )
    if spec is None:
        sys.exit(f"{place} cannot be read")
    sys.modules["verifier"] = importlib.util.module_from_spec(spec)
    from verifier.main import main  # type: ignore[import-not-found] # the folder beside this file, in a bundle

    sys.exit(main(folder, sys.argv[1:]))
