// What a person can set: voice, instructions, eagerness, how they talk, the key.
//
// Kept in this browser (the key only until its tab is closed), turned into the session's settings.
// What the person left alone is never sent: it stays the agent's own.

const STORED = "voiceloop.settings";
const KEY = "voiceloop.key";
const NAMES = ["voice", "instructions", "eagerness", "mode"];

export class Settings {
  constructor(form) {
    this.form = form;
    this.own = {}; // the agent's values, of the session that is open
    this.replaced = new Set(); // names of those that this session was asked to replace
    this.stored = JSON.parse(localStorage.getItem(STORED) ?? "{}");
    for (const name of NAMES) {
      if (this.stored[name] !== undefined) form.elements[name].value = this.stored[name];
    }
    form.elements.key.value = sessionStorage.getItem(KEY) ?? "";
  }

  get(name) {
    return this.form.elements[name].value.trim();
  }

  /** Whether the page may call over WebRTC: unless its address says otherwise. */
  get isRtc() {
    return new URLSearchParams(location.search).get("transport") !== "websocket";
  }

  get isHandsFree() {
    return this.get("mode") !== "push-to-talk";
  }

  save() {
    this.stored = Object.fromEntries(NAMES.map((name) => [name, this.get(name)]));
    localStorage.setItem(STORED, JSON.stringify(this.stored));
    sessionStorage.setItem(KEY, this.get("key"));
  }

  /** The voices there are; a text field where the server cannot know them. */
  showVoices(voices) {
    const old = this.form.elements.voice;
    const isList = voices.length > 0;
    const field = document.createElement(isList ? "select" : "input");
    field.name = "voice";
    if (isList) {
      field.append(new Option("agent’s own", ""), ...voices.map((one) => new Option(one, one)));
      field.value = voices.includes(this.stored.voice) ? this.stored.voice : "";
    } else {
      Object.assign(field, { type: "text", maxLength: 64, spellcheck: false });
      field.value = this.stored.voice ?? "";
    }
    old.replaceWith(field);
  }

  /** A session has opened with these values, all of them the agent's own. */
  opened(session) {
    this.replaced.clear();
    this.own = {
      instructions: session.instructions,
      voice: session.audio?.output?.voice,
      turn_detection: session.audio?.input?.turn_detection,
    };
    this.form.elements.instructions.placeholder = this.own.instructions ?? "";
    const own = this.form.elements.eagerness.options[0];
    const eagerness = this.own.turn_detection?.eagerness;
    own.textContent = eagerness ? `agent’s own (${eagerness})` : "agent’s own";
  }

  /** The body of `session.update`. A field that was emptied in mid-call is the agent's again. */
  session() {
    const chosen = {
      voice: this.get("voice") || undefined,
      instructions: this.get("instructions") || undefined,
      turn_detection: this.turnDetection(),
    };
    const asked = {};
    for (const [name, value] of Object.entries(chosen)) {
      if (value !== undefined) {
        asked[name] = value;
        this.replaced.add(name);
      } else if (this.replaced.has(name)) asked[name] = this.own[name];
    }
    const input = { transcription: { model: "whisper-1" } }; // without it the caller's words stay unsaid
    if ("turn_detection" in asked) input.turn_detection = asked.turn_detection;
    const session = { type: "realtime", audio: { input } };
    if ("voice" in asked) session.audio.output = { voice: asked.voice };
    if ("instructions" in asked) session.instructions = asked.instructions;
    return session;
  }

  turnDetection() {
    if (!this.isHandsFree) return null;
    const eagerness = this.get("eagerness");
    return eagerness ? { type: "semantic_vad", eagerness } : undefined;
  }
}
