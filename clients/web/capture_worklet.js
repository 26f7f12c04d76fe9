// The microphone's side of the audio thread: 20 ms frames of Int16 at the context's 24 kHz.
//
// Each frame carries when it ended on the audio clock and when the last loud sample so far was
// heard: the gap is measured from there. "Loud" follows the room: four times its noise floor, at
// least -45 dBFS, the level from which the benchmarks call a sample audible.

const N_FRAME = 480;
const AUDIBLE = 0.0056; // -45 dBFS
const FLOOR_RISE = 1.0006; // a quantum is 5.3 ms: the floor doubles within 6 s of steady noise

class Capture extends AudioWorkletProcessor {
  constructor() {
    super();
    this.frame = new Int16Array(N_FRAME);
    this.filled = 0;
    this.peak = 0;
    this.floor = 0.002;
    this.lastLoudAt = 0;
  }

  process([[channel]]) {
    if (!channel) return true; // no device yet
    this.listen(channel);
    for (const sample of channel) {
      this.frame[this.filled++] = Math.max(-32768, Math.min(32767, Math.round(sample * 32767)));
      if (this.filled === N_FRAME) this.post();
    }
    return true;
  }

  listen(channel) {
    let power = 0;
    for (const sample of channel) power += sample * sample;
    const rms = Math.sqrt(power / channel.length);
    this.floor = Math.min(Math.max(rms, 1e-5), this.floor * FLOOR_RISE);
    this.peak = Math.max(this.peak, rms);
    if (rms > Math.max(AUDIBLE, 4 * this.floor)) {
      this.lastLoudAt = currentTime + channel.length / sampleRate;
    }
  }

  post() {
    const endsAt = currentTime + 128 / sampleRate;
    const { frame, peak, lastLoudAt } = this;
    this.port.postMessage({ frame, peak, lastLoudAt, endsAt }, [frame.buffer]);
    this.frame = new Int16Array(N_FRAME);
    this.filled = 0;
    this.peak = 0;
  }
}

registerProcessor("capture", Capture);
