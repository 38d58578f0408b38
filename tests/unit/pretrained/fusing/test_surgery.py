"""Fusing is undone without a trace, is saved as nothing at all, and refuses by name with the model unchanged."""

from __future__ import annotations

import copy
import pickle
import re
from pathlib import Path

import pytest
import torch
import transformers
from fusing_cases import T5_SIZES, TINY, call_of, pair, tiny_model
from torch import nn

import headway as hw
from headway.pretrained.fusing import FAMILIES, REFUSED
from headway.pretrained.fusing.families.t5 import FusedT5Attention


def state(model):
    """Everything that fusing could change: classes, attributes, settings, weights."""
    return (
        {name: type(module) for name, module in model.named_modules()},
        {name: sorted(vars(module)) for name, module in model.named_modules()},
        {
            name: module.config._attn_implementation
            for name, module in model.named_modules()
            if hasattr(module, "config")
        },
        list(model.state_dict()),
        model.config.to_dict(),
    )


@pytest.mark.parametrize("name", TINY)
def test_unfuse_restores_everything(name):
    model = tiny_model(name)
    call = call_of(name, 2, 9, "none")
    output = call.compared(model)
    before = state(model)
    assert hw.fuse(model) is model
    assert state(model) != before
    assert hw.unfuse(model) is model
    assert state(model) == before
    assert torch.equal(call.compared(model), output)


@pytest.mark.parametrize("name", TINY)
def test_a_fused_model_is_saved_as_a_plain_one(name, tmp_path):
    model, other = pair(name)
    model.save_pretrained(tmp_path / "plain")
    other.save_pretrained(tmp_path / "fused")
    for file in sorted((tmp_path / "plain").iterdir()):
        assert (tmp_path / "fused" / file.name).read_bytes() == file.read_bytes(), file.name
    asked = {"attn_implementation": model.config._attn_implementation, "dtype": torch.float64}
    loaded = type(other).from_pretrained(tmp_path / "fused", **asked)
    call = call_of(name, 2, 9, "none")
    # transformers computes tables of sines anew, and rounds them in another place; XLNet's attention stays in float32.
    tolerance = 1e-4 if name.startswith("xlnet") else 1e-6
    torch.testing.assert_close(call.compared(loaded.double().eval()), call.compared(model), rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", TINY)
def test_copies_and_pickles(name):
    other = pair(name)[1]
    call = call_of(name, 2, 9, "none")
    copies = [copy.deepcopy(other)]
    if not TINY[name].kind.startswith("waveform"):  # torch pickles no modules with weight normalisation
        copies.append(pickle.loads(pickle.dumps(other)))
    for made in copies:
        assert torch.equal(call.compared(made), call.compared(other))
        assert hw.fused(made) == hw.fused(other)


def test_fusing_prints_nothing(capsys):
    pair("t5")
    assert capsys.readouterr() == ("", "")


def test_fused_says_what_was_replaced_and_why_the_rest_was_not():
    model = tiny_model("t5")
    before = hw.fused(model)
    assert not before.replaced
    assert len(before.left) == 6
    report = hw.fused(hw.fuse(model))
    assert len(report.replaced) == 6
    assert not report.left
    assert report.replaced["encoder.block.1.layer.0.SelfAttention"].startswith("Toeplitz")
    assert report.replaced["decoder.block.1.layer.1.EncDecAttention"] == "no bias (cross-attention)"
    assert "encoder.block.0.layer.0.SelfAttention: Toeplitz" in str(report)


def test_fused_says_the_same_of_a_part():
    """What runs on headway's attention is seen, whichever model was given to `fuse`."""
    model = hw.fuse(tiny_model("t5"))
    assert len(hw.fused(model.encoder).replaced) == 2
    bert = hw.fuse(tiny_model("bert"))
    assert len(hw.fused(bert.base_model).replaced) == 2


@pytest.mark.parametrize("name", ["t5", "umt5", "inkling_text"])
def test_another_attention_after_fusing_is_refused_at_the_call(name):
    """It would be given structures where it expects a matrix."""
    model = hw.fuse(tiny_model(name))
    model.set_attn_implementation("eager")
    assert set(hw.fused(model).left.values()) == {"attn_implementation was set to 'eager' after fusing"}
    call = call_of(name, 2, 9, "none")
    with pytest.raises(ValueError, match="fused, and then set to 'eager'"):
        call.compared(model)
    plain = tiny_model(name)
    assert torch.equal(call.compared(hw.unfuse(model)), call.compared(plain))


def test_another_attention_after_fusing_is_seen():
    model = hw.fuse(tiny_model("bert"))
    model.set_attn_implementation("sdpa")
    assert not hw.fused(model).replaced
    assert set(hw.fused(model).left.values()) == {"the model is not fused"}


def test_what_a_family_leaves_to_transformers():
    """The encoder of such a LongT5; its decoder is fused."""
    found = hw.fused(hw.fuse(tiny_model("longt5-global")))
    left = "encoder.block.1.layer.0.TransientGlobalSelfAttention"
    assert found.left[left] == "its keys are a window and a summary of every block"
    assert len(found.left) == 2
    assert {name.split(".")[0] for name in found.replaced} == {"decoder"}
    assert f"{left}: left to transformers, its keys" in str(found)


def test_a_model_with_an_attention_of_somebody_else_is_refused():
    model = tiny_model("t5")
    attention = model.encoder.block[1].layer[0].SelfAttention

    class Changed(type(attention)):
        pass

    attention.__class__ = Changed
    before = state(model)
    with pytest.raises(NotImplementedError, match=r"Changed, not transformers' T5Attention"):
        hw.fuse(model)
    assert state(model) == before


def test_a_fused_model_is_not_fused_again():
    model = hw.fuse(tiny_model("t5"))
    before = state(model)
    with pytest.raises(ValueError, match="fused already"):
        hw.fuse(model)
    assert state(model) == before


def test_half_a_model_is_unfused_by_what_was_fused():
    model = tiny_model("t5")
    hw.fuse(model.encoder)
    before = state(model)
    with pytest.raises(ValueError, match="its part 'encoder' is fused already"):
        hw.fuse(model)
    with pytest.raises(ValueError, match="is not fused"):
        hw.unfuse(model)
    assert state(model) == before
    hw.fuse(hw.unfuse(model.encoder) and model)


def test_one_stack_alone_can_be_fused(same):
    model = tiny_model("t5")
    other = copy.deepcopy(model)
    hw.fuse(other.encoder)
    assert other.decoder.config._attn_implementation == "eager"
    same(model, other, call_of("t5", 2, 9, "right"))


@pytest.mark.parametrize("what", ["layer", "wrapped", "none"])
def test_what_is_no_model_is_refused(what):
    model = tiny_model("t5")
    given = {"layer": model.encoder.block[0], "wrapped": nn.Sequential(model), "none": None}[what]
    before = state(model)
    with pytest.raises(TypeError, match="expected a transformers model"):
        hw.fuse(given)
    assert state(model) == before


def test_what_cannot_be_taken_is_refused_by_name_with_the_reason():
    config = transformers.NystromformerConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=20, intermediate_size=16
    )
    model = transformers.NystromformerModel(config)
    before = state(model)
    with pytest.raises(NotImplementedError, match=r"'nystromformer' cannot be fused: it approximates"):
        hw.fuse(model)
    assert state(model) == before
    gpt = transformers.GPTNeoModel(
        transformers.GPTNeoConfig(hidden_size=16, num_layers=1, num_heads=2, attention_types=[[["global"], 1]])
    )
    with pytest.raises(NotImplementedError, match=r"expected one of .*t5.*got 'gpt_neo'. It computes attention itself"):
        hw.fuse(gpt)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    llama = transformers.LlamaModel(transformers.LlamaConfig(**sizes, num_key_value_heads=1, vocab_size=20))
    with pytest.raises(NotImplementedError, match=r"got 'llama'. It goes through .* load it with attn_implementation"):
        hw.fuse(llama)


def test_refused_and_taken_are_model_types_of_transformers():
    known = set(transformers.CONFIG_MAPPING) | {"inkling"}  # newer than the oldest version supported
    assert not (set(FAMILIES) | set(REFUSED)) - known
    assert not set(FAMILIES) & set(REFUSED)


def test_another_version_whose_attention_looks_different(monkeypatch):
    model = tiny_model("t5")
    monkeypatch.setitem(FusedT5Attention.EXPECTS, "compute_bias", ("query_length", "key_length"))
    before = state(model)
    with pytest.raises(NotImplementedError, match=r"T5Attention.compute_bias: expected the parameters query_length"):
        hw.fuse(model)
    assert state(model) == before


def test_another_version_without_the_class(monkeypatch):
    import transformers.models.t5.modeling_t5 as file

    model = tiny_model("t5")
    before = state(model)
    monkeypatch.delattr(file, "T5Attention")
    with pytest.raises(NotImplementedError, match="has no T5Attention"):
        hw.fuse(model)
    assert state(model) == before


def test_what_attention_cannot_do_is_refused_at_the_call():
    from headway.pretrained.fusing.interface import attend

    q = torch.randn(1, 2, 3, 4)
    with pytest.raises(NotImplementedError, match="softcap"):
        attend(nn.Identity(), q, q, q, None, softcap=30.0)


def test_masks_that_the_caller_gives_whole(same):
    """A matrix (B, 1, Lq, Lk), boolean or to be added, is taken as it is."""
    model, other = pair("t5-encoder")
    call = call_of("t5-encoder", 2, 9, "none")
    keep = torch.rand(2, 1, 9, 9, generator=torch.Generator().manual_seed(5)) < 0.6
    keep |= torch.eye(9, dtype=torch.bool)
    added = torch.zeros(keep.shape, dtype=torch.float64).masked_fill(~keep, torch.finfo(torch.float64).min)
    for low in (torch.finfo(torch.float64).min, -torch.inf, -3.0):
        call.inputs["attention_mask"] = added.masked_fill(~keep, low)
        same(model, other, call)


def test_sizes_of_t5_are_those_of_the_tests():
    assert T5_SIZES["relative_attention_max_distance"] < 17  # else no test reaches the last bucket


def test_the_tables_of_the_docs_are_those_of_the_registry():
    from headway.pretrained.fusing.registry import tables

    page = (Path(__file__).parents[4] / "docs" / "fuse.md").read_text()
    assert page.endswith(f"{tables()}\n"), f"replace the tables of docs/fuse.md with:\n{tables()}"


def test_the_code_of_the_docs_runs():
    page = (Path(__file__).parents[4] / "docs" / "fuse.md").read_text()
    found = re.findall(r"^(<!-- not run: .+ -->\n)?```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    names: dict[str, object] = {}
    for _, code in [each for each in found if not each[0]]:
        exec(code, names)
    assert found
