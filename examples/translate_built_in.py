"""Train a small translator on the built-in language, translate, and score it: with DIET-REL or any other encoding.

    python -m examples.translate_built_in [--encoding diet-rel] [--steps 1200]

The target language puts verbs last, so that who does what to whom is in the order alone. The recipe's 1,200 steps take
a minute or two and translate nearly everything; fewer show the way.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from itertools import islice

from headway.bench.data.translation.parallel import open_parallel
from headway.bench.tasks.translate import Translator, run, score
from headway.bench.tasks.translate.recipes import quick


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--encoding", default="diet-rel", help="a name of `headway list`")
    parser.add_argument("--steps", type=int, default=1200)
    options = parser.parse_args()

    recipe = quick()
    with tempfile.TemporaryDirectory() as folder:
        config = replace(
            recipe,
            model=replace(recipe.model, encoding=options.encoding),
            data=replace(recipe.data, translated=0),
            optimisation=replace(recipe.optimisation, steps=options.steps, warmup=max(1, options.steps // 8)),
        )
        result = run(config, f"{folder}/run", progress=False, cpu=True)
        print(f"{options.encoding}: {result.parameters:,} parameters, loss on dev {result.saved_loss:.3f}")

        translator = Translator.load(f"{result.folder}/model", device="cpu")
        pairs = list(islice(open_parallel(config.data.source, split="test"), 50))  # sentences it has never seen
        found = [best.text for best, *_ in translator.translate([pair.source for pair in pairs], beam=4)]
        scores = score(found, [[pair.target for pair in pairs]])
        print(f"{len(pairs)} test sentences: BLEU {scores.bleu:.1f}, exact {scores.exact_match:.0%}")
        for pair, text in zip(pairs[:3], found, strict=False):
            print(f"  {pair.source}\n  {text}{'' if text == pair.target else f'   (right: {pair.target})'}\n")


if __name__ == "__main__":
    main()
