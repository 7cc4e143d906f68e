"""WeightProducer: an administrator's recipe for making artifacts. Users choose one by name."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field

from weightlease.api.base import Model, Resource
from weightlease.api.weight_artifact import RepresentationName, ResourceRequirements


class SourceKind(StrEnum):
    """Kinds of source that a producer can read."""

    HUGGING_FACE = "huggingFace"
    PERSISTENT_VOLUME_CLAIM = "persistentVolumeClaim"
    HOST_PATH = "hostPath"


class PullPolicy(StrEnum):
    """When a node pulls the image."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


class ProducerAbi(Model):
    """What of the producer enters every identity it makes.

    `implementationFingerprint` is a literal constant of the algorithm. An image digest or a chart
    version here would republish the whole fleet at each upgrade.
    """

    id: Annotated[str, Field(min_length=1, max_length=128)]
    version: Annotated[str, Field(min_length=1, max_length=64)]
    implementation_fingerprint: Annotated[str, Field(min_length=1, max_length=128)]
    manifest_schema: Annotated[str, Field(min_length=1, max_length=128)]
    restorer_schema: Annotated[str, Field(min_length=1, max_length=128)]


class WeightProducerSpec(Model):
    """The image that Jobs run, and what it can do."""

    image: Annotated[str, Field(min_length=1, max_length=512)]
    image_pull_policy: PullPolicy = PullPolicy.IF_NOT_PRESENT
    command: Annotated[list[str], Field(max_length=64)] = Field(default_factory=list)
    producer: ProducerAbi
    resources: ResourceRequirements = Field(default_factory=ResourceRequirements)
    sources: Annotated[list[SourceKind], Field(min_length=1)]
    representations: Annotated[list[RepresentationName], Field(min_length=1)]


class WeightProducer(Resource):
    """A recipe for making artifacts."""

    kind: str = "WeightProducer"
    spec: WeightProducerSpec

    @classmethod
    def parse(cls, value: Any) -> WeightProducer:
        """Read the API server's object.

        Raises:
            pydantic.ValidationError: an object that an older or newer schema admitted.

        """
        return cls.model_validate(value)
