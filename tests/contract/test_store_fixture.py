"""A store as version 0.1.0 wrote it opens for ever.

fixtures/store-v1 was made once by `LocalStore` from the producer below and is never made again: a
change that cannot read it breaks every node's store. Git keeps neither modes nor empty
directories, so the copy gets them back.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from weightlease import filesystem
from weightlease.identity import WeightArtifactIdentity
from weightlease.reports import CleanupStatus, StoreStatus
from weightlease.store.layout import Paths
from weightlease.store.local import LocalStore

FIXTURE = Path(__file__).parent / "fixtures" / "store-v1"
KEY = "46c3e773be0e4f110b8c442f8ba735060c433affd9f4540609e46097cb68da40"
MANIFEST_SHA256 = "2d3d33499f5944767190aeabaa00437accca3e71f3bf375a22813d871cb4b8f0"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The fixture as it was on disk."""
    root = tmp_path / "store"
    shutil.copytree(FIXTURE, root)
    domain = root / "domain.json"
    found = filesystem.filesystem_type(str(tmp_path))
    domain.write_text(json.dumps(json.loads(domain.read_bytes()) | {"filesystem_type": found}))
    for path in root.rglob("*"):
        path.chmod(0o444 if path.is_file() else 0o700)
    for directory in Paths(str(root)).directories:
        Path(directory).mkdir(mode=0o700, exist_ok=True)
        Path(directory).chmod(0o700)
    for tree in (root / "artifacts" / KEY, root / "assets" / KEY):
        tree.chmod(0o555)
    return root


def test_the_artifact_is_found_by_its_identity_and_read_to_the_last_byte(root: Path) -> None:
    store = LocalStore(root)
    manifest = store.verify(KEY)
    identity = WeightArtifactIdentity.from_dict(manifest.identity.to_dict())
    assert identity.key == KEY
    result = store.lookup(identity)
    assert result.status is StoreStatus.HIT
    assert result.lease is not None
    with result.lease as lease:
        assert bytes(lease.buffer("encoder.weight")) == bytes(range(24))
        assert Path(lease.files()["1_Pooling/config.json"]).read_bytes() == b'{"pooling": true}'
        assert lease.provenance.manifest_sha256 == MANIFEST_SHA256


def test_a_denied_artifact_stays_denied(root: Path) -> None:
    (root / "deny" / f"{KEY}.json").write_bytes(
        b'{"message":"m","reason":"checksum_mismatch","schema_version":1,"stage":"validation"}'
    )
    assert LocalStore(root).lookup_key(KEY).status is StoreStatus.INVALID


def test_the_artifact_can_be_cleaned_up(root: Path) -> None:
    assert LocalStore(root).cleanup(KEY).status is CleanupStatus.REMOVED
