"""A picture that is drawn again and again on a terminal; nothing where there is none, or under --json."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from orchestrator.cli.screen import Screen, printable

if TYPE_CHECKING:  # rich costs 60 ms to import
    from rich.live import Live
    from typing_extensions import Self


class LivePicture:
    """A context in which `_live` takes renderables, or is None and lines have to do.

    The picture is erased when the context ends: a result is printed after it, never inside.
    """

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self._screen.draws:
            from rich.live import Live

            self._live = Live(console=self._screen.err, transient=True, refresh_per_second=8)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, words: str) -> None:
        """A line of talk, above the picture where there is one."""
        if self._live is not None:
            self._screen.err.print(printable(words))
        else:
            self._screen.say(words)
