// Records: a table of words and numbers; rows that stand out are marked.

KINDS.records = (panel, body) => {
  const cells = (tag, row) => row.map((cell) => make(tag, { dir: "auto" }, cell));
  const marked = new Set(panel.marked);
  const rows = panel.rows.map((row, number) => make("tr", marked.has(number) ? { class: "marked" } : {}, ...cells("td", row)));
  const head = panel.head.some((name) => name) ? [make("thead", {}, make("tr", {}, ...cells("th", panel.head)))] : [];
  body.append(make("div", { class: "records" }, make("table", {}, ...head, make("tbody", {}, ...rows))));
  return () => {};
};
