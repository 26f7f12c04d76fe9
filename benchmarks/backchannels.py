"""Who stops the agent: ``python -m benchmarks.backchannels [--check]``.

Backchannels in several voices, bursts of noise, and true interruptions are heard over the agent's
speech (a headset caller: no echo) by the real voice detector, the embedded recognizer and the real
judge, offline. Counts the sounds that end the agent's reply, and how long after its onset a true
interruption does: the duck and the pause that stay, not one that a resume took back before. A
window counts from when the caller's frame with its last sample has come. The recorded noise is the
shared data's: without it the set is smaller, which the output and the results say.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np

from audio.asr.moonshine.onnx_network import MoonshineOnnxRecognizer
from audio.frames import RECOGNIZER_HZ
from audio.stream import Partial, RecognizerModel, RecognizerOptions
from audio.vad import Vad
from benchmarks.calls.overlapping_sounds import Sound, in_room, others, recorded_noise, sounds
from benchmarks.harness.command_line import Benchmark, run
from benchmarks.harness.data_folder import data_folder
from benchmarks.harness.harness import Bar
from clients.call.script import DEFAULT_CAST, load_call
from clients.recording import Samples, read_flac
from clients.report.percentiles import percentile
from clients.report.waveform import speech_start
from clients.uplink import FRAME_MS
from voiceloop.agent import BargeIn
from voiceloop.agent_file import embedded_agent
from voiceloop.call.barge_in import LEAST_TURN_MS, BargeInJudge, CallerLevel
from voiceloop.listening.prosody import LoudnessTrack
from voiceloop.listening.recipes.endpointing_set import MS
from voiceloop.listening.recipes.heard_turn import Listening
from voiceloop.listening.recipes.recognizers import DEFAULT, OFFLINE
from voiceloop.listening.segment import Heard, Onset
from voiceloop.models.end_judges import VOICE_READER_UPDATE_MS

KINDS = ("backchannel", "noise", "interruption", "caller", "bystander", "echo")
DUCKED_MS, SILENT_MS = 120, 250
MOST_WRONG, LEAST_RIGHT = 3, 98  # percent of sounds that stop the agent: not to, and to
# Of what is judged sound by sound, babble and dishes as loud as the caller: once in ten seconds.
# Chosen; the detector alone ducks 3.8 times.
DUCKS_A_MINUTE = 6
NOISE_DUCKED = 10  # percent of that noise in which the agent is quieter; chosen, it is 6.7


@dataclass(slots=True)
class Verdict:
    """What the agent does at one sound, in ms from the waveform's onset.

    ``ducked_ms``, ``held_ms``: the next write is quieter, the wire falls silent, and stays so; None
    where it does not. ``n_ducks``, ``holds``: how often it does, for a moment at least, and whether
    it is held. ``stopped_ms``: None where the agent goes on. ``over_ms``: the sound and the silence
    after it are over. ``quieter_ms``: for how long in all it was ducked or held, to the end.
    """

    sound: Sound
    onset_ms: float
    over_ms: float
    ducked_ms: float | None = None
    held_ms: float | None = None
    stopped_ms: float | None = None
    n_ducks: int = 0
    holds: bool = False
    quieter_ms: float = 0.0
    words: tuple[str, ...] = field(default=())

    def act(self, action: str, end_ms: float) -> None:
        """What was done about the window that ended there."""
        now_ms = FRAME_MS * math.ceil(end_ms / FRAME_MS) - self.onset_ms
        if action in ("resume", "go_on"):
            self.end_duck(now_ms)
            return
        if action == "unhold":
            self.held_ms = None
            return
        if self.ducked_ms is None:
            self.ducked_ms = now_ms
            self.n_ducks += 1
        if action in ("hold", "stop"):
            self.holds = True
            self.held_ms = now_ms if self.held_ms is None else self.held_ms
        if action == "stop":
            self.stopped_ms = now_ms

    def end_duck(self, now_ms: float) -> None:
        if self.ducked_ms is not None:
            self.quieter_ms += now_ms - self.ducked_ms
        self.ducked_ms = self.held_ms = None

    def waited_ms(self, until_ms: float | None) -> float:
        """So long, at least: what did not happen had not when the sound was over."""
        return self.over_ms if until_ms is None else until_ms


def frames_of(samples: Samples) -> Iterator[tuple[Samples, float]]:
    """The sound as a client sends it, and when each frame is there, in ms."""
    n_frame = int(FRAME_MS * MS)
    for end in range(n_frame, len(samples) + 1, n_frame):
        yield samples[end - n_frame : end], end / MS


class Ear:
    """What a listener tells of sounds over the agent, from the same detector and onset.

    probability: of the window of the detector that the latest frame has filled; None: of none.
    led_in_ms: of the present segment.
    """

    def __init__(self) -> None:
        self.onset = Onset()
        self.listening = Listening(self.onset)
        self.probability: float | None = None
        self.led_in_ms = 0.0
        self._vad = Vad()

    def hear(self, frame: Samples) -> list[Heard | Literal["paused", "resumed"]]:
        self.onset.feed(frame)
        if self.listening.onset_ms is None:
            self.onset.keep(frame)
        self.probability = None
        found: list[Heard | Literal["paused", "resumed"]] = []
        self._vad.look_between(self.listening.onset_ms is None and self.onset.heeds_likeness)
        for window in self._vad.feed(frame):
            self.onset.observe_likeness(window.probability)
            if not window.is_between:
                self.probability = window.probability
                found.append(self.listening.window(window.end_position / MS, window.probability))
        if self.listening.onset_ms is None:
            found.append(self.onset.observe_level())
        if "speech" in found:
            self.led_in_ms = self.onset.led_in_ms()
        return found


class Overlap:
    """One sound at a time over the agent, against the judge, as turn-taking asks it in a call."""

    def __init__(self, options: BargeIn, recognizer: str = DEFAULT) -> None:
        self._options = options
        self._lag_ms = OFFLINE[recognizer].lag_ms
        self._n_streams = 0
        self._levels: list[float | None] = []
        self._for_agent: float | None = None
        # Words come as in a call, every 160 ms of a sound's first second, and not at pauses alone.
        self._recognizer: RecognizerModel
        self._reader: MoonshineOnnxRecognizer | None = None
        if recognizer == DEFAULT:
            self._recognizer = MoonshineOnnxRecognizer(clock=lambda: 0.0)
        else:
            self._recognizer = OFFLINE[recognizer].build()
            self._reader = MoonshineOnnxRecognizer(
                update_ms=VOICE_READER_UPDATE_MS, hears_words=False, clock=lambda: 0.0
            )

    def know(self, callers: Sequence[Sound]) -> None:
        """As loud as two of these was whoever speaks, in turns before each sound."""
        for one in callers:
            loudness = LoudnessTrack()
            loudness.feed(one.samples)
            self._levels.append(loudness.loud_level_db())

    def _caller_before(self, sound: Sound) -> CallerLevel:
        level = CallerLevel()
        for level_db in random.Random(sound.name).sample(self._levels, min(2, len(self._levels))):
            level.take(level_db, LEAST_TURN_MS, 0.0)
        return level

    def judge(self, sound: Sound) -> Verdict:
        """One sound alone, from the room before it to the room after it."""
        ear, judge = Ear(), BargeInJudge(self._options)
        level = self._caller_before(sound)
        judge.observe_agent(sound.said)
        onset_ms = (speech_start(sound.samples, RECOGNIZER_HZ) or 0) / MS
        verdict = Verdict(sound, onset_ms, len(sound.samples) / MS - onset_ms)
        partials: list[tuple[float, Partial]] = []
        probabilities: list[float] = []
        loudness = LoudnessTrack()
        for frame, now_ms in frames_of(sound.samples):
            if ear.listening.onset_ms is not None:
                self._feed(frame)
                loudness.feed(frame)
            found = ear.hear(frame)
            for heard in found:
                match heard:
                    case "speech":
                        loudness.reset()
                        pre_roll = ear.onset.take_pre_roll()
                        self._open(pre_roll)
                        for samples in pre_roll:
                            loudness.feed(samples)
                    case "risen" | "likely" | "loud":
                        at_once = judge.suspect(ear.onset.lasting_ms(), heard)
                        if at_once is not None:
                            verdict.act(at_once, now_ms)
                    case "lost":  # where it still sounds, it is ducked at once
                        verdict.act("unhold" if "likely" in found else "resume", now_ms)
                    case "paused":
                        self._flush()
            listening, probability = ear.listening, ear.probability
            if listening.onset_ms is None or probability is None:
                continue
            partials += [(now_ms + self._lag_ms, partial) for partial in self._partials()]
            while partials and partials[0][0] <= now_ms:
                _, partial = partials.pop(0)
                verdict.words = partial.stable_words + partial.unstable_words
                judge.observe_words(verdict.words)
                judge.observe_sound(partial.for_agent)
            probabilities += [] if listening.paused else [probability]
            speech_ms = listening.last_sound_ms - listening.onset_ms
            silence_ms = now_ms - listening.last_sound_ms if listening.paused else 0.0
            voice = float(np.mean(probabilities)) if probabilities else 1.0
            level_db = loudness.loud_level_db()
            judge.observe_level(level.log_odds(level_db, listening.onset_ms))
            action = judge.judge(
                speech_ms, silence_ms, reply_ends_soon=False, voice=voice, led_in_ms=ear.led_in_ms
            )
            if action is not None:
                verdict.act(action, now_ms)
            if action == "stop":
                break
            if action == "hold":
                self._flush()
            if action == "resume":  # the segment was no turn, and is discarded
                self._close()
                ear.listening, probabilities, partials = Listening(ear.onset), [], []
        if ear.listening.onset_ms is not None:
            self._close()
        return verdict

    def ducks_in_noise(self, recordings: Sequence[Path]) -> tuple[float, float]:
        """How often a minute noise that goes on ducks the agent, as loud as a caller, and for how
        much of it, in percent; a stop ends it.
        """
        n_ducks, quieter_ms, ms = 0, 0.0, 0.0
        for path in recordings:
            verdict = self.judge(next(in_room(path.stem, "noise", read_flac(path).samples)))
            n_ducks += verdict.n_ducks
            heard_ms = verdict.waited_ms(verdict.stopped_ms)
            verdict.end_duck(heard_ms)
            quieter_ms += verdict.quieter_ms
            ms += heard_ms
        return 60_000.0 * n_ducks / ms, 100.0 * quieter_ms / ms

    def _open(self, pre_roll: Sequence[Samples]) -> None:
        """A stream of the recognizer for one segment of speech."""
        self._n_streams += 1
        self._for_agent = None
        for model in self._models:
            model.open(self._stream, RecognizerOptions())
        for samples in pre_roll:
            self._feed(samples)

    @property
    def _models(self) -> list[RecognizerModel]:
        return [self._recognizer, *([self._reader] if self._reader is not None else [])]

    def _feed(self, samples: Samples) -> None:
        for model in self._models:
            model.feed(self._stream, samples)

    def _flush(self) -> None:
        for model in self._models:
            model.flush(self._stream)

    def _close(self) -> None:
        for model in self._models:
            model.close(self._stream)

    @property
    def _stream(self) -> str:
        return f"{self._n_streams}"

    def _partials(self) -> Iterator[Partial]:
        """The words so far, with what the sound is like as far as that is known."""
        if self._reader is not None:
            for read in _partials_of(self._reader):
                self._for_agent = read.for_agent
        for heard in _partials_of(self._recognizer):
            told = heard.for_agent if self._reader is None else self._for_agent
            yield replace(heard, for_agent=told)


def _partials_of(model: RecognizerModel) -> Iterator[Partial]:
    while model.has_work():
        yield from (event for event in model.step() if isinstance(event, Partial))


def main() -> int:
    command = Benchmark(
        "backchannels",
        "Which of a caller's sounds stop the agent: backchannels, noise, true interruptions. Its "
        "recorded noise is the shared data's (VOICELOOP_DATA).",
    )
    told = "the voices that say them; flite needs Debian's flite"
    command.choice("--cast", load_call().casts, DEFAULT_CAST, told)
    command.choice("--recognizer", OFFLINE, DEFAULT, "whose words are judged")
    arguments = command.parse()
    data = data_folder()
    recordings = recorded_noise(data)
    if not recordings:
        print(
            f"A SMALLER SET: no recorded noise in {data.absolute()}/speech/noise (set "
            "VOICELOOP_DATA to the folder of dialogues/ and speech/); only made noise is heard",
            file=sys.stderr,
        )
    overlap = Overlap(embedded_agent().barge_in, arguments.recognizer)
    from_people = list(others(data))
    overlap.know([sound for sound in from_people if sound.kind == "caller"])
    verdicts = [overlap.judge(sound) for sound in sounds(recordings, arguments.cast)]
    from_others = [overlap.judge(sound) for sound in from_people]
    shares: dict[str, float] = {}
    for kind in KINDS if from_others else KINDS[:3]:
        of_it = [v for v in (*verdicts, *from_others) if v.sound.kind == kind]
        stopped = [verdict for verdict in of_it if verdict.stopped_ms is not None]
        shares[kind] = 100.0 * len(stopped) / len(of_it)
        print(
            f"{kind}: {sum(v.n_ducks > 0 for v in of_it)} of {len(of_it)} duck the agent, "
            f"{sum(v.holds for v in of_it)} hold it, {len(stopped)} stop it"
        )
        for verdict in of_it:
            if (verdict.stopped_ms is None) == (kind in ("interruption", "caller")):
                print(f"  {verdict.sound.name}: heard {' '.join(verdict.words)!r}")
    interruptions = [v for v in verdicts if v.sound.kind == "interruption"]
    ducked_ms = [v.waited_ms(v.ducked_ms) for v in interruptions]
    held_ms = [v.waited_ms(v.held_ms) for v in interruptions]
    stopped_ms = [v.stopped_ms for v in interruptions if v.stopped_ms is not None]
    quiet = [v for v in verdicts if v.sound.kind != "interruption"]
    wrong = 100.0 * sum(v.stopped_ms is not None for v in quiet) / len(quiet)
    p95_ms, n = [percentile(values, 95) for values in (ducked_ms, held_ms)], len(interruptions)
    bars = [
        Bar("backchannels and noise that stop the agent", wrong, MOST_WRONG, "%", n=len(quiet)),
        Bar("interruptions that stop it", shares["interruption"], LEAST_RIGHT, "%", True, n=n),
        Bar("interruption, onset to duck, p95", p95_ms[0], DUCKED_MS, n=n),
        Bar("interruption, onset to silence, p95", p95_ms[1], SILENT_MS, n=n),
    ]
    if recordings:
        per_minute, quieter = overlap.ducks_in_noise(recordings)
        n = len(recordings)
        bars += [
            Bar("a minute of noise, ducks", per_minute, DUCKS_A_MINUTE, "", n=n),
            Bar("noise in which the agent is quieter", quieter, NOISE_DUCKED, "%", n=n),
        ]
    stops_of = {
        kind: [v.stopped_ms for v in from_others if v.sound.kind == kind] for kind in KINDS[3:]
    }
    listed: dict[str, list[float]] = {
        "onset_to_duck_ms": ducked_ms,
        "onset_to_hold_ms": held_ms,
        "onset_to_stop_ms": stopped_ms,
        **{
            f"{kind}_onset_to_stop_ms": [ms for ms in stops if ms is not None]
            for kind, stops in stops_of.items()
        },
    }
    times = {
        name: {f"p{p}": percentile(values, p) for p in (50, 95, 100)} if values else {}
        for name, values in listed.items()
    }
    print(times)
    settings = {
        "recorded_noises": len(recordings),
        "sounds": len(verdicts),
        "cast": arguments.cast,
        "recognizer": arguments.recognizer,
    }
    return command.finish(settings, bars, shares=shares, times=times)


if __name__ == "__main__":
    sys.exit(run(main))
