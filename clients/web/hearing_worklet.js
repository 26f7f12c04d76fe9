// The loudspeaker's side of the audio thread where sound comes over WebRTC: the browser has the
// queue, this passes on what leaves it and tells what was heard.
//
// It speaks as the playback worklet does, on the same clock: "audible", "ended", "flushed", "stats".
// Which item sounds it learns from the server's news; sound and news travel apart, and either may
// be first. A flush is silence until the next item begins: what is still in the browser's buffer
// is not heard.

const FADE_S = 0.005; // a hard cut clicks
const AUDIBLE = 0.0056; // -45 dBFS
const EARLY_S = 0.5; // sound so long before its news belongs to it
const TAIL_S = 0.25; // quiet so long after the server's last sound: the browser has played all
const REPORT_QUANTA = 19; // about 100 ms

class Hearing extends AudioWorkletProcessor {
  constructor() {
    super();
    this.itemId = null;
    this.firstAudibleAt = null; // since the last item ended
    this.lastAudibleAt = 0;
    this.isHeard = false;
    this.isComplete = false;
    this.gain = 1;
    this.isHushed = false;
    this.cause = null; // of a flush whose fade is under way
    this.totalPlayed = 0;
    this.totalAudible = 0;
    this.peak = 0;
    this.quanta = 0;
    this.port.onmessage = ({ data }) => this[data.type](data);
  }

  begin({ itemId }) {
    if (this.itemId !== null && this.itemId !== itemId) this.end("ended");
    this.itemId = itemId;
    this.isHeard = this.isComplete = this.isHushed = false;
    if (this.firstAudibleAt !== null && currentTime - this.firstAudibleAt < EARLY_S) this.sound();
    else this.firstAudibleAt = null;
  }

  complete({ itemId }) {
    if (itemId === this.itemId) this.isComplete = true;
  }

  flush({ cause }) {
    this.isHushed = true;
    this.cause = cause;
    if (this.itemId === null) this.end("flushed");
  }

  process([[input]], [[left, right]]) {
    for (let i = 0; input && i < left.length; i++) {
      const step = 1 / (FADE_S * sampleRate);
      this.gain = this.isHushed ? Math.max(0, this.gain - step) : Math.min(1, this.gain + step);
      left[i] = input[i] * this.gain;
      const loud = Math.abs(left[i]);
      if (loud > this.peak) this.peak = loud;
      if (loud > AUDIBLE) this.hear(currentTime + i / sampleRate);
    }
    if (right) right.set(left);
    if (this.itemId !== null) this.totalPlayed += left.length;
    if (this.cause !== null && (this.gain === 0 || !input)) this.end("flushed");
    if (this.isComplete && currentTime - this.lastAudibleAt > TAIL_S) this.end("ended");
    this.report();
    return true;
  }

  hear(at) {
    this.totalAudible++;
    this.lastAudibleAt = at;
    if (this.firstAudibleAt === null || (this.itemId === null && at - this.firstAudibleAt > EARLY_S)) {
      this.firstAudibleAt = at;
    }
    if (this.itemId !== null && !this.isHeard) this.sound();
  }

  sound() {
    this.isHeard = true;
    this.port.postMessage({ type: "audible", itemId: this.itemId, at: this.firstAudibleAt });
  }

  end(type) {
    const { itemId, cause, isHeard } = this;
    const nPlayed = isHeard ? Math.round((this.lastAudibleAt - this.firstAudibleAt) * sampleRate) : 0;
    const silentAt = isHeard ? this.lastAudibleAt : null;
    this.port.postMessage({ type, itemId, nPlayed, silentAt, cause });
    this.itemId = this.cause = this.firstAudibleAt = null;
    this.isHeard = this.isComplete = false;
  }

  report() {
    if (++this.quanta < REPORT_QUANTA) return;
    this.quanta = 0;
    const { totalPlayed, totalAudible, peak } = this;
    const isPlaying = this.itemId !== null;
    this.port.postMessage({ type: "stats", totalPlayed, totalAudible, underruns: 0, peak, isPlaying });
    this.peak = 0;
  }
}

registerProcessor("hearing", Hearing);
