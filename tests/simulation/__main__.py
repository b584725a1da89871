"""`make simulate`: every small case, and samples for a number of steps; writes tests/simulation/simulation.md.

`python -m tests.simulation --only-lives --lives 10000 --seed 7` plays lives of a service alone, from that seed on.
"""

from __future__ import annotations

import argparse
import itertools
import random
import secrets
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from tests.simulation import commanding, living
from tests.simulation.commanding import UNHEALED_S
from tests.simulation.explore import Explored, pairs, sampled, single
from tests.simulation.gang import EPSILON_S, FAULTS, LEASE_S
from tests.simulation.seeded import BUGS, Bug
from tests.support.turns import head_commit

PAGE = Path(__file__).with_name("simulation.md")
SLICES = 64
OF_A_SLICE = 50
"""Lives, of a minute on an idle machine."""


def main() -> int:
    """0 if nothing was violated, and every seeded bug was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3_000_000, help="of sampled scenarios")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 32))
    parser.add_argument("--lives", type=int, default=10_000, help="of a service with two gangs and a router")
    parser.add_argument("--only-lives", action="store_true", help="nothing else, and no page")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--share", type=int, default=1, help="play one in so many of the pairs")
    args = parser.parse_args()
    print(f"--seed {args.seed}", flush=True)
    if args.only_lives:
        with ProcessPoolExecutor(args.workers) as pool:
            return 1 if played(pool, args.seed, args.lives).violations else 0
    rows = []
    with ProcessPoolExecutor(args.workers) as pool:
        rows.append(("one fault, two and three nodes, all", together(pool.map(singles, (2, 3)))))
        slices = [(number, args.share) for number in range(SLICES)]
        title = "two faults, two nodes, all" if args.share == 1 else f"two faults, two nodes, one in {args.share}"
        rows.append((title, together(pool.map(some_pairs, slices))))
        seeds = [f"{args.seed}/{number}" for number in range(SLICES)]
        steps, fewer = [args.steps // SLICES] * SLICES, [args.steps // SLICES // 4] * SLICES
        rows.append(("up to three faults, two or three nodes, sampled", together(pool.map(sampled, seeds, steps))))
        rows.append(("two controllers, all commands and interruptions", together(pool.map(scenes, range(2)))))
        rows.append(("one command, every fault that nobody heals", together(pool.map(scenes, (2,)))))
        title = "one command, two faults of which one is not healed, sampled"
        rows.append((title, together(pool.map(halves, seeds, fewer))))
        rows.append(("two controllers, sampled with faults", together(pool.map(commanding.sampled, seeds, fewer))))
        rows.append(("two gangs, a router, two operators, sampled", played(pool, args.seed, args.lives)))
    found = {bug: finds(bug) for bug in BUGS}
    violations = [words for _, explored in rows for words in explored.violations]
    print(*violations, sep="\n")
    PAGE.write_text(
        page(rows, found, f"--seed {args.seed} --steps {args.steps} --share {args.share} --lives {args.lives}")
    )
    return 1 if violations or not all(found.values()) else 0


def played(pool: ProcessPoolExecutor, seed: int, lives: int) -> Explored:
    """So many lives, in slices whose seeds follow from this one; each slice is said as it ends, and what was violated
    with the life and the seed that bring it again."""
    slices = range(-(-lives // OF_A_SLICE))
    some = [min(OF_A_SLICE, lives - number * OF_A_SLICE) for number in slices]
    whole = Explored()
    for explored in pool.map(living.explore, [f"{seed}/{number}" for number in slices], some):
        whole = together((whole, explored))
        print(f"{whole.scenarios} of {lives} lives, {len(whole.violations)} violations", flush=True)
        print(*explored.violations, sep="\n", end="\n" if explored.violations else "", flush=True)
    return whole


def singles(size: int) -> Explored:
    """Every single fault in a gang of this size."""
    explored = Explored()
    for fault in single(size):
        explored.play((fault,), size, 0)
    return explored


def some_pairs(part: tuple[int, int]) -> Explored:
    """One slice of the pairs of faults, thinned out by its share."""
    number, share = part
    explored = Explored()
    for two in list(pairs(2, (0.11, 2.3, 3.5)))[number :: SLICES * share]:
        explored.play(two, 2, 0)
    return explored


def scenes(which: int) -> Explored:
    """Every scene of one kind."""
    kind = (commanding.two_commands, commanding.interrupted, commanding.unhealed)[which]
    return commanding.explore(kind(), 0, 1 << 40)


def halves(seed: str, steps: int) -> Explored:
    """Sampled pairs of faults with one that nobody heals, for a number of steps."""
    rng, unhealed = random.Random(seed), list(commanding.unhealed())
    return commanding.explore((commanding.half_healed(rng, unhealed) for _ in itertools.count()), 0, steps)


def together(parts: Iterable[Explored]) -> Explored:
    """The sum."""
    whole = Explored()
    for part in parts:
        whole.scenarios += part.scenarios
        whole.steps += part.steps
        whole.cpu_s += part.cpu_s
        whole.violations += part.violations
    return whole


def finds(bug: Bug) -> bool:
    """With the bug put in, the invariant that it breaks must be violated."""
    with pytest.MonkeyPatch.context() as patch:
        bug.put_in(patch)
        return any(bug.violates in words for words in bug.violations())


def page(rows: list[tuple[str, Explored]], found: dict[Bug, bool], options: str) -> str:
    """tests/simulation/simulation.md."""
    steps, cpu_s = (sum(getattr(explored, name) for _, explored in rows) for name in ("steps", "cpu_s"))
    lines = [
        INTRODUCTION,
        f"`python -m tests.simulation {options}` wrote this page at commit {head_commit()[:8]};",
        "`make simulate` plays every pair.",
        "",
        "| played | scenarios | steps |",
    ]
    lines += ["| --- | --- | --- |"]
    lines += [f"| {title} | {explored.scenarios:,} | {explored.steps:,} |" for title, explored in rows]
    violations = sum(len(explored.violations) for _, explored in rows)
    lines += ["", f"{violations} violations. {steps:,} steps took {cpu_s:.0f} s of one processor,"]
    lines += [f"{cpu_s / steps * 1e6:.0f} s per million.", "", "## Seeded bugs", ""]
    lines += ["Each is patched into the running code, and must be found by the invariant beside it.", ""]
    lines += ["| bug | violates | found |", "| --- | --- | --- |"]
    lines += [f"| {bug.name} | {bug.violates} | {'yes' if yes else 'NO'} |" for bug, yes in found.items()]
    return "\n".join(lines) + "\n"


INTRODUCTION = f"""# Simulation

A gang of two or three nodes on a simulated clock, network and disk. The code is what runs in production: the agent
and its course (`node/agent/`), both sides of the leader link with its wire and handshake (`node/network/`), the
guardian's conclusions and its report of a dead agent (`node/engine/guardian.py`, `node/network/link.py`).
Sockets, the state directory, the engine's processes and its HTTP answers are simulated (`tests/simulation/`).

A step is one round of an agent's or a guardian's loop, or the arrival of a message. After each step:

- no engine outlives its gang by more than the lease ({LEASE_S:g} s here) and {EPSILON_S:g} s;
- engines of two runs never run at once.

And at the end of each scenario:

- if no fault that can end a gang was injected (but a stalled disk, a clock that was set, a connection that was
  reset, silence shorter than the lease), all engines still run;
- every cause that is not secondary names a node with an injected fault, and all nodes name the same one;
- no agent is left.

Two controllers run `up`, `restart` and `down` with production's lock, its verb on the nodes, `gang/view.py`,
`gang/actions.py` and `gang/steps/`; stage, arm, go and stop are simulated there. They are killed, paused and cut
off at any step. Then also:

- no node obeys a controller whose lock another one has taken over;
- every command ends, whatever nobody heals: {UNHEALED_S:g} s after a fault at the latest, a lease and 15 s; agents
  that were never connected and disks that hang have a longer time of their own;
- without a fault it succeeds or finds the lock held, and what it reports is true;
- the gang runs on all of its nodes or on none.

Two gangs serve behind a router, whose REST interface is simulated, and clients that never retry send requests. Two
operators with inventories of their own type every verb that changes a gang, and change what they have written: a
gang's name, two names swapped, a gang less. A command is killed or interrupted; a guard restarts what it can. The steps
are production's. Then also:

- no verb ends or replaces a gang that it does not name;
- no request is lost by a verb that had not announced it; a fault excuses losses of its own gang until that serves
  again, and of a verb on the other gang that was typed before anybody could know;
- a guard ends no gang that serves, starts none that a person has ended, and brings back what faults and killed
  commands have left;
- whoever serves is in the router, and nobody else.

Injected faults: {", ".join(f"`{kind}`" for kind in FAULTS)}.
"""


if __name__ == "__main__":
    sys.exit(main())
