// Tokens colored by how much is looked at them, with what the model says of each below.

KINDS.tokens = (panel, body, frame) => {
  const weights = unpack(panel.weights), said = panel.below.length > 0;
  const letters = !said && panel.tokens.every((token) => token.length < 2 || token.includes(" "));
  const line = make("p", { class: letters ? "flow letters" : "flow", dir: "auto" });
  const spans = panel.tokens.map((token) => make("span", { class: "token" }, letters ? token.replace(/\n/g, "↵\n") : spell(token)));
  spans.forEach((span, place) => {
    line.append(said ? make("span", { class: "said" }, span, make("small", {}, panel.below[place])) : span);
    span.addEventListener("pointermove", (event) => {
      say(event, `${spell(panel.tokens[place])} (${place}): ${number(at(weights, ...frame.chosen)[place])}${
        said ? `\n${panel.below[place]}` : ""}`);
    });
    span.addEventListener("pointerleave", (event) => say(event, ""));
  });
  body.append(line);
  return () => {
    const now = at(weights, ...frame.chosen), top = panel.scale === "signed" ? farthest(now) : largest(now);
    spans.forEach((span, place) => {
      const share = shareOf(now[place], top || 1, panel.scale);
      span.style.background = colorOf(share, panel.scale);
      span.style.color = inkOn(share, panel.scale);
    });
  };
};
