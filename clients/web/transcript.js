// The conversation as a text file that a person keeps.

/** `lines`: {who, text, gapMs, why, isCut} in their order. */
export function transcriptText(agentName, startedAt, lines) {
  const width = Math.max(...lines.map(({ who }) => who.length)) + 2;
  const said = lines.map(({ who, text, gapMs, why, isCut }) => {
    const gap = gapMs === null ? "" : `   (${Math.round(gapMs)} ms)`;
    const cause = why ? `\n${" ".repeat(width)}waited: ${why}` : "";
    return who.padEnd(width) + text + (isCut ? " — interrupted" : "") + gap + cause;
  });
  const title = `A call with ${agentName || "the agent"}, ${startedAt.toLocaleString()}`;
  const legend = "In brackets: from the caller's last sound to the agent's first.";
  return `${[title, legend, "", ...said].join("\n")}\n`;
}

export function download(name, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/plain;charset=utf-8" }));
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}
