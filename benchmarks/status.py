"""`status` on four nodes as a whole process, beside ansible asking the same nodes for next to nothing.

Wanted: under 1 s, at least 3 times faster than `ansible -m command`, ahead of `ansible -m raw`.
"""

from __future__ import annotations

from common import BIN, MODEL, command, lab, report, timed

RUNS = 7


def main() -> None:
    with lab("bench-status", "--level", "1") as inventory:
        hosts = ["-i", str(inventory)]
        timed(command("up", *hosts, "--model", MODEL), runs=1)
        status = timed(command("status", *hosts, "--json"), runs=RUNS)
        ansible = [str(BIN / "ansible"), "all", *hosts]
        module = timed([*ansible, "-m", "command", "-a", "true"], runs=3)
        tuned = timed([*ansible, "-m", "command", "-a", "true"], runs=3, env={"ANSIBLE_PIPELINING": "True"})
        raw = timed([*ansible, "-m", "raw", "-a", "true"], runs=3)
        timed(command("down", *hosts), runs=1)
    report(
        "status, 4 nodes and 32 ranks, whole process, median",
        [
            ("l40s-deploy status --json", status, ""),
            ("ansible -m raw -a true (warm masters)", raw, f"status is {raw / status:.1f} times as fast"),
            ("ansible -m command -a true (warm, pipelining)", tuned, f"status is {tuned / status:.1f} times as fast"),
            ("ansible -m command -a true (warm masters)", module, f"status is {module / status:.1f} times as fast"),
        ],
    )


if __name__ == "__main__":
    main()
