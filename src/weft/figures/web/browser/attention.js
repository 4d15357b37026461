// Attention: the text colored by what a token looks at, lines, the matrix, and all heads in small.

// Weights from a page's arrays: whole maps, or the largest weights of each row.
function mapsOf(tree, rows, columns) {
  const whole = unpack(tree.whole), places = unpack(tree.places), weights = unpack(tree.weights);
  const pictures = unpack(tree.pictures);
  const maps = {
    whole: Boolean(whole),
    each(layer, head, row, tell) {
      if (whole) at(whole, layer, head, row).forEach((weight, column) => tell(column, weight));
      else at(places, layer, head, row).forEach((column, n) => tell(column, at(weights, layer, head, row)[n]));
    },
    row(layer, head, row) {
      if (whole) return at(whole, layer, head, row);
      const found = new Float32Array(columns);
      maps.each(layer, head, row, (column, weight) => { found[column] = weight; });
      return found;
    },
    column(layer, head, column) {
      const found = new Float32Array(rows);
      for (let row = 0; row < rows; row++) {
        if (whole) found[row] = at(whole, layer, head, row)[column];
        else {
          const place = at(places, layer, head, row).indexOf(column);
          found[row] = place < 0 ? 0 : at(weights, layer, head, row)[place];
        }
      }
      return found;
    },
    value: (layer, head, row, column) => maps.row(layer, head, row)[column],
    // A small picture [size, size] of the map, its largest value being 1.
    picture(layer, head) {
      if (pictures) {
        const values = Float32Array.from(at(pictures, layer, head), (x) => x / 255);
        return { height: pictures.shape[2], width: pictures.shape[3], values };
      }
      return small(at(whole, layer, head), rows, columns, 64);
    },
    tell(layer, head, row, names) {
      const best = [];
      maps.each(layer, head, row, (column, weight) => best.push([weight, column]));
      best.sort((a, b) => b[0] - a[0]);
      return best.slice(0, 4).map(([weight, column]) => `${number(weight)}  ${spell(names[column])} (${column})`).join("\n");
    },
  };
  return maps;
}

function small(values, rows, columns, most) {
  const height = Math.min(rows, most), width = Math.min(columns, most), found = new Float32Array(height * width);
  const counts = new Float32Array(height * width);
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) {
      const place = Math.floor((row * height) / rows) * width + Math.floor((column * width) / columns);
      found[place] += values[row * columns + column];
      counts[place] += 1;
    }
  }
  for (let place = 0; place < found.length; place++) found[place] /= counts[place];
  const top = largest(found) || 1;
  return { height, width, values: found.map((x) => x / top) };
}

KINDS.attention = (panel, body, frame) => {
  const rows = panel.rows, columns = panel.columns || panel.rows, itself = !panel.columns;
  const maps = mapsOf(panel.maps, rows.length, columns.length);
  let pinned = panel.focus, glanced = null, direction = "from";
  const state = {
    layer: () => frame.chosen[0], head: () => frame.chosen[1],
    focus: () => (glanced === null ? pinned : glanced), direction: () => direction,
    glance(place) { if (glanced !== place) { glanced = place; light(); } },
    pin(place, way) {
      if (way) { direction = way; ways.set(way === "from" ? 0 : 1); }
      pinned = place === pinned ? null : place;
      glanced = null;
      light();
      if (pinned !== null) reveal();
    },
  };
  const ways = chooser("show", ["what a token looks at", "who looks at a token"], 0, (option) => {
    direction = option ? "to" : "from";
    light();
  });
  const coloring = chooser("colors", ["of the whole map", "of each row"], columns.length > 64 ? 1 : 0, () => light());
  frame.bar.append(ways.node, coloring.node);

  const flow = flowView(itself ? [rows] : [rows, columns], state);
  const lines = linesView(panel, maps, state);
  const matrix = matrixView({
    rows, columns, label: "the matrix: who looks (down) at whom (across)",
    value: (row) => maps.row(state.layer(), state.head(), row),
    top: () => (coloring.list.value === "1" ? null : mapTop()),
    focus: () => (direction === "from" ? state.focus() : null),
    column: () => (direction === "to" ? state.focus() : null),
    pick: (row) => state.pin(row, "from"),
    tell: (row, column, value) => `${spell(rows[row])} (${row}) looks at ${spell(columns[column])} (${column}): ${
      !maps.whole && !value ? "less than this page holds" : number(value)}`,
  });
  const heads = headsView(panel, maps, frame);
  const overview = maps.whole ? null : overviewView(maps, state, rows.length, columns.length, (row, column) => {
    lines.show(row);
    matrix.show(row, column);
  });
  if (overview) body.append(make("h3", {}, "the whole map: choose a place"), overview.node);
  body.prepend(flow.node);
  body.append(make("div", { class: "columns" },
    make("div", {}, make("h3", {}, "looks at"), lines.node), make("div", {}, make("h3", {}, "matrix"), matrix.node)));
  if (heads) body.append(make("h3", {}, "all layers and heads"), heads.node);

  // Scroll to the token in question and to what it looks at most.
  function reveal() {
    const weights = direction === "from" ? maps.row(state.layer(), state.head(), pinned) : maps.column(state.layer(), state.head(), pinned);
    const best = weights.indexOf(largest(weights));
    flow.show(pinned, direction);
    lines.show(pinned);
    if (direction === "from") matrix.show(pinned, best);
    else matrix.show(best, pinned);
  }

  let topOf = "", top = 1;
  function mapTop() {
    const key = `${state.layer()} ${state.head()}`;
    if (key !== topOf) {
      topOf = key;
      top = 0;
      for (let row = 0; row < rows.length; row++) maps.each(state.layer(), state.head(), row, (_, w) => { if (w > top) top = w; });
    }
    return top || 1;
  }

  function light() {
    const focus = state.focus();
    let weights = null;
    if (focus !== null) {
      weights = direction === "from" ? maps.row(state.layer(), state.head(), focus) : maps.column(state.layer(), state.head(), focus);
    }
    flow.paint(weights, focus, direction);
    if (overview) overview.redraw();
    lines.redraw();
    matrix.redraw();
  }
  return () => {
    const wide = body.clientWidth || 900;
    lines.resize(wide);
    matrix.resize(wide > 1100 ? wide - 580 : wide);
    if (heads) heads.redraw();
    light();
  };
};

// The text itself; pointing at a token shows what it looks at.
function flowView(texts, state) {
  const node = make("div");
  const groups = texts.map((tokens, group) => {
    const letters = tokens.some((token) => token.includes(" ") || token.includes("\n")) || tokens.every((t) => t.length < 2);
    const line = make("p", { class: letters ? "flow letters" : "flow", dir: "auto" });
    const spans = tokens.map((token, place) => {
      const shown = letters ? token.replace(/\n/g, "↵\n").replace(/\r/g, "") || "∅" : spell(token);
      return make("span", { class: "token", "data-place": place }, shown);
    });
    line.append(...spans);
    const way = () => (texts.length === 1 ? state.direction() : group === 0 ? "from" : "to");
    const place = (event) => (event.target.dataset.place === undefined ? null : Number(event.target.dataset.place));
    line.addEventListener("pointerover", (event) => {
      if (place(event) !== null && way() === state.direction()) state.glance(place(event));
    });
    line.addEventListener("pointerleave", () => state.glance(null));
    line.addEventListener("click", (event) => { if (place(event) !== null) state.pin(place(event), way()); });
    if (texts.length > 1) node.append(make("h3", {}, group ? "looked at" : "looking"));
    node.append(line);
    return { spans, shown: new Float32Array(tokens.length).fill(-1), theme: "", focus: null };
  });
  return {
    node,
    show(place, direction) {
      const span = groups[direction === "from" ? 0 : groups.length - 1].spans[place], line = span.parentNode, y = span.offsetTop;
      if (y < line.scrollTop || y > line.scrollTop + line.clientHeight - 20) line.scrollTop = y - line.clientHeight / 2;
    },
    paint(weights, focus, direction) {
      const looking = direction === "from" ? 0 : groups.length - 1;
      const shaded = texts.length === 1 ? 0 : direction === "from" ? 1 : 0;
      groups.forEach((text, group) => {
        const top = weights && group === shaded ? largest(weights) || 1 : 1;
        if (text.theme !== theme()) { text.shown.fill(-1); text.theme = theme(); }
        text.spans.forEach((span, place) => {
          const share = weights && group === shaded ? Math.round((255 * weights[place]) / top) / 255 : 0;
          if (Math.abs(share - text.shown[place]) < 1e-6) return;
          text.shown[place] = share;
          span.style.background = share > 0.004 ? colorOf(share) : "";
          span.style.color = share > 0.004 ? inkOn(share) : "";
        });
        if (text.focus !== null) text.spans[text.focus].classList.remove("focus");
        text.focus = group === looking ? focus : null;
        if (text.focus !== null) text.spans[text.focus].classList.add("focus");
      });
    },
  };
}

// A long map as a whole, made of means over blocks; a click scrolls to that place.
function overviewView(maps, state, rows, columns, go) {
  const side = 320, canvas = canvasOf("the whole map; a click scrolls to that place");
  const at_ = (x, y) => [Math.min(rows - 1, Math.floor((y / side) * rows)), Math.min(columns - 1, Math.floor((x / side) * columns))];
  hover(canvas, (x, y) => (x < 0 || y < 0 ? "" : `rows about ${at_(x, y)[0]}, columns about ${at_(x, y)[1]}`));
  canvas.style.cursor = "pointer";
  canvas.addEventListener("click", (event) => {
    const box = canvas.getBoundingClientRect();
    go(...at_(event.clientX - box.left, event.clientY - box.top));
  });
  return {
    node: canvas,
    redraw() {
      const to = pen(canvas, side, side);
      to.imageSmoothingEnabled = false;
      to.drawImage(tile(maps.picture(state.layer(), state.head())), 0, 0, side, side);
      to.strokeStyle = ink("line");
      to.strokeRect(0.5, 0.5, side - 1, side - 1);
      if (state.focus() === null) return;
      to.strokeStyle = ink("strong");
      to.lineWidth = 1.5;
      const place = (state.focus() / (state.direction() === "from" ? rows : columns)) * side;
      to.beginPath();
      to.moveTo(...(state.direction() === "from" ? [0, place] : [place, 0]));
      to.lineTo(...(state.direction() === "from" ? [side, place] : [place, side]));
      to.stroke();
    },
  };
}

// Every map in small, on one canvas: a click chooses it.
function headsView(panel, maps, frame) {
  const [layers, heads] = panel.axes;
  if (layers.options.length * heads.options.length < 2) return null;
  const side = 58, gap = 8, top = 18, longest = Math.max(...layers.options.map((_, place) => named(layers, place).length));
  const left = Math.min(170, 20 + 7.5 * longest);
  const canvas = canvasOf("all layers and heads in small"), node = make("div", { class: "scroll" }, canvas);
  const pictures = new Map();
  const placeAt = (x, y) => {
    const head = Math.floor((x - left) / (side + gap)), layer = Math.floor((y - top) / (side + gap));
    const inside = head >= 0 && layer >= 0 && head < heads.options.length && layer < layers.options.length;
    return inside ? [layer, head] : null;
  };
  hover(canvas, (x, y) => {
    const place = placeAt(x, y);
    canvas.style.cursor = place ? "pointer" : "";
    return place ? `${named(layers, place[0])}, ${named(heads, place[1])}` : "";
  });
  canvas.addEventListener("click", (event) => {
    const box = canvas.getBoundingClientRect(), place = placeAt(event.clientX - box.left, event.clientY - box.top);
    if (place) { frame.choose(0, place[0]); frame.choose(1, place[1]); }
  });
  function redraw() {
    const to = pen(canvas, left + heads.options.length * (side + gap), top + layers.options.length * (side + gap) + 4);
    to.imageSmoothingEnabled = false;
    to.font = "12px system-ui, sans-serif";
    layers.options.forEach((layer, row) => {
      to.fillStyle = ink("dull");
      to.textAlign = "left";
      to.fillText(cut(named(layers, row), 24), 4, top + row * (side + gap) + side / 2, left - 8);
      heads.options.forEach((head, column) => {
        const x = left + column * (side + gap), y = top + row * (side + gap), key = `${row} ${column}`;
        if (!pictures.has(key)) pictures.set(key, maps.picture(row, column));
        to.drawImage(tile(pictures.get(key)), x, y, side, side);
        const chosen = frame.chosen[0] === row && frame.chosen[1] === column;
        to.strokeStyle = chosen ? ink("strong") : ink("line");
        to.lineWidth = chosen ? 3 : 1;
        to.strokeRect(x, y, side, side);
        if (!row) {
          to.fillStyle = ink("dull");
          to.textAlign = "center";
          to.fillText(cut(head, 8), x + side / 2, 9, side);
        }
      });
    });
  }
  return { node, redraw };
}

// A picture as a canvas of its own pixels; a root makes small weights of large maps visible.
function tile(picture) {
  const canvas = document.createElement("canvas");
  canvas.width = picture.width;
  canvas.height = picture.height;
  const to = canvas.getContext("2d"), image = to.createImageData(picture.width, picture.height), colors = ladder("share");
  picture.values.forEach((value, place) => {
    const share = picture.width > 48 ? Math.sqrt(value) : value;
    const [r, g, b] = colors[Math.max(0, Math.min(255, Math.round(share * 255)))];
    image.data.set([r, g, b, 255], 4 * place);
  });
  to.putImageData(image, 0, 0);
  return canvas;
}
