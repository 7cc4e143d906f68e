"""Pods that pass the restricted Pod Security Standard and need nothing of the host."""

from __future__ import annotations

import sysconfig

from weightlease_demo.cluster import REPOSITORY
from weightlease_demo.kubectl import Object
from weightlease_demo.manifests import claim_on_host_path

PYTHON = "/opt/weightlease/bin/python"
PROGRAMS = REPOSITORY / "tests" / "e2e" / "programs"
LIBRARIES = "libraries"
_SCRIPTS = "programs"


def restricted_namespace(name: str) -> Object:
    """A namespace that admits nothing else."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def libraries(namespace: str) -> tuple[Object, Object]:
    """This environment's torch and transformers as a claim, which restricted pods may mount."""
    return claim_on_host_path(LIBRARIES, namespace, sysconfig.get_paths()["purelib"])


def programs(namespace: str, *names: str) -> Object:
    """Some of the end-to-end programs as a ConfigMap."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": _SCRIPTS, "namespace": namespace},
        "data": {name: (PROGRAMS / name).read_text() for name in names},
    }


def restricted_pod(
    name: str, namespace: str, *, node: str, image: str, command: list[str], artifact: str = ""
) -> Object:
    """A pod with one of our volumes at /run/weightlease; `artifact` adds the files."""
    volume: Object = {"driver": "csi.weightlease.io", "readOnly": True}
    if artifact:
        volume["volumeAttributes"] = {"artifact": artifact}
    environment = {
        "PYTHONPATH": "/opt/libraries",
        "HF_HUB_OFFLINE": "1",
        "HOME": "/tmp",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    container = {
        "name": "main",
        "image": image,
        "imagePullPolicy": "Never",
        "command": command,
        "env": [{"name": key, "value": value} for key, value in environment.items()],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "weights", "mountPath": "/run/weightlease", "readOnly": True},
            {"name": "libraries", "mountPath": "/opt/libraries", "readOnly": True},
            {"name": "programs", "mountPath": "/programs", "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": name}},
        "spec": {
            "nodeName": node,
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 3,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
            "volumes": [
                {"name": "weights", "csi": volume},
                {
                    "name": "libraries",
                    "persistentVolumeClaim": {"claimName": LIBRARIES, "readOnly": True},
                },
                {"name": "programs", "configMap": {"name": _SCRIPTS}},
                {"name": "tmp", "emptyDir": {}},
            ],
        },
    }
