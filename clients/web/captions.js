// Live captions of both sides: one line an item, the caller's unstable words dimmed, tool calls
// between them.
//
// Screen readers hear each line once, when it is complete, from a live region of its own: the
// visible list changes with every word and would never let them finish.

export class Captions {
  constructor(list, announcer) {
    this.list = list;
    this.announcer = announcer;
    this.lines = new Map(); // item or call id -> {element, text, role, isFinal, gapMs}
    this.agentName = "Agent";
  }

  /** The caller's hypothesis so far. */
  heard(itemId, stable, unstable) {
    const line = this.line(itemId, "caller");
    if (line.isFinal) return;
    const dimmed = document.createElement("span");
    dimmed.className = "unstable";
    dimmed.textContent = unstable;
    line.words.replaceChildren(stable + (stable && unstable ? " " : ""), dimmed);
    this.follow();
  }

  callerSaid(itemId, transcript) {
    const text = transcript.trim();
    if (!text) return this.remove(itemId);
    this.finish(this.line(itemId, "caller"), text, `You: ${text}`);
  }

  agentDelta(itemId, delta) {
    const line = this.line(itemId, "agent");
    line.text += delta;
    line.words.textContent = line.text;
    this.follow();
  }

  agentDone(itemId) {
    const line = this.lines.get(itemId);
    if (line && !line.isFinal) this.finish(line, line.text, `${this.agentName}: ${line.text}`);
  }

  /** The reply was cut short; `heard` is what the caller heard of it. */
  agentInterrupted(itemId, heard) {
    const line = this.lines.get(itemId);
    if (!line) return;
    const text = heard.trim();
    line.isCut = true;
    line.element.classList.add("interrupted");
    this.finish(line, text, `${this.agentName}, interrupted: ${text}`);
    const cut = document.createElement("span");
    cut.className = "cut";
    cut.textContent = text ? " — interrupted" : "interrupted before a word was heard";
    line.words.append(cut);
  }

  /** What the silence before this reply was made of, for who keeps the transcript. */
  explained(itemId, why) {
    const line = this.lines.get(itemId);
    if (line) line.why = why;
  }

  gap(itemId, gapMs) {
    const line = this.line(itemId, "agent");
    line.gapMs = gapMs;
    line.gap.textContent = `${Math.round(gapMs)} ms`;
    line.gap.hidden = false;
  }

  /** The agent calls a tool; the result stands beside it when it comes. */
  toolCalled(callId, name, callArguments) {
    const line = this.line(callId, "tool");
    this.finish(line, `${name} ${oneLine(callArguments)}`, `The agent uses ${name}`);
  }

  toolAnswered(callId, output) {
    const line = this.lines.get(callId);
    if (!line) return;
    line.text += ` = ${oneLine(output)}`;
    line.words.textContent = line.text;
    this.follow();
  }

  note(text) {
    const element = document.createElement("li");
    element.className = "note";
    element.textContent = text;
    this.list.append(element);
    this.follow();
  }

  /** The conversation as items: what a new session is given after a broken line. */
  asItems(without = new Set()) {
    return [...this.lines]
      .filter(([id, line]) => line.isFinal && line.text && line.role !== "tool" && !without.has(id))
      .map(([, { role, text }]) => ({
        type: "message",
        role: role === "caller" ? "user" : "assistant",
        content: [{ type: role === "caller" ? "input_text" : "output_text", text }],
      }));
  }

  /** What was said, as `transcriptText` takes it. */
  asTranscript() {
    return [...this.lines.values()]
      .filter((line) => line.text)
      .map((line) => ({ ...line, who: this.nameOf(line.role) }));
  }

  nameOf(role) {
    return { caller: "You", agent: this.agentName, tool: "Tool" }[role];
  }

  clear() {
    this.lines.clear();
    this.list.replaceChildren();
  }

  line(itemId, role) {
    let line = this.lines.get(itemId);
    if (line) return line;
    const element = document.createElement("li");
    element.className = `says ${role}`;
    const name = document.createElement("b");
    name.textContent = this.nameOf(role);
    const words = document.createElement("p");
    const gap = document.createElement("span");
    gap.className = "line-gap";
    gap.hidden = true;
    gap.title = "from your last sound to the agent's first";
    element.append(name, words, gap);
    this.list.append(element);
    line = { element, words, gap, text: "", role, isFinal: false, gapMs: null, why: "" };
    this.lines.set(itemId, line);
    this.follow();
    return line;
  }

  finish(line, text, spoken) {
    line.text = text;
    line.isFinal = true;
    line.words.textContent = text;
    this.announcer.textContent = spoken;
    this.follow();
  }

  remove(itemId) {
    this.lines.get(itemId)?.element.remove();
    this.lines.delete(itemId);
  }

  /** Keep the newest line in sight unless the reader has scrolled back. */
  follow() {
    const { list } = this;
    const isNearEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 120;
    if (isNearEnd) list.scrollTop = list.scrollHeight;
  }
}

const MAX_TOOL_CHARS = 400; // of arguments or of a result: what a person reads at a glance

function oneLine(json) {
  const text = (json ?? "").replace(/\s+/g, " ").trim();
  return text.length > MAX_TOOL_CHARS ? `${text.slice(0, MAX_TOOL_CHARS)} …` : text;
}
