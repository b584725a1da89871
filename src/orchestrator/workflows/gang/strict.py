"""`up --strict`: a gang whose traffic does not travel as planned, and which is slower for it, is no success."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.gang.view import GangView
from orchestrator.model.errors import FindingsError
from orchestrator.model.inventory import Inventory
from orchestrator.workflows.gang.down import DownRequest, down
from orchestrator.workflows.look.doctor import forbidding


def refuse_transport(inventory: Inventory, views: Sequence[GangView], *, command: str) -> None:
    """Stop every gang with such a finding and raise FindingsError with the first; quiet where there is none."""
    wrong = {view.name: refused for view in views if (refused := refusal(view))}
    if not wrong:
        return
    down(inventory, DownRequest(gangs=tuple(wrong), now=True, command=command))
    raise next(iter(wrong.values()))


def refusal(view: GangView) -> FindingsError | None:
    """The first finding of such a gang that --strict forbids, in words that say that it was stopped; None for none."""
    first = next(iter(forbidding(view.transport, strict=True)), None)
    if first is None:
        return None
    return FindingsError(
        f"{first.id}: {first.title}. {first.effect}; the gang was stopped because of --strict",
        where=f"gang {view.name}: {first.node}",
        fix=first.fix,
    )
