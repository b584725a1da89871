#!/usr/bin/env bash
# The product in one go, on this machine: an emulated cluster, `up`, `status`, one generation, how to go on. Without root,
# what `doctor` says of the articles' cluster as it was, and put right. `demo.sh down` ends it.
set -euo pipefail
cd "$(dirname "$0")/.."
run() { printf '\n$ %s\n' "l40s-deploy $*"; .venv/bin/l40s-deploy "$@"; }

if [ "$(id -u)" -ne 0 ] && ! sudo -n true 2>/dev/null; then
  if ! .venv/bin/l40s-deploy --version >/dev/null 2>&1; then
    "${PYTHON:-python3}" -m venv .venv
    .venv/bin/python -m pip install -q --disable-pip-version-check -e .
  fi
  run doctor --example articles || [ $? -eq 3 ] # it has findings
  run doctor --example right
  printf '\n%s\n' "These are recorded nodes. With root or sudo, make demo starts an emulated cluster of 32 GPUs and serves on it."
  exit 0
fi

# its_inventory: of the demo's own lab, whatever other labs run
its_inventory() {
  .venv/bin/l40s-deploy lab status --name demo --json | .venv/bin/python -c 'import json, sys; print(json.load(sys.stdin)["inventory"])'
}

if [ "${1:-}" = down ]; then
  if L40S_INVENTORY=$(its_inventory); then
    export L40S_INVENTORY
    run down --all || printf '%s\n' "the gang was not stopped in order; its lab goes all the same"
  fi
  run lab down --name demo
  exit 0
fi

scripts/setup.sh

run lab up --name demo
L40S_INVENTORY=$(its_inventory)
export L40S_INVENTORY
run up --model DeepSeek-V3-0324-Block64x64
run status
url=$(.venv/bin/l40s-deploy status --json 2>/dev/null | .venv/bin/python -c 'import json, sys; print(json.load(sys.stdin)["gangs"][0]["service"]["url"])')
cat <<TEXT

The endpoint is $url (a stand-in engine: it loads no model, and says so in its answers). Try:
  curl -s $url/v1/completions -H 'Content-Type: application/json' \\
       -d '{"model": "DeepSeek-V3-0324-Block64x64", "prompt": "The capital of France is", "max_tokens": 8}'
  export L40S_INVENTORY=$L40S_INVENTORY
  .venv/bin/l40s-deploy logs --node node2 | head
  .venv/bin/l40s-deploy discover --node node0
Then:
  .venv/bin/l40s-deploy down --all              # stop the gang
  .venv/bin/l40s-deploy lab down --name demo    # remove the emulated cluster
TEXT
