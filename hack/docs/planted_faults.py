"""`python hack/docs/planted_faults.py [NUMBER…]`: plant one fault per statement, see its test fail.

Each fault is a replacement in a copy of the library, made for the statement of
docs/host-weight-runtime.md whose number it has. A fault that its test does not notice ends the run
with status 1. Takes some minutes: every fault is a test run of its own.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "runtime" / "src"
_DECISIONS = "runtime/decisions.py"
_RUNTIME = "runtime/host_runtime.py"
_TABLE = "tests/unit/host_runtime/test_failure_table.py"
_HOST = "tests/unit/host_runtime/test_host_runtime.py"
_LOCAL = "tests/contract/store/test_local_runtime.py"
_PARALLEL = "tests/contract/test_parallelism.py"
_RESTORE = "tests/unit/restore/test_restorer.py"
_PERMITS = "    return failure.retryable and failure.code in _PERMITS_FALLBACK"


@dataclass(frozen=True)
class Fault:
    """`before` occurs once in `file`, below the library's package, and becomes `after`."""

    number: str
    file: str
    before: str
    after: str
    test_file: str
    test: str


FAULTS = (
    Fault(
        *("M1", _RUNTIME),
        "        if policy.mode is RuntimeMode.DISABLED:\n            return\n",
        "",
        *(_HOST, "test_disabled_touches_neither_store_nor_identity_nor_producer"),
    ),
    Fault(
        *("M2", _DECISIONS),
        "    if mode is RuntimeMode.PREFERRED and permitted:",
        "    if mode is RuntimeMode.PREFERRED:",
        *(_TABLE, "test_configuration_and_authentication_failures_are_no_miss"),
    ),
    Fault(
        *("M3", _DECISIONS),
        "    if mode is RuntimeMode.PREFERRED and permitted:",
        "    if permitted:",
        *(_TABLE, "test_a_local_miss_falls_back_where_preferred_and_fails_where_required"),
    ),
    Fault(
        *("F1", _DECISIONS),
        "        return Action.RETURN_LEASE\n    if status not in ABSENT:",
        "        return Action.FAIL_STARTUP\n    if status not in ABSENT:",
        *(_LOCAL, "test_a_miss_builds_and_the_next_start_hits_without_a_producer"),
    ),
    Fault(
        *("F2", _DECISIONS),
        "        FailureCode.PRODUCER_UNAVAILABLE,\n",
        "",
        *(_TABLE, "test_a_local_miss_falls_back_where_preferred_and_fails_where_required"),
    ),
    Fault(
        *("F3", _DECISIONS),
        "        return Action.QUARANTINE_THEN_PRODUCE",
        "        return ending(policy.mode, permitted=True)",
        *(_LOCAL, "test_an_invalid_artifact_is_quarantined_and_rebuilt"),
    ),
    Fault(
        *("F4", _DECISIONS),
        "        FailureCode.ENOSPC,\n",
        "",
        *(_TABLE, "test_a_retryable_store_failure_falls_back_where_preferred"),
    ),
    Fault(
        *("F5", _RUNTIME),
        "    if producer.coordination is not CoordinationScope.SINGLE_PROCESS:",
        "    if producer.coordination is CoordinationScope.ARTIFACT_BUNDLE:",
        *(_TABLE, "test_an_unsupported_producer_fails_in_every_mode"),
    ),
    Fault(
        *("F6", _DECISIONS),
        _PERMITS,
        "    return failure.code in {*_PERMITS_FALLBACK, FailureCode.IDENTITY_COLLISION}",
        *(_TABLE, "test_an_identity_collision_fails_in_every_mode"),
    ),
    Fault(
        *("F7", _DECISIONS),
        _PERMITS,
        "    return failure.retryable",
        *(_TABLE, "test_a_producer_or_publication_failure_fails_in_every_mode_whatever_it_says"),
    ),
    Fault(
        *("F8", _RUNTIME),
        "            return built.failure or refusals.VANISHED",
        "            return PublicationOutcome.PUBLISHED",
        *(_LOCAL, "test_a_failed_publication_after_the_load_leaves_the_fallback_as_it_was"),
    ),
    Fault(
        *("F9", _DECISIONS),
        "        return RestoreFallback.SAME_MODEL",
        "        return RestoreFallback.FAIL_STARTUP",
        *("tests/unit/integrations/test_transaction.py", "falls_back_to_a_fresh_model"),
    ),
    Fault(
        *("F10", _DECISIONS),
        "        return RestoreFallback.FRESH_MODEL",
        "        return RestoreFallback.SAME_MODEL",
        *(_TABLE, "test_a_failed_restore_may_reuse_only_a_model_that_no_commit_touched"),
    ),
    Fault(
        *("P1", "parallelism.py"),
        "    if data.owns_distinct_weights and data.size > 1:",
        "    if data.size > 1:",
        *(_PARALLEL, "test_replicas_of_data_parallelism_share_an_artifact"),
    ),
    Fault(
        *("P2", "parallelism.py"),
        "        tensor_parallel_rank=tensor.rank,",
        "        tensor_parallel_rank=0,",
        *(_PARALLEL, "test_tensor_parallel_ranks_and_sizes_never_meet"),
    ),
    Fault(
        *("P3", "parallelism.py"),
        "        sequence_parallel_backend=sequence.backend,",
        '        sequence_parallel_backend="none",',
        *(_PARALLEL, "test_sequence_parallel_sizes_and_backends_that_change_the_layout"),
    ),
    Fault(
        *("P4", "parallelism.py"),
        '"stage": pipeline.rank}',
        '"stage": 0}',
        *(_PARALLEL, "test_pipeline_stages_never_meet_and_one_stage_is_the_whole"),
    ),
    Fault(
        *("P5", "parallelism.py"),
        '            "experts": list(expert.experts),\n',
        "",
        *(_PARALLEL, "test_ranks_that_own_other_experts_never_meet"),
    ),
    Fault(
        *("S12", "restore/restorer.py"),
        "        return RestorePlan(self.context, model, lease, ownership, derived)",
        "        plan = RestorePlan(self.context, model, lease, ownership, derived)\n"
        "        plan.commit()\n        return plan",
        *(_RESTORE, "test_planning_changes_neither_model_nor_lease"),
    ),
    Fault(
        *("S14", "restore/restorer.py"),
        "        make_unusable(self._model, why)\n",
        "",
        *(_RESTORE, "test_a_failed_commit_makes_the_model_unusable_and_says_so"),
    ),
    Fault(
        *("S15", _RUNTIME),
        "        if producer.lookup_phase is not LookupPhase.POST_LOAD_ONLY:",
        "        if producer.lookup_phase is LookupPhase.POST_LOAD_ONLY:",
        *(_LOCAL, "test_publish_after_load_takes_no_pre_load_producer"),
    ),
    Fault(
        *("S17", _RUNTIME),
        "            built.lease.close()\n",
        "            self._kept = built.lease\n",
        *(_LOCAL, "test_a_publication_after_the_load_warms_the_next_start_and_keeps_no_lease"),
    ),
    Fault(
        *("S19", _RUNTIME),
        "        elif not self.policy.allow_post_load_publish:",
        "        elif not self.policy.allow_local_build:",
        *(_LOCAL, "test_publications_after_the_load_are_gated_on_their_own"),
    ),
    Fault(
        *("S21", _RUNTIME),
        "    if producer.identity.canonical_bytes != wanted.canonical_bytes:",
        "    if not producer.identity.canonical_bytes:",
        *(_TABLE, "test_a_producer_of_another_identity_fails_in_every_mode"),
    ),
    Fault(
        *("S26", "parallelism.py"),
        "        if not adapter.merge:",
        "        if adapter is None:",
        *(_PARALLEL, "test_a_dynamic_overlay_is_refused_typed"),
    ),
    Fault(
        *("S35", "producer/final_layout.py"),
        "        self._require_source()\n        metadata =",
        "        metadata =",
        *("tests/unit/producer/test_final_layout.py", "test_a_source_replaced_before_or_during"),
    ),
    Fault(
        *("S37", "restore/ownership.py"),
        '            "aliases": [slot.name for slot in self.slots[1:]],\n',
        "",
        *("tests/unit/restore/test_ownership.py", "test_names_kinds_roles_shapes_dtypes_and"),
    ),
    Fault(
        *("S38", "restore/restorer.py"),
        "        _require_identity(self.context, lease)\n",
        "",
        *(_RESTORE, "test_a_lease_of_another_identity_is_refused"),
    ),
    Fault(
        *("S41", "restore/representation.py"),
        '_NARROWED = {"torch.bfloat16",',
        '_NARROWED = {"torch.float8_e4m3fn", "torch.bfloat16",',
        *("tests/unit/producer/test_float8.py", "test_a_bf16_layout_holds_no_fp8_weight"),
    ),
    Fault(
        *("S54", _RUNTIME),
        "self.policy.wait.coordination_timeout_seconds - elapsed)",
        "self.policy.wait.coordination_timeout_seconds)",
        *(_HOST, "test_lookup_and_build_share_one_coordination_budget"),
    ),
    Fault(
        *("S55", _RUNTIME),
        "            self._opening = error.failure\n",
        "            self._opening = None\n",
        *(_HOST, "test_a_timed_out_runtime_keeps_its_failure_and_a_fresh_one_may_succeed"),
    ),
    Fault(
        *("S62", _RUNTIME),
        "trail.note(wanted.stage, AttemptResult.ERROR, Action.FAIL_STARTUP, wanted)",
        "self._end(trail, wanted)",
        *(_HOST, "test_a_source_that_cannot_be_identified_stays_visible"),
    ),
)


def planted(fault: Fault, source: str) -> str:
    """`source` with the fault in it.

    Raises:
        ValueError: the place is not there, or there more than once.

    """
    found = source.count(fault.before)
    if found != 1:
        raise ValueError(f"{fault.number}: the place in {fault.file} occurs {found} times")
    return source.replace(fault.before, fault.after)


def notices(fault: Fault, library: Path) -> bool:
    """Whether the fault's test fails over a copy of the library that has the fault."""
    shutil.copytree(LIBRARY, library, ignore=shutil.ignore_patterns("__pycache__"))
    path = library / "weightlease" / fault.file
    path.write_text(planted(fault, path.read_text(encoding="utf-8")), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"]
    ended = subprocess.run(
        [*command, fault.test_file, "-k", fault.test],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(library)},
        check=False,
        capture_output=True,
        text=True,
    )
    if ended.returncode not in {0, 1}:
        raise ValueError(f"{fault.number}: no test ran: {ended.stdout[-500:]}")
    return ended.returncode == 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("numbers", nargs="*", help="statements; all of them by default")
    wanted = set(parser.parse_args().numbers)
    missed = []
    for fault in FAULTS:
        if wanted and fault.number not in wanted:
            continue
        with tempfile.TemporaryDirectory() as folder:
            noticed = notices(fault, Path(folder) / "src")
        print(f"{fault.number:4} {'noticed' if noticed else 'MISSED'}  {fault.test}", flush=True)
        if not noticed:
            missed.append(fault.number)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
