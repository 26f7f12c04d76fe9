// The page: buttons, keys, the status line. What a call does stands in call.js.

import { fetchAgent, limitsLine, modelsLine } from "./agent.js";
import { Call } from "./call.js";
import { Captions } from "./captions.js";
import { keyHeaders } from "./connection.js";
import { explainStages, showTurns } from "./figures.js";
import { Settings } from "./settings.js";
import { download, transcriptText } from "./transcript.js";

const byId = (id) => document.getElementById(id);
const captions = new Captions(byId("captions"), byId("announcer"));
const settings = new Settings(byId("settings"));
let agent = { name: "", client_tools: [], webrtc: false };
let call = null;
let startedAt = new Date();

function phaseText(name) {
  if (name !== "ready") {
    const who = agent.name || "The agent";
    return { listening: "Listening", thinking: "Thinking", speaking: `${who} speaks: interrupt at any time` }[name];
  }
  if (!call.hasMicrophone) return "Your turn: type, or use the microphone";
  return settings.isHandsFree ? "Your turn: just speak" : "Your turn: hold the button or the space bar";
}

const view = {
  captions,

  phase(name) {
    if (!call) return;
    byId("call").dataset.phase = name;
    status(phaseText(name));
  },
  connected(isReconnect, isRtc) {
    document.body.dataset.line = "open";
    byId("carrier").textContent = isRtc ? "over WebRTC" : "over a WebSocket";
    if (isReconnect) captions.note("The line is back; the agent knows what was said.");
    view.phase("ready");
  },
  waiting(seconds, reason) {
    document.body.dataset.line = "lost";
    status(`No line (${reason}). Trying again in ${seconds.toFixed(0) || 1} s.`);
  },
  failed(reason, needsKey = false) {
    const wasOpen = document.body.dataset.line !== "opening";
    hangUp();
    status(`${wasOpen ? "The call ended" : "The call cannot start"}: ${reason}`, true);
    if (needsKey) askForKey(reason);
  },
  conversation: (without) => captions.asItems(without),
  level: (peak) => meter("level", peak),
  agentLevel: (peak) => meter("agent-level", peak),

  answered(turn, turns) {
    captions.gap(turn.itemId, turn.gapMs);
    showTurns(turns, true);
  },
  explained: (turn, turns) => {
    captions.explained(turn.itemId, [turn.why, turn.cut].filter(Boolean).join("; "));
    showTurns(turns, true);
  },
  interrupted: (turns) => showTurns(turns, true),
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

// --- who answers ---

async function meetAgent() {
  try {
    agent = await fetchAgent(settings.get("key"));
  } catch {
    return; // nobody answers there: the call will say so
  }
  if (agent.needsKey && !call) askForKey(settings.get("key") ? "the server does not know this API key" : "");
  captions.agentName = agent.name || "Agent";
  for (const element of document.querySelectorAll(".agent-name")) {
    element.textContent = agent.name || (element.closest("h1") ? "the agent" : "agent");
  }
  for (const [id, line] of [["models", modelsLine(agent)], ["limits", limitsLine(agent)]]) {
    byId(id).textContent = line;
    byId(id).hidden = !line;
  }
  settings.showVoices(agent.voices);
  byId("try-list").replaceChildren(...agent.try_saying.map(suggestion));
  showButtons();
}

function suggestion(text) {
  const button = Object.assign(document.createElement("button"), { type: "button", textContent: text });
  button.addEventListener("click", () => say(text));
  return button;
}

/** A sentence in the voice that is chosen. */
async function playSample() {
  const context = new AudioContext();
  const headers = { "content-type": "application/json", ...keyHeaders(settings.get("key")) };
  const asked = { input: "Hello, this is how I sound.", response_format: "wav", voice: settings.get("voice") || undefined };
  try {
    const answer = await fetch("/v1/audio/speech", { method: "POST", headers, body: JSON.stringify(asked) });
    if (!answer.ok) throw new Error(`the server answers ${answer.status}`);
    const buffer = await context.decodeAudioData(await answer.arrayBuffer());
    const source = new AudioBufferSourceNode(context, { buffer });
    source.connect(context.destination);
    source.addEventListener("ended", () => context.close());
    source.start();
  } catch (error) {
    await context.close();
    status(`The voice cannot be heard: ${error.message}`, true);
  }
}

/** Open the settings at the key. `wrong`: what is wrong with the one that stands there. */
function askForKey(wrong) {
  const field = byId("settings").elements.key;
  byId("settings-card").open = true;
  byId("key-wrong").textContent = wrong;
  field.setAttribute("aria-invalid", String(Boolean(wrong)));
  field.focus();
}

// --- the call ---

async function startCall({ hasMicrophone, isByKeyboard = false }) {
  settings.save();
  captions.clear();
  startedAt = new Date();
  byId("key-wrong").textContent = "";
  byId("start").disabled = true;
  status(hasMicrophone ? "Asking for the microphone …" : "Connecting …");
  const starting = new Call(settings, view, agent);
  globalThis.voiceloop = starting; // for a developer's console, and for the browser test
  document.body.dataset.line = "opening";
  call = starting;
  try {
    await starting.start({ hasMicrophone });
  } catch (error) {
    hangUp();
    status(`The call cannot start: ${microphoneTrouble(error)}`, true);
    return;
  }
  showTurns(starting.turns, true);
  if (document.body.dataset.line === "opening") status("Connecting …");
  showButtons();
  // Who came by keyboard goes on by keyboard; a ring after a click would look like a pressed button.
  if (isByKeyboard) byId(hasMicrophone && !settings.isHandsFree ? "talk" : "stop").focus();
}

function microphoneTrouble(error) {
  if (error.name === "NotAllowedError") return "no permission for the microphone; typing works without";
  if (error.name === "NotFoundError") return "no microphone was found; typing works without";
  return error.message;
}

/** Type to the agent: a call without a microphone begins where there is none yet. */
async function say(text) {
  if (!call) await startCall({ hasMicrophone: false });
  call?.say(text);
}

function hangUp() {
  if (call) showTurns(call.turns, false);
  call?.stop();
  call = null;
  document.body.dataset.line = "idle";
  byId("carrier").textContent = "";
  delete byId("call").dataset.phase;
  meter("level", 0);
  meter("agent-level", 0);
  status("Not in a call");
  showButtons();
}

function showButtons() {
  const inCall = call !== null;
  const hears = call?.hasMicrophone ?? false;
  byId("start").hidden = inCall;
  byId("start").disabled = false;
  byId("invitation").hidden = inCall;
  byId("meters").hidden = byId("carrier").hidden = !inCall;
  byId("stop").hidden = !inCall;
  byId("microphone").hidden = !inCall || hears;
  byId("mute").hidden = !hears || !settings.isHandsFree;
  byId("talk").hidden = !hears || settings.isHandsFree;
  byId("try").hidden = byId("try-list").childElementCount === 0 || captions.lines.size > 2;
  byId("download").hidden = captions.lines.size === 0;
  byId("mute").setAttribute("aria-pressed", "false");
  byId("mute").textContent = "Mute";
  if (hears) call.muted = false;
}

async function useMicrophone() {
  try {
    await call.openMicrophone();
  } catch (error) {
    captions.note(`No microphone: ${microphoneTrouble(error)}`);
    return;
  }
  showButtons();
  view.phase("ready");
}

function toggleMute() {
  const isMuted = byId("mute").getAttribute("aria-pressed") !== "true";
  call.muted = isMuted;
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

// --- the buttons; a click by keyboard or by script has the detail 0 ---

byId("start").addEventListener("click", ({ detail }) => {
  startCall({ hasMicrophone: true, isByKeyboard: detail === 0 });
});
byId("microphone").addEventListener("click", useMicrophone);
byId("stop").addEventListener("click", ({ detail }) => {
  hangUp();
  if (detail === 0) byId("start").focus();
});
byId("mute").addEventListener("click", toggleMute);
byId("sample").addEventListener("click", playSample);
byId("download").addEventListener("click", () => {
  const day = startedAt.toISOString().slice(0, 16).replace(":", "");
  download(`call-${day}.txt`, transcriptText(agent.name, startedAt, captions.asTranscript()));
});
byId("typed").addEventListener("submit", (event) => {
  event.preventDefault();
  const field = event.target.elements.message;
  const text = field.value.trim();
  field.value = "";
  if (text) say(text);
});

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
const talks = (event) => event.code === "Space" && call?.hasMicrophone && !settings.isHandsFree
  && !event.target.closest?.(TYPING);
addEventListener("keydown", (event) => {
  if (!talks(event)) return;
  event.preventDefault();
  if (!event.repeat) press();
});
addEventListener("keyup", (event) => {
  if (talks(event)) letGo();
});

byId("settings").addEventListener("change", (event) => {
  settings.save();
  if (event.target.name === "key") {
    byId("key-wrong").textContent = "";
    meetAgent();
    return;
  }
  if (call?.isReady) call.configure();
  showButtons();
  if (call) view.phase("ready");
});
byId("settings").addEventListener("submit", (event) => event.preventDefault());
addEventListener("pagehide", () => call?.stop());
new MutationObserver(() => {
  byId("download").hidden = captions.lines.size === 0;
  byId("try").hidden = byId("try-list").childElementCount === 0 || captions.lines.size > 2;
}).observe(byId("captions"), { childList: true });
explainStages();
showButtons();
meetAgent();
