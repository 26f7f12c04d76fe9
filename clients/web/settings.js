// What a person can set: voice, instructions, eagerness, how they talk, the key.
//
// Kept in this browser (the key only until its tab is closed), turned into the session's settings.

const STORED = "voiceloop.settings";
const KEY = "voiceloop.key";
const PCM = { type: "audio/pcm", rate: 24_000 };

export class Settings {
  constructor(form) {
    this.form = form;
    this.own = {}; // of the agent, by name
    const stored = JSON.parse(localStorage.getItem(STORED) ?? "{}");
    for (const [name, value] of Object.entries(stored)) {
      if (form.elements[name]) form.elements[name].value = value;
    }
    form.elements.key.value = sessionStorage.getItem(KEY) ?? "";
  }

  get(name) {
    return this.form.elements[name].value.trim();
  }

  get isHandsFree() {
    return this.get("mode") === "hands-free";
  }

  save() {
    const names = ["voice", "instructions", "eagerness", "mode"];
    const kept = Object.fromEntries(names.map((name) => [name, this.get(name)]));
    localStorage.setItem(STORED, JSON.stringify(kept));
    sessionStorage.setItem(KEY, this.get("key"));
  }

  /** The values of a new session, the agent's own: shown and asked for where the person has none. */
  showDefaults(session) {
    this.own = { instructions: session.instructions, voice: session.audio?.output?.voice };
    for (const [name, value] of Object.entries(this.own)) {
      this.form.elements[name].placeholder = value ?? "";
    }
  }

  /** The body of `session.update`. A field that was emptied in mid-call is the agent's again. */
  session() {
    const detection = this.isHandsFree
      ? { type: "semantic_vad", eagerness: this.get("eagerness") }
      : null;
    const input = {
      format: PCM,
      transcription: { model: "whisper-1" },
      turn_detection: detection,
    };
    const output = { format: PCM };
    const session = { type: "realtime", output_modalities: ["audio"], audio: { input, output } };
    const voice = this.get("voice") || this.own.voice;
    const instructions = this.get("instructions") || this.own.instructions;
    if (voice) output.voice = voice;
    if (instructions !== undefined) session.instructions = instructions;
    return session;
  }
}
