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
    mounts = {
        "socket": ("/run/weightlease", "/run/weightlease"),
        "libraries": (_SITE_PACKAGES, "/opt/site-packages"),
        "examples": (str(REPOSITORY / "examples"), "/examples"),
        **{
            f"folder-{number}": (path, mount)
            for number, (mount, path) in enumerate((folders or {}).items())
        },
    }
    token = {"serviceAccountToken": {"audience": "weightlease.io", "path": "token"}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": in_namespace, "labels": {"app": name}},
        "spec": {
            "nodeName": node,
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 3,
            "containers": [
                {
                    "name": "main",
                    "image": image,
                    "imagePullPolicy": "Never",
                    "command": command,
                    "env": [
                        {"name": "PYTHONPATH", "value": "/opt/site-packages"},
                        {"name": "HF_HUB_OFFLINE", "value": "1"},
                        {"name": "HOME", "value": "/nonexistent"},
                        {"name": "NODE_NAME", "value": node},
                        {"name": "POD_NAME", "value": name},
                    ],
                    "securityContext": security
                    or {
                        "runAsNonRoot": True,
                        "runAsUser": 65532,
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"]},
                    },
                    "volumeMounts": [
                        *(
                            {"name": volume, "mountPath": path, "readOnly": True}
                            for volume, (_, path) in mounts.items()
                        ),
                        {
                            "name": "token",
                            "mountPath": "/var/run/secrets/weightlease.io",
                            "readOnly": True,
                        },
                    ],
                }
            ],
            "volumes": [
                *(
                    {"name": volume, "hostPath": {"path": path, "type": "Directory"}}
                    for volume, (path, _) in mounts.items()
                ),
                {"name": "token", "projected": {"sources": [token]}},
            ],
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
