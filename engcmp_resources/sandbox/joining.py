"""Joins control groups, becomes another user, and turns into the command: sent to Python as text, run before a sandbox starts.

Arguments: the `cgroup.procs` files joined by `:`, the user's number (or `-` to stay), then the command.
"""

import os
import sys

if __name__ == "__main__":
    groups, user, *command = sys.argv[1:]
    for path in filter(None, groups.split(":")):
        with open(path, "w") as file:  # noqa: PTH123 - alone in here
            file.write(str(os.getpid()))
    if user != "-":
        os.setgroups([])
        os.setgid(int(user))
        os.setuid(int(user))
    os.execv(command[0], command)  # noqa: S606 - from a list, no shell
