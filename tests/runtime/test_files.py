"""A file is replaced whole or not at all, and an error says what to do."""

import os
import resource
import signal
from pathlib import Path

import pytest

from uirl.errors import StorageError
from uirl.runtime.files import require_writable, write_atomically


def test_text_and_bytes_arrive_in_folders_that_did_not_exist(tmp_path):
    write_atomically(tmp_path / "a" / "b.txt", "größer")
    write_atomically(tmp_path / "a" / "c.bin", b"\x00\xff")
    assert (tmp_path / "a" / "b.txt").read_bytes() == "größer".encode()
    assert (tmp_path / "a" / "c.bin").read_bytes() == b"\x00\xff"


def test_writing_leaves_the_umask_of_other_threads_alone(tmp_path, monkeypatch):
    def changed(mask):
        raise AssertionError("the umask belongs to the whole process")

    monkeypatch.setattr(os, "umask", changed)
    write_atomically(tmp_path / "file", "x")
    assert (tmp_path / "file").read_text() == "x"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_permissions_follow_the_umask(tmp_path):
    previous = os.umask(0o027)
    try:
        write_atomically(tmp_path / "a", "x")
    finally:
        os.umask(previous)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640


def test_a_full_disk_keeps_the_old_file_and_leaves_no_rest(tmp_path):
    path = tmp_path / "a.txt"
    write_atomically(path, "old")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limit[1]))
    try:
        with pytest.raises(StorageError, match=r"cannot write .*a\.txt: .*size limit"):
            write_atomically(path, "new" * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, handler)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_what_is_no_regular_file_is_not_replaced_and_links_are_followed(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for work in (require_writable, lambda path: write_atomically(path, "x")):
        with pytest.raises(StorageError, match=r"pipe: it is no regular file; name a file that may be replaced"):
            work(pipe)
        with pytest.raises(StorageError, match=r"that is a folder: name a file"):
            work(tmp_path)
    assert pipe.is_fifo()
    (tmp_path / "kept").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "kept" / "report.json")
    for text in ("new", "newer"):
        require_writable(tmp_path / "link")
        write_atomically(tmp_path / "link", text)
        assert (tmp_path / "kept" / "report.json").read_text() == text
    assert (tmp_path / "link").is_symlink()
