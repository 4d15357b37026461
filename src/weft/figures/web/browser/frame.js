// The page around the panels: headings, what there is to choose, light and dark.

const KINDS = {};   // kind -> function (panel, body, chosen) giving a function that draws
const SHOWN = [];   // for each panel its choices and how to draw it

function chooser(name, options, chosen, change) {
  const list = make("select", { "aria-label": name, onchange: () => change(Number(list.value)) });
  options.forEach((option, number) => list.append(make("option", { value: number }, cut(option, 60))));
  list.value = String(chosen);
  return { list, node: make("label", {}, name, list), set: (place) => { list.value = String(place); } };
}

function panelNode(panel, number) {
  const body = make("div", { class: "body" }), bar = make("div", { class: "choices" });
  const title = make("h2", { id: `panel-${number}` }, panel.title);
  const section = make("section", { "aria-labelledby": `panel-${number}` }, title);
  if (panel.note) section.append(make("p", { class: "dull" }, panel.note));
  const chosen = panel.axes.map((axis) => axis.chosen);
  const state = { panel, chosen, bar, draw: () => {}, choose: (axis, place) => {
    chosen[axis] = place;
    if (choosers[axis]) choosers[axis].set(place);
    state.draw();
  } };
  const choosers = panel.axes.map((axis, place) => {
    if (axis.missing) section.append(make("p", { class: "dull" }, axis.missing));
    if (axis.options.length < 2) return null;
    const made = chooser(axis.name, axis.options, axis.chosen, (option) => state.choose(place, option));
    bar.append(made.node);
    return made;
  });
  section.append(bar, body);
  state.draw = KINDS[panel.kind](panel, body, state);
  if (!bar.children.length) bar.remove();
  SHOWN.push(state);
  return section;
}

function pageHead() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const set = (on) => {
    document.documentElement.classList.toggle("dark", on);
    button.textContent = on ? "light" : "dark";
    SHOWN.forEach((state) => state.draw());
  };
  const button = make("button", { id: "theme", onclick: () => set(theme() === "light") }, "dark");
  dark.addEventListener("change", (event) => set(event.matches));
  set(dark.matches);
  return make("header", {}, make("div", {}, make("h1", { dir: "auto" }, PAGE.title)), button);
}
