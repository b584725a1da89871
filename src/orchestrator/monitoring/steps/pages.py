"""What the page of `web` shows, as HTML. Reads only; each slow source is read again once it is old, aside."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from markupsafe import Markup

from orchestrator import __version__
from orchestrator.bench.steps.bench_report import bench_html, newest_curves
from orchestrator.bench.steps.bench_report import page_of as bench_of
from orchestrator.bench.store import all_benches
from orchestrator.doctor.steps.doctor_report import page_of as report_of
from orchestrator.doctor.steps.doctor_report import pictures, report_html
from orchestrator.gang.steps.examination import examine_inventory
from orchestrator.gang.steps.operation import Operation, connected
from orchestrator.gang.steps.status.history import history, why
from orchestrator.gang.steps.status.live import Watching, live_json
from orchestrator.loading.resources import templates
from orchestrator.model.inventory import Inventory
from orchestrator.monitoring.steps.last_hour import Sample, sample_of, with_sample
from orchestrator.monitoring.steps.live_page import KeptPast, LivePage, live_page
from orchestrator.protocol.errors import DeployError, InputError
from orchestrator.rendering import report_page
from orchestrator.topology.picture import Picture

T = TypeVar("T")
RECORDS_S = 10.0
DOCTOR_S = 600.0
"""How old what was kept of past runs, and of the hardware, may get before it is read again."""


class CachedValue:
    """A value that is read on a thread of its own, at most once in `every_s`; callers never wait for it."""

    def __init__(self, read: Callable[[], Any], every_s: float) -> None:
        self._read, self._every_s = read, every_s
        self._value: Any = None
        self._error = ""
        self._at = float("-inf")
        self._free = threading.Lock()

    def value(self) -> tuple[Any, str]:
        """The newest one, None before the first; and why reading failed, '' where it did not."""
        if time.monotonic() - self._at > self._every_s and self._free.acquire(blocking=False):
            try:
                threading.Thread(target=self._again, daemon=True).start()
            except RuntimeError as none:  # no thread to be had: the next request tries again
                self._error = str(none)
                self._free.release()
        return self._value, self._error

    def _again(self) -> None:
        try:
            self._value, self._error = self._read(), ""
        except DeployError as failure:
            self._error = f"{failure.where}: {failure.what}"
        finally:
            self._at = time.monotonic()
            self._free.release()


class Pages:
    """HTML of everything that is served."""

    def __init__(self, inventory: Inventory, gangs: tuple[str, ...], source: Watching) -> None:
        self._source = source
        self._style = templates("page.css", "node_drawing.css", "curves.css", "live.css", "dark.css")
        self._part = templates("node_drawing.html.j2", "curves.html.j2", "live_part.html.j2")
        self._hours: dict[str, tuple[Sample, ...]] = {}
        self._runs = CachedValue(lambda: _kept(history, inventory, gangs), RECORDS_S)
        self._why = CachedValue(lambda: _kept(why, inventory, gangs), RECORDS_S)
        self._inside = CachedValue(lambda: _inside(inventory), DOCTOR_S)
        self._bench = CachedValue(lambda: newest_curves(all_benches()), RECORDS_S)

    def remember(self) -> None:
        """Keep what is told now, for the curves of the last hour."""
        moment = self._source.look()
        for view in moment.seen.views:
            sample = sample_of(view, moment.gangs.get(view.name), moment.nodes, moment.taken_at)
            self._hours[view.name] = with_sample(self._hours.get(view.name, ()), sample)

    def page(self, nonce: str) -> str:
        """The page, with its first picture in it. nonce: what lets its one script run."""
        shown = {"version": __version__, "nonce": nonce, "part": Markup(self.part())}  # noqa: S704 - escaped there
        return report_page(shown, templates("live.html.j2"), self._style)

    def part(self) -> str:
        """What the page puts in the place of its picture: blocks with an id each, of which it takes what changed."""
        return report_page(self._now().names(), self._part, "")

    def document(self) -> dict[str, Any]:
        """As `status --watch --json`."""
        return live_json(self._source.look())

    def doctor(self) -> str:
        """The page of `doctor --report`; a placeholder while the nodes are examined."""
        inside, error = self._inside.value()
        if inside is None:
            return _soon("The nodes are being examined.", error)
        return report_html(inside[0])

    def bench(self) -> str:
        """The page of `bench --html`, of every run recorded on this machine. Raises InputError where there is none."""
        if not (records := all_benches()):
            raise InputError("no benchmark is recorded", where="bench", fix="measure one: l40s-deploy bench")
        return bench_html(bench_of(records))

    def _now(self) -> LivePage:
        (runs, _), (accounts, _), (bench, _) = (kept.value() for kept in (self._runs, self._why, self._bench))
        inside, error = self._inside.value()
        past = KeptPast(
            runs=tuple(run for kept in runs or () for run in kept.runs),
            verdicts={account.gang: account.verdict for account in accounts or () if account.verdict},
            bench=bench,
            hours=dict(self._hours),
        )
        return live_page(self._source.look(), past, inside[1] if inside else None, error)


def _kept(read: Callable[[Operation, tuple[str, ...]], T], inventory: Inventory, gangs: tuple[str, ...]) -> T:
    """What the nodes have kept of these gangs; one that does not answer is asked once."""
    with connected(inventory, asks_lost=False) as operation:
        return read(operation, gangs)


def _inside(inventory: Inventory) -> tuple[dict[str, Any], Mapping[str, Picture]]:
    """What an examination of the hardware gave: the page of `doctor --report`, and each node's drawing."""
    examination = examine_inventory(inventory)
    return report_of(examination), pictures(examination)


def _soon(words: str, error: str) -> str:
    page = (
        '<!DOCTYPE html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="3">'
        '<meta name="color-scheme" content="light dark">'
        "<title>doctor</title>"
        "<style>{{ style }}</style><main><p>{{ words }}</p><p>{{ error }}</p></main></html>"
    )
    return report_page({"words": words, "error": error}, page, templates("page.css", "dark.css"))
