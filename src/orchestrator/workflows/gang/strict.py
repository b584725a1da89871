"""`up --strict`: a gang whose traffic does not travel as planned is no success."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.gang.view import GangView
from orchestrator.model.errors import FindingsError
from orchestrator.model.inventory import Inventory
from orchestrator.workflows.gang.down import DownRequest, down


def refuse_transport(inventory: Inventory, views: Sequence[GangView], *, command: str) -> None:
    """Stop every gang with such a finding and raise FindingsError with the first; quiet where there is none."""
    wrong = [view for view in views if view.transport]
    if not wrong:
        return
    down(inventory, DownRequest(gangs=tuple(view.name for view in wrong), now=True, command=command))
    raise refusal(wrong[0])


def refusal(view: GangView) -> FindingsError:
    """The first finding of such a gang, in words that say that it was stopped."""
    first = view.transport[0]
    return FindingsError(
        f"{first.id}: {first.title}. {first.effect}; the gang was stopped because of --strict",
        where=f"gang {view.name}: {first.node}",
        fix=first.fix,
    )
