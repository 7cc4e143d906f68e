"""Agents may write the status of their own node's WeightNode, and the API server holds them to it.

RBAC alone would let every agent write every status. Here the agents' account even gets more rights
than the chart gives it, so that what is denied is denied by the policy.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import pytest

import helm
from apiserver import ApiServer, HttpError
from simulated_fleet import ROOT

SYSTEM, AGENT = "weightlease-system", "weightlease-agent"
WIDE = {"apiGroups": ["weightlease.io"], "resources": ["weightnodes", "weightnodes/status"]}
DEADLINE_SECONDS = 60


@pytest.fixture(scope="module")
def policed(server: ApiServer) -> ApiServer:
    """The chart's policy is in force; the account has every right on WeightNodes."""
    objects = helm.render(namespace=SYSTEM)
    server.create("/api/v1/namespaces", {"metadata": {"name": SYSTEM}})
    accounts = f"/api/v1/namespaces/{SYSTEM}/serviceaccounts"
    for name in (AGENT, "stranger"):
        server.create(accounts, {"metadata": {"name": name}})
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    server.create(
        f"{rbac}/clusterroles",
        {"metadata": {"name": "wide"}, "rules": [WIDE | {"verbs": ["*"]}]},
    )
    subjects = [
        {"kind": "ServiceAccount", "name": name, "namespace": SYSTEM}
        for name in (AGENT, "stranger")
    ]
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "wide"}
    binding = {"metadata": {"name": "wide"}, "roleRef": role, "subjects": subjects}
    server.create(f"{rbac}/clusterrolebindings", binding)
    for node in ("node-a", "node-b"):
        server.create("/api/v1/nodes", {"metadata": {"name": node}})
        body = {
            "apiVersion": "weightlease.io/v1alpha1",
            "kind": "WeightNode",
            "metadata": {"name": node},
            "spec": {"artifacts": []},
        }
        server.create(f"{ROOT}/weightnodes", body)
    for kind in ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"):
        plural = f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s"
        path = f"/apis/admissionregistration.k8s.io/v1/{plural.lower()}"
        server.create(path, helm.one(objects, kind, AGENT))
    return server


def agent_on(server: ApiServer, node: str, account: str = AGENT) -> ApiServer:
    """A caller with the token of a pod of the account on that node; no node: of no pod."""
    path = f"/api/v1/namespaces/{SYSTEM}/serviceaccounts/{account}/token"
    spec: dict[str, Any] = {"audiences": ["https://kubernetes.default.svc"]}
    if node:
        pods = f"/api/v1/namespaces/{SYSTEM}/pods"
        container = {"name": "agent", "image": "example/agent:1"}
        pod = {
            "metadata": {"generateName": "agent-"},
            "spec": {
                "serviceAccountName": account,
                "nodeName": node,
                "containers": [container],
            },
        }
        made = server.create(pods, pod)["metadata"]
        reference = {"kind": "Pod", "apiVersion": "v1", "name": made["name"], "uid": made["uid"]}
        spec["boundObjectRef"] = reference
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    return replace(server, token=server.create(path, body)["status"]["token"])


def attempt(call: ApiServer, method: str, path: str, body: dict[str, Any] | None) -> str:
    """Empty for success, else why it was denied."""
    content = "application/merge-patch+json" if method == "PATCH" else "application/json"
    try:
        call.call(method, f"{ROOT}/weightnodes{path}", body, content)
    except HttpError as error:
        if error.status not in (403, 422):
            raise
        return str(json.loads(error.message)["message"])
    return ""


STATUS = {"status": {"agentVersion": "9"}}
SPEC = {"spec": {"artifacts": []}, "metadata": {"annotations": {"x": "y"}}}
NEW = {
    "apiVersion": "weightlease.io/v1alpha1",
    "kind": "WeightNode",
    "metadata": {"name": "node-c"},
    "spec": {"artifacts": []},
}
ONLY_STATUS, NOT_THIS_NODE = "writes the status of a WeightNode", "the token is of an agent on node"


@pytest.mark.parametrize(
    ("node", "account", "method", "path", "body", "denied"),
    [
        ("node-a", AGENT, "PATCH", "/node-a/status", STATUS, ""),
        ("node-a", AGENT, "PATCH", "/node-b/status", STATUS, NOT_THIS_NODE),
        ("", AGENT, "PATCH", "/node-a/status", STATUS, NOT_THIS_NODE),
        ("node-a", AGENT, "PATCH", "/node-a", SPEC, ONLY_STATUS),
        ("node-a", AGENT, "PATCH", "/node-b", SPEC, ONLY_STATUS),
        ("node-a", AGENT, "POST", "", NEW, ONLY_STATUS),
        ("node-a", AGENT, "DELETE", "/node-a", None, ONLY_STATUS),
        ("node-a", "stranger", "PATCH", "/node-b", SPEC, ""),
    ],
    ids=["own", "another's", "no node", "own spec", "another's spec", "new", "delete", "others"],
)
def test_an_agent_writes_its_own_nodes_status_and_nothing_else(
    policed: ApiServer,
    node: str,
    account: str,
    method: str,
    path: str,
    body: dict[str, Any] | None,
    denied: str,
) -> None:
    until_in_force(policed)
    said = attempt(agent_on(policed, node, account), method, path, body)
    assert (denied in said) if denied else (said == ""), said


def until_in_force(server: ApiServer) -> None:
    """A policy takes effect some time after it was created."""
    call = agent_on(server, "node-a")
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not attempt(call, "PATCH", "/node-b/status", STATUS):
        assert time.monotonic() < deadline, "the policy is not in force"
        time.sleep(0.2)
