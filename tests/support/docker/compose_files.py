"""The contents of `docker/`, read by Docker's own parsers: the tests do not parse YAML or Dockerfiles themselves."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.servers import downloads

from cdcflow.demo.servers.cached import cache

ROOT = Path(__file__).parents[3]
COMPOSE = ROOT / "docker" / "compose.yaml"
SOURCE = Path(__file__).parent / "compose"
Model = Mapping[str, Any]  # Any: JSON


@functools.cache
def program() -> Path:
    """The small Go program next to this file, built once into the cache.

    Raises:
        RuntimeError: there is no Go.
        SourceUnavailable: the build failed.
    """
    files = sorted(SOURCE.iterdir())
    made = cache() / f"compose-{hashlib.sha256(b''.join(f.read_bytes() for f in files)).hexdigest()[:12]}"
    if made.exists():
        return made
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        raise RuntimeError("docker/ is read with Docker's own libraries, which need Go 1.26 or newer; install it")
    made.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=made.parent) as room:
        built = Path(room) / "compose"
        command = [go, "build", "-trimpath", "-o", str(built), "."]
        downloads.run(command, f"building {SOURCE}", cwd=SOURCE)
        built.rename(made)
    return made


def understood(path: Path, variables: Mapping[str, str] | None = None) -> Any:  # Any: JSON
    """A compose file or a Dockerfile, parsed and checked.

    Raises:
        ValueError: it is invalid; in the parser's own words.
    """
    environment = {"PATH": os.environ["PATH"], **(variables or {})}
    done = subprocess.run([program(), path], capture_output=True, text=True, env=environment, check=False)
    if done.returncode != 0:
        raise ValueError(done.stderr.strip())
    return json.loads(done.stdout)


@dataclass(frozen=True, slots=True)
class Image:
    """One stage of a Dockerfile, including what it inherits from the stages below it."""

    base: str
    user: str = ""
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    copied: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """From which stage ("" is the build context), and what."""
    runs: tuple[str, ...] = ()


def images(path: Path) -> dict[str, Image]:
    """Map the names of a Dockerfile's stages to the stages; the last one, which is built by default, also as ""."""
    made: dict[str, Image] = {}
    for stage in understood(path):
        below = made.get(stage["base"])
        made[stage["name"]] = made[""] = _stage(below or Image(stage["base"]), stage["instructions"])
    return made


def _stage(below: Image, instructions: Sequence[Model]) -> Image:
    user, entrypoint, command = below.user, below.entrypoint, below.command
    environment, copied, runs = dict(below.environment), list(below.copied), list(below.runs)
    for one in instructions:
        words = one["words"]
        match one["name"].upper():
            case "USER":
                user = words["User"]
            case "ENTRYPOINT":
                entrypoint, command = tuple(words["CmdLine"]), ()
            case "CMD":
                command = tuple(words["CmdLine"])
            case "ENV":
                environment |= {pair["Key"]: pair["Value"] for pair in words["Env"]}
            case "COPY" | "ADD":
                copied.append((words["From"], tuple(words["SourcePaths"])))
            case "RUN":
                runs.append(" ".join(words["CmdLine"]))
            case "WORKDIR" | "STOPSIGNAL" | "ARG" | "LABEL":
                pass
            case name:
                raise ValueError(f"these tests do not know what {name} in a Dockerfile means")
    return Image(below.base, user, entrypoint, command, environment, tuple(copied), tuple(runs))


def built_image(service: Model) -> Image | None:
    """The image of a service that is built here; `None` for a ready-made one."""
    build = service.get("build")
    if build is None:
        return None
    return images(Path(build["context"]) / build["dockerfile"])[build.get("target", "")]


def one_shot(service: Model) -> bool:
    """Whether it is meant to end by itself."""
    return service.get("restart") == "no"


def conditions(service: Model) -> dict[str, str]:
    """What it waits for: the other service's name, and the state that this must have reached."""
    return {name: wanted["condition"] for name, wanted in (service.get("depends_on") or {}).items()}


if __name__ == "__main__":
    print(f"Docker's parsers: {program()}")
