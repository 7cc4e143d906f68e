"""Finds the programs a cluster needs, and builds those that the machine lacks.

::

    <cache>/
      programs.lock, images.lock              flock while the programs, the images change
      components/<name>-<version>-<key>/      what was built
      bin/<command>                           links to the chosen programs; put it on PATH
"""

import fcntl
import os
import platform
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from devcluster import commands, fingerprints
from devcluster.components import COMPONENTS, Component, Version, is_suitable, parse_version
from devcluster.errors import DevclusterError
from devcluster.progress import say, step

_BUILD_SECONDS = 3600.0
# Linking uses one core: a second build fills the other.
_BUILDERS = 2


def bin_folder(cache: Path) -> Path:
    return cache / "bin"


@contextmanager
def locked(cache: Path, part: str) -> Iterator[None]:
    """Waits until no other command changes this part of the cache."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{part}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def ensure(cache: Path) -> Path:
    """Makes every command of every component available; returns the folder for PATH."""
    with locked(cache, "programs"):
        chosen: dict[str, Path] = {}
        missing = []
        for component in COMPONENTS:
            built = built_folder(cache, component)
            found = None if built.is_dir() else find_on_machine(component, cache)
            if found is not None:
                chosen.update(found)
            elif not built.is_dir():
                missing.append(component)
        if missing:
            _build_all(missing, cache)
        for component in COMPONENTS:
            for command in component.commands:
                chosen.setdefault(command, built_folder(cache, component) / command)
        _link(bin_folder(cache), chosen)
    return bin_folder(cache)


def built_folder(cache: Path, component: Component) -> Path:
    key = fingerprints.of_component(component, platform.machine())
    return cache / "components" / f"{component.name}-{component.version}-{key}"


def find_on_machine(component: Component, cache: Path) -> dict[str, Path] | None:
    """Suitable programs in KUBEBUILDER_ASSETS or on PATH, by command; None to build them."""
    if component.minimum is None:
        return None
    search = [os.environ.get("KUBEBUILDER_ASSETS", ""), os.environ.get("PATH", "")]
    own = str(bin_folder(cache))
    folders = [part for text in search for part in text.split(os.pathsep) if part and part != own]
    found: dict[str, Path] = {}
    for command in component.commands:
        path = shutil.which(command, path=os.pathsep.join(folders))
        if path is None:
            return None
        found[command] = Path(path).absolute()
    versions = {command: probe(component, command, path) for command, path in found.items()}
    return found if is_suitable(component, versions) else None


def probe(component: Component, command: str, path: Path) -> Version | None:
    """What version ``path`` says it is."""
    try:
        return parse_version(commands.run([path, *component.probe_of(command)], deadline=30))
    except DevclusterError:
        return None


def _build_all(missing: list[Component], cache: Path) -> None:
    say(f"to build: {', '.join(f'{item.name} {item.version}' for item in missing)}")
    with ThreadPoolExecutor(_BUILDERS) as builders:
        for done in [builders.submit(_build, component, cache) for component in missing]:
            done.result()


def _build(component: Component, cache: Path) -> None:
    final = built_folder(cache, component)
    staging = final.with_name(f".new-{final.name}")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    environment = {"CGO_ENABLED": "1" if component.static_cgo else "0", "GOWORK": "off"}
    with step(f"building {component.name} {component.version}"):
        commands.run(
            component.build_arguments(staging),
            deadline=_BUILD_SECONDS,
            cwd=component.module,
            env=environment,
        )
    for link in component.links:
        (staging / link).symlink_to(component.name)
    staging.rename(final)


def _link(folder: Path, chosen: Mapping[str, Path]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for command, path in chosen.items():
        link = folder / f".new-{command}"
        link.unlink(missing_ok=True)
        link.symlink_to(path)
        link.rename(folder / command)
