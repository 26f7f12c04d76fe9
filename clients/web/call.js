// One call: audio to the server, its events to the ear and to the page.
//
// The caller's side of an interruption is here: on `speech_started` the loudspeaker is flushed at
// once. Over a WebSocket the server is told with `conversation.item.truncate` how much had been
// played; over WebRTC it holds the sound itself, and knows.

import { decodeSamples, openAudio, RATE_HZ } from "./audio.js";
import { Connection } from "./connection.js";
import { SentAudio, Turns } from "./gap.js";

const SHORTEST_TALK_MS = 200; // a shorter press is a slip
// After a press the frame under way is still sent; over WebRTC sound is behind events by its coding.
const FRAMES_AFTER_TALK = { socket: 1, rtc: 4 };
const NEWS_OF_CAUSE_MS = 50; // a server that clears says right behind it that the caller cut in

export class Call {
  /** `view` gets what a person should see; `settings` says what the session asks for;
   *  `agent` (of agent.js) which tools the server leaves to its client, which has no answer here,
   *  and whether it offers WebRTC. */
  constructor(settings, view, agent) {
    this.settings = settings;
    this.view = view;
    this.agent = agent;
    this.clientTools = new Set(agent.client_tools);
    this.turns = new Turns(RATE_HZ);
    this.isReady = false; // the session is open and has been asked for our settings
    this.isReconnect = false;
    this.isResuming = false; // the server has been shown the ticket, and has not answered
    this.lastLoudAt = 0;
    this.nFrames = 0;
    this.nResumed = 0;
    this.isMuted = false; // hands-free
    this.isHeld = false; // push to talk: the button is down
    this.nFramesLeft = 0; // of a press that is over, until it is committed
    this.heldSince = 0;
    this.heardItem = null; // the caller's, of which partials have come
    this.releasedAt = 0;
    this.unsent = []; // typed while the line was not open
    this.nTyped = 0;
    this.openResponse = null;
    this.flushed = new Set(); // items that must not be heard any more
    this.playing = null; // the item that is audible
    this.spoken = new Map(); // response id -> the item whose sound comes over WebRTC
    this.flushes = []; // {itemId, playedMs, silentAfterMs: the news, silentAfterOnsetMs}
    this.stats = { totalPlayed: 0, totalAudible: 0, underruns: 0 };
  }

  /** Open the loudspeaker and, unless the caller only types, the microphone; then connect. */
  async start({ hasMicrophone }) {
    this.audio = await openAudio({ onPlayback: (message) => this.played(message) });
    if (hasMicrophone) {
      try {
        await this.openMicrophone();
      } catch (error) {
        await this.audio.close();
        throw error;
      }
    }
    this.connection = new Connection({
      key: this.settings.get("key"),
      isGreeted: hasMicrophone, // who begins by typing has begun
      isRtc: this.agent.webrtc && this.settings.isRtc,
      microphone: () => this.audio.stream,
      onStream: (stream) => this.audio.listen(stream),
      onOpen: (isReconnect) => this.opened(isReconnect),
      onEvent: (event) => this.receive(event),
      onWaiting: (seconds, reason) => this.lost(seconds, reason),
      onRefused: (reason, needsKey) => this.view.failed(reason, needsKey),
    });
  }

  get hasMicrophone() {
    return Boolean(this.audio?.track);
  }

  async openMicrophone() {
    await this.audio.openMicrophone({
      onFrame: (frame) => this.captured(frame),
      onLost: () => this.view.failed("the microphone has gone"),
    });
    this.letOut();
    await this.connection?.useMicrophone();
  }

  /** Whether the server holds the sound: WebRTC. */
  get isRtc() {
    return Boolean(this.connection?.line);
  }

  async stop() {
    this.connection?.close();
    await this.audio?.close();
  }

  configure() {
    this.letOut();
    this.connection?.send({ type: "session.update", session: this.settings.session() });
  }

  /** The person's own choice, hands-free. */
  set muted(muted) {
    this.isMuted = muted;
    this.letOut();
  }

  /** Over WebRTC the microphone itself is the line: in push to talk it is silent between two
   *  presses, and before the server knows of them. */
  letOut() {
    const isLine = this.connection?.isRtc ?? true; // what opens may be one
    this.audio.muted = this.settings.isHandsFree ? this.isMuted : isLine && !this.isHeld;
  }

  opened(isReconnect) {
    this.letOut();
    if (!this.isRtc) this.audio.listen(null);
    this.isReconnect = isReconnect;
    this.isResuming = false;
    this.turns.audio = new SentAudio(RATE_HZ); // the new session counts from its own start
  }

  /** The session is there: its own values are known, ours may follow. */
  configured(session) {
    this.settings.opened(session);
    this.isResuming = this.isReconnect && this.connection.resume();
    if (!this.isResuming) this.begin({ isResumed: false }); // else it is resumed, or refused, next
  }

  /** `isResumed`: the server has the conversation, as it was heard. */
  begin({ isResumed }) {
    const { isReconnect } = this;
    this.isReady = true;
    this.isResuming = false;
    if (!isResumed) this.connection.dropTicket();
    this.nResumed += isResumed ? 1 : 0;
    if (isReconnect && !isResumed) {
      // Before the settings: a server with a greeting must see that one is under way.
      const unsent = new Set(this.unsent.map(([id]) => id)); // said again below, to be answered
      for (const item of this.view.conversation(unsent)) {
        this.connection.send({ type: "conversation.item.create", item });
      }
    }
    this.configure();
    this.view.connected(isReconnect, this.isRtc);
    for (const [id, text] of this.unsent.splice(0)) this.say(text, id);
  }

  lost(seconds, reason) {
    this.audio.flush({ onsetAt: null, askedAt: this.audio.now });
    this.isReady = false;
    this.openResponse = null;
    this.view.waiting(seconds, reason);
  }

  /** A typed message: it takes the floor, and is answered aloud. shownAs: its id, where it is shown. */
  say(text, shownAs = null) {
    const id = shownAs ?? `typed_${++this.nTyped}_${Math.random().toString(36).slice(2, 10)}`;
    if (!this.isReady) {
      this.view.captions.callerSaid(id, text); // it waits for the line, and is not lost
      this.unsent.push([id, text]);
      return;
    }
    this.turns.callerStarted(); // a typed message has no last sound to count from
    this.takeFloor(null);
    const content = [{ type: "input_text", text }];
    const item = { id, type: "message", role: "user", content };
    this.connection.send({ type: "conversation.item.create", item });
    this.connection.send({ type: "response.create" });
    if (shownAs === null) this.view.captions.callerSaid(id, text);
    this.view.phase("thinking");
  }

  // --- the microphone ---

  captured({ frame, peak, lastLoudAt, endsAt }) {
    this.lastLoudAt = lastLoudAt;
    this.nFrames++;
    this.view.level(peak);
    if (!this.isRtc && !this.settings.isHandsFree && !this.isHeld) return;
    if (this.connection?.sendAudio(frame)) this.turns.audio.sent(frame.length, endsAt);
    if (this.nFramesLeft && !--this.nFramesLeft) this.commit();
  }

  /** Push to talk: the caller has the floor, and what is playing falls silent. */
  hold() {
    if (this.isHeld || this.settings.isHandsFree || !this.isReady) return;
    this.isHeld = true;
    this.nFramesLeft = 0;
    this.heldSince = this.audio.now;
    this.turns.callerStarted();
    this.takeFloor(this.audio.now);
    this.connection.send({ type: "input_audio_buffer.clear" });
    this.letOut();
    this.view.phase("listening");
  }

  /** The button is up: the frame under way is still sent, then the turn is committed. */
  release() {
    if (!this.isHeld || this.nFramesLeft) return;
    this.nFramesLeft = FRAMES_AFTER_TALK[this.isRtc ? "rtc" : "socket"];
    this.releasedAt = this.audio.now;
  }

  commit() {
    this.isHeld = false;
    this.letOut();
    if (1000 * (this.releasedAt - this.heldSince) < SHORTEST_TALK_MS) {
      this.connection.send({ type: "input_audio_buffer.clear" });
      this.view.phase("ready");
      return;
    }
    this.turns.callerStopped(this.releasedAt); // the server was not told before
    this.connection.send({ type: "input_audio_buffer.commit" });
    this.connection.send({ type: "response.create" });
    this.view.phase("thinking");
  }

  // --- the loudspeaker ---

  /** Fall silent because the caller types or presses, and have the server stop. */
  takeFloor(onsetAt) {
    this.silence(onsetAt);
    if (this.openResponse) this.connection.send({ type: "response.cancel" });
    if (this.isRtc) this.connection.send({ type: "output_audio_buffer.clear" });
  }

  /** Fall silent now; `onsetAt` is when the caller cut in, null where nobody did. */
  silence(onsetAt) {
    if (this.playing) this.flushed.add(this.playing);
    this.audio.flush({ onsetAt, askedAt: this.audio.now });
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

  cutShort({ itemId, nPlayed, silentAt, cause }) {
    this.playing = null;
    if (itemId === null) return;
    this.flushed.add(itemId);
    const playedMs = Math.floor((1000 * nPlayed) / RATE_HZ);
    const silentAfterMs = 1000 * Math.max(0, (silentAt ?? cause.askedAt) - cause.askedAt);
    const silentAfterOnsetMs = this.turns.cutIn(cause.onsetAt, silentAt);
    this.flushes.push({ itemId, playedMs, silentAfterMs, silentAfterOnsetMs });
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
        this.configured(event.session);
        break;
      case "input_audio_buffer.speech_started":
        this.turns.callerStarted();
        this.silence(this.turns.audio.capturedAt(event.audio_start_ms) ?? this.audio.now);
        this.view.phase("listening");
        break;
      case "input_audio_buffer.speech_stopped":
        this.turns.callerStopped(this.lastLoudAt);
        this.view.phase("thinking");
        break;
      case "voiceloop.partial":
        this.heardItem = event.item_id;
        this.view.captions.heard(event.item_id, event.stable, event.unstable);
        break;
      case "input_audio_buffer.committed":
        this.heardItem = null;
        break;
      case "input_audio_buffer.cleared":
        // Over WebRTC sound may overtake the clear that goes before it: its words are no turn.
        if (this.heardItem) this.view.captions.remove(this.heardItem);
        this.heardItem = null;
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
        if (!this.isRtc) this.audio.complete(event.item_id);
        break;
      case "response.content_part.added":
        this.spoken.set(event.response_id, event.item_id);
        break;
      case "output_audio_buffer.started": {
        const itemId = this.spoken.get(event.response_id);
        this.turns.replyArrives(itemId, event.response_id, this.audio.now);
        this.audio.begin(itemId);
        break;
      }
      case "output_audio_buffer.stopped":
        this.audio.complete(this.spoken.get(event.response_id));
        break;
      case "output_audio_buffer.cleared": {
        const itemId = this.spoken.get(event.response_id);
        setTimeout(() => this.playing === itemId && this.silence(null), NEWS_OF_CAUSE_MS);
        break;
      }
      case "response.output_audio_transcript.done":
      case "response.output_text.done":
        if (!this.flushed.has(event.item_id)) this.view.captions.agentDone(event.item_id);
        break;
      case "response.output_item.done":
        this.toolCalled(event.item);
        break;
      case "conversation.item.added":
        this.toolAnswered(event.item);
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
      case "voiceloop.resumed":
        this.begin({ isResumed: true });
        break;
      case "error":
        if (this.isResuming) {
          this.begin({ isResumed: false }); // too late, or another server: it is told what was said
          if (event.error.code?.startsWith("resume_")) break;
        }
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
    const calls = (response.output ?? []).filter((item) => item.type === "function_call");
    if (response.status === "completed") this.answerTools(calls);
    if (!this.playing && !this.openResponse && !this.isHeld) this.view.phase("ready");
  }

  toolCalled(item) {
    if (item.type !== "function_call") return;
    this.view.captions.toolCalled(item.call_id, item.name, item.arguments);
  }

  toolAnswered(item) {
    if (item.type !== "function_call_output") return;
    this.view.captions.toolAnswered(item.call_id, item.output);
  }

  /** This page runs no tools: a call that the server leaves to its client is answered with an
   *  error at once, so that the agent can say so. Of calls of both kinds a client answers all. */
  answerTools(calls) {
    if (!calls.some((call) => this.clientTools.has(call.name))) return;
    for (const call of calls) {
      const output = JSON.stringify({ error: `nobody is here who can do ${call.name}` });
      const item = { type: "function_call_output", call_id: call.call_id, output };
      this.connection.send({ type: "conversation.item.create", item });
    }
    this.connection.send({ type: "response.create" });
  }

  showHeard(item) {
    if (item.role !== "assistant" || !this.flushed.has(item.id)) return;
    const heard = item.content.map((part) => part.transcript ?? part.text ?? "").join("");
    this.view.captions.agentInterrupted(item.id, heard);
  }
}
