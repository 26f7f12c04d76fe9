// One Realtime session over WebRTC: the microphone's track out, the agent's in, events beside them.
//
// Where no connection comes about in time (UDP is shut, the server offers none) the caller of this
// takes the WebSocket instead; the server is told that nobody comes, so that it keeps no place.

export const CONNECT_WITHIN_MS = 4000;
const LOST_AFTER_MS = 5000; // "disconnected" may pass by itself; consent for the line lasts longer
const NOT_OFFERED = [400, 404, 405, 501]; // a server without WebRTC, or with another
let isShut = false; // no way was found once: who calls again from this page need not wait for that

/** Why it did not come about. `isRefused`: the server takes no call, by whatever line. */
export class NoRtc extends Error {
  constructor(message, status = 0) {
    super(message);
    this.isRefused = status !== 0 && !NOT_OFFERED.includes(status);
  }
}

/** The TURN servers that a server names, for browsers behind a firewall; none where it names none. */
export async function fetchIceServers(server, key) {
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  try {
    const answer = await fetch(`${server}/v1/realtime/ice-servers`, { headers });
    return answer.ok ? (await answer.json()).ice_servers : [];
  } catch {
    return []; // nobody answers: the offer will find that too
  }
}

/** Open a session. `url`: of `/v1/realtime/calls`; `key`: an `ek_` or none; `stream`: of the
 *  microphone, null where there is none (yet); `iceServers`: maybe still asked for. Callbacks: onEvent(event), onStream(MediaStream),
 *  onClosed(reason). Rejects with NoRtc; `signal` gives up. */
export async function openRtc({ url, key, stream, iceServers = [], onEvent, onStream, onClosed, signal }) {
  if (isShut || !globalThis.RTCPeerConnection) throw new NoRtc("there is no way for WebRTC here");
  const line = new RtcLine({ url, key, onEvent, onStream, onClosed });
  let timer = 0;
  const late = new Promise((_, reject) => {
    const giveUp = (why) => reject(new NoRtc(why));
    timer = setTimeout(() => {
      isShut ||= line.isAnswered && !line.isOpen;
      giveUp("no connection within 4 s");
    }, CONNECT_WITHIN_MS);
    signal?.addEventListener("abort", () => giveUp("given up"));
  });
  try {
    await Promise.race([line.open(stream, iceServers), late]);
  } catch (error) {
    line.close();
    throw error instanceof NoRtc ? error : new NoRtc(error.message);
  } finally {
    clearTimeout(timer); // a line that came about and ended within 4 s was no missing way
  }
  return line;
}

class RtcLine {
  constructor({ url, key, onEvent, onStream, onClosed }) {
    this.url = url;
    this.headers = key ? { Authorization: `Bearer ${key}` } : {};
    this.onClosed = onClosed;
    this.callUrl = null;
    this.isAnswered = this.isConnected = this.isClosed = false;
    this.peer = new RTCPeerConnection();
    this.channel = this.peer.createDataChannel("oai-events");
    this.channel.onmessage = ({ data }) => onEvent(JSON.parse(data));
    this.channel.onclose = () => this.lost("the server has ended the call");
    this.peer.ontrack = ({ streams, track }) => onStream(streams[0] ?? new MediaStream([track]));
    this.peer.onconnectionstatechange = () => this.changed();
  }

  async open(stream, iceServers) {
    this.peer.setConfiguration({ iceServers: await iceServers });
    const track = stream?.getAudioTracks()[0] ?? "audio";
    const options = { direction: "sendrecv", streams: stream ? [stream] : [] };
    this.sender = this.peer.addTransceiver(track, options).sender;
    await this.peer.setLocalDescription();
    const answer = await fetch(this.url, {
      method: "POST",
      headers: { ...this.headers, "Content-Type": "application/sdp" },
      body: this.peer.localDescription.sdp,
    });
    const text = await answer.text();
    if (!answer.ok) throw new NoRtc(messageOf(text), answer.status);
    const place = answer.headers.get("Location");
    if (place) this.callUrl = new URL(place, this.url).href;
    if (this.isClosed) return this.hangUp(); // it came too late
    this.isAnswered = true;
    const opened = new Promise((resolve) => (this.channel.onopen = resolve));
    await this.peer.setRemoteDescription({ type: "answer", sdp: text });
    await opened;
    this.isConnected = true;
  }

  changed() {
    const state = this.peer.connectionState;
    clearTimeout(this.timer);
    if (state === "failed") this.lost("the line broke");
    if (state === "disconnected") this.timer = setTimeout(() => this.lost("the line broke"), LOST_AFTER_MS);
  }

  lost(reason) {
    if (this.isClosed) return;
    this.close();
    this.onClosed(reason);
  }

  /** Use another microphone, or the first. */
  async replaceTrack(track) {
    await this.sender.replaceTrack(track);
  }

  get isOpen() {
    return this.channel.readyState === "open";
  }

  /** Send an event; false where the line is down. */
  send(event) {
    if (!this.isOpen) return false;
    this.channel.send(JSON.stringify(event));
    return true;
  }

  close() {
    if (this.isClosed) return;
    this.isClosed = true;
    clearTimeout(this.timer);
    // The peer may stand, late, until the server has answered: what it brings is of no call here.
    this.channel.onmessage = this.peer.ontrack = null;
    // Where the line stands its own end tells the server. Elsewhere that ends second: a server that
    // learned of it so would know no call to hang up any more.
    const told = this.isConnected ? Promise.resolve() : this.hangUp();
    told.finally(() => this.peer.close());
  }

  /** The server need not wait for somebody who does not come. */
  async hangUp() {
    if (!this.callUrl) return;
    const { headers } = this;
    await fetch(`${this.callUrl}/hangup`, { method: "POST", headers, keepalive: true }).catch(() => {});
  }
}

function messageOf(text) {
  try {
    return JSON.parse(text).error.message;
  } catch {
    return "the server offers no WebRTC";
  }
}
