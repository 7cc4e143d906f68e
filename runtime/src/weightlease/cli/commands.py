"""The commands: each takes parsed arguments and a target, prints, and returns an exit code."""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from typing import Any

import msgspec

from weightlease.cli import holding
from weightlease.cli.bars import Bars
from weightlease.cli.exit_codes import ExitCode, exit_code
from weightlease.cli.output import (
    human_bytes,
    print_error,
    print_fields,
    print_json,
    print_line,
    print_table,
)
from weightlease.cli.targets import Target
from weightlease.cli.verification import verify_lease
from weightlease.errors import FailureCode, Stage, WeightLeaseError
from weightlease.identity import is_key
from weightlease.lease import WeightLease
from weightlease.producer.snapshot import SnapshotSpec, snapshot
from weightlease.reports import CleanupResult, CleanupStatus, InventoryState, StoreStatus
from weightlease.source.folder import FolderSource
from weightlease.wire import InspectedArtifact

_SHOWN_BY_DEFAULT = {str(InventoryState.READY), str(InventoryState.DENIED)}
_STATUS_TEXT = {StoreStatus.BUILT: "published", StoreStatus.HIT: "present"}
_CLEANUP_CODES = {
    CleanupStatus.REMOVED: ExitCode.OK,
    CleanupStatus.ABSENT: ExitCode.NOT_FOUND,
    CleanupStatus.ACTIVE_BUILD: ExitCode.IN_USE,
    CleanupStatus.ACTIVE_LEASE: ExitCode.IN_USE,
}


def publish(arguments: argparse.Namespace, target: Target) -> int:
    source_dir = os.path.abspath(arguments.source)
    spec = SnapshotSpec(
        model_id=arguments.model_id or source_dir,
        component=arguments.component,
        revision=arguments.revision,
        include=tuple(arguments.include),
        exclude=tuple(arguments.exclude),
    )
    with Bars() as bars, FolderSource(source_dir, arguments.path, bars) as source:
        published = target.publish(snapshot(source, spec, bars))
    if arguments.output == "json":
        print_json(
            {
                "key": published.key,
                "status": _STATUS_TEXT[published.status],
                "manifestSha256": published.manifest_sha256,
                "payloadBytes": published.payload_bytes,
            }
        )
    else:
        size = human_bytes(published.payload_bytes)
        print_line(f"{published.key} {_STATUS_TEXT[published.status]}, {size}")
    return ExitCode.OK


def ls(arguments: argparse.Namespace, target: Target) -> int:
    listing = target.entries()
    shown = [one for one in listing.artifacts if arguments.all or one.state in _SHOWN_BY_DEFAULT]
    if arguments.output == "json":
        print_json({"artifacts": [_entry(one) for one in shown], "truncated": listing.truncated})
        return ExitCode.OK
    headings = ("KEY", "STATE", "SIZE", "CLASS", "NAMESPACE", "LEASES", "ARTIFACTS", "REASON")
    rows = [
        (
            one.key,
            one.state,
            human_bytes(one.size_bytes),
            one.storage_class,
            one.namespace,
            str(len(one.leases)),
            ",".join(one.references),
            one.reason,
        )
        for one in shown
    ]
    if rows:
        print_table(headings, rows)
    else:
        print("no artifacts", file=sys.stderr)
    if listing.truncated:
        print("the agent left out further artifacts", file=sys.stderr)
    return ExitCode.OK


def inspect(arguments: argparse.Namespace, target: Target) -> int:
    artifact = arguments.artifact
    entries: tuple[InspectedArtifact, ...] = ()
    if is_key(artifact):
        entries = target.entries(artifact).artifacts
        if not entries:
            raise _absent(artifact)
        if all(entry.state != InventoryState.READY for entry in entries):
            return _inspect_unusable(arguments, entries)
    with target.lease(artifact) as lease:
        entries = entries or target.entries(lease.key).artifacts
        if arguments.output == "json":
            manifest = msgspec.to_builtins(lease.manifest)
            if not arguments.tensors:
                manifest["tensors"] = len(lease.manifest.tensors)
            print_json({"artifacts": [_entry(one) for one in entries], "manifest": manifest})
        else:
            _print_lease(lease, entries, tensors=arguments.tensors)
    return ExitCode.OK


def verify(arguments: argparse.Namespace, target: Target) -> int:
    results: list[dict[str, Any]] = []
    worst = ExitCode.OK
    for artifact in arguments.artifacts:
        result = {"artifact": artifact, "valid": True, "bytes": 0, "message": ""}
        try:
            with Bars() as bars, target.lease(artifact) as lease:
                result["key"] = lease.key
                label = f"verify {lease.key[:12]}"
                result["bytes"] = verify_lease(lease, partial(bars, label))
        except WeightLeaseError as error:
            result |= {"valid": False, "message": str(error)}
            worst = max(worst, exit_code(error))
            _deny(target, str(result.get("key", "")), error)
        results.append(result)
        if arguments.output == "table":
            verdict = f"{human_bytes(result['bytes'])} valid" if result["valid"] else ""
            print_line(f"{artifact} {verdict or result['message']}")
    if arguments.output == "json":
        print_json({"artifacts": results})
    return worst


def lease(arguments: argparse.Namespace, target: Target) -> int:
    if arguments.run:
        with target.lease(arguments.artifact) as held:
            return holding.run_with(held, arguments.run)
    with target.lease(arguments.artifact) as held, holding.ending_signals_held():
        if arguments.output == "json":
            print_json(
                {
                    "key": held.key,
                    "leaseId": held.provenance.lease_id,
                    "pid": os.getpid(),
                    "sharedBytes": held.shared_bytes,
                    "files": dict(held.files()),
                }
            )
        else:
            print_fields(
                {
                    "key": held.key,
                    "lease": held.provenance.lease_id,
                    "shared": human_bytes(held.shared_bytes),
                }
            )
            print_table(("FILE", "PATH"), list(held.files().items()))
        holding.wait_for_ending_signal()
    return ExitCode.OK


def cleanup(arguments: argparse.Namespace, target: Target) -> int:
    result = target.cleanup(arguments.key)
    if arguments.output == "json":
        print_json(
            {
                "key": arguments.key,
                "status": str(result.status),
                "freedBytes": result.freed_bytes,
                "holders": list(result.holders),
            }
        )
    else:
        print_line(f"{arguments.key} {_cleanup_text(result)}")
    if result.failure is not None:
        error = WeightLeaseError(result.failure)
        print_error(error, arguments.output)
        return exit_code(error)
    return _CLEANUP_CODES.get(result.status, ExitCode.FAILED)


def _cleanup_text(result: CleanupResult) -> str:
    if result.status is CleanupStatus.REMOVED:
        return f"removed, {human_bytes(result.freed_bytes)} freed"
    if result.holders:
        return f"{result.status} by {', '.join(result.holders)}"
    return str(result.status)


def _inspect_unusable(arguments: argparse.Namespace, entries: tuple[InspectedArtifact, ...]) -> int:
    if arguments.output == "json":
        print_json({"artifacts": [_entry(one) for one in entries], "manifest": None})
    else:
        for entry in entries:
            print_fields(_entry_fields(entry))
    return ExitCode.OK


def _print_lease(
    lease: WeightLease, entries: tuple[InspectedArtifact, ...], *, tensors: bool
) -> None:
    identity, manifest = lease.identity, lease.manifest
    entry = next((one for one in entries if one.state == InventoryState.READY), None)
    fields = _entry_fields(entry) if entry else {"key": lease.key}
    print_fields(
        fields
        | {
            "model": identity.source.model_id,
            "revision": identity.source.revision,
            "component": identity.component.name,
            "representation": f"{identity.representation.name}/{identity.representation.dtype}",
            "layout": identity.layout.name,
            "producer": f"{identity.producer.producer_id} {identity.producer.version}",
            "content": manifest.artifact_content_sha256,
            "manifest": lease.provenance.manifest_sha256,
            "tensors": str(len(manifest.tensors)),
            "payload": human_bytes(manifest.payload_bytes),
        }
    )
    rows = [(one.file_name, human_bytes(one.size), one.sha256) for one in manifest.files]
    rows += [(one.path, human_bytes(one.size), one.sha256) for one in manifest.assets]
    print_table(("FILE", "SIZE", "SHA256"), rows)
    if tensors:
        print_table(
            ("TENSOR", "DTYPE", "SHAPE", "SIZE", "FILE"),
            [
                (
                    one.name,
                    one.dtype,
                    "x".join(map(str, one.shape)),
                    human_bytes(one.nbytes),
                    one.file_name,
                )
                for one in manifest.tensors
            ],
        )


def _entry_fields(entry: InspectedArtifact) -> dict[str, str]:
    return {
        "key": entry.key,
        "state": entry.state,
        "reason": entry.reason,
        "size": human_bytes(entry.size_bytes),
        "class": entry.storage_class,
        "namespace": entry.namespace,
        "artifacts": ", ".join(entry.references),
        "leases": ", ".join(entry.leases),
    }


def _entry(entry: InspectedArtifact) -> dict[str, Any]:
    return {
        "key": entry.key,
        "state": entry.state,
        "storageName": entry.storage_name,
        "sizeBytes": entry.size_bytes,
        "namespace": entry.namespace,
        "storageClass": entry.storage_class,
        "reason": entry.reason,
        "references": list(entry.references),
        "leases": list(entry.leases),
    }


def _deny(target: Target, key: str, error: WeightLeaseError) -> None:
    if not key or error.failure.code is not FailureCode.CHECKSUM_MISMATCH:
        return
    try:
        target.deny(key)
    except WeightLeaseError:
        # The store has now seen the damage for itself; the error that found it is the one told.
        return


def _absent(artifact: str) -> WeightLeaseError:
    return WeightLeaseError.of(
        Stage.LOOKUP, FailureCode.LOCAL_MISS, f"there is no artifact {artifact} here"
    )
