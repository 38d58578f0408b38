/* Which head is looked at: a grid of all, two sliders, and everybody who wants to know. */

const KINDS = {
  previous: ["P", [0, 114, 178]], next: ["N", [86, 180, 233]], first: ["F", [230, 159, 0]], local: ["L", [0, 158, 115]],
  broad: ["B", [204, 121, 167]], other: ["·", [150, 150, 150]],
};

class Explorer {
  constructor(measures) {
    this.measures = measures;
    this.layers = measures.model.layers;
    this.heads = measures.model.heads;
    this.layer = this.head = 0;
    this.listeners = [];
    this.choices = gridMeasures(measures);
    this.makeGrid();
    this.makeControls();
  }

  onChange(listener) {
    this.listeners.push(listener);
  }

  /* Look at a head; both are held within what there is. */
  select(layer, head) {
    this.layer = Math.min(this.layers - 1, Math.max(0, layer));
    this.head = Math.min(this.heads - 1, Math.max(0, head));
    for (const [name, value] of [["layer", this.layer], ["head", this.head]]) {
      document.getElementById(name).value = value;
      document.getElementById(`${name}-value`).textContent = value;
    }
    for (const button of this.buttons.flat()) {
      button.setAttribute("aria-selected", "false");
      button.tabIndex = -1;
    }
    const chosen = this.buttons[this.layer][this.head];
    chosen.setAttribute("aria-selected", "true");
    chosen.tabIndex = 0;
    for (const listener of this.listeners) listener(this.layer, this.head);
  }

  makeGrid() {
    const grid = document.getElementById("grid");
    grid.style.gridTemplateColumns = `1.6rem repeat(${this.heads}, minmax(1.1rem, 1fr))`;
    const where = (text, role) => element("span", { class: "where", role }, text);
    const heads = Array.from({ length: this.heads }, (_, head) => where(head, "columnheader"));
    grid.append(element("div", { role: "row" }, where("", "columnheader"), ...heads));
    this.buttons = Array.from({ length: this.layers }, (_, layer) => {
      const row = Array.from({ length: this.heads }, (_, head) => {
        const button = element("button", { type: "button", role: "gridcell" });
        button.addEventListener("click", () => this.select(layer, head));
        return button;
      });
      grid.append(element("div", { role: "row" }, where(layer, "rowheader"), ...row));
      return row;
    });
    grid.addEventListener("keydown", (event) => this.move(event));
    new ResizeObserver(() => grid.classList.toggle("narrow", this.buttons[0][0].clientWidth < 26)).observe(grid);
  }

  move(event) {
    const to = {
      ArrowUp: [this.layer - 1, this.head], ArrowDown: [this.layer + 1, this.head],
      ArrowLeft: [this.layer, this.head - 1], ArrowRight: [this.layer, this.head + 1],
      Home: [this.layer, 0], End: [this.layer, this.heads - 1],
    }[event.key];
    if (!to) return;
    this.select(...to);
    this.buttons[this.layer][this.head].focus();
    event.preventDefault();
  }

  makeControls() {
    const measure = document.getElementById("measure");
    measure.append(...this.choices.map(({ name }, n) => element("option", { value: n }, name)));
    measure.addEventListener("change", () => this.colour(this.choices[measure.value]));
    const [layer, head] = ["layer", "head"].map((name) => document.getElementById(name));
    for (const slider of [layer, head]) slider.addEventListener("input", () => this.select(+layer.value, +head.value));
    this.colour(this.choices[0]);
  }

  colour({ name, values, most }) {
    const kinds = typeof values[0][0] === "string";
    this.buttons.forEach((row, layer) => row.forEach((button, head) => {
      const value = values[layer][head];
      const colour = kinds ? KINDS[value][1] : colourAt(AMOUNT, value / most);
      button.style.background = css(colour);
      button.style.color = inkOn(colour);
      button.textContent = kinds ? KINDS[value][0] : most > 1 ? Math.round(value) : value.toFixed(2).replace(/^0|(?<=^-)0/, "").replace("-", "−");
      button.setAttribute("aria-label", `Layer ${layer}, head ${head}: ${name} ${kinds ? value : written(value)}`);
    }));
    const stops = AMOUNT.filter((_, n) => n % 15 === 0).map(css).join(", ");
    const key = kinds ? Object.entries(KINDS).map(([kind, [letter, colour]]) =>
      element("span", {}, element("b", { style: `background: ${css(colour)}; color: ${inkOn(colour)}` }, letter), kind))
      : ["0", element("i", { style: `background: linear-gradient(90deg, ${stops})` }), brief(most)];
    document.getElementById("grid-key").replaceChildren(...key);
  }
}

/* What the grid can be coloured by. */
function gridMeasures({ heads, texts }) {
  const choices = [{ name: "Toeplitz R² of F_P", values: heads.r2, most: 1 }];
  if (heads.r2_carried) choices.push({ name: "Toeplitz R², positions carried through the network", values: heads.r2_carried, most: 1 });
  choices.push({ name: "kind of head, from positions alone", values: heads.kinds });
  if (texts) choices.push({ name: "kind of head, on texts", values: texts.kinds });
  for (const [kernels, fit] of Object.entries(heads.fits)) {
    choices.push({ name: `R² of F_P explained by ${kernels} TISA kernel${kernels === "1" ? "" : "s"}`, values: fit.r2_matrix, most: 1 });
  }
  const shares = { previous: "the previous token", next: "the next token", first: "the first token", local: "five tokens to either side" };
  for (const [source, patterns] of [["positions alone", heads.patterns], ["on texts", texts && texts.patterns]]) {
    if (!patterns) continue;
    for (const [share, words] of Object.entries(shares)) {
      choices.push({ name: `attention to ${words}, ${source}`, values: patterns[share], most: 1 });
    }
    choices.push({ name: `entropy of attention, ${source}`, values: patterns.entropy, most: 1 });
  }
  if (texts) {
    const { effective } = texts.ranks.average.whole;
    choices.push({ name: "effective rank of scores, on texts", values: effective, most: Math.max(...effective.flat()) });
  }
  return choices;
}
