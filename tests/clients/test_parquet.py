"""The Parquet file of an export, in the loader of datasets and in TRL's own SFTTrainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.clients.test_sft import bare, exported, picture_model, rows_of, takes_a_step, text_model, trainer_of
from uirl.errors import StorageError
from uirl.storage.export import to_parquet

pytestmark = pytest.mark.clients


@pytest.mark.parametrize("each_reply", [False, True])
@pytest.mark.parametrize("pictures", [False, True])
def test_datasets_loads_every_row_with_its_pictures(tmp_path: Path, pictures: bool, each_reply: bool) -> None:
    from datasets import Image, load_dataset

    file = exported(tmp_path, pictures=pictures, each_reply=each_reply)
    target = tmp_path / "sft.parquet"
    wanted = rows_of(file)
    assert to_parquet(file, target) == len(wanted)
    loaded = load_dataset("parquet", data_files=str(target), split="train")
    assert loaded.num_rows == len(wanted)
    for got, want in zip(loaded, wanted, strict=True):
        assert len(got.get("images", [])) == len(want.get("images", []))
        for name in want.keys() - {"images"}:
            assert bare(got[name]) == want[name]
    if pictures:
        kind: Any = loaded.features["images"]
        assert isinstance(getattr(kind, "feature", kind if not isinstance(kind, list) else kind[0]), Image)
        assert loaded[0]["images"][0].size


@pytest.mark.parametrize("pictures", [False, True])
def test_trl_trains_on_it(tmp_path: Path, pictures: bool) -> None:
    from datasets import load_dataset

    file = exported(tmp_path, pictures=pictures, each_reply=True)
    to_parquet(file, tmp_path / "sft.parquet")
    rows = load_dataset("parquet", data_files=str(tmp_path / "sft.parquet"), split="train")
    model, tokenizer = picture_model() if pictures else text_model("qwen2_5_chat_template")
    takes_a_step(trainer_of(model, tokenizer, rows, tmp_path / "out"))


def test_a_missing_picture_is_named(tmp_path: Path) -> None:
    file = exported(tmp_path, pictures=True)
    gone = next((tmp_path / "sft_images").iterdir())
    gone.unlink()
    with pytest.raises(StorageError, match=gone.name):
        to_parquet(file, tmp_path / "sft.parquet")
    assert not (tmp_path / "sft.parquet").exists()
    (tmp_path / "none.jsonl").write_text("")
    (tmp_path / "sft.parquet").write_text("of an earlier export")
    assert to_parquet(tmp_path / "none.jsonl", tmp_path / "sft.parquet") == 0
    assert not (tmp_path / "sft.parquet").exists()
