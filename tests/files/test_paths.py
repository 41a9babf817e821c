"""Outputs go where they are meant to, and never in place of an input."""

import os
import stat
import threading

import pytest

from trustsets._common import storage
from trustsets.errors import InputError
from trustsets.files.parts import PartStore
from trustsets.files.paths import Snapshot, check_output, content_digest, plain_file


def write_whole(path, content):
    with storage.atomic_path(path) as temporary:
        temporary.write_bytes(content)


def write_parts(path, content):
    with PartStore(path, {}) as store:
        store.write(0, content)
        store.finish(lambda file: file.write(store.read(0)))


WAYS = {"whole": write_whole, "in parts": write_parts}


@pytest.mark.parametrize("way", WAYS)
def test_a_link_is_written_through(way, tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link.csv").symlink_to("there/real.csv")
    for content in (b"new", b"again"):
        WAYS[way](tmp_path / "link.csv", content)
        assert (tmp_path / "link.csv").is_symlink()
        assert (tmp_path / "there" / "real.csv").read_bytes() == content
    assert [item.name for item in (tmp_path / "there").iterdir()] == ["real.csv"]


@pytest.mark.parametrize("way", WAYS)
def test_a_pipe_is_written_to(way, tmp_path):
    pipe = tmp_path / "pipe.csv"
    os.mkfifo(pipe)
    found = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_bytes()))
    reader.start()
    WAYS[way](pipe, b"content")
    reader.join()
    assert found == [b"content"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert [item.name for item in tmp_path.iterdir()] == ["pipe.csv"]


@pytest.mark.parametrize("way", WAYS)
def test_a_device_is_written_to(way, tmp_path):
    (tmp_path / "null.csv").symlink_to("/dev/null")
    WAYS[way](tmp_path / "null.csv", b"content")
    assert (tmp_path / "null.csv").is_symlink()
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    assert [item.name for item in tmp_path.iterdir()] == ["null.csv"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", [0o600, 0o664])
def test_permissions_stay(way, mode, tmp_path):
    path = tmp_path / "out.csv"
    path.write_bytes(b"earlier")
    path.chmod(mode)
    WAYS[way](path, b"new")
    assert path.read_bytes() == b"new" and stat.S_IMODE(path.stat().st_mode) == mode


def test_left_over_files_are_cleaned_up_but_not_those_at_work(tmp_path):
    left = tmp_path / ".out.csv.abcdefgh.part"
    left.write_bytes(b"of a killed run")
    other = tmp_path / ".other.csv.abcdefgh.part"
    other.write_bytes(b"of another output")
    with storage.atomic_path(tmp_path / "out.csv") as first:
        assert not left.exists()
        first.write_bytes(b"first")
        write_whole(tmp_path / "out.csv", b"second")
        assert first.exists()
    assert (tmp_path / "out.csv").read_bytes() == b"first"
    assert sorted(item.name for item in tmp_path.iterdir()) == [other.name, "out.csv"]


def test_an_output_is_no_input(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"1")
    (tmp_path / "link.csv").symlink_to("a.csv")
    os.link(path, tmp_path / "twin.csv")
    for name in ("a.csv", "link.csv", "twin.csv"):
        with pytest.raises(InputError, match="which would be lost"):
            check_output(tmp_path / name, (".csv",), [None, path])
    assert check_output(tmp_path / "b.csv", (".csv",), [path]) == tmp_path / "b.csv"


def test_a_snapshot_notices_every_change(tmp_path):
    file = tmp_path / "a"
    file.write_bytes(b"1")
    (tmp_path / ".hidden").write_bytes(b"unfinished work")

    def replace():
        (tmp_path / "b").write_bytes(b"1")
        (tmp_path / "b").replace(file)

    def rewrite():
        times = (file.stat().st_atime_ns, file.stat().st_mtime_ns)
        file.write_bytes(b"2")
        os.utime(file, ns=times)

    for change in (replace, rewrite, file.unlink):
        both = [Snapshot(file), Snapshot(tmp_path, None)]
        for each in both:
            each.check()
        change()
        for each in both:
            with pytest.raises(InputError):
                each.check()


def test_a_digest_is_of_the_content(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a").write_bytes(b"1")
    same = content_digest(tmp_path / "one")
    assert content_digest(tmp_path / "two") == same
    (tmp_path / "two" / ".hidden").write_bytes(b"2")
    assert content_digest(tmp_path / "two") == same
    (tmp_path / "two" / "a").rename(tmp_path / "two" / "b")
    assert content_digest(tmp_path / "two") != same


def test_inputs_that_may_never_end_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.npz")
    for path in (tmp_path / "pipe.npz", "/dev/zero"):
        with pytest.raises(InputError, match="a pipe or a device"):
            plain_file(path)
