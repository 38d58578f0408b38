"""The encoder as a transformers model: saved and loaded, in pipelines and Trainer, checkpointed, compiled, resized."""

import json
import logging

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch.testing import assert_close
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    DataCollatorForLanguageModeling,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    pipeline,
)

from headway.encodings import ENCODINGS
from headway.models import (
    EncoderConfig,
    EncoderForMaskedLM,
    EncoderForQuestionAnswering,
    EncoderForSequenceClassification,
    EncoderModel,
)

SIZES = {
    "vocab_size": 29,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 16,
}
SUMS = ["learned+tisa", "rope+alibi"]


@pytest.fixture(autouse=True)
def _quiet_and_seeded():
    torch.manual_seed(0)
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def build(kind=EncoderForMaskedLM, **options):
    model = kind(EncoderConfig(**{**SIZES, **options})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def words(*shape):
    return torch.randint(1, 29, shape, generator=torch.Generator().manual_seed(1))


class TestSaving:
    @pytest.mark.parametrize("segments", ["none", "input", "per-head"])
    @pytest.mark.parametrize("name", [*ENCODINGS, *SUMS])
    def test_a_saved_model_is_the_same_model(self, name, segments, tmp_path):
        model = build(encoding=f"{name}:segments={segments}")
        model.save_pretrained(tmp_path)
        assert {path.name for path in tmp_path.iterdir()} == {"config.json", "model.safetensors"}
        loaded, info = EncoderForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
        assert not info["missing_keys"]
        assert {n for n, _ in loaded.named_parameters()} == {n for n, _ in model.named_parameters()}
        assert all(p.device.type == "cpu" for p in [*loaded.parameters(), *loaded.buffers()])
        assert torch.equal(loaded(words(2, 9)).logits, model(words(2, 9)).logits)
        assert loaded.prediction.decoder.weight is loaded.encoder.words.weight

    def test_linformer(self, tmp_path):
        model = build(encoding="diet-abs", attention="linformer", projected_length=3)
        model.save_pretrained(tmp_path)
        loaded = EncoderForMaskedLM.from_pretrained(tmp_path)
        assert torch.equal(loaded(words(2, 9)).logits, model(words(2, 9)).logits)

    @pytest.mark.parametrize(
        ("auto", "kind"),
        [
            (AutoModel, EncoderModel),
            (AutoModelForMaskedLM, EncoderForMaskedLM),
            (AutoModelForSequenceClassification, EncoderForSequenceClassification),
            (AutoModelForQuestionAnswering, EncoderForQuestionAnswering),
        ],
    )
    def test_the_auto_classes_know_it(self, auto, kind, tmp_path):
        model = build(kind, encoding="t5", num_labels=2)
        model.save_pretrained(tmp_path)
        assert isinstance(AutoConfig.from_pretrained(tmp_path), EncoderConfig)
        loaded = auto.from_pretrained(tmp_path)
        assert type(loaded) is kind
        assert torch.equal(loaded(words(2, 9))[0], model(words(2, 9))[0])

    def test_between_the_bare_encoder_and_a_head(self, tmp_path):
        bare = build(EncoderModel, encoding="t5")
        bare.save_pretrained(tmp_path / "bare")
        head, info = EncoderForMaskedLM.from_pretrained(tmp_path / "bare", output_loading_info=True)
        assert {name.split(".")[0] for name in info["missing_keys"]} == {"prediction"}
        want = bare(words(2, 9)).last_hidden_state
        assert torch.equal(head.encoder(words(2, 9)).last_hidden_state, want)
        head.save_pretrained(tmp_path / "head")
        assert torch.equal(AutoModel.from_pretrained(tmp_path / "head")(words(2, 9)).last_hidden_state, want)

    def test_half_precision_stays_what_it_was(self, tmp_path):
        build(encoding="tisa").to(torch.bfloat16).save_pretrained(tmp_path)
        assert EncoderForMaskedLM.from_pretrained(tmp_path).dtype == torch.bfloat16
        with pytest.raises(ValueError, match="attn_implementation: expected none, got 'sdpa'"):
            EncoderForMaskedLM.from_pretrained(tmp_path, attn_implementation="sdpa")


class TestLoadingForAnotherTask:
    @pytest.mark.parametrize("name", [*ENCODINGS, *SUMS])
    def test_the_encoder_is_kept_and_the_head_is_drawn(self, name, tmp_path):
        model = build(encoding=f"{name}:segments=per-head")
        model.save_pretrained(tmp_path)
        loaded, info = EncoderForSequenceClassification.from_pretrained(
            tmp_path, num_labels=3, output_loading_info=True
        )
        assert set(info["missing_keys"]) == {
            f"{layer}.{kind}" for layer in ("classifier", "encoder.pooler.dense") for kind in ("weight", "bias")
        }
        kept = dict(model.encoder.named_parameters())
        for parameter, value in loaded.encoder.named_parameters():
            if not parameter.startswith("pooler"):
                assert torch.equal(value, kept[parameter]), parameter
        weight = loaded.classifier.weight
        assert 0.005 < weight.std() < 0.05 and not loaded.classifier.bias.any()

    @pytest.mark.parametrize("name", ["diet-rel", "learned+tisa"])
    def test_segments_may_join_later(self, name, tmp_path):
        """Chen et al. (2021b), App. A: pretrained without, fine-tuned with segments."""
        model = build(encoding=f"{name}:segments=none")
        model.save_pretrained(tmp_path)
        loaded, info = EncoderForMaskedLM.from_pretrained(
            tmp_path, encoding=f"{name}:segments=per-head", output_loading_info=True
        )
        assert set(info["missing_keys"]) == {"encoder.segments.table"}
        table = loaded.encoder.segments.table
        assert 0 < table.std() < 0.1
        with torch.no_grad():
            table.zero_()
        assert_close(loaded(words(2, 9)).logits, model(words(2, 9)).logits)

    def test_position_that_a_checkpoint_lacks_is_drawn_as_the_encoding_says(self, tmp_path):
        build(encoding="none").save_pretrained(tmp_path)
        loaded = EncoderForMaskedLM.from_pretrained(tmp_path, encoding="tisa")
        assert_close(loaded.encoder.encoding.center[0, 0], torch.tensor([0.0, -1, 1, -2, 2]))

    def test_what_was_loaded_is_not_drawn_again_beside_what_was_not(self, tmp_path):
        model = build(encoding="tisa")
        model.save_pretrained(tmp_path)
        tensors = load_file(tmp_path / "model.safetensors")
        del tensors["encoder.encoding.amplitude"]
        save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
        loaded = EncoderForMaskedLM.from_pretrained(tmp_path)
        assert torch.equal(loaded.encoder.encoding.center, model.encoder.encoding.center)
        assert torch.equal(loaded.encoder.encoding.sharpness, model.encoder.encoding.sharpness)
        assert loaded.encoder.encoding.amplitude.std() > 0


class TestWrongFiles:
    def test_an_unknown_tensor_is_an_error(self, tmp_path):
        build(encoding="diet-rel").save_pretrained(tmp_path)
        with pytest.raises(
            ValueError, match=r"expected tensors of EncoderForMaskedLM with encoding 'learned:segments=input'.*values"
        ):
            EncoderForMaskedLM.from_pretrained(tmp_path, encoding="learned")

    def test_another_length_is_an_error(self, tmp_path):
        build(encoding="learned").save_pretrained(tmp_path)
        with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
            EncoderForMaskedLM.from_pretrained(tmp_path, max_position_embeddings=32)

    def test_a_wrong_name_in_the_configuration_is_an_error(self, tmp_path):
        build().save_pretrained(tmp_path)
        path = tmp_path / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "encoding": "lerned"}))
        with pytest.raises(ValueError, match="Did you mean 'learned'"):
            AutoModelForMaskedLM.from_pretrained(tmp_path)


@pytest.fixture
def tokenizer():
    """One id a letter, with BERT's special tokens; it yields token_type_ids, as most do."""
    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklm"])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    return PreTrainedTokenizerFast(tokenizer_object=made, **special)


class TestPipelines:
    @pytest.mark.parametrize("segments", ["none", "input"])
    def test_fill_mask_from_a_folder(self, tokenizer, tmp_path, segments):
        model = build(encoding=f"diet-rel:segments={segments}")
        model.save_pretrained(tmp_path)
        tokenizer.save_pretrained(tmp_path)
        filled = pipeline("fill-mask", model=str(tmp_path))("a b [MASK] d", top_k=3)
        logits = model(torch.tensor([[2, 5, 6, 4, 8, 3]])).logits[0, 3]
        scores, ids = logits.softmax(-1).topk(3)
        assert [row["token"] for row in filled] == ids.tolist()
        assert_close(torch.tensor([row["score"] for row in filled]), scores)

    def test_classification_of_pairs_in_batches(self, tokenizer):
        model = build(EncoderForSequenceClassification, encoding="tupe-rel", num_labels=3)
        pairs = [{"text": "a b c", "text_pair": "d"}, {"text": "a", "text_pair": "h"}]
        rows = pipeline("text-classification", model=model, tokenizer=tokenizer)(pairs, top_k=None, batch_size=2)
        given = tokenizer("a", "h", return_tensors="pt")
        want = model(**given).logits[0].softmax(-1)
        for row in rows[1]:
            assert_close(torch.tensor(row["score"]), want[int(row["label"][-1])])

    def test_question_answering_takes_its_inputs(self, tokenizer):
        given = tokenizer(["a b", "c"], ["d e f g", "h"], padding=True, return_tensors="pt")
        out = build(EncoderForQuestionAnswering)(**given)
        assert out.start_logits.shape == out.end_logits.shape == given["input_ids"].shape


def arguments(folder, **options):
    return TrainingArguments(
        output_dir=str(folder),
        max_steps=6,
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        logging_steps=1,
        dataloader_pin_memory=False,
        **options,
    )


class TestTrainer:
    @pytest.mark.parametrize("options", [{}, {"gradient_checkpointing": True}, {"gradient_accumulation_steps": 2}])
    def test_masked_words(self, tokenizer, tmp_path, options):
        torch.manual_seed(0)
        rows = [tokenizer(" ".join("abcdefghijklm"[i : i + 2 + i % 5])) for i in range(8)]
        model = EncoderForMaskedLM(EncoderConfig(**SIZES, encoding="diet-rel:segments=none"))
        collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.5, seed=0)
        trainer = Trainer(model, arguments(tmp_path, **options), data_collator=collator, train_dataset=rows)
        trainer.train()
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        assert len(losses) == 6
        assert losses[-1] < losses[0]
        trainer.save_model(tmp_path / "last")
        loaded = AutoModelForMaskedLM.from_pretrained(tmp_path / "last")
        assert torch.equal(loaded.encoder.encoding.values, model.encoder.encoding.values)

    def test_accumulated_steps_weigh_every_label_alike(self):
        """The Trainer passes the number of labels of all parts of a step: their losses then add up to the whole one."""
        model, tokens = build(encoding="tisa"), words(4, 9)
        labels = tokens.masked_fill(torch.rand(4, 9) < torch.tensor([0.1, 0.5, 0.7, 0.9])[:, None], -100)
        count = (labels != -100).sum()
        parts = [model(tokens[i : i + 2], labels=labels[i : i + 2], num_items_in_batch=count).loss for i in (0, 2)]
        assert_close(sum(parts), model(tokens, labels=labels).loss)


CHECKPOINTED = ["diet-rel", "t5", "shaw", "transformer-xl", "learned+tisa"]


class TestCheckpointing:
    @pytest.mark.parametrize("name", CHECKPOINTED)
    def test_gradients_are_the_same(self, name):
        model = build(encoding=f"{name}:segments=per-head", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        model.train()
        tokens, ids = words(2, 9), torch.arange(9).expand(2, 9) // 5

        def gradients():
            loss = model(tokens, token_type_ids=ids, labels=tokens).loss
            return torch.autograd.grad(loss, list(model.parameters()))

        want = gradients()
        model.gradient_checkpointing_enable()
        assert all(layer.gradient_checkpointing for layer in model.encoder.layers)
        for got, wanted in zip(gradients(), want, strict=True):
            assert_close(got, wanted)

    def test_the_kind_that_would_lose_gradients_is_refused(self):
        with pytest.raises(ValueError, match="use_reentrant: expected False"):
            build().gradient_checkpointing_enable({"use_reentrant": True})


KINDS = {
    "local": {"attention": "local", "window": 3, "encoding": "diet-rel:segments=per-head"},
    "performer": {"attention": "performer", "num_features": 5, "encoding": "diet-rel"},
    "synthesizer": {"attention": "synthesizer", "encoding": "synthesizer:rank=3"},
}


@pytest.mark.parametrize("kind", ["local", "synthesizer", pytest.param("performer", marks=pytest.mark.slow)])
def test_kinds_of_attention_are_the_same_compiled_and_checkpointed(kind):
    model = build(**KINDS[kind], hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0).train()
    tokens, lengths = words(2, 9), torch.tensor([9, 5])

    def loss_and_gradients(model):
        loss = model(tokens, lengths=lengths, token_type_ids=torch.arange(9).expand(2, 9) // 5, labels=tokens).loss
        return loss, *torch.autograd.grad(loss, list(model.parameters()))

    want = loss_and_gradients(model)
    compiled = loss_and_gradients(torch.compile(model, fullgraph=True, backend="aot_eager"))
    model.gradient_checkpointing_enable()
    for got in (compiled, loss_and_gradients(model)):
        for one, other in zip(got, want, strict=True):
            assert_close(one, other)


COMPILED_FIRST = ["diet-rel", "shaw"]  # the others take tens of seconds together


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in COMPILED_FIRST else pytest.mark.slow) for n in [*ENCODINGS, *SUMS]],
)
def test_compiled_in_one_graph_is_the_same(name):
    model = build(encoding=f"{name}:segments=per-head", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model.train()
    fast = torch.compile(model, fullgraph=True, backend="aot_eager")
    given = {
        "input_ids": words(2, 9),
        "attention_mask": (torch.arange(9) < torch.tensor([9, 5])[:, None]).long(),
        "token_type_ids": torch.arange(9).expand(2, 9) // 5,
        "masked_positions": torch.tensor([1, 4, 11, 0]),
        "labels": torch.tensor([3, 8, 20, -100]),
    }
    want, got = model(**given), fast(**given)
    assert_close(got.loss, want.loss)
    assert_close(got.logits, want.logits)
    parameters = list(model.parameters())
    for mine, theirs in zip(
        torch.autograd.grad(got.loss, parameters), torch.autograd.grad(want.loss, parameters), strict=True
    ):
        assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (EncoderForSequenceClassification, {"labels": torch.tensor([0, 1])}),
        (EncoderForQuestionAnswering, {"start_positions": torch.tensor([1, 2]), "end_positions": torch.tensor([3, 9])}),
        (EncoderForMaskedLM, {"documents": torch.tensor([[0] * 4 + [1] * 5, [2] * 9]), "labels": words(2, 9)}),
    ],
)
def test_every_head_compiles_in_one_graph(kind, given):
    model = build(kind, encoding="diet-abs", attention_probs_dropout_prob=0.0)
    fast = torch.compile(model, fullgraph=True, backend="eager")
    want = model(words(2, 9), **given, output_hidden_states=True, output_attentions=True)
    got = fast(words(2, 9), **given, output_hidden_states=True, output_attentions=True)
    assert_close(got.loss, want.loss)
    assert_close(got.attentions, want.attentions)
    assert_close(got.hidden_states, want.hidden_states)


@pytest.mark.parametrize("size", [40, 20])
def test_resized_vocabulary_stays_tied(size, caplog):
    model = build(encoding="diet-rel")
    before, bias = model.encoder.words.weight.detach().clone(), model.prediction.decoder.bias.detach().clone()
    with caplog.at_level(logging.ERROR, logger="transformers"):
        model.resize_token_embeddings(size)
    least = min(size, 29)
    assert model.config.vocab_size == size
    assert model.prediction.decoder.weight is model.encoder.words.weight
    assert torch.equal(model.encoder.words.weight[:least], before[:least])
    assert torch.equal(model.prediction.decoder.bias[:least], bias[:least])
    tokens = torch.randint(1, size, (2, 9))
    out = model(tokens, labels=tokens)
    assert out.logits.shape == (2, 9, size)
    out.loss.backward()


@pytest.mark.parametrize("name", ["learned", "diet-rel", "diet-abs", "tupe-rel", "shaw", "rope", "tisa"])
def test_autocast_is_near(name):
    model = build(encoding=name)
    tokens = words(4, 16)
    want = model(tokens, labels=tokens)
    with torch.autocast("cpu", torch.bfloat16):
        got = model(tokens, labels=tokens)
    assert got.loss.dtype == torch.float32
    got.loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())
    assert_close(got.logits.float(), want.logits, rtol=0.05, atol=0.05)
    assert_close(got.loss, want.loss, rtol=0.01, atol=0.01)
