// The widget's line where WebRTC is not to be had: a WebSocket that carries the sound too.
//
// Same shape as the line of rtc.js. The caller's side of an interruption is here: the loudspeaker
// falls silent on `speech_started`, and the server is told how much of the reply was played.

import { decodeSamples, encodeSamples, openAudio, RATE_HZ } from "./audio.js";

/** Open a session. `url`: of `/v1/realtime`; the rest as `openRtc`, but for `onSpeaking(isHeard)`.
 *  Rejects with an Error. */
export async function openSocket({ url, key, onEvent, onClosed, onSpeaking }) {
  const line = new SocketLine({ onEvent, onClosed, onSpeaking });
  try {
    await line.open(url, key);
  } catch (error) {
    line.close();
    throw error;
  }
  return line;
}

class SocketLine {
  constructor(callbacks) {
    Object.assign(this, callbacks);
    this.flushed = new Set(); // items that must not be heard any more
    this.isClosed = false;
  }

  async open(url, key) {
    this.audio = await openAudio({ onPlayback: (message) => this.played(message) });
    await this.audio.openMicrophone({
      onFrame: ({ frame }) => this.send({ type: "input_audio_buffer.append", audio: encodeSamples(frame) }),
      onLost: () => this.lost("the microphone has gone"),
    });
    const protocols = ["realtime", ...(key ? [`openai-insecure-api-key.${key}`] : [])];
    this.socket = new WebSocket(url.replace(/^http/, "ws"), protocols);
    this.socket.onmessage = ({ data }) => this.receive(JSON.parse(data));
    await new Promise((resolve, reject) => {
      this.socket.onopen = resolve;
      this.socket.onclose = () => reject(new Error("the server does not take the call"));
    });
    this.socket.onclose = ({ reason }) => this.lost(reason || "the line broke");
  }

  set muted(muted) {
    this.audio.muted = muted;
  }

  receive(event) {
    if (event.type === "input_audio_buffer.speech_started") this.audio.flush({});
    else if (event.type === "response.output_audio.done") this.audio.complete(event.item_id);
    else if (event.type === "response.output_audio.delta") {
      if (!this.flushed.has(event.item_id)) this.audio.push(event.item_id, decodeSamples(event.delta));
      return; // nobody else needs the sound
    }
    this.onEvent(event);
  }

  played({ type, itemId, nPlayed }) {
    if (type === "audible") this.onSpeaking(true);
    if (type === "ended") this.onSpeaking(false);
    if (type !== "flushed" || itemId === null) return;
    this.onSpeaking(false);
    this.flushed.add(itemId);
    const audio_end_ms = Math.floor((1000 * nPlayed) / RATE_HZ);
    this.send({ type: "conversation.item.truncate", item_id: itemId, content_index: 0, audio_end_ms });
  }

  send(event) {
    if (this.socket?.readyState !== WebSocket.OPEN) return false;
    this.socket.send(JSON.stringify(event));
    return true;
  }

  lost(reason) {
    if (this.isClosed) return;
    this.close();
    this.onClosed(reason);
  }

  close() {
    this.isClosed = true;
    this.socket?.close(1000);
    this.audio?.close();
  }
}
