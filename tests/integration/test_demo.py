"""The demo trains, and its encoder sees order exactly when its encoding does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from headway.encodings import ENCODINGS

ROOT = Path(__file__).parents[2]


@pytest.fixture
def demo(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    import examples.compare_encodings as module

    return module


@pytest.mark.parametrize("name", ENCODINGS)
def test_encoder_sees_order_as_declared(demo, name):
    torch.manual_seed(0)
    model = demo.Encoder(name, 20).double().eval()
    for parameter in model.encoding.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    tokens, lengths, swap = torch.tensor([[5, 6, 7, 8]]), torch.tensor([4]), [1, 0, 2, 3]
    with torch.no_grad():
        blind = torch.allclose(model(tokens, lengths), model(tokens[:, swap], lengths)[:, swap], atol=1e-8)
    assert blind != ENCODINGS[name].sees_order


def test_padding_changes_nothing(demo):
    model = demo.Encoder("diet-rel", 20).double().eval()
    short, padded = torch.tensor([[5, 6, 7]]), torch.tensor([[5, 6, 7, 0, 0]])
    with torch.no_grad():
        torch.testing.assert_close(
            model(short, torch.tensor([3])), model(padded, torch.tensor([3]))[:, :3], rtol=1e-9, atol=1e-9
        )


def test_result_is_written(tmp_path):
    command = [sys.executable, "-m", "examples.compare_encodings", "--steps", "3", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "result.json").read_text())
    assert [r["encoding"] for r in record["results"]] == ["none", "learned", "diet-rel"]
    assert all(0.0 <= r["attracted"] <= 1.0 for r in record["results"])
    assert str(tmp_path) in done.stdout
