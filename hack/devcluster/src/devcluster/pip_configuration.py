"""How pip on this machine reaches its index, for use inside image builds and nowhere else.

An index address, its credentials, a company's CA: all of it is mounted into the build as a pip.conf
and a CA bundle, and none of it is written into an image.
"""

import ast
import os
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from devcluster import commands
from devcluster.errors import DevclusterError

_LINE = re.compile(r"^(?P<section>:env:|global|install)\.(?P<key>[a-z-]+)=(?P<value>.+)$")
_PASSED = frozenset(
    {
        "default-timeout",
        "extra-index-url",
        "find-links",
        "index-url",
        "no-index",
        "proxy",
        "retries",
        "timeout",
        "trusted-host",
    }
)
_CERTIFICATE_VARIABLES = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_BUNDLE_INSIDE = "/etc/ssl/certs/ca-certificates.crt"
_LINKS_INSIDE = "/run/devcluster-links"


@dataclass(frozen=True, slots=True)
class PipConfiguration:
    """What a build needs: text of a pip.conf, and folders to mount, host path to path inside."""

    text: str
    mounts: Mapping[Path, str]
    certificates: Path | None


def parse(listing: str) -> dict[str, str]:
    """Values of ``pip config list``; the environment's replace the files'."""
    values: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in listing.splitlines():
        found = _LINE.match(line)
        if found is None:
            continue
        try:
            value = ast.literal_eval(found["value"])
        except (SyntaxError, ValueError):
            continue
        values[found["section"]][found["key"]] = str(value)
    return {**values["global"], **values["install"], **values[":env:"]}


def render(values: Mapping[str, str], environ: Mapping[str, str]) -> PipConfiguration:
    """The configuration inside a build; ``values`` as ``parse`` returns them."""
    lines, mounts = ["[global]"], {}
    for key in sorted(_PASSED & values.keys()):
        words = values[key].split()
        if key == "find-links":
            local = {word: Path(word) for word in words if Path(word).is_absolute()}
            # A folder that is absent or empty would only make pip warn.
            filled = {word: path for word, path in local.items() if _has_entries(path)}
            inside = {word: f"{_LINKS_INSIDE}-{i}" for i, word in enumerate(filled)}
            mounts.update({filled[word]: inside[word] for word in filled})
            words = [
                inside.get(word, word) for word in words if word in inside or word not in local
            ]
        if words:
            lines.append(f"{key} =" + "".join(f"\n    {word}" for word in words))
    candidates = [values.get("cert"), *map(environ.get, _CERTIFICATE_VARIABLES), _BUNDLE_INSIDE]
    existing = (Path(path) for path in candidates if path and Path(path).is_file())
    certificates = next(existing, None)
    if certificates is not None:
        lines.append(f"cert = {_BUNDLE_INSIDE}")
    return PipConfiguration("\n".join(lines) + "\n", mounts, certificates)


def of_this_machine() -> PipConfiguration:
    """From ``pip config list``, else from the environment alone."""
    for argv in ([sys.executable, "-m", "pip"], ["pip3"], ["pip"]):
        try:
            return render(parse(commands.run([*argv, "config", "list"])), os.environ)
        except DevclusterError:
            continue
    variables = {
        name.removeprefix("PIP_").lower().replace("_", "-"): value
        for name, value in os.environ.items()
        if name.startswith("PIP_")
    }
    return render(variables, os.environ)


def volume_flags(configuration: PipConfiguration, scratch: Path) -> list[str]:
    """Flags of ``buildah bud`` that mount it, from files written into ``scratch``."""
    written = scratch / "pip.conf"
    written.write_text(configuration.text)
    volumes = {written: "/etc/pip.conf", **configuration.mounts}
    if configuration.certificates is not None:
        folder = scratch / "certs"
        folder.mkdir()
        shutil.copyfile(configuration.certificates, folder / Path(_BUNDLE_INSIDE).name)
        volumes[folder] = str(Path(_BUNDLE_INSIDE).parent)
    return [f"--volume={outside}:{inside}:ro" for outside, inside in volumes.items()]


def _has_entries(folder: Path) -> bool:
    return folder.is_dir() and next(folder.iterdir(), None) is not None
