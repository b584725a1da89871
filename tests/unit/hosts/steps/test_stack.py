"""`stack`: recipes as written, the steps of their build script, and images in bundles."""

from __future__ import annotations

import os
import subprocess
import tarfile
from pathlib import Path

import pytest
from tests.support.wheels import wheel

from orchestrator.engines.router import VERSION
from orchestrator.hosts.steps.bundle import copy_part, read_bundle
from orchestrator.hosts.steps.stack import build, write_recipe
from orchestrator.loading.profiles import load_stack, stack_recipe
from orchestrator.protocol.errors import InputError

ID = "8" * 64
DOCKER = """#!/bin/sh
# Writes down what it is asked for and does as Docker would.
printf '%s\\n' "$*" >>"$DOCKER_LOG"
case "$1 $2" in
"image inspect") echo "docker.io/lmsysorg/sglang@sha256:{digest}" ;;
"image save") echo archive >"$4" ;;
"build --file") while [ $# -gt 0 ]; do [ "$1" != --iidfile ] || printf 'sha256:{image}' >"$2"; shift; done ;;
esac
"""


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Our `docker` first on the PATH, and its log."""
    program = tmp_path / "bin" / "docker"
    program.parent.mkdir()
    program.write_text(DOCKER.format(digest="1" * 64, image=ID))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("DOCKER_LOG", str(tmp_path / "log"))
    return tmp_path / "log"


def contained(folder: Path, image: str, install: str = "docker") -> Path:
    file = folder / "contained.yml"
    file.write_text(
        f"name: contained\nsource: x\ndialect: sglang-0.5\nengine_version: 0.5.23\ninstall: {install}\nimage: {image}\n"
    )
    return file


def test_a_recipe_pins_the_commit_that_its_stack_names(tmp_path: Path) -> None:
    files = {file.name: file for file in write_recipe("sglang-0.4.4-l40s", tmp_path / "out")}
    assert set(files) == {"Containerfile", "build.sh", "patch.py", "stack.yml"}
    words = files["Containerfile"].read_text()
    commit = next(line.partition("=")[2] for line in words.splitlines() if line.startswith("ARG COMMIT="))
    stack = load_stack("sglang-0.4.4-l40s")
    assert len(commit) == 40 and commit[:8] in stack.source
    assert f":v{stack.engine_version}-cu124" in words
    versions = files["patch.py"].read_text()
    assert f'"sglang": "{stack.engine_version}"' in versions and f'"torch": "{stack.torch_version}"' in versions
    assert f'"triton": "{stack.triton_version}"' in versions
    assert os.access(files["build.sh"], os.X_OK)


def test_the_recipe_s_script_gives_a_stack_that_is_started_by_the_image_s_id(docker: Path, tmp_path: Path) -> None:
    write_recipe("sglang-0.4.4-l40s", tmp_path / "out")
    done = subprocess.run([tmp_path / "out/build.sh"], capture_output=True, text=True, timeout=30, check=True)
    assert f"BASE=docker.io/lmsysorg/sglang@sha256:{'1' * 64} builds the same again" in done.stdout
    stack = load_stack(str(tmp_path / "out/inventory/stacks/sglang-0.4.4-l40s.yml"))
    assert (stack.install, stack.image) == ("docker", f"sha256:{ID}")
    assert stack.dialect == load_stack("sglang-0.4.4-l40s").dialect
    asked = docker.read_text().splitlines()
    assert asked[0] == "pull --quiet docker.io/lmsysorg/sglang:v0.4.4.post3-cu124"
    assert f"BASE=docker.io/lmsysorg/sglang@sha256:{'1' * 64}" in asked[2]


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    with pytest.raises(InputError, match="not empty"):
        write_recipe("sglang-0.4.4-l40s", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_stack_without_a_recipe_brings_those_that_have_one() -> None:
    with pytest.raises(InputError) as caught:
        stack_recipe("sglang-0.5.23")
    assert caught.value.fix == "stacks with a recipe: sglang-0.4.4-l40s"


def test_a_bundle_of_a_contained_stack_has_its_image(docker: Path, tmp_path: Path) -> None:
    stack = contained(tmp_path, f"sha256:{ID}")
    made = build(str(stack), tmp_path / "b")
    assert docker.read_text().split()[-1] == f"sha256:{ID}"
    assert made.image and read_bundle(tmp_path / "b") == made
    copy_part(made, "image", tmp_path / "image.tar")
    with tarfile.open(tmp_path / "image.tar") as tar:
        content = tar.extractfile("image/image.tar")
        assert content is not None and content.read() == b"archive\n"


def test_an_image_that_only_a_registry_knows_is_pulled_and_not_bundled(docker: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="wanted the image's id"):
        build(str(contained(tmp_path, f"a/b@sha256:{ID}")), tmp_path / "b")
    assert not docker.exists()
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("image", "install", "says"),
    [
        *(
            (image, "docker", "wanted NAME@sha256")
            for image in ("a/b:latest", "''", "a/b@sha256:12", f"sha256:{'G' * 64}")
        ),
        (f"sha256:{ID}", "lxc", "lxc"),
    ],
)
def test_an_image_is_named_by_its_digest_and_started_by_a_known_program(
    image: str, install: str, says: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=says):
        load_stack(str(contained(tmp_path, image, install=install)))


def test_a_folder_that_can_not_be_written_is_the_inputs_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryDirectory", full)
    with pytest.raises(InputError, match="can't be written: Permission denied"):
        build("sglang-0.5.23-cpu", tmp_path / "b")


def test_a_part_that_finds_no_room_is_the_inputs_fault(docker: Path, tmp_path: Path) -> None:
    stack = contained(tmp_path, f"sha256:{ID}")
    bundle = build(str(stack), tmp_path / "b", python="3.12")
    assert bundle.python == "3.12"
    assert docker.exists()
    with pytest.raises(InputError, match=r"image of .* can't be unpacked: No space left on device"):
        copy_part(bundle, "image", Path("/dev/full"))


def test_the_router_s_packages_are_a_bundle_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    wheel(wheels, "smg", VERSION)
    (tmp_path / "router.lock").write_text(f"smg=={VERSION}\n")
    monkeypatch.setattr("orchestrator.hosts.steps.stack.router_lock", lambda: tmp_path / "router.lock")
    built = build("router", tmp_path / "router.bundle", find_links=str(wheels), python="3.12")
    assert (built.stack, read_bundle(built.path).python) == (f"smg-{VERSION}", "3.12")
