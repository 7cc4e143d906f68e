import json
import shlex
from pathlib import Path

import pytest

from devcluster import cli


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("WEIGHTLEASE_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("WEIGHTLEASE_CACHE", str(tmp_path / "a cache"))
    monkeypatch.delenv("WEIGHTLEASE_KUBECONFIG", raising=False)
    return tmp_path


def test_status_without_a_cluster_says_so_in_json_and_exit_status(
    environment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["status"]) == 3
    assert json.loads(capsys.readouterr().out)["running"] is False


def test_down_without_a_cluster_is_no_error(environment: Path) -> None:
    assert cli.main(["down"]) == 0
    assert list(environment.iterdir()) == []


def test_a_command_that_needs_a_cluster_names_the_way_to_one(
    environment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["node", "exec", "node-1", "--", "true"]) == 1
    assert "run up" in capsys.readouterr().err


def test_env_can_be_evaluated_whatever_the_paths_hold(
    environment: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEIGHTLEASE_KUBECONFIG", "/some where/config")
    assert cli.main(["env"]) == 0
    path, kubeconfig = map(shlex.split, capsys.readouterr().out.splitlines())
    assert path == ["export", f"PATH={environment / 'a cache' / 'bin'}:$PATH"]
    assert kubeconfig == ["export", "KUBECONFIG=/some where/config"]


@pytest.mark.parametrize(
    "argv", [["node", "add"], ["node", "remove", "x"], ["restart-api"], ["load", __file__]]
)
def test_an_existing_cluster_is_never_changed(
    environment: Path,
    argv: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WEIGHTLEASE_KUBECONFIG", "/some/config")
    assert cli.main(argv) == 1
    assert "existing cluster" in capsys.readouterr().err


def test_down_leaves_an_existing_cluster_alone(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEIGHTLEASE_KUBECONFIG", "/some/config")
    assert cli.main(["down"]) == 0


@pytest.mark.parametrize("text", ["[]", '{"kubectl": []}', '{"kubelet": "--v=4"}', "{"])
def test_flags_for_anything_but_known_components_are_refused(
    environment: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = environment / "flags.json"
    file.write_text(text)
    assert cli.main(["up", "--flags", str(file)]) == 1
    assert str(file) in capsys.readouterr().err
