// Matrices with labels, that scroll: used by attention, and by tables with numbers or words in their cells.

// of: rows, columns, value(row) -> numbers, top() -> largest value or null (each row its own), scale, words, tell, ...
function matrixView(of) {
  const R = of.rows.length, C = of.columns.length, scale = of.scale || "share";
  let side = 20, high = 20, left = 60, above = 60;
  const view = scroller(of.label, draw);
  const flat = Boolean(of.words), short = of.columns.every((label) => Array.from(spell(label)).length < 3);

  function measure(wide) {
    const to = view.canvas.getContext("2d");
    to.font = "12px system-ui, sans-serif";
    const widest = (labels, most) => {
      let found = 0;
      for (const label of labels.slice(0, 3000)) found = Math.max(found, to.measureText(cut(spell(label), 20)).width);
      return Math.min(most, found + 12);
    };
    left = Math.max(34, widest(of.rows, 170));
    if (flat) {
      let found = widest(of.columns, 110);
      for (let row = 0; row < Math.min(R, 60); row++) {
        for (let column = 0; column < Math.min(C, 60); column++) {
          found = Math.max(found, to.measureText(cut(spell(of.words(row, column)), 14)).width + 14);
        }
      }
      side = Math.min(120, Math.max(44, found));
      high = 24;
      above = 28;
    } else {
      above = short ? 26 : Math.max(34, widest(of.columns, 150));
      side = high = Math.max(4, Math.min(26, Math.floor((Math.min(wide, 640) - left) / C), Math.floor(560 / R)));
      if (side < 9) above = left = 40;
    }
  }

  function draw(to, x, y, wide, tall) {
    to.fillStyle = ink("ground");
    to.fillRect(0, 0, wide, tall);
    const firstRow = Math.floor(y / high), lastRow = Math.min(R - 1, Math.ceil((y + tall - above) / high));
    const firstColumn = Math.floor(x / side), lastColumn = Math.min(C - 1, Math.ceil((x + wide - left) / side));
    const gap = side > 6 ? 1 : 0, whole = of.top ? of.top() : null;
    to.save();
    to.beginPath();
    to.rect(left, above, wide - left, tall - above);
    to.clip();
    for (let row = firstRow; row <= lastRow; row++) {
      const values = of.value(row), top = whole || (scale === "signed" ? farthest(values) : largest(values)) || 1;
      for (let column = firstColumn; column <= lastColumn; column++) {
        const share = shareOf(values[column], top, scale), px = left + column * side - x, py = above + row * high - y;
        if (!gap && share <= 0 && scale === "share") continue;
        to.fillStyle = colorOf(share, scale);
        to.fillRect(px, py, side - gap, high - gap);
        if (flat) {
          to.fillStyle = inkOn(share, scale);
          to.textAlign = "center";
          to.font = "12px system-ui, sans-serif";
          to.fillText(cut(spell(of.words(row, column)), 14), px + side / 2, py + high / 2, side - 6);
        }
        if (of.gold && of.gold(row, column)) ring(to, px + (side - gap) / 2, py + (high - gap) / 2);
      }
    }
    outline(to, x, y, wide, tall);
    to.restore();
    to.strokeStyle = ink("line");
    to.strokeRect(left - 0.5, above - 0.5, Math.min(wide - left, C * side - x), Math.min(tall - above, R * high - y));
    labels(to, x, y, [firstRow, lastRow], [firstColumn, lastColumn]);
  }

  function ring(to, x, y) {
    to.strokeStyle = ink("strong");
    to.lineWidth = 1.6;
    to.beginPath();
    to.arc(x, y, Math.max(2, Math.min(side, high) * 0.26), 0, 7);
    to.stroke();
  }

  function outline(to, x, y, wide, tall) {
    const row = of.focus ? of.focus() : null, column = of.column ? of.column() : null;
    to.strokeStyle = ink("strong");
    to.lineWidth = 2;
    if (row !== null) to.strokeRect(left - x, above + row * high - y, C * side, high);
    if (column !== null) to.strokeRect(left + column * side - x, above - y, side, R * high);
  }

  function labels(to, x, y, down, across) {
    to.font = "12px system-ui, sans-serif";
    to.fillStyle = ink("ink");
    const every = (size) => (size >= 11 ? 1 : [2, 5, 10, 20, 50, 100].find((step) => step * size >= 30) || 200);
    to.textAlign = "right";
    for (let row = down[0], step = every(high); row <= down[1]; row++) {
      const py = above + (row + 0.5) * high - y;
      if (row % step || py < above) continue;
      to.fillText(step > 1 ? String(row) : cut(spell(of.rows[row]), 20), left - 6, py, left - 8);
    }
    for (let column = across[0], step = every(side); column <= across[1]; column++) {
      const px = left + (column + 0.5) * side - x;
      if (column % step || px < left) continue;
      if (flat || short || step > 1) {
        to.textAlign = "center";
        to.fillText(step > 1 ? String(column) : cut(spell(of.columns[column]), 20), px, above - 10, flat ? side - 4 : 60);
        continue;
      }
      to.save();
      to.translate(px, above - 6);
      to.rotate(-Math.PI / 2);
      to.textAlign = "left";
      to.fillText(cut(spell(of.columns[column]), 20), 0, 0, above - 8);
      to.restore();
    }
  }

  const cellAt = (px, py) => {
    const row = Math.floor((py - above + view.box.scrollTop) / high);
    const column = Math.floor((px - left + view.box.scrollLeft) / side);
    return px >= left && py >= above && row < R && column < C ? [row, column] : null;
  };
  hover(view.canvas, (px, py) => {
    const cell = px < 0 ? null : cellAt(px, py);
    return cell ? of.tell(cell[0], cell[1], of.value(cell[0])[cell[1]]) : "";
  });
  view.canvas.addEventListener("click", (event) => {
    const box = view.canvas.getBoundingClientRect(), cell = cellAt(event.clientX - box.left, event.clientY - box.top);
    if (cell && of.pick) of.pick(cell[0], cell[1]);
  });
  return {
    node: view.box,
    redraw: view.redraw,
    cell: (row, column) => [left + (column + 0.5) * side, above + (row + 0.5) * high],
    resize(wide) {
      measure(wide);
      view.resize(left + C * side + 2, above + R * high + 2, Math.max(200, wide - 4), 620);
    },
    show(row, column) {
      const y = row * high, x = column * side;
      if (y < view.box.scrollTop || y > view.box.scrollTop + view.height - above - high) view.box.scrollTop = y - view.height / 2;
      if (x < view.box.scrollLeft || x > view.box.scrollLeft + view.width - left - side) view.box.scrollLeft = x - view.width / 2;
    },
  };
}

KINDS.table = (panel, body, frame) => {
  const values = unpack(panel.values), gold = unpack(panel.gold);
  const R = panel.rows.length, C = panel.columns.length;
  const now = () => at(values, ...frame.chosen);
  const row = (place) => now().subarray(place * C, (place + 1) * C);
  const written = panel.words || panel.cells === "numbers";
  const matrix = matrixView({
    rows: panel.rows, columns: panel.columns, label: panel.title, scale: panel.scale, value: row,
    top: () => (panel.scale === "signed" ? farthest(now()) : largest(now())) || 1,
    words: panel.words ? (r, c) => panel.words[r][c] : written ? (r, c) => number(row(r)[c]) : null,
    gold: gold ? (r, c) => gold.array[r * C + c] : null,
    tell: (r, c, value) => [`${panel.row_name} ${spell(panel.rows[r])}`.trim(), `${panel.column_name} ${spell(panel.columns[c])}`.trim(),
      (panel.words ? `${spell(panel.words[r][c])}: ` : "") + number(value)].join("\n"),
  });
  const sides = [panel.row_name && `down: ${panel.row_name}`, panel.column_name && `across: ${panel.column_name}`];
  if (gold) sides.push("rings: what is right");
  if (sides.some(Boolean)) body.append(make("h3", {}, sides.filter(Boolean).join(" · ")));
  body.append(matrix.node);
  frame.matrix = matrix;
  return () => matrix.resize(body.clientWidth || 900);
};
