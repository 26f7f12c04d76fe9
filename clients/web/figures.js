// The figures of a call: the gap in large, the medians, the last turns with their stages.

import { STAGE_COLORS } from "./gap.js";
import { sharedScaleMs, STAGE_MEANINGS, waterfallSvg } from "./waterfall.js";

const N_SHOWN_TURNS = 4;

const byId = (id) => document.getElementById(id);

/** `isLive`: the call goes on, and the stages of a turn that has none yet may still come. */
export function showTurns(turns, isLive) {
  const last = turns.finished.at(-1);
  const ms = (value) => (value === null ? "" : `${Math.round(value)} ms`);
  byId("figures").hidden = !last;
  byId("no-turns").hidden = Boolean(last);
  byId("gap").textContent = last ? Math.round(last.gapMs) : "";
  byId("median").textContent = ms(turns.medianGapMs);
  byId("n-turns").textContent = turns.finished.length;
  const cuts = turns.finished.filter((turn) => turn.cut);
  const nSoft = cuts.filter((turn) => turn.cut.startsWith("soft")).length;
  byId("cuts").textContent = cuts.length ? `${cuts.length} (${nSoft} soft)` : "0";
  byId("silence").textContent = ms(turns.medianSilenceMs);
  byId("silence").parentElement.hidden = turns.medianSilenceMs === null;
  byId("stages").hidden = !turns.finished.some((turn) => turn.stages.length);

  const shown = turns.finished.slice(-N_SHOWN_TURNS);
  const scaleMs = sharedScaleMs(shown.map((turn) => turn.gapMs));
  const first = turns.finished.length - shown.length;
  const cards = shown.map((turn, i) => turnCard(turn, first + i + 1, scaleMs, isLive));
  byId("turns").replaceChildren(...cards.reverse());
}

function turnCard(turn, number, scaleMs, isLive) {
  const card = element("li");
  const gap = element("p", "turn-gap", Math.round(turn.gapMs));
  gap.append(element("small", "", "ms"));
  card.append(element("h3", "", `turn ${number}`), gap);
  if (turn.stages.length) card.append(waterfallSvg(turn.stages, scaleMs));
  else if (isLive) card.append(element("p", "soft", "the stages come when the reply is over"));
  if (turn.why) card.append(element("p", "soft", `Why it waited: ${turn.why}.`));
  if (turn.cut) card.append(element("p", "soft", `It began before you had finished: ${turn.cut}.`));
  card.append(...turn.speakers.map((line) => element("p", "soft", line)));
  return card;
}

/** What each stage means, once for all turns. */
export function explainStages() {
  for (const [name, meaning] of Object.entries(STAGE_MEANINGS)) {
    const term = element("dt", "", name);
    term.style.setProperty("--stage", STAGE_COLORS[name]);
    byId("stage-list").append(term, element("dd", "", meaning));
  }
}

function element(tag, className = "", text = "") {
  return Object.assign(document.createElement(tag), { className, textContent: text });
}
