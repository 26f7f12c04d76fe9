// Where the milliseconds of a turn's gap went, as this browser and the server saw them.
//
// The gap is measured here alone, on the audio clock: the caller's last loud sample at the
// microphone to the agent's first audible sample at the loudspeaker. The server's stages are its
// own (voiceloop.timeline); its clock is never compared with ours. What remains between the two is
// the line, both directions together, and it is named so.

// Warm: the server listens. Blue: it thinks. Green: it speaks. Grey: the line and this browser.
// The names and colors are those of the call report.
export const STAGE_COLORS = {
  "speech tail": "#f0c05a",
  "vad lag": "#eda23f",
  "silence wait": "#e57f45",
  "final transcript": "#d65a5f",
  "before reply": "#cf6488",
  retrieval: "#c76fb0",
  prompt: "#a873d1",
  tools: "#8a6fe0",
  thinks: "#7b77e8",
  "first token": "#6d80e3",
  "first clause": "#3fa0dc",
  synthesis: "#2bb3a3",
  playout: "#6dbb63",
  writer: "#a3c94a",
  "line, both ways": "#98a2ad",
  "jitter buffer": "#c2c8ce",
};

/** Maps positions of the audio sent to when it was captured: the line pauses in push to talk. */
export class SentAudio {
  constructor(rateHz) {
    this.rateHz = rateHz;
    this.nSent = 0;
    this.runs = []; // {position, at}: an unbroken run begins there
  }

  sent(nSamples, endsAt) {
    const at = endsAt - nSamples / this.rateHz;
    const last = this.runs.at(-1);
    const expected = last ? last.at + (this.nSent - last.position) / this.rateHz : -1;
    if (Math.abs(expected - at) > 0.005) this.runs.push({ position: this.nSent, at });
    this.nSent += nSamples;
  }

  /** When the sample at `ms` of the session's audio was captured; null where none was sent yet. */
  capturedAt(ms) {
    const position = (ms * this.rateHz) / 1000;
    const run = this.runs.findLast((one) => one.position <= position);
    return run ? run.at + (position - run.position) / this.rateHz : null;
  }
}

/** The turns of a call: their gaps as they become audible, their stages when the server tells. */
export class Turns {
  constructor(rateHz) {
    this.audio = new SentAudio(rateHz);
    this.finished = []; // {gapMs, stages, itemId, responseId}
    this.silences = []; // ms from the caller's onset in a barge-in to silence
    this.callerEnd = null;
    this.replies = new Map(); // item id -> {responseId, arrivedAt}
  }

  /** The caller's turn is over: at the last loud sample, or where a button was let go. */
  callerStopped(at) {
    this.callerEnd = at;
  }

  callerStarted() {
    this.callerEnd = null;
  }

  /** The caller began at `onsetAt`; the agent's last audible sample was at `silentAt`. Returns
   *  the ms between them; null where the agent had been silent by then: nobody was cut in on. */
  cutIn(onsetAt, silentAt) {
    if (onsetAt === null || silentAt === null || silentAt <= onsetAt) return null;
    const silentMs = 1000 * (silentAt - onsetAt);
    this.silences.push(silentMs);
    return silentMs;
  }

  replyArrives(itemId, responseId, at) {
    if (!this.replies.has(itemId)) this.replies.set(itemId, { responseId, arrivedAt: at });
  }

  /** The agent is heard. Returns the turn with its gap, or null where it answers nobody. */
  audible(itemId, at) {
    const reply = this.replies.get(itemId);
    if (!reply || this.callerEnd === null) return null;
    const turn = {
      itemId,
      responseId: reply.responseId,
      callerEnd: this.callerEnd,
      arrivedAt: Math.min(reply.arrivedAt, at), // over WebRTC sound may be ahead of its news
      audibleAt: at,
      gapMs: 1000 * (at - this.callerEnd),
      stages: [],
      why: "", // what the silence before it was made of
      cut: "", // that it began before the caller had ended
      speakers: [],
    };
    this.callerEnd = null;
    this.finished.push(turn);
    return turn;
  }

  /** Take a `voiceloop.timeline`. Returns the turn that it completes, or null. */
  timeline(timeline) {
    const turn = this.finished.find((one) => one.responseId === timeline.turn_id);
    if (!turn) return null;
    turn.stages = this.stagesOf(turn, timeline);
    turn.why = timeline.endpoint?.why ?? "";
    const over = `heard over you for ${Math.round(timeline.cut_over_ms ?? 0)} ms`;
    turn.cut = timeline.cut ? `${timeline.cut} cut, ${over}` : "";
    turn.speakers = whoSpoke(timeline);
    return turn;
  }

  stagesOf(turn, timeline) {
    const heardEnd = this.audio.capturedAt(timeline.speech_end_ms ?? -1) ?? turn.callerEnd;
    const tailMs = 1000 * (heardEnd - turn.callerEnd);
    const bufferMs = 1000 * (turn.audibleAt - turn.arrivedAt);
    let server = timeline.stages.map(({ name, ms }) => ({ name, ms }));
    // The server's detector may hear the end before our microphone's level falls.
    if (tailMs > 0) server.unshift({ name: "speech tail", ms: tailMs });
    else server = without(server, -tailMs);
    const excess = sumOf(server) + bufferMs - turn.gapMs;
    if (excess > 0) server = without(server, excess);
    const lineMs = Math.max(0, -excess);
    return [
      ...server,
      { name: "line, both ways", ms: lineMs },
      { name: "jitter buffer", ms: bufferMs },
    ];
  }

  get medianGapMs() {
    return median(this.finished.map((turn) => turn.gapMs));
  }

  get medianSilenceMs() {
    return median(this.silences);
  }
}

/** Who spoke, where a server has several language models: a line for each part of the reply. */
export function whoSpoke(timeline) {
  const told = (timeline.speakers ?? []).map(({ model, part, reason, from_char }) => {
    const from = from_char ? ` from character ${from_char}` : "";
    return `${part ? `${part} model` : "model"} ${model || "main"}${from}: ${reason}`;
  });
  if (timeline.opener) told.unshift(`opener: ${timeline.opener}`);
  const draft = timeline.draft;
  if (draft) told.push(`drafted ahead: ${draft.n_kept ?? "?"} of ${draft.n_tokens} tokens kept`);
  return told;
}

function sumOf(stages) {
  return stages.reduce((sum, stage) => sum + stage.ms, 0);
}

/** The stages less their first `ms`: what was over before the gap began. */
function without(stages, ms) {
  return stages.map((stage) => {
    const taken = Math.min(stage.ms, ms);
    ms -= taken;
    return { ...stage, ms: stage.ms - taken };
  });
}

export function median(values) {
  if (values.length === 0) return null;
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}
