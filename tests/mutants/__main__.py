"""`python -m tests.mutants [--count N] [--seed S] [--jobs N] [--results FILE]`: small faults put into the code, one by
one; which of them do the unit tests notice?

A mutant is one of cosmic-ray's operators at one place, drawn by its seed: a layer, one of its files by length, one of
the file's places. It is judged by the tests that mirror its file, then by all unit tests of its package. The code is
changed in clones, one a job, never here. With FILE a run goes on where another one ended, also on another machine.
What survives is written to mutants.md, to be looked at: some mutants mean the same.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator

ROOT = Path(__file__).parents[2]
LAYERS = ("gang", "node/agent", "planning", "doctor/rules", "protocol")
LIMIT_S = 1800.0
"""Each test has a limit of its own (pyproject.toml); this one is for a run of them that hangs as a whole."""
_PAIRS = ("Eq_NotEq", "NotEq_Eq", "Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt", "Is_IsNot", "IsNot_Is")
OPERATORS = (
    *(f"ReplaceComparisonOperator_{pair}" for pair in _PAIRS),
    *("ReplaceBinaryOperator_Add_Sub", "ReplaceBinaryOperator_Sub_Add", "ReplaceBinaryOperator_Mul_Div"),
    *("ReplaceAndWithOr", "ReplaceOrWithAnd", "AddNot", "NumberReplacer", "ReplaceTrueWithFalse"),
    *("ReplaceFalseWithTrue", "ExceptionReplacer", "ZeroIterationForLoop", "ReplaceContinueWithBreak"),
)
"""Of cosmic-ray; those of `|` are left out, which stands in annotations."""


@dataclass(frozen=True)
class Mutant:
    """An operator at its number-th place in a file."""

    file: str
    operator: str
    number: int
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.operator} {self.number}"


def drawn(count: int, seed: int) -> Iterator[Mutant]:
    """As many of each layer, no place twice."""
    chance, seen = random.Random(seed), set[Mutant]()
    files = {layer: sorted((ROOT / "src/orchestrator" / layer).rglob("*.py")) for layer in LAYERS}
    while len(seen) < count:
        of_layer = files[LAYERS[len(seen) % len(LAYERS)]]
        file = chance.choices(of_layer, [path.stat().st_size for path in of_layer])[0]
        if mutant := _one(file, chance):
            if mutant not in seen:
                yield mutant
            seen.add(mutant)


def _one(file: Path, chance: random.Random) -> Mutant | None:
    text = file.read_text("utf-8")
    nodes, lines = list(ast_nodes(get_ast(text))), text.splitlines()
    places = [
        (name, number, start[0])
        for name in OPERATORS
        for number, (start, _) in enumerate(
            place for node in nodes for place in get_operator(f"core/{name}")().mutation_positions(node)
        )
        if not lines[start[0] - 1].startswith("@")  # a dataclass that could be changed behaves the same
    ]
    if not places:
        return None
    name, number, line = chance.choice(places)
    return Mutant(str(file.relative_to(ROOT)), name, number, line)


def noticed(mutant: Mutant, clone: Path) -> bool:
    """Whether a test fails by it."""
    file = clone / mutant.file
    before = file.read_text("utf-8")
    changed = mutate_code(before, get_operator(f"core/{mutant.operator}")(), mutant.number)
    assert changed and changed != before, mutant
    file.write_text(changed, "utf-8")
    try:
        return any(_fails(tests, clone) for tests in _tests(mutant, clone))
    finally:
        file.write_text(before, "utf-8")


def _tests(mutant: Mutant, clone: Path) -> Iterator[list[Path]]:
    """First the nearest."""
    inside = Path(mutant.file).relative_to("src/orchestrator")
    near = clone / "tests/unit" / inside.parent
    own = sorted(near.glob(f"test_{inside.stem}*.py"))
    if own:
        yield own
    yield [clone / "tests/unit" / inside.parts[0]]


def _fails(tests: list[Path], clone: Path) -> bool:
    words = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", *map(str, tests)]
    environment = {**os.environ, "PYTHONPATH": f"{clone}/src:{clone}/lab/src", "PYTHONDONTWRITEBYTECODE": "1"}
    with suppress(subprocess.TimeoutExpired):
        done = subprocess.run(words, cwd=clone, env=environment, capture_output=True, timeout=LIMIT_S, check=False)
        return done.returncode != 0
    return True


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="judged at once, each in a clone of its own")
    parser.add_argument("--results", type=Path, help="a line for each judged mutant; those in it are not judged again")
    args = parser.parse_args(words)
    judged = _read(args.results)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(args.jobs) as pool:
        clones = Queue[Path]()
        for job in range(args.jobs):
            clones.put(clone := Path(folder, str(job)))
            subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        assert not _fails([clone / "tests/unit/protocol"], clone), "the tests fail without a mutant"
        waiting = {
            pool.submit(_in_a_clone, mutant, clones): mutant
            for mutant in drawn(args.count, args.seed)
            if str(mutant) not in judged
        }
        for done in as_completed(waiting):
            judged[str(waiting[done])] = done.result()
            print(f"{len(judged)} {waiting[done]}: {'noticed' if done.result() else 'survives'}", flush=True)
            _write(args.results, judged)
    (Path(__file__).parent / "mutants.md").write_text(page(args, judged), "utf-8")
    return 0


def _in_a_clone(mutant: Mutant, clones: Queue[Path]) -> bool:
    clone = clones.get()
    try:
        return noticed(mutant, clone)
    finally:
        clones.put(clone)


def _read(results: Path | None) -> dict[str, bool]:
    return json.loads(results.read_text("utf-8")) if results and results.exists() else {}


def _write(results: Path | None, judged: dict[str, bool]) -> None:
    if results:
        results.with_suffix(".new").write_text(json.dumps(judged, indent=0), "utf-8")
        results.with_suffix(".new").replace(results)


def page(args: argparse.Namespace, judged: dict[str, bool]) -> str:
    """What was drawn, noticed and not."""
    of_layer = {layer: [seen for name, seen in judged.items() if f"/{layer}/" in name] for layer in LAYERS}
    rows = [f"| {layer} | {len(seen)} | {sum(seen)} |" for layer, seen in of_layer.items()]
    head = subprocess.check_output(["git", "log", "-1", "--format=%h of %cs"], cwd=ROOT, text=True).strip()
    told = f"`make mutants` at {head}: {len(judged)} of seed {args.seed}, {sum(judged.values())} noticed by unit tests."
    lines = [
        *("# Mutants", "", told, "Files and lines are those of that commit."),
        *("", "| layer | mutants | noticed |", "|---|---|---|", *rows, "", "## Not noticed", ""),
        *(f"- {name}" for name, seen in judged.items() if not seen),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
