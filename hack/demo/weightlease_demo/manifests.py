"""The objects that the demo and the end-to-end tests apply, as plain values."""

from __future__ import annotations

import sysconfig
from collections.abc import Mapping
from typing import Any

from weightlease_demo.cluster import REPOSITORY
from weightlease_demo.hub import Hub
from weightlease_demo.kubectl import Object

API_VERSION = "weightlease.io/v1alpha1"
SERVING_PORT = 8080
_SITE_PACKAGES = sysconfig.get_paths()["purelib"]
_RESTRICTED = {
    "runAsNonRoot": True,
    "runAsUser": 65532,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
}


def namespace(name: str) -> Object:
    """A namespace."""
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def hub_token_secret(name: str, in_namespace: str, token: str) -> Object:
    """A Secret with a Hub token under the key `token`."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": in_namespace},
        "stringData": {"token": token},
    }


def hub_artifact(
    name: str, in_namespace: str, hub: Hub, *, credentials: str = "", **spec: Any
) -> Object:  # fmt: skip
    """A WeightArtifact of a Hub repository."""
    source: Object = {"repo": hub.repo, "revision": hub.commit, "endpoint": hub.endpoint}
    if credentials:
        source["tokenSecretRef"] = {"name": credentials}
    return _artifact(name, in_namespace, {"huggingFace": source}, spec)


def claim_artifact(name: str, in_namespace: str, claim: str, **spec: Any) -> Object:
    """A WeightArtifact of a folder in a claim."""
    return _artifact(name, in_namespace, {"persistentVolumeClaim": {"claimName": claim}}, spec)


def claim_on_host_path(name: str, in_namespace: str, path: str) -> tuple[Object, Object]:
    """A read-only-many volume over a folder of every node, and the claim bound to it."""
    shared: Object = {
        "accessModes": ["ReadOnlyMany"],
        "storageClassName": "",
    }
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"{in_namespace}-{name}"},
        "spec": {
            **shared,
            "capacity": {"storage": "1Gi"},
            "hostPath": {"path": path, "type": "Directory"},
            "claimRef": {"namespace": in_namespace, "name": name},
            "persistentVolumeReclaimPolicy": "Retain",
        },
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": in_namespace},
        "spec": {
            **shared,
            "resources": {"requests": {"storage": "1Gi"}},
            "volumeName": f"{in_namespace}-{name}",
        },
    }
    return volume, claim


def consumer_pod(
    name: str,
    in_namespace: str,
    *,
    node: str,
    image: str,
    command: list[str],
    security: Object | None = None,
    folders: Mapping[str, str] | None = None,
) -> Object:
    """A pod that can reach its node's agent.

    It runs the producer's image, with this environment's site-packages mounted read-only for what
    the image lacks: torch and transformers. `folders` are more folders of the host, by mount path.
    """
    host_folders = {
        "/run/weightlease": "/run/weightlease",
        "/opt/site-packages": _SITE_PACKAGES,
        "/examples": str(REPOSITORY / "examples"),
        **(folders or {}),
    }
    token = {"serviceAccountToken": {"audience": "weightlease.io", "path": "token"}}
    volumes: list[Object] = [{"name": "token", "projected": {"sources": [token]}}]
    mounts: list[Object] = [{"name": "token", "mountPath": "/var/run/secrets/weightlease.io"}]
    for number, (mount, path) in enumerate(host_folders.items()):
        volume = f"folder-{number}"
        volumes.append({"name": volume, "hostPath": {"path": path, "type": "Directory"}})
        mounts.append({"name": volume, "mountPath": mount, "readOnly": True})
    environment = {
        "PYTHONPATH": "/opt/site-packages:/examples",
        "HF_HUB_OFFLINE": "1",
        "HOME": "/nonexistent",
        "NODE_NAME": node,
        "POD_NAME": name,
    }
    container = {
        "name": "main",
        "image": image,
        "imagePullPolicy": "Never",
        "command": command,
        "env": [{"name": key, "value": value} for key, value in environment.items()],
        "securityContext": security or _RESTRICTED,
        "volumeMounts": mounts,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": in_namespace, "labels": {"app": name}},
        "spec": {
            "nodeName": node,
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 3,
            "containers": [container],
            "volumes": volumes,
        },
    }


def serving_pod(name: str, in_namespace: str, *, node: str, image: str, artifact: str) -> Object:
    """A pod that serves embeddings from a lease; it is ready once it has computed some."""
    pod = consumer_pod(
        name,
        in_namespace,
        node=node,
        image=image,
        command=[
            "/opt/weightlease/bin/python",
            "/examples/serve_minilm.py",
            "--artifact",
            artifact,
            "--port",
            str(SERVING_PORT),
        ],
    )
    pod["spec"]["containers"][0]["readinessProbe"] = {
        "httpGet": {"path": "/healthz", "port": SERVING_PORT},
        "periodSeconds": 1,
    }
    return pod


def _artifact(name: str, in_namespace: str, source: Object, spec: Object) -> Object:
    return {
        "apiVersion": API_VERSION,
        "kind": "WeightArtifact",
        "metadata": {"name": name, "namespace": in_namespace},
        "spec": {"source": source, **spec},
    }
