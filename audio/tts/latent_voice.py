"""A voice over continuous latents: frames of 80 ms, batched over replies, streamed as they come.

Each step gives every reply that has text one frame: the flow head samples a latent, the codec
decodes it with its state, the backbone reads it back. A fragment is one prompt behind the voice's
prefix; the next one starts anew, as the models were trained.
"""

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ..checkpoint import load_checkpoint, torch_device
from ..errors import AudioError
from ..frames import duration_ms
from ..stream import Event, VoiceOptions, failed
from .latent_codec import CodecState, LatentCodec
from .latent_model import LatentModel, LatentReply
from .reply import Fragment, FragmentWord, Reply, Waveform, WordSpan
from .reply_voice import ReplyVoice
from .voice_prompts import VoicePrompts

MAX_BATCH = 64
# Of the original runtime: frames after the end of speech for short texts (up to so many words)
# and for longer ones.
SHORT_WORDS, FRAMES_AFTER_SHORT, FRAMES_AFTER = 4, 4, 2
# About 170 words a minute: what a voice is taken for before it has spoken.
MS_PER_CHARACTER = 65.0
LEARNING_RATE = 0.3  # of the last fragment's pace: three fragments to follow a voice
FADE_IN_MS = 5.0  # a fresh codec state starts with a small step, heard as a click


class WordPace:
    """The pace of one voice that does not know how long its text will take.

    ms_per_character: of a word's own and the space behind it.
    """

    def __init__(self) -> None:
        self.ms_per_character = MS_PER_CHARACTER

    def learn(self, words: Sequence[FragmentWord], duration_ms: float) -> None:
        """A fragment of these words took duration_ms."""
        found = duration_ms / max(1, _n_characters(words))
        self.ms_per_character += LEARNING_RATE * (found - self.ms_per_character)


class PacedWords:
    """The words of one fragment: each is reported once the audio has come to its share."""

    def __init__(self, words: Sequence[FragmentWord], pace: WordPace) -> None:
        self._words = tuple(words)
        self._pace = pace
        self._n_told = 0
        self._told_ms = 0.0

    def until(self, audio_ms: float) -> list[WordSpan]:
        """The words that start before audio_ms of the fragment and were not yet told."""
        spans = []
        while self._n_told < len(self._words) and self._told_ms < audio_ms:
            word = self._words[self._n_told]
            end_ms = self._told_ms + _n_characters([word]) * self._pace.ms_per_character
            spans.append(WordSpan(word, self._told_ms, end_ms))
            self._n_told += 1
            self._told_ms = end_ms
        return spans

    def rest(self, audio_ms: float) -> list[WordSpan]:
        """The words not yet told, in what time is left of the fragment's audio_ms."""
        words = self._words[self._n_told :]
        start_ms = min(self._told_ms, audio_ms)
        share = (audio_ms - start_ms) / max(1, _n_characters(words))
        spans = []
        for word in words:
            end_ms = start_ms + share * _n_characters([word])
            spans.append(WordSpan(word, start_ms, end_ms))
            start_ms = end_ms
        self._n_told = len(self._words)
        self._pace.learn(self._words, audio_ms)
        return spans


@dataclass(slots=True)
class _Speaking:
    """A fragment under way."""

    reply: LatentReply
    codec: CodecState
    words: PacedWords
    n_samples: int = 0


class LatentVoice(ReplyVoice[_Speaking]):
    """A Hugging Face folder of the model, its audio tokenizer and its voices.

    folder: on disk. codec_folder: the audio tokenizer's; None for folder/audio_tokenizer.
    voices_folder: None for folder/voices. device: "cpu", "cuda" or "auto". seed: the same text
    in the same voice gives the same samples.

    Raises: AudioError if a package, a folder or the device is absent; it names the remedy.
    """

    class_name: ClassVar[str]  # of the model in transformers

    def __init__(
        self,
        folder: str | Path,
        *,
        codec_folder: str | Path | None = None,
        voices_folder: str | Path | None = None,
        device: str = "auto",
        seed: int = 0,
    ) -> None:
        folder = Path(folder)
        torch, self._device = torch_device(device, "a latent voice")
        dtype = torch.bfloat16 if self._device.type == "cuda" else torch.float32
        model = load_checkpoint(self.class_name, folder, dtype=dtype).to(self._device).eval()
        codec_model = load_checkpoint(
            "PocketTTSAudioTokenizerModel", Path(codec_folder or folder / "audio_tokenizer")
        )
        codec_model = codec_model.to(self._device).eval()
        self._tokenizer = load_checkpoint("AutoTokenizer", folder)
        self._audio_bos: int = model.config.audio_bos_token_id
        self._voice_ids = {
            model.config.audio_prompt_token_id,
            getattr(model.config, "audio_prompt_bos_token_id", None),
        }
        self._model = LatentModel(torch, model, _frames_after_eos(folder))
        self._codec = LatentCodec(torch, codec_model)
        self._prompts = VoicePrompts(
            torch, Path(voices_folder or folder / "voices"), self._model, codec_model
        )
        super().__init__(self._prompts.names, self._codec.rate_hz)
        self._prompts.prefix(self.voices[0])  # the default voice must be ready, and readable
        self._seed = seed
        self._paces: dict[str, WordPace] = {}

    def open(self, stream_id: str, options: VoiceOptions) -> None:
        """Raises: AudioError on a voice or speed that is not there, or an id in use."""
        if options.speed != 1.0:
            raise AudioError(f"expected a speed of 1.0 (this model has one), found {options.speed}")
        self._prompts.prefix(self._voice_named(options.voice))  # read before the first text
        super().open(stream_id, options)

    def step(self) -> list[Event]:
        """One frame of every stream that has text."""
        events = self._take_up()
        members = list(self._under_way)
        for i in range(0, len(members), MAX_BATCH):
            batch = members[i : i + MAX_BATCH]
            try:
                events += self._frames(batch)
            except Exception as error:  # no reply of the batch can go on
                for stream_id in batch:
                    self.close(stream_id)
                    events.append(failed(stream_id, error))
        return events

    def _begin(self, fragment: Fragment, reply: Reply) -> list[Event]:
        begun = self._model.begin(
            self._prompts.prefix(reply.voice),
            self._text_ids(fragment.text),
            len(fragment.words),
            self._seed ^ zlib.crc32(fragment.text.encode()),
        )
        words = PacedWords(fragment.words, self._paces.setdefault(reply.voice, WordPace()))
        self._under_way[reply.stream_id] = _Speaking(begun, self._codec.initial, words)
        return []

    def _frames(self, members: list[str]) -> list[Event]:
        speaking = [self._under_way[stream_id] for stream_id in members]
        latents, ended = self._model.frame([s.reply for s in speaking])
        states, waves = self._codec.decode([s.codec for s in speaking], latents)
        waves = waves.cpu().numpy()
        events: list[Event] = []
        for stream_id, now, state, wave, is_last in zip(
            members, speaking, states, waves, ended, strict=True
        ):
            now.codec = state
            samples = _faded_in(wave, self._codec.rate_hz) if now.n_samples == 0 else wave
            now.n_samples += len(samples)
            audio_ms = duration_ms(now.n_samples, self._codec.rate_hz)
            spans = now.words.rest(audio_ms) if is_last else now.words.until(audio_ms)
            events += self._replies[stream_id].say(samples, spans)
            if is_last:
                del self._under_way[stream_id]
        return events

    def _text_ids(self, text: str) -> list[int]:
        """The prompt of a fragment behind the voice: text tokens and the audio's first position.

        The checkpoint's chat template prepares the text as in training.
        """
        prompt = text
        if getattr(self._tokenizer, "chat_template", None):
            content = [{"type": "text", "text": text}]
            prompt = self._tokenizer.apply_chat_template(
                [{"role": "user", "content": content}], tokenize=False
            )
        ids = self._tokenizer.encode(prompt, add_special_tokens=False)
        ids = [i for i in ids if i not in self._voice_ids]  # the voice stands before, as keys
        if not ids or ids[-1] != self._audio_bos:
            ids.append(self._audio_bos)
        return ids


class PhononVoice(LatentVoice):
    """Phonon (Gradium): 31M parameters, English, the smallest voice that streams by frames.

    Apache-2.0. Its voices are latents of Gradium's own speaker codec, so they come stored, not
    from a recording.
    """

    class_name = "GradiumPhononTTSForConditionalGeneration"


class PocketVoice(LatentVoice):
    """Pocket TTS (Kyutai): 100M parameters, six languages, faster than real time on a CPU.

    Weights CC-BY; any voice from a few seconds of recording.
    """

    class_name = "PocketTTSForConditionalGeneration"


def _n_characters(words: Sequence[FragmentWord]) -> int:
    return sum(len(word.text) + 1 for word in words)


def _faded_in(wave: Waveform, rate_hz: int) -> Waveform:
    n_fade = min(len(wave), round(FADE_IN_MS * rate_hz / 1000.0))
    faded = wave.copy()
    faded[:n_fade] *= np.linspace(0.0, 1.0, n_fade, dtype=np.float32)
    return faded


def _frames_after_eos(folder: Path) -> tuple[int, int, int]:
    """Words of a short text, frames after it, frames after a longer one: the processor's own."""
    settings: dict[str, Any] = {}
    path = folder / "processor_config.json"
    if path.is_file():
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise AudioError(f"expected JSON in {path}, found: {error}") from error
        settings = found if isinstance(found, dict) else {}
    names = (
        ("short_text_max_words", SHORT_WORDS),
        ("frames_after_eos_short_text", FRAMES_AFTER_SHORT),
        ("frames_after_eos", FRAMES_AFTER),
    )
    values = [settings.get(name, default) for name, default in names]
    if not all(isinstance(value, int) and 0 <= value <= 100 for value in values):
        raise AudioError(f"expected whole numbers of 0 to 100 in {path}, found {values}")
    return values[0], values[1], values[2]
