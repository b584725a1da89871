"""Packs of tuned configs on the controller's disk, a directory or a tar with the same parts: made of published configs
by commit and digest (`tuning fetch`) or of what a node has (`pull`), put onto all nodes and taken off them (`push`)."""

from __future__ import annotations

import hashlib
import io
import lzma
import os
import re
import shutil
import tarfile
import time
import urllib.parse
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import IO, Any

from orchestrator.engines.engine import Lookup
from orchestrator.engines.registry import dialects, engine_of
from orchestrator.engines.tuned_wanted import device_name, triton_folder
from orchestrator.loading import resources, yaml_fields
from orchestrator.loading.profiles import load_profile, load_stack, stack_names
from orchestrator.loading.yaml_fields import Section
from orchestrator.model.chosen import chosen_gangs, chosen_nodes
from orchestrator.model.deadlines import TUNE_S
from orchestrator.model.inventory import Inventory, NodeSpec
from orchestrator.model.per_node import PerNode
from orchestrator.model.profile import Stack
from orchestrator.planning.host import venv
from orchestrator.planning.steps.look import look
from orchestrator.planning.steps.plan import PlanRequest
from orchestrator.protocol.errors import InputError, Unreachable, VerificationDiffers
from orchestrator.protocol.jobs import TuneAnswer, TuneRequest
from orchestrator.protocol.message import schema
from orchestrator.records.documents import cant_be_written
from orchestrator.remote.deadline import downloaded
from orchestrator.remote.fleet import Fleet
from orchestrator.remote.node_app import ask
from orchestrator.remote.session import Session
from orchestrator.tuning.pack import (
    DERIVED,
    INTERPRETED,
    LARGEST_PART,
    MANIFEST,
    MOST_PARTS,
    PUBLISHED,
    Derived,
    Pack,
    Published,
    devices,
    manifest,
    pack_of,
    part_name,
    parts_of,
    read_pack,
)
from orchestrator.tuning.steps.tuning import ASSUMED_GPU, Kit, ask_holdings, gpu_of, kit_of, moe_directory

_TARS = (".tar", ".tar.gz", ".tgz")


def load_pack(path: Path) -> Pack:
    """A pack, proved and judged. Raises InputError with the reason where it can't be used."""
    try:
        return _judged(_parts(path))
    except OSError as error:
        what, fix = f"can't be read: {error.strerror or error}", "create a pack"
    except (ValueError, EOFError, tarfile.TarError, zlib.error, lzma.LZMAError) as wrong:
        what, fix = f"the pack is not valid: {wrong}", "nothing was written. Create the pack again"
    raise InputError(what, where=str(path), fix=f"{fix} with `tuning pull`")


def save_pack(path: Path, pack: Pack) -> None:
    """Write a pack; it appears complete or not at all. Raises InputError for a path that exists or can't be written,
    and for a pack that could not be read again."""
    parts = {MANIFEST: manifest(pack), **pack.texts}
    draft = path.with_name(f".{path.name}.{os.getpid()}.new")
    if path.exists() or path.is_symlink():
        raise InputError("already exists", where=str(path), fix="choose another path, or remove it")
    try:
        _judged(parts)
        if path.name.endswith(_TARS):
            _write_tar(draft, parts, packed=not path.name.endswith(".tar"))
        else:
            _write_folder(draft, parts)
        draft.rename(path)
    except ValueError as wrong:
        raise InputError(f"the pack would not be valid: {wrong}", where=str(path), fix="nothing was written") from None
    except OSError as error:
        raise cant_be_written(path, error, "choose a path with free space") from None
    finally:
        if draft.is_dir():
            shutil.rmtree(draft, ignore_errors=True)
        else:
            draft.unlink(missing_ok=True)


def _judged(parts: Mapping[str, str]) -> Pack:
    return read_pack(
        parts, {name: dialect.engine(dialect.versions[-1]).tuned.by_triton for name, dialect in dialects().items()}
    )


def _parts(path: Path) -> dict[str, str]:
    parts: dict[str, str] = {}
    for part, content in _of_folder(path) if path.is_dir() else _of_tar(path):
        if content is None:
            raise ValueError(f"{part!r} is not a regular file")
        with content:
            data = content.read(LARGEST_PART + 1)
        if len(parts) == MOST_PARTS or len(data) > LARGEST_PART:
            raise ValueError(f"it has more than {MOST_PARTS} parts, or {part} has more than {LARGEST_PART} bytes")
        parts[part] = data.decode("utf-8")
    return parts


def _of_folder(path: Path) -> Iterator[tuple[str, IO[bytes] | None]]:
    for file in sorted(file for file in path.rglob("*") if not file.is_dir()):
        is_plain = file.is_file() and not file.is_symlink()
        yield str(file.relative_to(path)), file.open("rb") if is_plain else None


def _of_tar(path: Path) -> Iterator[tuple[str, IO[bytes] | None]]:
    with tarfile.open(path, "r:*") as tar:
        for entry in tar:
            if not entry.isdir():
                yield entry.name.removeprefix("./"), tar.extractfile(entry) if entry.isreg() else None


def _write_folder(folder: Path, parts: Mapping[str, str]) -> None:
    for part, text in parts.items():
        file = folder / part
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode("utf-8"))


def _write_tar(path: Path, parts: Mapping[str, str], *, packed: bool) -> None:
    with tarfile.open(path, "w:gz" if packed else "w", format=tarfile.GNU_FORMAT) as tar:
        for part, text in parts.items():
            content = text.encode("utf-8")
            entry = tarfile.TarInfo(part)
            entry.size, entry.mode = len(content), 0o644
            tar.addfile(entry, io.BytesIO(content))


_AT_ONCE = 8


def fetch(
    name: str, out: Path, *, stack_name: str, gpu: str, checkout: Path | None = None, timeout_s: float = 3600.0
) -> tuple[Published, Pack]:
    """Make a pack of what was published for a stack and GPU. Nothing is written before every file is proved.

    gpu: as NVML names it; checkout: a clone of the publisher's repository, None to download
    Raises InputError where there is nothing for it, Unreachable for a file that can't be had, VerificationDiffers for
    one with another digest.
    """
    published, stack = load_published(name), load_stack(stack_name)
    lookup = engine_of(stack).tuned
    if not (wanted := parts_of(published, lookup, device_name(gpu))):
        raise InputError(
            f"{published.name} has no config for {gpu}",
            where="--gpu",
            fix="GPUs that it has some for: " + ", ".join(device.replace("_", " ") for device in devices(published)),
        )
    texts = _texts(published, dict(wanted.values()), checkout, time.monotonic() + timeout_s)
    pack = Pack(
        dialect=stack.dialect,
        engine_version=stack.engine_version,
        device=device_name(gpu),
        triton=published.triton,
        texts={part: texts[path] for part, (path, _) in sorted(wanted.items())},
        made=DERIVED if lookup.by_triton else PUBLISHED,
        origin=published.origin,
    )
    save_pack(out, pack)
    return published, pack


def fetched_json(published: Published, pack: Pack, out: Path) -> dict[str, Any]:
    """The document of `tuning fetch --json`."""
    return {
        "pack": str(out),
        "made": pack.made,
        "origin": pack.origin,
        "licence": published.licence,
        "commit": published.commit,
        **pack.about,
        "note": published.note,
        "files": sorted(pack.texts),
    }


def _texts(published: Published, digests: Mapping[str, str], checkout: Path | None, deadline: float) -> dict[str, str]:
    """By path, each proved."""

    def text_of(path: str) -> str:
        inside = f"{published.folder}/{path}"
        address = published.address.format(commit=published.commit, file=urllib.parse.quote(inside))
        place = str(checkout / inside) if checkout else address
        try:
            if checkout:
                with Path(place).open("rb") as file:
                    content = file.read(LARGEST_PART + 1)
            else:
                content = downloaded(place, LARGEST_PART + 1, deadline - time.monotonic())
        except OSError as error:
            if checkout:
                fix = "name a checkout of that commit with --checkout DIR"
                raise InputError(f"can't be read: {error.strerror or error}", where=place, fix=fix) from None
            fix = "clone the repository on a machine with access, check out the commit, and use --checkout DIR"
            what = f"can't be downloaded: {getattr(error, 'reason', error)}"
            raise Unreachable(what, where=place, fix=fix) from None
        if (actual := hashlib.sha256(content).hexdigest()) != digests[path]:
            what, fix = f"its SHA-256 is {actual}, wanted {digests[path]}", f"Use the file of commit {published.commit}"
            raise VerificationDiffers(what, where=place, fix=f"nothing was written. {fix}")
        return content.decode("utf-8")

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return dict(zip(digests, pool.map(text_of, digests), strict=True))


def load_published(name: str) -> Published:
    """The set with this name (or in this .yml file). InputError has the nearest names."""
    top = yaml_fields.read(yaml_fields.choose("set of published configs", name, resources.folders("tuned")))
    address = top.text("address")
    if not address.startswith("https://") or "{file}" not in address:
        raise top.wrong("address", f"found {address!r:.60}, wanted https://... with {{file}} in it")
    files = top.section("files")
    return top.into(
        Published,
        commit=_hexadecimal(top, "commit", 40),
        address=address,
        folder=top.text("folder").strip("/"),
        files={_path(files, path): _hexadecimal(files, path, 64) for path in files.names()},
        derived={
            name: section.into(
                Derived, source=_path(section, section.text("from")), sha256=_hexadecimal(section, "sha256", 64)
            )
            for name, section in top.sections("derived")
        },
    )


def _path(section: Section, path: str) -> str:
    if path.startswith("/") or ".." in path.split("/") or not path.endswith(".json"):
        raise section.wrong("", f"found {path!r:.80}, wanted a relative path of a .json file")
    return path


def _hexadecimal(section: Section, key: str, digits: int) -> str:
    text = section.text(key)
    if re.fullmatch(rf"[0-9a-f]{{{digits}}}", text) is None:
        raise section.wrong(key, f"found {text!r:.60}, wanted {digits} hexadecimal digits")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningPullResult:
    """left: (part, why) of files that are unusable and were left out"""

    node: str
    pack: Pack
    left: tuple[tuple[str, str], ...]


@schema(frozen=True, slots=True, kw_only=True)
class TuningPushResult(TuneAnswer):
    """What was done on one node. remarks: what an operator should know"""

    remarks: tuple[str, ...] = ()


def _looked_for(kit: Kit, spec: NodeSpec, rules: Lookup, own: str) -> set[str]:
    """Names in a pack of the configs that a node's engine looks for. own: its directory of them, '' for none"""
    if kit.refusal:
        raise kit.refusal
    return {part_name(row.folder, row.name, rules, own) for row in kit.rows[spec.name] if row.name}


def pull(
    inventory: Inventory, out: Path, *, node: str | None = None, model: str | None = None, stack_name: str | None = None
) -> TuningPullResult:
    """Make a pack of what one node has. Raises InputError if there is nothing, Unreachable and NodeError as usual.

    node: None for the first one; model: only what it looks for, None for all of the GPU's
    """
    spec = next(iter(chosen_nodes(inventory.nodes, [node] if node else [], "--from").values()))
    stack = _stack(inventory, [spec], stack_name)
    with Fleet([spec]) as fleet:
        gpu = gpu_of(look(fleet, [spec]).all()[spec.name]) or ASSUMED_GPU
        holdings = ask_holdings(fleet, [spec.name], stack, {spec.name: gpu})
    held = holdings.all()[spec.name]
    if not held.root:
        raise InputError(
            f"no engine is installed in {venv(spec, stack.name)}",
            where=spec.name,
            fix="choose the installed stack with --stack, another node with --from, or run `l40s-deploy prepare`",
        )
    rules, own = engine_of(stack).tuned, moe_directory(spec, stack)
    pack, left = pack_of(held, rules, dialect=stack.dialect, device=device_name(gpu), moe_directory=own)
    if model:
        (gang,) = chosen_gangs(inventory, (spec.gang,))
        kit = kit_of(gang, stack, load_profile(model), PlanRequest(model=model), {spec.name: gpu}, holdings)
        taken = _looked_for(kit, spec, rules, own)
        pack = replace(pack, texts={part: text for part, text in pack.texts.items() if part in taken})
        left = tuple((part, flaw) for part, flaw in left if part in taken)
    if not pack.texts:
        raise InputError(
            f"it has no usable config for {gpu}" + (f" that {model} looks for" if model else ""),
            where=f"{spec.name}: {held.root}",
            fix="`tuning status --model` shows which files are needed, and where",
        )
    save_pack(out, pack)
    return TuningPullResult(node=spec.name, pack=pack, left=tuple((part, flaw.text) for part, flaw in left))


def push(
    inventory: Inventory,
    file: Path | None,
    *,
    stack_name: str | None = None,
    gangs: tuple[str, ...] = (),
    check: bool = False,
) -> PerNode[TuningPushResult]:
    """Install a pack on every node, or remove it. Nothing is written before every node has agreed to accept it.

    file: the pack; None undoes what was installed; check: report what would be done
    Raises InputError for a pack that can't be used, and the first failure of a node that can't accept it.
    """
    specs = {node.name: node for gang in chosen_gangs(inventory, gangs) for node in gang.machines}
    pack = load_pack(file) if file else None
    stack = _stack(inventory, specs.values(), stack_name, pack)
    if pack and stack.dialect != pack.dialect:
        raise InputError(
            f"the pack is for {pack.dialect}, but the stack {stack.name} is {stack.dialect}",
            where=str(file),
            fix="choose the matching stack with --stack, or another pack",
        )
    if pack and pack.made == INTERPRETED and stack.device == "cuda":
        raise InputError(
            "this pack was made without a GPU, by Triton's interpreter: its times say nothing",
            where=str(file),
            fix="make one on the nodes' GPUs with `tuning run`",
        )
    with Fleet(specs.values()) as fleet:
        if pack:
            _refuse_other_gpus(fleet, specs, pack, str(file))
        would = fleet.on_every(lambda session: _put(session, stack, pack, check=True))
        would.all()
        return would if check else fleet.on_every(lambda session: _put(session, stack, pack, check=False))


def _put(session: Session, stack: Stack, pack: Pack | None, *, check: bool) -> TuningPushResult:
    spec = session.spec
    request = TuneRequest(venv=venv(spec, stack.name), check=check, remove=pack is None)
    if pack:
        files = pack.places(engine_of(stack).tuned, moe_directory(spec, stack))
        request = replace(request, files=files, engine_version=pack.engine_version)
    answer = ask(session, "tune", request, TuneAnswer, deadline_s=TUNE_S)
    triton = answer.triton
    others = [folder for folder in pack.tritons() if triton and folder != triton_folder(triton)] if pack else []
    remark = (
        f"runs Triton {triton} and uses MoE configs for {', '.join(others)} only as a fallback, which may be slower"
    )
    done = {each.name: getattr(answer, each.name) for each in fields(answer)}
    return TuningPushResult(**done, remarks=(remark,) if others else ())


def _refuse_other_gpus(fleet: Fleet, specs: Mapping[str, NodeSpec], pack: Pack, where: str) -> None:
    """A config under another GPU's name is never looked for; one under this name that is another's can't run."""
    for name, snapshot in look(fleet, specs.values()).all().items():
        gpu = gpu_of(snapshot)
        if gpu and device_name(gpu) != pack.device:
            raise InputError(
                f"the pack is for {pack.device}, but {name} has {gpu}: its engine would never load these files",
                where=where,
                fix="tune on that GPU model, or choose other gangs with --gang",
            )


def _stack(inventory: Inventory, specs: Iterable[NodeSpec], asked: str | None, pack: Pack | None = None) -> Stack:
    """The one that was asked for, else the nodes' own, else the shipped one for GPUs that the pack was made for.

    Raises InputError where the inventory names several, or nobody names one.
    """
    if asked:
        return load_stack(asked)
    if len(named := {node.stack for node in specs if node.stack}) > 1:
        raise InputError(
            "the nodes use different stacks: " + ", ".join(sorted(named)),
            where=f"{inventory.path}: l40s_stack",
            fix="choose one with --gang or --stack",
        )
    if named:
        return load_stack(named.pop())
    for stack in map(load_stack, stack_names() if pack else ()):
        if (
            pack
            and stack.device == "cuda"
            and (stack.dialect, stack.engine_version) == (pack.dialect, pack.engine_version)
        ):
            return stack
    raise InputError(
        "no stack was given, and the inventory has no l40s_stack", where="command line", fix="--stack NAME"
    )


def pulled_json(pulled: TuningPullResult, out: Path) -> dict[str, Any]:
    """The document of `tuning pull --json`."""
    return {
        "pack": str(out),
        "node": pulled.node,
        **pulled.pack.about,
        "files": sorted(pulled.pack.texts),
        "left": [{"file": part, "why": why} for part, why in pulled.left],
    }


def push_json(done: PerNode[TuningPushResult], names: Sequence[str]) -> dict[str, Any]:
    """The document of `tuning push --json`."""
    nodes = []
    for name in names:
        if put := done.values.get(name):
            document = put.as_json()
            document.pop("triton")
            nodes.append({"name": name, **document, "error": None})
        elif failure := done.failures.get(name):
            nodes.append({"name": name, "error": failure.as_json()})
    return {"nodes": nodes}
