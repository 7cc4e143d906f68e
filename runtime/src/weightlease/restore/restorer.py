"""`FinalLayoutTensorRestorer`: a leased layout becomes a model's weights, whole or not at all.

    plan_restore   checks lease, source and model completely, changes neither
    commit         once: binds zero-copy views, then the contract validates the model

A plan that fails leaves the model as it was. A commit that fails leaves no model: see `unusable`.
The views keep the lease's memory and lock; close the lease after the last transfer that reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING

from weightlease.errors import WeightLeaseError
from weightlease.lease import WeightLease
from weightlease.manifest import TensorEntry, TensorKind
from weightlease.restore.context import FinalLayoutContext, format_metadata
from weightlease.restore.ownership import Ownership, Target
from weightlease.restore.slots import Slot
from weightlease.restore.unusable import commit_failure, make_unusable, require_usable
from weightlease.restore.violation import ContractViolation, Violation
from weightlease.source.errors import SourceError

if TYPE_CHECKING:
    import torch


class FinalLayoutTensorRestorer:
    """Restores exactly the artifact of one context."""

    def __init__(self, context: FinalLayoutContext) -> None:
        self.context = context

    @property
    def schema(self) -> str:
        """The restorer schema that leases must state."""
        return self.context.spec.restorer_schema

    def plan_restore(self, model: torch.nn.Module, lease: WeightLease) -> RestorePlan:
        """Check that `lease` covers `model` exactly; nothing is changed and no view is kept.

        Raises:
            ContractViolation: what does not fit, or why the lease cannot be read.

        """
        require_usable(model)
        _require_identity(self.context, lease)
        _require_source(self.context)
        ownership = self.context.owned_by(model)
        if ownership.digest != self.context.ownership_sha256:
            raise ContractViolation(
                Violation.TENSOR_CONTRACT_CHANGED,
                "the model owns other tensors than the skeleton that the identity was made from",
                expected=self.context.ownership_sha256,
                actual=ownership.digest,
            )
        _require_coverage(self.context, ownership, lease)
        _require_readable(ownership, lease)
        derived = _derived(self.context, ownership, model)
        return RestorePlan(self.context, model, lease, ownership, derived)


class _State(StrEnum):
    PLANNED = "planned"
    BEGUN = "begun"
    COMMITTED = "committed"
    FAILED = "failed"


class RestorePlan:
    """One checked restore; `commit` is its only mutation."""

    def __init__(
        self,
        context: FinalLayoutContext,
        model: torch.nn.Module,
        lease: WeightLease,
        ownership: Ownership,
        derived: Mapping[Slot, torch.Tensor],
    ) -> None:
        self._context = context
        self._model = model
        self._lease = lease
        self._ownership = ownership
        self._derived = derived
        self._seen = [(slot, slot.tensor) for slot in _all_slots(ownership)]
        self._state = _State.PLANNED

    def commit(self) -> None:
        """Bind every tensor, then validate the model; once.

        Raises:
            WeightLeaseError: restore_commit_failed; the model is unusable from then on, unless
                the plan had been committed before.

        """
        if self._state is not _State.PLANNED:
            raise WeightLeaseError.of(
                commit_failure("").failure.stage,
                commit_failure("").failure.code,
                f"this plan is {self._state}; a plan commits once, make another one",
            )
        self._state = _State.BEGUN
        try:
            self._bind()
        except Exception as error:
            self._abandon(f"{type(error).__name__}: {error}")
            raise commit_failure(f"{type(error).__name__}: {error}") from error
        except BaseException as error:
            self._abandon(f"interrupted by {type(error).__name__}")
            raise
        self._state = _State.COMMITTED
        self._seen = []

    def _bind(self) -> None:
        require_usable(self._model)
        _require_source(self._context)
        for slot, tensor in self._seen:
            if slot.tensor is not tensor:
                raise ValueError(f"{slot.name!r} was replaced after the restore was planned")
        for target in self._ownership.targets:
            _put(target, self._lease.tensor(target.name))
        for slot, tensor in self._derived.items():
            slot.put(tensor)
        _require_whole(self._ownership)
        self._context.contract.validate(self._model)

    def _abandon(self, why: str) -> None:
        self._state = _State.FAILED
        self._seen = []
        make_unusable(self._model, why)


def _require_identity(context: FinalLayoutContext, lease: WeightLease) -> None:
    if lease.identity.canonical_bytes != context.identity.canonical_bytes:
        raise ContractViolation(
            Violation.IDENTITY_INCOMPATIBLE,
            f"the lease is of {lease.key} and the model asks for {context.identity.key}",
            expected=context.identity.key,
            actual=lease.key,
        )
    schemas = (lease.manifest.producer_schema, lease.manifest.restorer_schema)
    wanted = (context.spec.manifest_schema, context.spec.restorer_schema)
    if schemas != wanted:
        raise ContractViolation(
            Violation.IDENTITY_INCOMPATIBLE,
            f"the artifact has the schemas {schemas}, this restorer reads {wanted}",
        )


def _require_source(context: FinalLayoutContext) -> None:
    try:
        context.source.require_unchanged()
    except SourceError as error:
        raise ContractViolation(Violation.SOURCE_CHANGED, str(error.failure)) from error


def _require_coverage(
    context: FinalLayoutContext, ownership: Ownership, lease: WeightLease
) -> None:
    entries = {entry.name: entry for entry in lease.manifest.tensors}
    targets = ownership.by_name()
    missing = sorted(targets.keys() - entries.keys())
    surplus = sorted(entries.keys() - targets.keys())
    if missing or surplus:
        raise ContractViolation(
            Violation.TENSOR_CONTRACT_CHANGED,
            f"the artifact lacks {missing[:5]} and has {surplus[:5]} that the model does not own",
            missing=missing[:100],
            surplus=surplus[:100],
        )
    for name, target in targets.items():
        if _form(entries[name]) != _wanted(target):
            raise ContractViolation(
                Violation.TENSOR_CONTRACT_CHANGED,
                f"tensor {name!r} is {_form(entries[name])}, the model owns {_wanted(target)}",
                tensor=name,
            )
    said = {key: value for key, value in lease.manifest.format_metadata.items() if key != "assets"}
    if said != format_metadata(context, ownership):
        raise ContractViolation(
            Violation.TENSOR_CONTRACT_CHANGED,
            "the manifest's format_metadata describes another layout",
        )


def _require_readable(ownership: Ownership, lease: WeightLease) -> None:
    """Make every view and drop it: whatever could fail in a commit fails here."""
    try:
        for target in ownership.targets:
            lease.tensor(target.name)
    except WeightLeaseError as error:
        raise ContractViolation(
            Violation.LEASE_UNREADABLE, f"the lease cannot be read: {error.failure.message}"
        ) from error


_Form = tuple[TensorKind, str, tuple[int, ...], str, tuple[int, ...]]


def _form(entry: TensorEntry) -> _Form:
    return entry.kind, entry.role, entry.shape, entry.dtype, entry.stride


def _wanted(target: Target) -> _Form:
    return target.kind, target.role, target.shape, target.dtype, target.stride


def _derived(
    context: FinalLayoutContext, ownership: Ownership, model: torch.nn.Module
) -> dict[Slot, torch.Tensor]:
    """Values for the non-persistent buffers of a model that has none yet."""
    absent = {slot.name: slot for slot in ownership.derived if slot.is_meta}
    if not absent:
        return {}
    try:
        made = context.contract.derive(model)
    except Exception as error:
        raise ContractViolation(
            Violation.MODEL_CONTRACT_UNSUPPORTED,
            f"the contract could not derive buffers: {type(error).__name__}: {error}",
        ) from error
    values: dict[Slot, torch.Tensor] = {}
    for name, slot in absent.items():
        value = made.get(name)
        held = slot.tensor
        if value is None or held is None or value.is_meta or value.shape != held.shape:
            raise ContractViolation(
                Violation.MODEL_CONTRACT_UNSUPPORTED,
                f"buffer {name!r} is not part of the artifact, and contract "
                f"{context.contract.implementation_id!r} does not derive it in its shape",
                tensor=name,
            )
        values[slot] = value
    return values


def _all_slots(ownership: Ownership) -> list[Slot]:
    owned = [slot for target in ownership.targets for slot in target.slots]
    return [*owned, *ownership.derived]


def _put(target: Target, view: torch.Tensor) -> None:
    import torch

    # One object for all slots keeps the tie; read-only memory takes no gradient steps.
    if target.kind is TensorKind.PARAMETER:
        view = torch.nn.Parameter(view, requires_grad=False)
    for slot in target.slots:
        slot.put(view)


def _require_whole(ownership: Ownership) -> None:
    for slot in _all_slots(ownership):
        if slot.is_meta:
            raise ValueError(f"{slot.name!r} has no memory after the restore")
