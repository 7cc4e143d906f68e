"""What can go wrong with weights in GPU memory, as classes that a caller acts on.

WeightLeaseError
└── GpuError                       every error of this package
    ├── UnsupportedError           the model, process or GPU has a feature that is not shared
    ├── LayoutError                a layout that contradicts itself, from a peer or a file
    ├── LayoutMismatchError        the consumer's module is not the donor's; says where
    ├── KeyMismatchError           the two sides name different weights; says which fields
    ├── DeviceMismatchError        the weights are on another GPU
    ├── DonorUnavailableError      no donor answers, or it is full or stopping
    ├── DonorBusyError             another donor holds the socket's lock
    ├── PeerRefusedError           the peer's user or the socket's place is not private
    ├── DeviceError                a device call failed; says what to do about it
    ├── LiveTensorsError           tensors outlive their attachment; names them
    └── WeightsChangedError        bytes in GPU memory differ from those that were loaded
"""

from __future__ import annotations

from collections.abc import Sequence

from weightlease.errors import Failure, FailureCode, Stage, WeightLeaseError

_SHOWN = 5


class GpuError(WeightLeaseError):
    """Base of this package's errors; the class says stage, code and whether a retry can help."""

    stage = Stage.RESTORATION
    code = FailureCode.UNSUPPORTED
    retryable = False

    def __init__(self, message: str, **details: object) -> None:
        failure = Failure(self.stage, self.code, self.retryable, message, dict(details))
        super().__init__(failure)


class UnsupportedError(GpuError):
    """A feature that is not shared; `feature` is its stable name."""

    def __init__(self, feature: str, message: str) -> None:
        super().__init__(message, feature=feature)
        self.feature = feature


class LayoutError(GpuError):
    """A layout that contradicts itself."""

    code = FailureCode.MANIFEST_CORRUPT


class LayoutMismatchError(GpuError):
    """The complete layouts differ; `differences` has one line for each, nothing was bound."""

    code = FailureCode.MANIFEST_INCOMPATIBLE

    def __init__(self, differences: Sequence[str]) -> None:
        super().__init__(
            f"the module is not the one whose weights are held: {shortened(differences)}",
            differences=list(differences[:100]),
        )
        self.differences = tuple(differences)


class KeyMismatchError(GpuError):
    """The weights asked for are not those held; `fields` names what differs."""

    code = FailureCode.IDENTITY_MISMATCH

    def __init__(self, fields: Sequence[str]) -> None:
        super().__init__(
            f"the donor holds other weights: {', '.join(fields)} differ; "
            "ask with the donor's key or start a donor for this one",
            fields=list(fields),
        )
        self.fields = tuple(fields)


class DeviceMismatchError(GpuError):
    """The weights are on another GPU than the one asked for."""

    code = FailureCode.IDENTITY_MISMATCH


class DonorUnavailableError(GpuError):
    """No donor answers there; a later try may find one."""

    stage = Stage.LOOKUP
    code = FailureCode.DOMAIN_UNAVAILABLE
    retryable = True


class DonorBusyError(GpuError):
    """Another donor serves this socket."""

    stage = Stage.CONFIGURATION
    code = FailureCode.ACTIVE_LEASE
    retryable = True


class PeerRefusedError(GpuError):
    """The other process, or the place of the socket, is not this user's alone."""

    stage = Stage.ACCESS
    code = FailureCode.PERMISSION_DENIED


class DeviceError(GpuError):
    """A device call failed; `call` and `result` name it, the text says what to do."""

    stage = Stage.RESTORATION
    code = FailureCode.DOMAIN_UNAVAILABLE

    def __init__(self, call: str, result: str, advice: str) -> None:
        super().__init__(f"{call} answered {result}; {advice}", call=call, result=result)
        self.call = call
        self.result = result


class LiveTensorsError(GpuError):
    """Tensors outlive their attachment; their memory stays mapped until the last of them goes."""

    stage = Stage.LIFECYCLE
    code = FailureCode.ACTIVE_LEASE

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(
            f"mapped tensors live outside their attachment: {shortened(names)}; drop or clone them "
            "before it ends, their memory stays mapped until then",
            names=list(names[:100]),
        )
        self.names = tuple(names)


class WeightsChangedError(GpuError):
    """The fingerprint of the bytes is not the one taken at load; `names` are where it differs."""

    stage = Stage.VALIDATION
    code = FailureCode.CHECKSUM_MISMATCH

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(
            f"weights in GPU memory changed since they were loaded: {shortened(names)}; "
            "load them again and distrust results since the last good check",
            names=list(names[:100]),
        )
        self.names = tuple(names)


def shortened(lines: Sequence[str]) -> str:
    """The first few of many."""
    return "; ".join(lines[:_SHOWN]) + ("; …" if len(lines) > _SHOWN else "")
