"""buildah with an image storage of our own, below the cache."""

from dataclasses import dataclass
from pathlib import Path

from devcluster import commands, host
from devcluster.errors import DevclusterError

_SECONDS = 1800.0


@dataclass(frozen=True, slots=True)
class Buildah:
    """Where its storage is."""

    storage: Path

    def run(self, *arguments: str) -> str:
        """Standard output, stripped. Raises as ``commands.run`` does."""
        # overlayfs cannot lie on overlayfs.
        driver = "vfs" if host.filesystem_type(self.storage) == "overlayfs" else "overlay"
        return commands.run(
            [
                "buildah",
                f"--root={self.storage}",
                f"--runroot={self.storage}-run",
                f"--storage-driver={driver}",
                *arguments,
            ],
            deadline=_SECONDS,
        ).strip()

    def unmount(self) -> None:
        """The overlay driver leaves its folder mounted on itself; the cache must stay removable."""
        for folder in (self.storage, self.storage.with_name(f"{self.storage.name}-run")):
            host.unmount_below(folder)

    def has_image(self, reference: str) -> bool:
        try:
            self.run("inspect", "--type", "image", "--format", "{{.FromImageID}}", reference)
        except DevclusterError:
            return False
        return True
