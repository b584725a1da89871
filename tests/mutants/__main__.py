"""`python -m tests.mutants [--count N] [--seed S]`: small faults put into the code, one at a time; which of them do the
unit tests notice?

A mutant is one of cosmic-ray's operators at one place, drawn by its seed: a layer, one of its files by length, one of
the file's places. It is judged by the tests that mirror its file, then by all unit tests of its package. The code is
changed in a clone, never here. What survives is written to mutants.md, to be looked at: some mutants mean the same.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

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
    nodes = list(ast_nodes(get_ast(file.read_text("utf-8"))))
    places = [
        (name, number, start[0])
        for name in OPERATORS
        for number, (start, _) in enumerate(
            place for node in nodes for place in get_operator(f"core/{name}")().mutation_positions(node)
        )
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
    args = parser.parse_args(words)
    total, found = Counter[str](), Counter[str]()
    left: list[Mutant] = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        clone = Path(folder, "clone")
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        assert not _fails([clone / "tests/unit/protocol"], clone), "the tests fail without a mutant"
        for mutant in drawn(args.count, args.seed):
            layer = next(layer for layer in LAYERS if f"/{layer}/" in mutant.file)
            total[layer] += 1
            if noticed(mutant, clone):
                found[layer] += 1
            else:
                left.append(mutant)
            print(f"{total.total()} {mutant}: {'survives' if mutant in left else 'noticed'}", flush=True)
    (Path(__file__).parent / "mutants.md").write_text(page(args, total, found, left), "utf-8")
    return 0


def page(args: argparse.Namespace, total: Counter[str], found: Counter[str], left: list[Mutant]) -> str:
    """What was drawn, noticed and not."""
    rows = [f"| {layer} | {total[layer]} | {found[layer]} |" for layer in LAYERS]
    head = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True).strip()
    told = f"`make mutants` at {head}: {total.total()} of seed {args.seed}, {found.total()} noticed by unit tests."
    lines = [
        *("# Mutants", "", told),
        *("", "| layer | mutants | noticed |", "|---|---|---|", *rows, "", "## Not noticed", ""),
        *(f"- {mutant}" for mutant in left),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
