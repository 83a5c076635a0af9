"""Labels of people: a file that several processes write, that is replaced or removed while it is open."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from contextlib import closing

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


def test_a_sheet_holds_every_label_and_nothing_that_is_computed(tmp_path):
    label = Label(True, None, "one\r\ntwo\nthree\n", "me", 1.0)
    assert read_sheet(write_sheet({"a": label}))["a"].note == label.note
    odd = {sign: Label(None, 0, f"{sign}1", sign, 1.23456) for sign in ("=", "+", "-", "@", "\t", "'")}
    told = write_sheet({"b": Label(False, 2, "x", "me", 2.0), **odd}).splitlines()
    assert (told[0], told[-1]) == ("id,passed,error_step,note,by,time", "b,false,2,x,me,2.000")
    assert told[3] == "'+,,0,'+1,'+,1.235"
    assert all(line.startswith(("'", "\"'")) for line in told[1:-1])
    again = read_sheet("\n".join(told))
    assert {id: (one.error_step, one.note) for id, one in again.items() if id != "b"} == {
        sign: (0, f"{sign}1") for sign in odd
    }


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], r"got \[\], expected an object with passed, error_step and note"),
        ({"passes": True}, "got {'passes': True}, expected an object"),
        ({"passed": 1}, "got passed=1, expected true, false or null"),
        ({"error_step": True}, "got error_step=True, expected the index of a turn, from 0, or null"),
        ({"error_step": -1}, "got error_step=-1"),
        ({"error_step": 2**31}, "got error_step=2147483648"),
        ({"note": 3}, "got note=3, expected a text of at most 10000 characters"),
        ({"note": "x" * 10_001}, "got note='xxx"),
    ],
)
def test_what_is_no_label_is_refused(value, message):
    with pytest.raises(InputError, match=message):
        fields_of(value)
    assert fields_of({"passed": None, "error_step": 2**31 - 1, "note": "x" * 10_000})["error_step"] == 2**31 - 1
    assert fields_of({"note": "a\ud800", "by": "x", "time": 3}) == {"note": "a\ufffd"}


@pytest.mark.parametrize(
    ("sheet", "message"),
    [
        (
            "id,note\na,x\n",
            r"got the columns \['id', 'note'\], expected id and passed, as in id,passed,error_step,note,by",
        ),
        ("passed\nyes\n", r"got the columns \['passed'\]"),
        ("id,passed\na,maybe\n", "line 2: got passed='maybe', expected true, false or nothing, and an id"),
        ("id,passed\n,yes\n", "line 2: got passed='yes'"),
        ("id,passed,error_step\na,yes,-1\n", "line 2: got error_step='-1', expected the index of a turn, from 0"),
        ("id,passed,error_step\na,yes,\u0663\n", "got error_step="),
        ("id,passed\na,yes\na,no\n", "line 3: got another label of 'a' than in a line before"),
        (f"id,passed\n{'a' * 200_000},yes\n", "line 1 is no CSV: field larger"),
    ],
)
def test_what_is_no_sheet_is_refused(sheet, message):
    with pytest.raises(InputError, match=message):
        read_sheet(sheet)


def test_labels_are_signed_and_replaced_all_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(module.getpass, "getuser", lambda: "me")
    began = time.time()
    with closing(LabelStore(tmp_path / "labels.sqlite")) as labels:
        assert (labels.all(), labels.remove("a"), (tmp_path / "labels.sqlite").exists()) == ({}, False, False)
        signed = labels.set_many({"a": Label(True, 1, "n", "other", 1.0), "b": Label(None)})
        assert labels.all() == signed
        assert {(one.by, began <= one.time <= time.time()) for one in signed.values()} == {("me", True)}
        assert signed["a"].to_dict() == {
            "passed": True, "error_step": 1, "note": "n", "by": "me", "time": signed["a"].time,
        }  # fmt: skip
        assert (labels.changed(), labels.changed()) == (True, False)
        assert (labels.remove("a"), labels.remove("a"), list(labels.all())) == (True, False, ["b"])
        monkeypatch.setattr(module.getpass, "getuser", lambda: {}["none"])  # a user id without a name
        assert labels.set("b", Label(False)).by == str(os.getuid())
    with sqlite3.connect(tmp_path / "labels.sqlite") as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
        connection.execute("PRAGMA application_id = 7")
    with pytest.raises(StorageError, match="holds no labels of uirl; move it away"):
        labels.all()


def test_a_sheet_takes_every_word_for_yes_and_no():
    words = {True: ["1", "true", "Yes "], False: ["0", "FALSE", "no"], None: [""]}
    for passed, said in words.items():
        found = read_sheet("id,label\n" + "".join(f"{i},{word}\n" for i, word in enumerate(said)))
        assert [label.passed for label in found.values()] == [passed] * len(said)
    assert read_sheet("id,passed\na,yes\na,true\n") == {"a": Label(True)}


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
