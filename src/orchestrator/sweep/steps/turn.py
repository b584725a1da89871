"""A sweep's turn behind the router: for as long as a gang is measured, no other command takes another one out, and none
adds a candidate to the router."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from orchestrator.gang.steps.operation import connected
from orchestrator.gang.steps.raising import Watcher
from orchestrator.gang.steps.router.claim import RouterTurn
from orchestrator.model.inventory import Inventory


@contextmanager
def sweep_turn(inventory: Inventory, gang: str, command: str, patience_s: float) -> Iterator[SweepTurn]:
    """What its `wait` or `announce` took is held until the end. patience_s: how long `wait` waits."""
    with ExitStack() as opened:
        yield SweepTurn(inventory, gang, command, patience_s, opened)


@dataclass
class SweepTurn:
    """Of one sweep of this gang. _opened: gives back what it has taken"""

    inventory: Inventory
    gang: str
    command: str
    patience_s: float
    _opened: ExitStack
    _turn: RouterTurn | None = None

    @property
    def token(self) -> str:
        """By which the claim is known as this sweep's; '' without it."""
        return self._turn.token if self._turn is not None else ""

    def wait(self, watcher: Watcher) -> None:
        """Before the gang is taken out. Raises as `RouterTurn.wait` does."""
        turn = self._opened_for(watcher)
        turn.wait()
        turn.operation.fleet.let_go()  # a sweep takes hours, and asks over connections of its own

    def announce(self, watcher: Watcher) -> None:
        """Of a gang that does not serve: have the claim if it is free."""
        self._opened_for(watcher).announce()

    def _opened_for(self, watcher: Watcher) -> RouterTurn:
        if self._turn is None:
            turn = RouterTurn(
                operation=self._opened.enter_context(connected(self.inventory)),
                gangs=(self.gang,),
                command=self.command,
                watcher=watcher,
                patience_s=self.patience_s,
            )
            self._turn = self._opened.enter_context(turn)
        return self._turn
