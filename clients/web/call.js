// One call: audio to the server, its events to the ear and to the page.
//
// The caller's side of an interruption is here: on `speech_started` the loudspeaker is flushed at
// once, and the server is told with `conversation.item.truncate` how much had been played.

import { decodeSamples, encodeSamples, openAudio, RATE_HZ } from "./audio.js";
import { Connection } from "./connection.js";
import { SentAudio, Turns } from "./gap.js";

const SHORTEST_TALK_MS = 200; // a shorter press is a slip

export class Call {
  /** `view` gets what a person should see; `settings` says what the session asks for. */
  constructor(settings, view) {
    this.settings = settings;
    this.view = view;
    this.turns = new Turns(RATE_HZ);
    this.lastLoudAt = 0;
    this.nFrames = 0;
    this.isHeld = false; // push to talk: the button is down
    this.endsTalk = false; // the frame under way is the last one
    this.heldSince = 0;
    this.openResponse = null;
    this.flushed = new Set(); // items that must not be heard any more
    this.playing = null; // the item that is audible
    this.flushes = []; // {itemId, playedMs, silentAfterMs: the news, silentAfterOnsetMs}
    this.stats = { totalPlayed: 0, totalAudible: 0, underruns: 0 };
  }

  /** Ask for the microphone, then connect. */
  async start() {
    this.audio = await openAudio({
      onFrame: (frame) => this.captured(frame),
      onPlayback: (message) => this.played(message),
      onMicrophoneLost: () => this.view.failed("the microphone has gone"),
    });
    this.connection = new Connection({
      key: this.settings.get("key"),
      onOpen: (isReconnect) => this.opened(isReconnect),
      onEvent: (event) => this.receive(event),
      onWaiting: (seconds, reason) => this.lost(seconds, reason),
      onRefused: (reason) => this.view.failed(reason),
    });
  }

  async stop() {
    this.connection?.close();
    await this.audio?.close();
  }

  configure() {
    this.connection?.send({ type: "session.update", session: this.settings.session() });
  }

  opened(isReconnect) {
    this.turns.audio = new SentAudio(RATE_HZ); // the new session counts from its own start
    if (isReconnect) {
      // Before the settings: a server with a greeting must see that one is under way.
      for (const item of this.view.conversation()) {
        this.connection.send({ type: "conversation.item.create", item });
      }
    }
    this.configure();
    this.view.connected(isReconnect);
  }

  lost(seconds, reason) {
    this.audio.flush();
    this.openResponse = null;
    this.view.waiting(seconds, reason);
  }

  // --- the microphone ---

  captured({ frame, peak, lastLoudAt, endsAt }) {
    this.lastLoudAt = lastLoudAt;
    this.nFrames++;
    this.view.level(peak);
    if (!this.settings.isHandsFree && !this.isHeld) return;
    if (this.connection?.sendAudio(encodeSamples(frame))) {
      this.turns.audio.sent(frame.length, endsAt);
    }
    if (this.endsTalk) this.commit();
  }

  /** Push to talk: the caller has the floor, and what is playing falls silent. */
  hold() {
    if (this.isHeld || this.settings.isHandsFree || !this.connection?.isOpen) return;
    this.isHeld = true;
    this.endsTalk = false;
    this.heldSince = this.audio.now;
    this.turns.callerStarted();
    this.interrupt(this.audio.now);
    if (this.openResponse) this.connection.send({ type: "response.cancel" });
    this.connection.send({ type: "input_audio_buffer.clear" });
    this.view.phase("listening");
  }

  /** The button is up: the frame under way is still sent, then the turn is committed. */
  release() {
    if (this.isHeld) this.endsTalk = true;
  }

  commit() {
    this.isHeld = false;
    this.endsTalk = false;
    if (1000 * (this.audio.now - this.heldSince) < SHORTEST_TALK_MS) {
      this.connection.send({ type: "input_audio_buffer.clear" });
      this.view.phase("ready");
      return;
    }
    this.turns.callerStopped(Math.min(this.lastLoudAt, this.audio.now));
    this.connection.send({ type: "input_audio_buffer.commit" });
    this.connection.send({ type: "response.create" });
    this.view.phase("thinking");
  }

  // --- the loudspeaker ---

  /** Fall silent now; `onsetAt` is when the caller began, null where it is not known. */
  interrupt(onsetAt) {
    if (this.playing) this.flushed.add(this.playing);
    this.flushAskedAt = this.audio.now;
    this.onsetAt = onsetAt ?? this.flushAskedAt;
    this.audio.flush();
  }

  played(message) {
    switch (message.type) {
      case "audible":
        this.playing = message.itemId;
        this.heardAgent(message);
        break;
      case "ended":
        if (this.playing === message.itemId) this.playing = null;
        if (!this.openResponse) this.view.phase("ready");
        break;
      case "flushed":
        this.cutShort(message);
        break;
      case "stats":
        this.stats = message;
        this.view.agentLevel(message.peak);
        break;
    }
  }

  heardAgent({ itemId, at }) {
    this.view.phase("speaking");
    const turn = this.turns.audible(itemId, at);
    if (turn) this.view.answered(turn, this.turns);
  }

  cutShort({ itemId, nPlayed, silentAt }) {
    this.playing = null;
    if (itemId === null) return;
    this.flushed.add(itemId);
    const playedMs = Math.floor((1000 * nPlayed) / RATE_HZ);
    const silentAfterMs = 1000 * Math.max(0, silentAt - this.flushAskedAt);
    const silentAfterOnsetMs = 1000 * Math.max(0, silentAt - this.onsetAt);
    this.flushes.push({ itemId, playedMs, silentAfterMs, silentAfterOnsetMs });
    if (nPlayed > 0) this.turns.silences.push(silentAfterOnsetMs);
    this.connection.send({
      type: "conversation.item.truncate",
      item_id: itemId,
      content_index: 0,
      audio_end_ms: playedMs,
    });
    this.view.interrupted(this.turns);
  }

  // --- the server's events ---

  receive(event) {
    switch (event.type) {
      case "session.created":
        this.view.session(event.session);
        break;
      case "input_audio_buffer.speech_started":
        this.turns.callerStarted();
        this.interrupt(this.turns.audio.capturedAt(event.audio_start_ms));
        this.view.phase("listening");
        break;
      case "input_audio_buffer.speech_stopped":
        this.turns.callerStopped(this.lastLoudAt);
        this.view.phase("thinking");
        break;
      case "voiceloop.partial":
        this.view.captions.heard(event.item_id, event.stable, event.unstable);
        break;
      case "conversation.item.input_audio_transcription.completed":
        this.view.captions.callerSaid(event.item_id, event.transcript);
        break;
      case "response.created":
        this.openResponse = event.response.id;
        break;
      case "response.output_audio_transcript.delta":
      case "response.output_text.delta":
        this.view.captions.agentDelta(event.item_id, event.delta);
        break;
      case "response.output_audio.delta":
        this.hear(event);
        break;
      case "response.output_audio.done":
        this.audio.complete(event.item_id);
        break;
      case "response.output_audio_transcript.done":
      case "response.output_text.done":
        if (!this.flushed.has(event.item_id)) this.view.captions.agentDone(event.item_id);
        break;
      case "response.done":
        this.responseDone(event.response);
        break;
      case "conversation.item.truncated":
        this.connection.send({ type: "conversation.item.retrieve", item_id: event.item_id });
        break;
      case "conversation.item.retrieved":
        this.showHeard(event.item);
        break;
      case "voiceloop.timeline": {
        const turn = this.turns.timeline(event.timeline);
        if (turn) this.view.explained(turn, this.turns);
        break;
      }
      case "voiceloop.session_expiring":
        this.view.captions.note(`The server ends this call in ${event.seconds_left} s.`);
        break;
      case "error":
        // The reply ended by itself while our cancel was on its way.
        if (event.error.code !== "response_cancel_not_active") this.view.error(event.error);
        break;
    }
  }

  hear(event) {
    if (this.flushed.has(event.item_id)) return;
    this.turns.replyArrives(event.item_id, event.response_id, this.audio.now);
    this.audio.push(event.item_id, decodeSamples(event.delta));
  }

  responseDone(response) {
    if (this.openResponse === response.id) this.openResponse = null;
    if (response.status === "failed") {
      this.view.error(response.status_details?.error ?? { message: "the reply failed" });
    }
    if (!this.playing && !this.openResponse && !this.isHeld) this.view.phase("ready");
  }

  showHeard(item) {
    if (item.role !== "assistant" || !this.flushed.has(item.id)) return;
    const heard = item.content.map((part) => part.transcript ?? part.text ?? "").join("");
    this.view.captions.agentInterrupted(item.id, heard);
  }
}
