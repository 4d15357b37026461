// Tokens in two columns with lines from those that look to those that are looked at; only visible rows are drawn.

const LINE = 21, SIDE = 150, LEAST = 0.02;

function linesView(panel, maps, state) {
  const rows = panel.rows, columns = panel.columns || panel.rows;
  let width = 520;
  const view = scroller("lines from each token to those it looks at", draw);

  function draw(to, x, y, wide, tall) {
    const first = Math.max(0, Math.floor(y / LINE)), last = Math.min(rows.length - 1, Math.ceil((y + tall) / LINE));
    const focus = state.focus();
    to.fillStyle = ink("ground");
    to.fillRect(0, 0, wide, tall);
    to.lineCap = "round";
    if (state.direction() === "from") {
      for (let row = first; row <= last; row++) if (row !== focus) bundle(to, row, y, focus === null);
      if (focus !== null) bundle(to, focus, y, true);
    } else if (focus !== null) {
      maps.column(state.layer(), state.head(), focus).forEach((weight, row) => line(to, row, focus, weight, y, true));
    }
    names(to, rows, y, tall, SIDE - 10, "right", state.direction() === "from" ? focus : null);
    names(to, columns, y, tall, width - SIDE + 10, "left", state.direction() === "from" ? null : focus);
  }

  // The lines of one row; where a row in focus looks at many alike, its largest still shows.
  function bundle(to, row, y, lit) {
    let most = 1;
    if (lit && row === state.focus()) {
      most = 0;
      maps.each(state.layer(), state.head(), row, (_, weight) => { if (weight > most) most = weight; });
    }
    const scale = most > 0 ? Math.max(most, 0.35) / most : 1;
    maps.each(state.layer(), state.head(), row, (column, weight) => line(to, row, column, weight * scale, y, lit));
  }

  function line(to, row, column, weight, y, lit) {
    if (weight < LEAST) return;
    to.globalAlpha = lit ? Math.min(1, 0.12 + weight) : 0.16 * Math.min(1, weight + 0.1);
    to.strokeStyle = state.focus() !== null && lit ? ink("strong") : ink("accent");
    to.lineWidth = 0.5 + 3.5 * weight;
    to.beginPath();
    to.moveTo(SIDE, (row + 0.5) * LINE - y);
    to.lineTo(width - SIDE, (column + 0.5) * LINE - y);
    to.stroke();
    to.globalAlpha = 1;
  }

  function names(to, tokens, y, tall, x, align, focus) {
    to.textAlign = align;
    const first = Math.max(0, Math.floor(y / LINE)), last = Math.min(tokens.length - 1, Math.ceil((y + tall) / LINE));
    for (let place = first; place <= last; place++) {
      to.fillStyle = place === focus ? ink("strong") : ink("ink");
      to.font = `${place === focus ? "600 " : ""}13px system-ui, sans-serif`;
      to.fillText(cut(spell(tokens[place]), 18), x, (place + 0.5) * LINE - y, SIDE - 14);
    }
  }

  const under = (y) => Math.floor((y + view.box.scrollTop) / LINE);
  hover(view.canvas, (x, y, event) => {
    const place = under(y), left = x < width / 2;
    if (x < 0 || place < 0 || place >= (left ? rows : columns).length) { state.glance(null); return ""; }
    if (left !== (state.direction() === "from")) return spell((left ? rows : columns)[place]) + ` (${place})`;
    state.glance(place);
    return left ? maps.tell(state.layer(), state.head(), place, columns) : "";
  });
  view.canvas.addEventListener("click", (event) => {
    const box = view.canvas.getBoundingClientRect();
    const left = event.clientX - box.left < width / 2, place = under(event.clientY - box.top);
    state.pin(place < (left ? rows : columns).length ? place : null, left ? "from" : "to");
  });
  return {
    node: view.box,
    redraw: view.redraw,
    resize(wide) {
      width = Math.min(520, wide);
      view.resize(width, Math.max(rows.length, columns.length) * LINE, width, 560);
    },
    show(place) {
      const y = place * LINE;
      if (y < view.box.scrollTop || y > view.box.scrollTop + view.height - LINE) view.box.scrollTop = y - view.height / 2;
    },
  };
}
