// The loudspeaker's side of the audio thread: one queue of the agent's audio, tagged by item.
//
// It alone knows what was heard. It tells the page when an item's first audible sample plays and
// when the item is over, and answers a flush with how many of its samples were played and when the
// last audible one was: where the server held its sound the queue has run dry long before the news
// of it. All times are the audio clock's (currentTime).

const BUFFER_S = 0.04; // audio in hand before an item starts: it rides out a late frame
const FADE_S = 0.005; // a flush fades this long; a hard cut clicks
const AUDIBLE = 0.0056; // -45 dBFS
const REPORT_QUANTA = 19; // about 100 ms

class Playback extends AudioWorkletProcessor {
  constructor() {
    super();
    this.pieces = []; // {itemId, samples: Int16Array, position}
    this.played = new Map(); // item id -> samples played
    this.heard = new Set(); // items that were audible
    this.complete = new Set(); // items of which nothing more will come
    this.isPlaying = false;
    this.fadeLeft = 0;
    this.flushing = null; // {itemId, cause} while it fades
    this.lastAudibleAt = null; // of the item under way
    this.totalPlayed = 0;
    this.totalAudible = 0;
    this.underruns = 0;
    this.peak = 0;
    this.quanta = 0;
    this.port.onmessage = ({ data }) => this.receive(data);
  }

  receive(message) {
    switch (message.type) {
      case "push":
        this.pieces.push({ itemId: message.itemId, samples: message.samples, position: 0 });
        break;
      case "complete":
        this.complete.add(message.itemId);
        if (!this.pieces.some((piece) => piece.itemId === message.itemId)) this.end(message.itemId);
        break;
      case "flush":
        this.flush(message.cause);
        break;
    }
  }

  flush(cause) {
    const next = this.pieces[0];
    if (!next || !this.isPlaying) {
      // Nothing sounds: the queue ran dry, or what waits in it was never heard.
      const itemId = next?.itemId ?? [...this.played.keys()].at(-1) ?? null;
      this.pieces = [];
      this.postFlushed(itemId, cause);
      return;
    }
    this.flushing = { itemId: next.itemId, cause };
    this.fadeLeft = Math.round(FADE_S * sampleRate);
  }

  postFlushed(itemId, cause) {
    const nPlayed = this.played.get(itemId) ?? 0;
    const silentAt = nPlayed > 0 ? this.lastAudibleAt : null;
    this.port.postMessage({ type: "flushed", itemId, nPlayed, silentAt, cause });
  }

  process(inputs, [[left, right]]) {
    if (!this.isPlaying) this.isPlaying = this.mayStart();
    let written = 0;
    while (this.isPlaying && written < left.length) {
      const piece = this.pieces[0];
      if (!piece) {
        this.runDry();
        break;
      }
      written += this.play(piece, left, written);
      if (this.flushing !== null && this.fadeLeft === 0) this.silence();
      else if (piece.position === piece.samples.length) this.pass(piece);
    }
    if (right) right.set(left);
    this.report();
    return true;
  }

  mayStart() {
    const next = this.pieces[0];
    if (!next) return false;
    if (this.complete.has(next.itemId)) return true;
    const n = this.pieces.reduce((sum, one) => sum + one.samples.length - one.position, 0);
    return n >= BUFFER_S * sampleRate;
  }

  play(piece, out, offset) {
    if (!this.played.has(piece.itemId)) this.lastAudibleAt = null; // another item begins
    let n = Math.min(out.length - offset, piece.samples.length - piece.position);
    if (this.flushing !== null) n = Math.min(n, this.fadeLeft);
    for (let i = 0; i < n; i++) {
      let value = piece.samples[piece.position + i] / 32768;
      if (this.flushing !== null) value *= --this.fadeLeft / (FADE_S * sampleRate);
      out[offset + i] = value;
      const loud = Math.abs(value);
      if (loud > this.peak) this.peak = loud;
      if (loud > AUDIBLE) {
        this.totalAudible++;
        this.lastAudibleAt = currentTime + (offset + i + 1) / sampleRate;
        if (!this.heard.has(piece.itemId)) this.sound(piece.itemId, offset + i);
      }
    }
    piece.position += n;
    this.totalPlayed += n;
    this.played.set(piece.itemId, (this.played.get(piece.itemId) ?? 0) + n);
    return n;
  }

  sound(itemId, index) {
    this.heard.add(itemId);
    this.port.postMessage({ type: "audible", itemId, at: currentTime + index / sampleRate });
  }

  pass(piece) {
    this.pieces.shift();
    const { itemId } = piece;
    const goesOn = this.pieces.some((one) => one.itemId === itemId);
    if (!goesOn && this.complete.has(itemId)) this.end(itemId);
  }

  end(itemId) {
    const nPlayed = this.played.get(itemId) ?? 0;
    this.port.postMessage({ type: "ended", itemId, nPlayed });
    this.forget(itemId);
  }

  silence() {
    const { itemId, cause } = this.flushing;
    this.flushing = null;
    this.isPlaying = false;
    this.postFlushed(itemId, cause);
    for (const piece of this.pieces) this.forget(piece.itemId);
    this.pieces = [];
  }

  runDry() {
    this.isPlaying = false;
    if (this.flushing !== null) this.silence();
    else if (this.played.size > 0) this.underruns++; // an item is open and nothing is there
  }

  forget(itemId) {
    this.played.delete(itemId);
    this.heard.delete(itemId);
    this.complete.delete(itemId);
  }

  report() {
    if (++this.quanta < REPORT_QUANTA) return;
    this.quanta = 0;
    const { totalPlayed, totalAudible, underruns, peak, isPlaying } = this;
    this.port.postMessage({ type: "stats", totalPlayed, totalAudible, underruns, peak, isPlaying });
    this.peak = 0;
  }
}

registerProcessor("playback", Playback);
