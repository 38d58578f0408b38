"""Where should position go? Three tiny encoders on the built-in language: no position, learned at the input, DIET-REL.

    python -m examples.compare_encodings [--steps 700] [--encodings none learned diet-rel] [--out runs/compare]

Each model learns to fill in masked words. The test asks for one masked verb: its singular or its plural form? The verb
agrees with the head of its subject, often across a noun of the other number, so that the answer is in the word order:
a model that sees a bag of words cannot know it. One seed, about two minutes on two cores: an illustration, not a study.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor, nn

import headway as hw
from headway.bench.data import Language, Sentence

PAD, MASK = 0, 1
LAYERS, HEADS, HEAD_DIM, WIDTH = 2, 4, 16, 64


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.feed_forward = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor, index: int, encoding: nn.Module, lengths: Tensor) -> Tensor:
        size = x.shape[1]
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, HEAD_DIM)).permute(2, 0, 3, 1, 4)
        q, k = encoding.rotate(q, k, layer=index)
        mixed = hw.attention(
            q,
            k,
            v,
            bias=encoding.bias(index, size, size),
            value_bias=encoding.value_bias(index, size, size),
            lengths=lengths,
            scale=encoding.scale,
        )
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.feed_forward(self.norm2(x))


class Encoder(nn.Module):
    """A pre-norm encoder: position enters only through the four methods of its encoding."""

    def __init__(self, name: str, vocabulary: int) -> None:
        super().__init__()
        self.encoding = hw.encoding(name, num_layers=LAYERS, num_heads=HEADS, head_dim=HEAD_DIM, max_length=64)
        self.words = nn.Embedding(vocabulary, WIDTH)
        nn.init.normal_(self.words.weight, std=0.1)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        x = self.encoding.embed(self.words(tokens))
        for index, layer in enumerate(self.layers):
            x = layer(x, index, self.encoding, lengths)
        return self.norm(x) @ self.words.weight.T


class Data:
    """Padded batches of sentences with some words masked."""

    def __init__(self, seed: int) -> None:
        self.language = Language(seed=seed, max_depth=1, nouns=12, verbs=6, intransitives=3, adjectives=4)
        self.ids = {word: index + 2 for index, word in enumerate(self.language.vocabulary)}

    def batch(self, sentences: list[Sentence]) -> tuple[Tensor, Tensor]:
        lengths = torch.tensor([len(s.words) for s in sentences])
        tokens = torch.full((len(sentences), int(lengths.max())), PAD)
        for row, sentence in zip(tokens, sentences, strict=True):
            row[: len(sentence.words)] = torch.tensor([self.ids[word] for word in sentence.words])
        return tokens, lengths

    def masked(self, sentences: list[Sentence], generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs, lengths and targets (PAD where nothing is asked): 15 % of all words and half of the main verbs."""
        tokens, lengths = self.batch(sentences)
        chosen = (torch.rand(tokens.shape, generator=generator) < 0.15) & (tokens != PAD)
        verbs = torch.tensor([s.main.verb for s in sentences])
        chosen[torch.arange(len(sentences)), verbs] |= torch.rand(len(sentences), generator=generator) < 0.5
        return tokens.masked_fill(chosen, MASK), lengths, tokens.masked_fill(~chosen, PAD)


def train(model: Encoder, data: Data, steps: int, batch: int, seed: int, progress: Progress) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=steps, pct_start=0.1)
    generator = torch.Generator().manual_seed(seed)
    stream = data.language.sentences(steps * batch, seed=seed + 1)
    bar = progress.add_task(f"{model.encoding.name:>12}", total=steps)
    for _ in range(steps):
        tokens, lengths, targets = data.masked([next(stream) for _ in range(batch)], generator)
        loss = F.cross_entropy(model(tokens, lengths).flatten(0, 1), targets.flatten(), ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        progress.advance(bar)


@torch.no_grad()
def evaluate(model: Encoder, data: Data, seed: int) -> dict[str, float]:
    """How often the right form of the masked main verb gets the higher score, by kind of sentence."""
    sentences = list(data.language.sentences(3000, seed=seed + 2))
    right = []
    for start in range(0, len(sentences), 500):
        part = sentences[start : start + 500]
        tokens, lengths = data.batch(part)
        rows, verbs = torch.arange(len(part)), torch.tensor([s.main.verb for s in part])
        answer = tokens[rows, verbs]
        other = torch.tensor([data.ids[data.language.other_number(s.words[s.main.verb])] for s in part])
        tokens[rows, verbs] = MASK
        scores = model(tokens, lengths)[rows, verbs]
        right.append(scores[rows, answer] > scores[rows, other])
    correct = torch.cat(right).float()
    attracted = torch.tensor([s.main.attracted for s in sentences])
    return {"all": correct.mean().item(), "attracted": correct[attracted].mean().item()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--encodings", nargs="+", default=["none", "learned", "diet-rel"], metavar="NAME")
    parser.add_argument("--steps", type=int, default=700)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/compare"))
    options = parser.parse_args()

    data = Data(options.seed)
    results = []
    with Progress() as progress:
        for name in options.encodings:
            torch.manual_seed(options.seed)
            model = Encoder(name, len(data.ids) + 2)
            start = time.perf_counter()
            train(model, data, options.steps, options.batch, options.seed, progress)
            seconds = time.perf_counter() - start
            own = sum(p.numel() for p in model.encoding.parameters())
            scores = evaluate(model, data, options.seed)
            results.append({"encoding": name, "position parameters": own, **scores, "training seconds": seconds})

    table = Table(title="Right form of a masked verb (chance 50 %)", caption=f"one seed ({options.seed})")
    for column in ("encoding", "position parameters", "all verbs", "across a noun of the other number", "training"):
        table.add_column(column, justify="left" if column == "encoding" else "right")
    for r in results:
        table.add_row(
            r["encoding"],
            f"{r['position parameters']:,}",
            f"{r['all']:.1%}",
            f"{r['attracted']:.1%}",
            f"{r['training seconds']:.0f} s",
        )
    Console().print(table)
    options.out.mkdir(parents=True, exist_ok=True)
    settings = {key: str(value) if isinstance(value, Path) else value for key, value in vars(options).items()}
    record = {"settings": settings, "torch": torch.__version__, "machine": platform.processor(), "results": results}
    path = options.out / "result.json"
    path.write_text(json.dumps(record, indent=2) + "\n")
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
