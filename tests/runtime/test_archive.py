"""The container: any zip tool reads what we write, we read nothing else."""

from __future__ import annotations

import stat
import struct
import warnings
import zipfile

import pytest

from girih import UserError
from girih.runtime.archive import Archive, ArchiveWriter

MEMBERS = {"a.json": b"{}", "w/one.bin": bytes(range(256)) * 20, "empty": b"", "z": b"end"}


def write(path, members=MEMBERS, **options):
    with ArchiveWriter(path, **options) as archive:
        for name, data in members.items():
            archive.add(name, data, 4096 if "/" in name else 64)
    return path.read_bytes()


def refusal(data: bytes) -> str:
    """The one sentence of the error; fails if the bytes are accepted whole."""
    with pytest.raises(UserError) as caught:
        archive = Archive(data)
        for name in archive.entries:
            archive.check_crc(name)
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize("options", [{}, {"large": 100}], ids=["zip", "zip64"])
def test_round_trip(tmp_path, options):
    data = write(tmp_path / "x.zip", **options)
    for source in (tmp_path / "x.zip", data, bytearray(data), memoryview(data)):
        archive = Archive(source)
        assert {name: bytes(archive.data(name)) for name in archive.entries} == MEMBERS
        assert all(entry.start % 64 == 0 for entry in archive.entries.values())
        assert archive.entries["w/one.bin"].start % 4096 == 0
    with zipfile.ZipFile(tmp_path / "x.zip") as other:
        assert other.testzip() is None
        assert {name: other.read(name) for name in other.namelist()} == MEMBERS


@pytest.mark.parametrize("source", [str, lambda path: path.read_bytes()])
def test_pieces_are_the_members_bytes_and_these_can_be_read_again(tmp_path, source):
    members = {"first": b"1", "large": bytes(range(256)) * (5 << 12), "last": b"23"}
    with ArchiveWriter(tmp_path / "x") as writer:
        for name, data in members.items():
            writer.add(name, data)
    archive = Archive(source(tmp_path / "x"))
    for name, data in members.items():
        assert b"".join(bytes(piece) for piece in archive.pieces(name)) == data
        assert archive.data(name) == data
    assert len(list(archive.pieces("large"))) == 2


def test_equal_members_give_equal_bytes(tmp_path):
    assert write(tmp_path / "one") == write(tmp_path / "two")


def test_a_failed_write_leaves_nothing(tmp_path):
    (tmp_path / "x").write_bytes(b"old")
    with pytest.raises(RuntimeError), ArchiveWriter(tmp_path / "x") as archive:
        archive.add("a", b"1")
        raise RuntimeError
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert (tmp_path / "x").read_bytes() == b"old"


def test_a_stream_of_another_size_is_a_bug(tmp_path):
    with pytest.raises(ValueError, match="announced"), ArchiveWriter(tmp_path / "x") as archive:
        archive.add_stream("a", 3, [b"1234"])


def test_a_folder_that_cannot_be_written(tmp_path):
    with pytest.raises(UserError, match="cannot write"), ArchiveWriter(tmp_path / "no" / "x"):
        pass


@pytest.mark.parametrize("options", [{}, {"large": 100}], ids=["zip", "zip64"])
def test_every_cut_is_refused(tmp_path, options):
    data = write(tmp_path / "x", **options)
    for length in [*range(300), *range(300, len(data), 37), *range(len(data) - 300, len(data))]:
        refusal(data[:length])


@pytest.mark.parametrize("options", [{}, {"large": 100}], ids=["zip", "zip64"])
def test_every_flipped_byte_is_refused(tmp_path, options):
    data = bytearray(write(tmp_path / "x", {"a": b"1", "b": b"22", "c.d": b""}, **options))
    for position in range(len(data)):
        for flip in (0x01, 0x80, 0xFF):
            data[position] ^= flip
            refusal(bytes(data))
            data[position] ^= flip


def test_something_appended_or_put_before(tmp_path):
    data = write(tmp_path / "x")
    assert "appended" in refusal(data + b"\0")
    assert "does not start as one" in refusal(b"\0" + data)


def entry_offset(data: bytes | bytearray, name: bytes) -> int:
    """Where the directory entry of a member begins."""
    return data.rindex(b"PK\1\2", 0, data.rindex(name))


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        (8, "<H1", "encrypted"),
        (10, "<H8", "compressed"),
        (24, "<I4000000000", "claims 4000000000 bytes"),
        (38, f"<I{(stat.S_IFLNK | 0o777) << 16}", "symbolic link"),
        (38, f"<I{(stat.S_IFREG | 0o755) << 16}", "malformed"),
        (42, "<I0", "overlaps"),
        (12, "<H1", "malformed"),
    ],
)
def test_a_lying_directory_entry(tmp_path, field, value, words):
    data = bytearray(write(tmp_path / "x"))
    struct.pack_into(value[:2], data, entry_offset(data, b"w/one.bin") + field, int(value[2:]))
    assert words in refusal(bytes(data))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (b"/one.bin1", "absolute"),
        (b"../ne.bin", "leads out"),
        (b"w/../.bin", "leads out"),
        (b"C:one.bin", "absolute"),
        (b"w\\one.bin", "plain relative"),
        (b".one.binx", "plain relative"),
        (b"w//ne.bin", "plain relative"),
        (b"w/on\xff.bin", "plain relative"),
    ],
)
def test_a_name_that_is_a_path(tmp_path, name, words):
    data = write(tmp_path / "x")
    assert len(name) == len(b"w/one.bin")
    assert words in refusal(data.replace(b"w/one.bin", name))


def test_the_same_name_twice(tmp_path):
    data = write(tmp_path / "x", {"aa": b"1", "bb": b"2"})
    assert "twice" in refusal(data.replace(b"bb", b"aa"))


def test_zip64_sizes_that_lie(tmp_path):
    data = bytearray(write(tmp_path / "x", large=100))
    position = entry_offset(data, b"w/one.bin") + 46 + len(b"w/one.bin") + 4
    struct.pack_into("<QQ", data, position, 1 << 62, 1 << 62)
    assert f"claims {1 << 62} bytes" in refusal(bytes(data))


def test_too_many_members_are_not_allocated(tmp_path):
    data = bytearray(write(tmp_path / "x"))
    struct.pack_into("<HH", data, len(data) - 22 + 8, 0xFFFE, 0xFFFE)
    assert "cut off" in refusal(bytes(data))


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_other_peoples_zips_are_refused(tmp_path, compression):
    with warnings.catch_warnings(), zipfile.ZipFile(tmp_path / "x", "w", compression) as other:
        other.writestr("manifest.json", "{}" * 100)
    refusal((tmp_path / "x").read_bytes())


@pytest.mark.parametrize("content", [b"", b"P", b"PK\5\6" + bytes(18), bytes(1000)])
def test_not_a_zip(tmp_path, content):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(UserError, match="not a girih bundle|damaged"):
        Archive(tmp_path / "x")


def test_missing_files_and_folders(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        Archive(tmp_path / "x")
    with pytest.raises(UserError, match="folder"):
        Archive(tmp_path)
