"""A protocol in several files: what is included, and settings of engines that are files."""

from __future__ import annotations

import pytest

from engcmp_assets.kernel.protocol_parts import merged, read_parts, settings_file
from engcmp_resources.errors import EngcmpError


def test_included_files_add_tables_and_lists() -> None:
    files = {"arms.toml": b'[[arms]]\narm = "b"\n[sources.y]\nlisted = "y"\n', "more.toml": b'[[arms]]\narm = "c"\n'}
    data = b'include = ["arms.toml", "more.toml"]\nstudy = "s"\n[[arms]]\narm = "a"\n[sources.x]\nlisted = "x"\n'
    assert read_parts(data, files, where="here") == {
        "study": "s", "arms": [{"arm": "a"}, {"arm": "b"}, {"arm": "c"}], "sources": {"x": {"listed": "x"}, "y": {"listed": "y"}},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (b'study = "t"\n', "protocol field study is given twice"),
        (b'[sources.x]\nlisted = "z"\n', "protocol field listed is given twice"),
        (b"study = \n", "protocol is not valid TOML"),
    ],
)
def test_a_part_that_contradicts_is_refused_by_its_name(part: bytes, said: str) -> None:
    data = b'include = ["part.toml"]\nstudy = "s"\n[sources.x]\nlisted = "x"\n'
    with pytest.raises(EngcmpError, match=said) as told:
        read_parts(data, {"part.toml": part}, where="here")
    assert told.value.where == "here, part.toml"


@pytest.mark.parametrize("data", [b'include = "a"\n', b"include = [1]\n"])
def test_include_is_a_list_of_names(data: bytes) -> None:
    with pytest.raises(EngcmpError, match="include is no list of file names"):
        read_parts(data, {}, where="here")


def test_a_file_outside_the_folder_is_missing() -> None:
    with pytest.raises(
        EngcmpError, match=r"field include names '\.\./x\.toml', which is no file of the study's folder"
    ):
        read_parts(b'include = ["../x.toml"]\n', {}, where="here")


def test_settings_files_stand_for_tables_and_the_table_goes_first() -> None:
    data = (
        b'[engines.a.for_checkpoints.K4]\nconfig_file = "k4.config"\nconfig = { B = "own" }\n'
        b'[engines.b.settings]\nenvironment_file = "b.env"\n'
    )
    files = {"k4.config": b"# comment\n\nA=1\nB=2\n", "b.env": b"export X=1\nY=K=V L=W\n"}
    found = read_parts(data, files, where="here")
    assert found["engines"] == {
        "a": {"for_checkpoints": {"K4": {"config": {"A": "1", "B": "own"}}}},
        "b": {"settings": {"environment": {"X": "1", "Y": "K=V L=W"}}},
    }  # fmt: skip


def test_a_settings_file_that_is_missing_is_named_by_its_field() -> None:
    with pytest.raises(EngcmpError, match=r"engines\.a\.settings\.config_file names 'x\.config'"):
        read_parts(b'[engines.a.settings]\nconfig_file = "x.config"\n', {}, where="here")


@pytest.mark.parametrize("line", ["A", "a=1", "A=", 'A="1"', "A=$HOME", "A=1 # why", "A=1\nA=2", "A=`x`", "A=1  2"])
def test_lines_that_launchers_read_differently_are_refused(line: str) -> None:
    with pytest.raises(EngcmpError, match=r"line \d is no KEY=VALUE"):
        settings_file(line.encode(), where="here")


def test_tables_are_laid_upon_tables() -> None:
    base = {"a": {"x": 1, "y": 2}, "b": [1], "c": 3}
    assert merged(base, {"a": {"y": 4}, "b": [2], "d": 5}) == {"a": {"x": 1, "y": 4}, "b": [2], "c": 3, "d": 5}
    assert base == {"a": {"x": 1, "y": 2}, "b": [1], "c": 3}, "nothing is changed in place"
