"""Labels of people: a file that several processes write, that is replaced or removed while it is open."""

from __future__ import annotations

import shutil

import pytest

from uirl.errors import StorageError
from uirl.runtime.limits import InputError
from uirl.storage import labels as module
from uirl.storage.labels import Label, LabelStore, fields_of, read_sheet, write_sheet


def test_labels_of_a_run_that_was_replaced_are_of_the_new_run(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    labels = LabelStore(run / "labels.sqlite")
    labels.set("a", Label(True))
    assert labels.changed()
    assert not labels.changed()
    shutil.rmtree(run)
    assert (labels.all(), labels.get("a")) == ({}, None)
    assert labels.changed()
    with pytest.raises(StorageError, match="cannot write"):
        labels.set("a", Label(False))  # not into the file that is gone, where nobody would find it
    run.mkdir()
    labels.set("b", Label(False))
    with_another = LabelStore(run / "labels.sqlite")
    assert list(with_another.all()) == ["b"]
    with_another.close()
    labels.close()


def test_half_a_pair_in_an_id_finds_its_label(tmp_path):
    labels = LabelStore(tmp_path / "labels.sqlite")
    labels.set("id \ud800", Label(True, 2, "note"))
    assert labels.get("id \ud800").error_step == 2
    sheet = write_sheet(labels.all())
    assert list(read_sheet(sheet.encode().decode())) == ["id \\ud800"]
    assert labels.remove("id \\ud800")
    labels.close()


def test_another_process_may_make_the_file_first(tmp_path, monkeypatch):
    mine, other = (LabelStore(tmp_path / "labels.sqlite") for _ in range(2))
    look = module._is_made
    looks = []

    def look_while_another_makes_it(connection):
        made = look(connection)
        looks.append(made)
        if len(looks) == 1:
            other.set("theirs", Label(True))
        return made

    monkeypatch.setattr(module, "_is_made", look_while_another_makes_it)
    mine.set("mine", Label(True))
    assert looks[0] is False
    assert sorted(mine.all()) == ["mine", "theirs"]
    mine.close()
    other.close()


@pytest.mark.parametrize("sign", [",", ";", "\t"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_sheet_is_read_as_spreadsheets_of_any_country_write_it(sign, end):
    lines = [["id", "passed", "error_step", "note"], ["a", "TRUE", "", '"one; two, ""three"""'], ["'=b", "no", "2", ""]]
    sheet = "\ufeff" + "".join(sign.join(line) + end for line in lines)
    assert read_sheet(sheet) == {"a": Label(True, None, 'one; two, "three"'), "=b": Label(False, 2)}


def test_a_note_keeps_its_lines(tmp_path):
    label = Label(True, None, "one\r\ntwo\nthree\n", "me", 1.0)
    assert read_sheet(write_sheet({"a": label}))["a"].note == label.note


def test_a_sheet_that_says_two_things_of_one_episode_is_refused():
    assert read_sheet("id,passed\na,yes\na,true\n") == {"a": Label(True)}
    with pytest.raises(InputError, match="line 3: got another label of 'a'"):
        read_sheet("id,passed\na,yes\na,no\n")


def test_a_sheet_takes_every_word_for_yes_and_no_and_refuses_what_is_no_sheet():
    words = {True: ["1", "true", "Yes "], False: ["0", "FALSE", "no"], None: [""]}
    for passed, said in words.items():
        found = read_sheet("id,passed\n" + "".join(f"{i},{word}\n" for i, word in enumerate(said)))
        assert [label.passed for label in found.values()] == [passed] * len(said)
    with pytest.raises(InputError, match="is no CSV: field larger"):
        read_sheet(f"id,passed\n{'a' * 200_000},yes\n")


def test_a_change_leaves_what_another_process_wrote(tmp_path):
    mine, theirs = (LabelStore(tmp_path / "labels.sqlite") for _ in range(2))
    assert mine.change("a", {"note": "wrong row"}) == mine.get("a")
    theirs.change("a", {"passed": False})
    changed = mine.change("a", {"error_step": 2})
    assert (changed.passed, changed.error_step, changed.note) == (False, 2, "wrong row")
    assert changed.by
    assert mine.change("a", {"passed": True, "error_step": None}).note == "wrong row"
    mine.close()
    theirs.close()


def test_only_fields_that_are_named_are_of_a_change():
    assert fields_of({}) == {}
    assert fields_of({"error_step": None, "note": None}) == {"error_step": None, "note": ""}
    assert Label.read({"note": "x"}) == Label(None, None, "x")
