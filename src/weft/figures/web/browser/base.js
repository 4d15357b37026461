// Arrays, colors, numbers in words, and the few things of the DOM that all panels share.

const PAGE = JSON.parse(document.getElementById("data").textContent);

const HALF = (() => {
  // All 65,536 numbers of 16 bits: sign, 5 bits of exponent, 10 of fraction.
  const table = new Float32Array(65536);
  for (let bits = 0; bits < 65536; bits++) {
    const sign = bits & 0x8000 ? -1 : 1, power = (bits >> 10) & 31, part = bits & 1023;
    table[bits] = sign * (power === 31 ? (part ? NaN : Infinity)
      : power ? 2 ** (power - 15) * (1 + part / 1024) : 2 ** -14 * (part / 1024));
  }
  return table;
})();

function unpack(tree) {
  if (!tree) return null;
  if (tree.array) return tree;
  const text = atob(tree.data), bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  let array;
  if (tree.type === "u1") array = bytes;
  else if (tree.type === "f4") array = new Float32Array(bytes.buffer);
  else {
    array = new Uint16Array(bytes.buffer);
    if (tree.type === "f2") array = Float32Array.from(array, (bits) => HALF[bits]);
  }
  tree.array = array;
  tree.data = null;
  return tree;
}

// The part of an array at these places of its first axes, as a view.
function at(tree, ...places) {
  let size = tree.array.length, first = 0;
  places.forEach((place, axis) => { size /= tree.shape[axis]; first += place * size; });
  return tree.array.subarray(first, first + size);
}

const largest = (values) => { let top = -Infinity; for (const x of values) if (x > top) top = x; return top; };
const farthest = (values) => { let top = 0; for (const x of values) if (Math.abs(x) > top) top = Math.abs(x); return top; };

function number(x) {
  if (!Number.isFinite(x)) return String(x).replace("Infinity", "∞").replace("NaN", "none");
  const size = Math.abs(x);
  return size === 0 || (size >= 1e-3 && size < 1e5) ? String(Number(x.toPrecision(4))) : x.toExponential(2);
}

function spell(token) {
  const inner = token.replace(/^ +| +$/g, "");
  const left = token.length - token.replace(/^ +/, "").length;
  const shown = inner ? "␣".repeat(left) + inner + "␣".repeat(token.length - left - inner.length)
    : "␣".repeat(token.length) || "∅";
  return shown.replace(/[\n\r]/g, "↵").replace(/\t/g, "⇥");
}

// An option in words: "head 1", but "mean" alone says enough.
const named = (axis, place) => (/^\d+$/.test(axis.options[place]) ? `${axis.name} ${axis.options[place]}` : spell(axis.options[place]));

const cut = (text, most) => {
  const letters = Array.from(text);
  return letters.length <= most ? text : letters.slice(0, most - 1).join("") + "…";
};

function make(tag, attributes = {}, ...children) {
  const found = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) found.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined) found.setAttribute(name, value);
  }
  found.append(...children);
  return found;
}

// --- colors -------------------------------------------------------------------------------------------------------

const theme = () => (document.documentElement.classList.contains("dark") ? "dark" : "light");
const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const ladders = {};

// 256 colors from the lowest to the highest value of a scale, [r, g, b] each.
function ladder(scale) {
  const key = scale + theme();
  if (ladders[key]) return ladders[key];
  const stops = PAGE.colors[scale][theme()].map((hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)));
  ladders[key] = Array.from({ length: 256 }, (_, step) => {
    const place = (step / 255) * (stops.length - 1), low = Math.min(stops.length - 2, Math.floor(place));
    return stops[low].map((from, i) => Math.round(from + (stops[low + 1][i] - from) * (place - low)));
  });
  return ladders[key];
}

function colorOf(share, scale = "share") {
  if (!Number.isFinite(share)) return ink("line");
  return `rgb(${ladder(scale)[Math.max(0, Math.min(255, Math.round(share * 255)))].join(",")})`;
}

function inkOn(share, scale = "share") {
  const [r, g, b] = ladder(scale)[Math.max(0, Math.min(255, Math.round((Number.isFinite(share) ? share : 0) * 255)))];
  return 0.299 * r + 0.587 * g + 0.114 * b < 140 ? "#ffffff" : "#111418";
}

// Where a value lies on its scale, from 0 to 1, when `top` is the largest.
const shareOf = (value, top, scale) => (scale === "signed" ? 0.5 + value / (2 * top || 1) : value / (top || 1));

// --- drawing ---------------------------------------------------------------------------------------------------------

function canvasOf(label) {
  const found = make("canvas", { role: "img", "aria-label": label });
  return found;
}

// Size a canvas for this screen and give its pen, wiped.
function pen(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.max(1, Math.round(height * ratio));
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const draw = canvas.getContext("2d");
  draw.setTransform(ratio, 0, 0, ratio, 0, 0);
  draw.clearRect(0, 0, width, height);
  draw.font = "13px system-ui, sans-serif";
  draw.textBaseline = "middle";
  return draw;
}

const tip = make("div", { id: "tip", role: "status" });

function say(event, text) {
  if (!text) { tip.style.display = "none"; return; }
  tip.textContent = text;
  tip.style.display = "block";
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 6))}px`;
  tip.style.top = `${event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 10 : event.clientY + 18}px`;
}

// Tell what is under the pointer: `words(x, y)` in the canvas's own pixels.
function hover(canvas, words) {
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    say(event, words(event.clientX - box.left, event.clientY - box.top, event));
  });
  canvas.addEventListener("pointerleave", (event) => { words(-1, -1, event); say(event, ""); });
}

// A view on something larger than the screen: only what is visible is drawn. `draw(pen, x, y, width, height)`.
function scroller(label, draw) {
  const canvas = canvasOf(label), still = make("div", { class: "still" }, canvas);
  const space = make("div"), box = make("div", { class: "scroll", tabindex: "0", "aria-label": label }, still, space);
  const view = {
    box, canvas, width: 0, height: 0,
    resize(width, height, most, tall) {
      view.width = Math.min(width, most);
      view.height = Math.min(height, tall);
      box.style.width = `${view.width + (height > tall ? 16 : 2)}px`;
      box.style.height = `${view.height + (width > most ? 16 : 2)}px`;
      still.style.width = `${view.width}px`;
      still.style.height = `${view.height}px`;
      space.style.width = `${width}px`;
      space.style.height = `${Math.max(0, height - view.height)}px`;
      view.redraw();
    },
    redraw() {
      if (view.width) draw(pen(canvas, view.width, view.height), box.scrollLeft, box.scrollTop, view.width, view.height);
    },
  };
  let waiting = false;
  box.addEventListener("scroll", () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; view.redraw(); });
  });
  return view;
}
