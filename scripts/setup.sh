#!/usr/bin/env bash
# Makes .venv and installs the Debian packages that the lab and the tests need. Safe to run again; says what it
# will install before it does. PYTHON chooses the interpreter (3.10 or newer).
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '%s\n' "setup: $*"; }

# alive WORDS COMMAND...: run a command, and say every EVERY_S seconds on stderr that it still works. The loop ends with
# this script too, which Ctrl-C may end first.
alive() {
  local words=$1 loop status=0
  shift
  (
    while sleep "${EVERY_S:-10}" >/dev/null 2>&1 && kill -0 $$ 2>/dev/null; do say "$words: $SECONDS s so far" >&2; done
  ) &
  loop=$!
  "$@" || status=$?
  kill "$loop" 2>/dev/null || true
  wait "$loop" 2>/dev/null || true
  return "$status"
}

# package -> a file or command that shows it is there
declare -A needs=(
  [openssh-server]=/usr/sbin/sshd
  [openssh-client]=ssh-keygen
  [iproute2]=ip
  [nftables]=nft
  [util-linux]=unshare
  [gcc]=gcc
  [libc6-dev]=/usr/include/stdio.h
  [shellcheck]=shellcheck
  [python3]=/usr/bin/python3
  [sudo]=sudo
  [mmdebstrap]=mmdebstrap
  [xfsprogs]=mkfs.xfs
  [btrfs-progs]=mkfs.btrfs
  [podman]=podman
  [crun]=crun
  [catatonit]=catatonit
)

missing_packages() {
  local package
  for package in "${!needs[@]}"; do
    [ -e "${needs[$package]}" ] || command -v "${needs[$package]}" >/dev/null 2>&1 || printf '%s\n' "$package"
  done
  local system_python
  system_python=$(readlink -f /usr/bin/python3 2>/dev/null || true)
  # The real engine's environment is built with the distribution's own Python, which the lab's nodes have too.
  if [ -n "$system_python" ] && ! "$system_python" -c 'import ensurepip, venv' >/dev/null 2>&1; then
    printf '%s\n' "$(basename "$system_python")-venv"
  fi
  [ -n "$system_python" ] || printf '%s\n' python3-venv
}

install_packages() {
  local packages
  mapfile -t packages < <(missing_packages | sort)
  [ "${#packages[@]}" -gt 0 ] || return 0
  if ! command -v apt-get >/dev/null 2>&1; then
    say "missing: ${packages[*]} (their Debian names). There is no apt-get here: install them, then run this again."
    exit 1
  fi
  local sudo=()
  [ "$(id -u)" -eq 0 ] || sudo=(sudo)
  say "installing Debian packages: ${packages[*]}${sudo:+ (with sudo)}"
  alive "reading the package lists" "${sudo[@]}" apt-get update -qq
  alive "installing ${#packages[@]} Debian packages" \
    env DEBIAN_FRONTEND=noninteractive "${sudo[@]}" \
    apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
}

# Services of Debian that tests run: their programs alone, out of the packages. Installed, the packages would start them on
# a machine with systemd. fetch_programs NAME FILE PACKAGE...: FILE of the packages shows that they are there.
fetch_programs() {
  local folder="${XDG_CACHE_HOME:-$HOME/.cache}/l40s-deploy/$1" proof=$2 draft package
  shift 2
  [ ! -e "$folder/$proof" ] || return 0
  say "fetching the programs of Debian's $* into $folder"
  mkdir -p "$(dirname "$folder")"
  draft=$(mktemp -d "$folder.XXXXXX")
  if ! (cd "$draft" && apt-get download -qq "$@" >/dev/null 2>&1); then
    say "they can't be fetched (try apt-get update); the tests that run them will be skipped"
    rm -rf "$draft"
    return 0
  fi
  for package in "$draft"/*.deb; do
    dpkg-deb --fsys-tarfile "$package" | tar -x -C "$draft"
    rm "$package"
  done
  chmod 755 "$draft"
  mv -T "$draft" "$folder" 2>/dev/null || rm -rf "$draft" # somebody else was quicker
}

find_python() {
  local candidate
  for candidate in ${PYTHON:-} python3.13 python3.12 python3.11 python3.10 python3; do
    if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(not (3, 10) <= sys.version_info < (3, 14))' 2>/dev/null; then
      printf '%s\n' "$candidate"
      return 0
    fi
  done
  say "no usable python3 (3.10 to 3.13 with venv); install python3 and python3-venv, or set PYTHON" >&2
  return 1
}

make_environment() {
  local python stamp
  stamp=$(cat pyproject.toml lab/pyproject.toml | sha256sum | cut -d' ' -f1)
  if [ "$(cat .venv/.stamp 2>/dev/null)" = "$stamp" ] && .venv/bin/l40s-deploy --version >/dev/null 2>&1; then
    return 0
  fi
  python=$(find_python)
  say "making .venv with $("$python" --version) and the packages of pyproject.toml"
  [ -x .venv/bin/python ] || "$python" -m venv .venv
  alive "installing Python packages" .venv/bin/python -m pip install -q --disable-pip-version-check -e '.[dev]' -e ./lab
  printf '%s\n' "$stamp" >.venv/.stamp
}

# pip compiles what it installs, but an editable installation runs from the sources, and where PYTHONDONTWRITEBYTECODE is set
# every command and every test would compile a hundred modules anew: a third of `status`.
compile_sources() { .venv/bin/python -m compileall -q src lab tests; }

install_packages
make_environment
compile_sources
fetch_programs prometheus usr/share/prometheus/alertmanager/default.tmpl prometheus prometheus-alertmanager
say "ready: .venv/bin/l40s-deploy"
