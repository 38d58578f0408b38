"""The words models are fed."""

import torch
from torch.testing import assert_close

from headway.bench.cost.batch import MASK, Words
from headway.models import EncoderForMaskedLM, preset


def drawn(**changes):
    return Words.drawn(**{"batch": 3, "length": 40, "vocabulary": 2000, "seed": 5, "device": "cpu", **changes})


def test_fifteen_percent_of_every_sequence_are_masked():
    words = drawn()
    assert ((words.input_ids == MASK).sum(1) == 6).all()  # 15 % of 40
    assert (words.input_ids.gather(1, words.columns) == MASK).all()
    assert (words.answers != MASK).all()


def test_the_same_seed_draws_the_same():
    assert torch.equal(drawn().input_ids, drawn().input_ids)
    assert not torch.equal(drawn().input_ids, drawn(seed=6).input_ids)


def test_both_forms_of_labels_ask_the_same():
    torch.manual_seed(0)
    words = drawn()
    model = EncoderForMaskedLM(preset("tiny", vocab_size=2000, encoding="learned")).eval()
    seen = words.seen(segments=False)
    few, everywhere = model(**seen, **words.at_masked_places()), model(**seen, **words.at_all_places())
    assert_close(few.loss, everywhere.loss)
    assert few.logits.shape == (18, 2000)


def test_first_sequences_keep_their_words_and_answers():
    words, few = drawn(), drawn().first(2)
    assert torch.equal(few.input_ids, words.input_ids[:2])
    assert torch.equal(few.at_masked_places()["labels"], words.at_masked_places()["labels"][:12])


def test_segments_halve_a_sequence():
    ids = drawn().seen(segments=True)["token_type_ids"]
    assert ids.shape == (3, 40)
    assert (ids[:, :20] == 0).all() and (ids[:, 20:] == 1).all()
