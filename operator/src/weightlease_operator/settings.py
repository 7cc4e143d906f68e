"""What an administrator can choose, read once from WEIGHTLEASE_OPERATOR_* at start."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from weightlease.names import OPERATOR_METRICS_PORT, SOCKET_DIRECTORY

Seconds = Annotated[float, Field(gt=0, le=86400)]


class PlanSettings(BaseModel):
    """What decisions depend on."""

    model_config = ConfigDict(frozen=True)

    agent_grace_seconds: Annotated[
        Seconds, Field(description="an agent that reported longer ago than this is silent")
    ] = 120
    delete_grace_seconds: Annotated[
        Seconds, Field(description="a deletion stops waiting for an agent silent this long")
    ] = 300
    confirm_grace_seconds: Annotated[
        Seconds, Field(description="how long an agent may take to list what a Job published")
    ] = 90
    start_grace_seconds: Annotated[
        Seconds, Field(description="how long a pod may start before its events are asked why")
    ] = 30
    backoff_base_seconds: Annotated[
        Seconds, Field(description="wait after the first failed attempt; doubles with each")
    ] = 10
    backoff_cap_seconds: Annotated[Seconds, Field(description="longest wait")] = 600
    allow_host_path_sources: Annotated[
        bool, Field(description="let users name folders of the nodes as sources")
    ] = False


class AgentVolume(StrEnum):
    """How a prewarm Job reaches the agent of its node."""

    CSI = "csi"
    HOST_PATH = "hostPath"


class JobSettings(BaseModel):
    """What every prewarm Job gets."""

    model_config = ConfigDict(frozen=True)

    scratch_size: Annotated[
        str,
        Field(
            pattern=r"^[0-9]+(k|M|G|T|Ki|Mi|Gi|Ti)?$",
            description="limit of the folder for one downloaded shard",
        ),
    ] = "20Gi"
    agent_volume: Annotated[
        AgentVolume,
        Field(description="an inline volume of the CSI driver, or the host's socket and a token"),
    ] = AgentVolume.CSI
    socket_directory: Annotated[
        str, Field(pattern=r"^/.+$", description="the agent's socket directory on every node")
    ] = SOCKET_DIRECTORY


class ElectionSettings(BaseModel):
    """How several operators agree on one; see `election` for what the times mean."""

    model_config = ConfigDict(frozen=True)

    namespace: Annotated[
        str, Field(description="where the Lease is; empty: this operator leads, without asking")
    ] = ""
    name: str = "weightlease-operator"
    identity: Annotated[str, Field(description="empty: the host's name, which is the pod's")] = ""
    lease_seconds: Annotated[
        int, Field(ge=2, le=3600, description="others wait so long for a holder that is silent")
    ] = 15
    deadline_seconds: Annotated[
        Seconds, Field(description="a holder that could not renew it for so long ends")
    ] = 10
    renew_seconds: Annotated[Seconds, Field(description="between renewals")] = 4
    retry_seconds: Annotated[Seconds, Field(description="between attempts")] = 2

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if not self.renew_seconds < self.deadline_seconds < self.lease_seconds:
            raise ValueError(
                "renewSeconds must be less than deadlineSeconds, and that less than leaseSeconds; "
                f"they are {self.renew_seconds}, {self.deadline_seconds}, {self.lease_seconds}"
            )
        return self


class Settings(BaseSettings):
    """The whole; nested groups take WEIGHTLEASE_OPERATOR_PLAN__AGENT_GRACE_SECONDS and the like."""

    model_config = SettingsConfigDict(
        env_prefix="WEIGHTLEASE_OPERATOR_", env_nested_delimiter="__", frozen=True
    )

    plan: PlanSettings = Field(default_factory=PlanSettings)
    jobs: JobSettings = Field(default_factory=JobSettings)
    election: ElectionSettings = Field(default_factory=ElectionSettings)
    workers: Annotated[int, Field(ge=1, le=64, description="artifacts reconciled at once")] = 4
    batch_seconds: Annotated[
        Seconds, Field(description="events about one artifact within this are one reconciliation")
    ] = 0.5
    resync_seconds: Annotated[
        Seconds, Field(description="everything is listed anew this often, missed events or not")
    ] = 300
    requeue_base_seconds: Annotated[
        Seconds, Field(description="wait after a failed reconciliation; doubles with each")
    ] = 1
    requeue_cap_seconds: Annotated[Seconds, Field(description="longest such wait")] = 120
    request_timeout_seconds: Annotated[
        Seconds, Field(description="deadline of one call to the API server")
    ] = 20
    metrics_port: Annotated[int, Field(ge=0, le=65535)] = OPERATOR_METRICS_PORT
    bind_address: str = "0.0.0.0"  # noqa: S104 - kubelet and Prometheus come from outside the pod
    failpoint: Annotated[
        str, Field(pattern=r"^((before|after):[1-9][0-9]*)?$", description="for tests of crashes")
    ] = ""
    log_level: Annotated[str, Field(pattern="^(DEBUG|INFO|WARNING|ERROR)$")] = "INFO"
