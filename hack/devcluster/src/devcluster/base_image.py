"""The base of all images where no registry is at hand: Debian with Python, by mmdebstrap."""

import datetime as dt
import platform
import tempfile
from pathlib import Path

from devcluster import commands
from devcluster.buildah import Buildah
from devcluster.errors import DevclusterError
from devcluster.fingerprints import of_values
from devcluster.progress import step

SUITE = "bookworm"
PACKAGES = ("python3-minimal", "python3-venv", "ca-certificates")
_SECONDS = 1200.0
_LEFT_OUT = ("/usr/share/man/*", "/usr/share/doc/*", "/usr/share/locale/*", "/usr/share/info/*")
# The tree is thousands of small files for a minute: in memory, gone with the mount namespace.
_ON_TMPFS = 'mount -t tmpfs -o mode=0755 tree "$1"; export TMPDIR="$1"; shift; exec "$@"'
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def fingerprint(today: dt.date, mirror: str | None) -> str:
    """Changes with the contents asked for, and monthly, to take in security updates."""
    return of_values(
        {
            "suite": SUITE,
            "packages": " ".join(PACKAGES),
            "left out": " ".join(_LEFT_OUT),
            "mirror": mirror or "",
            "machine": platform.machine(),
            "month": today.strftime("%Y-%m"),
        }
    )


def ensure(buildah: Buildah, mirror: str | None, today: dt.date) -> str:
    """Reference of the base image, built when the storage has none of this month."""
    reference = f"localhost/weightlease/base:{fingerprint(today, mirror)}"
    if not buildah.has_image(reference):
        with step("building the base image"), tempfile.TemporaryDirectory() as scratch:
            _build(buildah, reference, mirror or _mirror_of_apt(), Path(scratch))
    return reference


def _build(buildah: Buildah, reference: str, mirror: str | None, scratch: Path) -> None:
    archive = scratch / "base.tar"
    tree = scratch / "tree"
    tree.mkdir()
    options = [f"--dpkgopt=path-exclude={pattern}" for pattern in _LEFT_OUT]
    commands.run(
        [
            *(
                "unshare",
                "--mount",
                "--propagation",
                "private",
                "sh",
                "-euc",
                _ON_TMPFS,
                "sh",
                tree,
            ),
            *("mmdebstrap", "--mode=root", "--variant=minbase"),
            *(f"--include={','.join(PACKAGES)}", "--dpkgopt=force-unsafe-io", *options),
            "--customize-hook=ln -s python3 $1/usr/bin/python",
            # Mount point of the build's pip.conf: made here, no later layer records it.
            "--customize-hook=touch $1/etc/pip.conf",
            *(SUITE, str(archive), *([mirror] if mirror else [])),
        ],
        deadline=_SECONDS,
    )
    container = buildah.run("from", "scratch")
    buildah.run("add", "--quiet", container, str(archive), "/")
    buildah.run("config", f"--env=PATH={_PATH}", "--env=LANG=C.UTF-8", container)
    buildah.run("commit", "--quiet", "--rm", container, reference)


def _mirror_of_apt() -> str | None:
    """Where this machine's apt takes the same suite from; None leaves it to mmdebstrap."""
    wanted = "$(CODENAME)|$(COMPONENT)|$(ORIGIN)|$(REPO_URI)"
    try:
        listed = commands.run(
            ["apt-get", "indextargets", "--format", wanted, "Created-By: Packages"]
        )
    except DevclusterError:
        return None
    prefix = f"{SUITE}|main|Debian|"
    found = [line.removeprefix(prefix) for line in listed.splitlines() if line.startswith(prefix)]
    return found[0] if found else None
