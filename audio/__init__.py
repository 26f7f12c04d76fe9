"""Audio in and out: frames, codecs, resampling, voice activity, recognizers and voices.

Everything here is synchronous and in process; nothing imports asyncio, `engine` or `voiceloop`.
Audio inside is mono int16; recognizers and the detector run at 16 kHz, voices give 24 kHz.
"""

import os

# onnxruntime keeps a device id and queues what it is used for, a model's path among it, unless it
# is told not to before its import; all that imports it stands below this package.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
