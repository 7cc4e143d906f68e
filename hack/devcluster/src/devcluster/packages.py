"""Installs missing Debian packages with apt-get."""

from devcluster import commands, doctor
from devcluster.errors import CommandFailed, MissingPrerequisite
from devcluster.machine import Machine
from devcluster.progress import say, step

_SECONDS = 1200.0
_ENVIRONMENT = {"DEBIAN_FRONTEND": "noninteractive"}


def install_missing(machine: Machine) -> None:
    """Raises MissingPrerequisite naming the packages where they cannot be installed."""
    names = doctor.missing_packages(machine)
    if not names:
        say("no package is missing")
        return
    listed = " ".join(names)
    if not machine.has_apt:
        raise MissingPrerequisite(f"missing, by their Debian names: {listed}: install them")
    if not machine.is_root:
        raise MissingPrerequisite(f"missing: {listed}: as root, run apt-get install {listed}")
    install = ["apt-get", "install", "--yes", "--no-install-recommends", *names]
    with step(f"installing {listed}"):
        try:
            commands.run(install, deadline=_SECONDS, env=_ENVIRONMENT)
        except CommandFailed:
            # On a fresh machine the lists are missing, or so old that the files have gone.
            commands.run(["apt-get", "update"], deadline=_SECONDS, env=_ENVIRONMENT)
            commands.run(install, deadline=_SECONDS, env=_ENVIRONMENT)
