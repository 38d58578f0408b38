"""Fused models in what people use around transformers: the same numbers, and plain checkpoints."""

from __future__ import annotations

import copy

import pytest
import torch
import transformers
from fusing_cases import ENCODER, T5_SIZES, tiny_model
from torch import nn

import headway as hw

LABELS = 3
WORDS = [
    "red",
    "green",
    "blue",
    "cat",
    "dog",
    "bird",
    "sees",
    "likes",
    "hides",
    "a",
    "the",
    "one",
    "two",
    "big",
    "small",
]
# What LoRA is put on: the projections of queries and values, or of all three in one.
CLASSIFIERS = {
    "t5": ("T5ForSequenceClassification", transformers.T5Config, T5_SIZES, ["q", "v"]),
    "mpnet": ("MPNetForSequenceClassification", transformers.MPNetConfig, ENCODER, ["q", "v"]),
    "bert": ("BertForSequenceClassification", transformers.BertConfig, ENCODER, ["query", "value"]),
    "bloom": (
        "BloomForSequenceClassification",
        transformers.BloomConfig,
        {"vocab_size": 60, "hidden_size": 36, "n_layer": 2, "n_head": 6, "initializer_range": 0.3, "pad_token_id": 0}
        | {"hidden_dropout": 0.0, "attention_dropout": 0.0},
        ["query_key_value"],
    ),
}


def classifier(name, seed=0):
    """Return a random classifier with transformers' eager attention, in float32."""
    kind, config, sizes, _ = CLASSIFIERS[name]
    torch.manual_seed(seed)
    made = getattr(transformers, kind)(config(**sizes, num_labels=LABELS, attn_implementation="eager")).eval()
    with torch.no_grad():
        for key, parameter in made.named_parameters():
            if "relative" in key:
                parameter.normal_()
    return made


def texts(count, seed=1):
    """Return rows of several lengths with labels that depend on them."""
    draw = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(count):
        length = int(torch.randint(4, 15, (), generator=draw))
        ids = torch.randint(2, 60, (length,), generator=draw)
        ids[-1] = 1  # the end, where T5 classifies
        rows.append({"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": int(ids[0]) % LABELS})
    return rows


def batch_of(rows):
    """Pad rows on the right."""
    length = max(len(row["input_ids"]) for row in rows)

    def padded(name):
        return torch.stack([nn.functional.pad(row[name], (0, length - len(row[name]))) for row in rows])

    labels = torch.tensor([row["labels"] for row in rows])
    return {"input_ids": padded("input_ids"), "attention_mask": padded("attention_mask"), "labels": labels}


def logits(model, count=6):
    with torch.no_grad():
        return model(**batch_of(texts(count, seed=9))).logits


def trained(model, folder):
    """Train a model with the Trainer for a few steps, and return the losses."""
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=4,
        per_device_train_batch_size=4,
        learning_rate=1e-3,
        logging_steps=1,
        save_steps=2,
        eval_strategy="steps",
        eval_steps=2,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
        remove_unused_columns=False,
    )
    trainer = Trainer(
        model=model, args=arguments, train_dataset=texts(16), eval_dataset=texts(6, seed=2), data_collator=batch_of
    )
    trainer.train()
    return [row[name] for row in trainer.state.log_history for name in ("loss", "eval_loss") if name in row]


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_trainer(name, tmp_path):
    """The same losses as unfused, and checkpoints that anybody loads."""
    model = classifier(name)
    other = hw.fuse(copy.deepcopy(model))
    losses = trained(model, tmp_path / "plain")
    torch.testing.assert_close(trained(other, tmp_path / "fused"), losses, rtol=1e-4, atol=1e-5)
    assert len(losses) == 6
    assert hw.fused(other).replaced
    for step in (2, 4):
        loaded = type(model).from_pretrained(tmp_path / "fused" / f"checkpoint-{step}", attn_implementation="eager")
        assert not hw.fused(loaded).replaced
    torch.testing.assert_close(logits(loaded.eval()), logits(other.eval()), rtol=0, atol=1e-5)


@pytest.mark.parametrize("before", [True, False], ids=["fused, then LoRA", "LoRA, then fused"])
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_peft_lora(name, before, tmp_path):
    peft = pytest.importorskip("peft", reason="needs peft: pip install 'headway[test]'")
    lora = peft.LoraConfig(r=2, target_modules=CLASSIFIERS[name][3], init_lora_weights=False)

    def wrapped(fusing):
        model = classifier(name)
        if fusing and before:
            hw.fuse(model)
        torch.manual_seed(5)
        model = peft.get_peft_model(model, lora)
        if fusing and not before:
            hw.fuse(model.get_base_model())
        return model

    model, other = wrapped(False), wrapped(True)
    batch = batch_of(texts(5))
    for each in (model, other):
        each(**batch).loss.backward()
    torch.testing.assert_close(logits(other), logits(model), rtol=0, atol=1e-5)
    gradients = {key: p.grad for key, p in model.named_parameters() if p.requires_grad}
    of_other = {key: p.grad for key, p in other.named_parameters() if p.requires_grad}
    assert gradients and all("lora" in key or "score" in key or "classif" in key for key in gradients)
    torch.testing.assert_close(of_other, gradients, rtol=1e-4, atol=1e-5)

    other.save_pretrained(tmp_path)  # the adapter alone
    plain = peft.PeftModel.from_pretrained(classifier(name), tmp_path)
    torch.testing.assert_close(logits(plain), logits(other), rtol=0, atol=1e-5)
    merged = other.merge_and_unload()
    torch.testing.assert_close(logits(merged), logits(model), rtol=0, atol=1e-4)
    torch.testing.assert_close(logits(hw.unfuse(merged)), logits(model), rtol=0, atol=1e-4)


def test_peft_is_refused_from_outside():
    peft = pytest.importorskip("peft", reason="needs peft: pip install 'headway[test]'")
    model = peft.get_peft_model(classifier("bert"), peft.LoraConfig(r=2, target_modules=["query", "value"]))
    with pytest.raises(TypeError, match=r"get_base_model\(\)"):
        hw.fuse(model)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_accelerate_prepares_a_fused_model(name):
    from accelerate import Accelerator

    model = classifier(name)
    other = hw.fuse(copy.deepcopy(model))
    accelerator = Accelerator(cpu=True)
    prepared, optimizer = accelerator.prepare(other, torch.optim.SGD(other.parameters(), 0.1))
    plain = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        for each, steps in ((model, plain), (prepared, optimizer)):
            loss = each(**batch_of(texts(4))).loss
            loss.backward() if each is model else accelerator.backward(loss)
            steps.step()
            steps.zero_grad()
    torch.testing.assert_close(logits(prepared), logits(model), rtol=0, atol=1e-4)
    assert hw.unfuse(accelerator.unwrap_model(prepared)) is other


@pytest.mark.parametrize("before", [True, False], ids=["fused, then dispatched", "dispatched, then fused"])
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_accelerate_device_map(name, before, tmp_path):
    """Hooks on modules, of a part that waits on the disk."""
    from accelerate import dispatch_model
    from accelerate.hooks import remove_hook_from_submodules

    model = classifier(name)
    expected = logits(model)
    other = copy.deepcopy(model)
    if before:
        hw.fuse(other)
    parts = [child for child, _ in other.named_children()]
    places = {part: "cpu" for part in parts}
    places[parts[0]] = "disk"
    other = dispatch_model(other, places, offload_dir=tmp_path)
    if not before:
        hw.fuse(other)
    calls = []
    from headway.pretrained.fusing import interface

    run = interface.attention
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interface, "attention", lambda *a, **k: calls.append(1) or run(*a, **k))
        torch.testing.assert_close(logits(other), expected, rtol=0, atol=1e-5)
    assert len(calls) == len(hw.fused(other).replaced) - ("mpnet" in name)  # its encoder is replaced, too
    assert torch.equal(logits(hw.unfuse(other)), expected)
    if name != "t5":
        remove_hook_from_submodules(other)
        assert not hw.fused(other).replaced


def test_a_module_whose_forward_was_replaced_is_refused():
    model = classifier("bloom")
    attention = model.transformer.h[1].self_attention
    attention.forward = lambda *given, **named: (given[0], None)
    with pytest.raises(NotImplementedError, match=r"h.1.self_attention cannot be fused: its forward method"):
        hw.fuse(model)
    assert not hw.fused(model).replaced


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch's compiler, about its own code and transformers'
@pytest.mark.parametrize("name", ["mpnet", "bloom"])
def test_compiled(name):
    model = classifier(name)
    other = hw.fuse(copy.deepcopy(model))
    compiled = torch.compile(other, backend="aot_eager", dynamic=False)
    batch = batch_of(texts(4))
    for each in (model, compiled):
        each(**batch).loss.backward()
    torch.testing.assert_close(logits(compiled), logits(model), rtol=0, atol=1e-5)
    gradients = {key: p.grad for key, p in model.named_parameters() if p.grad is not None}
    of_other = {key: p.grad for key, p in other.named_parameters() if p.grad is not None}
    torch.testing.assert_close(of_other, gradients, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")  # torch's compiler is imported
def test_a_compiled_model_is_refused_from_outside():
    with pytest.raises(TypeError, match="given to torch"):
        hw.fuse(torch.compile(classifier("bert")))


def tokenizer():
    """Return a tokenizer of a few words."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[SEP]", "[UNK]", "[CLS]", "[MASK]", *WORDS])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 3), ("[SEP]", 1)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="[PAD]", sep_token="[SEP]", unk_token="[UNK]", cls_token="[CLS]",
        mask_token="[MASK]", eos_token="[SEP]", model_input_names=["input_ids", "attention_mask"],
        model_max_length=64,
    )  # fmt: skip


SENTENCES = ["the big cat sees a bird", "red dog", "one small bird hides the blue cat the dog likes"]


def test_pipelines(tmp_path):
    """Made of a fused model, and of its folder."""
    from transformers import pipeline

    words = tokenizer()
    words.save_pretrained(tmp_path)
    model = classifier("mpnet")
    hw.fuse(copy.deepcopy(model)).save_pretrained(tmp_path)
    expected = pipeline("text-classification", model=model, tokenizer=words, device="cpu")
    given = {"batch_size": 3, "top_k": None}
    scores = {row["label"]: row["score"] for row in expected(SENTENCES, **given)[1]}
    ours = pipeline("text-classification", model=str(tmp_path), device="cpu")
    hw.fuse(ours.model)
    assert {row["label"]: row["score"] for row in ours(SENTENCES, **given)[1]} == pytest.approx(scores, abs=1e-5)

    model = tiny_model("bert").float()
    other = hw.fuse(copy.deepcopy(model))
    masked = "the big [MASK] sees a bird"
    theirs, ours = (pipeline("fill-mask", model=each, tokenizer=words, device="cpu") for each in (model, other))
    for a, b in zip(theirs(masked), ours(masked), strict=True):
        assert (b["token"], b["score"]) == (a["token"], pytest.approx(a["score"], abs=1e-5))
    vectors = [
        pipeline("feature-extraction", model=each.base_model, tokenizer=words, device="cpu")(SENTENCES, batch_size=3)
        for each in (model, other)
    ]
    for a, b in zip(*vectors, strict=True):
        length = len(words(SENTENCES[vectors[0].index(a)])["input_ids"])
        torch.testing.assert_close(torch.tensor(b)[:, :length], torch.tensor(a)[:, :length], rtol=0, atol=1e-4)


def test_pipeline_that_generates():
    from transformers import pipeline

    words = tokenizer()
    words.padding_side = "left"
    words.pad_token_id = 0
    model = tiny_model("bloom").float()  # in float64 transformers gives NaN in rows of padding
    other = hw.fuse(copy.deepcopy(model))
    theirs, ours = (pipeline("text-generation", model=each, tokenizer=words, device="cpu") for each in (model, other))
    asked = {"batch_size": 3, "max_new_tokens": 6, "do_sample": False, "return_tensors": True}
    tokens = [[row[0]["generated_token_ids"] for row in each(SENTENCES, **asked)] for each in (theirs, ours)]
    assert tokens[0] == tokens[1]


@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
@pytest.mark.parametrize("before", [True, False], ids=["fused, then quantised", "quantised, then fused"])
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_quantised_linear_layers(name, before):
    """torch's own eight-bit layers, whose numbers are rounded the same way in both models."""
    kind = torch.ao.nn.quantized.dynamic.Linear

    def quantised(model):
        return torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)

    model = classifier(name)
    other = copy.deepcopy(model)
    other = quantised(hw.fuse(other)) if before else hw.fuse(quantised(other))
    assert any(isinstance(module, kind) for module in other.modules())
    expected = logits(quantised(model))
    assert not torch.equal(expected, logits(model))
    torch.testing.assert_close(logits(other), expected, rtol=0, atol=0.05 * float(expected.abs().max()))
    assert hw.fused(other).replaced


def test_sentence_transformers(tmp_path):
    sentence = pytest.importorskip("sentence_transformers", reason="needs sentence-transformers: 'headway[test]'")
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    tokenizer().save_pretrained(tmp_path / "model")
    torch.manual_seed(0)
    base = classifier("mpnet").base_model
    base.save_pretrained(tmp_path / "model")
    made = sentence.SentenceTransformer(
        modules=[Transformer(str(tmp_path / "model")), Pooling(base.config.hidden_size)], device="cpu"
    )
    expected = made.encode(SENTENCES, convert_to_tensor=True)
    hw.fuse(made[0].auto_model)
    assert hw.fused(made[0].auto_model).replaced
    torch.testing.assert_close(made.encode(SENTENCES, convert_to_tensor=True), expected, rtol=0, atol=1e-5)
    made.save_pretrained(str(tmp_path / "saved"))
    loaded = sentence.SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    torch.testing.assert_close(loaded.encode(SENTENCES, convert_to_tensor=True), expected, rtol=0, atol=1e-5)
    with pytest.raises(TypeError, match="sentence-transformers"):
        hw.fuse(made)
