"""The built-in language and its verb-final counterpart: solved by a model that sees order, and by no other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.bench.data.translation.parallel import open_parallel
from headway.bench.tasks.translate import Translator, run, score
from headway.bench.tasks.translate.recipes import quick


@pytest.mark.slow
@pytest.mark.parametrize(("encoding", "solves"), [("diet-rel", True), ("none", False)])
def test_the_quick_recipe_translates_exactly_unless_it_sees_no_order(tmp_path, encoding, solves):
    config = quick()
    config = replace(config, model=replace(config.model, encoding=encoding))
    run(config, tmp_path / "run")
    test = list(open_parallel(config.data.source, split="test"))
    translator = Translator.load(tmp_path / "run" / "model", device="cpu")
    found = [best[0].text for best in translator.translate([pair.source for pair in test])]
    exact = score(found, [[pair.target for pair in test]]).exact_match
    assert exact > 0.99 if solves else exact < 0.5
