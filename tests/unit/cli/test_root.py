"""Every command on a store root, as a user runs it: output, exit code, what is on disk."""

from __future__ import annotations

import fcntl
import json
import signal
import sys
from pathlib import Path

import pytest

from command_line import spawned, started, weightlease
from weightlease.policy import CapacityPolicy, DomainPolicy
from weightlease.store.local import LocalStore


def payload(root: Path, key: str) -> Path:
    return root / "artifacts" / key / "model.safetensors"


def damage(path: Path) -> None:
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[-1] ^= 0x40
    path.write_bytes(data)
    path.chmod(0o444)


def test_publish_says_whether_it_published_and_a_second_one_finds_it(
    checkpoint: Path, root: Path
) -> None:
    arguments = ("publish", checkpoint, "--root", root, "--model-id", "tiny")
    first = spawned(*arguments)
    second = spawned(*arguments, "--output", "json")
    assert (first.code, second.code) == (0, 0)
    assert first.out.split()[1:] == ["published,", f"{second.json['payloadBytes']}B"]
    assert first.error == "", "no bar where nobody watches"
    assert second.json["status"] == "present"
    assert second.json["key"] == first.out.split()[0]
    assert (
        payload(root, second.json["key"]).read_bytes()
        == (checkpoint / "model.safetensors").read_bytes()
    )


def test_model_revision_component_and_path_are_what_the_key_is_made_of(
    checkpoint: Path, root: Path
) -> None:
    told = ("--model-id", "m", "--revision", "r", "--component", "vae", "--path", ".")
    one = weightlease("publish", checkpoint, "--root", root, *told, "-o", "json").json["key"]
    other = weightlease("publish", checkpoint, "--root", root, "-o", "json").json["key"]
    assert one != other
    identity = weightlease("inspect", one, "--root", root, "-o", "json").json["manifest"][
        "identity"
    ]
    assert identity["source"]["model_id"] == "m"
    assert identity["source"]["revision"] == "r"
    assert identity["component"]["name"] == "vae"
    listed = weightlease("ls", "--root", root, "-o", "json").json["artifacts"]
    assert {entry["key"] for entry in listed} == {one, other}


def test_ls_aligns_columns_for_people_and_gives_programs_everything(root: Path, key: str) -> None:
    people = weightlease("ls", "--root", root).out.splitlines()
    assert people[0].split() == [
        "KEY",
        "STATE",
        "SIZE",
        "CLASS",
        "NAMESPACE",
        "LEASES",
        "ARTIFACTS",
        "REASON",
    ]
    assert people[0].index("STATE") == people[1].index("ready")
    (entry,) = weightlease("ls", "--root", root, "--output", "json").json["artifacts"]
    assert (entry["key"], entry["state"], entry["leases"]) == (key, "ready", [])


def test_inspect_shows_files_and_on_request_tensors(root: Path, key: str) -> None:
    brief = weightlease("inspect", key, "--root", root)
    assert brief.code == 0
    for expected in ("model.safetensors", "1_Pooling/config.json", "tiny", "tensors:"):
        assert expected in brief.out
    assert "2x2" not in brief.out
    assert "2x2" in weightlease("inspect", key, "--root", root, "--tensors").out
    whole = weightlease("inspect", key, "--root", root, "--tensors", "-o", "json").json
    assert [tensor["name"] for tensor in whole["manifest"]["tensors"]] == ["b", "w"]


def test_verify_accepts_what_is_whole_and_denies_what_is_not(root: Path, key: str) -> None:
    good = weightlease("verify", key, "--root", root, "-o", "json")
    assert good.code == 0
    assert good.json["artifacts"][0]["valid"] is True
    assets = sum(path.stat().st_size for path in (root / "assets" / key).iterdir())
    assert good.json["artifacts"][0]["bytes"] == payload(root, key).stat().st_size + assets
    damage(payload(root, key))
    bad = weightlease("verify", key, "--root", root)
    assert bad.code == 5
    assert "checksum_mismatch" in bad.out
    assert "'model.safetensors' has the sha256" in bad.out
    (entry,) = weightlease("ls", "--root", root, "-o", "json").json["artifacts"]
    assert entry["state"] == "denied"
    assert weightlease("lease", key, "--root", root).code == 5
    shown = weightlease("inspect", key, "--root", root)
    assert (shown.code, "denied" in shown.out) == (0, True)


def test_verify_reads_assets_too_and_goes_on_after_a_bad_artifact(
    checkpoint: Path, root: Path, key: str
) -> None:
    other = weightlease("publish", checkpoint, "--root", root, "-o", "json").json["key"]
    for asset in (root / "assets" / key).iterdir():
        damage(asset)
    done = weightlease("verify", key, other, "f" * 64, "--root", root, "-o", "json")
    assert done.code == 5
    assert [one["valid"] for one in done.json["artifacts"]] == [False, True, False]


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_a_held_lease_is_printed_blocks_cleanup_and_ends_cleanly(
    root: Path, key: str, ending: signal.Signals
) -> None:
    holder = started("lease", key, "--root", root)
    assert holder.stdout is not None
    lines = [holder.stdout.readline() for _ in range(7)]
    assert lines[0].split() == ["key:", key]
    path = next(line.split()[1] for line in lines if line.startswith("model.safetensors"))
    assert Path(path).read_bytes() == payload(root, key).read_bytes()
    busy = weightlease("cleanup", key, "--root", root)
    assert (busy.code, "active_lease" in busy.out) == (4, True)
    holder.send_signal(ending)
    _, error = holder.communicate(timeout=30)
    assert (holder.returncode, error) == (0, "")
    assert weightlease("cleanup", key, "--root", root).code == 0


def test_a_command_runs_with_the_artifacts_files_and_gives_its_exit_code(
    root: Path, key: str
) -> None:
    program = (
        "import os, sys; d = os.environ['WEIGHTLEASE_DIR']\n"
        "print(os.environ['WEIGHTLEASE_KEY'], open(d + '/1_Pooling/config.json').read())\n"
        "sys.exit(7)"
    )
    done = spawned("lease", key, "--root", root, "--", sys.executable, "-c", program)
    assert done.code == 7
    assert done.out == f'{key} {{"pooling": true}}\n'
    killed = spawned("lease", key, "--root", root, "--", "sh", "-c", "kill -9 $$")
    assert killed.code == 128 + signal.SIGKILL
    missing = weightlease("lease", key, "--root", root, "--", "/no/such/command")
    assert (missing.code, "/no/such/command" in missing.error) == (1, True)
    assert weightlease("cleanup", key, "--root", root).code == 0


def test_a_terminated_lease_passes_the_signal_on_to_its_command(root: Path, key: str) -> None:
    program = (
        "import signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n"
        "print('ready', flush=True); signal.sigwait([signal.SIGTERM]); sys.exit(9)"
    )
    holder = started("lease", key, "--root", root, "--", sys.executable, "-c", program)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "ready\n"
    holder.send_signal(signal.SIGTERM)
    holder.communicate(timeout=30)
    assert holder.returncode == 9


def test_cleanup_removes_and_then_finds_nothing(root: Path, key: str) -> None:
    removed = weightlease("cleanup", key, "--root", root, "-o", "json")
    assert (removed.code, removed.json["status"]) == (0, "removed")
    assert removed.json["freedBytes"] > 200
    assert not payload(root, key).exists()
    assert weightlease("cleanup", key, "--root", root).code == 3
    assert weightlease("ls", "--root", root).error == "no artifacts\n"


def test_what_is_absent_or_malformed_has_its_own_exit_code(
    tmp_path: Path, root: Path, key: str
) -> None:
    assert weightlease("inspect", "f" * 64, "--root", root).code == 3
    assert weightlease("lease", "f" * 64, "--root", root).code == 3
    assert weightlease("ls", "--root", tmp_path / "absent").code == 3
    assert not (tmp_path / "absent").exists(), "only publish makes a store"
    assert weightlease("publish", tmp_path / "absent", "--root", root).code == 3
    assert weightlease("inspect", "team-a/model", "--root", root).code == 2
    assert weightlease("cleanup", key.upper(), "--root", root).code == 2
    assert weightlease("ls", "--root", root, "--socket", "x").code == 2
    assert weightlease("lease", key, "--root", root, "--").code == 2
    assert weightlease("frobnicate").code == 2
    (tmp_path / "empty").mkdir()
    assert weightlease("publish", tmp_path / "empty", "--root", root).code in {3, 5}


def test_an_error_is_json_where_json_was_asked_for(root: Path, key: str) -> None:
    done = weightlease("lease", "f" * 64, "--root", root, "--output", "json")
    assert done.out == ""
    assert json.loads(done.error)["error"]["code"] == "local_miss"


def test_a_store_with_limits_is_opened_with_its_own_limits(checkpoint: Path, root: Path) -> None:
    LocalStore(root, DomainPolicy(capacity=CapacityPolicy(max_artifact_bytes=100)))
    full = weightlease("publish", checkpoint, "--root", root)
    assert (full.code, "artifact_too_large" in full.error) == (8, True)
    assert weightlease("ls", "--root", root).code == 0


def test_a_store_with_limits_that_cannot_be_is_not_the_users_mistake(root: Path, key: str) -> None:
    policy = root / "domain-policy.json"
    limits = json.loads(policy.read_bytes()) | {"max_artifact_bytes": -5}
    policy.unlink()
    policy.write_text(json.dumps(limits))
    done = weightlease("verify", key, "--root", root)
    assert (done.code, "max_artifact_bytes is -5 on disk" in done.error) == (6, True)


@pytest.mark.parametrize("where", [".", "..", "../../memory"])
def test_a_running_agents_root_is_read_and_never_changed(
    checkpoint: Path, tmp_path: Path, where: str
) -> None:
    root = tmp_path / "disk" / "team-a"
    (tmp_path / "memory").mkdir()
    published = weightlease("publish", checkpoint, "--root", root, "-o", "json")
    key = published.json["key"]
    lock = root / where / "agent.lock"
    with open(lock, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        for refused in (
            weightlease("cleanup", key, "--root", root),
            weightlease("publish", checkpoint, "--root", root),
        ):
            assert refused.code == 7
            assert "--socket instead of --root" in refused.error
        assert weightlease("ls", "--root", root).code == 0
        assert weightlease("inspect", key, "--root", root).code == 0
        damage(payload(root, key))
        assert weightlease("verify", key, "--root", root).code == 5
        assert not list((root / "deny").iterdir()), "the agent itself finds and denies it"
    assert weightlease("cleanup", key, "--root", root).code == 0


def test_help_documents_every_exit_code() -> None:
    text = weightlease("--help").out
    for line in ("0     done", "4     in use", "7     refused", "130   interrupted"):
        assert line in text
