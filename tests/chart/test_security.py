"""What the chart's processes may do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from helm import Object, containers, one, pod_templates, workload
from weightlease.names import AGENT_METRICS_PORT, AGENT_UID, OPERATOR_METRICS_PORT
from weightlease_operator import guard as guard_module
from weightlease_operator import kinds

INIT_CONTAINERS = {"directories", "mount-memory"}


def rules(objects: list[Object]) -> Iterator[tuple[str, str, str]]:
    """Yields role, group/resource and verb of every permission that a service account gets."""
    for item in objects:
        if item["kind"] in ("ClusterRole", "Role"):
            for rule in item["rules"]:
                for group in rule["apiGroups"]:
                    for resource in rule["resources"]:
                        for verb in rule["verbs"]:
                            yield item["metadata"]["name"], f"{group}/{resource}", verb


def verbs_of(objects: list[Object], role: str, resource: str) -> set[str]:
    return {verb for name, named, verb in rules(objects) if (name, named) == (role, resource)}


def test_no_account_reads_secrets_or_uses_wildcards(objects: list[Object]) -> None:
    permissions = list(rules(objects))
    assert permissions
    for role, resource, verb in permissions:
        assert "secrets" not in resource, role
        assert "*" not in resource + verb, role


def test_agents_change_nothing_but_the_status_of_weight_nodes(default: list[Object]) -> None:
    role = "weightlease-agent"
    writes = {
        (resource, verb)
        for name, resource, verb in rules(default)
        if name == role and verb not in ("get", "list", "watch")
    }
    assert writes == {
        ("weightlease.io/weightnodes/status", "patch"),
        ("authentication.k8s.io/tokenreviews", "create"),
    }
    assert {resource for name, resource, _ in rules(default) if name == role} == {
        "weightlease.io/weightnodes",
        "weightlease.io/weightnodes/status",
        "authentication.k8s.io/tokenreviews",
    }


def test_agents_are_held_to_their_own_node_by_the_policy_of_their_account(
    objects: list[Object],
) -> None:
    account = workload(objects, "agent")["spec"]["template"]["spec"]["serviceAccountName"]
    policy = one(objects, "ValidatingAdmissionPolicy", account)["spec"]
    (condition,) = policy["matchConditions"]
    assert condition["expression"].endswith(f":weightlease-system:{account}'")
    assert policy["failurePolicy"] == "Fail"
    binding = one(objects, "ValidatingAdmissionPolicyBinding", account)["spec"]
    assert binding == {"policyName": account, "validationActions": ["Deny"]}


def test_the_operator_makes_jobs_and_never_changes_pods_or_nodes(default: list[Object]) -> None:
    role = "weightlease-operator"
    assert verbs_of(default, role, "batch/jobs") == {"get", "list", "watch", "create", "delete"}
    writes = {
        resource
        for name, resource, verb in rules(default)
        if name == role and verb not in ("get", "list", "watch")
    }
    assert writes == {
        "weightlease.io/weightartifacts",
        "weightlease.io/weightartifacts/status",
        "weightlease.io/weightnodes",
        "batch/jobs",
        "events.k8s.io/events",
        "coordination.k8s.io/leases",
    }


def test_the_operator_changes_no_lease_but_its_own(objects: list[Object]) -> None:
    name = one(objects, "Deployment")["metadata"]["name"]
    rules = one(objects, "Role", name)["rules"]
    assert [(rule["verbs"], rule.get("resourceNames")) for rule in rules] == [
        (["create"], None),
        (["get", "patch"], [name]),
    ]


def test_the_operator_may_watch_whatever_it_watches(default: list[Object]) -> None:
    role = "weightlease-operator"
    for kind in kinds.WATCHED:
        verbs = verbs_of(default, role, f"{kind.group}/{kind.plural}")
        assert verbs >= {"list", "watch"}, kind.plural
    for kind in (kinds.NAMESPACES, kinds.CLAIMS):
        assert verbs_of(default, role, f"{kind.group}/{kind.plural}") == {"get"}
    assert verbs_of(default, role, f"{kinds.EVENTS.group}/{kinds.EVENTS.plural}") == {"create"}
    assert verbs_of(default, role, f"/{kinds.POD_EVENTS.plural}") == {"list"}


def test_users_get_artifacts_and_nothing_else(
    default: list[Object], rendered: dict[str, list[Object]]
) -> None:
    reads = verbs_of(default, "weightlease-view", "weightlease.io/weightartifacts")
    assert reads == {"get", "list", "watch"}
    resources = {resource for name, resource, _ in rules(default) if name == "weightlease-edit"}
    assert resources == {"weightlease.io/weightartifacts"}
    names = {item["metadata"]["name"] for item in rendered["without-privileges"]}
    assert not {"weightlease-view", "weightlease-edit"} & names


def confined(objects: list[Object]) -> list[Object]:
    """Pod templates of everything but the driver, which must mount."""
    driver = "csi-driver"
    return [
        template
        for _, template in pod_templates(objects)
        if template["metadata"]["labels"]["app.kubernetes.io/component"] != driver
    ]


def test_every_long_lived_container_but_the_driver_is_confined(objects: list[Object]) -> None:
    for template in confined(objects):
        pod = template["spec"]["securityContext"]
        assert pod["runAsNonRoot"] is True
        assert pod["runAsUser"] == pod["runAsGroup"] > 0
        assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in template["spec"]["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


def test_agents_have_the_uid_that_stores_trust(objects: list[Object]) -> None:
    pod = workload(objects, "agent")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsUser"] == AGENT_UID
    scripts = " ".join(pod["initContainers"][0]["command"])
    assert f"chown {AGENT_UID}:{AGENT_UID}" in scripts


def test_no_pod_joins_a_namespace_of_the_host(objects: list[Object]) -> None:
    for _, template in pod_templates(objects):
        assert {"hostPID", "hostIPC", "hostNetwork"}.isdisjoint(template["spec"])
        for container in containers(template):
            assert all("hostPort" not in port for port in container.get("ports", []))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ("default", ["driver", "mount-memory"]),
        ("everything", ["driver", "mount-memory"]),
        ("without-privileges", []),
    ],
)
def test_those_that_mount_are_privileged_and_nobody_else(
    rendered: dict[str, list[Object]], values: str, expected: list[str]
) -> None:
    privileged = [
        container["name"]
        for _, template in pod_templates(rendered[values])
        for container in containers(template)
        if container["securityContext"].get("privileged")
        or any(
            mount.get("mountPropagation") == "Bidirectional"
            for mount in container.get("volumeMounts", [])
        )
    ]
    assert sorted(privileged) == expected


def test_the_driver_has_no_token_no_network_port_and_only_what_it_mounts(
    everything: list[Object],
) -> None:
    pod = workload(everything, "csi-driver")["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert "serviceAccountName" not in pod
    (driver,) = pod["containers"]
    assert "ports" not in driver
    assert driver["securityContext"]["readOnlyRootFilesystem"] is True
    folders = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"]}
    assert sorted(folders.values()) == [
        "/mnt/nvme0/weightlease",
        "/run/weightlease-csi",
        "/var/data/kubelet/plugins/csi.weightlease.io",
        "/var/data/kubelet/plugins_registry",
        "/var/data/kubelet/pods",
    ]
    mounts = {mount["name"]: mount for mount in driver["volumeMounts"]}
    assert mounts["store"]["readOnly"] is True
    both_ways = [
        name for name, mount in mounts.items() if mount.get("mountPropagation") == "Bidirectional"
    ]
    assert both_ways == ["pods"]


def test_the_kubelet_says_whose_a_volume_is_and_restricted_namespaces_may_have_it(
    default: list[Object],
) -> None:
    driver = one(default, "CSIDriver", "csi.weightlease.io")
    assert driver["spec"] == {
        "attachRequired": False,
        "podInfoOnMount": True,
        "volumeLifecycleModes": ["Ephemeral"],
        "fsGroupPolicy": "None",
    }
    profile = "security.openshift.io/csi-ephemeral-volume-profile"
    assert driver["metadata"]["labels"][profile] == "restricted"


def test_an_uninstall_asks_first_what_would_hang_without_the_release(
    objects: list[Object],
) -> None:
    guard = one(objects, "Job")
    assert guard["metadata"]["annotations"]["helm.sh/hook"] == "pre-delete"
    assert guard["spec"]["backoffLimit"] == 0
    (container,) = guard["spec"]["template"]["spec"]["containers"]
    assert container["command"][1:] == ["-m", guard_module.__name__]


def test_the_other_root_container_may_change_owners_and_nothing_more(
    objects: list[Object],
) -> None:
    pod = workload(objects, "agent")["spec"]["template"]["spec"]
    assert {container["name"] for container in pod["initContainers"]} <= INIT_CONTAINERS
    security = pod["initContainers"][0]["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"], "add": ["CHOWN"]}
    assert security["allowPrivilegeEscalation"] is False
    assert security["readOnlyRootFilesystem"] is True
    assert "privileged" not in security


def test_the_operator_mounts_nothing_of_the_host(objects: list[Object]) -> None:
    volumes = one(objects, "Deployment")["spec"]["template"]["spec"]["volumes"]
    assert all("hostPath" not in volume for volume in volumes)


@pytest.mark.parametrize(
    ("values", "store"),
    [("default", "/var/lib/weightlease"), ("everything", "/mnt/nvme0/weightlease")],
)
def test_the_agent_mounts_the_store_and_the_socket_folders_alone(
    rendered: dict[str, list[Object]], values: str, store: str
) -> None:
    volumes = workload(rendered[values], "agent")["spec"]["template"]["spec"]["volumes"]
    paths = [volume["hostPath"] for volume in volumes if "hostPath" in volume]
    assert paths == [
        {"path": store, "type": "DirectoryOrCreate"},
        {"path": "/run/weightlease", "type": "DirectoryOrCreate"},
        {"path": "/run/weightlease-csi", "type": "DirectoryOrCreate"},
    ]


@pytest.mark.parametrize(("values", "mode"), [("default", "IfPossible"), ("everything", "Enabled")])
def test_what_is_handed_out_is_opened_through_a_recursive_read_only_mount(
    rendered: dict[str, list[Object]], values: str, mode: str
) -> None:
    (agent,) = workload(rendered[values], "agent")["spec"]["template"]["spec"]["containers"]
    mounts = {mount["mountPath"]: mount for mount in agent["volumeMounts"]}
    # the API server refuses recursiveReadOnly together with a mountPropagation
    assert mounts["/var/lib/weightlease-export"] == {
        "name": mounts["/var/lib/weightlease"]["name"],
        "mountPath": "/var/lib/weightlease-export",
        "readOnly": True,
        "recursiveReadOnly": mode,
    }


def test_network_policies_let_in_scrapes_alone(everything: list[Object]) -> None:
    policies = [item["spec"] for item in everything if item["kind"] == "NetworkPolicy"]
    open_ports = sorted(
        port["port"] for spec in policies for rule in spec["ingress"] for port in rule["ports"]
    )
    assert open_ports == [AGENT_METRICS_PORT, OPERATOR_METRICS_PORT]
    for spec in policies:
        assert spec["policyTypes"] == ["Ingress", "Egress"]
        assert [peer for rule in spec["ingress"] for peer in rule["from"]] == [
            {"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}
        ]
