#!/bin/sh
# Builds the image, says its id and the stack file that uses it. Wants docker (or PROGRAM=podman), a network, 40 GB.
#   ./build.sh                                   the base image by its tag, as the registry has it today
#   BASE=NAME@sha256:DIGEST ./build.sh           the base image that was used before
set -eu
cd -- "$(dirname -- "$0")"
program=${PROGRAM:-docker}
base=${BASE:-docker.io/lmsysorg/sglang:v0.4.4.post3-cu124}

"$program" pull --quiet "$base"
resolved=$("$program" image inspect --format '{{index .RepoDigests 0}}' "$base")
echo "base image: $resolved (BASE=$resolved builds the same again)"
"$program" build --file Containerfile --build-arg "BASE=$resolved" \
    --iidfile image.id --tag l40s-deploy/sglang-0.4.4-l40s .
image=sha256:$(sed -e 's/^sha256://' image.id)

mkdir -p inventory/stacks
{ cat stack.yml; printf 'install: %s\nimage: %s\n' "$program" "$image"; } >inventory/stacks/sglang-0.4.4-l40s.yml
echo "image: $image"
echo "here, or with this inventory/ beside yours:"
echo "    l40s-deploy stack build sglang-0.4.4-l40s --out image.bundle"
echo "    l40s-deploy prepare --stack sglang-0.4.4-l40s --bundle image.bundle"
