"""A container image out of this machine's Docker or podman, as an archive that a node can load."""

from __future__ import annotations

import subprocess
from pathlib import Path

from orchestrator.model.errors import InputError, Unreachable
from orchestrator.model.profile import Stack


def save(stack: Stack, into: Path, *, deadline_s: float) -> None:
    """Write the stack's image. Raises InputError with the program's own words, Unreachable where it takes too long.

    An archive keeps an image's id and loses the digest by which a registry knows it: only an id can be asked for again.
    """
    if not stack.image.startswith("sha256:"):
        raise InputError(
            f"found {stack.image!r}, wanted the image's id: an archive does not keep a registry's digest",
            where=f"stack {stack.name}: image",
            fix=f"`{stack.install} image inspect --format '{{{{.Id}}}}' NAME` shows it; or let prepare pull the image",
        )
    try:
        done = subprocess.run(
            [stack.install, "image", "save", "--output", str(into), stack.image],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=deadline_s,
            check=False,
        )
    except FileNotFoundError:
        raise InputError(
            "does not exist", where=stack.install, fix="save the image on the machine where it was built"
        ) from None
    except subprocess.TimeoutExpired:
        raise Unreachable(
            f"did not end within {deadline_s:.0f} s", where=stack.install, fix="try again with a longer --timeout"
        ) from None
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["gave no reason"])[-1]
        raise InputError(said, where=f"{stack.install} image save", fix="build or load the image here first")
