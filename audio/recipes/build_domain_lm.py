"""Builds the embedded recognizer's dictionary and language model.

    python -m audio.recipes.build_domain_lm --data DIR [--out audio/embedded/recognizer]

Writes domain.dict and domain.lm.bin (orders, bookings, small talk). Text: user turns of the
training splits, and generated phrases.
"""

import argparse
import json
import os
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pocketsphinx

from ..asr.pocketsphinx_decoder import CLASS_TOKEN, EMBEDDED, UNSPOKEN
from ..normalize import spoken_words
from ..pronunciation import pronounce
from .phrases import generate_phrases
from .trigram import TrigramModel, build_trigram, write_arpa
from .user_turns import SOURCE_WEIGHTS, read_user_turns

N_WORDS = 6_500  # more words cost accuracy and time; what is rarer than this is rarely heard right
MIN_COUNT = 4
N_PHRASES = 150_000
PHRASE_WEIGHT = 1.5  # of a generated sentence, as SOURCE_WEIGHTS are of a turn
HELD_OUT_WORDS = 4  # shorter sentences ("yes please") are nobody's
SEED = 7

# Said otherwise than the CMU dictionary or espeak's rules tell.
PRONUNCIATIONS: dict[str, tuple[str, ...]] = {
    "am": ("AE M", "EY EH M"),
    "matcha": ("M AA CH AH",),
    "macchiato": ("M AA K IY AA T OW",),
    "latte": ("L AA T EY", "L AE T EY", "L AE T"),  # the third is flite's
    "lattes": ("L AA T EY Z", "L AE T EY Z", "L AE T S"),
    "uh": ("AH",),
    "um": ("AH M",),
    "hmm": ("HH M", "M"),
    CLASS_TOKEN: (UNSPOKEN,),
}
# Too short or too rare to be heard as a word of their own; they only steal time from others.
UNWANTED = frozenset(
    "ll ve re em th st nd er ed b c d e f g h j k l m n p q r s t u v w x y z".split()
)

Sentences = list[tuple[Sequence[str], float]]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    default = os.environ.get("VOICELOOP_DATA", "../shared/data")
    parser.add_argument("--data", type=Path, default=Path(default), help="folder with dialogues/")
    parser.add_argument("--out", type=Path, default=EMBEDDED)
    parser.add_argument(
        "--held-out",
        type=Path,
        default=Path("clients/call/call.toml"),
        help="TOML file whose `text` values must not be sentences of the model",
    )
    options = parser.parse_args(arguments)
    held_out = read_held_out(options.held_out)

    turns = [
        (words, SOURCE_WEIGHTS[source]) for source, words in read_user_turns(options.data, "train")
    ]
    phrases = [(words, PHRASE_WEIGHT) for words in generate_phrases(N_PHRASES, SEED)]
    sentences: Sentences = [
        sentence for sentence in (*turns, *phrases) if tuple(sentence[0]) not in held_out
    ]

    pronunciations = choose_vocabulary(sentences, {w for words, _ in phrases for w in words})
    domain = build_trigram(
        sentences, frozenset(pronunciations), min_bigram=0.6, min_trigram=1.2, prune=1.2
    )

    options.out.mkdir(parents=True, exist_ok=True)
    write_dictionary(pronunciations, options.out / "domain.dict")
    write_binary(domain, options.out / "domain.lm.bin")
    report(options.data, options.out, domain)


def read_held_out(path: Path) -> set[tuple[str, ...]]:
    """Spoken words of each sentence of at least HELD_OUT_WORDS under a `text` key of the file."""
    found: set[tuple[str, ...]] = set()

    def collect(value: object) -> None:
        match value:
            case {"text": str(text), **rest}:
                for sentence in (text, *re.split(r"[.?!]", text)):
                    if len(words := spoken_words(sentence)) >= HELD_OUT_WORDS:
                        found.add(tuple(words))
                collect(rest)
            case dict():
                collect(list(value.values()))
            case list():
                for element in value:
                    collect(element)

    collect(tomllib.loads(path.read_text()))
    return found


def choose_vocabulary(
    sentences: Iterable[tuple[Sequence[str], float]], always: set[str]
) -> dict[str, tuple[str, ...]]:
    """Pronunciations of the N_WORDS words that count most, and of all in `always`."""
    weights: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for words, weight in sentences:
        counts.update(words)
        for word in words:
            weights[word] += weight  # type: ignore[assignment]
    common = [w for w, _ in weights.most_common() if counts[w] >= MIN_COUNT and w not in UNWANTED]
    wanted = always | set(common[:N_WORDS]) | set(PRONUNCIATIONS)
    wheel = Path(pocketsphinx.get_model_path("en-us")) / "cmudict-en-us.dict"
    known = pronounce(sorted(wanted - set(PRONUNCIATIONS)), wheel)
    return dict(sorted((known | PRONUNCIATIONS).items()))


def write_dictionary(pronunciations: dict[str, tuple[str, ...]], path: Path) -> None:
    """Lines "word phones", the second pronunciation as word(2)."""
    with path.open("w") as out:
        for word, alternatives in pronunciations.items():
            for index, phones in enumerate(dict.fromkeys(alternatives), start=1):
                out.write(f"{word}{f'({index})' if index > 1 else ''} {phones}\n")


def write_binary(model: TrigramModel, path: Path) -> None:
    """pocketsphinx's own quantized form, a fifth of the ARPA text's size."""
    with TemporaryDirectory() as folder:
        arpa = Path(folder) / "model.arpa"
        write_arpa(model, arpa)
        decoder = pocketsphinx.Decoder(lm=None, loglevel="FATAL")
        read = pocketsphinx.NGramModel(decoder.config, decoder.logmath, str(arpa))
        read.write(str(path), pocketsphinx.NGramModel.str_to_type("bin"))


def report(data: Path, out: Path, model: TrigramModel) -> None:
    """Sizes and perplexity on the validation turns, to the terminal and to figures.json."""
    valid: dict[str, list[list[str]]] = {}
    for source, words in read_user_turns(data, "valid"):
        valid.setdefault(source, []).append(words)
    known = model.probabilities[0]
    figures = {
        "n_words": len(known) - 2,
        "n_bigrams": len(model.probabilities[1]),
        "n_trigrams": len(model.probabilities[2]),
        "bytes": {p.name: p.stat().st_size for p in sorted(out.glob("d*.*"))},
        "perplexity": {s: round(model.perplexity(turns), 1) for s, turns in valid.items()},
        "out_of_vocabulary_percent": {
            s: round(
                100 * sum((w,) not in known for t in turns for w in t) / sum(map(len, turns)), 2
            )
            for s, turns in valid.items()
        },
    }
    (out / "figures.json").write_text(json.dumps(figures, indent=1) + "\n")
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
