"""Writes that a crash cannot leave half done."""

import hashlib
import json
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field

import pytest

from headway.storage import (
    OMIT_DEFAULT,
    atomic_path,
    config_hash,
    environment,
    exclusive,
    read_json,
    remove_leftovers,
    settings,
    write_json,
)


def start(code, *arguments):
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_a_file_takes_the_place_of_the_old_one(tmp_path):
    path = tmp_path / "deep" / "file.txt"
    for text in ("old", "new"):
        with atomic_path(path) as temporary:
            assert temporary.parent == path.parent
            temporary.write_text(text)
        assert path.read_text() == text
    assert [each.name for each in path.parent.iterdir()] == ["file.txt"]


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_an_error_leaves_the_old_and_no_leftover(tmp_path, kind):
    path = tmp_path / "kept"
    path.write_text("old")

    def interrupted():
        with atomic_path(path) as temporary:
            if kind == "file":
                temporary.write_text("half")
            else:
                (temporary / "inner").mkdir(parents=True)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_of_the_disk_is_one_whoever_says_it(tmp_path):
    def write(error):
        with atomic_path(tmp_path / "file") as temporary:
            temporary.write_text("half")
            raise error

    with pytest.raises(OSError, match=r"No space left on device: .*file") as caught:
        write(Exception("No space left on device (os error 28)"))  # as tokenizers and safetensors do
    assert caught.value.errno == 28
    for error in (Exception("something else"), OSError(5, "not (os error 28)")):
        with pytest.raises(type(error)) as caught:
            write(error)
        assert caught.value is error
    assert not list(tmp_path.iterdir())


def test_a_killed_writer_leaves_the_old(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("old")
    code = """
import os, signal, sys
from headway.storage import atomic_path
with atomic_path(sys.argv[1]) as temporary:
    temporary.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    with start(code, path) as writer:
        assert writer.wait() == -signal.SIGKILL
    assert path.read_text() == "old"
    (left,) = remove_leftovers(tmp_path)
    assert left.name.startswith(".file.txt.")
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_appears_whole_and_replaces_nothing(tmp_path):
    path = tmp_path / "checkpoint"
    with atomic_path(path) as temporary:
        temporary.mkdir()
        (temporary / "a").write_text("a")
        assert not path.exists()
    assert (path / "a").read_text() == "a"
    with pytest.raises(FileExistsError, match="checkpoint: expected a new folder"), atomic_path(path) as temporary:
        temporary.mkdir()
    assert [each.name for each in tmp_path.iterdir()] == ["checkpoint"]


def test_a_file_in_the_place_of_a_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("old")
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")
    for folder, named in (
        (tmp_path / "file", "file"),
        (tmp_path / "file/a", "file"),
        (tmp_path / "nowhere", "nowhere"),
    ):
        said = rf"out: expected a folder, got .*/{named}, which is a file"
        with pytest.raises(FileExistsError, match=said), atomic_path(folder / "new"):
            pytest.fail("expected it to be met before anything is written")


def test_a_block_that_writes_nothing_raises(tmp_path):
    wanted = "nothing: expected a file or folder written"
    with pytest.raises(FileNotFoundError, match=wanted), atomic_path(tmp_path / "nothing"):
        pass


def test_json_round_trip_keeps_order_and_turns_paths_into_text(tmp_path):
    path = tmp_path / "value.json"
    write_json(path, {"b": [1, 2.5, None, "ü"], "a": tmp_path})
    assert read_json(path) == {"b": [1, 2.5, None, "ü"], "a": str(tmp_path)}
    assert list(read_json(path)) == ["b", "a"]


def test_json_errors_name_the_file(tmp_path):
    path = tmp_path / "value.json"
    with pytest.raises(FileNotFoundError, match=r"value\.json: expected a JSON file, got none"):
        read_json(path)
    path.write_text('{"a": 1,\n oops}')
    with pytest.raises(ValueError, match=r"value\.json: expected JSON, got .*line 2"):
        read_json(path)
    path.write_bytes(b'"\xff"')
    with pytest.raises(ValueError, match=r"value\.json: expected JSON, got .*utf-8"):
        read_json(path)
    with pytest.raises(ValueError, match=r"value\.json: expected a value that JSON can hold"):
        write_json(path, {"loss": float("nan")})
    with pytest.raises(TypeError, match="got complex: 1j"):
        write_json(path, 1j)
    assert path.read_bytes() == b'"\xff"'


@dataclass(frozen=True)
class Inner:
    rate: float = 1.0
    warmup: float = field(default=0.0, metadata=OMIT_DEFAULT)


@dataclass(frozen=True)
class Outer:
    inner: Inner
    names: tuple[str, ...] = ()


def test_a_field_added_later_is_left_out_at_its_default():
    assert settings(Outer(Inner())) == {"inner": {"rate": 1.0}, "names": ()}
    assert settings(Outer(Inner(2.0, 0.1), ("a",))) == {"inner": {"rate": 2.0, "warmup": 0.1}, "names": ("a",)}


def test_a_hash_does_not_depend_on_the_order_of_keys():
    config = {"rate": 1e-4, "model": {"layers": 12, "heads": [1, 2]}}
    again = {"model": {"heads": (1, 2), "layers": 12}, "rate": 0.0001}
    canonical = '{"model":{"heads":[1,2],"layers":12},"rate":0.0001}'
    assert config_hash(config) == config_hash(again) == hashlib.sha256(canonical.encode()).hexdigest()[:12]
    assert config_hash(config) != config_hash({**config, "rate": 2e-4})


def test_the_environment_can_be_written_as_json():
    import torch

    facts = json.loads(json.dumps(environment()))
    assert facts["torch"] == torch.__version__
    assert facts["python"] == ".".join(map(str, sys.version_info[:3]))
    assert {"headway", "commit", "transformers", "platform"} <= facts.keys()


def test_a_folder_is_held_by_one_process_until_it_dies(tmp_path):
    code = """
import sys, time
from headway.storage import exclusive
with exclusive(sys.argv[1]):
    print("held", flush=True)
    time.sleep(60)
"""
    waiting = "import sys; from headway.storage import exclusive\nwith exclusive(sys.argv[1]): print('mine')"
    with start(code, tmp_path) as holder:
        assert holder.stdout.readline() == "held\n"
        with start(waiting, tmp_path) as second:
            time.sleep(0.3)
            assert second.poll() is None
            holder.kill()
            assert second.communicate(timeout=20)[0] == "mine\n"
    with exclusive(tmp_path):
        pass
