import io
import json
import tarfile
from pathlib import Path

import pytest

from devcluster import dockerfile, pause_image, pip_configuration


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("FROM x\nCOPY runtime /src/runtime\nCOPY a b /dst/", ["a", "b", "runtime"]),
        ("COPY --chown=1:1 a.txt \\\n  b.txt /dst/", ["a.txt", "b.txt"]),
        ("COPY --from=builder /opt /opt", []),
        ('COPY ["with space", "/dst"]', ["with space"]),
        ("COPY requirements/*.txt /r/", ["requirements"]),
        ("COPY ./ /src", ["."]),
        ("COPY . /src", ["."]),
        ("ADD https://example.test/x.tar /x", []),
        ("# COPY no /no\ncopy yes /yes", ["yes"]),
        ("RUN echo COPY a b", []),
    ],
)
def test_copied_sources_are_what_the_build_reads(text: str, expected: list[str]) -> None:
    assert dockerfile.copied_sources(text) == expected


def test_an_index_of_the_environment_replaces_that_of_a_file() -> None:
    listing = (
        "global.index-url='https://files.test/simple'\n"
        ":env:.index-url='https://environment.test/simple'\n"
        "global.timeout='5'\nnot a line\nglobal.broken=unquoted\n"
    )
    values = pip_configuration.parse(listing)
    assert values == {"index-url": "https://environment.test/simple", "timeout": "5"}


def test_only_settings_about_reaching_the_index_enter_a_build() -> None:
    values = {"index-url": "https://i.test/simple", "target": "/somewhere", "user": "true"}
    text = pip_configuration.render(values, {}).text
    assert "https://i.test/simple" in text
    assert "somewhere" not in text
    assert "user" not in text


def test_a_local_folder_of_wheels_is_mounted_and_an_empty_one_left_out(tmp_path: Path) -> None:
    filled, empty = tmp_path / "filled", tmp_path / "empty"
    filled.mkdir()
    empty.mkdir()
    (filled / "a.whl").touch()
    values = {"find-links": f"{filled} {empty} https://links.test/"}
    rendered = pip_configuration.render(values, {})
    assert list(rendered.mounts) == [filled]
    assert rendered.mounts[filled] in rendered.text
    assert str(tmp_path) not in rendered.text
    assert "https://links.test/" in rendered.text


def test_the_machines_certificates_are_mounted_where_the_image_looks(tmp_path: Path) -> None:
    bundle, scratch = tmp_path / "bundle.pem", tmp_path / "scratch"
    bundle.write_text("CERTIFICATES")
    scratch.mkdir()
    rendered = pip_configuration.render({}, {"SSL_CERT_FILE": str(bundle)})
    flags = pip_configuration.volume_flags(rendered, scratch)
    (mounted,) = [flag for flag in flags if flag.endswith(":/etc/ssl/certs:ro")]
    folder = Path(mounted.removeprefix("--volume=").split(":")[0])
    assert (folder / "ca-certificates.crt").read_text() == "CERTIFICATES"
    assert "cert = /etc/ssl/certs/ca-certificates.crt" in (scratch / "pip.conf").read_text()


def test_the_pause_image_is_the_same_bytes_for_the_same_program() -> None:
    first = pause_image.image_archive("localhost/p:1", "pause", b"program", "x86_64")
    assert first == pause_image.image_archive("localhost/p:1", "pause", b"program", "x86_64")


def test_the_pause_image_runs_its_one_program() -> None:
    archive = pause_image.image_archive("localhost/p:1", "pause", b"program", "aarch64")
    with tarfile.open(fileobj=io.BytesIO(archive)) as outer:
        read = {member.name: _read(outer, member) for member in outer}
    (manifest,) = json.loads(read["manifest.json"])
    configuration = json.loads(read[manifest["Config"]])
    assert manifest["RepoTags"] == ["localhost/p:1"]
    assert configuration["architecture"] == "arm64"
    assert configuration["config"]["Entrypoint"] == ["/pause"]
    with tarfile.open(fileobj=io.BytesIO(read[manifest["Layers"][0]])) as layer:
        (member,) = layer.getmembers()
        assert (member.name, member.mode) == ("pause", 0o755)


def _read(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    assert file is not None
    return file.read()
