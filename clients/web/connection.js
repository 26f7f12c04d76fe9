// One Realtime session over a WebSocket that comes back by itself.
//
// A browser cannot set headers, so the key travels as a subprotocol. When the connection breaks it
// is opened again after 0.5 s, 1 s, 2 s ... up to 15 s with some jitter, until it is closed here or
// the server says that another try is of no use.

const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 15_000;
const MAX_WAITING_BYTES = 256 * 1024; // 4 s of audio: more would only be heard too late
// The settings that the page sends would else count as those of a client that begins by itself.
const EXTRAS = {
  greeting: "1",
  "voiceloop.timeline": "1",
  "voiceloop.partials": "1",
  "voiceloop.notices": "1",
};

export class Connection {
  /** Callbacks: onOpen(isReconnect), onEvent(event), onWaiting(seconds, reason), onRefused(reason). */
  constructor({ key, onOpen, onEvent, onWaiting, onRefused }) {
    this.key = key;
    this.callbacks = { onOpen, onEvent, onWaiting, onRefused };
    this.closed = false;
    this.nFailed = 0;
    this.wasOpen = false;
    this.timer = 0;
    this.open();
  }

  open() {
    const url = new URL("/v1/realtime", location.href);
    url.protocol = location.protocol === "https:" ? "wss:" : "ws:";
    for (const [name, value] of Object.entries(EXTRAS)) url.searchParams.set(name, value);
    const protocols = ["realtime"];
    if (this.key) protocols.push(`openai-insecure-api-key.${this.key}`);
    let opened = false;
    this.socket = new WebSocket(url, protocols);
    this.socket.onopen = () => {
      opened = true;
      this.nFailed = 0;
      this.callbacks.onOpen(this.wasOpen);
      this.wasOpen = true;
    };
    this.socket.onmessage = ({ data }) => this.callbacks.onEvent(JSON.parse(data));
    this.socket.onclose = ({ code, reason }) => {
      if (!this.closed) this.comeBack(opened, code, reason);
    };
  }

  async comeBack(opened, code, reason) {
    const diagnosis = opened ? null : await this.diagnose();
    if (this.closed) return;
    if (code === 1008 || diagnosis?.final) {
      this.closed = true;
      this.callbacks.onRefused(diagnosis?.reason || reason || "the server refused the call");
      return;
    }
    const wait = Math.min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** this.nFailed++);
    const jittered = wait * (0.75 + 0.5 * Math.random());
    this.callbacks.onWaiting(jittered / 1000, diagnosis?.reason || reason || "the line broke");
    this.timer = setTimeout(() => this.open(), jittered);
  }

  /** Why the door stayed shut: a WebSocket hides the answer, plain HTTP shows it. */
  async diagnose() {
    try {
      const ready = await fetch("/readyz");
      if (ready.status === 503) return { reason: (await ready.json()).reason };
      const headers = this.key ? { Authorization: `Bearer ${this.key}` } : {};
      const models = await fetch("/v1/models", { headers });
      if (models.status === 401) {
        return { reason: "the server wants an API key: see Settings", final: true };
      }
      return { reason: "it turned us away: all lines are taken, or this address is not allowed" };
    } catch {
      return { reason: "the server does not answer" };
    }
  }

  get isOpen() {
    return this.socket.readyState === WebSocket.OPEN;
  }

  /** Send an event; false where the line is down. */
  send(event) {
    if (!this.isOpen) return false;
    this.socket.send(JSON.stringify(event));
    return true;
  }

  /** Send caller audio (base64 PCM16); false where it was dropped because the line is behind. */
  sendAudio(audio) {
    if (this.socket.bufferedAmount > MAX_WAITING_BYTES) return false;
    return this.send({ type: "input_audio_buffer.append", audio });
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
    this.socket.close(1000);
  }
}
