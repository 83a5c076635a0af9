"""Pictures that processes share: one file each, whole or absent, and never forgotten while somebody puts them."""

from __future__ import annotations

import errno
import io
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from uirl.errors import ContractError, StorageError
from uirl.images import Screenshot
from uirl.runtime import scratch
from uirl.workers import pictures as module
from uirl.workers.pictures import SharedImageStore, SharedPictures

LATER = 60.0
SHOT = Screenshot(b"a picture")


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("??/*"))


def age(shared: SharedPictures, image: Screenshot, seconds: float = 100) -> None:
    """Make the file of a picture look as old as that."""
    then = time.time() - seconds
    os.utime(shared.folder / image.hash[:2] / image.hash, (then, then))


def run(program: str, *arguments: object, **options: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)], stdout=subprocess.PIPE, text=True, **options
    )  # type: ignore[call-overload, no-any-return]


def test_a_folder_is_the_same_from_wherever_it_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pictures = SharedPictures("beside")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert SharedPictures(pictures.folder).identity() == pictures.identity()
    assert SharedPictures("beside").identity() != pictures.identity()


def test_what_one_put_another_gets(tmp_path: Path) -> None:
    one, other = SharedPictures(tmp_path / "new" / "folder"), SharedPictures(tmp_path / "new" / "folder")
    one.put(SHOT)
    other.put(SHOT)
    assert other.get(SHOT.hash) == SHOT
    assert files(one.folder) == [SHOT.hash]
    with pytest.raises(KeyError, match=f"{Screenshot(b'y').hash}.*{one.folder}"):
        one.get(Screenshot(b"y").hash)


WRITER = """
import sys
from uirl.images import Screenshot
from uirl.workers.pictures import SharedPictures
shared = SharedPictures(sys.argv[1])
for number in range(300):
    image = Screenshot(b"%d" % number * 5000)
    shared.put(image)
    assert shared.get(image.hash) == image
"""


def test_two_processes_put_the_same_pictures(tmp_path: Path) -> None:
    children = [run(WRITER, tmp_path) for _ in range(2)]
    assert [child.wait(60) for child in children] == [0, 0]
    assert files(tmp_path) == sorted(Screenshot(b"%d" % number * 5000).hash for number in range(300))


def test_pictures_are_forgotten_by_the_time_they_were_put_last(tmp_path: Path) -> None:
    shared = SharedPictures(tmp_path)
    old, again, new = (Screenshot(bytes([i]) * 10) for i in range(3))
    for image in (old, again, new):
        shared.put(image)
    age(shared, old)
    age(shared, again)
    shared.put(again)
    assert shared.forget_before(time.time() - 50) == 1
    assert files(tmp_path) == sorted([again.hash, new.hash])
    assert shared.forget_before(time.time() + LATER) == 2
    assert files(tmp_path) == []
    with pytest.raises(KeyError):
        shared.get(again.hash)
    shared.put(old)
    assert shared.get(old.hash) == old


def test_what_is_put_while_others_are_forgotten_stays(tmp_path: Path) -> None:
    # the pictures look old before each put, so that every put meets a `forget_before` that is about to remove them
    shared, stop, begun = SharedPictures(tmp_path), threading.Event(), time.time() - 50
    shots = [Screenshot(bytes([i])) for i in range(4)]
    lost: list[str] = []

    def forget() -> None:
        while not stop.is_set():
            SharedPictures(tmp_path).forget_before(begun)

    def put(shot: Screenshot) -> None:
        mine = SharedPictures(tmp_path)
        for _ in range(400):
            mine.put(shot)
            try:
                mine.get(shot.hash)
                mine.get(shot.hash)
                age(mine, shot)
            except KeyError:
                lost.append(shot.hash)
            except FileNotFoundError:
                pass  # it stands aside for a moment; `age` is this test's own

    threads = [threading.Thread(target=put, args=(shot,)) for shot in shots]
    forgetting = threading.Thread(target=forget)
    forgetting.start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    forgetting.join()
    assert lost == []
    shared.put(shots[0])
    assert shared.forget_before(begun) <= len(shots)
    assert shared.get(shots[0].hash) == shots[0]


def between(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Do `act` when `forget_before` has put a picture aside."""
    rename, done = os.rename, []

    def renamed(source: Path, target: Path) -> None:
        rename(source, target)
        if not done:
            done.append(True)
            act()

    monkeypatch.setattr(module.os, "rename", renamed)


def test_a_picture_that_stands_aside_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared, seen = SharedPictures(tmp_path), []
    shared.put(SHOT)
    age(shared, SHOT)
    between(monkeypatch, lambda: seen.append(SharedPictures(tmp_path).get(SHOT.hash)))
    assert shared.forget_before(time.time() - 50) == 1
    assert seen == [SHOT]
    assert files(tmp_path) == []


def test_a_put_that_comes_when_the_picture_stands_aside_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = SharedPictures(tmp_path)
    shared.put(SHOT)
    age(shared, SHOT)
    between(monkeypatch, lambda: SharedPictures(tmp_path).put(SHOT))
    shared.forget_before(time.time() - 50)
    assert files(tmp_path) == [SHOT.hash]
    assert shared.get(SHOT.hash) == SHOT


def test_a_touch_that_came_before_it_went_aside_brings_it_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = SharedPictures(tmp_path)
    shared.put(SHOT)
    age(shared, SHOT)
    aside = tmp_path / SHOT.hash[:2] / f"{SHOT.hash}.going"
    between(monkeypatch, lambda: os.utime(aside))
    assert shared.forget_before(time.time() - 50) == 0
    assert files(tmp_path) == [SHOT.hash]


def test_what_comes_back_is_as_new_as_what_was_put_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared, then = SharedPictures(tmp_path), time.time() - 20
    shared.put(SHOT)
    age(shared, SHOT)

    def touched_and_put() -> None:
        os.utime(tmp_path / SHOT.hash[:2] / f"{SHOT.hash}.going", (then, then))
        SharedPictures(tmp_path).put(SHOT)

    between(monkeypatch, touched_and_put)
    assert shared.forget_before(then - 10) == 0
    assert shared.forget_before(then + 10) == 0
    assert files(tmp_path) == [SHOT.hash]


def test_what_a_killed_forgetter_put_aside_comes_back_or_goes(tmp_path: Path) -> None:
    shared = SharedPictures(tmp_path)
    old, new = Screenshot(b"old"), Screenshot(b"new")
    for image in (old, new):
        shared.put(image)
    age(shared, old)
    for image in (old, new):
        path = tmp_path / image.hash[:2] / image.hash
        path.rename(path.with_name(path.name + ".going"))
    assert shared.get(old.hash) == old
    assert shared.forget_before(time.time() - 50) == 1
    assert files(tmp_path) == [new.hash]


def test_one_process_forgets_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared, seen = SharedPictures(tmp_path), []
    shared.put(SHOT)
    between(monkeypatch, lambda: seen.append(SharedPictures(tmp_path).forget_before(time.time() + LATER)))
    assert shared.forget_before(time.time() + LATER) == 1
    assert seen == [0]


KILLED = """
import os, signal, sys
from uirl.images import Screenshot
from uirl.workers import pictures
def die(*names):
    os.kill(os.getpid(), signal.SIGKILL)
shared = pictures.SharedPictures(sys.argv[1])
setattr(pictures.os, sys.argv[2], die)
shared.put(Screenshot(b"a picture"))
"""


@pytest.mark.parametrize("where", ["replace", "fdopen"])
def test_a_writer_that_is_killed_leaves_no_picture(tmp_path: Path, where: str) -> None:
    assert run(KILLED, tmp_path, where).wait(60) == -signal.SIGKILL
    shared = SharedPictures(tmp_path)
    assert [name.rpartition(".")[2] for name in files(tmp_path)] == ["tmp"]
    with pytest.raises(KeyError):
        shared.get(SHOT.hash)
    shared.put(SHOT)
    assert shared.get(SHOT.hash) == SHOT
    shared.forget_before(time.time() + LATER)
    assert files(tmp_path) == []


@pytest.mark.parametrize("damage", [b"", b"a pictur", b"another p", b"a picture and more"])
def test_a_damaged_file_is_refused_and_put_again(
    tmp_path: Path, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    shared = SharedPictures(tmp_path)
    shared.put(SHOT)
    path = tmp_path / SHOT.hash[:2] / SHOT.hash
    path.write_bytes(damage)
    with caplog.at_level(logging.WARNING), pytest.raises(KeyError):
        shared.get(SHOT.hash)
    assert f"{path} was damaged ({len(damage)} bytes)" in caplog.text
    shared.put(SHOT)
    assert shared.get(SHOT.hash) == SHOT


def test_a_full_disk_is_an_error_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = SharedPictures(tmp_path)

    class Full(io.BytesIO):
        def write(self, data: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    def full(handle: int, mode: str) -> Full:
        os.close(handle)
        return Full()

    with monkeypatch.context() as patch:
        patch.setattr(module.os, "fdopen", full)
        with pytest.raises(StorageError, match=r"9 bytes to .*actors\.pictures.*No space left.*free some space"):
            shared.put(SHOT)
    assert files(tmp_path) == []
    shared.put(SHOT)
    assert shared.get(SHOT.hash) == SHOT


def test_a_folder_that_somebody_clears_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = SharedPictures(tmp_path / "pictures")
    monkeypatch.setattr(module.os, "replace", lambda source, target: os.unlink(source))
    with pytest.raises(StorageError, match="another program clears that folder"):
        shared.put(SHOT)
    os.unlink(shared.folder / "identity")
    (shared.folder / SHOT.hash[:2]).rmdir()
    shared.folder.rmdir()
    with pytest.raises(StorageError, match="did the process that made it end"):
        shared.put(SHOT)
    with pytest.raises(KeyError):
        shared.get(SHOT.hash)


@pytest.mark.parametrize("name", ["", "..", "../" * 10 + "etc/passwd", "x" * 32, "A" * 32, "0" * 31 + "\n", "0" * 33])
def test_names_that_are_no_hashes_reach_no_file(tmp_path: Path, name: str) -> None:
    shared = SharedPictures(tmp_path)
    with pytest.raises(KeyError):
        shared.get(name)
    if name:
        with pytest.raises(ContractError, match="expected 32 hexadecimal digits"):
            shared.put(Screenshot(b"x", name))
    with pytest.raises(ContractError, match=f"hash is {'0' * 32}, but its 1 bytes have {Screenshot(b'x').hash}"):
        shared.put(Screenshot(b"x", "0" * 32))
    assert files(tmp_path) == []


def test_files_of_others_stay(tmp_path: Path) -> None:
    shared = SharedPictures(tmp_path)
    for name in ("db/data", f"other/{SHOT.hash}", "ab/notes.going", SHOT.hash):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("x")
    shared.forget_before(time.time() + LATER)
    assert files(tmp_path) == ["data", "notes.going"]
    assert (tmp_path / "other" / SHOT.hash).exists()
    assert (tmp_path / SHOT.hash).exists()


OWNER = """
import sys
from uirl.images import Screenshot
from uirl.workers.pictures import SharedPictures
shared = SharedPictures.make(sys.argv[1])
shared.put(Screenshot(b"a picture"))
print(shared.folder, flush=True)
sys.stdin.read()
"""


def test_a_folder_goes_with_its_owner_however_that_ends(tmp_path: Path) -> None:
    child = run(OWNER, tmp_path, stdin=subprocess.PIPE)
    assert child.stdout is not None
    folder = Path(child.stdout.readline().strip())
    mine = SharedPictures.make(tmp_path)
    assert SharedPictures(folder).get(SHOT.hash) == SHOT
    os.kill(child.pid, signal.SIGKILL)
    child.communicate()
    other = SharedPictures.make(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([mine.folder, other.folder])
    SharedPictures(mine.folder).close()  # not its own
    assert mine.folder.is_dir()
    for shared in (mine, other, other):
        shared.close()
    assert list(tmp_path.iterdir()) == []


def test_without_a_folder_it_is_the_ram_disk_where_that_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scratch, "RAM_DISK", tmp_path)
    monkeypatch.setattr(module, "ROOM", 1)
    assert SharedPictures.make().folder.parent == tmp_path
    monkeypatch.setattr(module, "ROOM", 2**60)
    assert SharedPictures.make().folder.parent != tmp_path


def test_a_store_keeps_few_in_memory_and_finds_them_all(tmp_path: Path) -> None:
    store = SharedImageStore(SharedPictures(tmp_path), room=2)
    shots = [bytes([i]) for i in range(5)]
    with store.holding():
        hashes = [store.put(shot).hash for shot in shots]
        assert len(store) == 2
    assert [store.get(hash).data for hash in hashes] == shots
    assert len(store) == 2
    other = SharedImageStore(SharedPictures(tmp_path))
    assert [other.get(hash).data for hash in hashes] == shots
    with pytest.raises(KeyError):
        store.get("0" * 32)


def test_a_store_forgets_on_demand_and_goes_with_its_run(tmp_path: Path) -> None:
    store = SharedImageStore(SharedPictures.make(tmp_path))
    before = store.put(b"before")
    age(store.shared, before)
    with store.holding():
        held = store.put(b"held")
        assert store.forget_before(time.time() - 50) == 1
    assert files(store.shared.folder) == [held.hash]
    store.close()
    assert list(tmp_path.iterdir()) == []
