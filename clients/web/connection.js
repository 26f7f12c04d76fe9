// One Realtime session, over WebRTC or a WebSocket, that comes back by itself.
//
// WebRTC is tried first: it carries sound past a lost packet. A WebSocket takes its place where the
// server offers none, or none comes about within 4 s. A browser cannot set a WebSocket's headers, so the key travels as a subprotocol; a key with signs that no
// subprotocol may have is exchanged for a client secret first. When the connection breaks it is
// opened again after 0.5 s, 1 s, 2 s ... up to 15 s with some jitter, until it is closed here or
// the server says that another try is of no use. The server's newest ticket says which call it was.

import { encodeSamples } from "./audio.js";
import { fetchIceServers, openRtc } from "./rtc.js";

const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 15_000;
const MAX_WAITING_BYTES = 256 * 1024; // 4 s of audio: more would only be heard too late
const EXTRAS = {
  "voiceloop.timeline": "1",
  "voiceloop.partials": "1",
  "voiceloop.notices": "1",
  "voiceloop.resume": "1",
};

const TOKEN = /^[!#$%&'*+\-.^_`|~0-9A-Za-z]+$/; // what a subprotocol may hold (RFC 9110, token)
const HEADER = /^[\x20-\x7e]+$/; // what a header may

/** The header that carries a key, none without one. Throws an Error where no header can. */
export function keyHeaders(key) {
  if (key && !HEADER.test(key)) throw new Error("a key has letters, digits and ASCII signs only");
  return key ? { Authorization: `Bearer ${key}` } : {};
}

export class Connection {
  /** `isGreeted`: the agent may speak first. `isRtc`: try WebRTC. `microphone`: gives its stream,
   *  null while there is none. Callbacks: onOpen(isReconnect), onEvent(event), onStream(stream),
   *  onWaiting(seconds, reason), onRefused(reason, needsKey). */
  constructor({ key, isGreeted, isRtc, microphone, ...callbacks }) {
    Object.assign(this, { key, isGreeted, isRtc, microphone, callbacks });
    this.line = null; // of WebRTC, while there is one
    this.closed = false;
    this.nFailed = 0;
    this.hadSession = false; // a line may open and break before the server has made one
    this.ticket = null;
    this.timer = 0;
    this.open();
  }

  async open() {
    if (this.isRtc) {
      try {
        await this.openLine();
        return;
      } catch (error) {
        if (this.closed) return;
        if (error.isRefused) return this.comeBack(false, 0, error.message);
        this.isRtc = false;
      }
    }
    await this.openSocket();
  }

  address(path) {
    const url = new URL(path, location.href);
    // Said either way: the settings that the page sends would else count as "begins by itself".
    // A call that is resumed is greeted only where nothing was said in it yet.
    const isBegun = this.hadSession && !this.ticket;
    url.searchParams.set("greeting", this.isGreeted && !isBegun ? "1" : "0");
    for (const [name, value] of Object.entries(EXTRAS)) url.searchParams.set(name, value);
    if (this.ticket) url.searchParams.set("voiceloop.returns", this.ticket.returns);
    return url;
  }

  async openLine() {
    const line = await openRtc({
      url: this.address("/v1/realtime/calls").href,
      key: this.key,
      stream: this.microphone(),
      iceServers: fetchIceServers(location.origin, this.key),
      onStream: this.callbacks.onStream,
      onEvent: (event) => this.received(event),
      onClosed: (reason) => {
        this.line = null;
        if (!this.closed) this.comeBack(true, 0, reason);
      },
    });
    if (this.closed) return line.close();
    this.line = line;
    this.opened();
  }

  async openSocket() {
    let key;
    try {
      key = await this.subprotocolKey();
    } catch (error) {
      if (!this.closed) this.comeBack(false, 0, error.message);
      return;
    }
    if (this.closed) return;
    const url = this.address("/v1/realtime");
    url.protocol = location.protocol === "https:" ? "wss:" : "ws:";
    const protocols = ["realtime"];
    if (key) protocols.push(`openai-insecure-api-key.${key}`);
    let opened = false;
    this.socket = new WebSocket(url, protocols);
    this.socket.onopen = () => {
      opened = true;
      this.opened();
    };
    this.socket.onmessage = ({ data }) => this.received(JSON.parse(data));
    this.socket.onclose = ({ code, reason }) => {
      if (!this.closed) this.comeBack(opened, code, reason);
    };
  }

  opened() {
    this.nFailed = 0;
    this.callbacks.onOpen(this.hadSession);
  }

  received(event) {
    this.hadSession = true;
    if (event.type === "voiceloop.resume_ticket") this.ticket = event;
    else this.callbacks.onEvent(event);
  }

  /** A microphone that was opened in mid-call. */
  async useMicrophone() {
    await this.line?.replaceTrack(this.microphone().getAudioTracks()[0]);
  }

  /** The key as a subprotocol can carry it. */
  async subprotocolKey() {
    if (!this.key || TOKEN.test(this.key)) return this.key;
    // The form sets the instructions and the voice; tools and other roles are the agent's alone.
    const body = JSON.stringify({ lock: ["tools", "roles"] });
    const headers = keyHeaders(this.key);
    const answer = await fetch("/v1/realtime/client_secrets", { method: "POST", headers, body });
    if (!answer.ok) throw new Error("the server gives no client secret for this key");
    return (await answer.json()).value;
  }

  async comeBack(opened, code, reason) {
    const diagnosis = opened ? null : await this.diagnose();
    if (this.closed) return;
    if (code === 1008 || diagnosis?.final) {
      this.closed = true;
      const told = diagnosis?.reason || reason || "the server refused the call";
      this.callbacks.onRefused(told, diagnosis?.needsKey ?? false);
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
      const models = await fetch("/v1/models", { headers: keyHeaders(this.key) });
      if (models.status === 401) {
        const reason = this.key ? "the server does not know this API key" : "the server wants an API key";
        return { reason, final: true, needsKey: true };
      }
      return { reason: "it turned us away: all lines are taken, or this address is not allowed" };
    } catch (error) {
      if (error instanceof TypeError) return { reason: "the server does not answer" };
      return { reason: error.message, final: true, needsKey: true }; // no header can carry the key
    }
  }

  /** Ask for the call that broke off; false where there is no ticket of it (any more). It is kept
   *  until the next comes: the line may break again before that. */
  resume() {
    const { ticket } = this;
    return ticket !== null && this.send({ type: "voiceloop.resume", ticket: ticket.ticket });
  }

  /** A ticket that is refused will be refused again. */
  dropTicket() {
    this.ticket = null;
  }

  get isOpen() {
    return this.line?.isOpen ?? this.socket?.readyState === WebSocket.OPEN;
  }

  /** Send an event; false where the line is down. */
  send(event) {
    if (!this.isOpen) return false;
    if (this.line) return this.line.send(event);
    this.socket.send(JSON.stringify(event));
    return true;
  }

  /** Send a frame of the caller's; false where it was dropped because the line is behind. WebRTC
   *  takes them from the microphone itself. */
  sendAudio(frame) {
    if (!this.isOpen) return false;
    if (this.line) return true;
    if (this.socket.bufferedAmount > MAX_WAITING_BYTES) return false;
    return this.send({ type: "input_audio_buffer.append", audio: encodeSamples(frame) });
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
    this.line?.close();
    this.socket?.close(1000);
  }
}
