"""The rule: from numbers to a verdict."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scipy.stats import t as student

from headway.bench.claims.claim import Claim, Contrast
from headway.bench.claims.ledger import CLAIMS, judge_together
from headway.bench.claims.samples import Results, Sample
from headway.bench.claims.settings import Setting, complete_choice
from headway.bench.claims.show import write_finding
from headway.bench.claims.verdicts import judge_claim, judge_contrast

A, B = "rope", "learned"


def samples(name, values, *, measure="bleu", **rest):
    known = {"measure": measure, "setting": Setting.of({"encoding": name}), "source": f"results/{name}"}
    return [Sample(**{**known, "value": value, "unit": f"seed {seed}", **rest}) for seed, value in enumerate(values)]


def results(*parts, errors=None):
    return Results(samples=tuple(sample for part in parts for sample in part), errors=errors or {})


def rounds(*arguments, **rest):
    """Numbers that are paired, as rounds of timing are, and not of models that were trained."""
    return [replace(each, unit=each.unit.replace("seed", "round")) for each in samples(*arguments, **rest)]


def contrast(kind="above", margin=0.5, measure="bleu", **rest):
    return Contrast(better=A, than=B, measure=measure, kind=kind, margin=margin, **rest)


@pytest.mark.parametrize("kind", ["above", "at least"])
def test_less_may_be_what_favours_a_claim(kind):
    numbers = results(samples("rope", [70.0]), samples("learned", [80.0]))
    assert judge_contrast(contrast(kind), numbers).verdict == "contradicted"
    assert judge_contrast(contrast(kind, higher=False), numbers).verdict == "supported"


def test_three_pairs_have_students_interval():
    found = judge_contrast(
        contrast(), results(rounds("rope", [81.0, 82.0, 84.0]), rounds("learned", [80.0, 80.0, 80.0]))
    )
    assert found.judgement.difference == pytest.approx(7 / 3)
    # by hand: differences 1, 2, 4; standard deviation 1.5275; t of 2 degrees of freedom 4.3027
    assert found.judgement.half_width == pytest.approx(4.30265 * 1.527525 / 3**0.5, rel=1e-5)
    assert found.judgement.measured and found.judgement.basis == "95 % interval over 3 rounds"
    assert found.verdict == "not seen"


def test_pairs_are_of_one_round():
    ours = rounds("rope", [80.0, 70.0, 60.0, 99.0])
    found = judge_contrast(contrast(), results(ours, rounds("learned", [78.9, 69.0, 58.9])))
    assert [unit for unit, *_ in found.pairs] == ["round 0", "round 1", "round 2"]
    assert found.verdict == "supported"  # though rounds differ by 20 points


def test_one_seed_has_no_interval_and_must_exceed_the_stated_noise():
    near = judge_contrast(contrast(), results(samples("rope", [80.4]), samples("learned", [80.0])))
    far = judge_contrast(contrast(), results(samples("rope", [80.6]), samples("learned", [80.0])))
    assert (near.verdict, far.verdict) == ("not seen", "supported")
    assert (
        not far.judgement.measured
        and far.judgement.half_width == 0.5
        and far.judgement.basis == "1 seed, no interval; noise band that we state"
    )


def test_seeds_that_differ_by_more_than_stated_widen_the_band():
    others = samples("tisa", [70.0, 73.0])
    found = judge_contrast(contrast(), results(samples("rope", [82.0]), samples("learned", [80.0]), others))
    assert found.judgement.half_width == 3.0 and "seeds of one encoding" in found.judgement.basis
    assert found.verdict == "not seen"


def pretrained(name, by_model, *, block="stsb", **rest):
    """Scores of models that were fine-tuned several times each."""
    return [
        Sample(measure="glue", setting=Setting.of({"encoding": name}), value=value, unit=f"seed {model}.{seed}",
               block=block, merit=-3.0 - model / 100, source=name, **rest)
        for model, values in enumerate(by_model)
        for seed, value in enumerate(values)
    ]  # fmt: skip


def test_fine_tuned_models_are_judged_by_the_deviation_of_pretrainings():
    ours, theirs = pretrained("rope", [[85.0, 85.1, 84.9]]), pretrained("learned", [[80.0, 80.0, 80.0]])
    once = judge_contrast(contrast(measure="glue"), results(ours, theirs))
    assert once.verdict == "not seen" and "what another gives is not known" in once.judgement.basis
    assert "(no interval)" in write_finding(once)
    again = [pretrained(name, [[70.0, 72.0], [77.0, 77.0], [72.0, 74.0]]) for name in ("t5", "tisa")]
    found = judge_contrast(contrast(measure="glue"), results(ours, theirs, *again))
    # by hand: means 71, 77, 73 of each; squares 18.667 a row; 37.333 over 4 degrees of freedom
    deviation = (37.33333 / 4) ** 0.5
    assert found.judgement.half_width == pytest.approx(student.ppf(0.975, 4) * deviation * 2**0.5, rel=1e-4)
    assert found.judgement.measured and "4 degrees of freedom" in found.judgement.basis
    unlike = [pretrained("alibi", [[20.0], [90.0]], recipe="another"), pretrained("shaw", [[1.0], [99.0]], block="rte")]
    assert judge_contrast(contrast(measure="glue"), results(ours, theirs, *again, unlike[1])) == found
    wider = judge_contrast(contrast(measure="glue"), results(ours, theirs, *again, unlike[0]))
    assert wider.judgement.half_width > found.judgement.half_width, "its seeds deviate, whatever its recipe"


def test_more_pretrainings_narrow_the_interval_and_means_of_tasks_have_the_deviation_of_each():
    four = [[70.0], [71.0], [72.0], [71.0]]
    ours, theirs = pretrained("rope", [[each[0] + 9.0] for each in four]), pretrained("learned", four)
    found = judge_contrast(contrast(measure="glue"), results(ours, theirs)).judgement
    deviation = (2 * 2.0 / 6) ** 0.5
    assert found.half_width == pytest.approx(student.ppf(0.975, 6) * deviation * (2 / 4) ** 0.5)
    assert found.verdict == "supported" and "4 models a side" in found.basis
    known = [pretrained(name, [[50.0]] * 4, block="rte") for name in ("rope", "learned")]
    both = judge_contrast(contrast(measure="glue"), results(ours, theirs, *known)).judgement
    assert both.half_width == pytest.approx(found.half_width / 2), "one of two tasks does not deviate"


def test_comparisons_by_one_measure_hold_together():
    four = [[70.0], [71.0], [72.0], [71.0]]
    numbers = results(pretrained("rope", [[each[0] + 3.0] for each in four]), pretrained("learned", four))
    alone, one_of = (judge_contrast(contrast(measure="glue"), numbers, count).judgement for count in (1, 20))
    ratio = student.ppf(1 - 0.05 / 40, 6) / student.ppf(0.975, 6)
    assert one_of.half_width == pytest.approx(alone.half_width * ratio)
    assert "one of 20 that hold together" in one_of.basis and "together" not in alone.basis
    timed = results(rounds("rope", [81.0, 82.0, 84.0]), rounds("learned", [80.0] * 3))
    halves = [judge_contrast(contrast(), timed, count).judgement.half_width for count in (1, 20)]
    assert halves[1] / halves[0] == pytest.approx(student.ppf(1 - 0.05 / 40, 2) / student.ppf(0.975, 2))
    losses = [
        samples(name, [value], measure="loss")
        for name, value in (("learned", 3.0), ("diet-rel", 2.9), ("t5", 2.9), ("learned+tisa", 2.8))
    ]
    entries = judge_together(results(*losses, samples("tisa", [1.0, 1.1, 1.2, 1.3, 1.4], measure="loss")))
    compared = {found.contrast for entry in entries for found in entry.findings if found.judgement is not None}
    together = {found.judgement.basis for entry in entries for found in entry.findings if found.judgement is not None}
    assert len(compared) > 2 and all(f"one of {len(compared)} that" in basis for basis in together)


def test_translations_are_judged_by_the_deviation_of_all_encodings_seeds():
    scores = {"rope": [32.0, 32.1, 31.9], "learned": [30.0, 30.1, 29.9], "t5": [20.0, 22.0]}
    runs = [samples(name, values, block="x") for name, values in scores.items()]
    found = judge_contrast(contrast(), results(*runs, samples("tisa", [1.0, 99.0], block="y"))).judgement
    deviation = ((0.02 + 0.02 + 2.0) / 5) ** 0.5
    assert found.half_width == pytest.approx(student.ppf(0.975, 5) * deviation * (2 / 3) ** 0.5)
    assert found.verdict == "supported" and "3 models a side" in found.basis


def test_two_ways_to_fine_tune_one_pretrained_model_say_nothing_of_another():
    ours, theirs = pretrained("rope", [[85.0, 85.1, 84.9]]), pretrained("learned", [[80.0, 80.0, 80.0]])
    again = pretrained("t5", [[70.0], [77.0]])  # one degree of freedom
    assert judge_contrast(contrast(measure="glue"), results(ours, theirs, again)).verdict == "not seen"


def test_bootstrap_over_sentences_counts_where_it_is_wider():
    pair = [samples(name, [value], measure="bleu", block="x", source=f"s.json: {name}")
            for name, value in (("rope", 32.0), ("learned", 30.0))]  # fmt: skip
    wide = judge_contrast(contrast(measure="bleu"), results(*pair, errors={("rope", "learned", "x"): 2.5}))
    narrow = judge_contrast(contrast(measure="bleu"), results(*pair, errors={("rope", "learned", "x"): 0.1}))
    assert (wide.judgement.half_width, wide.judgement.measured, wide.verdict) == (2.5, True, "not seen")
    assert (narrow.judgement.half_width, narrow.judgement.measured, narrow.verdict) == (0.5, False, "supported")


def test_results_under_an_earlier_name_count_where_there_are_no_others():
    numbers = [samples("diet-rel", [82.0]), samples("learned", [80.0])]
    asked = Contrast(better="rel-scalar", than=B, measure="bleu", margin=0.5)
    assert judge_contrast(asked, results(*numbers)).better == 82.0
    assert judge_contrast(asked, results(*numbers, samples("rel-scalar", [83.0], block=""))).better == 83.0


def test_tasks_that_both_have_are_averaged():
    ours = samples("rope", [80.0, 81.0, 82.0], block="a") + samples("rope", [10.0, 11.0, 12.0], block="b")
    theirs = samples("learned", [70.0, 71.1, 72.0], block="a") + samples("learned", [1.0, 1.0, 1.0], block="c")
    found = judge_contrast(contrast(), results(ours, theirs))
    assert found.blocks == ("a",)
    assert found.better == pytest.approx(81.0)
    both = judge_contrast(contrast(), results(ours, theirs, samples("learned", [9.0, 9.0, 9.0], block="b")))
    assert both.blocks == ("a", "b") and both.better == pytest.approx(46.0)
    assert both.judgement.difference == pytest.approx(((81 - 213.1 / 3) + 2) / 2)


def test_numbers_of_different_configurations_are_not_compared():
    ours, theirs = samples("rope", [99.0], group="long"), samples("learned", [1.0], group="short")
    found = judge_contrast(contrast(), results(ours, theirs))
    assert found.verdict == "not tested" and "not in one configuration" in write_finding(found)
    small = samples("rope", [50.0], group="short", size=1.0)
    found = judge_contrast(contrast(), results(ours, theirs, small))
    assert found.better == 50.0


def test_of_several_groups_the_largest_counts():
    parts = [
        samples(name, [value], group=group, size=size)
        for group, size, values in (("small", 1.0, (90.0, 80.0)), ("large", 9.0, (70.0, 80.0)))
        for name, value in zip(("rope", "learned"), values, strict=True)
    ]
    assert judge_contrast(contrast(), results(*parts)).verdict == "contradicted"


def test_the_rate_is_chosen_by_how_it_trains_not_by_the_outcome():
    slow = samples("tisa", [90.0], rate=1.0, merit=-5.0)
    fast = samples("tisa", [60.0], rate=10.0, merit=-3.0)
    found = judge_contrast(
        Contrast(better="tisa", than=B, measure="bleu"),
        results(slow, fast, samples("learned", [70.0], rate=1.0)),
    )
    assert found.better == 60.0 and found.judgement.verdict == "contradicted"
    assert found.verdict == "not testable" and "not chosen from one grid" in write_finding(found)
    assert "at 1 and 10 times the rate" in found.scale


def test_encodings_that_chose_their_rates_from_one_grid_are_compared():
    asked = Contrast(better="tisa", than=B, measure="bleu")
    for chosen, expected in (((True, True), "contradicted"), ((True, False), "not testable")):
        ours, theirs = (
            samples(name, [value], rate=rate, rate_chosen=own)
            for name, value, rate, own in zip(("tisa", B), (60.0, 70.0), (10.0, 3.0), chosen, strict=True)
        )
        assert judge_contrast(asked, results(ours, theirs)).verdict == expected
    fixed = results(samples("tisa", [60.0], rate=10.0), samples("rope", [70.0]))
    assert judge_contrast(replace(asked, than="rope"), fixed).verdict == "contradicted", "rope has no rate to be given"


def test_relative_measures_are_in_percent_of_the_second_side():
    times = {"rope": [1.1, 2.2, 3.3], "learned": [1.0, 2.0, 3.0]}
    parts = [samples(name, values, measure="training time") for name, values in times.items()]
    found = judge_contrast(contrast("at least", 2.0, "training time"), results(*parts))
    assert found.judgement.difference == pytest.approx(10.0) and found.verdict == "contradicted"


def claim(*contrasts, stand_in=()):
    texts = dict.fromkeys(("key", "says", "paper", "where", "numbers", "scale"), "x")
    return Claim(**texts, contrasts=contrasts, stand_in=stand_in)


def test_a_claim_is_no_better_than_its_worst_part():
    held = contrast()
    absent = Contrast(better="alibi", than=B, measure="bleu")
    turned = Contrast(better=B, than=A, measure="bleu")
    unsure = contrast("above", 50.0)
    numbers = results(samples("rope", [90.0]), samples("learned", [70.0]))
    for parts, expected in (
        ((held,), "supported"),
        ((held, absent), "not tested"),
        ((held, absent, unsure), "not seen"),
        ((held, absent, unsure, turned), "contradicted"),
        ((absent,), "not tested"),
    ):
        assert judge_claim(claim(*parts), numbers).verdict == expected


def test_the_loss_stands_beside_scores_and_in_their_place_while_there_are_none():
    asked = claim(contrast(), stand_in=(contrast(measure="loss", margin=0.01),))
    losses = samples("rope", [3.0], measure="loss") + samples("learned", [4.0], measure="loss")
    entry = judge_claim(asked, results(losses))
    assert (entry.verdict, entry.stood_in) == ("supported", True)
    assert any("headway translate" in command for command in entry.missing)
    for ours, expected in ((90.0, "supported"), (80.1, "not seen"), (70.0, "contradicted")):
        entry = judge_claim(asked, results(losses, samples("rope", [ours]), samples("learned", [80.0])))
        assert (entry.verdict, entry.stood_in) == (expected, False)
        assert [finding.contrast.measure for finding in entry.findings] == ["bleu", "loss"]
    worse = samples("rope", [4.5], measure="loss") + samples("learned", [4.0], measure="loss")
    entry = judge_claim(asked, results(worse, samples("rope", [90.0]), samples("learned", [80.0])))
    assert entry.verdict == "contradicted", "where loss and scores differ, the claim is not supported"
    assert judge_claim(asked, results(samples("rope", [90.0]), samples("learned", [80.0]))).verdict == "supported"
    assert judge_claim(asked, results()).verdict == "not tested"


def test_bad_contrasts_are_refused():
    with pytest.raises(ValueError, match="kind: expected one of above, at least, alike, got 'over'"):
        contrast("over")
    with pytest.raises(ValueError, match=r"measure: expected one of .*glue.*, got 'glu'"):
        contrast(measure="glu")
    with pytest.raises(ValueError, match="margin: expected at least 0, above 0 for 'alike', got 0"):
        contrast("alike", 0.0)


def made(contrasts, *, holds):
    """Results of three seeds that bear every comparison out by far, or the opposite."""
    by_choice: dict = {}

    def place(asked, measure, length):
        setting = Setting(complete_choice(asked.encoding, 64).with_segments(None), asked.attention)
        return by_choice.setdefault((setting, measure, asked.encoding.segments, length), [setting, 0.0])

    for _ in contrasts:  # as often as a chain of comparisons is long
        for each in contrasts:
            sign = (1 if each.favours_more else -1) * (1 if holds else -1)
            asked, other = each.sides
            better = place(asked, each.measure, each.length)
            than = each.than if other is None else place(other, each.than_measure or each.measure, each.length)[1]
            step = 0.0 if each.kind == "alike" and holds else 40.0 * max(each.margin, 1.0)
            if step == 0.0 or sign * (better[1] - than) < step:
                better[1] = than + sign * step
    return Results(
        samples=tuple(
            Sample(measure=measure, setting=setting, value=value + 1000.0 * ("time" in measure), unit=f"seed {n}",
                   segments=segments, length=length, merit=-n / 100, source="s")
            for (_, measure, segments, length), (setting, value) in by_choice.items()
            for n in range(3)
        )
    )  # fmt: skip


PARTS = [(claim, part) for claim in CLAIMS for part in ("contrasts", "stand_in") if getattr(claim, part)]


@pytest.mark.parametrize(("each", "part"), PARTS, ids=lambda value: getattr(value, "key", value))
def test_every_claim_of_the_ledger_can_be_supported_and_contradicted(each, part):
    contrasts = getattr(each, part)
    assert judge_claim(each, made(contrasts, holds=True)).verdict == "supported"
    assert judge_claim(each, made(contrasts, holds=False)).verdict == "contradicted"
    assert judge_claim(each, Results()).verdict == "not tested"
    assert judge_claim(each, Results()).missing


def test_keys_are_distinct_and_every_claim_says_where_it_stands():
    assert len({claim.key for claim in CLAIMS}) == len(CLAIMS) >= 20
    for each in CLAIMS:
        assert each.says and each.paper and each.where and each.numbers and each.scale and each.contrasts


def test_scores_of_a_model_that_has_hardly_begun_to_learn_do_not_count():
    def found(merit, name="learned"):
        ours = pretrained("rope", [[85.0], [85.1], [84.9]])
        theirs = [replace(each, merit=each.merit + 3.0 + merit) for each in pretrained(name, [[80.0], [80.0], [80.0]])]
        asked = Contrast(better="rope", than=name, measure="glue", margin=0.5)
        return judge_contrast(asked, results(ours, theirs))

    assert found(-4.9).verdict == "supported" and "(losses 3.01, 4.91)" in write_finding(found(-4.9))
    assert found(-5.4).verdict == "not testable"
    assert "learned had not left the plateau of pretraining (loss 5.41, above 5)" in write_finding(found(-5.4))
    assert found(-5.4).judgement.difference == pytest.approx(5.0)  # is shown
    assert found(-6.1, "none").verdict == "supported"  # that is what a model without positions is


def test_an_interval_over_heads_is_widened_by_what_is_stated_for_two_models():
    heads = [Sample(measure="head r2 without [CLS]", setting=Setting.of({"encoding": "rope"}), value=value,
                    unit=f"seed 0, head 0.{head}", source="x")
             for head, value in enumerate([0.60, 0.61, 0.59, 0.60])]  # fmt: skip
    found = judge_contrast(Contrast(better="rope", than=0.5, measure="head r2 without [CLS]"), results(heads)).judgement
    assert 0.05 < found.half_width < 0.06 and "4 heads of one model" in found.basis


def test_costs_of_one_length_are_compared_alone():
    def rounds(name, seconds):
        found = []
        for length, value in seconds.items():
            found += samples(name, [value] * 3, measure="training time", block=f"m, n = {length}", length=length)
        return found

    numbers = results(rounds("rope", {128: 10.0, 512: 11.0}), rounds("learned", {128: 10.0, 512: 10.0}))
    for length, percent in ((128, 0.0), (512, 10.0), (None, 5.0)):
        asked = contrast("at least", 2.0, "training time", length=length)
        assert judge_contrast(asked, numbers).judgement.difference == pytest.approx(percent)
