"""Write go.mod and go.sum for another Kubernetes version: ``python update_gomod.py 1.36.3``.

``go install k8s.io/kubernetes/cmd/...@version`` is refused, because that module's go.mod replaces
its staging modules by local folders. The staging modules are published too, as
``k8s.io/<name> v0.<minor>.<patch>``, so a go.mod of our own that requires and replaces them works.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent


def render(version: str, upstream: str, go_version: str) -> str:
    """go.mod of this folder, from the text of k8s.io/kubernetes' own go.mod."""
    staging_version = "v0." + version.split(".", 1)[1]
    staging = re.findall(r"^\s*(k8s.io/\S+) => \./staging", upstream, re.MULTILINE)
    requires = re.findall(
        r"^\s+(\S+) (v\S+)(?: // indirect)?$",
        upstream[: upstream.index("replace (")],
        re.MULTILINE,
    )
    lines = ["module devcluster/kubernetes", "", f"go {go_version}", ""]
    lines += ["require (", f"\tk8s.io/kubernetes v{version}"]
    lines += [
        f"\t{name} {staging_version if wanted == 'v0.0.0' else wanted}" for name, wanted in requires
    ]
    lines += [")", "", "replace ("]
    lines += [f"\t{name} => {name} {staging_version}" for name in staging]
    return "\n".join([*lines, ")"]) + "\n"


def main(version: str) -> None:
    described = subprocess.run(
        ["go", "mod", "download", "-json", f"k8s.io/kubernetes@v{version}"],
        check=True,
        capture_output=True,
        text=True,
    )
    upstream = Path(json.loads(described.stdout)["GoMod"]).read_text()
    go_line = re.search(r"^go (\S+)$", upstream, re.MULTILINE)
    if go_line is None:
        raise SystemExit(f"go.mod of k8s.io/kubernetes v{version} names no go version")
    (_HERE / "go.mod").write_text(render(version, upstream, go_line.group(1)))
    subprocess.run(["go", "mod", "tidy"], check=True, cwd=_HERE)


if __name__ == "__main__":
    main(sys.argv[1])
