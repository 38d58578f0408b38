/* Square heat maps on a canvas that can be zoomed and moved, by pointer, buttons and keys. */

class HeatMap {
  /* In a host element; label: what the picture's alternative text begins with. */
  constructor(host, { rows = "query position", columns = "key position", value = "score" } = {}) {
    Object.assign(this, { host, rows, columns, value, view: null, shown: null });
    host.classList.add("heatmap");
    this.canvas = element("canvas", { tabindex: 0, role: "img" });
    this.readout = element("output", { class: "readout" });
    this.scale = element("div", { class: "scale", "aria-hidden": "true" });
    this.bar = element("div", { class: "bar" });
    const button = (text, label, act) => {
      const made = element("button", { type: "button", "aria-label": label, title: label }, text);
      made.addEventListener("click", act);
      return made;
    };
    this.bar.append(
      button("+", "Zoom in", () => this.zoom(0.5)),
      button("−", "Zoom out", () => this.zoom(2)),
      button("Whole", "Show the whole matrix", () => this.look(0, 0, this.shown.length)),
      element("span", { class: "span" }),
    );
    host.append(this.bar, this.canvas, this.scale, this.readout);
    new ResizeObserver(() => this.draw()).observe(host);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    this.listen();
  }

  /* shown: label; length, the side in positions; layers, from coarse to fine, each { values, edges }, where cell n covers
     positions edges[n] to edges[n + 1] - 1; table of colours; range [low, high] (else of what is drawn). The finest
     layer that covers all that is in view is drawn. */
  show(shown) {
    const keep = this.shown && this.shown.length === shown.length;
    this.shown = shown;
    this.canvas.setAttribute("aria-label", shown.label);
    this.readout.textContent = "";
    if (keep && this.view) this.draw(); else this.look(0, 0, shown.length);
  }

  /* Show `size` positions to a side, from position (row, column) on. */
  look(row, column, size) {
    const length = this.shown.length;
    size = Math.min(length, Math.max(Math.min(8, length), Math.round(size)));
    const fit = (start) => Math.round(Math.min(length - size, Math.max(0, start)));
    this.view = { row: fit(row), column: fit(column), size };
    this.canvas.style.touchAction = size < length ? "none" : "pan-y pinch-zoom";
    this.draw();
  }

  zoom(factor, row = null, column = null) {
    const { row: top, column: left, size } = this.view;
    const fresh = row === null && size === this.shown.length;  // from the whole, buttons go where detail is finest
    const y = row ?? (fresh ? 0 : top + size / 2), x = column ?? (fresh ? 0 : left + size / 2);
    this.look(y - (y - top) * factor, x - (x - left) * factor, size * factor);
  }

  layer() {
    const { row, column, size } = this.view;
    const end = Math.max(row, column) + size;
    return this.shown.layers.findLast(({ edges }) => end <= edges[edges.length - 1]) || this.shown.layers[0];
  }

  draw() {
    if (!this.view || !this.host.clientWidth) return;
    const side = Math.min(this.host.clientWidth, 460), ratio = window.devicePixelRatio || 1;
    const left = 52, bottom = 38, inner = side - left - 8;
    this.box = { left, top: 4, inner };
    this.canvas.width = Math.round(side * ratio);
    this.canvas.height = Math.round((inner + 4 + bottom) * ratio);
    this.canvas.style.width = `${side}px`;
    const context = this.canvas.getContext("2d");
    const { values, edges } = this.layer(), { row, column, size } = this.view;
    const [low, high] = this.shown.range || trimmed(values);
    const pixels = Math.round(inner * ratio), cells = edges.length - 1;
    const at = (start) => Uint32Array.from({ length: pixels }, (_, n) => cellOf(edges, start + ((n + 0.5) / pixels) * size));
    const rows = at(row), columns = at(column), image = context.createImageData(pixels, pixels);
    const words = new Uint32Array(image.data.buffer), table = this.shown.table.map(([r, g, b]) => (255 << 24) | (b << 16) | (g << 8) | r);
    for (let y = 0, n = 0; y < pixels; y++) {
      for (let x = 0; x < pixels; x++, n++) {
        const share = (values[rows[y] * cells + columns[x]] - low) / (high - low || 1);
        words[n] = table[Math.round(255 * Math.min(1, Math.max(0, share)))];
      }
    }
    context.putImageData(image, Math.round(left * ratio), Math.round(4 * ratio));
    context.scale(ratio, ratio);
    this.drawAxes(context, side, inner, left, bottom);
    this.drawScale(values, low, high);
    this.bar.querySelector(".span").textContent = size === this.shown.length ? ""
      : `rows ${row}–${row + size - 1}, columns ${column}–${column + size - 1}`;
  }

  drawAxes(context, side, inner, left, bottom) {
    const { row, column, size } = this.view;
    context.fillStyle = getComputedStyle(this.host).color;
    context.font = `12px ${getComputedStyle(this.host).fontFamily}`;
    for (const value of ticks([column, column + size - 1], 5).filter(Number.isInteger)) {
      context.textAlign = "center";
      context.fillText(value, left + ((value + 0.5 - column) / size) * inner, inner + 18);
    }
    for (const value of ticks([row, row + size - 1], 5).filter(Number.isInteger)) {
      context.textAlign = "right";
      context.fillText(value, left - 4, 8 + ((value + 0.5 - row) / size) * inner);
    }
    context.textAlign = "center";
    context.fillText(this.columns, left + inner / 2, inner + bottom - 4);
    context.translate(11, inner / 2);
    context.rotate(-Math.PI / 2);
    context.fillText(this.rows, 0, 0);
  }

  drawScale(values, low, high) {
    const [least, greatest] = extent(values);
    const stops = this.shown.table.filter((_, n) => n % 15 === 0).map(css).join(", ");
    this.scale.replaceChildren(
      element("span", {}, `${least < low ? "≤ " : ""}${brief(low)}`),
      element("i", { style: `background: linear-gradient(90deg, ${stops})` }),
      element("span", {}, `${greatest > high ? "≥ " : ""}${brief(high)}`),
    );
  }

  /* Row and column, in positions, under a pointer; null outside. */
  under(event) {
    const frame = this.canvas.getBoundingClientRect(), { left, top, inner } = this.box;
    const x = (event.clientX - frame.left - left) / inner, y = (event.clientY - frame.top - top) / inner;
    if (x < 0 || y < 0 || x >= 1 || y >= 1) return null;
    return { row: this.view.row + y * this.view.size, column: this.view.column + x * this.view.size };
  }

  listen() {
    let held = null;
    this.canvas.addEventListener("pointerdown", (event) => {
      held = this.under(event);
      if (held) this.canvas.setPointerCapture(event.pointerId);
    });
    this.canvas.addEventListener("pointerup", () => { held = null; });
    this.canvas.addEventListener("pointermove", (event) => {
      const now = this.view && this.under(event);
      if (now && held && this.view.size < this.shown.length) {
        this.look(this.view.row + held.row - now.row, this.view.column + held.column - now.column, this.view.size);
      } else if (now) this.read(now);
    });
    this.canvas.addEventListener("dblclick", (event) => {
      const now = this.under(event);
      if (now) this.zoom(0.5, now.row, now.column);
    });
    this.canvas.addEventListener("wheel", (event) => {
      const now = this.under(event);
      if (!now || document.activeElement !== this.canvas) return;  // the wheel scrolls the page until the map has focus
      event.preventDefault();
      this.zoom(event.deltaY < 0 ? 0.8 : 1.25, now.row, now.column);
    }, { passive: false });
    this.canvas.addEventListener("keydown", (event) => this.press(event));
  }

  press(event) {
    const { row, column, size } = this.view, step = Math.max(1, Math.round(size / 8));
    const acts = {
      "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2), 0: () => this.look(0, 0, this.shown.length),
      ArrowUp: () => this.look(row - step, column, size), ArrowDown: () => this.look(row + step, column, size),
      ArrowLeft: () => this.look(row, column - step, size), ArrowRight: () => this.look(row, column + step, size),
    };
    if (!acts[event.key] || event.ctrlKey || event.metaKey) return;
    acts[event.key]();
    event.preventDefault();
  }

  read({ row, column }) {
    const { values, edges } = this.layer(), y = cellOf(edges, row), x = cellOf(edges, column);
    const name = (n) => (edges[n + 1] - edges[n] > 1 ? `${edges[n]}–${edges[n + 1] - 1}` : `${edges[n]}`);
    const mean = edges[y + 1] - edges[y] > 1 ? ", mean" : "";
    this.readout.textContent = `${this.rows} ${name(y)}, ${this.columns} ${name(x)}: ${this.value} ${brief(values[y * (edges.length - 1) + x])}${mean}`;
  }
}

/* The cell that holds a position. */
function cellOf(edges, position) {
  let low = 0, high = edges.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (edges[middle] <= position) low = middle; else high = middle;
  }
  return low;
}

/* Where `cells` cells of a picture of `length` positions begin, and where the last one ends. */
function cellEdges(length, cells) {
  return Array.from({ length: cells + 1 }, (_, n) => Math.floor((n * length) / cells));
}

/* The range of colours: that of the values, less the extreme half per cent on either side. */
function trimmed(values) {
  const sorted = Float64Array.from(values).sort();
  return [sorted[Math.floor(sorted.length * 0.005)], sorted[Math.ceil(sorted.length * 0.995) - 1]];
}
