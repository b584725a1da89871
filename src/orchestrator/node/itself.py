"""How this application starts itself again as another process."""

from __future__ import annotations

import os
import sys


def application() -> str:
    """The zip file we run from, or the folder that holds the package."""
    package = os.path.dirname(os.path.dirname(__file__))
    return os.path.dirname(package)


def command(application_path: str, *words: str) -> list[str]:
    """argv that runs a verb or role of an application (zip file or folder) with this interpreter.

    -EsS: the zip needs the standard library only, and starts quicker without anybody's site packages.
    """
    if os.path.isdir(application_path):
        start = (
            f"import sys; sys.path.insert(0, {application_path!r}); "
            "from orchestrator.node import dispatch; sys.exit(dispatch.serve(sys.argv[1:]))"
        )
        return [sys.executable, "-c", start, *words]
    return [sys.executable, "-EsS", application_path, *words]


def copy_beside(folder: str) -> str:
    """Put a copy of the zip application into a run's folder, so that cleaning a cache can't hurt a running agent.

    A checkout's folder is used in place.
    """
    source = application()
    if os.path.isdir(source):
        return source
    target = f"{folder}/agent.pyz"
    if not os.path.exists(target):
        import shutil  # brings the compressors, which no other process of a run needs

        temporary = f"{target}.{os.getpid()}.new"
        shutil.copyfile(source, temporary)
        os.rename(temporary, target)
    return target
