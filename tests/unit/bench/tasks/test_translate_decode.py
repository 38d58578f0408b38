"""Text in and out: order kept, empty and long lines, batches that change nothing, lines as they come."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from headway.bench.data.translation.parallel import open_parallel
from headway.bench.data.translation.vocabulary import train_vocabulary
from headway.bench.tasks.translate.decode import Translator
from headway.bench.tasks.translate.stream import blocks, file_lines, output
from headway.models.translation import TranslationModel, translation_preset

SIZES = {"encoder_layers": 1, "decoder_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 32}


@pytest.fixture(scope="module")
def words():
    return train_vocabulary(open_parallel("builtin:300"), "word")


class Echo(torch.nn.Module):
    """In place of a model: says what it was given, word for word, and once more as a second translation."""

    def __init__(self, words, longest=12, extends=False):
        super().__init__()
        self.config = SimpleNamespace(max_position_embeddings=longest, vocab_size=len(words), encoding="learned")
        self.encoder = SimpleNamespace(encoding=SimpleNamespace(extends=extends))
        self.device = torch.device("cpu")
        self.batches = []

    def translate(self, input_ids, attention_mask, n_best=1):
        self.batches.append(tuple(input_ids.shape))
        rows = [row[: int(used) - 1].tolist() for row, used in zip(input_ids, attention_mask.sum(1), strict=True)]
        assert all(row[int(used) - 1] == 3 for row, used in zip(input_ids, attention_mask.sum(1), strict=True))
        return [
            [
                SimpleNamespace(tokens=row * (each + 1), score=-1.0 - each, log_probability=-2.0)
                for each in range(n_best)
            ]
            for row in rows
        ]


LINES = ["the dog jumps .", "", "a cat", "  ", "the hunter near a cat jumps .", "the", "some dogs jump ."]


def test_order_is_kept_and_empty_lines_give_empty_lines(words):
    translator = Translator(Echo(words), words, tokens=24)
    found = translator.translate(LINES)
    assert [each[0].text for each in found] == [" ".join(line.split()) for line in LINES]
    assert len(translator.model.batches) > 1
    assert all(rows * width <= 24 for rows, width in translator.model.batches)
    assert translator.split == 0
    assert translator.translate([]) == []


def test_long_lines_are_translated_in_parts_between_sentences_and_counted(words):
    sentence = "the dog jumps ."
    lines = [" ".join([sentence] * 7), sentence, "the " * 50]
    translator = Translator(Echo(words, longest=10), words)
    found = [each[0] for each in translator.translate(lines)]
    assert [each.text for each in found] == [line.strip() for line in lines], "nothing is lost"
    assert translator.split == 2
    assert all(width <= 10 for _, width in translator.model.batches)
    assert found[1].score == -1.0
    assert found[2].score == -6.0, "six parts: 50 words, nine and the end token each"


def test_n_best_of_a_line_in_parts(words):
    found = Translator(Echo(words, longest=4), words).translate(["the dog jumps the dog", ""], n_best=2)
    assert [each.text for each in found[0]] == ["the dog jumps the dog", "the dog jumps the dog jumps the dog the dog"]
    assert [each.score for each in found[0]] == [-2.0, -4.0]
    assert [each.text for each in found[1]] == [""]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limit": 1}, "limit: expected at least 2 tokens, got 1"),
        ({"tokens": 0}, "tokens: expected at least 1, got 0"),
        ({"tokens": -5}, "tokens: expected at least 1, got -5"),
        ({"limit": 13}, "limit: expected at most 12, all positions that learned has, got 13"),
    ],
)
def test_bad_limits(words, options, message):
    with pytest.raises(ValueError, match=message):
        Translator(Echo(words), words, **options)
    assert Translator(Echo(words, extends=True), words, limit=13).limit == 13


def test_a_tokenizer_of_another_model(words):
    echo = Echo(words)
    echo.config.vocab_size = 10
    with pytest.raises(ValueError, match=r"tokenizer: expected ids below 10 \(from the model\), got \d+"):
        Translator(echo, words)
    gaps = json.loads(words.backend_tokenizer.to_str())
    gaps["model"]["vocab"] = {word: 2 * at for word, at in gaps["model"]["vocab"].items()}
    gaps["added_tokens"] = [{**token, "id": 2 * token["id"]} for token in gaps["added_tokens"]]
    echo.config.vocab_size = len(words)
    with pytest.raises(ValueError, match=rf"expected ids below {len(words)} .*, got {2 * len(words) - 2}"):
        Translator(echo, PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(gaps))))
    with pytest.raises(FileNotFoundError, match="model: expected a folder such as model/ of a run, got 'nowhere'"):
        Translator.load("nowhere")


def test_batches_change_nothing(words):
    """A real model, with random weights: each line alone gives what all of them together give."""
    torch.manual_seed(0)
    tokens = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "vocab_size": len(words)}
    model = TranslationModel(translation_preset("tiny", encoding="diet-rel", **SIZES, **tokens)).eval().double()
    lines = [line for line in LINES if line.strip()]
    translator = Translator(model, words)
    together = translator.translate(lines, beam=3, n_best=2, max_length_plus=3)
    alone = [translator.translate([line], beam=3, n_best=2, max_length_plus=3)[0] for line in lines]
    assert [[e.text for e in each] for each in together] == [[e.text for e in each] for each in alone]
    for one, other in zip(together, alone, strict=True):
        assert [e.score for e in one] == pytest.approx([e.score for e in other])


# Lines from files and standard input.


def test_lines_of_a_file_end_with_newlines_only(tmp_path):
    (tmp_path / "a.txt").write_bytes("one\r\n\ntwo\u2028two\nlast".encode())
    assert [line for block in blocks(str(tmp_path / "a.txt")) for line in block] == ["one", "", "two\u2028two", "last"]
    assert list(file_lines(str(tmp_path / "a.txt"))) == ["one", "", "two\u2028two", "last"]


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "latin.txt").write_bytes(b"ok\n\xe4\n")
    with pytest.raises(ValueError, match=r"latin\.txt, line 2: expected UTF-8, got byte 0xe4"):
        list(blocks(str(tmp_path / "latin.txt")))
    (tmp_path / "empty.txt").touch()
    with pytest.raises(ValueError, match=r"empty\.txt: expected text, got an empty file"):
        list(blocks(str(tmp_path / "empty.txt")))
    with pytest.raises(FileNotFoundError, match=r"input: expected a file, or - for standard input, got 'none\.txt'"):
        list(blocks("none.txt"))
    with pytest.raises(FileNotFoundError, match=r"input: expected a text file, got 'none\.txt'"):
        list(file_lines("none.txt"))


def test_output_is_there_when_it_is_whole(tmp_path):
    def interrupted():
        with output(str(tmp_path / "out.txt")) as file:
            file.write("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []
    with output(str(tmp_path / "out.txt")) as file:
        file.write("wholé\n")
    assert (tmp_path / "out.txt").read_text(encoding="utf-8") == "wholé\n"


def test_output_that_could_not_be_written_is_met_first(tmp_path):
    (tmp_path / "file").write_text("old")
    for path, said in (
        (tmp_path, "a file, got .*, which is a folder"),
        (tmp_path / "file/a.txt", "a folder, got .*file"),
    ):
        with pytest.raises(FileExistsError, match=f"out: expected {said}"), output(str(path)):
            pytest.fail("expected it to be met before anything is translated")


def test_standard_input_gives_lines_as_they_come():
    code = "from headway.bench.tasks.translate.stream import blocks\nfor block in blocks('-'): print(block, flush=True)"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    os.write(process.stdin.fileno(), b"one\n")
    assert process.stdout.readline() == b"['one']\n", "before anything else was written"
    rest, _ = process.communicate(b"\ntwo\nlast")
    assert [word for line in rest.decode().splitlines() for word in eval(line)] == ["", "two", "last"]
    assert process.returncode == 0


def test_standard_input_in_another_encoding():
    code = "from headway.bench.tasks.translate.stream import blocks\nfor block in blocks('-'): print(block)"
    done = subprocess.run([sys.executable, "-c", code], input=b"ok\n\xe4\n", capture_output=True)
    assert done.stdout == b"['ok']\n"
    assert b"standard input, line 2: expected UTF-8, got byte 0xe4" in done.stderr
