"""HiFi-GAN in chunks: which latent frames a run of samples depends on, exactly.

The decoder is convolutions only, so a sample depends on a bounded run of frames. Interval
arithmetic through its layers gives that run; a chunk decoded with it at both sides, and the
margins dropped, equals the same samples of the whole decode. No crossfade, no approximation.

Source: Kong, Kim and Bae 2020, "HiFi-GAN" (the generator's layers); the arithmetic is ours.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from ..errors import AudioError

# The first chunk is short because somebody waits; later ones grow because the margins (26 frames
# for MMS) are decoded again with every chunk.
CHUNK_FRAMES = (8, 24, 64, 160)


@dataclass(frozen=True, slots=True)
class HifiGanShape:
    """The sizes that fix the receptive field, named as in transformers' VitsConfig.

    Raises: AudioError on sizes that no HiFi-GAN has.
    """

    upsample_rates: tuple[int, ...]
    upsample_kernel_sizes: tuple[int, ...]
    resblock_kernel_sizes: tuple[int, ...]
    resblock_dilation_sizes: tuple[tuple[int, ...], ...]
    edge_kernel_size: int = 7  # of the first and the last convolution

    def __post_init__(self) -> None:
        if len(self.upsample_rates) != len(self.upsample_kernel_sizes) or any(
            (kernel - rate) % 2 or kernel < rate
            for rate, kernel in zip(self.upsample_rates, self.upsample_kernel_sizes, strict=True)
        ):
            raise AudioError(
                "expected one kernel for each rate, longer than it by an even number, found rates "
                f"{self.upsample_rates} and kernels {self.upsample_kernel_sizes}"
            )

    @property
    def hop(self) -> int:
        """Samples a latent frame."""
        return prod(self.upsample_rates)

    def frames_needed(self, start: int, end: int) -> tuple[int, int]:
        """The frames [first, last) that the samples of frames [start, end) depend on.

        first may be negative and last beyond the end: there the decoder pads, as in the whole.
        """
        edge = (self.edge_kernel_size - 1) // 2
        # Inclusive bounds at the output of each layer, walked from the last to the first.
        low, high = start * self.hop - edge, end * self.hop - 1 + edge
        reach = self._resblock_reach()
        stages = zip(self.upsample_rates, self.upsample_kernel_sizes, strict=True)
        for rate, kernel in reversed(list(stages)):
            low, high = low - reach, high + reach
            # Output o of the transposed convolution reads inputs i with
            # 0 <= o + padding - i * rate < kernel.
            padding = (kernel - rate) // 2
            low = -(-(low + padding - kernel + 1) // rate)
            high = (high + padding) // rate
        return low - edge, high + edge + 1

    def _resblock_reach(self) -> int:
        """Samples that the widest residual block looks to either side."""
        return max(
            sum((kernel - 1) // 2 * (dilation + 1) for dilation in dilations)
            for kernel, dilations in zip(
                self.resblock_kernel_sizes, self.resblock_dilation_sizes, strict=True
            )
        )


def chunk_bounds(n_frames: int, sizes: Sequence[int] = CHUNK_FRAMES) -> list[tuple[int, int]]:
    """[start, end) of each chunk of n_frames; the last size repeats."""
    bounds: list[tuple[int, int]] = []
    start = 0
    while start < n_frames:
        end = min(n_frames, start + sizes[min(len(bounds), len(sizes) - 1)])
        bounds.append((start, end))
        start = end
    return bounds
