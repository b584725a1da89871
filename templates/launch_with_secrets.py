"""Starts a module as `python3 -m` does, with arguments out of a file before those of its own command line.

    python3 launch_with_secrets.py FILE MODULE ARGUMENTS...

FILE has one argument a line. A command line can be read by everybody on a machine, a file of mode 0600 by its owner.
"""

from __future__ import annotations

import runpy
import sys


def main() -> None:
    """Give the module its arguments, and become it."""
    file, module, *arguments = sys.argv[1:]
    with open(file, encoding="utf-8") as secret:  # noqa: PTH123 - nothing more is imported than must be
        words = secret.read().splitlines()
    sys.argv = [module, *words, *arguments]
    del sys.path[0]  # this file's own folder
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
