"""Builds in processes of their own: killed at any moment, several at once, in little memory, without `datasets`."""

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headway.bench.data import Shards, open_corpus

BUILD = """
import sys
from headway.bench.data import build_shards, train_tokenizer
from headway.bench.data.mlm import shard_build
text, out = sys.argv[1:3]
tokenizer = train_tokenizer("builtin:5", "word")
if len(sys.argv) > 3:
    shard_build.BATCH = int(sys.argv[3])
print("ready", flush=True)
build_shards(text, tokenizer, out, max_length=32, packed=True, validation=0.1, shard_tokens=2000)
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A corpus whose build takes a second or so."""
    path = tmp_path_factory.mktemp("source") / "text.txt"
    path.write_text("\n\n".join("\n".join(document) for document in open_corpus("builtin:4000")))
    return path


def start(source, out, *batch, code=BUILD):
    command = [sys.executable, "-c", code, source, out, *batch]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process):
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return output


def contents(folder):
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_a_killed_build_goes_on_to_the_same_bytes(source, tmp_path):
    with start(source, tmp_path / "whole") as process:
        process.stdout.readline()
        began = time.monotonic()
        finish(process)
        lasts = time.monotonic() - began
    expected = contents(tmp_path / "whole")
    assert sum(name.endswith("shard.json") for name in expected) > 20

    out, rng, finished = tmp_path / "killed", random.Random(), []
    for _ in range(4):
        with start(source, out, "20000") as process:  # small batches, so that shards come one by one
            process.stdout.readline()
            time.sleep(rng.uniform(0, 0.5 * lasts))
            process.kill()
        if not (out / "index.json").exists():
            with pytest.raises(FileNotFoundError, match=r"expected index\.json"):
                Shards(out)
        finished.append(len(list(out.glob("shard-*"))))
    with start(source, out) as process:
        finish(process)
    assert contents(out) == expected
    assert finished == sorted(finished), "what was whole is kept"


def test_several_processes_may_build_at_once(source, tmp_path):
    processes = [start(source, tmp_path / "shared") for _ in range(2)]
    for process in processes:
        with process:
            finish(process)
    assert len(Shards(tmp_path / "shared", verify=True)) > 0
    assert not list((tmp_path / "shared").glob(".*.tmp"))


def test_local_text_to_batches_needs_no_datasets(source, tmp_path):
    code = """
import sys
from headway.bench.data import MlmBatches, build_shards, train_tokenizer
text, out = sys.argv[1:3]
tokenizer = train_tokenizer(text, vocab_size=200)
MlmBatches(build_shards(text, tokenizer, out, max_length=64), 8).batch(0)
print(*sys.modules)
"""
    with start(source, tmp_path / "shards", code=code) as process:
        loaded = set(finish(process).split())
    assert "torch" in loaded
    assert not loaded & {"datasets", "pyarrow"}


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_memory_does_not_grow_with_the_corpus(source, tmp_path):
    code = """
import re, sys
from pathlib import Path
from headway.bench.data import build_shards, train_tokenizer
text, out = sys.argv[1:3]
build_shards(text, train_tokenizer("builtin:5", "word"), out, shard_tokens=1 << 20)
print(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])  # ru_maxrss may be the parent's
"""
    peaks = []
    for times in (16, 160):  # 4 and 40 MB
        (tmp_path / "text.txt").write_text("\n\n".join([source.read_text()] * times))
        with start(tmp_path / "text.txt", tmp_path / f"shards-{times}", code=code) as process:
            peaks.append(int(finish(process)))
    assert peaks[1] < peaks[0] + 20_000, f"{peaks} kB"
