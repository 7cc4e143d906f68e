import json
from pathlib import Path

import pytest

from devcluster import record
from devcluster.errors import DevclusterError
from devcluster.settings import Settings


def test_a_record_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    path = tmp_path / "state" / "cluster.json"
    saved = record.Record(
        network=Settings.from_environment({"HOME": "/h", "WEIGHTLEASE_INSTANCE": "3"}).network,
        sysctls={"net/ipv4/ip_forward": "0"},
        created=["/var/lib/kubelet"],
        nodes={"node-1": 1},
        archives=["/a.tar"],
        extra={"kubelet": ["--v=4"]},
    )
    saved.save(path)
    assert record.load(path) == saved


def test_no_file_is_no_cluster(tmp_path: Path) -> None:
    assert record.load(tmp_path / "cluster.json") is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1}', '{"format": 1, "network": []}'])
def test_a_damaged_record_is_an_error_and_not_an_absent_cluster(tmp_path: Path, text: str) -> None:
    path = tmp_path / "cluster.json"
    path.write_text(text)
    with pytest.raises(DevclusterError):
        record.load(path)


def test_a_record_of_another_format_says_which_tool_to_use(tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({"format": 2}))
    with pytest.raises(DevclusterError, match="format 2"):
        record.load(path)
