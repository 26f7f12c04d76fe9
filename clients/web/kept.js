// The page of kept calls: reads files of a recordings folder in the browser, and sends none of them.
//
// A call is its notes (ID.json, see voiceloop/docs/RECORDING.md) and its sound. What is shown of a turn:
// what was heard and said, the stages of its gap, why the server waited, what was made ahead, and
// where a cut came from. Another run of the same call (`voiceloop replay --out`) stands beside it.

import { whoSpoke } from "./gap.js";
import { waterfallSvg } from "./waterfall.js";

const MAX_NOTES = 64 * 1024 * 1024;
const SAME_TURN_MS = 1500; // as of `voiceloop replay`
const PEAKS = 1000;
const calls = new Map(); // by id: { id, notes, sound: File or null, peaks }
const at = (id) => document.getElementById(id);
let shown = null;
let player = null;

const make = (tag, text = "", name = "") => {
  const node = document.createElement(tag);
  node.textContent = text;
  if (name) node.className = name;
  return node;
};

// --- files ---------------------------------------------------------------------------------------

async function take(files) {
  const troubles = [];
  for (const file of files) {
    const id = file.name.split(".")[0];
    if (!file.name.endsWith(".json")) continue;
    try {
      if (file.size > MAX_NOTES) throw new Error("too large");
      const notes = JSON.parse(await file.text());
      if (notes.form !== 1 || !Array.isArray(notes.turns)) throw new Error("no notes of a call");
      calls.set(id, { id, notes, sound: null, peaks: null });
    } catch (error) {
      troubles.push(`${file.name}: ${error.message}`);
    }
  }
  for (const file of files) {
    const call = calls.get(file.name.split(".")[0]);
    if (call && /\.(flac|opus)$/.test(file.name)) call.sound = file;
  }
  at("trouble").textContent = troubles.join("; ");
  at("trouble").hidden = !troubles.length;
  at("filters").hidden = !calls.size;
  list();
}

// --- many calls ----------------------------------------------------------------------------------

const answers = (notes) => notes.turns.filter((turn) => turn.heard);

function matches(turn, notes) {
  const words = at("words").value.trim().toLowerCase();
  const text = `${turn.heard} ${turn.said}`.toLowerCase();
  const called = (turn.tools ?? []).length > 0 || notes.calls.some((call) => during(call, turn));
  return (
    (!words || text.includes(words)) &&
    (!at("gap").value || (turn.gap_ms ?? 0) >= Number(at("gap").value)) &&
    (!at("cut").checked || Boolean(turn.cut)) &&
    (!at("interrupted").checked || turn.outcome === "cancelled") &&
    (!at("tool").checked || called)
  );
}

const during = (entry, turn) => entry.at_ms >= endMs(turn) && entry.at_ms <= turn.at_ms;
const endMs = (turn) => turn.marks_ms?.speech_end ?? turn.at_ms;

function list() {
  const rows = [];
  for (const call of calls.values()) {
    const found = call.notes.turns.filter((turn) => matches(turn, call.notes));
    if (!found.length) continue;
    const gaps = found.map((turn) => turn.gap_ms).filter((ms) => ms != null);
    const worst = gaps.length ? `, slowest gap ${Math.round(Math.max(...gaps))} ms` : "";
    const text = `${call.notes.began_at ?? ""}  ${call.id}: ${found.length} turns${worst}`;
    const button = make("button", text + (call.notes.is_degraded ? " (degraded)" : ""));
    button.type = "button";
    button.setAttribute("aria-current", String(call === shown));
    button.addEventListener("click", () => show(call));
    const row = make("li");
    row.append(button);
    rows.push(row);
  }
  at("calls").replaceChildren(...rows);
}

// --- one call ------------------------------------------------------------------------------------

async function show(call) {
  stop();
  shown = call;
  list();
  const consent = call.notes.consent?.how ?? "unknown";
  at("title").textContent =
    `${call.notes.agent ?? "agent"}, ${call.notes.seconds ?? "?"} s, consent: ${consent}, ` +
    `version ${call.notes.version ?? "?"}, configuration ${call.notes.configuration ?? "?"}`;
  // Another run of the same call has the most turns alike, and stands first.
  const others = [...calls.values()]
    .filter((one) => one !== call)
    .map((one) => ({ id: one.id, n: nAlike(one.notes, call.notes) }))
    .sort((one, other) => other.n - one.n)
    .map(({ id, n }) => new Option(`${id}: ${n} turns alike`, id));
  at("other").replaceChildren(new Option("nothing", ""), ...others);
  at("kept").hidden = false;
  turns();
  await sound(call);
}

function nAlike(notes, others) {
  const isSame = (turn, one) => one.heard === turn.heard && Math.abs(endMs(one) - endMs(turn)) < SAME_TURN_MS;
  return answers(notes).filter((turn) => answers(others).some((one) => isSame(turn, one))).length;
}

function turns() {
  const other = calls.get(at("other").value);
  const rest = other ? [...answers(other.notes)] : [];
  const longest = Math.max(1, ...shown.notes.turns.map((turn) => turn.gap_ms ?? 0));
  const rows = shown.notes.turns.filter((turn) => matches(turn, shown.notes)).map((turn) => {
    const row = make("li");
    const near = rest.filter((one) => Math.abs(endMs(one) - endMs(turn)) < SAME_TURN_MS);
    const same = turn.heard ? near[0] : undefined;
    row.append(run(turn, shown.notes, longest, !other));
    if (other) {
      const beside = same ? run(same, other.notes, longest, false) : make("div", turn.heard ? "no such turn" : "", "run");
      const differs = !same || same.heard !== turn.heard || same.said !== turn.said || same.cut !== turn.cut;
      if (differs && turn.heard) beside.classList.add("differs");
      row.append(beside);
    }
    return row;
  });
  at("turns").replaceChildren(...rows);
}

function run(turn, notes, longest, isAlone) {
  const box = make("div", "", isAlone ? "run alone" : "run");
  box.append(make("p", turn.gap_ms == null ? "no gap" : `${Math.round(turn.gap_ms)} ms`, "gap"));
  if (turn.heard) box.append(make("p", turn.heard, "caller"));
  box.append(make("p", turn.said || "(nothing)", "agent"));
  if (turn.stages?.length) box.append(waterfallSvg(turn.stages, longest));
  for (const text of why(turn, notes)) box.append(make("p", text, "soft"));
  const button = make("button", "Play turn");
  button.type = "button";
  button.addEventListener("click", () => play(Math.max(0, endMs(turn) / 1000 - 2)));
  box.append(button);
  return box;
}

function why(turn, notes) {
  const told = [];
  const end = turn.endpoint;
  if (end) {
    if (end.why) told.push(`why it waited: ${end.why}`);
    const known = Object.entries(end).filter(([name, value]) => value != null && name !== "why");
    told.push(`waited: ${known.map(([name, value]) => `${name} ${plain(value)}`).join(", ")}`);
  }
  const ahead = turn.anticipation;
  if (ahead) told.push(`ahead: draft ${ahead.draft}, ${ahead.n_discarded_tokens} tokens thrown away`);
  told.push(...whoSpoke(turn));
  if (turn.answered_by) told.push(`answered by ${turn.answered_by}, without the model`);
  for (const call of notes.calls.filter((one) => during(one, turn))) {
    told.push(`called ${call.name}(${call.arguments})`);
  }
  const cut = notes.cuts.find((one) => during(one, turn));
  if (turn.cut || cut) {
    const at_s = cut ? ` at ${(cut.at_ms / 1000).toFixed(1)} s` : "";
    const heard = cut?.heard_ms == null ? "" : `, after ${Math.round(cut.heard_ms)} ms were heard`;
    const over = turn.cut_over_ms == null ? "" : `, over ${Math.round(turn.cut_over_ms)} ms of the caller`;
    told.push(`cut${turn.cut ? ` (${turn.cut}${over})` : ""}: the caller spoke${at_s}${heard}`);
  }
  return told;
}

const plain = (value) => (typeof value === "number" ? Math.round(value * 100) / 100 : value);

// --- sound ---------------------------------------------------------------------------------------

async function sound(call) {
  if (call.sound && !call.buffer) {
    try {
      const context = new OfflineAudioContext(2, 1, 24000);
      call.buffer = await context.decodeAudioData(await call.sound.arrayBuffer());
    } catch {
      at("trouble").textContent = `${call.sound.name}: this browser cannot read the sound`;
      at("trouble").hidden = false;
    }
  }
  if (call === shown) draw(call);
}

function draw(call) {
  const canvas = at("wave");
  const width = (canvas.width = canvas.clientWidth * devicePixelRatio);
  const height = (canvas.height = canvas.clientHeight * devicePixelRatio);
  const pen = canvas.getContext("2d");
  const style = getComputedStyle(document.documentElement);
  const seconds = call.buffer?.duration ?? call.notes.seconds ?? 1;
  pen.fillStyle = style.getPropertyValue("--line");
  for (const turn of call.notes.turns) {
    if (turn.gap_ms == null) continue;
    const x = (endMs(turn) / 1000 / seconds) * width;
    pen.fillRect(x, 0, Math.max(1, (turn.gap_ms / 1000 / seconds) * width), height);
  }
  if (!call.buffer) return;
  for (const [channel, name, sign] of [[0, "--caller", -1], [1, "--agent", 1]]) {
    const samples = call.buffer.getChannelData(channel);
    pen.fillStyle = style.getPropertyValue(name);
    for (let bin = 0; bin < PEAKS; bin += 1) {
      let peak = 0;
      const end = Math.floor(((bin + 1) * samples.length) / PEAKS);
      for (let n = Math.floor((bin * samples.length) / PEAKS); n < end; n += 8) {
        peak = Math.max(peak, Math.abs(samples[n]));
      }
      const tall = (height / 2 - 3) * peak ** 0.7;
      pen.fillRect((bin * width) / PEAKS, height / 2 + (sign < 0 ? -tall : 0), width / PEAKS, tall);
    }
  }
}

function play(from_s) {
  stop();
  if (!shown?.buffer) return;
  const context = new AudioContext();
  const source = context.createBufferSource();
  source.buffer = shown.buffer;
  source.connect(context.destination);
  source.start(0, from_s);
  player = context;
}

function stop() {
  player?.close();
  player = null;
}

at("files").addEventListener("change", (event) => take([...event.target.files]));
at("filters").addEventListener("input", () => {
  list();
  if (shown) turns();
});
at("filters").addEventListener("submit", (event) => event.preventDefault());
at("other").addEventListener("change", turns);
at("play").addEventListener("click", () => play(0));
at("stop").addEventListener("click", stop);
at("wave").addEventListener("click", (event) => {
  const box = at("wave").getBoundingClientRect();
  play(((event.clientX - box.left) / box.width) * (shown?.buffer?.duration ?? 0));
});
