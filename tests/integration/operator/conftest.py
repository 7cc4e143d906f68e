"""One API server per test module, with the custom resources of the tree installed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import apiserver


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[apiserver.ApiServer]:
    with apiserver.running(tmp_path_factory.mktemp("apiserver"), controllers=True) as running:
        running.install_crds()
        yield running


@pytest.fixture
def namespace(server: apiserver.ApiServer, request: pytest.FixtureRequest) -> str:
    body = {"metadata": {"generateName": "test-"}}
    name: str = server.create("/api/v1/namespaces", body)["metadata"]["name"]
    return name
