"""The chart as different administrators would render it."""

from __future__ import annotations

from typing import Any

import pytest

from helm import Object, render

MONITORING = ("monitoring.coreos.com/v1/PodMonitor", "monitoring.coreos.com/v1/PrometheusRule")

VALUE_SETS: dict[str, dict[str, Any]] = {
    "default": {},
    "without-privileges": {
        "memory": {"enabled": False},
        "csi": {"enabled": False},
        "rbac": {"aggregateToDefaultRoles": False},
    },
    "everything": {
        "imagePullSecrets": [{"name": "registry"}],
        "store": {"hostPath": "/mnt/nvme0/weightlease", "recursiveReadOnly": "Enabled"},
        "memory": {"size": "64Gi", "hugePages": "always"},
        "operator": {
            "allowHostPathSources": True,
            "logLevel": "debug",
            "priorityClassName": "system-cluster-critical",
            "nodeSelector": {"node-role.kubernetes.io/control-plane": ""},
            "tolerations": [{"key": "control", "operator": "Exists", "effect": "NoSchedule"}],
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}
                        ]
                    }
                }
            },
            "podAnnotations": {"example.com/note": "one"},
            "podLabels": {"team": "platform"},
            "plan": {"agentGraceSeconds": 60, "backoffCapSeconds": 120},
            "jobs": {"scratchSize": "64Gi"},
            "replicas": 3,
            "election": {"leaseSeconds": 30},
            "pace": {"workers": 8, "resyncSeconds": 600.5},
        },
        "agent": {
            "nodeSelector": {"accelerator": "gpu"},
            "podAnnotations": {"example.com/note": "two"},
            "podLabels": {"team": "platform"},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}},
            "limits": {"connections": 2048, "bodySeconds": 90},
            "intervals": {"leaseSweep": 2.5},
        },
        "csi": {
            "kubeletPath": "/var/data/kubelet",
            "maxUnavailable": "10%",
            "podAnnotations": {"example.com/note": "three"},
            "podLabels": {"team": "platform"},
        },
        "monitoring": {
            "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
            "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
            "dashboard": {"enabled": True, "annotations": {"grafana_folder": "weights"}},
        },
        "networkPolicy": {
            "enabled": True,
            "metricsFrom": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}],
        },
    },
    "mirrored": {
        "fullnameOverride": "weights",
        "global": {"imageRegistry": "registry.example.com:5000/mirror"},
        "images": {
            "operator": {"tag": "1.2.3"},
            "nodeAgent": {"digest": "sha256:" + "ab" * 32},
            "producer": {"pullPolicy": "Always"},
        },
        "agent": {"updateStrategy": {"type": "OnDelete", "rollingUpdate": None}},
        "networkPolicy": {"enabled": True},
    },
}


@pytest.fixture(scope="session")
def rendered() -> dict[str, list[Object]]:
    """Every value set's objects."""
    return {name: render(values, api_versions=MONITORING) for name, values in VALUE_SETS.items()}


@pytest.fixture(params=VALUE_SETS)
def objects(request: pytest.FixtureRequest, rendered: dict[str, list[Object]]) -> list[Object]:
    """One value set's objects; a test that takes this runs once for each set."""
    return rendered[request.param]


@pytest.fixture
def default(rendered: dict[str, list[Object]]) -> list[Object]:
    return rendered["default"]


@pytest.fixture
def everything(rendered: dict[str, list[Object]]) -> list[Object]:
    return rendered["everything"]
