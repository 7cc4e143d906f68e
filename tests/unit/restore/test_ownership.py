"""What a model owns is the same from a CPU and from a meta skeleton, and never ambiguous."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from final_layouts import CONTRACT, Small, finished, skeleton
from weightlease.manifest import TensorKind
from weightlease.restore import ContractViolation, FinalLayoutModelContract, Violation
from weightlease.restore.ownership import Ownership, collect
from weightlease.restore.representation import BFloat16PreservingFloat32

POLICY = BFloat16PreservingFloat32()


def owned(model: torch.nn.Module, contract: FinalLayoutModelContract = CONTRACT) -> Ownership:
    return collect(model, contract, POLICY)


def test_cpu_and_meta_skeletons_give_one_digest() -> None:
    assert owned(skeleton()).digest == owned(finished()).digest == owned(Small()).digest


def test_names_kinds_roles_shapes_dtypes_and_strides_are_recorded() -> None:
    targets = owned(finished()).by_name()
    assert sorted(targets) == [
        *("body.0.bias", "body.0.weight", "embed.weight"),
        *("norm.bias", "norm.weight", "running", "steps"),
    ]
    assert targets["embed.weight"].to_dict() == {
        "name": "embed.weight",
        "kind": "parameter",
        "role": "weight",
        "shape": [8, 8],
        "dtype": "torch.bfloat16",
        "stride": [8, 1],
        "aliases": ["out.weight"],
    }
    assert targets["norm.weight"].role == "preserved_float32"
    assert (targets["steps"].kind, targets["steps"].dtype) == (TensorKind.BUFFER, "torch.int64")
    assert targets["steps"].role == "persistent_buffer"
    assert [slot.name for slot in owned(finished()).derived] == ["table"]


def wider(model: Small) -> None:
    model.body[0] = torch.nn.Linear(8, 24)


def renamed(model: Small) -> None:
    model.renamed = model.body
    del model.body


def untied(model: Small) -> None:
    model.out.weight = torch.nn.Parameter(model.out.weight.clone())


def as_buffer(model: Small) -> None:
    value = model.norm.bias.detach()
    del model.norm.bias
    model.norm.register_buffer("bias", value)


@pytest.mark.parametrize("change", [wider, renamed, untied, as_buffer])
def test_another_shape_name_tie_or_kind_is_another_digest(change: Callable[[Small], None]) -> None:
    model = Small()
    before = owned(model).digest
    change(model)
    assert owned(model).digest != before


def test_another_set_of_preserved_modules_is_another_digest() -> None:
    wide = FinalLayoutModelContract("test.Small", "1", ("*",))
    assert owned(skeleton(), wide).digest != owned(skeleton()).digest


def views(model: Small) -> None:
    memory = torch.zeros(16)
    model.norm.weight = torch.nn.Parameter(memory[:8])
    model.norm.bias = torch.nn.Parameter(memory[:8])


def strided(model: Small) -> None:
    model.embed.weight = torch.nn.Parameter(torch.zeros(8, 8).t()[::2])


def sparse(model: Small) -> None:
    model.register_buffer("sparse", torch.eye(2).to_sparse())


def lazy(model: Small) -> None:
    model.lazy = torch.nn.LazyLinear(3)


def subclassed(model: Small) -> None:
    class Tagged(torch.Tensor):
        pass

    model.register_buffer("tagged", torch.zeros(2).as_subclass(Tagged))


def complex_numbers(model: Small) -> None:
    model.register_buffer("complex", torch.zeros(2, dtype=torch.complex64))


def parameter_and_buffer(model: Small) -> None:
    model.norm.register_buffer("twin", model.norm.weight)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (views, Violation.OWNERSHIP_AMBIGUOUS),
        (parameter_and_buffer, Violation.OWNERSHIP_AMBIGUOUS),
        (strided, Violation.TENSOR_UNSUPPORTED),
        (sparse, Violation.TENSOR_UNSUPPORTED),
        (lazy, Violation.TENSOR_UNSUPPORTED),
        (subclassed, Violation.TENSOR_UNSUPPORTED),
        (complex_numbers, Violation.DTYPE_UNSUPPORTED),
    ],
)
def test_what_is_no_plain_tensor_of_one_owner_is_refused(
    change: Callable[[Small], None], reason: Violation
) -> None:
    model = Small()
    change(model)
    with pytest.raises(ContractViolation) as caught:
        owned(model)
    assert caught.value.reason is reason


def test_an_extra_state_is_refused_rather_than_lost() -> None:
    class Stateful(Small):
        def get_extra_state(self) -> dict[str, int]:
            return {"steps": 1}

    with pytest.raises(ContractViolation, match="extra state"):
        owned(Stateful())


def test_a_module_held_under_two_names_is_owned_once() -> None:
    model = Small()
    model.again = model.norm
    aliases = owned(model).by_name()["norm.weight"].to_dict()["aliases"]
    assert aliases == ["again.weight"]


def test_a_model_without_tensors_is_refused() -> None:
    with pytest.raises(ContractViolation, match="owns no tensor"):
        owned(torch.nn.Identity())


def test_a_structure_that_the_contract_does_not_describe_is_refused() -> None:
    def refuse(ownership: Ownership) -> None:
        raise ValueError("five blocks and not six")

    with pytest.raises(ContractViolation, match="five blocks") as caught:
        owned(Small(), FinalLayoutModelContract("test.Small", "1", structure=refuse))
    assert caught.value.reason is Violation.MODEL_CONTRACT_UNSUPPORTED
