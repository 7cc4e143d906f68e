"""What the operator asks of a prewarm Job: one JSON object in WEIGHTLEASE_PRODUCER_REQUEST.

    {"schemaVersion": 1,
     "artifact": "team-a/minilm:model",        the reference, for messages
     "source": {"kind": "huggingFace", "repo", "revision", "endpoint", "include", "exclude"}
             | {"kind": "path", "path", "origin"}      a mounted claim or host path
     "modelId": "", "fingerprint": "",          as the user stated them, or empty
     "component": {"name": "model", "path": "."},
     "representation": "canonical",
     "producer": {"id", "version", "implementationFingerprint", "manifestSchema", "restorerSchema"},
     "storageClass": "disk",
     "expectedKey": "", "expectedManifestSha256": "",   what the canary fixed, or empty
     "scratch": "/scratch"}                     an emptyDir for one shard at a time

A Hub token comes in HF_TOKEN, never in this object.
"""

from __future__ import annotations

import msgspec

from weightlease.errors import FailureCode, Stage, WeightLeaseError

SCHEMA_VERSION = 1


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    pass


class HubSource(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    rename="camel",
    tag="huggingFace",
    tag_field="kind",
):
    """A Hub repository at one commit."""

    repo: str
    revision: str
    endpoint: str = ""
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()


class PathSource(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    rename="camel",
    tag="path",
    tag_field="kind",
):
    """A mounted folder; `origin` is the claim or host path it came from, for the model id."""

    path: str
    origin: str


class RequestedComponent(_Part, frozen=True):
    """Which folder of the source, under which name."""

    name: str
    path: str = "."


class RequestedProducer(_Part, frozen=True):
    """The WeightProducer's ABI; it must be the one that this image implements."""

    id: str
    version: str
    implementation_fingerprint: str
    manifest_schema: str
    restorer_schema: str


class ProducerRequest(_Part, frozen=True):
    """One shard to produce on one node."""

    schema_version: int
    artifact: str
    source: HubSource | PathSource
    component: RequestedComponent
    producer: RequestedProducer
    representation: str = "canonical"
    storage_class: str = "disk"
    model_id: str = ""
    fingerprint: str = ""
    expected_key: str = ""
    expected_manifest_sha256: str = ""
    scratch: str = "/scratch"


def encode_request(request: ProducerRequest) -> str:
    """The JSON for the Job's environment, where Kubernetes would take `$` for its own."""
    return msgspec.json.encode(request).decode().replace("$", "\\u0024")


def decode_request(text: str) -> ProducerRequest:
    """Read a request strictly.

    Raises:
        WeightLeaseError: `invalid_config`, with the field and what is wrong.

    """
    try:
        request = msgspec.json.decode(text.encode(), type=ProducerRequest, strict=True)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError) as error:
        raise _invalid(f"the producer request is malformed: {error}") from error
    if request.schema_version != SCHEMA_VERSION:
        raise _invalid(f"producer request schemaVersion {request.schema_version} is unknown")
    return request


def _invalid(message: str) -> WeightLeaseError:
    return WeightLeaseError.of(Stage.CONFIGURATION, FailureCode.INVALID_CONFIG, message)
