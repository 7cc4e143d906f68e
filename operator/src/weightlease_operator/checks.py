"""What keeps an artifact from getting Jobs: the first row of CHECKS that finds something."""

from __future__ import annotations

from collections.abc import Callable

from weightlease.api.weight_artifact import Source, WeightArtifactSpec
from weightlease.api.weight_producer import SourceKind
from weightlease.reasons import Reason
from weightlease_operator.observation import Observation, Problem

_Check = Callable[[Observation, WeightArtifactSpec], Problem | None]


def source_kind(source: Source) -> SourceKind:
    """Which source is set; the schema admits exactly one."""
    if source.hugging_face is not None:
        return SourceKind.HUGGING_FACE
    if source.persistent_volume_claim is not None:
        return SourceKind.PERSISTENT_VOLUME_CLAIM
    return SourceKind.HOST_PATH


def spec_problem(observed: Observation) -> Problem:
    message = observed.artifact.spec_error or "the spec is malformed"
    return Problem(Reason.SPEC_INVALID, message)


def first_problem(observed: Observation, spec: WeightArtifactSpec) -> Problem | None:
    return next((found for check in CHECKS if (found := check(observed, spec)) is not None), None)


def _one_source(_observed: Observation, spec: WeightArtifactSpec) -> Problem | None:
    source = spec.source
    places = (source.hugging_face, source.persistent_volume_claim, source.host_path)
    if sum(place is not None for place in places) == 1:
        return None
    return Problem(Reason.SPEC_INVALID, "spec.source needs exactly one place")


def _host_path_is_allowed(observed: Observation, spec: WeightArtifactSpec) -> Problem | None:
    if spec.source.host_path is None or observed.settings.allow_host_path_sources:
        return None
    message = (
        f"spec.source.hostPath {spec.source.host_path.path} is not allowed; an administrator "
        "enables it with the operator's allowHostPathSources"
    )
    return Problem(Reason.HOST_PATH_NOT_ALLOWED, message)


def _producer_exists(observed: Observation, spec: WeightArtifactSpec) -> Problem | None:
    if observed.producer is not None:
        return None
    message = f"there is no valid WeightProducer {spec.producer_ref.name}"
    return Problem(Reason.PRODUCER_NOT_FOUND, message)


def _producer_supports(observed: Observation, spec: WeightArtifactSpec) -> Problem | None:
    producer = observed.producer
    if producer is None:
        return None
    name, kind = spec.producer_ref.name, source_kind(spec.source)
    if kind not in producer.sources:
        message = f"WeightProducer {name} does not read {kind} sources"
        return Problem(Reason.PRODUCER_UNSUPPORTED, message)
    asked = {component.representation.name for component in spec.components}
    missing = sorted(asked - set(producer.representations))
    if missing:
        message = f"WeightProducer {name} does not make {', '.join(missing)}"
        return Problem(Reason.PRODUCER_UNSUPPORTED, message)
    return None


def _claim_exists(observed: Observation, spec: WeightArtifactSpec) -> Problem | None:
    source = spec.source.persistent_volume_claim
    if source is None or observed.claim is None or observed.claim.exists:
        return None
    message = f"there is no PersistentVolumeClaim {source.claim_name} in the namespace"
    return Problem(Reason.SOURCE_NOT_MOUNTABLE, message)


def _api_accepts_jobs(observed: Observation, _spec: WeightArtifactSpec) -> Problem | None:
    if not observed.refused:
        return None
    return Problem(Reason.PREWARM_FAILED, f"the API server refused a Job: {observed.refused}")


CHECKS: tuple[_Check, ...] = (
    _one_source,
    _host_path_is_allowed,
    _producer_exists,
    _producer_supports,
    _claim_exists,
    _api_accepts_jobs,
)
