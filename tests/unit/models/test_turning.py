"""An encoding may turn queries, keys or both: what it turned is what attends."""

import pytest
import torch

from headway.encodings import ENCODINGS
from headway.encodings.base import Encoding
from headway.models import EncoderConfig, EncoderModel, TranslationConfig, TranslationModel

SIZES = {"vocab_size": 50, "hidden_size": 32, "num_attention_heads": 2, "encoding": "half turned"}


@pytest.fixture(params=["queries", "keys"])
def half(request, monkeypatch):
    """An encoding that scales one side by its position."""

    class Half(Encoding):
        name, paper, places = "half turned", "none", ("queries and keys",)

        def _rotate(self, q, k, layer, q_start, documents):
            by = 1 + torch.arange(q.shape[-2])[:, None] / 4
            return (q * by, k) if request.param == "queries" else (q, k * by)

    monkeypatch.setitem(ENCODINGS, "half turned", Half)


def test_in_an_encoder(half):
    torch.manual_seed(0)
    model = EncoderModel(EncoderConfig(num_hidden_layers=2, initializer_range=0.3, **SIZES)).eval()
    words = torch.randint(5, 50, (2, 12))
    torch.testing.assert_close(
        model(words).last_hidden_state, model(words, output_attentions=True).last_hidden_state, rtol=1e-4, atol=1e-5
    )


def test_in_a_translation_model(half):
    torch.manual_seed(0)
    model = TranslationModel(TranslationConfig(encoder_layers=2, decoder_layers=2, **SIZES)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    words = torch.randint(5, 50, (2, 12))
    plain, looked = (
        model(input_ids=words, decoder_input_ids=words, output_attentions=weights).logits for weights in (False, True)
    )
    torch.testing.assert_close(plain, looked, rtol=1e-4, atol=1e-4)
