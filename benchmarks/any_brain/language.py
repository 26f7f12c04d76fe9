"""A call in German: sentences that espeak-ng reads, true words, the agent's language set.

No English word list, head or slot may judge these turns: voice activity, silence and pace do. The
clips end where their waveform does; each fourth is read by another of espeak-ng's timbres.
"""

from __future__ import annotations

import tempfile
from itertools import cycle
from pathlib import Path

import numpy as np

from audio.espeak_library import Timbre, load_espeak
from audio.frames import RECOGNIZER_HZ
from audio.resample import Resampler
from benchmarks.any_brain.served import Found
from benchmarks.calls.human_turns import HumanTurn
from benchmarks.harness.harness import Bar
from benchmarks.peers.__main__ import INSTANT, Settings, figures_of
from benchmarks.peers.__main__ import measure as play
from benchmarks.peers.call import MeasuredTurn
from clients.report.waveform import speech_end, speech_start

# Beside services nothing judges the words; a model here that has no head does so by itself.
SERVICES, LOCAL, BLIND = "voiceloop", "voiceloop-local", "voiceloop-local-blind"
VARIANTS = (SERVICES, LOCAL, BLIND)
N_QUICK = 2
MOST_CUT_HARD, MOST_P50_MS = 5.0, 700.0
RATE_WPM = 165  # as newsreaders speak German
TIMBRES = (Timbre("de", 50, 50), Timbre("de+f2", 55, 60), Timbre("de+m3", 40, 40),
           Timbre("de+f4", 50, 45))  # fmt: skip
AGENT = """name = "Laden"
language = "de"
voice = "de"
instructions = "Du bist am Telefon eines Ladens und antwortest in einem Satz."
"""
SENTENCES = (
    "Guten Tag, ich möchte einen Tisch für zwei Personen reservieren.",
    "Haben Sie am Samstag noch etwas frei?",
    "Ich hätte gern zwei Brötchen und einen Kaffee, bitte.",
    "Wie viel kostet der Apfelkuchen?",
    "Meine Telefonnummer ist null drei null, vier fünf sechs, sieben acht.",
    "Wir kommen um halb acht, wenn das möglich ist.",
    "Können Sie mir sagen, wann Sie morgen öffnen?",
    "Nein, danke, das ist alles.",
    "Ich heiße Katrin Sommerfeld, mit Doppel-m.",
    "Gibt es bei Ihnen auch etwas ohne Nüsse?",
    "Eigentlich wollte ich nur fragen, ob die Bestellung schon fertig ist.",
    "Ja, genau, so machen wir das.",
    "Meine Schwester holt den Kuchen am Freitag ab.",
    "Das habe ich leider nicht verstanden, können Sie es bitte wiederholen?",
    "Einen Moment, ich sehe gerade im Kalender nach, ob das passt.",
    "Dann nehmen wir lieber den Tisch am Fenster.",
    "Die Adresse ist Lindenstraße siebzehn, im zweiten Stock.",
    "Ist der Laden mit dem Bus gut zu erreichen?",
    "Ich rufe an, weil ich meine Bestellung ändern möchte.",
    "Vielen Dank und auf Wiederhören.",
    "Bringen Sie bitte auch Milch und Zucker mit.",
    "Wissen Sie, ob man bei Ihnen mit Karte zahlen kann?",
    "Wir sind sechs Erwachsene und drei Kinder.",
    "Am liebsten draußen, sofern es nicht regnet.",
    "Wie lange haben Sie heute geöffnet?",
    "Ich glaube, ich habe gestern meinen Schirm bei Ihnen vergessen.",
    "Der ist blau, mit einem Griff aus Holz.",
    "Könnten Sie kurz nachsehen?",
    "Das wäre sehr freundlich von Ihnen.",
    "Und was würde das zusammen kosten?",
    "Gut, dann bis Donnerstag um zehn.",
    "Wir hatten den großen Raum bestellt, nicht den kleinen.",
    "Mein Mann verträgt keine Milch.",
    "Schicken Sie mir die Rechnung bitte per Post.",
    "Ich bin ungefähr in zwanzig Minuten bei Ihnen.",
    "Können wir das auf nächste Woche verschieben?",
    "Ja, der Termin am Montag passt mir gut.",
    "Haben Sie auch glutenfreies Brot im Angebot?",
    "Wenn es geht, hätte ich gern das gleiche wie beim letzten Mal.",
    "Alles klar, dann weiß ich Bescheid.",
)


def german_turns() -> list[HumanTurn]:
    """Each sentence once, int16 at 16 kHz, with its words' times. Raises: MissingExtra."""
    espeak = load_espeak()
    turns = []
    for number, (text, timbre) in enumerate(zip(SENTENCES, cycle(TIMBRES), strict=False)):
        read, marks = espeak.synthesize(text, timbre, RATE_WPM)
        resampler = Resampler(espeak.rate_hz, RECOGNIZER_HZ)
        samples = np.concatenate((resampler.push(read), resampler.flush()))
        begin = speech_start(samples, RECOGNIZER_HZ) or 0
        end = speech_end(samples, RECOGNIZER_HZ) or len(samples)
        edges = [1000.0 * mark.sample / espeak.rate_hz for mark in marks]
        edges.append(1000.0 * end / RECOGNIZER_HZ)
        begin_ms = 1000.0 * begin / RECOGNIZER_HZ
        words = tuple(
            (text[mark.start : mark.end], max(0.0, start - begin_ms), stop - begin_ms)
            for mark, start, stop in zip(marks, edges, edges[1:], strict=False)
        )
        end_ms = 1000.0 * (end - begin) / RECOGNIZER_HZ
        clip = samples[begin:end].astype(np.int16)
        turns.append(HumanTurn(f"de-{number}", timbre.name, "plain", clip, 0.0, end_ms, words))
    return turns


async def measure(found: Found, *, is_quick: bool, seed: int) -> None:
    turns = german_turns()[: N_QUICK if is_quick else None]
    measured: dict[str, list[MeasuredTurn]] = {name: [] for name in VARIANTS}
    with tempfile.TemporaryDirectory() as folder:
        agent = Path(folder) / "agent.toml"
        agent.write_text(AGENT, encoding="utf-8")
        settings = Settings(len(turns), 0, VARIANTS, INSTANT, seed, {"VOICELOOP_AGENT": str(agent)})
        await play(settings, measured, (turns, ()))
    found.figures.update({name: figures_of(of_it) for name, of_it in measured.items()})
    for name, told in ((SERVICES, "German"), (LOCAL, "German, a model here")):
        plain = found.figures[name]["plain"]
        found.bars += [
            Bar(f"{told}: turns cut hard", plain["cut_hard"], MOST_CUT_HARD, "%"),
            Bar(f"{told}: gap p50", plain["gap_ms"]["p50"], MOST_P50_MS, n=plain["gap_ms"]["n"]),
            Bar(f"{told}: unanswered turns", plain["unanswered"], 0, ""),
        ]
