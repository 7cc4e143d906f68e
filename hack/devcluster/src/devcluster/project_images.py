"""Builds ``images/*/Dockerfile`` with buildah and writes each as an archive.

An image's key covers its Dockerfile, the files that it copies, and its base; the archive
``<cache>/images/<name>-<key>.tar`` is the cached result. The build sees exactly the files that the
key covers (tracked by git, or new and not ignored), in a context of their own. It is a docker
archive because buildah compresses every layer of an OCI archive, 7 s of a core for the base alone.
"""

import datetime as dt
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from devcluster import base_image, binaries, commands, dockerfile, fingerprints, pip_configuration
from devcluster.buildah import Buildah
from devcluster.errors import BadSetting
from devcluster.progress import say, step
from devcluster.settings import Settings

_ALWAYS_IN_CONTEXT = (".dockerignore", ".containerignore")


@dataclass(frozen=True, slots=True)
class Image:
    """One project image: its name, how pods refer to it, and where it is stored."""

    name: str
    reference: str
    archive: Path


def reference_of(name: str, key: str) -> str:
    """A tag of its own for each content, so that a rebuilt image rolls what runs the old one."""
    return f"localhost/weightlease/{name}:{key}"


def build(settings: Settings, root: Path, names: list[str], base: str | None) -> list[Image]:
    """The named images of the repository at ``root``, all when none is named.

    ``base`` replaces our own base image, e.g. one to pull from a registry. Raises BadSetting.
    """
    found = {path.parent.name: path for path in sorted(root.glob("images/*/Dockerfile"))}
    unknown = sorted(set(names) - found.keys())
    if unknown:
        raise BadSetting(f"no images/{unknown[0]}/Dockerfile; there are: {', '.join(found)}")
    buildah = Buildah(settings.cache / "containers")
    with binaries.locked(settings.cache, "images"):
        try:
            if base is None:
                base = base_image.ensure(buildah, settings.debian_mirror, _today())
            chosen = names or list(found)
            return [_ensure(settings.cache, buildah, root, found[name], base) for name in chosen]
        finally:
            buildah.unmount()


def _ensure(cache: Path, buildah: Buildah, root: Path, file: Path, base: str) -> Image:
    name = file.parent.name
    paths = _context_paths(root, file)
    key = fingerprints.of_values({"base": base, "files": fingerprints.of_files(root, paths)})
    image = Image(name, reference_of(name, key), cache / "images" / f"{name}-{key}.tar")
    if image.archive.exists():
        say(f"image {name} is unchanged")
        return image
    with step(f"building image {name}"), tempfile.TemporaryDirectory() as scratch:
        context = Path(scratch, "context")
        _copy(root, paths, context)
        _build(buildah, context, file.relative_to(root), base, image, Path(scratch))
    for old in image.archive.parent.glob(f"{name}-????????????.tar"):
        if old != image.archive:
            old.unlink()
    return image


def _build(
    buildah: Buildah, context: Path, file: Path, base: str, image: Image, scratch: Path
) -> None:
    local = f"localhost/weightlease/{image.name}:latest"
    volumes = pip_configuration.volume_flags(pip_configuration.of_this_machine(), scratch)
    buildah.run(
        *("bud", "--isolation=chroot", "--network=host", "--layers", "--format=oci"),
        *(f"--build-arg=BASE={base}", *volumes, f"--tag={local}"),
        *(f"--file={context / file}", str(context)),
    )
    image.archive.parent.mkdir(parents=True, exist_ok=True)
    written = image.archive.with_suffix(".new")
    written.unlink(missing_ok=True)
    buildah.run("push", "--quiet", local, f"docker-archive:{written}:{image.reference}")
    written.rename(image.archive)


def _context_paths(root: Path, file: Path) -> list[str]:
    """Files of the context that the build may see, relative to ``root``, sorted."""
    sources = dockerfile.copied_sources(file.read_text())
    always = [str(file.relative_to(root)), *_ALWAYS_IN_CONTEXT]
    listed = commands.run(
        [
            *("git", "-c", f"safe.directory={root}", "ls-files", "-z"),
            *("--cached", "--others", "--exclude-standard", "--", *sources, *always),
        ],
        cwd=root,
    )
    return sorted({path for path in listed.split("\0") if path})


def _copy(root: Path, paths: list[str], context: Path) -> None:
    for path in paths:
        # One that was deleted but is still tracked is no file to copy.
        if (root / path).is_symlink() or (root / path).is_file():
            target = context / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / path, target, follow_symlinks=False)


def _today() -> dt.date:
    return dt.datetime.now(tz=dt.UTC).date()
