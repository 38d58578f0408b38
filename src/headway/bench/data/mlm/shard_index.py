"""What is written beside shards and checked when they are opened: an index with sizes and checksums, the tokenizer."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.bench.data.text.tokenizers import highest_id
from headway.storage import config_hash, read_json

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

FORMAT = 1
SPLITS = ("train", "validation")
PADDING = -1  # document id of padding
# Tells tokenizers of one vocabulary apart: case, accents, white space, punctuation, numbers, scripts, marks.
PROBE = (
    "The Übergröße of naïve  I'M (U.S.A.), 3.14 & 1,000! don't… "
    "東京都の天気は。 Ελλάδα русский हिन्दी العربية ไทย 한국어 ﬁ ½ ☃"
)


def read_index(folder: Path) -> dict[str, Any]:
    """The index of finished shards."""
    if not (folder / "index.json").exists():
        built = folder.exists() and any(folder.glob("shard-*"))
        raise FileNotFoundError(
            f"{folder}: expected index.json, got "
            + ("a build that did not finish. Run it again: it goes on." if built else "none. Run build_shards first.")
        )
    index = read_json(folder / "index.json")
    if index.get("format") != FORMAT:
        raise ValueError(f"{folder}/index.json: expected format {FORMAT}, got {index.get('format')}. Build them again.")
    return dict(index)


def check_files(folder: Path, shard: dict[str, Any], *, verify: bool) -> None:
    """Raise unless the shard is there, with the sizes, and if asked the checksums, that were recorded."""
    for name, facts in shard["files"].items():
        path = folder / shard["name"] / name
        again = f"Remove {folder} and build the shards again."
        if not path.exists():
            raise FileNotFoundError(f"{path}: expected {facts['bytes']} bytes, got no such file. {again}")
        if path.stat().st_size != facts["bytes"]:
            raise ValueError(f"{path}: expected {facts['bytes']} bytes, got {path.stat().st_size}. {again}")
        if verify and (found := checksum(path)) != facts["sha256"]:
            raise ValueError(f"{path}: expected SHA-256 {facts['sha256']}, got {found}. It has changed. {again}")


def checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def tokenizer_facts(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """What shards depend on, recorded with them. The hash is over the vocabulary and how a probe is cut.

    Numbers that no token has, which some vocabularies leave between, are among the special ids: no part of a text.
    """
    specials = {name: getattr(tokenizer, f"{name}_token_id", None) for name in ("pad", "unk", "cls", "sep", "mask")}
    missing = [name for name, value in specials.items() if value is None]
    if missing or not getattr(tokenizer, "is_fast", False):
        wanted = "a fast tokenizer with pad, unk, cls, sep and mask tokens"
        got = f"one without {', '.join(missing)}" if missing else type(tokenizer).__name__
        raise ValueError(f"tokenizer: expected {wanted}, got {got}. Train one with headway.bench.data.train_tokenizer.")
    if len(set(specials.values())) < len(specials):
        raise ValueError(
            f"tokenizer: expected five tokens for pad, unk, cls, sep and mask, got one for several: {specials}. "
            f"Give each its own, with tokenizer.add_special_tokens."
        )
    cut = plain_backend(tokenizer).encode(PROBE, add_special_tokens=False).ids
    vocabulary = tokenizer.get_vocab()
    vocab_size = highest_id(tokenizer) + 1
    return {
        "hash": config_hash({"vocabulary": vocabulary, "specials": specials, "probe": cut}),
        "vocab_size": vocab_size,
        "specials": specials,
        "special_ids": sorted({*tokenizer.all_special_ids, *(set(range(vocab_size)) - set(vocabulary.values()))}),
    }


def plain_backend(tokenizer: PreTrainedTokenizerFast) -> Tokenizer:
    """A copy that cuts text alone: nothing is cut off or padded, and names of special tokens in the text are text."""
    from tokenizers import Tokenizer

    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = True
    return backend


def check_tokenizer(recorded: dict[str, Any], asked: dict[str, Any], folder: Path) -> None:
    if recorded["hash"] != asked["hash"]:
        raise ValueError(
            f"tokenizer: expected the one the shards in {folder} were made with (hash {recorded['hash']}, "
            f"{recorded['vocab_size']} tokens), got hash {asked['hash']}, {asked['vocab_size']} tokens. "
            f"Load that one, or build shards for this one."
        )
