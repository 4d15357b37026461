// One attention output step by step: formula, numbers, and the part that computed them.

const MOST_ROWS = 64, MOST_COLUMNS = 64;

KINDS.attention_steps = (panel, body) => {
  panel.steps.forEach((step, place) => {
    const values = unpack(step.values), [R, C] = values.shape;
    const table = make("table", { class: "numbers" });
    if (step.columns.length) {
      const head = make("tr", {}, make("th", {}));
      step.columns.slice(0, MOST_COLUMNS).forEach((name) => head.append(make("th", {}, cut(spell(name), 16))));
      table.append(head);
    }
    for (let row = 0; row < Math.min(R, MOST_ROWS); row++) {
      const line = make("tr", {}, make("th", {}, step.rows.length ? cut(spell(step.rows[row]), 24) : ""));
      for (let column = 0; column < Math.min(C, MOST_COLUMNS); column++) {
        line.append(make("td", {}, number(values.array[row * C + column])));
      }
      table.append(line);
    }
    const more = R > MOST_ROWS || C > MOST_COLUMNS ? make("p", { class: "dull" }, `${R} x ${C} numbers in all`) : "";
    body.append(make("details", { open: "" }, make("summary", {}, `${place + 1}. ${step.name}`),
      make("div", { class: "formula" }, step.formula), step.words ? make("p", {}, step.words) : "",
      make("div", { class: "numbers-box" }, table), more, make("p", { class: "dull" }, `computed by ${step.part}`)));
  });
  return () => {};
};
