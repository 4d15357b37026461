// Numbers in time: forecasts with attention over their history, channels of a sequence, and curves.

// Curves, bands and a strip of attention on one canvas, with the numbers under the pointer.
function chart(label) {
  const canvas = canvasOf(label), left = 56, right = 10;
  let now = null;
  hover(canvas, (x) => {
    if (!now || x < left || x > canvas.clientWidth - right) return "";
    const [low, high] = now.range, place = low + ((x - left) / (canvas.clientWidth - left - right)) * (high - low);
    return now.tell(place);
  });
  return {
    node: canvas,
    draw(wide, tall, given) {
      now = given;
      const to = pen(canvas, wide, tall + (given.strip ? 34 : 0) + (given.x_label ? 40 : 22)), [low, high] = given.range;
      const x = (place) => left + ((place - low) / (high - low || 1)) * (wide - left - right);
      const every = [...given.curves.flatMap((curve) => Array.from(curve.y)), ...(given.band ? [...given.band.low, ...given.band.high] : [])].filter(Number.isFinite);
      const bottom = Math.min(...every), top = Math.max(...every), room = (top - bottom || 1) * 0.06;
      const y = (value) => 8 + (1 - (value - bottom + room) / (top - bottom + 2 * room || 1)) * (tall - 16);
      grid(to, wide, tall, bottom, top, y);
      if (given.band) {
        to.fillStyle = ink("band");
        to.beginPath();
        given.band.x.forEach((place, i) => to[i ? "lineTo" : "moveTo"](x(place), y(given.band.high[i])));
        for (let i = given.band.x.length - 1; i >= 0; i--) to.lineTo(x(given.band.x[i]), y(given.band.low[i]));
        to.fill();
      }
      for (const curve of given.curves) {
        to.strokeStyle = curve.color;
        to.lineWidth = curve.width || 1.6;
        to.beginPath();
        let on = false;
        curve.x.forEach((place, i) => {
          if (!Number.isFinite(curve.y[i])) { on = false; return; }
          to[on ? "lineTo" : "moveTo"](x(place), y(curve.y[i]));
          on = true;
        });
        to.stroke();
      }
      ticks(to, wide, tall + (given.strip ? 34 : 0), low, high, x, given.x_label);
      if (given.strip) strip(to, given.strip, x, tall + 6, wide);
    },
  };

  function grid(to, wide, tall, bottom, top, y) {
    to.font = "11px system-ui, sans-serif";
    const rough = (top - bottom || 1) / 4.5, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].find((n) => n * power >= rough) * power;
    for (let value = Math.ceil(bottom / step) * step; value <= top + step / 100; value += step) {
      to.strokeStyle = ink("line");
      to.lineWidth = 0.6;
      to.beginPath();
      to.moveTo(left, y(value));
      to.lineTo(wide - right, y(value));
      to.stroke();
      to.fillStyle = ink("dull");
      to.textAlign = "right";
      to.fillText(number(Number(value.toPrecision(3))), left - 6, y(value));
    }
  }

  function ticks(to, wide, tall, low, high, x, label) {
    const step = [1, 2, 5, 10, 20, 24, 50, 100, 200, 500, 1000, 5000].find((n) => (high - low) / n <= 10) || 20000;
    to.fillStyle = ink("dull");
    to.textAlign = "center";
    for (let place = Math.ceil(low / step) * step; place <= high; place += step) to.fillText(String(place), x(place), tall + 10);
    to.textAlign = "right";
    if (label) to.fillText(label, wide - right, tall + 28);
  }

  function strip(to, given, x, top, wide) {
    const most = largest(given.values) || 1;
    given.values.forEach((value, place) => {
      const from = x(given.edges[place]), until = x(given.edges[place + 1]);
      to.fillStyle = colorOf(value / most);
      to.fillRect(from, top, Math.max(0.5, until - from - (until - from > 4 ? 1 : 0)), 24);
    });
    to.strokeStyle = ink("line");
    to.lineWidth = 1;
    to.strokeRect(x(given.edges[0]), top, x(given.edges[given.edges.length - 1]) - x(given.edges[0]), 24);
    to.fillStyle = ink("dull");
    to.textAlign = "right";
    to.fillText("looks at", left - 6, top + 12);
  }
}

function legend(entries) {
  const node = make("div", { class: "choices" });
  for (const [name, color] of entries) {
    node.append(make("span", { class: "dull" }, make("span", { style: `color: ${color}` }, "■ "), name));
  }
  return node;
}

const palette = () => (theme() === "dark" ? ["#58a6ff", "#f0923c", "#56d364", "#d2a8ff", "#ff7b72", "#a3adb8", "#ff9bce", "#e3b341"]
  : ["#0969da", "#bc4c00", "#1a7f37", "#8250df", "#cf222e", "#6e7781", "#bf3989", "#9a6700"]);
const counting = (from, count) => Array.from({ length: count }, (_, i) => from + i);

KINDS.forecast = (panel, body, frame) => {
  const [history, ahead, low, high, attention] = [panel.history, panel.ahead, panel.low, panel.high, panel.attention].map(unpack);
  const view = chart("history, forecast and attention"), key = make("div");
  body.append(key, view.node);
  const C = history.shape[1], column = (tree, place) => counting(0, tree.shape[0]).map((row) => tree.array[row * C + place]);
  return () => {
    const [place, ...choice] = frame.chosen, past = column(history, place), next = column(ahead, place);
    const now = past[past.length - 1], before = counting(1 - past.length, past.length), after = counting(0, next.length + 1);
    const weights = at(attention, Math.min(place, attention.shape[0] - 1), ...choice), n = weights.length;
    const edges = counting(0, n + 1).map((i) => (i - n) * panel.patch + 0.5);
    const ends = low && high ? [column(low, place), column(high, place)] : null;
    const colors = palette();
    key.replaceChildren(legend([["history", ink("dull")], ["forecast", colors[0]], ...(ends ? [[panel.band, ink("band")]] : [])]));
    view.draw(Math.min(1100, body.clientWidth || 900), 260, {
      range: [1 - past.length, next.length], x_label: "steps from now",
      curves: [{ x: before, y: past, color: ink("dull") }, { x: after, y: [now, ...next], color: colors[0], width: 2.2 }],
      band: ends && { x: after, low: [now, ...ends[0]], high: [now, ...ends[1]] },
      strip: { values: weights, edges },
      tell(at_) {
        const step = Math.round(at_), patch = Math.floor((step - 0.5) / panel.patch) + n;
        if (step > 0) {
          const i = Math.min(next.length, step) - 1;
          return `in ${i + 1} steps: ${number(next[i])}` + (ends ? `\n${panel.band}: ${number(ends[0][i])} to ${number(ends[1][i])}` : "");
        }
        const seen = patch >= 0 && patch < n ? `\nlooked at by ${number(weights[patch])} (patch ${patch})` : "";
        return `${-step} steps ago: ${number(past[past.length - 1 + step])}${seen}`;
      },
    });
  };
};

KINDS.channels = (panel, body, frame) => {
  const values = unpack(panel.values), attention = unpack(panel.attention), [T, C] = values.shape;
  const few = C <= 8, view = chart("channels in time with attention"), key = make("div");
  const heat = canvasOf("channels in time"), scale = few ? null : columnsScaled(values);
  body.append(key);
  if (!few) {
    body.append(make("h3", {}, "channels down, time across; each channel in units of its own deviation"), heat);
    hover(heat, (x, y) => {
      const step = Math.floor((x - 56) / ((heat.clientWidth - 66) / T)), channel = Math.floor((y / 240) * C);
      if (step < 0 || step >= T || channel < 0 || channel >= C) return "";
      return `${panel.names[channel]}, step ${step}: ${number(values.array[step * C + channel])}`;
    });
  }
  body.append(view.node);
  return () => {
    const weights = at(attention, ...frame.chosen), n = weights.length, colors = palette();
    const wide = Math.min(1100, body.clientWidth || 900);
    const edges = counting(0, n + 1).map((i) => (i * T) / n - 0.5);
    const curves = few ? panel.names.map((name, place) => ({
      x: counting(0, T), y: counting(0, T).map((row) => values.array[row * C + place]), color: colors[place % 8],
    })) : [{ x: counting(0, n).map((i) => ((i + 0.5) * T) / n - 0.5), y: weights, color: colors[0] }];
    if (few) key.replaceChildren(legend(panel.names.map((name, place) => [name, colors[place % 8]])));
    else {
      const to = pen(heat, wide, 240);
      to.imageSmoothingEnabled = false;
      to.drawImage(heatOf(scale, C, T, 3, "signed"), 56, 0, wide - 66, 240);
    }
    view.draw(wide, few ? 220 : 110, {
      range: [-0.5, T - 0.5], curves, strip: { values: weights, edges }, x_label: few ? "step" : "attention by step",
      tell(place) {
        const step = Math.max(0, Math.min(T - 1, Math.round(place))), i = Math.min(n - 1, Math.floor(((step + 0.5) * n) / T));
        const lines = few ? panel.names.map((name, c) => `${name}: ${number(values.array[step * C + c])}`) : [];
        return [`step ${step}, looked at by ${number(weights[i])}`, ...lines].join("\n");
      },
    });
  };
};

function columnsScaled(values) {
  const [T, C] = values.shape, found = new Float32Array(T * C);
  for (let c = 0; c < C; c++) {
    let mean = 0, square = 0;
    for (let t = 0; t < T; t++) mean += values.array[t * C + c] / T;
    for (let t = 0; t < T; t++) square += (values.array[t * C + c] - mean) ** 2 / T;
    for (let t = 0; t < T; t++) found[c * T + t] = (values.array[t * C + c] - mean) / (Math.sqrt(square) || 1);
  }
  return found;
}

KINDS.plot = (panel, body) => {
  const places = unpack(panel.places), values = unpack(panel.values), view = chart(panel.title), key = make("div");
  body.append(key, view.node);
  const xs = Array.from(places.array);
  return () => {
    const colors = palette(), many = panel.names.length > 8;
    if (!many) key.replaceChildren(legend(panel.names.map((name, i) => [name, colors[i]])));
    view.draw(Math.min(1000, body.clientWidth || 900), 260, {
      range: [Math.min(...xs), Math.max(...xs)], x_label: panel.x_label,
      curves: panel.names.map((name, i) => ({ x: xs, y: at(values, i), color: colors[i % 8], width: many ? 0.9 : 1.8 })),
      tell(place) {
        let best = 0;
        xs.forEach((x, i) => { if (Math.abs(x - place) < Math.abs(xs[best] - place)) best = i; });
        const lines = panel.names.slice(0, 12).map((name, i) => `${name}: ${number(at(values, i)[best])}`);
        return [`${panel.x_label} ${number(xs[best])}`, ...lines].join("\n");
      },
    });
  };
};
