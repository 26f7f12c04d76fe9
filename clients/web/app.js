// The page: buttons, keys, the status line, the figures. What a call does stands in call.js.

import { Call } from "./call.js";
import { Captions } from "./captions.js";
import { Settings } from "./settings.js";
import { sharedScaleMs, waterfallSvg } from "./waterfall.js";

const N_SHOWN_TURNS = 4;
const PHASES = {
  ready: "Your turn: just speak",
  held: "Your turn: hold the button or the space bar",
  listening: "Listening",
  thinking: "Thinking",
  speaking: "The agent speaks: interrupt at any time",
};

const byId = (id) => document.getElementById(id);
const captions = new Captions(byId("captions"), byId("announcer"));
const settings = new Settings(byId("settings"));
let call = null;

const view = {
  captions,

  phase(name) {
    if (!call) return;
    byId("call").dataset.phase = name;
    const isHeld = name === "ready" && !settings.isHandsFree;
    status(PHASES[isHeld ? "held" : name]);
  },
  connected(isReconnect) {
    document.body.dataset.line = "open";
    if (isReconnect) captions.note("The line is back; the agent knows what was said.");
    view.phase("ready");
  },
  waiting(seconds, reason) {
    document.body.dataset.line = "lost";
    status(`No line (${reason}). Trying again in ${seconds.toFixed(0) || 1} s.`);
  },
  failed(reason) {
    hangUp();
    status(`The call ended: ${reason}`, true);
  },
  session(session) {
    settings.showDefaults(session);
  },
  conversation: () => captions.asItems(),
  level: (peak) => meter("level", peak),
  agentLevel: (peak) => meter("agent-level", peak),

  answered(turn, turns) {
    captions.gap(turn.itemId, turn.gapMs);
    showFigures(turns);
    showTurns(turns);
  },
  explained(turn, turns) {
    showTurns(turns);
  },
  interrupted: showFigures,
  error({ message }) {
    captions.note(`The server says: ${message}`);
  },
};

function status(text, isAlarm = false) {
  byId("status").textContent = text;
  byId("status").classList.toggle("alarm", isAlarm);
}

function meter(id, level) {
  // -60 dBFS is empty, -6 dBFS full.
  const db = 20 * Math.log10(Math.max(level, 1e-4));
  byId(id).style.transform = `scaleX(${Math.max(0, Math.min(1, (db + 60) / 54))})`;
}

function showFigures(turns) {
  const last = turns.finished.at(-1);
  const ms = (value) => (value === null ? "–" : `${Math.round(value)} ms`);
  byId("gap").textContent = last ? Math.round(last.gapMs) : "–";
  byId("gap-unit").hidden = !last;
  byId("median").textContent = ms(turns.medianGapMs);
  byId("n-turns").textContent = turns.finished.length;
  byId("silence").textContent = ms(turns.medianSilenceMs);
}

function showTurns(turns) {
  const shown = turns.finished.slice(-N_SHOWN_TURNS);
  const scaleMs = sharedScaleMs(shown.map((turn) => turn.gapMs));
  const first = turns.finished.length - shown.length;
  const cards = shown.map((turn, i) => {
    const card = document.createElement("li");
    const heading = document.createElement("h3");
    heading.textContent = `turn ${first + i + 1}`;
    const gap = document.createElement("p");
    gap.className = "turn-gap";
    gap.textContent = Math.round(turn.gapMs);
    const unit = document.createElement("small");
    unit.textContent = "ms";
    gap.append(unit);
    card.append(heading, gap);
    if (turn.stages.length) card.append(waterfallSvg(turn.stages, scaleMs));
    else card.append(Object.assign(document.createElement("p"), {
      className: "soft", textContent: "the stages come when the reply is over",
    }));
    return card;
  });
  byId("turns").replaceChildren(...cards.reverse());
  byId("no-turns").hidden = cards.length > 0;
}

// --- the buttons ---

async function startCall() {
  settings.save();
  captions.clear();
  byId("start").disabled = true;
  status("Asking for the microphone …");
  const starting = new Call(settings, view);
  try {
    call = starting;
    globalThis.voiceloop = starting; // for a developer's console, and for the browser test
    await starting.start();
  } catch (error) {
    call = null;
    const reason = error.name === "NotAllowedError" ? "no permission for the microphone"
      : error.name === "NotFoundError" ? "no microphone was found" : error.message;
    status(`The call cannot start: ${reason}`, true);
    byId("start").disabled = false;
    return;
  }
  document.body.dataset.line = "opening";
  showFigures(starting.turns);
  showTurns(starting.turns);
  status("Connecting …");
  showButtons();
  byId(settings.isHandsFree ? "mute" : "talk").focus();
}

function hangUp() {
  call?.stop();
  call = null;
  document.body.dataset.line = "idle";
  delete byId("call").dataset.phase;
  meter("level", 0);
  meter("agent-level", 0);
  status("Not in a call");
  showButtons();
}

function showButtons() {
  const inCall = call !== null;
  byId("start").hidden = inCall;
  byId("start").disabled = false;
  byId("stop").hidden = !inCall;
  byId("mute").hidden = !inCall || !settings.isHandsFree;
  byId("talk").hidden = !inCall || settings.isHandsFree;
  byId("mute").setAttribute("aria-pressed", "false");
  byId("mute").textContent = "Mute";
}

function toggleMute() {
  const isMuted = byId("mute").getAttribute("aria-pressed") !== "true";
  call.audio.muted = isMuted;
  byId("mute").setAttribute("aria-pressed", String(isMuted));
  byId("mute").textContent = isMuted ? "Muted" : "Mute";
}

function press() {
  call?.hold();
  byId("talk").setAttribute("aria-pressed", "true");
}

function letGo() {
  call?.release();
  byId("talk").setAttribute("aria-pressed", "false");
}

byId("start").addEventListener("click", startCall);
byId("stop").addEventListener("click", () => {
  hangUp();
  byId("start").focus();
});
byId("mute").addEventListener("click", toggleMute);

const talk = byId("talk");
talk.addEventListener("pointerdown", (event) => {
  talk.setPointerCapture(event.pointerId);
  press();
});
for (const name of ["pointerup", "pointercancel", "blur"]) talk.addEventListener(name, letGo);
// Enter, and assistive technology, press without holding: they switch.
talk.addEventListener("click", (event) => {
  if (event.detail === 0) talk.getAttribute("aria-pressed") === "true" ? letGo() : press();
});
talk.addEventListener("contextmenu", (event) => event.preventDefault()); // a long touch

// The space bar talks from anywhere but where it types or presses something else.
const TYPING = "input, textarea, select, summary, button:not(#talk)";
const talks = (event) => event.code === "Space" && call && !settings.isHandsFree
  && !event.target.closest?.(TYPING);
addEventListener("keydown", (event) => {
  if (!talks(event)) return;
  event.preventDefault();
  if (!event.repeat) press();
});
addEventListener("keyup", (event) => {
  if (talks(event)) letGo();
});

byId("settings").addEventListener("change", () => {
  settings.save();
  call?.configure();
  showButtons();
  if (call) view.phase("ready");
});
byId("settings").addEventListener("submit", (event) => event.preventDefault());
addEventListener("pagehide", () => call?.stop());
showButtons();
