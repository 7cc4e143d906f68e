"""Who may do what: pure functions over a peer, the node's spec and a request.

The namespace is the boundary. A pod leases what its own namespace holds and what an entry grants to
it; it publishes what the entry for its Job names, what an entry names its service account for, and,
where an administrator opened its namespace, keys of its own choosing there. A uid of a bare host
may do everything.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import msgspec

from weightlease.api.weight_node import WantedArtifact
from weightlease.errors import FailureCode, Stage, WeightLeaseError
from weightlease.identity import WeightArtifactIdentity
from weightlease.lease_record import HolderKind
from weightlease.names import ArtifactReference, StorageClass
from weightlease_node_agent.peers import BARE_NAMESPACE, Peer
from weightlease_node_agent.wanted import resolve

_POD_SUFFIX = re.compile(r"[a-z0-9]{5}")
_NAMESPACE = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
_RANK = re.compile(r"(?:^|\.)tp(\d+)")


@dataclass(frozen=True)
class PublicationGrant:
    """The right to publish one identity; `entry` is what it is for.

    Without an entry it is a bare host's, or that of a namespace opened for `unmanaged` keys.
    """

    namespace: str
    storage_class: StorageClass
    entry: WantedArtifact | None
    unmanaged: bool = False


def namespace_of(peer: Peer, asked: str) -> str:
    """The namespace that a request of `peer` is about; `asked` may be empty.

    Raises:
        WeightLeaseError: permission_denied, or invalid_config for a name that is no namespace.

    """
    if peer.kind is HolderKind.POD:
        if asked not in {"", peer.namespace}:
            raise denied(
                f"namespace {asked[:63]!r} is not the caller's own, {peer.namespace!r}; "
                "run the pod in the artifact's namespace"
            )
        return peer.namespace
    namespace = asked or BARE_NAMESPACE
    if _NAMESPACE.fullmatch(namespace) is None:
        raise WeightLeaseError.of(
            Stage.ACCESS,
            FailureCode.INVALID_CONFIG,
            f"namespace {namespace[:63]!r} is no DNS label of lower case letters, digits and '-'",
        )
    return namespace


def require_administrator(peer: Peer, what: str) -> None:
    """Raises permission_denied for a pod: in a cluster the spec decides what a node holds."""
    if peer.kind is HolderKind.POD:
        raise denied(f"{what} is not a pod's to ask for; delete the WeightArtifact instead")


def require_current(peer: Peer, now: float) -> None:
    """Raises unauthenticated once the peer's token has ended; `now` in seconds since the epoch."""
    if now >= peer.expires_at:
        raise WeightLeaseError.of(
            Stage.ACCESS,
            FailureCode.UNAUTHENTICATED,
            f"the token of {peer} has expired; connect again with the renewed token",
            retryable=True,
        )


def authorize_publication(
    peer: Peer,
    identity: WeightArtifactIdentity,
    storage_class: StorageClass,
    namespace: str,
    wanted: Iterable[WantedArtifact],
    opened: Collection[str] = (),
) -> PublicationGrant:
    """The right of `peer` to publish exactly `identity`; `opened` namespaces need no entry.

    Raises:
        WeightLeaseError: producer_unavailable (retryable) without a matching entry,
            identity_mismatch or storage_class_mismatch where the entry asks for something else.

    """
    if peer.kind is not HolderKind.POD:
        return PublicationGrant(namespace_of(peer, namespace), storage_class, None)
    if not peer.may_publish:
        raise unavailable(f"the token of {peer} can't be confirmed now; try again")
    entries = list(wanted)
    granted = _granted_entry(peer, identity, storage_class, namespace, entries)
    if granted is not None:
        return PublicationGrant(granted.namespace, storage_class, granted)
    own = namespace_of(peer, namespace)
    of_job = [entry for entry in entries if _is_job_of(entry, peer)]
    if of_job:
        entry = next((entry for entry in of_job if _same_shard(entry, identity)), of_job[0])
        _require_match(entry, identity, storage_class)
        return PublicationGrant(own, storage_class, entry)
    if own in opened:
        return PublicationGrant(own, storage_class, None, unmanaged=True)
    raise unavailable(
        f"no entry of this node's spec names a Job of {peer}, or its service account "
        f"{peer.namespace}/{peer.service_account or '?'} as a publisher of this key"
    )


def authorize_reference(
    peer: Peer, reference: ArtifactReference, wanted: Iterable[WantedArtifact]
) -> WantedArtifact:
    """The entry that a name means to a pod, which may lease what it names.

    Raises:
        WeightLeaseError: local_miss or invalid_config for a name of the pod's own namespace;
            permission_denied for one of another that does not grant it, there or not: whether it
            is there is not the pod's to know.

    """
    entries = list(wanted)
    if reference.namespace in {"", peer.namespace}:
        return resolve(entries, msgspec.structs.replace(reference, namespace=peer.namespace))
    granted = [entry for entry in entries if peer.namespace in entry.access_namespaces]
    try:
        return resolve(granted, reference)
    except WeightLeaseError as error:
        if error.failure.code is not FailureCode.LOCAL_MISS:
            raise
    raise denied(
        f"namespace {reference.namespace[:63]!r} is not the caller's own, {peer.namespace!r}, and "
        f"grants it no artifact {reference.artifact!r}; name {peer.namespace!r} in that artifact's "
        "spec.access.namespaces"
    )


def granted_entries(peer: Peer, wanted: Iterable[WantedArtifact], key: str) -> list[WantedArtifact]:
    """Entries of other namespaces that name `key` and grant it to the pod's."""
    if peer.kind is not HolderKind.POD:
        return []
    return [
        entry
        for entry in wanted
        if entry.key == key
        and entry.namespace != peer.namespace
        and peer.namespace in entry.access_namespaces
    ]


def denied(message: str) -> WeightLeaseError:
    """A permission_denied failure."""
    return WeightLeaseError.of(Stage.ACCESS, FailureCode.PERMISSION_DENIED, message)


def unavailable(message: str) -> WeightLeaseError:
    """A producer_unavailable failure: the right to publish may come."""
    return WeightLeaseError.of(
        Stage.PRODUCTION, FailureCode.PRODUCER_UNAVAILABLE, message, retryable=True
    )


def rank_of(coordinates: str) -> int:
    """The tensor-parallel rank in `tp1` or `pp0.tp1`; 0 where there is none."""
    match = _RANK.search(coordinates)
    return int(match[1]) if match else 0


def _is_job_of(entry: WantedArtifact, peer: Peer) -> bool:
    # The Job controller names a pod after its Job, a dash and five characters.
    job, _, suffix = peer.pod.rpartition("-")
    return (
        bool(entry.job)
        and entry.namespace == peer.namespace
        and entry.job == job
        and _POD_SUFFIX.fullmatch(suffix) is not None
    )


def _granted_entry(
    peer: Peer,
    identity: WeightArtifactIdentity,
    storage_class: StorageClass,
    namespace: str,
    entries: Iterable[WantedArtifact],
) -> WantedArtifact | None:
    """The entry that names the pod's service account as a publisher of exactly this key.

    Only a key that is fixed: before that, what a canary's Job makes decides for every node.
    """
    account = f"{peer.namespace}/{peer.service_account}"
    return next(
        (
            entry
            for entry in entries
            if peer.service_account
            and account in entry.publishers
            and entry.key == identity.key
            and entry.storage_class is storage_class
            and namespace in {"", entry.namespace}
        ),
        None,
    )


def _same_shard(entry: WantedArtifact, identity: WeightArtifactIdentity) -> bool:
    return (
        entry.component == identity.component.name
        and rank_of(entry.coordinates) == identity.layout.tensor_parallel_rank
    )


def _require_match(
    entry: WantedArtifact, identity: WeightArtifactIdentity, storage_class: StorageClass
) -> None:
    if not _same_shard(entry, identity):
        raise _mismatch(
            f"component {identity.component.name!r} rank {identity.layout.tensor_parallel_rank} "
            f"is not the shard {entry.id!r} that this Job is for"
        )
    if entry.key and entry.key != identity.key:
        raise _mismatch(
            f"key {identity.key} is not the key {entry.key} that the first node fixed for "
            f"{entry.id!r}; the source or the producer differs"
        )
    if entry.storage_class is not storage_class:
        raise WeightLeaseError.of(
            Stage.ACCESS,
            FailureCode.STORAGE_CLASS_MISMATCH,
            f"storage class {storage_class} is not {entry.storage_class}, as {entry.id!r} asks for",
        )


def _mismatch(message: str) -> WeightLeaseError:
    return WeightLeaseError.of(Stage.PRODUCTION, FailureCode.IDENTITY_MISMATCH, message)
