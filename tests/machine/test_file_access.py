"""The reader and the writer of the files of a run."""

import json
import os

import pytest

from fastppo.machine.file_access import read_json, read_text, write_bytes

STRANGERS = {
    "a pipe": os.mkfifo,
    "a folder": os.mkdir,
    "zeros without end": lambda path: os.symlink("/dev/zero", path),
    "a link to itself": lambda path: os.symlink(path.name, path),
    "a file that is too long": lambda path: path.write_bytes(b" " * 1001),
}


@pytest.mark.parametrize("kind", STRANGERS)
def test_what_is_no_small_file_is_an_error_at_once(kind, tmp_path):
    STRANGERS[kind](path := tmp_path / "config.json")
    with pytest.raises(OSError) as caught:
        read_text(path, 1000)
    assert caught.value.strerror


@pytest.mark.parametrize("text", ["", "{", "[" * 51 + "]" * 51, '{"a":' * 60 + "1" + "}" * 60,
                                  "[" * 100_000, "[" * 100_000 + "]" * 100_000])
def test_texts_that_are_no_json_or_nested_too_deeply_are_an_error(text, tmp_path):
    (tmp_path / "a").write_text(text)
    with pytest.raises(ValueError):
        read_json(tmp_path / "a")


def test_a_link_to_a_file_is_read_and_is_replaced_where_it_is_written(tmp_path):
    (outside := tmp_path / "outside").write_text("[1]")
    (link := tmp_path / "link").symlink_to(outside)
    assert read_json(link) == [1]
    write_bytes(link, b"[2]")
    assert read_json(link) == [2] and read_json(outside) == [1] and not link.is_symlink()


def test_half_a_file_of_a_process_that_was_killed_stops_no_other_of_its_number(tmp_path):
    (outside := tmp_path / "outside").write_text("mine")
    (tmp_path / f".a.{os.getpid()}.part.json").symlink_to(outside)
    write_bytes(tmp_path / "a.json", json.dumps([1]).encode())
    assert outside.read_text() == "mine" and sorted(os.listdir(tmp_path)) == ["a.json", "outside"]
