"""Endpointing measured and fitted: ``python -m benchmarks.endpointing [--set real|spliced]``.

After the protocol of eot-bench, offline, on the audio clock: the frontier of cut turns against mean
decision latency, for VoiceLoop's endpointing, the fixed timer and Smart Turn v3.2, on the same
turns, voice detector and pauses. The real set holds the pauses that people made by themselves; the
spliced one hesitations between any two words. Transcript sources are reported apart: the true words
as a good recognizer would give them ("reference"), and those of the recognizers in packages.
Figures do not depend on the machine's load, and do not compare with eot-bench's own: these are
other sets.

``--fit`` fits the weights on the speakers of the fit parts and writes them to
``voiceloop/listening/endpointing_weights.toml``; run it again for another checkpoint of the agent.
``--fit-own`` fits those of another language than English where the model that answers has no
end-of-turn head, with the P(end) that ``--model`` tells of true words; ``--unread`` measures so.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from audio.errors import AudioError
from benchmarks.endpointing.figures import measure
from benchmarks.endpointing.hearing import MADE, SETS, SOURCES, Hearing, SetName, Source
from benchmarks.endpointing.table import bars_of, print_table
from benchmarks.harness.command_line import Benchmark, run
from benchmarks.harness.data_folder import OF_TURNS, data_with
from clients.outputs import check_file
from clients.provenance import provenance
from voiceloop.listening.endpointing import FITTED, UNREAD_P_END
from voiceloop.listening.endpointing import SETS as WITNESSES
from voiceloop.listening.recipes.caller_past import in_calls
from voiceloop.listening.recipes.end_probability import EndProbability
from voiceloop.listening.recipes.hazard_fit import samples_of, unread
from voiceloop.listening.recipes.operating_points import (
    as_toml,
    costs,
    fit_sets,
    fit_unread_p_end,
    section,
)
from voiceloop.listening.recipes.voice_reading import VoiceReading

ROOT = Path(__file__).resolve().parents[2]
WEIGHTS = ROOT / "voiceloop" / "listening" / "endpointing_weights.toml"
AGENT = ROOT / "engine" / "embedded" / "agent"
FITTED_ON: tuple[Source, ...] = ("reference", "moonshine")


def fit_weights(hearing: Hearing) -> str:
    """The weights file, fitted on both sets, by true words and the embedded recognizer's."""
    # Spliced voices were not going to stop where they are cut: of them only the words are asked.
    words_alone = replace(hearing, voice=None)
    hearings = {"real": hearing, "spliced": words_alone}
    turns = [
        turn
        for name in SETS
        for source in FITTED_ON
        for turn in in_calls(hearings[name].turns(name, "fit", source))
    ]
    checkpoint = "none" if hearing.ask_end is None else hearing.ask_end.checkpoint
    n_samples = len(samples_of(turns, WITNESSES["words"]).over)
    sets = fit_sets(turns)
    comment = (
        "Written by `python -m benchmarks.endpointing --fit`; what each weight means stands in",
        "voiceloop/listening/evidence.py (`terms`). Not to be edited by hand.",
        f"agent checkpoint: {checkpoint}; {len(turns)} turns, {n_samples} moments.",
        "Of the fit's own turns each eagerness cuts, and after the rest it waits (median):",
        *costs(turns, sets),
        "The same turns, as if their words were of a language that nobody reads:",
        *costs(unread(turns), replace(sets, unread_p_end=None)),
        f"date: {provenance()['date']}",
    )
    return as_toml(sets, comment)


def own_weights(hearing: Hearing) -> str:
    """The section of the weights file for the P(end) of a model without a head, by true words."""
    turns = [turn for name in SETS for turn in in_calls(hearing.turns(name, "fit", "reference"))]
    return section(UNREAD_P_END, fit_unread_p_end(turns))


def main() -> int:
    command = Benchmark(
        "endpointing",
        "Turns cut against decision latency, for VoiceLoop's endpointing, a fixed timer and Smart "
        "Turn, offline on the shared data (VOICELOOP_DATA); or fit the weights. A run that is "
        "interrupted writes nothing.",
    )
    command.switch("--fit", f"fit the weights and write {WEIGHTS.name} instead")
    command.switch("--fit-own", f"fit [{UNREAD_P_END}] alone, of a --model without a head")
    command.switch("--unread", "hear the turns as in a language of which no list knows a word")
    told = "pauses that people made, spliced hesitations (default: both), a made voice's dictation"
    command.several("--set", (*SETS, MADE), told, dest="sets")
    told = "whose words (default: reference, the true ones, and moonshine)"
    command.several("--source", SOURCES, told, dest="sources")
    command.parser.add_argument(
        "--model", type=Path, metavar="PATH", default=AGENT,
        help="who tells the end-of-turn probability: a folder or a GGUF file (default: the "
        "embedded agent)",
    )  # fmt: skip
    command.switch("--no-p-end", "do without the end-of-turn probability")
    command.switch("--no-p-voice", "do without the recognizer's judgement of voices")
    command.switch("--no-peer", "leave Smart Turn out")
    chosen = command.parse()
    arguments = command.parser
    sets: list[SetName] = chosen.sets or list(SETS)
    sources: list[Source] = chosen.sources or list(FITTED_ON)
    if chosen.check and chosen.fit:
        arguments.error("--check: expected --fit without it: bars are of weights that stand")
    if chosen.fit or chosen.fit_own:
        check_file(WEIGHTS)
    ask_end = voice = None
    if not chosen.no_p_end:
        if not chosen.model.is_file() and not (chosen.model / "config.json").is_file():
            arguments.error(
                f"--model: expected a model in {chosen.model}, found no file and no config.json "
                "(--no-p-end does without)"
            )
        ask_end = EndProbability(chosen.model)
    if not chosen.no_p_voice:
        try:
            voice = VoiceReading()
        except AudioError as error:
            arguments.error(f"{error} (--no-p-voice does without)")
    hearing = Hearing(data_with(*OF_TURNS), ask_end, voice)
    if chosen.fit:
        WEIGHTS.write_text(fit_weights(hearing), encoding="utf-8")
        print(WEIGHTS.read_text(encoding="utf-8"))
        return 0
    if chosen.fit_own:
        before = WEIGHTS.read_text(encoding="utf-8").partition(f"\n[{UNREAD_P_END}.")[0]
        WEIGHTS.write_text(before + own_weights(hearing), encoding="utf-8")
        print(WEIGHTS.read_text(encoding="utf-8").removeprefix(before))
        return 0
    measured: dict[str, Any] = {}
    bars = []
    for name in sets:
        for source in sources:
            heard = hearing.turns(name, "test", source)
            if chosen.unread:
                heard = unread(heard)
            found = measure(heard, FITTED, name, peer=not chosen.no_peer)
            print_table(f"{name}, {source}", found)
            bars += bars_of(found, name, source)
            measured[f"{name}, {source}"] = found
    settings = {
        "checkpoint": ask_end.checkpoint if ask_end else None,
        "p_voice": voice is not None,
        "unread": chosen.unread,
        "sets": sets,
        "sources": sources,
    }
    return command.finish(settings, bars, **measured)


if __name__ == "__main__":
    sys.exit(run(main))
