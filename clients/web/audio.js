// The page's microphone and loudspeaker: one AudioContext at 24 kHz, a worklet for each side.
//
// The agent's sound is pushed here piece by piece, or comes as a stream (`listen`); what is told of
// it is the same. All worklets stamp with the same audio clock, so that the time from the caller's last sound to
// the agent's first is measured without comparing two clocks.

export const RATE_HZ = 24_000;

/** Open the loudspeaker; the microphone is opened after it. Call it in a user gesture. */
export async function openAudio({ onPlayback }) {
  if (!navigator.mediaDevices || !globalThis.AudioWorkletNode) {
    throw new Error("this page needs https or localhost: browsers give no microphone elsewhere");
  }
  const context = new AudioContext({ sampleRate: RATE_HZ, latencyHint: "interactive" });
  try {
    for (const name of ["capture", "playback", "hearing"]) {
      await context.audioWorklet.addModule(new URL(`${name}_worklet.js`, import.meta.url));
    }
    await context.resume();
  } catch (error) {
    await context.close();
    throw error;
  }
  return new Audio(context, onPlayback);
}

class Audio {
  constructor(context, onPlayback) {
    this.context = context;
    this.track = this.stream = null; // of the microphone
    this.onPlayback = onPlayback;
    this.queue = this.loudspeaker("playback", { numberOfInputs: 0 });
    this.hearFrom(this.queue);
  }

  loudspeaker(name, options) {
    const node = new AudioWorkletNode(this.context, name, { ...options, outputChannelCount: [2] });
    node.connect(this.context.destination);
    return node;
  }

  /** What is heard is told by this loudspeaker alone: another would say that nothing is. */
  hearFrom(node) {
    if (this.output) this.output.port.onmessage = null;
    this.output = node;
    node.port.onmessage = ({ data }) => this.onPlayback(data);
  }

  /** Play a stream of WebRTC from now on; null: what is pushed. */
  listen(stream) {
    if (this.player) {
      this.player.srcObject = null;
      this.output.disconnect();
    }
    this.player = null;
    this.hearFrom(this.queue);
    if (!stream) return;
    // Chrome lets a stream of WebRTC flow only where an element plays it.
    this.player = Object.assign(document.createElement("audio"), { muted: true, srcObject: stream });
    this.player.play().catch(() => {});
    const options = { numberOfInputs: 1, channelCount: 1, channelCountMode: "explicit" };
    this.hearFrom(this.loudspeaker("hearing", options));
    this.context.createMediaStreamSource(stream).connect(this.output);
  }

  /** Open the microphone with echo cancellation. Rejects with a DOMException where there is none
   *  or no permission. */
  async openMicrophone({ onFrame, onLost }) {
    const stream = await navigator.mediaDevices.getUserMedia({
      audio: {
        echoCancellation: true,
        noiseSuppression: true,
        autoGainControl: true,
        channelCount: 1,
      },
    });
    if (this.context.state === "closed") {
      stream.getTracks().forEach((track) => track.stop()); // hung up while it was asked for
      return;
    }
    this.stream = stream;
    this.track = stream.getAudioTracks()[0];
    this.track.onended = onLost;
    const capture = new AudioWorkletNode(this.context, "capture", { numberOfOutputs: 0 });
    this.context.createMediaStreamSource(stream).connect(capture);
    capture.port.onmessage = ({ data }) => onFrame(data);
  }

  /** Now, on the clock that both worklets stamp with: seconds. */
  get now() {
    return this.context.currentTime;
  }

  push(itemId, samples) {
    this.output.port.postMessage({ type: "push", itemId, samples }, [samples.buffer]);
  }

  /** The stream's sound is this item's from now on. */
  begin(itemId) {
    this.output.port.postMessage({ type: "begin", itemId });
  }

  complete(itemId) {
    this.output.port.postMessage({ type: "complete", itemId });
  }

  /** Fall silent; the `cause` comes back with the answer. */
  flush(cause) {
    this.output.port.postMessage({ type: "flush", cause });
  }

  /** A muted microphone goes on as silence: the line stays open and turns still end. */
  set muted(muted) {
    if (this.track) this.track.enabled = !muted;
  }

  async close() {
    if (this.track) {
      this.track.onended = null;
      this.track.stop();
    }
    await this.context.close();
  }
}

/** Int16 samples to base64 of their little-endian bytes. */
export function encodeSamples(samples) {
  const bytes = new Uint8Array(samples.buffer, samples.byteOffset, samples.byteLength);
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  return btoa(text);
}

/** Base64 of little-endian PCM16 to Int16 samples. */
export function decodeSamples(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return new Int16Array(bytes.buffer);
}
