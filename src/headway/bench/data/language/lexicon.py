"""The words of the built-in language: lemmas, their inflected forms, and the invention of new ones.

Content words are English while the lists last and pronounceable inventions beyond them. Every written form
belongs to one lemma and one category, so a word alone tells what it is, and only its place what it does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple, TypeVar


def _listed(words: str) -> tuple[str, ...]:
    return tuple(words.split())


# Regular words only: plural nouns and singular verbs add "s".
# Nouns and adjectives begin with a consonant, so "a" never becomes "an".
NOUNS = _listed(
    """
    baker banker barber bear bird boy brother butcher captain cat clown dancer doctor dog donkey dragon
    driver farmer gardener girl goat guard guest horse hunter judge king knight lawyer lion lizard
    monkey neighbor nurse painter parrot pigeon pilot pirate player plumber poet prince queen rabbit
    robot sailor singer sister soldier spider stranger student tailor teacher tiger turtle wizard worker
    writer
    """
)
TRANSITIVES = _listed(
    """
    accuse admire amuse annoy attack blame bother call chase comfort defend delight disturb escort fear
    follow fool frighten greet hate help ignore insult inspire invite join kick like love mention mock
    need obey observe offend persuade please praise protect pursue remember rescue respect scare serve
    support surprise tease thank trust value visit want warn welcome
    """
)
INTRANSITIVES = _listed(
    """
    arrive cough dance jump laugh listen run shout sing sleep smile sneeze stumble swim travel tremble
    wait wander whisper work yawn
    """
)
ADJECTIVES = _listed(
    """
    big blind brave calm clever famous gentle happy hungry kind lazy loud nervous pale polite poor proud
    quiet rich round rude sad short shy small strong tall tiny tired weak wise young
    """
)
REPORTS = ("claim", "hope", "know", "say", "suspect", "think")
PREPOSITIONS = ("above", "around", "behind", "below", "beside", "near", "under", "with")

T = TypeVar("T")


class Token(NamedTuple):
    """A written word with what the grammar knows about it.

    Category is one of determiner, adjective, noun, preposition, transitive, intransitive, report, participle,
    auxiliary, function or punctuation. `plural` is None where number does not show.
    """

    word: str
    lemma: str
    category: str
    plural: bool | None = None


FUNCTION_TOKENS = (
    Token("the", "the", "determiner"),
    Token("a", "a", "determiner", False),
    Token("some", "a", "determiner", True),
    Token("is", "be", "auxiliary", False),
    Token("are", "be", "auxiliary", True),
    Token("and", "and", "function"),
    Token("by", "by", "function"),
    Token("that", "that", "function"),
    Token("who", "who", "function"),
    Token(".", ".", "punctuation"),
    Token("?", "?", "punctuation"),
)


@dataclass(frozen=True, slots=True, eq=False)
class Lexicon:
    """Lemmas by category, and the token of each (lemma, plural)."""

    nouns: tuple[str, ...]
    transitives: tuple[str, ...]
    intransitives: tuple[str, ...]
    reports: tuple[str, ...]
    adjectives: tuple[str, ...]
    prepositions: tuple[str, ...]
    tokens: dict[tuple[str, bool | None], Token]
    participles: dict[str, Token]

    def words(self) -> set[str]:
        """Return every written form, punctuation included."""
        return {token.word for table in (self.tokens, self.participles) for token in table.values()}


def pick(rng: Random, items: Sequence[T]) -> T:
    """Draw an item uniformly. Only `random()` is used, whose values are the same in every Python version."""
    return items[int(rng.random() * len(items))]


def shuffled(rng: Random, items: Sequence[T]) -> list[T]:
    """Return the items in random order, which is the same in every Python version."""
    keys = [rng.random() for _ in items]
    return [items[at] for at in sorted(range(len(items)), key=keys.__getitem__)]


def invent(rng: Random, taken: set[str], forms: Callable[[str], Sequence[str]], endings: Sequence[str]) -> str:
    """Invent a pronounceable stem none of whose forms is in `taken`, and add its forms there."""
    while True:
        syllables = 2 if rng.random() < 0.7 else 3
        stem = "".join(pick(rng, "bdfgklmnprtvz") + pick(rng, "aeiou") for _ in range(syllables)) + pick(rng, endings)
        words = forms(stem)
        if taken.isdisjoint(words):
            taken.update(words)
            return stem


def build_lexicon(
    rng: Random, *, nouns: int, verbs: int, intransitives: int, adjectives: int, invented: bool
) -> Lexicon:
    """Choose that many lemmas of each kind and inflect them; `invented` makes up all words."""
    taken = {token.word for token in FUNCTION_TOKENS} | set(PREPOSITIONS) | set(ADJECTIVES)
    taken.update(form for noun in NOUNS for form in _noun_forms(noun))
    taken.update(form for verb in (*TRANSITIVES, *INTRANSITIVES, *REPORTS) for form in _verb_forms(verb))

    def choose(listed: Sequence[str], count: int, forms: Callable[[str], Sequence[str]]) -> tuple[str, ...]:
        known = [] if invented else shuffled(rng, listed)[:count]
        return (*known, *(invent(rng, taken, forms, "bdgklmnprt") for _ in range(count - len(known))))

    chosen = {
        "nouns": choose(NOUNS, nouns, _noun_forms),
        "transitives": choose(TRANSITIVES, verbs, _verb_forms),
        "intransitives": choose(INTRANSITIVES, intransitives, _verb_forms),
        "reports": choose(REPORTS, len(REPORTS), _verb_forms),
        "adjectives": choose(ADJECTIVES, adjectives, lambda stem: (stem,)),
        "prepositions": PREPOSITIONS,
    }
    return Lexicon(
        **chosen,
        tokens=_tokens(chosen),
        participles={verb: Token(_verb_forms(verb)[2], verb, "participle") for verb in chosen["transitives"]},
    )


def _noun_forms(stem: str) -> tuple[str, str]:
    return stem, stem + "s"


def _verb_forms(stem: str) -> tuple[str, str, str]:
    return stem + "s", stem, stem + ("d" if stem.endswith("e") else "ed")


def _tokens(chosen: dict[str, tuple[str, ...]]) -> dict[tuple[str, bool | None], Token]:
    tokens = list(FUNCTION_TOKENS)
    for kind, lemmas in chosen.items():
        category = kind[:-1]
        for lemma in lemmas:
            if kind == "nouns":
                singular, plural = _noun_forms(lemma)
            elif kind in ("transitives", "intransitives", "reports"):
                singular, plural, _ = _verb_forms(lemma)
            else:
                tokens.append(Token(lemma, lemma, category))
                continue
            tokens += [Token(singular, lemma, category, False), Token(plural, lemma, category, True)]
    return {(token.lemma, token.plural): token for token in tokens}
