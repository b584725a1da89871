#!/usr/bin/env bash
# All tests, in one run: tests/support/schedule.py says in which order. One worker computes (the quick tests), the others
# wait more than they compute (for agents, sshds, labs, the real engine). WORKERS changes their number. What shares a lab
# or a long set-up is in one file, and a file stays with one worker. What measures an interval of this machine's own is
# `long`: nothing runs beside it there.
set -euo pipefail
cd "$(dirname "$0")/.."
unset PYTHONDONTWRITEBYTECODE # thousands of processes run the same modules

# The pages' tests draw in a real browser where there is one; Debian's, where it can be installed.
if ! command -v chromium >/dev/null && [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
  printf 'test: installing chromium for the tests of pages\n'
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null ||
    printf 'test: chromium cannot be installed (try apt-get update); the tests that need a browser are skipped\n'
fi

# Every kind, and of its variations those whose turn it is: tests/turns.md says when each was played last.
played() { TURN=commit .venv/bin/python -m pytest -q -m "not installs and not long" "$@" tests lab/tests; }

failed=.pytest_cache/v/cache/lastfailed
rm -f "$failed"
status=0
played -n "${WORKERS:-5}" --dist loadfile || status=$?
[ "$status" -eq 1 ] || exit "$status"

# A few that failed beside four others have one more try, with nothing beside them: a fault fails again (an example that
# hypothesis found is kept, and comes first), a test that cannot bear a busy machine passes and is named. Files are
# counted: where the lab that a file's tests share comes up late, all of them fail for one reason. Decision 14.
most_files=3
names=$(.venv/bin/python -c 'import json, sys; print(*json.load(open(sys.argv[1])), sep="\n")' "$failed")
if [ "$(cut -d: -f1 <<<"$names" | sort -u | wc -l)" -gt "$most_files" ]; then
  exit "$status"
fi
unset RECORD_DURATIONS
printf 'test: once more, with nothing beside: %s\n' "$names"
played --last-failed
printf 'test: FAILURE, then SUCCESS with nothing beside; mend the test, or what it found: %s\n' "$names"
