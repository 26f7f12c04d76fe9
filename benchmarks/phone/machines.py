"""Who answers a call that we place: machines by their greetings, people by what they say.

Each sound is heard as over a telephone (8 kHz, mu-law), offline, by the real voice detector and the
embedded recognizer, and told by the product's own `AnsweredBy`. Made voices greet as machines and
as people do; recorded people say something long behind a made "hello". espeak-ng's voices were
looked at while the phrases were chosen; the others judge alone.
"""

from __future__ import annotations

import subprocess
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from audio.codec import decode, encode
from audio.frames import RECOGNIZER_HZ
from audio.resample import Resampler
from benchmarks.backchannels import Ear, Overlap, frames_of
from benchmarks.calls.overlapping_sounds import said_by
from benchmarks.harness.data_folder import data_folder
from benchmarks.harness.harness import Bar
from clients.errors import ClientError
from clients.progress import progress_bar
from clients.recording import Samples, read_flac, read_wav
from clients.report.waveform import speech_start
from voiceloop.agent import BargeIn
from voiceloop.call.answered_by import AnsweredBy
from voiceloop.listening.recipes.endpointing_set import MS

KNOWN_MS, LEAST_KNOWN, MOST_WRONG = 3000.0, 90.0, 1.0
PAUSE_MS, TURN_OVER_MS = 900.0, 700.0
MACHINES = (
    "Hi, you've reached Anna. I can't come to the phone right now, please leave a message.",
    "You have reached the voicemail of five five five, zero one four two. Leave a message.",
    "Hello, this is Tom. Leave me a message and I will get back to you as soon as I can.",
    "The person you are calling is not available. Please record your message after the tone.",
    "Your call has been forwarded to an automated voice messaging system.",
    "Thank you for calling Hill Bakery. Our office is closed. Please call back tomorrow.",
    "Hi, I am away from my desk or on another call. Leave your name and number after the beep.",
    "We are unable to take your call at the moment. Please leave a message after the tone.",
    "The number you have dialed is not in service. Please check the number and dial again.",
    "This is the Miller residence. We are not available right now, so leave us a message.",
    "Sorry I missed your call. Leave a brief message and I will call you back as soon as I can.",
    "Thank you for calling the town library. For opening hours, press one. For loans, press two.",
    "Hey, it's Sam, you know what to do, wait for the beep and tell me what it is all about.",
    "Welcome to the voice mailbox of Green Garden Services. Nobody can answer your call today.",
)  # fmt: skip
PEOPLE = (
    "Hello?", "Yes?", "Hello, who is this?", "Miller.", "Hi, this is Anna.", "Anna speaking.",
    "Good morning, Hill Bakery, how can I help you?", "Town library, Tom speaking, good afternoon.",
    "Hello, yes, I can hear you.", "Hi there, sorry, I just came in.", "Hello? Is anybody there?",
    "Good afternoon, this is Mill Clinic, Sarah speaking, how may I help you today?",
    "Yes hello, I was expecting your call.", "Hi, one second, let me turn down the radio.",
)  # fmt: skip
RECORDED = {"commands": 30, "librispeech": 15, "speechocean762": 20}  # clips of each
N_VOICES = 2  # of each cast, the first
ESPEAK = ("en-us+m3", "en-gb+f2")
CASTS = ("espeak-ng", "flite", "hibari")


@dataclass(frozen=True, slots=True)
class Answer:
    """What is heard of who lifts the telephone. began_ms: of their first sound."""

    name: str
    cast: str
    is_machine: bool
    samples: Samples


@dataclass(frozen=True, slots=True)
class Told:
    answer: Answer
    by: str | None
    after_ms: float | None  # of the first sound


def over_telephone(samples: Samples) -> Samples:
    """At 8 kHz by mu-law and back, int16 [n] at 16 kHz."""
    narrow = Resampler(RECOGNIZER_HZ, 8000)
    told = decode(encode(np.concatenate((narrow.push(samples), narrow.flush())), "pcmu"), "pcmu")
    wide = Resampler(8000, RECOGNIZER_HZ)
    return np.concatenate((wide.push(told), wide.flush()))


def room(ms: float, seed: int) -> Samples:
    noise = np.random.default_rng(seed).normal(0.0, 12.0, int(ms * MS))
    return np.rint(noise).astype(np.int16)


def spoken(cast: str, texts: Sequence[str]) -> Iterator[tuple[str, Samples]]:
    """Each text in each voice of a cast. Raises: ClientError."""
    if cast != "espeak-ng":
        yield from islice(said_by(cast, texts), N_VOICES * len(texts))
        return
    with tempfile.TemporaryDirectory() as folder:
        for voice in ESPEAK:
            for text in texts:
                wav = Path(folder) / "greeting.wav"
                command = ["espeak-ng", "-v", voice, "-w", str(wav), text]
                subprocess.run(command, check=True, capture_output=True)
                yield f"{voice}: {text}", read_wav(wav).at_rate(RECOGNIZER_HZ).samples


def answers(data: Path | None) -> Iterator[Answer]:
    """All of them, always the same."""
    hello: list[Samples] = []
    for cast in CASTS:
        for is_machine, texts in ((True, MACHINES), (False, PEOPLE)):
            for name, samples in spoken(cast, texts):
                if name.endswith(": Hello?"):
                    hello.append(samples)
                whole = np.concatenate((room(400, 1), samples, room(1500, 2)))
                yield Answer(name, cast, is_machine, over_telephone(whole))
    if data is None:
        return
    recordings = [
        path
        for folder, n_most in RECORDED.items()
        for path in sorted((data / "speech" / folder).rglob("*.flac"))[:n_most]
    ]
    for number, path in enumerate(recordings):
        said = read_flac(path).at_rate(RECOGNIZER_HZ).samples
        before = (room(400, 1), hello[number % len(hello)], room(PAUSE_MS + 600, 3))
        whole = np.concatenate((*before, said, room(1500, 4)))
        yield Answer(path.stem, "people", False, over_telephone(whole))


class MachinesPart:
    """As `Part`."""

    def __init__(self) -> None:
        self._told: list[Told] = []

    async def measure(self, chosen: Namespace) -> None:
        """Raises: ClientError: a voice that is to greet is not here."""
        try:
            everybody = list(answers(data_folder()))
        except FileNotFoundError as error:
            raise ClientError(f"expected espeak-ng, found none: {error}") from None
        overlap = Overlap(BargeIn())
        with progress_bar("machines: greetings", len(everybody)) as progress:
            for done, answer in enumerate(everybody):
                self._told.append(hear(answer, overlap))
                progress(done + 1)

    def figures(self) -> dict[str, Any]:
        if not self._told:
            return {}
        return {"casts": {cast: self._cast(cast) for cast in (*CASTS, "people")}}

    def _cast(self, cast: str) -> dict[str, Any]:
        told = [one for one in self._told if one.answer.cast == cast]
        machines = [one for one in told if one.answer.is_machine]
        people = [one for one in told if not one.answer.is_machine]
        known = [one for one in machines if one.by == "machine"]
        early = [one for one in known if (one.after_ms or 0.0) <= KNOWN_MS]
        wrong = [one.answer.name for one in people if one.by == "machine"]
        return {
            "machines": len(machines), "known": len(known), "within_3_s": len(early),
            "people": len(people), "taken_for_machines": wrong,
            "late_or_never": [one.answer.name for one in machines if one not in early],
        }  # fmt: skip

    def bars(self) -> Sequence[Bar]:
        casts = [told for cast, told in self.figures()["casts"].items() if cast != "espeak-ng"]
        n_machines, n_people = (sum(one[kind] for one in casts) for kind in ("machines", "people"))
        n_early = sum(one["within_3_s"] for one in casts)
        n_wrong = sum(len(one["taken_for_machines"]) for one in casts)
        known, wrong = 100.0 * n_early / n_machines, 100.0 * n_wrong / n_people
        return [
            Bar("machines known within 3 s", known, LEAST_KNOWN, "%", at_least=True, n=n_machines),
            Bar("people taken for machines", wrong, MOST_WRONG, "%", n=n_people),
        ]

    def show(self) -> None:
        for cast, told in self.figures()["casts"].items():
            print(
                f"{cast:<10} machines {told['within_3_s']} of {told['machines']} within 3 s, "
                f"{told['known']} in all; people taken for one: {len(told['taken_for_machines'])} "
                f"of {told['people']}"
            )
            for name in (*told["late_or_never"], *told["taken_for_machines"]):
                print(f"    {name}")


def hear(answer: Answer, overlap: Overlap) -> Told:
    """One answer, to the verdict or its end."""
    ear, found = Ear(), AnsweredBy()
    first_ms = (speech_start(answer.samples, RECOGNIZER_HZ) or 0) / MS
    partials: list[tuple[float, tuple[str, ...]]] = []
    by: str | None = None
    after_ms: float | None = None
    line = Resampler(RECOGNIZER_HZ, 24_000)
    for frame, now_ms in frames_of(answer.samples):
        told = [found.hear(line.push(frame).astype("<i2").tobytes())]
        if ear.listening.onset_ms is not None:
            overlap._feed(frame)
        heard = ear.hear(frame)
        if "speech" in heard:
            overlap._open(ear.onset.take_pre_roll())
        if "paused" in heard:
            overlap._flush()
        listening = ear.listening
        if listening.onset_ms is not None:
            words = ((one.stable_words + one.unstable_words) for one in overlap._partials())
            partials += [(now_ms + overlap._lag_ms, one) for one in words]
            while partials and partials[0][0] <= now_ms:
                told.append(found.observe_words(partials.pop(0)[1]))
            speech_ms = listening.last_sound_ms - listening.onset_ms
            silence_ms = now_ms - listening.last_sound_ms if listening.paused else 0.0
            told.append(found.observe_speech(speech_ms, silence_ms, listening.onset_ms, now_ms))
            if silence_ms >= TURN_OVER_MS:
                told += [found.observe_words(one) for _, one in partials]
                found.end_segment()
                overlap._close()
                ear.listening, partials = type(listening)(ear.onset), []
        known = next((one for one in told if one is not None), None)
        if known in ("machine", "screening"):
            by, after_ms = known, now_ms - first_ms
            break
    if ear.listening.onset_ms is not None:
        overlap._close()
    return Told(answer, by, after_ms)
