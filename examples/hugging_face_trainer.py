"""One of our encoders in transformers' Trainer: masked words of the built-in language, saved and loaded again.

python -m examples.hugging_face_trainer [--encoding diet-rel] [--steps 200]
"""

from __future__ import annotations

import argparse
import tempfile

from transformers import (
    AutoModelForMaskedLM,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
    pipeline,
    set_seed,
)

import headway as hw
from headway.bench.data import Language, open_corpus, train_tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--encoding", default="diet-rel", help="a name of `headway list`")
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()

    set_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = train_tokenizer([open_corpus("builtin:300")], kind="word", out=f"{folder}/tokenizer")
        texts = [" ".join(sentence.words) for sentence in Language().sentences(1000)]
        rows = [{"input_ids": ids} for ids in tokenizer(texts)["input_ids"]]
        config = hw.preset(
            "tiny", encoding=options.encoding, vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id
        )
        trainer = Trainer(
            model=hw.EncoderForMaskedLM(config),
            args=TrainingArguments(
                output_dir=f"{folder}/run",
                max_steps=options.steps,
                per_device_train_batch_size=16,
                learning_rate=2e-3,
                report_to=[],
                save_strategy="no",
                logging_steps=20,
                disable_tqdm=True,
                use_cpu=True,
                dataloader_pin_memory=False,
            ),
            train_dataset=rows,
            data_collator=DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15),
        )
        trainer.train()
        trainer.save_model(f"{folder}/model")
        tokenizer.save_pretrained(f"{folder}/model")

        model = AutoModelForMaskedLM.from_pretrained(f"{folder}/model")  # hw.models is imported: it knows the class
        fill = pipeline("fill-mask", model=model, tokenizer=tokenizer, device="cpu")
        words = texts[0].split()
        guesses = fill(" ".join([words[0], tokenizer.mask_token, *words[2:]]))
        print(f"{model.config.encoding}: {words[0]} [MASK] -> {', '.join(g['token_str'] for g in guesses)}")


if __name__ == "__main__":
    main()
