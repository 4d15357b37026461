// Bars of shares, and the pair view: q, k and q.k number by number.

KINDS.bars = (panel, body, frame) => {
  const values = unpack(panel.values);
  return () => {
    const step = frame.chosen[0], labels = panel.labels[step], shares = at(values, step), mark = panel.marks[step];
    const top = panel.unit === "probability" ? Math.max(0.25, largest(shares)) : largest(shares) || 1;
    const grid = make("div", { class: "bars" });
    labels.forEach((label, place) => {
      const marked = mark !== undefined && mark !== null && label === mark ? " marked" : "";
      grid.append(
        make("div", { class: `name${marked}`, dir: "auto", title: label }, cut(spell(label), 40)),
        make("div", { class: `bar${marked}` }, make("div", { style: `width: ${Math.max(0, (100 * shares[place]) / top)}%` })),
        make("div", { class: "value" }, number(shares[place])));
    });
    body.replaceChildren(grid);
    const known = mark !== undefined && mark !== null;
    if (known) body.append(make("p", { class: "dull" }, `what came: ${spell(mark)}`));
  };
};

function barStrip(name, color) {
  const canvas = canvasOf(name), node = make("div", {}, make("h3", {}, name), canvas);
  let values = [];
  hover(canvas, (x) => {
    const place = Math.floor((x - 40) / ((canvas.clientWidth - 44) / values.length));
    return x < 40 || place < 0 || place >= values.length ? "" : `${name}, number ${place}: ${number(values[place])}`;
  });
  return {
    node,
    draw(numbers, wide) {
      values = numbers;
      const to = pen(canvas, wide, 96), top = farthest(numbers) || 1, step = (wide - 44) / numbers.length;
      to.font = "11px system-ui, sans-serif";
      to.fillStyle = ink("dull");
      to.textAlign = "right";
      to.fillText(number(top), 36, 8);
      to.fillText("0", 36, 48);
      to.fillText(number(-top), 36, 88);
      to.strokeStyle = ink("line");
      to.beginPath();
      to.moveTo(40, 48);
      to.lineTo(wide, 48);
      to.stroke();
      to.fillStyle = ink(color);
      numbers.forEach((x, place) => {
        const height = (x / top) * 42;
        to.fillRect(40 + place * step + 0.1 * step, 48 - Math.max(0, height), Math.max(1, 0.8 * step), Math.abs(height));
      });
    },
  };
}

KINDS.pair = (panel, body, frame) => {
  const [query, key, scores, weights] = [panel.query, panel.key, panel.scores, panel.weights].map(unpack);
  const [ways, layers, heads] = panel.axes;
  const strips = [barStrip("query q", "accent"), barStrip("key k", "third"), barStrip("products q × k", "strong")];
  const said = make("p", { class: "said-pair" });
  const matrix = matrixView({
    rows: layers.options.map((name) => `layer ${name}`), columns: heads.options.map((name) => `head ${name}`),
    label: "weights of all layers and heads", value: (row) => at(weights, frame.chosen[0], row), top: () => largest(at(weights, frame.chosen[0])) || 1,
    words: (row, column) => number(at(weights, frame.chosen[0], row)[column]),
    focus: () => frame.chosen[1], column: () => frame.chosen[2],
    pick: (row, column) => { frame.choose(1, row); frame.choose(2, column); },
    tell: (row, column, value) => `layer ${layers.options[row]}, head ${heads.options[column]}: weight ${number(value)}, score ${
      number(at(scores, frame.chosen[0], row)[column])}`,
  });
  body.append(said, ...strips.map((strip) => strip.node), make("h3", {}, "weights of all layers and heads: choose one"), matrix.node);
  return () => {
    const q = at(query, ...frame.chosen), k = at(key, ...frame.chosen), product = q.map((x, i) => x * k[i]);
    const wide = Math.min(900, body.clientWidth || 900);
    [q, k, product].forEach((values, place) => strips[place].draw(values, wide));
    const [way, layer, head] = frame.chosen;
    said.textContent = `${ways.options[way]}: q.k = ${number(product.reduce((sum, x) => sum + x, 0))}, score ${
      number(at(scores, way, layer)[head])}, weight after softmax ${number(at(weights, way, layer)[head])}`;
    matrix.resize(wide);
  };
};
