"""Tokens a second of translation, decoding and training, beside transformers' MarianMT of the same size in one run.

    python -m benchmarks.translation [--size small] [--batch 16] [--minutes 8] [--out benchmarks/results]

Decoding: beam 4, sources of mixed lengths, each translation exactly as long as its source, so that all decode the same
number of tokens (random weights; the end token is forced there, and nowhere else). MarianMT runs its `generate`.
Training: a whole step of AdamW on padded pairs with label smoothing, MarianMT's by torch's cross entropy of its scores,
as that model has none of its own. On a GPU bfloat16, and training, MarianMT's as well, compiled and replayed as CUDA
graphs; on a CPU float32, where only ratios mean much. Rows take turns. Parity first: a row whose greedy words, or the
log-probabilities of its beams, or the loss in training, differ from whole passes without a cache has no time.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, MarianConfig, MarianMTModel
from transformers.models.marian.modeling_marian import shift_tokens_right

from benchmarks.measure import add_record_options, environment, ratios, save
from headway.bench.recording import Recordings, own_stream
from headway.models.translation import TranslationConfig, TranslationModel, translation_preset

MARIAN = "transformers' MarianMT"
ENCODINGS = ("sinusoidal", "shaw", "diet-rel", "t5", "diet-abs")
PAD, START, END = 0, 1, 2
SMOOTHING = 0.1
SIZES = {"base": "diet-base", "big": "big", "small": "small", "tiny": "tiny"}


class Bench:
    """The models, one batch of sources, and what is measured with them."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.device = torch.device("cuda" if torch.cuda.is_available() and not options.cpu else "cpu")
        self.half = self.device.type == "cuda"
        generator = torch.Generator().manual_seed(0)
        longest = options.length
        shortest = max(2, round(options.shortest * longest))
        self.lengths = torch.randint(shortest, longest + 1, (options.batch,), generator=generator)
        self.lengths[0] = longest
        ids = torch.randint(3, options.vocab, (options.batch, longest), generator=generator)
        self.mask = (torch.arange(longest) < self.lengths[:, None]).long()
        self.source = ids.masked_fill(self.mask == 0, PAD)
        self.labels = ids.flip(0).masked_fill(self.mask == 0, -100)
        self.tokens = int(self.lengths.sum())

    def config(self, encoding: str) -> TranslationConfig:
        sizes = {"vocab_size": self.options.vocab, "max_position_embeddings": 512, "hidden_dropout_prob": 0.1}
        sizes["label_smoothing"] = SMOOTHING
        return translation_preset(SIZES[self.options.size], encoding=encoding, **sizes)

    def ours(self, encoding: str) -> TranslationModel:
        torch.manual_seed(0)
        model = TranslationModel(self.config(encoding)).eval()
        with torch.no_grad():
            model.encoder.words.weight[END] = 0.0  # never among the best words: translations end where they must
        return model

    def marian(self) -> MarianMTModel:
        ours = self.config("sinusoidal")
        return MarianMTModel(
            MarianConfig(
                vocab_size=ours.vocab_size,
                d_model=ours.hidden_size,
                encoder_layers=ours.encoder_layers,
                decoder_layers=ours.decoder_layers,
                encoder_attention_heads=ours.num_attention_heads,
                decoder_attention_heads=ours.num_attention_heads,
                encoder_ffn_dim=ours.intermediate_size,
                decoder_ffn_dim=ours.intermediate_size,
                max_position_embeddings=512,
                activation_function="relu",
                scale_embedding=True,
                pad_token_id=PAD,
                bos_token_id=START,
                eos_token_id=END,
                decoder_start_token_id=START,
                forced_eos_token_id=None,
            )
        ).eval()

    # Decoding.

    def decoder_of(self, row: str) -> Callable[[], Any]:
        model = self.marian() if row == MARIAN else self.ours(row)
        model = model.to(self.device, torch.bfloat16 if self.half else torch.float32)
        source, mask = self.source.to(self.device), self.mask.to(self.device)
        if row != MARIAN:
            return lambda: model.translate(source, mask, beam=self.options.beam, max_length_plus=0)
        ends = LogitsProcessorList([EndsAt(self.lengths.to(self.device), self.options.beam)])

        def generate() -> Tensor:
            made = model.generate(
                source,
                attention_mask=mask,
                num_beams=self.options.beam,
                do_sample=False,
                max_new_tokens=self.options.length,
                early_stopping=True,
                logits_processor=ends,
            )
            assert ((made == END).int().argmax(1).cpu() == self.lengths).all()
            return made

        return generate

    def differs(self, encoding: str) -> str | None:
        """Say how decoding differs from passes without a cache, in float64 (float32 on a GPU); None if it agrees."""
        model = copy.deepcopy(self.ours(encoding)).to(self.device, torch.float32 if self.half else torch.float64)
        length = min(8, int(self.lengths[:2].min()))
        source = self.source[:2, :length].to(self.device)
        target = torch.full((2, 1), START, device=self.device)
        with torch.no_grad():
            for _ in range(length - 1):
                scores = model(source, decoder_input_ids=target, use_cache=False).logits[:, -1]
                target = torch.cat([target, scores.argmax(-1, keepdim=True)], dim=1)
        greedy = [best[0].tokens for best in model.translate(source, beam=1, max_length_plus=0)]
        if greedy != target[:, 1:].tolist():
            return f"greedy words {greedy}, expected {target[:, 1:].tolist()}"
        for row, best in enumerate(model.translate(source, beam=self.options.beam, max_length_plus=0)):
            words = torch.tensor([[START, *best[0].tokens, END]], device=self.device)
            with torch.no_grad():
                logits = model(source[row : row + 1], decoder_input_ids=words[:, :-1], use_cache=False).logits
            exact = float(logits.log_softmax(-1).gather(2, words[:, 1:, None]).sum())
            if abs(exact - best[0].log_probability) > 1e-3 * abs(exact):
                return f"log-probability {best[0].log_probability}, expected {exact}"
        return None

    # Training.

    def loss_differs(self, encoding: str) -> str | None:
        """Say how the loss differs from torch's on whole passes, in float64 (float32 on a GPU); None if it agrees."""
        model = self.ours(encoding).to(self.device, torch.float32 if self.half else torch.float64)
        source, mask, labels = (part[:4].to(self.device) for part in (self.source, self.mask, self.labels))
        with torch.no_grad():
            loss = float(model(source, mask, labels=labels, loss_only=True).loss)
            logits = model(source, mask, labels=labels).logits
            exact = float(F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=SMOOTHING))
        return None if abs(loss - exact) <= 1e-5 * exact else f"loss {loss}, expected {exact}"

    def trainer_of(self, row: str) -> Callable[[], Any]:
        model = (self.marian() if row == MARIAN else self.ours(row)).to(self.device).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        source, mask, labels = (part.to(self.device) for part in (self.source, self.mask, self.labels))

        def ours() -> Tensor:
            loss: Tensor = model(source, mask, labels=labels, loss_only=True).loss
            return loss

        def theirs() -> Tensor:
            target = shift_tokens_right(labels, PAD, START)
            logits = model(input_ids=source, attention_mask=mask, decoder_input_ids=target, use_cache=False).logits
            return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=SMOOTHING)

        loss_of = theirs if row == MARIAN else ours
        run = torch.compile(loss_of, fullgraph=row != MARIAN) if self.half else loss_of
        recordings = Recordings(on=self.half, optimizer=optimizer)

        def step() -> None:
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.half):
                loss = run()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        return lambda: recordings(row, step)

    def measured(self, part: str, until: float, tell: Callable[[str], None]) -> dict[str, Any]:
        cases: dict[str, Callable[[], Any]] = {}
        wrong: dict[str, str] = {}
        for row in (MARIAN, *self.options.encodings):
            difference = None
            if row != MARIAN:
                difference = self.differs(row) if part == "decoding" else self.loss_differs(row)
            if difference is not None:
                wrong[row] = difference
                continue
            cases[row] = self.decoder_of(row) if part == "decoding" else self.trainer_of(row)
            for _ in range(3 if self.half else 1):  # warm-up; compiling, recording
                cases[row]()
            self._wait()
            tell(f"{part}: {row} is ready")
        seconds: dict[str, list[float]] = {row: [] for row in cases}
        for number in range(self.options.rounds):
            if number >= 2 and time.perf_counter() > until:
                break
            for row, run in cases.items():
                self._wait()
                start = time.perf_counter()
                run()
                self._wait()
                seconds[row].append(time.perf_counter() - start)
        found = {
            name: {key: 1 / value for key, value in ratio.items()} for name, ratio in ratios(seconds, MARIAN).items()
        }
        tell(f"{part}: {len(seconds[MARIAN])} rounds")
        return {"seconds": seconds, "times_marian": found, "wrong": wrong, "tokens": self.tokens}

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


class EndsAt(LogitsProcessor):  # type: ignore[misc]
    """Ends each source's translation after the number of tokens that was given for it, and not before."""

    def __init__(self, lengths: Tensor, beam: int) -> None:
        self.lengths = lengths.repeat_interleave(beam)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        over = (input_ids.shape[1] >= self.lengths)[:, None]
        is_end = torch.arange(scores.shape[1], device=scores.device) == END
        return scores.masked_fill(over != is_end, -torch.inf)


def table(part: str, measured: dict[str, Any], absolute: bool) -> Table:
    """Lay out speeds over MarianMT's with the 20 and 80 % quantiles of rounds."""
    drawn = Table(title=f"{part}: tokens a second over MarianMT's in the same round (20 % and 80 % of rounds)")
    for name in ("encoding", "times MarianMT", "tokens a second"):
        drawn.add_column(name, overflow="fold")
    for row, ratio in measured["times_marian"].items():
        rate = measured["tokens"] / sorted(measured["seconds"][row])[len(measured["seconds"][row]) // 2]
        low, high = sorted((ratio["low"], ratio["high"]))
        drawn.add_row(row, f"{ratio['median']:.2f} ({low:.2f} to {high:.2f})", f"{rate:,.0f}" if absolute else "-")
    for row, difference in measured["wrong"].items():
        drawn.add_row(row, "wrong", difference)
    return drawn


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--size", choices=SIZES, default="base")
    parser.add_argument("--vocab", type=int, default=32768)
    parser.add_argument("--length", type=int, default=32, help="tokens of the longest source")
    parser.add_argument(
        "--shortest", type=float, default=0.5, help="the shortest source's share of that; 1: no padding"
    )
    parser.add_argument("--batch", type=int, default=64, help="sources")
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--encodings", nargs="+", default=list(ENCODINGS))
    parser.add_argument("--parts", nargs="+", choices=("decoding", "training"), default=["decoding", "training"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--minutes", type=float, default=8.0, help="after them no further round begins, after the second"
    )
    parser.add_argument("--cpu", action="store_true", help="on the CPU, though there is a GPU")
    add_record_options(parser)
    return parser.parse_args(arguments)


def main() -> None:
    options = options_of()
    started = time.perf_counter()
    machine = environment(dirty=options.dirty or options.size == "tiny", commit=options.commit)
    bench = Bench(options)
    record: dict[str, Any] = {"options": {**vars(options), "out": str(options.out)}, "device": bench.device.type}

    def tell(text: str) -> None:
        print(f"{time.perf_counter() - started:5.0f} s  {text}", flush=True)

    console = Console()
    for number, part in enumerate(options.parts, start=1):
        until = started + 60 * options.minutes * number / len(options.parts)
        with own_stream(bench.device):
            record[part] = bench.measured(part, until, tell)
        console.print(table(part, record[part], absolute=bench.half))
    record |= {"environment": machine, "seconds": time.perf_counter() - started}
    print(f"wrote {save('translation', record, options.out)}")


if __name__ == "__main__":
    main()
