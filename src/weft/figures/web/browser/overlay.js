// Where in an image is looked, as light; and small pictures in a grid.

const GLOW = 0.62, LIT = [255, 158, 27];

function pictureOf(pixels, map, height, width, rows, columns, dimmed) {
  const canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = height;
  const to = canvas.getContext("2d"), image = to.createImageData(width, height);
  const low = map ? -largest(Array.from(map, (x) => -x)) : 0, span = map ? largest(map) - low || 1 : 1;
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      const place = y * width + x;
      const glow = map ? GLOW * (map[Math.floor((y * rows) / height) * columns + Math.floor((x * columns) / width)] - low) / span : 0;
      for (let channel = 0; channel < 3; channel++) {
        const plain = pixels[3 * place + channel] * (map ? dimmed : 1);
        image.data[4 * place + channel] = plain * (1 - glow) + glow * LIT[channel];
      }
      image.data[4 * place + 3] = 255;
    }
  }
  to.putImageData(image, 0, 0);
  return canvas;
}

function heatOf(values, height, width, top, scale) {
  const canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = height;
  const to = canvas.getContext("2d"), image = to.createImageData(width, height), colors = ladder(scale);
  for (let place = 0; place < values.length; place++) {
    const share = Math.max(0, Math.min(1, shareOf(values[place], top, scale)));
    image.data.set([...colors[Math.round(share * 255)], 255], 4 * place);
  }
  to.putImageData(image, 0, 0);
  return canvas;
}

KINDS.overlay = (panel, body, frame) => {
  const pixels = unpack(panel.pixels), maps = unpack(panel.maps), [height, width] = pixels.shape;
  const [rows, columns] = maps.shape.slice(-2), big = 300, ratio = width / height;
  const canvas = canvasOf("the image, the image in the light of attention, and the map");
  const others = canvasOf("all choices in small"), sizes = maps.shape.slice(0, -2);
  // Of more than two axes the small ones vary the first only, such as words.
  const inner = sizes.length === 2 ? sizes[1] : 1, count = (sizes[0] || 1) * inner;
  const wide = big * Math.min(1.4, ratio), small = 92;
  const across = () => Math.max(1, Math.min(sizes.length === 2 ? inner : count, Math.floor((body.clientWidth || 900) / (small + 10))));
  const choiceOf = (number) => {
    if (sizes.length === 2) return [Math.floor(number / inner), number % inner];
    return sizes.map((_, axis) => (axis ? frame.chosen[axis] : number));
  };
  const cellAt = (x, y) => {
    const place = Math.floor(x / (wide + 14)), px = x - place * (wide + 14);
    if (place < 0 || place > 2 || px > wide || y < 20 || y >= 20 + big) return null;
    return [Math.floor(((y - 20) / big) * rows), Math.floor((px / wide) * columns)];
  };
  hover(canvas, (x, y) => {
    const cell = x < 0 ? null : cellAt(x, y);
    return cell ? `patch ${cell[0]}, ${cell[1]}: ${number(at(maps, ...frame.chosen)[cell[0] * columns + cell[1]])}` : "";
  });
  const name = (number) => panel.axes.map((axis, place) => named(axis, choiceOf(number)[place])).join(", ");
  const under = (x, y) => {
    const number = Math.floor(y / (small + 26)) * across() + Math.floor(x / (small + 10));
    return x >= 0 && y >= 0 && Math.floor(x / (small + 10)) < across() && number < count ? number : null;
  };
  hover(others, (x, y) => (under(x, y) === null ? "" : name(under(x, y))));
  others.addEventListener("click", (event) => {
    const box = others.getBoundingClientRect(), number = under(event.clientX - box.left, event.clientY - box.top);
    if (number !== null) choiceOf(number).forEach((place, axis) => frame.choose(axis, place));
  });
  body.append(make("div", { style: "overflow-x: auto" }, canvas));
  if (count > 1) body.append(make("h3", {}, "all choices"), make("div", { class: "scroll", style: "max-height: 30rem" }, others));

  function drawSmall() {
    const to = pen(others, across() * (small + 10), Math.ceil(count / across()) * (small + 26));
    to.imageSmoothingEnabled = false;
    to.font = "11px system-ui, sans-serif";
    to.textAlign = "center";
    for (let number = 0; number < count; number++) {
      const x = (number % across()) * (small + 10) + 3, y = Math.floor(number / across()) * (small + 26) + 3;
      const choice = choiceOf(number), chosen = choice.every((place, axis) => place === frame.chosen[axis]);
      to.drawImage(pictureOf(pixels.array, at(maps, ...choice), height, width, rows, columns, panel.dimmed), x, y, small, small);
      to.strokeStyle = chosen ? ink("strong") : ink("line");
      to.lineWidth = chosen ? 3 : 1;
      to.strokeRect(x, y, small, small);
      to.fillStyle = chosen ? ink("strong") : ink("dull");
      const short = panel.axes.length !== 2 ? spell(panel.axes[0].options[choice[0]])
        : panel.axes.map((axis, place) => named(axis, choice[place])).join(", ");
      to.fillText(cut(short, 18), x + small / 2, y + small + 11, small + 8);
    }
  }
  return () => {
    const to = pen(canvas, 3 * (wide + 14), big + 24), map = at(maps, ...frame.chosen);
    const drawn = [["the image", pictureOf(pixels.array, null, height, width)],
      ["glow: looked at most", pictureOf(pixels.array, map, height, width, rows, columns, panel.dimmed)],
      ["the map, patch by patch", heatOf(map, rows, columns, largest(map) || 1, "share")]];
    to.imageSmoothingEnabled = false;
    drawn.forEach(([title, picture], place) => {
      to.fillStyle = ink("dull");
      to.textAlign = "left";
      to.fillText(title, place * (wide + 14), 9);
      to.drawImage(picture, place * (wide + 14), 20, wide, big);
      to.strokeStyle = ink("line");
      to.strokeRect(place * (wide + 14) + 0.5, 20.5, wide - 1, big - 1);
    });
    if (count > 1) drawSmall();
  };
};

KINDS.tiles = (panel, body) => {
  const colors = unpack(panel.colors), values = unpack(panel.values), source = colors || values;
  const [count, height, width] = source.shape, canvas = canvasOf(panel.title);
  let side = 80, gap = 20;
  const under = (x, y) => {
    const column = Math.floor(x / (side + 6)), number = Math.floor(y / (side + gap)) * panel.across + column;
    return x >= 0 && y >= 0 && column < panel.across && number < count ? number : null;
  };
  hover(canvas, (x, y) => {
    const number = under(x, y);
    if (number === null) return "";
    const px = Math.floor(((x % (side + 6)) / side) * width), py = Math.floor(((y % (side + gap)) - gap + 4) / side * height);
    const inside = px < width && py >= 0 && py < height && values;
    return panel.names[number] + (inside ? `\n${py}, ${px}: ${number_(number, py, px)}` : "");
  });
  const number_ = (tile, y, x) => number(at(values, tile)[y * width + x]);
  body.append(make("div", { style: "overflow-x: auto" }, canvas));
  return () => {
    side = Math.max(22, Math.min(96, Math.floor((body.clientWidth || 900) / panel.across) - 6));
    gap = side >= 56 && panel.names.some(Boolean) ? 20 : 6;
    const to = pen(canvas, panel.across * (side + 6), Math.ceil(count / panel.across) * (side + gap) + 4);
    const top = values ? (panel.scale === "signed" ? farthest(values.array) : largest(values.array)) || 1 : 1;
    to.imageSmoothingEnabled = false;
    to.textAlign = "center";
    to.font = "11px system-ui, sans-serif";
    for (let number = 0; number < count; number++) {
      const x = (number % panel.across) * (side + 6), y = Math.floor(number / panel.across) * (side + gap) + gap - 4;
      const picture = colors ? pictureOf(at(colors, number), null, height, width) : heatOf(at(values, number), height, width, top, panel.scale);
      to.drawImage(picture, x, y, side, side);
      to.fillStyle = ink("dull");
      if (gap > 10) to.fillText(cut(panel.names[number], 16), x + side / 2, y - 8, side);
    }
  };
};
