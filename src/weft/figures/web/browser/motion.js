// A skeleton in motion: drag to turn it, play it, and see how much is looked at each moment.

KINDS.motion = (panel, body, frame) => {
  const joints = unpack(panel.joints), attention = unpack(panel.attention), [T, J] = joints.shape;
  const canvas = canvasOf("a skeleton in motion"), strip = canvasOf("attention in time: choose a moment");
  let step = 0, yaw = 0.6, timer = 0, held = null;
  // The view follows the body: each step's middle in x and y, and how far joints are from it.
  const middle = [];
  let widest = 0, low = Infinity, high = -Infinity;
  for (let t = 0; t < T; t++) {
    const own = [0, 0];
    for (let j = 0; j < J; j++) [0, 1].forEach((axis) => { own[axis] += joints.array[(t * J + j) * 3 + axis] / J; });
    middle.push(own);
    for (let j = 0; j < J; j++) {
      const [x, y, z] = joints.array.subarray((t * J + j) * 3, (t * J + j) * 3 + 3);
      widest = Math.max(widest, Math.hypot(x - own[0], y - own[1]));
      low = Math.min(low, z);
      high = Math.max(high, z);
    }
  }
  const reach = Math.max(high - low, 1.6 * widest) || 1;
  const play = make("button", { onclick: () => (timer ? stop() : start()) }, "play");
  const slide = make("input", { type: "range", min: "0", max: String(T - 1), value: "0", "aria-label": "step", style: "width: 16rem" });
  const shown = make("span", { class: "dull" });
  slide.addEventListener("input", () => { step = Number(slide.value); draw(); });
  body.append(make("div", { class: "choices" }, play, slide, shown), canvas, make("h3", {}, "how much is looked at each step"), strip);

  function start() { timer = setInterval(() => { step = (step + 1) % T; draw(); }, 60); play.textContent = "stop"; }
  function stop() { clearInterval(timer); timer = 0; play.textContent = "play"; }
  const weightAt = (place) => {
    const weights = at(attention, ...frame.chosen);
    return weights[Math.min(weights.length - 1, Math.floor((place * weights.length) / T))];
  };
  const wide = () => Math.min(760, body.clientWidth || 760);

  function flat(place, joint) {
    const i = (place * J + joint) * 3, x = joints.array[i] - middle[place][0], y = joints.array[i + 1] - middle[place][1];
    const z = joints.array[i + 2] - (low + high) / 2, scale = 320 / reach;
    const across = x * Math.cos(yaw) - y * Math.sin(yaw), deep = x * Math.sin(yaw) + y * Math.cos(yaw);
    return [wide() / 2 + across * scale, 190 - (z + 0.12 * deep) * scale];
  }

  function body_(to, place, color, width) {
    to.strokeStyle = to.fillStyle = color;
    to.lineWidth = width;
    to.lineCap = "round";
    for (const [one, other] of panel.bones) {
      to.beginPath();
      to.moveTo(...flat(place, one));
      to.lineTo(...flat(place, other));
      to.stroke();
    }
    for (let joint = 0; joint < J; joint++) {
      to.beginPath();
      to.arc(...flat(place, joint), width * 0.9, 0, 7);
      to.fill();
    }
  }

  function draw() {
    const weights = at(attention, ...frame.chosen), top = largest(weights) || 1;
    const to = pen(canvas, wide(), 380);
    to.fillStyle = ink("raised");
    to.fillRect(0, 0, wide(), 380);
    to.globalAlpha = 0.18;
    if (step >= 3) body_(to, step - 3, ink("dull"), 1.5);
    to.globalAlpha = 1;
    body_(to, step, colorOf(0.4 + (0.6 * weightAt(step)) / top), 3.2);
    slide.value = String(step);
    shown.textContent = `step ${step} of ${T}, looked at by ${number(weightAt(step))}`;
    const over = pen(strip, wide(), 40);
    weights.forEach((weight, place) => {
      over.fillStyle = colorOf(weight / top);
      over.fillRect((place * wide()) / weights.length, 0, wide() / weights.length + 0.5, 34);
    });
    over.strokeStyle = ink("strong");
    over.lineWidth = 2.5;
    over.strokeRect((step * wide()) / T, 1, Math.max(2, wide() / T), 33);
  }

  const stepAt = (x) => Math.max(0, Math.min(T - 1, Math.floor((x / wide()) * T)));
  hover(strip, (x) => (x < 0 ? "" : `step ${stepAt(x)}: ${number(weightAt(stepAt(x)))}`));
  strip.addEventListener("click", (event) => { step = stepAt(event.clientX - strip.getBoundingClientRect().left); draw(); });
  canvas.style.touchAction = "none";
  canvas.style.cursor = "grab";
  canvas.addEventListener("pointerdown", (event) => { held = event.clientX; canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointerup", () => { held = null; });
  canvas.addEventListener("pointermove", (event) => {
    if (held === null) return;
    yaw += (event.clientX - held) / 120;
    held = event.clientX;
    draw();
  });
  return draw;
};
