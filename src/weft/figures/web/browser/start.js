// Build the page, then draw each panel when it first comes into view.

const page = document.getElementById("page");
page.append(pageHead());
if (PAGE.words) page.append(make("p", { class: "dull", dir: "auto" }, PAGE.words));
for (const sentence of PAGE.left_out) page.append(make("p", { class: "left-out" }, sentence));
PAGE.panels.forEach((panel, number) => page.append(panelNode(panel, number)));
document.body.append(tip);
SHOWN.forEach((state) => state.draw());
let resizing = 0;
addEventListener("resize", () => {
  clearTimeout(resizing);
  resizing = setTimeout(() => SHOWN.forEach((state) => state.draw()), 120);
});
window.weft = { page: PAGE, shown: SHOWN, at, unpack };
document.documentElement.dataset.ready = "yes";
