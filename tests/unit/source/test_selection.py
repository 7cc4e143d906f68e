"""Which files become payload, which assets, and what is refused with a way out."""

from __future__ import annotations

import pytest

from weightlease.reasons import Reason
from weightlease.source.errors import SourceError
from weightlease.source.model import SourceFile
from weightlease.source.selection import (
    MAX_ASSET_BYTES,
    MAX_ASSETS,
    Selection,
    candidates,
    index_among,
    select,
)
from weightlease.source.shard_index import ShardIndex


def chosen(
    *paths: str,
    include: tuple[str, ...] = (),
    exclude: tuple[str, ...] = (),
    index: ShardIndex | None = None,
) -> Selection:
    return select(candidates([SourceFile(path, 1) for path in paths], include, exclude), index)


def names(files: tuple[SourceFile, ...]) -> list[str]:
    return [file.path for file in files]


def refused(*paths: str, index: ShardIndex | None = None, exclude: tuple[str, ...] = ()) -> str:
    with pytest.raises(SourceError) as caught:
        chosen(*paths, index=index, exclude=exclude)
    return f"{caught.value.reason}: {caught.value.failure.message}"


def test_top_level_safetensors_are_payload_and_the_rest_are_assets() -> None:
    selection = chosen(
        "model.safetensors", "config.json", "README.md", "LICENSE", "1_P/config.json"
    )
    assert names(selection.payload) == ["model.safetensors"]
    assert names(selection.assets) == ["1_P/config.json", "LICENSE", "README.md", "config.json"]
    assert selection.total_bytes == 5


@pytest.mark.parametrize(
    "path",
    [
        ".git/config",
        ".gitattributes",
        ".cache/huggingface/x.json",
        "sub/.hidden/x.json",
        "modeling.py",
        "pytorch_model.bin",
        "model.pt",
        "model.PTH",
        "onnx/model.onnx",
        "tf_model.h5",
        "flax_model.msgpack",
        "rust_model.ot",
        "m.gguf",
        "x.pkl",
        "arrays.npz",
    ],
)
def test_hidden_files_code_and_other_formats_are_left_out(path: str) -> None:
    selection = chosen("model.safetensors", path)
    assert names(selection.files) == ["model.safetensors"]


def test_code_comes_in_only_when_an_include_pattern_names_its_suffix() -> None:
    paths = ("model.safetensors", "modeling.py", "other.py", "config.json")
    assert names(chosen(*paths, include=("*",)).assets) == ["config.json"]
    assert names(chosen(*paths, include=("*", "modeling.py")).assets) == [
        "config.json",
        "modeling.py",
    ]
    assert "other.py" in names(chosen(*paths, include=("*", "*.py")).assets)


def test_exclude_wins_over_include_and_patterns_see_the_whole_path() -> None:
    paths = ("model.safetensors", "a/x.json", "b/x.json", "X.json")
    selection = chosen(*paths, include=("*.safetensors", "*.json"), exclude=("b/*", "X*"))
    assert names(selection.assets) == ["a/x.json"]


def test_an_index_decides_and_what_it_does_not_name_is_not_published() -> None:
    index = ShardIndex("model.safetensors.index.json", {"a": "m-1.safetensors"})
    selection = chosen(
        "m-1.safetensors",
        "consolidated.safetensors",
        "nested/x.safetensors",
        "model.safetensors.index.json",
        index=index,
    )
    assert names(selection.payload) == ["m-1.safetensors"]
    assert names(selection.assets) == ["model.safetensors.index.json"]


def test_a_shard_that_an_index_names_and_nobody_has_is_reported_by_name() -> None:
    index = ShardIndex("i.json", {"a": "m-1.safetensors", "b": "m-2.safetensors"})
    message = refused("m-1.safetensors", index=index)
    assert message.startswith(Reason.MISSING_SHARD)
    assert "m-2.safetensors" in message
    assert "m-1" not in message


def test_a_shard_that_exclude_removes_counts_as_missing() -> None:
    index = ShardIndex("i.json", {"a": "m-1.safetensors", "b": "m-2.safetensors"})
    message = refused("m-1.safetensors", "m-2.safetensors", index=index, exclude=("m-2*",))
    assert message.startswith(Reason.MISSING_SHARD)


def test_several_indexes_are_refused_until_one_is_excluded() -> None:
    files = [
        SourceFile("model.safetensors.index.json", 1),
        SourceFile("model.fp16.safetensors.index.json", 1),
        SourceFile("sub/model.safetensors.index.json", 1),
    ]
    with pytest.raises(SourceError, match="exclude all but one"):
        index_among(files)
    found = index_among(candidates(files, exclude=("*.fp16.*",)))
    assert found is not None
    assert found.path == "model.safetensors.index.json"


def test_nested_safetensors_without_an_index_name_the_file_and_the_way_out() -> None:
    message = refused("model.safetensors", "text_encoder/model.safetensors")
    assert "'text_encoder/model.safetensors'" in message
    assert "component with path 'text_encoder'" in message
    assert names(chosen("model.safetensors", "t/model.safetensors", exclude=("t/*",)).payload) == [
        "model.safetensors"
    ]


@pytest.mark.parametrize(
    "paths",
    [
        ("model.safetensors", "model-00001-of-00001.safetensors"),
        ("model.safetensors", "model.fp16.safetensors"),
        ("m-1-of-1.safetensors", "m-1-of-2.safetensors", "m-2-of-2.safetensors"),
        ("m-1-of-1.safetensors", "m.fp16.safetensors"),
    ],
)
def test_alternative_splits_without_an_index_are_refused(paths: tuple[str, ...]) -> None:
    assert "alternative" in refused(*paths)


def test_a_whole_split_without_an_index_is_taken_and_a_part_of_one_is_not() -> None:
    shards = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
    assert names(chosen(*shards).payload) == shards
    assert refused(*shards[:2]).startswith(Reason.MISSING_SHARD)


def test_a_folder_with_pickles_alone_says_what_was_found() -> None:
    assert "convert the checkpoint" in refused("pytorch_model.bin")
    assert "config.json" in refused("pytorch_model.bin", "config.json")


def test_unreadable_files_count_only_if_they_are_selected() -> None:
    broken = SourceFile("x.json", problem="a link leaves the source's root")
    files = [SourceFile("model.safetensors", 1), broken]
    with pytest.raises(SourceError, match=r"x\.json \(a link leaves") as caught:
        select(candidates(files))
    assert caught.value.reason is Reason.SOURCE_MALFORMED
    assert names(select(candidates(files, exclude=("x.json",))).files) == ["model.safetensors"]


def test_a_name_that_is_not_utf8_is_reported_escaped() -> None:
    name = b"caf\xe9.json".decode("utf-8", "surrogateescape")
    broken = SourceFile(name, problem="its name is not UTF-8")
    with pytest.raises(SourceError) as caught:
        select(candidates([SourceFile("model.safetensors", 1), broken]))
    caught.value.failure.message.encode()


def test_a_listing_with_one_path_twice_is_refused() -> None:
    with pytest.raises(SourceError, match="twice"):
        candidates([SourceFile("a.json", 1), SourceFile("a.json", 2)])


@pytest.mark.parametrize("path", ["../x.json", "/x.json", "a//x.json", "a\\x.json", "a/./b.json"])
def test_paths_that_could_leave_the_artifact_are_refused(path: str) -> None:
    files = [SourceFile("model.safetensors", 1), SourceFile(path, 1)]
    if any(part.startswith(".") for part in path.split("/")):
        assert names(select(candidates(files)).files) == ["model.safetensors"]
    else:
        with pytest.raises(SourceError):
            select(candidates(files))


def test_assets_are_bounded_in_number_and_size() -> None:
    model = SourceFile("model.safetensors", 1)
    many = [SourceFile(f"{number}.json", 1) for number in range(MAX_ASSETS + 1)]
    with pytest.raises(SourceError, match="exclude some"):
        select(candidates([model, *many]))
    with pytest.raises(SourceError, match=r"huge\.json"):
        select(candidates([model, SourceFile("huge.json", MAX_ASSET_BYTES + 1)]))
