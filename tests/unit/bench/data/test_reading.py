"""The reader of files and of Hub datasets: what counts as a line, and messages that name the place of a bad one."""

from __future__ import annotations

import gzip

import pytest

from headway.bench.data.reading import (
    DamagedFile,
    HubName,
    Problems,
    file_fingerprint,
    read_json_lines,
    read_lines,
    read_tsv,
    until_damage,
)


def write(path, content):
    path.write_bytes(content)
    return path


def test_lines_end_with_newlines_only_and_lose_their_ends(tmp_path):
    path = write(tmp_path / "a.txt", "\ufeffone\r\n two\u2028\x85 \n\nlast".encode())
    assert list(read_lines(path, Problems())) == [(1, "one"), (2, " two\u2028\x85 "), (3, ""), (4, "last")]


def test_a_bad_line_keeps_its_number(tmp_path):
    path = write(tmp_path / "a.txt", b"one\n\xe4\nthree\n")
    problems = Problems("skip")
    assert list(read_lines(path, problems)) == [(1, "one"), (2, None), (3, "three")]
    assert problems.count == 1
    with pytest.raises(ValueError, match=r"a\.txt, line 2: expected UTF-8, got byte 0xe4 at byte 4 .* use --lenient"):
        list(read_lines(path, Problems("raise", how_to_skip="--lenient")))


def test_a_damaged_file_stops_the_reader_unless_it_is_one_problem_among_others(tmp_path):
    path = write(tmp_path / "a.txt.gz", gzip.compress(b"line\n" * 1000)[:-12])
    problems = Problems("skip")
    with pytest.raises(DamagedFile, match=r"a\.txt\.gz, after line \d+: .* cut off or damaged"):
        list(read_lines(path, problems))
    assert problems.count == 0
    assert len(list(until_damage(read_lines(path, problems), problems))) <= 1000
    assert problems.count == 1


def test_columns_follow_the_first_line(tmp_path):
    path = write(tmp_path / "a.tsv", b'a\t"b\n"c\td\ne\n\tf\n')
    problems = Problems("skip")
    assert [cells for _, cells in read_tsv(path, problems)] == [["a", '"b'], ['"c', "d"], ["", "f"]]
    assert "line 3: expected 2 columns with tabs between them, got 1: 'e'" in problems.first[0]
    assert list(read_tsv(path, Problems("skip"), widths=(3,))) == []
    assert next(cells for _, cells in read_tsv(path, Problems("skip"), widths=(3, 2))) == ["a", '"b']


@pytest.mark.parametrize("reader", [read_tsv, read_json_lines])
def test_empty_files_are_named(tmp_path, reader):
    with pytest.raises(ValueError, match=r"empty: expected text, got an empty file"):
        list(reader(write(tmp_path / "empty", b""), Problems()))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("hub:wmt14", ("wmt14", None, "train")),
        ("hub:wmt14:de-en", ("wmt14", "de-en", "train")),
        ("hub:a/b::test", ("a/b", None, "test")),
        ("hub:a/b:c:", ("a/b", "c", "train")),
    ],
)
def test_names_on_the_hub(source, expected):
    assert HubName.parse(source, "train") == expected


def test_fingerprints_see_both_ends_of_a_file(tmp_path):
    middle = b"x" * (1 << 18)
    found = {
        str(file_fingerprint(write(tmp_path / "a", content)))
        for content in (b"a" + middle + b"a", b"b" + middle + b"a", b"a" + middle + b"b", b"a" + middle + b"a!")
    }
    assert len(found) == 4
