"""A real etcd, API server and a few controllers, without nodes: validation, CEL, conflicts, Jobs.

The programs are those that `devcluster build` made or found. Everything lives in one folder and
dies with the context.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from devcluster.binaries import bin_folder, built_folder
from devcluster.components import COMPONENTS
from devcluster.settings import Settings
from mortal import MORTAL

Object = dict[str, Any]

TOKEN = "tests-admin"
MERGE = "application/merge-patch+json"
_START_SECONDS = 60
_CONTROLLERS = (
    "garbage-collector-controller",
    "job-controller",
    "namespace-controller",
    "serviceaccount-controller",
)
CRDS = Path(__file__).resolve().parents[2] / "crds"


class HttpError(Exception):
    """The API server's answer to a call that it refused."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status, self.message = status, message


def find_program(name: str) -> str:
    """A program on PATH, or one that `devcluster build` made.

    Raises:
        RuntimeError: neither is there.

    """
    cache = Settings.from_environment(os.environ).cache
    folders = [bin_folder(cache)]
    folders += [built_folder(cache, each) for each in COMPONENTS if name in each.commands]
    path = os.pathsep.join([os.environ.get("PATH", ""), *map(str, folders)])
    found = shutil.which(name, path=path)
    if found is None:
        raise RuntimeError(f"no {name} on PATH or in {cache}: run `python -m devcluster build`")
    return found


class Program:
    """One process of the cluster, which a test may stop and start again."""

    def __init__(self, folder: Path, name: str, flags: list[str]) -> None:
        self._folder, self._name, self._flags = folder, name, flags
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self._folder / f"{self._name}.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*MORTAL, find_program(self._name), *self._flags],
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
            )

    def stop(self) -> None:
        """Hard: nothing of it is kept, and the API server takes long to leave in peace."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@dataclass(frozen=True)
class ApiServer:
    """How to reach it, over one connection; calls are JSON and raise HttpError."""

    kubeconfig: Path
    connection: http.client.HTTPSConnection
    program: Program
    token: str = TOKEN

    def call(
        self, method: str, path: str, body: Object | None = None, content: str = "application/json"
    ) -> Object:
        data = None if body is None else json.dumps(body)
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": content}
        try:
            self.connection.request(method, path, data, headers)
            answer = self.connection.getresponse()
            text = answer.read().decode(errors="replace")
        except (http.client.HTTPException, OSError):
            self.connection.close()  # the next call connects anew
            raise
        if answer.status >= 400:
            raise HttpError(answer.status, text)
        decoded: Object = json.loads(text)
        return decoded

    def get(self, path: str) -> Object:
        return self.call("GET", path)

    def create(self, path: str, body: Object) -> Object:
        return self.call("POST", f"{path}?fieldValidation=Strict", body)

    def patch(self, path: str, body: Object) -> Object:
        return self.call("PATCH", path, body, MERGE)

    def delete(self, path: str) -> Object:
        return self.call("DELETE", path)

    def kubectl(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [find_program("kubectl"), f"--kubeconfig={self.kubeconfig}", *arguments],
            check=check,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def kubeconfig_of(self, namespace: str, account: str) -> Path:
        """A kubeconfig with nothing but the rights of a service account."""
        token = self.kubectl("create", "token", account, "-n", namespace, "--duration=24h").stdout
        config = json.loads(self.kubeconfig.read_text())
        config["users"] = [{"name": "test", "user": {"token": token.strip()}}]
        path = self.kubeconfig.with_name(f"kubeconfig-{account}")
        path.write_text(json.dumps(config))
        return path

    def wait_until_it_answers(self) -> None:
        """After `program` was started again."""
        _until_answered(lambda: self.get("/api/v1/namespaces/default"))
        for plural in ("weightartifacts", "weightproducers", "weightnodes"):
            # an established resource still answers 429 while its storage begins
            _until_answered(partial(self.get, f"/apis/weightlease.io/v1alpha1/{plural}"))

    def install_crds(self) -> None:
        """The definitions of the tree, established."""
        root = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        for path in sorted(CRDS.glob("*.yaml")):
            name = self.create(root, yaml.safe_load(path.read_text()))["metadata"]["name"]
            self.kubectl("wait", "--for=condition=Established", f"crd/{name}", "--timeout=30s")
        self.wait_until_it_answers()


@contextmanager
def running(folder: Path, *, controllers: bool = False) -> Iterator[ApiServer]:
    """An API server in `folder`; with `controllers`, Jobs get pods and dependents are collected."""
    with ExitStack() as stack:
        etcd = f"http://127.0.0.1:{_free_port()}"
        stack.enter_context(_process(folder, "etcd", _etcd_flags(folder, etcd)))
        port = _free_port()
        flags = _api_flags(folder, etcd, port)
        program = stack.enter_context(_process(folder, "kube-apiserver", flags))
        server = _connect(folder, port, program)
        stack.callback(server.connection.close)
        if controllers:
            flags = [
                f"--kubeconfig={server.kubeconfig}",
                f"--controllers={','.join(_CONTROLLERS)}",
                f"--service-account-private-key-file={folder}/accounts.key",
                "--leader-elect=false",
                "--secure-port=0",
            ]
            stack.enter_context(_process(folder, "kube-controller-manager", flags))
        yield server


def _etcd_flags(folder: Path, url: str) -> list[str]:
    peer = f"http://127.0.0.1:{_free_port()}"
    return [
        f"--data-dir={folder}/etcd",
        f"--listen-client-urls={url}",
        f"--advertise-client-urls={url}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--unsafe-no-fsync",
    ]


def _api_flags(folder: Path, etcd: str, port: int) -> list[str]:
    (folder / "tokens.csv").write_text(f'{TOKEN},admin,admin,"system:masters"\n')
    subprocess.run(
        ["openssl", "genrsa", "-out", f"{folder}/accounts.key", "2048"],
        check=True,
        capture_output=True,
        timeout=60,
    )
    return [
        f"--etcd-servers={etcd}",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--cert-dir={folder}/certificates",
        f"--token-auth-file={folder}/tokens.csv",
        "--authorization-mode=RBAC",
        "--service-cluster-ip-range=10.0.0.0/24",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={folder}/accounts.key",
        f"--service-account-signing-key-file={folder}/accounts.key",
        "--profiling=false",
    ]


@contextmanager
def _process(folder: Path, name: str, flags: list[str]) -> Iterator[Program]:
    program = Program(folder, name, flags)
    program.start()
    try:
        yield program
    finally:
        program.stop()


def _kubeconfig(folder: Path, port: int) -> Path:
    url, ca = f"https://127.0.0.1:{port}", folder / "certificates" / "apiserver.crt"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": "test", "cluster": {"server": url, "certificate-authority": str(ca)}}
        ],
        "users": [{"name": "test", "user": {"token": TOKEN}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "current-context": "test",
    }
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(json.dumps(config))
    return kubeconfig


def _connect(folder: Path, port: int, program: Program) -> ApiServer:
    """Wait until the server has made its certificate and answers."""
    certificate = folder / "certificates" / "apiserver.crt"
    try:
        _until_answered(certificate.stat)
        context = ssl.create_default_context(cafile=str(certificate))
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=20, context=context)
        server = ApiServer(_kubeconfig(folder, port), connection, program)
        _until_answered(lambda: server.get("/api/v1/namespaces/default"))
    except (OSError, HttpError, http.client.HTTPException) as error:
        log = (folder / "kube-apiserver.log").read_text()[-4000:]
        raise RuntimeError(f"the API server is not ready ({error}):\n{log}") from error
    return server


def _until_answered(call: Callable[[], object]) -> None:
    """Repeat a call until it succeeds; raises its last error after a while."""
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            call()
        except (OSError, HttpError, http.client.HTTPException):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
