"""What `make test` runs: the tests that need the machine for themselves, then the others in four processes at a time, since each waits
for half of its time (for disks, servers and commands that it starts); file after file as they are found, so that the small ones are last.

Both always run, so that a failure of the first hides nothing of the second; the exit code is 0 only if both are. The study is measured
once, by the first, and both read it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

PASSES = (("-m", "alone"), ("-m", "not alone", "-n", "4", "--dist", "loadfile", "--no-loadscope-reorder"))


def main() -> int:
    """The exit code of pytest that is furthest from success."""
    with tempfile.TemporaryDirectory(prefix="engcmp-tests-") as folder:
        # Tests are compiled once: four processes would each take 13 s for it, where this is set.
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        shared = {"ENGCMP_TEST_HOME": f"{folder}/home", "ENGCMP_TEST_SECONDS": f"{folder}/seconds.json"} | kept
        codes = [
            subprocess.run([sys.executable, "-m", "pytest", *options], env=shared, check=False).returncode
            for options in PASSES
        ]
    return max(codes, key=abs)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
