"""Replace the positions of a pretrained BERT by a TISA bias, fitted to what they do; then read longer texts.

    python -m examples.convert_a_model [--model FOLDER_OR_HUB_NAME]

Without --model a tiny BERT with random weights stands in, so that this runs offline; its numbers mean nothing.
"""

from __future__ import annotations

import argparse
import tempfile

import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer, BertConfig, BertForMaskedLM

import headway.models  # noqa: F401  what `headway pretrain` made is then known to transformers, and converts as well
from headway.bench.data import Language, open_corpus, train_tokenizer
from headway.pretrained.conversion import compare, convert


def stand_in(folder: str) -> str:
    tokenizer = train_tokenizer([open_corpus("builtin:300")], kind="word", out=folder)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = BertConfig(vocab_size=len(tokenizer), max_position_embeddings=48, pad_token_id=0, **sizes)
    BertForMaskedLM(config).save_pretrained(folder)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", help="a BERT, RoBERTa, ALBERT, ... or headway model, with its tokenizer")
    options = parser.parse_args()

    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        name = options.model or stand_in(f"{folder}/bert")
        model = AutoModelForMaskedLM.from_pretrained(name).eval()
        tokenizer = AutoTokenizer.from_pretrained(name)
        texts = [" ".join(sentence.words) for sentence in Language().sentences(200)]
        old = model.config.max_position_embeddings

        same = convert(model, "tisa:kernels=3", mode="supplement")
        close = compare(model, same, tokenizer, texts[:50], length=32)
        print(f"supplement: hidden states differ by {close.relative_error:.0e}: the same model, with a bias to train")
        assert close.relative_error < 1e-5

        new = convert(model, "tisa:kernels=3", mode="replace", max_length=4 * old, tokenizer=tokenizer, texts=texts)
        close = compare(model, new, tokenizer, texts[:50], length=32)
        print(
            f"replace: cosine of tokens with the original {close.cosine:.3f}, for texts of {4 * old} in place of {old}"
        )

        new.save_pretrained(f"{folder}/converted")
        again = AutoModelForMaskedLM.from_pretrained(f"{folder}/converted")  # `hw.convert` registered its class
        words = torch.randint(5, len(tokenizer), (1, 4 * old))
        torch.testing.assert_close(again.eval()(words).logits, new.eval()(words).logits)
        print(f"loaded again as {type(again).__name__}: {tuple(again(words).logits.shape)}")


if __name__ == "__main__":
    main()
