"""Sweeps on this machine: one file for each gang, model, stack and load, $XDG_STATE_HOME/l40s-deploy/sweep/ID.json."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from orchestrator.model.inventory import GangSpec
from orchestrator.model.measured import FORMAT, SweepRecord
from orchestrator.records.documents import named_file, read_document, state_folder, write_document
from orchestrator.records.nettests import addresses_of

FOLDER = "sweep"


def sweep_file(record: SweepRecord) -> Path:
    """Where it is kept, whether or not it exists."""
    load = record.load
    asked = (*map(str, load.requests), f"in {load.input}", f"out {load.output}", load.dataset)
    return named_file(FOLDER, "\0".join((record.gang, *record.addresses, record.model, record.stack, *asked)))


def keep_sweep(record: SweepRecord) -> Path:
    """Replace it as a whole. Raises InputError where it can't be written."""
    file = sweep_file(record)
    write_document(file, record.as_json())
    return file


def kept_sweep(like: SweepRecord) -> SweepRecord | None:
    """The kept sweep of the same gang, model, stack and load; None where there is none, or it can't be read."""
    return read_document(sweep_file(like), _made)


def sweep_that_started(plan_id: str, beside: SweepRecord) -> SweepRecord | None:
    """Another kept sweep of this one's gang, on the same nodes, that has started this plan as a candidate; None where
    there is none."""
    mine = (record for record in _all() if (record.gang, record.addresses) == (beside.gang, beside.addresses))
    others = (record for record in mine if sweep_file(record) != sweep_file(beside))
    return next((record for record in others if plan_id in record.started), None)


def sweeps_of(gang: GangSpec, model: str) -> tuple[SweepRecord, ...]:
    """Every sweep on these very nodes, as SSH reaches them, that this model has a part in: newest first."""
    addresses = tuple(addresses_of(gang.nodes))
    mine = (
        record
        for record in _all()
        if (record.gang, record.addresses) == (gang.name, addresses) and _concerns(record, model)
    )
    return tuple(sorted(mine, key=lambda record: -record.at))


def _concerns(record: SweepRecord, model: str) -> bool:
    return record.model == model or any(result.candidate.model == model for result in record.results)


def _all() -> Iterator[SweepRecord]:
    for file in state_folder(FOLDER).glob("*.json"):
        if (record := read_document(file, _made)) is not None:
            yield record


def _made(document: object) -> SweepRecord | None:
    record = SweepRecord.read(document)
    return record if isinstance(record, SweepRecord) and record.format == FORMAT else None
