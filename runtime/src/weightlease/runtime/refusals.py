"""What a runtime itself refuses, as the failures that its reports hold."""

from __future__ import annotations

from weightlease.errors import Failure, FailureCode, Stage

NO_STORE = Failure(
    Stage.DOMAIN,
    FailureCode.DOMAIN_UNAVAILABLE,
    retryable=False,
    message="the runtime has no store",
)
NO_REMOTE = Failure(
    Stage.REMOTE,
    FailureCode.UNSUPPORTED,
    retryable=False,
    message="no remote backing is implemented; set remote to 'disabled'",
)
NO_PRODUCER = Failure(
    Stage.PRODUCTION,
    FailureCode.PRODUCER_UNAVAILABLE,
    retryable=True,
    message="no producer may build this representation before the load",
)
OTHER_IDENTITY = Failure(
    Stage.PRODUCTION,
    FailureCode.PRODUCER_UNAVAILABLE,
    retryable=False,
    message="the producer makes another identity than the one asked for",
)
NOT_ONE_PROCESS = Failure(
    Stage.PRODUCTION,
    FailureCode.PRODUCER_UNSUPPORTED,
    retryable=False,
    message="the producer needs several processes or artifacts; only 'single_process' is supported",
)
NOT_POST_LOAD = Failure(
    Stage.PRODUCTION,
    FailureCode.PRODUCER_UNSUPPORTED,
    retryable=False,
    message="a publication after the load takes a producer of phase 'post_load_only'",
)
VANISHED = Failure(
    Stage.LOOKUP,
    FailureCode.LOCAL_MISS,
    retryable=False,
    message="the artifact was removed before it could be leased",
)
