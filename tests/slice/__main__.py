"""`python -m tests.slice [--nodes N] [--gpus G] [--parts A,B] [--seconds S] [--queue|--wait S|--rehearse|--page]`.

A DeepSeek-V3 of full depth on a few GPUs, each rank with the shapes of one of 32. Needs root, as many NVIDIA GPUs as
N x G, 170 GB of disk and as much RAM, and the engine of tests/gpu/kit (CONTRIBUTING.md). Parts that FILE has already
are left out, so that several calls, or several machines, make one page; --parts plays the named ones again.
--queue goes on after this command has ended; --wait shows it, and brings FILE, its log and the engines' logs back.
--rehearse plays it with the lab's stand-in, without a GPU and without a page.
Skips, loudly and with exit code 0, where there are too few GPUs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.gpu.__main__ import CLOSING_S, machine, play, unplayable
from tests.gpu.figures import Figures
from tests.gpu.stage import HOME, MODELS, Stage
from tests.gpu.steps import Step
from tests.slice import model, page, queue
from tests.slice.lab import SliceLab
from tests.slice.parts import parts
from tests.slice.watching import Cards
from tests.support import proven

FIGURES = Path(__file__).with_name("figures.json")
QUEUE = Path("/tmp/slice-queue")


def main(words: list[str]) -> int:
    args = _arguments(words)
    if args.wait is not None:
        code = queue.wait(QUEUE, args.wait, args.bring, args.figures, args.kept)
        print("it still runs" if code is None else f"it has ended with {code}", flush=True)
        return code or 0
    if args.queue:
        queue.begin([word for word in words if word != "--queue"], QUEUE)
        return 0
    figures = Figures.of(args.figures)
    if args.page:
        return _page(figures)
    cards = Cards()
    ranks = args.nodes * args.gpus
    if why_not := unplayable(cards, least=ranks, rehearse=args.rehearse):
        print(f"SKIPPED: the slice was not played: {why_not}", file=sys.stderr)
        return 0
    if not args.rehearse:
        MODELS.mkdir(parents=True, exist_ok=True)
        HOME.mkdir(parents=True, exist_ok=True)
        figures.machine = {**figures.machine, **machine(cards)}
        figures.write()
    play(_chosen(args, figures), _stage(args, cards, ranks), figures)
    if not args.rehearse:
        _page(figures)
    return 1 if figures.wrong() else 0


def _stage(args: argparse.Namespace, cards: Cards, ranks: int) -> Stage:
    real, root = not args.rehearse, Path(tempfile.mkdtemp(prefix="slice-")) / "labs"
    lab = SliceLab("slice", real=real, deaths="plain" if real else "cuda", root=root, cut=ranks, layers=args.layers)
    return Stage(lab, cards, ranks, time.monotonic() + args.seconds - CLOSING_S, _say, args.kept)


def _say(line: str) -> None:
    print(line, flush=True)


def _page(figures: Figures) -> int:
    page.PAGE.write_text(page.written(figures), "utf-8")
    for claim, row in page.rows(figures).items():
        proven.record(claim, row.figures, date=row.date)
    print(f"wrote {page.PAGE}")
    return 0


def _arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.slice", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=4, help="of the parts on several nodes")
    parser.add_argument("--gpus", type=int, default=1, help="of each of these nodes")
    parser.add_argument("--layers", type=int, default=model.LAYERS, help="fewer where they do not fit")
    parser.add_argument("--parts", default="", help="comma-separated; all that FILE does not have")
    parser.add_argument("--seconds", type=float, default=3600.0, help="begin nothing that may take longer")
    parser.add_argument("--figures", type=Path, default=FIGURES, metavar="FILE")
    parser.add_argument("--kept", type=Path, default=Path("/tmp/slice-kept"), help="the engines' logs")
    parser.add_argument("--queue", action="store_true", help="in a session of its own, after this command has ended")
    parser.add_argument("--wait", type=float, metavar="S", help="for the queue, so many seconds")
    parser.add_argument("--bring", type=Path, default=Path("/tmp/slice-brought"), help="folder for --wait")
    parser.add_argument("--rehearse", action="store_true", help="with the stand-in")
    parser.add_argument("--page", action="store_true", help="write tests/slice/measured.md and end")
    return parser.parse_args(words)


def _chosen(args: argparse.Namespace, figures: Figures) -> list[Step]:
    every = parts(args.nodes, args.gpus)
    names = [name.strip() for name in args.parts.split(",") if name.strip()]
    titles = {_plain(part.name): part for part in every}
    if unknown := {_plain(name) for name in names} - titles.keys():
        sys.exit(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(sorted(titles))}")
    wanted = [titles[_plain(name)] for name in names]
    if not names:
        missing = set(figures.missing(part.name for part in every))
        wanted = [part for part in every if part.name in missing]
    return [part for part in wanted if not (args.rehearse and part.alone)]


def _plain(name: str) -> str:
    """A part's name without commas and spaces, as --parts has it: one-node-graphs-to-32."""
    return name.replace(",", "").replace(" ", "-")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
