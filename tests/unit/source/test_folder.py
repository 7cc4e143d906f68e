"""A folder is read beneath its root, and only while it stands still."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tensor_files import tensor_file
from weightlease.reasons import Reason
from weightlease.source.errors import SourceError
from weightlease.source.folder import FolderSource
from weightlease.source.model import Phase, SourceFile


def problems(folder: Path) -> dict[str, str]:
    with FolderSource(str(folder)) as source:
        return {file.path: file.problem for file in source.files()}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "root" / "model"
    (folder / "sub").mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(tensor_file({"w": b"1234"}))
    (folder / "sub" / "config.json").write_text("{}")
    return folder


def test_files_are_listed_with_sizes_and_hidden_names_are_not_walked(checkpoint: Path) -> None:
    (checkpoint / ".git").mkdir()
    (checkpoint / ".git" / "config").write_text("x")
    (checkpoint / "empty.json").touch()
    with FolderSource(str(checkpoint)) as source:
        listed = source.files()
    size = (checkpoint / "model.safetensors").stat().st_size
    assert listed == (
        SourceFile("empty.json", 0),
        SourceFile("model.safetensors", size),
        SourceFile("sub/config.json", 2),
    )


def test_hashing_reports_each_byte_once(checkpoint: Path) -> None:
    seen: list[tuple[Phase, int, int]] = []
    with FolderSource(str(checkpoint), progress=lambda *told: seen.append(told)) as source:
        hashed = source.hashed(source.files())
    content = (checkpoint / "model.safetensors").read_bytes()
    assert hashed[0].sha256 == hashlib.sha256(content).hexdigest()
    assert sum(done for _, done, _ in seen) == seen[0][2] == sum(file.size for file in hashed)


def test_links_inside_the_root_are_followed_and_links_out_of_it_are_named(checkpoint: Path) -> None:
    (checkpoint.parent / "secret.json").write_text("secret")
    (checkpoint / "inside.json").symlink_to("sub/config.json")
    (checkpoint / "absolute.json").symlink_to(checkpoint / "sub" / "config.json")
    (checkpoint / "relative-out.json").symlink_to("../secret.json")
    (checkpoint / "absolute-out.json").symlink_to("/etc/hostname")
    (checkpoint / "prefix-out.json").symlink_to(f"{checkpoint}-twin/x.json")
    (checkpoint / "round.json").symlink_to("round.json")
    (checkpoint / "nothing.json").symlink_to("absent.json")
    (checkpoint / "folder").symlink_to("sub")
    found = problems(checkpoint)
    assert found["inside.json"] == found["absolute.json"] == ""
    for name in ("relative-out.json", "absolute-out.json", "prefix-out.json"):
        assert "leaves the source's root" in found[name]
    assert found["round.json"] == "too many links"
    assert "missing" in found["nothing.json"]
    assert "folder" in found["folder"]


def test_a_component_below_the_root_may_link_to_its_neighbours(checkpoint: Path) -> None:
    (checkpoint.parent / "shared.json").write_text("{}")
    (checkpoint / "shared.json").symlink_to("../shared.json")
    with FolderSource(str(checkpoint.parent), "model") as source:
        listed = {file.path: file for file in source.files()}
        assert listed["shared.json"].problem == ""
        assert source.read(listed["shared.json"], 10) == b"{}"


def test_a_hub_cache_snapshot_reads_its_blobs_and_nothing_beside_them(tmp_path: Path) -> None:
    repository = tmp_path / "models--org--name"
    snapshot = repository / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    (repository / "blobs" / "abc").write_bytes(tensor_file({"w": b"x"}))
    (tmp_path / "outside").write_text("x")
    (snapshot / "model.safetensors").symlink_to("../../blobs/abc")
    (snapshot / "out.json").symlink_to("../../../outside")
    assert problems(snapshot) == {
        "model.safetensors": "",
        "out.json": "a link leaves the source's root",
    }


def test_links_and_copies_in_a_snapshot_are_read_alike_whatever_blobs_are_called(
    tmp_path: Path,
) -> None:
    repository = tmp_path / "models--org--name"
    snapshot = repository / "snapshots" / ("a" * 40)
    (snapshot / "notes").mkdir(parents=True)
    (repository / "blobs").mkdir()
    weights, config = tensor_file({"w": b"x"}), b"{}"
    git_name = hashlib.sha1(b"blob 2\0{}", usedforsecurity=False).hexdigest()
    names = {
        "model.safetensors": (hashlib.sha256(weights).hexdigest(), weights),
        "config.json": (git_name, config),
        "mirrored.json": ("0x8DC5-etag", config),
        # neither digest is the content's: a name proves nothing
        "damaged.json": (hashlib.sha256(weights).hexdigest()[::-1], config),
    }
    for name, (blob, content) in names.items():
        (repository / "blobs" / blob).write_bytes(content)
        (snapshot / name).symlink_to(f"../../blobs/{blob}")
    (snapshot / "copied.json").write_bytes(config)
    (snapshot / "notes" / "mine.txt").write_text("a user's own")
    before = sorted((path, path.lstat().st_mtime_ns) for path in repository.rglob("*"))
    with FolderSource(str(snapshot)) as source:
        hashed = {file.path: file.sha256 for file in source.hashed(source.files())}
    expected = {name: hashlib.sha256(content).hexdigest() for name, (_, content) in names.items()}
    expected["copied.json"] = hashlib.sha256(config).hexdigest()
    expected["notes/mine.txt"] = hashlib.sha256(b"a user's own").hexdigest()
    assert hashed == expected
    assert sorted((path, path.lstat().st_mtime_ns) for path in repository.rglob("*")) == before


def test_one_dangling_link_and_an_empty_file_hide_nothing_else(checkpoint: Path) -> None:
    (checkpoint / "gone.json").symlink_to("../blobs/gone")
    (checkpoint / "empty.json").touch()
    with FolderSource(str(checkpoint)) as source:
        listed = {file.path: (file.size, bool(file.problem)) for file in source.files()}
    size = (checkpoint / "model.safetensors").stat().st_size
    assert listed == {
        "empty.json": (0, False),
        "gone.json": (0, True),
        "model.safetensors": (size, False),
        "sub/config.json": (2, False),
    }


def test_special_files_are_listed_as_such_and_never_opened(checkpoint: Path) -> None:
    os.mkfifo(checkpoint / "pipe.json")
    (checkpoint / "device.json").symlink_to("/dev/zero")
    found = problems(checkpoint)
    assert "neither a regular file" in found["pipe.json"]
    assert found["device.json"]


def test_a_name_that_is_not_utf8_is_a_problem_of_that_file_alone(checkpoint: Path) -> None:
    with open(os.fsencode(checkpoint) + b"/caf\xe9.json", "wb"):
        pass
    found = problems(checkpoint)
    assert [text for text in found.values() if text] == ["its name is not UTF-8"]


def test_what_may_not_be_read_is_a_problem_of_that_file_or_folder() -> None:
    program = (
        "import os, sys\n"
        "from weightlease.source.folder import FolderSource\n"
        "if os.geteuid() == 0:\n"
        "    os.seteuid(65534)\n"
        "for file in FolderSource(sys.argv[1]).files():\n"
        "    print(file.path, file.problem, sep=': ')\n"
    )
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root)
        folder.chmod(0o755)
        (folder / "closed.json").write_text("{}")
        (folder / "closed.json").chmod(0)
        (folder / "locked").mkdir()
        (folder / "locked").chmod(0)
        finished = subprocess.run(
            [sys.executable, "-c", program, root],
            check=False,
            capture_output=True,
            text=True,
        )
        (folder / "locked").chmod(0o755)
    assert finished.returncode == 0, finished.stderr
    lines = finished.stdout.splitlines()
    assert lines[0] == "closed.json: permission denied"
    assert lines[1].startswith("locked: ")
    assert "denied" in lines[1].lower()


def test_a_file_that_changes_after_the_listing_is_source_changed(checkpoint: Path) -> None:
    with FolderSource(str(checkpoint)) as source:
        listed = source.files()
        (checkpoint / "sub" / "config.json").write_text("[]")
        with pytest.raises(SourceError) as caught:
            source.hashed(listed)
    assert caught.value.reason is Reason.SOURCE_CHANGED
    assert "sub/config.json" in caught.value.failure.message


def replace(path: Path, content: bytes) -> None:
    path.unlink()
    path.write_bytes(content)


CHANGES: dict[str, Callable[[Path, bytes], object]] = {
    "rewritten": lambda path, content: path.write_bytes(content[::-1]),
    "replaced": replace,
    "removed": lambda path, _: path.unlink(),
    "grown": lambda path, content: path.write_bytes(content + b"tail"),
}


def read_while(source: FolderSource, file: SourceFile, change: Callable[[], object]) -> None:
    with source.open(file) as opened:
        for _ in opened.chunks():
            change()


@pytest.mark.parametrize("how", sorted(CHANGES))
def test_a_file_that_changes_while_it_is_read_is_source_changed(checkpoint: Path, how: str) -> None:
    path = checkpoint / "model.safetensors"
    content = path.read_bytes()
    with FolderSource(str(checkpoint)) as source:
        file = source.files()[0]
        with pytest.raises(SourceError) as caught:
            read_while(source, file, lambda: CHANGES[how](path, content))
    assert caught.value.reason is Reason.SOURCE_CHANGED


def test_a_file_swapped_for_a_link_out_of_the_root_is_not_read(checkpoint: Path) -> None:
    with FolderSource(str(checkpoint)) as source:
        file = source.files()[1]
        (checkpoint / "sub" / "config.json").unlink()
        (checkpoint / "sub" / "config.json").symlink_to("/etc/hostname")
        with pytest.raises(SourceError) as caught:
            source.read(file, 100)
    assert caught.value.reason is Reason.SOURCE_CHANGED


@pytest.mark.parametrize("path", ["/etc", "../model", "a/../..", "a\\b"])
def test_a_component_path_that_could_leave_the_root_is_refused(checkpoint: Path, path: str) -> None:
    with pytest.raises(SourceError) as caught:
        FolderSource(str(checkpoint), path)
    assert caught.value.reason is Reason.SOURCE_MALFORMED


def test_a_missing_root_or_component_is_source_not_found(checkpoint: Path) -> None:
    for path, component in ((str(checkpoint / "absent"), "."), (str(checkpoint), "absent")):
        with pytest.raises(SourceError) as caught:
            FolderSource(path, component)
        assert caught.value.reason is Reason.SOURCE_NOT_FOUND


def test_a_component_that_links_out_of_the_root_is_refused(checkpoint: Path) -> None:
    (checkpoint / "escape").symlink_to("/etc")
    with pytest.raises(SourceError, match="leaves the source's root"):
        FolderSource(str(checkpoint), "escape")


def test_a_file_larger_than_a_reader_allows_is_refused(checkpoint: Path) -> None:
    with FolderSource(str(checkpoint)) as source, pytest.raises(SourceError, match="limit"):
        source.read(source.files()[0], 3)
